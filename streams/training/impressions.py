"""Impressions joined with histories and items as of their time, in batches of requests: the user half runs once per request.

Here: `TrainingSet` (all columns, made once) and `Batch` (the inputs of one step, by indexing alone). Not here: the network, the loss, topics. No leak: a
history ends strictly before the impression, and an item's row is the latest version that is not after it. Times are those of the records, so a click that a
slow clock dates before the impression counts as known. The same holds for the items of the history, because serving joins them with the rows at the time of
the request. A profile counts from its `time_ms` on, and always if it has none. Embeddings have no time: the newest are joined, whenever they came, so they
must not contain outcomes of impressions.
A request that occurs twice counts once (`told_once`), within the whole log in a training, within a round in a follower.

Arrays: Q requests, B requests of a batch, C shown items (padded to the longest), L behaviours, R rows of the item table, T tasks besides the click,
S statistics of users.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.inputs import Behaviours, CandidateRows, FeatureTensors, UserInputs, map_tensors
from schemas.model.score import SHOWN
from schemas.model.spec import ModelSpec
from schemas.users import UserHistory
from streams.training.histories import Histories, build_histories, fold_users
from streams.training.item_table import NOT_AN_ITEM, ItemTable, build_item_table
from streams.training.losses import Labels
from streams.training.user_statistics import CountedStatistics, UserStatistics, encode_statistics, user_columns

_NUMBER_MAX = 1e30  # the sum over a request stays finite in fp32


@dataclass(frozen=True, kw_only=True)
class Batch(Labels):
    """B requests with their labels. `rows_BC`, `rows_BL` index the item table (-1 = none). Behaviours have no vectors in `users` yet; trainer.py adds them."""

    users: UserInputs
    rows_BL: Tensor
    rows_BC: Tensor
    context: FeatureTensors


@dataclass(frozen=True)
class TrainingSet:
    """All impressions of the log, joined; `batch` selects some."""

    spec: ModelSpec
    items: ItemTable
    histories: Histories
    time_Q: np.ndarray
    user_Q: np.ndarray
    history_end_Q: np.ndarray
    row_QC: np.ndarray
    bid_QC: np.ndarray
    teacher_QC: np.ndarray
    clicked_QC: np.ndarray
    outcomes_QCT: np.ndarray
    context: FeatureTensors
    skipped_items: int
    statistics: UserStatistics
    statistics_QS: np.ndarray

    def __len__(self) -> int:
        return len(self.user_Q)

    def take(self, requests: np.ndarray) -> "TrainingSet":
        """Those with these numbers, over the same items and histories."""
        columns = ("time_Q", "user_Q", "history_end_Q", "row_QC", "bid_QC", "teacher_QC", "clicked_QC", "outcomes_QCT", "statistics_QS")
        taken = {name: getattr(self, name)[requests] for name in columns}
        return dataclasses.replace(self, **taken, context=map_tensors(self.context, lambda t: t[torch.from_numpy(requests)]))

    def batch(self, requests: np.ndarray) -> Batch:
        """The requests with these numbers, [B], each with the latest `behaviours_max` behaviours of the spec."""
        rows_BC, at = torch.from_numpy(self.row_QC[requests]), torch.from_numpy(requests)
        users, rows_BL = self._users(requests)
        return Batch(
            users=users,
            rows_BL=rows_BL,
            rows_BC=rows_BC,
            context=map_tensors(self.context, lambda t: t[at]),
            bid_BC=torch.from_numpy(self.bid_QC[requests]),
            teacher_BC=torch.from_numpy(self.teacher_QC[requests]),
            clicked_BC=torch.from_numpy(self.clicked_QC[requests]),
            outcomes_BCT=torch.from_numpy(self.outcomes_QCT[requests]),
            mask_BC=rows_BC != NOT_AN_ITEM,
            shown_BC=rows_BC != NOT_AN_ITEM,
        )

    def with_negatives(self, batch: Batch, requests: np.ndarray, chance: np.random.Generator, negatives: int) -> Batch:
        """The batch of these requests with `negatives` places more for each place: items of the catalogue, drawn uniformly, as of the request's time. Places
        that belong to padding, and places of items that did not exist then, stay empty."""
        places_BC = batch.mask_BC.numpy()
        free_BN = np.repeat(places_BC, negatives, axis=1)
        item_BN = np.where(free_BN, chance.integers(0, len(self.items.begin_I), free_BN.shape), NOT_AN_ITEM)
        row_BN = torch.from_numpy(self.items.rows_as_of(item_BN, np.broadcast_to(self.time_Q[requests][:, None], item_BN.shape)))

        def widen(tensor: Tensor, fill: float) -> Tensor:
            return torch.cat([tensor, tensor.new_full((len(tensor), free_BN.shape[1], *tensor.shape[2:]), fill)], dim=1)

        assert batch.outcomes_BCT is not None
        return dataclasses.replace(
            batch,
            rows_BC=torch.cat([batch.rows_BC, row_BN], dim=1),
            bid_BC=widen(batch.bid_BC, 1.0),
            teacher_BC=widen(batch.teacher_BC, np.nan),
            clicked_BC=widen(batch.clicked_BC, 0.0),
            outcomes_BCT=widen(batch.outcomes_BCT, 0.0),
            mask_BC=torch.cat([batch.mask_BC, row_BN != NOT_AN_ITEM], dim=1),
            shown_BC=widen(batch.mask_BC, False),
        )

    def _users(self, requests: np.ndarray) -> tuple[UserInputs, Tensor]:
        user_B, end_B = self.user_Q[requests], self.history_end_Q[requests]
        begin_B = np.maximum(self.histories.begin_U[user_B], end_B - self.spec.behaviours_max)
        length = max(1, int((end_B - begin_B).max()))
        place_BL = end_B[:, None] - length + np.arange(length)
        mask_BL = torch.from_numpy(place_BL >= begin_B[:, None])
        history = torch.from_numpy(np.maximum(place_BL, 0))
        item_BL = self.histories.item_H[history.numpy()]
        time_BL = np.broadcast_to(self.time_Q[requests][:, None], item_BL.shape)
        rows_BL = torch.from_numpy(self.items.rows_as_of(item_BL, time_BL)).where(mask_BL, NOT_AN_ITEM)
        known_BL, safe_BL = rows_BL != NOT_AN_ITEM, rows_BL.clamp(min=0)
        behaviours = Behaviours(
            item_bucket_BL=self.histories.bucket_H[history],
            kind_BL=self.histories.kind_H[history],
            features=map_tensors(self.histories.features, lambda t: t[history]),
            category_BL=self.items.category_R[safe_BL] * known_BL,
            vectors_BLD=torch.zeros(0),
            signatures_BLW=self.items.signatures_RW[safe_BL],
            has_signature_BL=self.items.has_signature_R[safe_BL] & known_BL,
            mask_BL=mask_BL,
        )
        return UserInputs(self.profiles(requests), behaviours), rows_BL

    def profiles(self, requests: np.ndarray) -> FeatureTensors:
        """Profiles as of these requests, [B, ...], with the statistics of the user over them."""
        at = torch.from_numpy(self.histories.profiles_as_of(self.user_Q[requests], self.time_Q[requests]))
        found = map_tensors(self.histories.profiles, lambda t: t[at])
        found.numeric[:, user_columns(self.spec.schema)] = torch.from_numpy(self.statistics_QS[requests])
        return found

    @property
    def digest(self) -> str:
        """16 hex digits that change with anything that training reads: a resumed run must read the same data as the killed one."""
        found = hashlib.sha256()
        tables = (self.items.inputs, self.items.realtime_RQ, self.items.category_R, self.items.bid_R, self.items.signatures_RW)
        histories = self.histories

        def add(tensor: Tensor) -> Tensor:
            found.update(np.ascontiguousarray(tensor.numpy()).tobytes())
            return tensor

        for part in (*tables, histories.profiles, histories.bucket_H, histories.kind_H, histories.features, self.context):
            map_tensors(part, add)
        columns = (
            self.items.version_R,
            histories.profile_time_U,
            histories.time_H,
            histories.item_H,
            self.time_Q,
            self.user_Q,
            self.history_end_Q,
        )
        for column in (*columns, self.row_QC, self.bid_QC, self.teacher_QC, self.clicked_QC, self.outcomes_QCT, self.statistics_QS):
            found.update(np.ascontiguousarray(column).tobytes())
        return found.hexdigest()[:16]

    def candidate_rows(self, batch: Batch, vectors_BCD: Tensor, bridge_BCN: Tensor) -> CandidateRows:
        """Call 2's input from vectors and bridge weights of `batch.rows_BC`."""
        safe_BC = batch.rows_BC.clamp(min=0)
        return CandidateRows(
            vectors_BCD=vectors_BCD,
            bridge_BCN=bridge_BCN,
            signatures_BCW=self.items.signatures_RW[safe_BC],
            has_signature_BC=self.items.has_signature_R[safe_BC] & batch.mask_BC,
            category_BC=self.items.category_R[safe_BC],
            realtime_BCQ=self.items.realtime_RQ[safe_BC],
            bid_BC=batch.bid_BC,
            context=batch.context,
        )


