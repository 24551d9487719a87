"""A version in the engine: its tables, its scorer, its watermark; and the portions of changes that update it.

Here: `Resident`, `Portion`, `apply_portion`. Not here: when a portion is applied, which version answers (loop.py), the rows themselves (tables.py).
Invariants: a portion consists of whole records of one partition; rows, positions and watermark move together and never go back. An item whose delete the
watermark covers stays deleted, also when the shard has a new owner that is behind and sends older rows (FORMAT.md section 3).
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from schemas.model.parameters import Parameters
from schemas.token import VersionToken
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES
from serving.engine.loop.arrivals import Arrivals
from serving.engine.tables.changes import Changes, IdArray, covered_order, take_ids
from serving.engine.tables.tables import Applied, Tables
from serving.engine.work import UserState, UserWork, VersionReport


class Scorer(Protocol):
    """Computes both calls on one version's tables. Used by the engine's thread."""

    @property
    def parameters(self) -> Parameters:
        """The version's model."""

    @property
    def tiers_by(self) -> str:
        """What counts SimTier: see `VersionReport`."""

    @property
    def device_error(self) -> str:
        """Why the CPU ranks instead of the device; "" if it does not."""

    def user_state(self, work: UserWork) -> UserState:
        """Call 1. Other threads may call it while the engine's thread is in `score`."""

    def score(self, state: UserState, slots_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T])."""

    def on_applied(self, applied: Applied) -> None:
        """Called after rows of the tables were written."""


@dataclass
class Resident:
    """One version in memory; once admitted, only the engine's thread changes it. `watermark` is replaced, never modified: answers refer to it.
    `source_ms`: by shard, the record time of its newest source record in the rows.
    `deletes`: by partition, (newest features' order, ids) of deletes that the watermark does not cover yet."""

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
class Portion:
    """Changes of one version from whole records of one partition of index-deltas. `next_position`: in that partition; `next_offsets`: of the shard by source
    topic, None if the record is of another version; `source_ms`: time of the newest source record."""

    version: int
    partition: int
    changes: Changes | None = None
    next_position: int | None = None
    next_offsets: Mapping[str, int] | None = None
    source_ms: int = 0

    def __len__(self) -> int:
        return 0 if self.changes is None else len(self.changes)


def apply_portion(resident: Resident, portion: Portion) -> None:
    """Writes the rows and moves positions and watermark. After an error these stay where they are: the version takes no more changes and reports why."""
    try:
        if portion.changes is not None and len(portion.changes):
            applied = resident.tables.apply(portion.changes, _covered(resident, portion.partition))
            resident.scorer.on_applied(applied)
            resident.changes_applied += applied.applied
            _remember_deletes(resident, portion.partition, portion.changes)
    except Exception as error:
        resident.error = f"row changes of version {resident.version} from partition {portion.partition} failed: {error}"
        return
    if portion.next_offsets is not None:
        resident.arrivals.note(portion.partition, resident.watermark[portion.partition], portion.next_offsets, portion.source_ms)
    if portion.next_position is not None:
        resident.positions[portion.partition] = max(portion.next_position, resident.positions.get(portion.partition, 0))
        resident.source_ms[portion.partition] = max(portion.source_ms, resident.source_ms.get(portion.partition, 0))
    if portion.next_offsets is not None:
        resident.watermark = _advance(resident.watermark, portion.partition, portion.next_offsets)
        _forget_deletes(resident, portion.partition)


def _covered(resident: Resident, partition: int) -> int:
    return covered_order(resident.watermark[partition].get(ITEM_FEATURES, 0))


def _remember_deletes(resident: Resident, partition: int, changes: Changes) -> None:
    """Notes the ids whose slots become free once the watermark covers their deletes."""
    places = np.flatnonzero(changes.dead_C)
    if len(places):
        newest = int(changes.orders_C3[places, 1].max())
        resident.deletes.setdefault(partition, deque()).append((newest, take_ids(changes.ids, places)))


def _forget_deletes(resident: Resident, partition: int) -> None:
    """Frees the slots of deletes that the watermark covers by now."""
    noted, covered = resident.deletes.get(partition), _covered(resident, partition)
    while noted and noted[0][0] < covered:
        resident.tables.forget(noted.popleft()[1], covered)


def _advance(watermark: Sequence[Mapping[str, int]], shard: int, offsets: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
    """A new watermark in which one shard has moved forward, never back.

    Its source offsets move together or not at all. A shard that was reset reports offsets of which one may be ahead and one behind; if each topic moved by
    itself, an answer would claim a combination that no owner of the shard ever had. The position in index-deltas always moves: the record was applied.
    """
    old = watermark[shard]
    is_ahead = all(offset >= old.get(topic, 0) for topic, offset in offsets.items() if topic != INDEX_DELTAS)
    moved = {**old, **offsets} if is_ahead else dict(old)
    moved[INDEX_DELTAS] = max(offsets.get(INDEX_DELTAS, 0), old.get(INDEX_DELTAS, 0))
    return tuple(moved if i == shard else other for i, other in enumerate(watermark))


def report_of(resident: Resident) -> VersionReport:
    """The resident as the engine's status shows it."""
    return VersionReport(
        token=resident.token,
        rows=resident.tables.rows,
        capacity=resident.tables.capacity,
        not_servable=resident.tables.not_servable,
        tasks=resident.scorer.parameters.spec.tasks,
        watermark=resident.watermark,
        source_ms=dict(resident.source_ms),
        positions=dict(resident.positions),
        changes_applied=resident.changes_applied,
        tiers_by=resident.scorer.tiers_by,
        device_error=resident.scorer.device_error,
    )
