"""Bugs to be found: each is one switch that puts a plausible mistake into the shell, and names the invariants that then break.

Most replace a function of the real shell by a version with the bug; the rest one of the simulated shell. A campaign
that does not find one of these proves nothing by finding nothing else (test_plants.py).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import streams.builders.full_part
import streams.builders.sealer
import streams.core.version_plans
import streams.shard.shard
import streams.versions.shard_versions
import tests.sim.server
import tests.sim.worker
from infra.index.store import StoreClock
from infra.rocks import Batch
from schemas.errors import Unavailable
from schemas.index.control import ControlState, VersionStatus
from schemas.index.lifecycle import State
from serving.audit.version_rows import stamp_advances
from streams.builders import full_part
from streams.builders.jobs import BuildJob, SealJob
from streams.builders.running_jobs import on_shard
from streams.builders.sealer import SealPoint
from streams.core.item import ItemChange
from streams.core.shard_state import ShardState
from streams.core.version_plans import ShardAction, ShardFacts
from streams.shard.directory import ITEMS, META, STATE_KEY, ShardDirectory
from streams.shard.outbox import Outgoing, put_outbox
from streams.shard.shard import Shard
from streams.shard.shard_reader import ShardReader
from streams.versions.shard_versions import ShardVersions
from tests.sim.boundary import Boundary
from tests.sim.disk import MemoryDatabase
from tests.sim.encoder import SimEncoders
from tests.sim.planting import PLANTS, Replacement, plant, planted
from tests.sim.server import Stamp
from tests.sim.store import MemoryStore
from tests.sim.world import World

__all__ = ["PLANTS", "planted"]


@plant("a shard does not keep which index it is of", "one index")
def _index_not_kept(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(ShardDirectory, "hold_index", lambda *_: None)]


# --- rows and readers ---------------------------------------------------------------------------------------------------------


@plant("a reader takes every change, also an older one", "served rows", "watermark", "served at rest")
def _no_row_stamp(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(tests.sim.server, "may_replace", lambda incoming, current, covered: True)]


@plant("a reader takes any row of an id that it does not hold, also of one that was deleted below its watermark", "watermark")
def _deleted_items_come_back(_: World, __: Boundary) -> Sequence[Replacement]:
    def may_replace(incoming: Stamp, current: Stamp | None, _: int) -> bool:
        return current is None or stamp_advances(incoming, current)

    return [(tests.sim.server, "may_replace", may_replace)]


@plant(
    "a delete forgets the item instead of leaving a marker with its stamp",
    "components",
    "applied",
    "served rows",
    "rows of a version",
    "manifest",
)
def _markers_dropped(_: World, __: Boundary) -> Sequence[Replacement]:
    encode = Shard._encode_rows
    commit = Shard._commit
    dead = list[bytes]()

    def encode_rows(shard: Shard, items: Sequence[ItemChange], *others: Any) -> Any:
        dead[:] = [item.key for item in items if item.features is not None and item.features.dead]
        return encode(shard, items, *others)

    def drop_and_commit(shard: Shard, batch: Batch, *others: Any, **options: Any) -> None:
        for key in dead:
            batch.delete(ITEMS, key)
        commit(shard, batch, *others, **options)

    return [
        (Shard, "_encode_rows", encode_rows),
        (Shard, "_commit", drop_and_commit),
    ]


@plant("a watermark moves topic by topic, also to offsets of a shard that was set back in the other topic", "watermark")
def _watermark_by_topic(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(tests.sim.server, "advance_watermark", lambda watermark, seen, reached: dict(seen))]


@plant("a watermark is one record for all versions, also those that were frozen and get no rows any more", "watermark")
def _watermark_for_all_versions(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(tests.sim.server, "concerns", lambda told, resident: True)]


# --- seals --------------------------------------------------------------------------------------------------------------------


@plant("a seal exports rows and leaves the tombstones out", "manifest", "watermark", "served at rest")
def _seal_without_tombstones(_: World, boundary: Boundary) -> Sequence[Replacement]:
    from infra.index.parts import is_tombstone

    class Reader(ShardReader):
        def scan_increments(self, version: int) -> Iterator[tuple[bytes, bytes]]:
            return (pair for pair in super().scan_increments(version) if not is_tombstone(pair[1]))

    return [(streams.builders.sealer, "open_shard_reader", lambda path: Reader(boundary.open_shard_reader(path)._database))]


@plant("the position in index-deltas is read after the checkpoint", "watermark", "served at rest")
def _delta_position_after_export(world: World, _: Boundary) -> Sequence[Replacement]:
    def prepare_seal(job: SealJob, _: SealPoint, create_checkpoint: Callable[[Path], None], into: Path) -> SealJob:
        create_checkpoint(into)
        return dataclasses.replace(job, delta_position=world.deltas_end(job.shard), checkpoint_directory=str(into))

    return [(streams.versions.shard_versions, "prepare_seal", prepare_seal)]


@plant("a shard seals before it has applied the records from before the version was wanted", "catalogue")
def _seal_before_the_catalogue(_: World, __: Boundary) -> Sequence[Replacement]:
    anywhere = (SealPoint, "is_reached", lambda point, next_offsets: True)
    return [(streams.core.version_plans, "has_caught_up", lambda shard, facts: True), anywhere]


@plant("the export reads the live shard, which goes on meanwhile", "manifest")
def _export_from_the_live_shard(world: World, boundary: Boundary) -> Sequence[Replacement]:
    live: dict[str, MemoryDatabase] = {}

    class Reader(ShardReader):
        def scan_increments(self, version: int) -> Iterator[tuple[bytes, bytes]]:
            pairs = list(super().scan_increments(version))
            world.data_point("between two reads of the live shard")
            return iter(pairs)

        def close(self) -> None:
            """It is the shard's."""

    def create_checkpoint(database: MemoryDatabase, directory: Path) -> None:
        live[str(directory)] = database
        original(database, directory)

    def open_reader(path: Path) -> ShardReader:
        return Reader(live[str(path)])  # type: ignore[arg-type]

    original = MemoryDatabase.create_checkpoint
    return [(MemoryDatabase, "create_checkpoint", create_checkpoint), (streams.builders.sealer, "open_shard_reader", open_reader)]