@dataclass(frozen=True)
class Events:
    """The log that training reads, by kind, each in log order."""

    items: Sequence[ItemFeaturesUpdate]
    new_items: Sequence[NewItem]
    users: Sequence[UserFeaturesRecord]
    behaviours: Sequence[Behaviour]
    impressions: Sequence[ImpressionRecord]


def join_events(spec: ModelSpec, w_hash_KM: np.ndarray | None, events: Events, every_item: bool = False) -> TrainingSet:
    """Joins all impressions. Shown items without features in the log are masked and counted; requests without any known item are left out.

    `every_item`: the item table contains all items of the log, not only those in impressions and histories, so that others can be scored later.
    """
    users = fold_users(events.users, events.behaviours)
    met = {b.item_id for history in users.values() for b in history.behaviours}
    wanted = None if every_item else met.union(s.item_id for i in events.impressions for s in i.items)
    return join_table(spec, build_item_table(spec, w_hash_KM, events.items, events.new_items, wanted), users, events.impressions)


def join_table(
    spec: ModelSpec,
    items: ItemTable,
    users: Mapping[Id, UserHistory],
    impressions: Iterable[ImpressionRecord],
    statistics: UserStatistics | None = None,
    frozen_ms: int | None = None,
) -> TrainingSet:
    """The same from folded histories and a table of items; a user who is not among the folded ones is cold. `statistics` of users: None: counted from these
    events. `frozen_ms`: later requests see everything as of this time."""
    impressions = told_once(impressions)
    statistics = statistics or CountedStatistics(spec.schema.user_statistics, users, impressions)
    histories = build_histories(spec, items, dict(users) | {i.user_id: UserHistory() for i in impressions if i.user_id not in users})
    shown = [impression for impression in impressions if any(s.item_id in items.index for s in impression.items)]
    time_Q = np.fromiter((i.time_ms for i in shown), np.int64, len(shown))
    time_Q = time_Q if frozen_ms is None else np.minimum(time_Q, frozen_ms)
    user_Q = np.fromiter((histories.index[i.user_id] for i in shown), np.int64, len(shown))
    columns = _Columns(shown)
    item_QC = columns.padded(items.items_of([s.item_id for s in columns.listed]), NOT_AN_ITEM)
    row_QC = items.rows_as_of(item_QC, np.broadcast_to(time_Q[:, None], item_QC.shape))
    total = sum(len(i.items) for i in impressions)
    return TrainingSet(
        spec=spec,
        items=items,
        histories=histories,
        time_Q=time_Q,
        user_Q=user_Q,
        history_end_Q=histories.ends_as_of(user_Q, time_Q),
        row_QC=row_QC,
        bid_QC=columns.numbers(lambda s: s.bid, 1.0),
        teacher_QC=columns.numbers(lambda s: np.nan if s.teacher_ecpm is None else s.teacher_ecpm, 0.0),
        clicked_QC=columns.numbers(lambda s: s.clicked, 0.0),
        outcomes_QCT=columns.outcomes(spec.tasks[1:]),
        context=FeatureTensors.from_block(encode_features(spec.schema.of(Scope.CONTEXT), [i.context for i in shown])),
        skipped_items=total - int((row_QC != NOT_AN_ITEM).sum()),
        statistics=statistics,
        statistics_QS=encode_statistics(spec.schema, statistics, [i.user_id for i in shown], time_Q),
    )


