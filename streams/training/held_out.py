"""The quality of a model of `aif train` for users whose impressions it did not learn, as a checkpoint's card has it.

Here: the users who are kept out, and the questions to the model about their requests. Not here: the measures themselves (measures.py). A user is kept out by
a hash of the id alone, so a later training on more data keeps out the same ones. The checkpoint that a warm start began with may still have learnt them: a
follower keeps no user out.

    gauc           AUC of the clicks among the items that a request showed, by the predicted click, weighted by these items
    recall_at_100  clicked items in the hundred best of those shown and `DRAWN` more, any items of the log, over min(100, clicked)
    best_plain     of each measure, the best score that needs no network, and what the model gains over it (comparison.py)

Arrays: Q requests, C shown items, D shown and drawn items, U users.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from infra.data.interactions import Interactions, Log
from infra.figures import Interval
from schemas.ids import Id
from schemas.model.network import AifNetwork
from schemas.statistics import CLICK
from streams.training.comparison import BEST, MODEL, compare, judge
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.measures import UserValues, recalls_at_k, user_aucs
from streams.training.plain_scores import log_scores, log_windows, share_of, simple_scores
from streams.training.questions import score_tasks
from streams.training.shown_scores import shown_items, shown_places, shown_scores

REQUESTS_MAX = 200  # measured: the latest
DRAWN, K = 1_000, 100
_PARTS = 10_000


def keep_out(data: TrainingSet, share: float) -> tuple[TrainingSet, TrainingSet]:
    """(requests to learn, the latest requests of the users who are kept out). No user is kept out where that would be less than one on average."""
    if share * len(data.histories.index) < 1:
        return data, data.take(np.empty(0, np.int64))
    part_U = np.array([xxhash.xxh64_intdigest(str(user).encode()) % _PARTS for user in data.histories.index], np.int64)
    out_Q = (part_U < round(share * _PARTS))[data.user_Q]
    out = np.flatnonzero(out_Q)
    return data.take(np.flatnonzero(~out_Q)), data.take(out[np.argsort(data.time_Q[out], kind="stable")][-REQUESTS_MAX:])


class HeldOut:
    """The requests that were kept out, and the plain scores of their items: the same for every model that is trained on `learnt`. A request of which no item
    was known at its time is left out."""

    def __init__(self, learnt: TrainingSet, held: TrainingSet) -> None:
        self._learnt, self._held = learnt, held.take(np.flatnonzero(shown_places(held).any(axis=1)))

    def measure(self, network: AifNetwork) -> dict[str, Any] | None:
        """[value, low, high] of each measure, with a 95% interval over users; the best plain score, and the gain over it; `verdict`: sentences to read
        first. None where no request has a click and an item without one."""
        shown_QC, held = shown_places(self._held), self._held
        clicked_QC = shown_QC & (held.clicked_QC > 0)
        if not (clicked_QC.any(axis=1) & (shown_QC & ~clicked_QC).any(axis=1)).any():
            return None
        places = self._places
        logits_QDT = score_tasks(network, self._asked)
        ours = places.aucs(logits_QDT[..., 0]) | places.recalls(_of_catalogue(logits_QDT, held.spec.shown_task))
        gains = compare({MODEL: ours} | self._plain)
        told = {gain.measure: _bounds(gain.ours) for gain in gains}
        best = {gain.measure: {"score": gain.best, "value": _bounds(gain.theirs), "gain": _bounds(gain.gain)} for gain in gains}
        about = {"requests": len(held), "users": len(np.unique(held.user_Q)), "drawn": DRAWN}
        return about | told | {BEST: best, "verdict": judge(gains)}

    @cached_property
    def _places(self) -> "_Places":
        shown_QC, (_, user_Q) = shown_places(self._held), np.unique(self._held.user_Q, return_inverse=True)
        return _Places(_with_drawn(self._held), shown_QC & (self._held.clicked_QC > 0), shown_QC, user_Q)

    @cached_property
    def _asked(self) -> TrainingSet:
        rows_QD = self._places.rows_QD
        return dataclasses.replace(self._held, row_QC=rows_QD, bid_QC=self._held.items.bid_R.numpy()[np.maximum(rows_QD, 0)])

    @cached_property
    def _plain(self) -> dict[str, dict[str, UserValues]]:
        places, click = self._places, self._held.spec.tasks[0]
        scores = _plain_scores(self._learnt, self._asked)
        measured = {name: places.aucs(scores_QD) | places.recalls(scores_QD) for name, scores_QD in scores.items()}
        for name, score_X in shown_scores(self._learnt, self._held, (click,))[click].items():
            measured[name] = measured.get(name, {}) | places.aucs_of_shown(score_X)
        return measured


def _bounds(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def _of_catalogue(logits_QDT: np.ndarray, shown_task: int | None) -> np.ndarray:
    """By what candidates are ordered of which most were never shown, [Q, D]: log of the click's probability, times that of being shown where it is a task."""
    if shown_task is None:
        return logits_QDT[..., 0]
    return -np.logaddexp(0, -logits_QDT[..., 0]) - np.logaddexp(0, -logits_QDT[..., 1 + shown_task])


