"""How a model of `aif train` ranks for users whose impressions it did not learn: what a checkpoint's card says of its quality.

Here: which users are kept out, and what is asked of the model about their requests. Not here: the measures themselves (metrics.py).
A user is kept out by a hash of the id alone, so a later training on more data keeps out the same ones. What a warm start began with may have learnt them
all the same: a follower keeps nobody out.

    gauc           AUC of the clicks among the items that a request showed, by the predicted click, weighted by these items
    recall_at_100  clicked items in the hundred best of those shown and `DRAWN` more, any items of the log, over min(100, clicked)

Arrays: Q requests, C shown items, D shown and drawn items, U users.
"""

import dataclasses
from typing import Any

import numpy as np
import xxhash

from schemas.model.network import AifNetwork
from streams.training.bootstrap import Bootstrap
from streams.training.impressions import TrainingSet
from streams.training.item_table import NOT_AN_ITEM
from streams.training.metrics import recalls_at_k, user_aucs
from streams.training.questions import score_tasks

REQUESTS_MAX = 200  # measured: the latest
DRAWN, K = 1_000, 100
_PARTS = 10_000


def keep_out(data: TrainingSet, share: float) -> tuple[TrainingSet, TrainingSet]:
    """(what is learnt, the latest requests of the users who are kept out). Nobody is, where that would be less than one of them on average."""
    if share * len(data.histories.index) < 1:
        return data, data.take(np.empty(0, np.int64))
    part_U = np.array([xxhash.xxh64_intdigest(str(user).encode()) % _PARTS for user in data.histories.index], np.int64)
    out_Q = (part_U < round(share * _PARTS))[data.user_Q]
    out = np.flatnonzero(out_Q)
    return data.take(np.flatnonzero(~out_Q)), data.take(out[np.argsort(data.time_Q[out], kind="stable")][-REQUESTS_MAX:])


def measure_held_out(network: AifNetwork, held: TrainingSet) -> dict[str, Any] | None:
    """[value, low, high] of each measure, the bounds of a 95% interval over requests; None where no request has a click and an item without one."""
    shown_QC = held.row_QC != NOT_AN_ITEM
    relevant_QC = shown_QC & (held.clicked_QC > 0)
    if not (relevant_QC.any(axis=1) & (shown_QC & ~relevant_QC).any(axis=1)).any():
        return None
    rows_QD = _with_drawn(held)
    asked = dataclasses.replace(held, row_QC=rows_QD, bid_QC=held.items.bid_R.numpy()[np.maximum(rows_QD, 0)])
    logits_QD = np.where(rows_QD != NOT_AN_ITEM, score_tasks(network, asked)[..., 0], -np.inf)
    relevant_QD = np.pad(relevant_QC, ((0, 0), (0, rows_QD.shape[1] - relevant_QC.shape[1])))
    aucs = user_aucs(np.nonzero(shown_QC)[0], logits_QD[:, : shown_QC.shape[1]][shown_QC], relevant_QC[shown_QC])
    by_row_QD = rows_QD.argsort(axis=1)  # the shown ones come first: a model that tells nothing apart would find every click
    logits_QD, relevant_QD = (np.take_along_axis(of, by_row_QD, 1) for of in (logits_QD, relevant_QD))
    measures = {"gauc": aucs, f"recall_at_{K}": recalls_at_k(logits_QD, relevant_QD, K)}
    intervals = {name: Bootstrap(len(held)).interval(values) for name, values in measures.items()}
    told = {name: [found.value, found.low, found.high] for name, found in intervals.items()}
    return {"requests": len(held), "users": len(np.unique(held.user_Q)), "drawn": DRAWN} | told


def _with_drawn(held: TrainingSet) -> np.ndarray:
    """Rows of the shown items and of the drawn ones, int64 [Q, D]; no row for one that was shown anyway, or not known at the time."""
    items = len(held.items.begin_I)
    drawn = np.stack([chance.choice(items, min(DRAWN, items), replace=False) for chance in map(np.random.default_rng, range(len(held)))])
    rows = held.items.rows_as_of(drawn, np.broadcast_to(held.time_Q[:, None], drawn.shape))
    shown = np.stack([np.isin(of, there) for of, there in zip(rows, held.row_QC, strict=True)])
    return np.concatenate([held.row_QC, np.where(shown, NOT_AN_ITEM, rows)], axis=1)