# --- shards -------------------------------------------------------------------------------------------------------------------


@plant(
    "two agents write one shard, each between the other's read and write",
    "components",
    "applied",
    "served rows",
    "rows of a version",
    "manifest",
    "watermark",
)
def _two_writers(world: World, _: Boundary) -> Sequence[Replacement]:
    write, original_fold = Shard._write_micro_batch, Shard._fold
    writing: list[Shard] = []

    def write_noted(shard: Shard, *others: Any) -> Any:
        writing.append(shard)
        try:
            return write(shard, *others)
        finally:
            writing.pop()

    def fold(shard: Shard, decoded: Any) -> Any:
        folded = original_fold(shard, decoded)
        if len(writing) == 1 and not world.calm and world.random.random() < 0.3:
            _apply_other_topic(world, writing[0])
        return folded

    return [(Shard, "_fold", fold), (Shard, "_write_micro_batch", write_noted)]


def _apply_other_topic(world: World, shard: Shard) -> None:
    """The other agent's batch, as if no task kept them apart."""
    from schemas.topics import NEW_ITEMS

    at, log = shard.next_offsets[NEW_ITEMS], world.topics[NEW_ITEMS, shard.number]
    shard.apply(log.records[at : at + 2])


@plant("the next offsets are written after the batch, not with it", "applied", "components", "served rows", "watermark", "dead letters")
def _offset_outside_the_batch(_: World, __: Boundary) -> Sequence[Replacement]:
    def commit(shard: Shard, batch: Batch, after: ShardState, outgoing: Outgoing, sync: bool = False) -> None:
        put_outbox(batch, outgoing.entries)
        after = dataclasses.replace(after, next_outbox=outgoing.next_sequence, next_delta=outgoing.next_delta)
        shard.database.write(batch, sync=sync)
        offsets = shard.database.new_batch()
        offsets.put(META, STATE_KEY, streams.shard.shard.encode_shard_state(after))
        shard.database.write(offsets, sync=sync)
        shard.state = after

    return [(Shard, "_commit", commit)]


@plant("offsets that a transaction took are left out, as Kafka's clients do", "records follow without a hole", "progress", "catalogue")
def _skipped_offsets_left_out(_: World, __: Boundary) -> Sequence[Replacement]:
    apply = Shard.apply
    return [(Shard, "apply", lambda shard, records, *others: apply(shard, [r for r in records if not r.skipped], *others))]


@plant(
    "after a write that failed a shard goes on with the state it had, though all of the write may be there",
    "applied",
    "dead letters",
    "components",
    "watermark",
)
def _state_kept_after_a_failed_write(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(Shard, "recover", lambda shard: shard.database.reopen())]


@plant("an assignment commits the stored offsets but leaves zeros out", "applied", "progress", "records follow without a hole")
def _zero_not_committed(_: World, __: Boundary) -> Sequence[Replacement]:
    def plan_positions(stored: Mapping[str, int], committed: Mapping[str, int]) -> dict[str, int]:
        return {topic: offset or committed[topic] for topic, offset in stored.items()}

    return [(tests.sim.worker, "plan_positions", plan_positions)]


# --- versions -----------------------------------------------------------------------------------------------------------------


@plant("a worker gives up the build that was overtaken by a newer checkpoint", "progress", "watermark")
def _worker_side_cancel(_: World, __: Boundary) -> Sequence[Replacement]:
    def building(state: ControlState) -> VersionStatus | None:
        return max((s for s in state.versions.values() if s.state is State.WANTED), key=lambda s: s.version, default=None)

    return [(ControlState, "building", property(building))]


@plant(
    "the current version is looked at, decided, and then put in place by a rename",
    "readers agree",
    "the control log",
    "the control log reads",
    "no step fails",
)
def _check_then_rename(world: World, _: Boundary) -> Sequence[Replacement]:
    def put(store: MemoryStore, path: str, data: bytes) -> bool:
        if path in store.files:
            return False
        world.store_point(path)
        store.place(path, data)
        return True

    return [(MemoryStore, "put_exclusive", put)]