def _plain_scores(learnt: TrainingSet, asked: TrainingSet) -> dict[str, np.ndarray]:
    """The plain scores of the asked items, [Q, D] by name. They read the same data as the model: all learnt requests, and the user's behaviours before a
    request. Other data of the users in question is not read, because it has the answers."""
    items, histories = learnt.items, learnt.histories
    ids, users = list(items.index), list(histories.index)
    place_QD = np.where(asked.row_QC == NOT_AN_ITEM, len(ids), np.searchsorted(items.begin_I, asked.row_QC, "right") - 1)
    ends = zip(histories.begin_U[asked.user_Q].tolist(), asked.history_end_Q.tolist(), strict=True)
    rows = [[item for item in histories.item_H[begin:end].tolist() if item >= 0] for begin, end in ends]
    met_QD = np.stack([np.bincount(row, minlength=len(ids) + 1)[place] for row, place in zip(rows, place_QD, strict=True)]).astype(float)
    query_X, place_X = np.nonzero(shown_places(learnt))
    clicked_X = (learnt.clicked_QC[query_X, place_X] > 0).astype(np.int64)
    shown = _in_order(ids, users, learnt.user_Q[query_X], shown_items(learnt), clicked_X, learnt.time_Q[query_X])
    user_H = np.repeat(np.arange(len(users)), histories.end_U - histories.begin_U)
    kept_H = np.flatnonzero((histories.item_H[: len(user_H)] >= 0) & ~np.isin(user_H, asked.user_Q))
    taken = _in_order(ids, users, user_H[kept_H], histories.item_H[kept_H], np.zeros(len(kept_H), np.int64), histories.time_H[kept_H])
    clicks = shown.take(shown.kind_X > 0)
    popularity_QD = np.append(np.bincount(clicks.item_X, minlength=len(ids)), 0)[place_QD].astype(float)
    log = Log(ids, int(learnt.time_Q.max()) + 1, clicks, taken, shown)
    return simple_scores(popularity_QD, met_QD) | log_scores(log, log_windows(log), rows, place_QD, share_of(popularity_QD))


def _in_order(
    ids: list[Id], users: list[Id], user_X: np.ndarray, item_X: np.ndarray, kind_X: np.ndarray, time_X: np.ndarray
) -> Interactions:
    order = np.argsort(time_X, kind="stable")
    return Interactions(users, ids, ("", CLICK), user_X[order], item_X[order], kind_X[order], time_X[order])


@dataclass(frozen=True)
class _Places:
    """Rows of the shown items, then of the drawn ones, [Q, D]. Which places hold a clicked and which a shown item, bool [Q, C]. The user of each request. A
    measure is of a user, not of a request. Requests of one user are alike, so taken one by one they would give too narrow an interval."""

    rows_QD: np.ndarray
    clicked_QC: np.ndarray
    shown_QC: np.ndarray
    user_Q: np.ndarray

    def aucs(self, scores_QD: np.ndarray) -> dict[str, UserValues]:
        return self.aucs_of_shown(scores_QD[:, : self.shown_QC.shape[1]][self.shown_QC])

    def aucs_of_shown(self, score_X: np.ndarray) -> dict[str, UserValues]:
        return {"gauc": user_aucs(np.nonzero(self.shown_QC)[0], score_X, self.clicked_QC[self.shown_QC]).by_user(self.user_Q)}

    def recalls(self, scores_QD: np.ndarray) -> dict[str, UserValues]:
        known_QD = np.where(self.rows_QD == NOT_AN_ITEM, -np.inf, scores_QD)
        by_row_QD = self.rows_QD.argsort(axis=1)  # the shown ones come first: a model that distinguishes nothing would find every click
        clicked_QD = np.pad(self.clicked_QC, ((0, 0), (0, known_QD.shape[1] - self.clicked_QC.shape[1])))
        found_QD, relevant_QD = (np.take_along_axis(of, by_row_QD, 1) for of in (known_QD, clicked_QD))
        return {f"recall_at_{K}": recalls_at_k(found_QD, relevant_QD, K).by_user(self.user_Q)}


def _with_drawn(held: TrainingSet) -> np.ndarray:
    """Rows of the shown items and of the drawn ones, int64 [Q, D]; no row for one that was shown anyway, or not known at the time."""
    items = len(held.items.begin_I)
    drawn = np.stack([chance.choice(items, min(DRAWN, items), replace=False) for chance in map(np.random.default_rng, range(len(held)))])
    rows = held.items.rows_as_of(drawn, np.broadcast_to(held.time_Q[:, None], drawn.shape))
    shown = np.stack([np.isin(of, there) for of, there in zip(rows, held.row_QC, strict=True)])
    return np.concatenate([held.row_QC, np.where(shown, NOT_AN_ITEM, rows)], axis=1)