def told_once(impressions: Iterable[ImpressionRecord]) -> list[ImpressionRecord]:
    """The first impression of each request. Two are of the same request if id, user, time and items are equal.

    Both records of a request can be valid. A dead letter may be sent again after an upgrade that made the first record readable too, or an unsure publisher
    sends it twice. The id alone does not decide: ids may be used again.
    """
    found: dict[tuple[Id | int, ...], ImpressionRecord] = {}
    for i in impressions:
        found.setdefault((i.request_id, i.user_id, i.time_ms, *(s.item_id for s in i.items)), i)
    return list(found.values())


class _Columns:
    """One value per shown item of some requests, side by side: [Q, C], C = most items of a request."""

    def __init__(self, shown: Sequence[ImpressionRecord]) -> None:
        self.listed = [s for impression in shown for s in impression.items]
        count_Q = np.fromiter((len(i.items) for i in shown), np.int64, len(shown))
        self._used_QC = np.arange(count_Q.max(initial=1)) < count_Q[:, None]

    def padded(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Values of `listed` in their places, `fill` in the others."""
        out_QC = np.full(self._used_QC.shape, fill, values.dtype)
        out_QC[self._used_QC] = values
        return out_QC

    def numbers(self, value: Callable[[ShownItem], float], fill: float) -> np.ndarray:
        """One number per shown item, padded, float32. Clipped: a bid of 1e300 is an accepted event and must not make a loss infinite."""
        values = np.fromiter(map(value, self.listed), np.float64, len(self.listed)).clip(max=_NUMBER_MAX)
        return self.padded(values.astype(np.float32), fill)

    def outcomes(self, tasks: Sequence[str]) -> np.ndarray:
        """Whether each of `tasks` came of each shown item, float32 [Q, C, T]."""
        nothing_QC0 = np.zeros((*self._used_QC.shape, 0), np.float32)
        return np.concatenate(
            [nothing_QC0, *(self.numbers(partial(lambda t, s: t == SHOWN or t in s.outcomes, task), 0.0)[..., None] for task in tasks)],
            axis=2,
        )