@plant("a version's number is drawn at random", "one version", "progress")
def _random_version_ids(world: World, _: Boundary) -> Sequence[Replacement]:
    """The agent then has to remember by itself how far it read, and a record that comes again is another version."""
    position = 0

    def plan_checkpoint(world: World, state: ControlState) -> tuple[int, int]:
        nonlocal position
        offset, position = position, position + (world.random.random() < 0.8)
        return offset, state.newest_decided + world.random.randrange(1, 1_000)

    return [(tests.sim.worker, "plan_checkpoint", plan_checkpoint)]


@plant(
    "the build's checkpoint is taken before the batch that records `building`", "rows of a version", "manifest", "watermark", "served rows"
)
def _build_before_building(world: World, _: Boundary) -> Sequence[Replacement]:
    early: dict[tuple[int, int], Path] = {}
    start, run_job = ShardVersions._start, tests.sim.worker.run_job

    def start_late(versions: ShardVersions, status: VersionStatus, task: Any, behind: bool) -> None:
        path = task.shard.database.path.parent / f"early-{world.unique()}"
        task.submit(lambda shard: shard.create_checkpoint(path)).result()
        early[task.number, status.version] = path
        world.data_point("between checkpoint and `building`")
        start(versions, status, task, behind)

    def run_early(world: World, boundary: Boundary, job: Any, encoders: SimEncoders) -> Any:
        path = early.pop((job.shard, job.version), None) if isinstance(job, BuildJob) and not job.rewrite else None
        if path is not None and boundary.has_files(path):
            job = dataclasses.replace(job, checkpoint_directory=str(path))
        return run_job(world, boundary, job, encoders)

    return [
        (ShardVersions, "_start", start_late),
        (tests.sim.worker, "run_job", run_early),
        (streams.versions.shard_versions, "_accept_full", functools.partial(_accept_unchecked)),
    ]


def _accept_unchecked(shard: Shard, job: BuildJob, result: Any) -> bool:
    known = shard.versions.get(job.version)
    if known is not None and known.full is None:
        shard.update_version(job.version, full=result.part)
    return True


@plant("a replay is adopted without recomputing newer rows", "served rows", "rows of a version", "manifest", "watermark")
def _adopted_without_recompute(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(full_part, "has_inputs", lambda *_: True)]


@plant("after a lost answer a writer takes the file for its own without asking whose it is", "no step fails", "the control log reads")
def _lost_answer_taken_for_success(_: World, __: Boundary) -> Sequence[Replacement]:
    put = MemoryStore.put_exclusive

    def put_blindly(store: MemoryStore, path: str, data: bytes) -> bool:
        try:
            return put(store, path, data)
        except Unavailable as error:
            if error.code != "store_unreachable":
                raise
            return True

    return [(MemoryStore, "put_exclusive", put_blindly)]


@plant("a worker's own clock judges the age of files in the store", "progress", "a published version loads")
def _own_clock_for_files(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(StoreClock, "now_ms", lambda clock: clock._clock.now_ms())]


@plant("a control entry's file is created first and written then", "the control log reads", "no step fails")
def _entry_created_before_written(world: World, _: Boundary) -> Sequence[Replacement]:
    def put(store: MemoryStore, path: str, data: bytes) -> bool:
        if path in store.files:
            return False
        store.place(path, b"")
        world.store_point(path)
        store.place(path, data)
        return True

    return [(MemoryStore, "put_exclusive", put)]


@plant(
    "a worker with another encoder goes on with the rows of a version, and its rows mix with those that are there",
    "rows of a version",
    "manifest",
    "served rows",
    "served at rest",
)
def _another_encoder_goes_on(_: World, __: Boundary) -> Sequence[Replacement]:
    plan = streams.core.version_plans._plan_version

    def plan_version(status: VersionStatus, shard: ShardFacts, _: bool, rewrite_share: float) -> ShardAction | None:
        return plan(status, shard, False, rewrite_share)

    def attach_encoders(versions: ShardVersions, _: ControlState, task: Any) -> None:
        for known in on_shard(task, Shard.needs_encoders):
            encoder = versions._encoders.get(known.version, known.checkpoint_sha256)
            on_shard(task, lambda shard, encoder=encoder: shard._encoders.update({encoder.version: encoder}))  # type: ignore[misc]

    return [
        (streams.core.version_plans, "_plan_version", plan_version),
        (ShardVersions, "_attach_encoders", attach_encoders),
        (streams.builders.full_part, "check_encoder", lambda *_: None),
        (streams.builders.sealer, "check_encoder", lambda *_: None),
    ]


@plant(
    "a version that was behind in a shard starts again there, though an earlier seal of the shard may be published",
    "watermark",
    "served at rest",
)
def _sealed_and_started_again(_: World, __: Boundary) -> Sequence[Replacement]:
    return [(ShardVersions, "_may_be_published", lambda *_: False)]
