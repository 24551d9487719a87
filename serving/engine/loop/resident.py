"""A version in the engine, which ranks: its tables, its scorer, its watermark, how fresh its answers are; and the changes that update it.

A delta record has the time of its shard's newest source record and the shard's offsets. The age counts for each topic whose offset moved. A record gives an
age only if its time is newer than all earlier ones. The first record of a partition after a load gives none, because its rows may be old.
Record times are the broker's, and so is `now_s`, as far as it is known (core/broker_clock.py); a time in the future counts as age 0.
Invariants: changes are applied by whole records; rows, positions and watermark move together and never go back. An item whose delete the
watermark covers stays deleted, also when the shard has a new owner that is behind and sends older rows (FORMAT.md section 3).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.actions import count_second
from schemas.ids import Id
from schemas.token import VersionToken
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, SHARD_TOPICS
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.devices.scorer import Scorer
from serving.engine.tables.candidates import Candidates, count_unsigned, find_candidates, rank_top
from serving.engine.tables.changes import Changes, IdArray, covered_stamp, take_ids
from serving.engine.tables.tables import Tables
from serving.engine.work import RankResult, RankWork, UserState, VersionReport

KEPT = 10_000  # ages that were not taken yet; the oldest are dropped


class Arrivals:
    """The ages of one resident version. `note` is called by the engine's thread, `take` by any other."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._newest_ms: dict[int, int] = {}  # by partition
        self._ages: deque[tuple[str, float]] = deque(maxlen=KEPT)

    def note(self, partition: int, before: Mapping[str, int], after: Mapping[str, int], source_ms: int) -> None:
        """Notes that a record was applied which moved a shard from the offsets `before` to `after`; `source_ms` is its newest source record's time."""
        newest_ms = self._newest_ms.get(partition)
        self._newest_ms[partition] = max(source_ms, newest_ms or 0)
        if newest_ms is None or source_ms <= newest_ms:
            return
        age_s = max(0.0, self._now_s() - source_ms / 1000)
        self._ages.extend((topic, age_s) for topic in SHARD_TOPICS if after.get(topic, 0) > before.get(topic, 0))

    def take(self) -> list[tuple[str, float]]:
        """(topic, age in seconds) of each record that became visible since the last call."""
        taken = []
        while self._ages:
            taken.append(self._ages.popleft())
        return taken


