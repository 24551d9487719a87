"""A server process: follows the control log, loads a version, catches up with its deltas, flips, answers.

Here: the order of steps of version_follower.py and deltas.py in serving/versions, with rows in dictionaries for the engine's tables. The rule of what a
change replaces is `is_taken` of serving/audit/version_rows.py; test_fakes.py holds it to the compiled one of the engine.
"""

import struct
from dataclasses import dataclass, field

from infra.index.parts import read_manifest
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.index.control import ControlState, VersionStatus
from schemas.index.layout import STAMP
from schemas.index.lifecycle import SERVABLE, Cause
from schemas.index.manifest import Seal
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, SHARD_TOPICS
from serving.audit.version_rows import is_taken
from tests.sim.haste import QuickLog
from tests.sim.world import Violation, World, read_delta

ARENAS = 2
_STAMP = struct.Struct("<qqHqHQB")
assert _STAMP.size == STAMP.itemsize

Stamp = tuple[int, int, int, int, int, int, int]


def read_increment(value: bytes) -> tuple[Stamp, bytes | None]:
    """(stamp, row bytes or None for a tombstone)."""
    stamp = _STAMP.unpack_from(value)
    return stamp, None if stamp[6] else value[_STAMP.size :]  # type: ignore[return-value]


@dataclass
class Resident:
    """A version in memory. By shard: rows by index key, the position in index-deltas, the source offsets that the rows hold at least, the highest
    that any record of the shard named."""

    version: int
    revision: int
    checkpoint_sha256: str
    rows: list[dict[bytes, tuple[Stamp, bytes | None]]]
    positions: list[int]
    watermark: list[dict[str, int]]
    seen: list[dict[str, int]]
    error: str = ""
    was_revived: bool = False  # noted by the checks, as the next two
    unchecked: dict[tuple[int, bytes], None] = field(default_factory=dict)  # (shard, key) of rows that are new since the last look
    checked: dict[int, dict[str, int]] = field(default_factory=dict)  # by shard, the watermark at the last look

    def apply(self, shard: int, key: bytes, value: bytes) -> None:
        """One change, by the rule of FORMAT.md section 3."""
        stamp, row = read_increment(value)
        held = self.rows[shard].get(key)
        if may_replace(stamp, None if held is None else held[0], self.watermark[shard][ITEM_FEATURES]):
            self.rows[shard][key] = stamp, row
            self.unchecked[shard, key] = None


def advance_watermark(watermark: dict[str, int], seen: dict[str, int], reached: dict[str, int]) -> dict[str, int]:
    """The offsets that the rows cover, after a record of a shard that is at `reached`. The highest offset of each topic in any record, this one included, is
    `seen`. The watermark advances only in both topics at once. A shard that was set back may be further in one topic and not yet as far in the other. A row
    that would go back in one component is refused with both."""
    return reached if reached == seen else watermark


def concerns(told: int, resident: int) -> bool:
    """Whether a record says how far a version's rows are: only its own do, because no more of them are written once it is frozen."""
    return told == resident


def may_replace(incoming: Stamp, current: Stamp | None, covered: int) -> bool:
    """Whether a change replaces the held row; `covered`: the next offset of item-features in the watermark."""
    return is_taken(incoming, current, covered)


@dataclass
class Server:
    """One server. `served` = the version that it answers from."""

    world: World
    name: str
    alive: bool = True
    residents: dict[int, Resident] = field(default_factory=dict)
    served: Resident | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        self.log = QuickLog(self.world.store)  # type: ignore[arg-type]

    def die(self) -> None:
        """Killed; it starts again with nothing."""
        self.residents, self.served = {}, None
        self.__post_init__()

    # --- versions --------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One look at the log, and the steps that follow."""
        try:
            state = self.log.refresh()
        except AifError as error:
            raise Violation("the control log reads", f"{self.name}: {error}") from error
        self._forget_frozen(state)
        wanted = state.current
        if wanted is None or wanted.revision < 0:
            return
        held = self.residents.get(wanted.version)
        if held is not None and not held.error and held.revision > wanted.frozen_revision:  # else it missed changes while it was frozen
            self._flip(held)
            return
        try:
            self._load(wanted)
            self.refused = ""
        except Unavailable as error:
            self.refused = str(error)
        except Incompatible as error:
            if error.code != "delta_position_gone":
                raise Violation("a published version loads", f"{self.name}: {error}") from error
            self.refused = str(error)

    def _flip(self, held: Resident) -> None:
        if self.served is not held:
            self.world.say("%s serves %d.%d", self.name, held.version, held.revision)
            self.served = held

    def _forget_frozen(self, state: ControlState) -> None:
        for version, held in list(self.residents.items()):
            status = state.versions.get(version)
            revived = status is not None and status.cause == Cause.REVIVE and status.revision > held.revision
            if held is not self.served and (status is None or status.state not in SERVABLE or revived):
                del self.residents[version]

    def _load(self, wanted: VersionStatus) -> None:
        """Parts, deltas up to the end that was read after the parts, flip. Others go on meanwhile."""
        world = self.world
        manifest = read_manifest(world.store, wanted)  # type: ignore[arg-type]
        self._check_positions([seal.delta_position for seal in manifest.seals])
        former = [v for v, held in self.residents.items() if held is not self.served and v != wanted.version]
        if len(self.residents) >= ARENAS and former:
            del self.residents[former[0]]
        resident = Resident(wanted.version, wanted.revision, wanted.checkpoint_sha256, [], [], [], [])
        for seal in manifest.seals:
            resident.rows.append(self._read_parts(seal))
            resident.positions.append(seal.delta_position)
            resident.watermark.append(dict(seal.source_offsets))
            resident.seen.append(dict(seal.source_offsets))
            resident.unchecked.update(dict.fromkeys((seal.shard, key) for key in resident.rows[-1]))
        world.point("loaded")
        self._check_positions(resident.positions)
        for shard in range(world.shards):
            self._follow(resident, shard, world.topics[INDEX_DELTAS, shard].end)
        self.residents[wanted.version] = resident
        newest = self.log.refresh().current
        if newest is not None and newest.version == wanted.version:
            self._flip(resident)

    def _check_positions(self, positions: list[int]) -> None:
        for shard, position in enumerate(positions):
            log = self.world.topics[INDEX_DELTAS, shard]
            if not log.start <= position <= log.end:
                raise Incompatible("delta_position_gone", f"index-deltas/{shard}: {position}, the log holds {log.start} to {log.end}")

    def _read_parts(self, seal: Seal) -> dict[bytes, tuple[Stamp, bytes | None]]:
        """The merged view: the watermark of the seal covers every delete in it."""
        rows = {key: held for key, held in read_part_rows(self.world, seal).items() if held[1] is not None}
        self.world.point("reading parts")
        return rows

    # --- deltas ---------------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Every version in memory takes some new records, each as a whole."""
        for resident in list(self.residents.values()):
            for shard in range(self.world.shards):
                log = self.world.topics[INDEX_DELTAS, shard]
                if resident.positions[shard] < log.start:
                    resident.error = "delta_position_gone"
                elif not resident.error:
                    some = log.end if self.world.calm else min(log.end, resident.positions[shard] + self.world.random.randrange(1, 6))
                    self._follow(resident, shard, some)

    def _follow(self, resident: Resident, shard: int, end: int) -> None:
        log = self.world.topics[INDEX_DELTAS, shard]
        for record in map(read_delta, log.records[resident.positions[shard] : end]):
            if record.header.version == resident.version:
                for key, value in record.changes:
                    resident.apply(shard, key, value)
            if concerns(record.header.version, resident.version):
                reached = dict(zip(SHARD_TOPICS, record.header.next_offsets, strict=True))
                seen = resident.seen[shard]
                seen.update({topic: max(offset, seen[topic]) for topic, offset in reached.items()})
                resident.watermark[shard] = advance_watermark(resident.watermark[shard], seen, reached)
        resident.positions[shard] = max(end, resident.positions[shard])


def read_part_rows(world: World, seal: Seal) -> dict[bytes, tuple[Stamp, bytes | None]]:
    """Increments over the full part, tombstones kept."""
    rows: dict[bytes, tuple[Stamp, bytes | None]] = {}
    for block in world.store.read_part(seal.full.directory):
        for key, stamp, row in zip(block.keys, block.stamps.tolist(), block.rows, strict=True):
            rows[key] = stamp, row.tobytes()
    for key, value in world.store.read_part(seal.incremental.directory):
        rows[key] = read_increment(value)
    return rows