@dataclass
class Resident:
    """One version in memory. Once admitted, only the engine's thread changes it.

    - watermark: replaced, never modified, because answers refer to it
    - source_ms: by shard, the record time of the newest source record in the rows
    - deletes: by partition, (newest features' stamp, ids) of deletes that the watermark does not cover yet
    """

    token: VersionToken
    tables: Tables
    scorer: Scorer
    watermark: Sequence[Mapping[str, int]]
    positions: dict[int, int]
    source_ms: dict[int, int] = field(default_factory=dict)
    changes_applied: int = 0
    error: str = ""
    state_made_s: float = field(default_factory=time.monotonic)
    arrivals: Arrivals = field(default_factory=Arrivals)
    deletes: dict[int, deque[tuple[int, IdArray]]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version's number."""
        return self.token.version


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """The changes of one version in one record of index-deltas; `changes` is None without any.

    - next_position: in that partition
    - next_offsets: of the shard by source topic, None if the record is of another version
    - source_ms: time of the newest source record
    """

    version: int
    partition: int
    changes: Changes | None
    next_position: int
    next_offsets: Mapping[str, int] | None = None
    source_ms: int = 0

    def __len__(self) -> int:
        return 0 if self.changes is None else len(self.changes)


def apply_changes(resident: Resident, batch: ChangeBatch) -> None:
    """Writes the rows and moves positions and watermark. After an error these stay where they are: the version takes no more changes and reports why."""
    try:
        if batch.changes is not None and len(batch.changes):
            applied = resident.tables.apply(batch.changes, _covered(resident, batch.partition))
            resident.scorer.on_applied(applied)
            resident.changes_applied += applied.applied
            _remember_deletes(resident, batch.partition, batch.changes)
    except Exception as error:
        resident.error = f"row changes of version {resident.version} from partition {batch.partition} failed: {error}"
        return
    if batch.next_offsets is not None:
        resident.arrivals.note(batch.partition, resident.watermark[batch.partition], batch.next_offsets, batch.source_ms)
    resident.positions[batch.partition] = max(batch.next_position, resident.positions.get(batch.partition, 0))
    resident.source_ms[batch.partition] = max(batch.source_ms, resident.source_ms.get(batch.partition, 0))
    if batch.next_offsets is not None:
        resident.watermark = _advance(resident.watermark, batch.partition, batch.next_offsets)
        _forget_deletes(resident, batch.partition)


def _covered(resident: Resident, partition: int) -> int:
    return covered_stamp(resident.watermark[partition].get(ITEM_FEATURES, 0))


def _remember_deletes(resident: Resident, partition: int, changes: Changes) -> None:
    """Notes the ids whose rows become free once the watermark covers their deletes."""
    places = np.flatnonzero(changes.dead_C)
    if len(places):
        newest = int(changes.stamps_C3[places, 1].max())
        resident.deletes.setdefault(partition, deque()).append((newest, take_ids(changes.ids, places)))


def _forget_deletes(resident: Resident, partition: int) -> None:
    """Frees the rows of deletes that the watermark covers by now."""
    noted, covered = resident.deletes.get(partition), _covered(resident, partition)
    while noted and noted[0][0] < covered:
        resident.tables.forget(noted.popleft()[1], covered)


def _advance(watermark: Sequence[Mapping[str, int]], shard: int, offsets: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
    """A new watermark in which one shard has moved forward, never back.

    Its source offsets move together or not at all. A shard that was reset may report one offset that is ahead and one that is behind. If each topic moved by
    itself, an answer would claim a combination that no owner of the shard ever had. The position in index-deltas always moves: the record was applied.
    """
    old = watermark[shard]
    is_ahead = all(offset >= old.get(topic, 0) for topic, offset in offsets.items() if topic != INDEX_DELTAS)
    moved = {**old, **offsets} if is_ahead else dict(old)
    moved[INDEX_DELTAS] = max(offsets.get(INDEX_DELTAS, 0), old.get(INDEX_DELTAS, 0))
    return tuple(moved if i == shard else other for i, other in enumerate(watermark))


def rank(resident: Resident, state: UserState, work: RankWork) -> RankResult:
    """The best `top_k` of the candidates for this user state, in one pass or two."""
    began_s = time.thread_time()
    found = find_candidates(resident.tables, work.item_ids)
    row_C, ids_C, first_C = found.row_K, found.ids_K, _pass_first(resident, state, found, work)
    if first_C is not None:
        kept_C = rank_top(first_C, ids_C, count_second(len(row_C), work.top_k))
        row_C, ids_C, first_C = row_C[kept_C], _take(ids_C, kept_C), first_C[kept_C]
    scores_C, probabilities_CT = resident.scorer.score(state, row_C, work.context)
    best_A = rank_top(scores_C, ids_C, work.top_k)
    ids = _take(ids_C, best_A)
    return RankResult(
        token=resident.token,
        ids=ids.tolist() if isinstance(ids, np.ndarray) else ids,
        scores_A=scores_C[best_A],
        probabilities_AT=probabilities_CT[best_A],
        unknown=found.unknown,
        unknown_count=found.unknown_count,
        candidates=found.different,
        watermark=resident.watermark,
        state=state,
        unsigned_count=count_unsigned(resident.tables, found.row_K),
        processor_ms=1e3 * (time.thread_time() - began_s),
        first_A=None if first_C is None else first_C[best_A],
    )


def _pass_first(resident: Resident, state: UserState, found: Candidates, work: RankWork) -> np.ndarray | None:
    """The scores without the long history, by which the second pass's candidates are chosen. None: one pass ranks all."""
    light = state.without_long() if work.passes == 2 and isinstance(state, EngineUserState) else None
    return None if light is None else resident.scorer.score(light, found.row_K, work.context)[0]


def _take(ids_C: np.ndarray | list[Id], places_A: np.ndarray) -> np.ndarray | list[Id]:
    return ids_C[places_A] if isinstance(ids_C, np.ndarray) else [ids_C[place] for place in places_A.tolist()]


def report_of(resident: Resident) -> VersionReport:
    """The resident as the engine's status shows it."""
    return VersionReport(
        token=resident.token,
        rows=resident.tables.rows,
        capacity=resident.tables.capacity,
        not_servable=resident.tables.not_servable,
        watermark=resident.watermark,
        source_ms=dict(resident.source_ms),
        positions=dict(resident.positions),
        changes_applied=resident.changes_applied,
        tiers_by=resident.scorer.tiers_by,
        device_error=resident.scorer.device_error,
        statistics=tuple(resident.scorer.parameters.spec.schema.kept_statistics),
    )
