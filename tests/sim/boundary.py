"""The few functions of the shell that touch directories and files, replaced by simulated disks and the store in memory.

Here: `simulated(world)`, a context in which streams/ opens directories on the disk of the process that asks, and parts and snapshots are objects in the
store. Everything else of the shell stays. test_fakes.py runs the same cases on these and on the real ones.
A directory's path begins with the name of the host whose disk it is on.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import streams.builders.full_part
import streams.builders.running_jobs
import streams.builders.sealer
import streams.shard.shard
import streams.shard.snapshot_files
import streams.shard.start
from infra.clock import Clock
from infra.index.parts import full_part_path, incremental_part_path, is_tombstone
from schemas.errors import Corrupted, Unavailable
from schemas.index.control import Init
from schemas.index.layout import RowBlock, RowLayout
from schemas.index.manifest import Part, PartFile
from schemas.index.shard_snapshot import ShardSnapshot, encode_snapshot, snapshot_manifest_path
from streams.builders.jobs import SnapshotJob
from streams.shard.directory import COLUMN_FAMILIES
from streams.shard.shard import Shard
from streams.shard.shard_reader import ShardReader
from streams.shard.snapshot_files import describe_checkpoint
from tests.sim.disk import Disk, MemoryDatabase, open_memory_database
from tests.sim.haste import shortcuts
from tests.sim.store import MemoryStore
from tests.sim.world import World

_FILE = (PartFile("000001.sst", 1, "0" * 64),)  # a part with rows has files


class Boundary:
    """The replacements, for one world. `disks` by host."""

    def __init__(self, world: World, disks: dict[str, Disk]) -> None:
        self.world, self.disks = world, disks

    def disk_of(self, path: Path | str) -> Disk:
        """The disk that a path is on."""
        return self.disks[str(path).partition("/")[0]]

    # --- directories -------------------------------------------------------------------------------------------------------

    def open_shard(self, directory: Path, number: int, init: Init, clock: Clock) -> Shard:
        database = open_memory_database(
            directory, COLUMN_FAMILIES, self.disk_of(directory), self.world.write_point, self.world.find_disk_fault
        )
        try:
            return Shard(database, number, init, clock)  # type: ignore[arg-type]
        except BaseException:
            database.close()
            raise

    def open_shard_reader(self, checkpoint_dir: Path) -> ShardReader:
        disk = self.disk_of(checkpoint_dir)
        found = disk.directories.get(str(checkpoint_dir))
        if found is None:
            raise Corrupted("database_corrupted", f"{checkpoint_dir} is not there")
        return ShardReader(MemoryDatabase(checkpoint_dir, disk, found, read_only=True))  # type: ignore[arg-type]

    def has_files(self, directory: Path) -> bool:
        return str(directory) in self.disk_of(directory).directories

    def remove(self, directory: Path, ignore_errors: bool = False) -> None:
        self.disk_of(directory).remove(str(directory))

    def set_aside(self, directory: Path) -> Path:
        self.remove(directory)
        return directory

    # --- parts ----------------------------------------------------------------------------------------------------------------

    def write_full_part(self, store: MemoryStore, version: int, shard: int, blocks: Iterable[RowBlock], layout: RowLayout) -> Part:
        kept = [block for block in blocks if len(block)]
        part = self._put(store, full_part_path(version, shard, self.world.unique()), kept)
        return Part(part, _FILE if part else (), sum(map(len, kept)))

    def write_incremental_part(
        self, store: MemoryStore, version: int, revision: int, shard: int, increments: Iterable[tuple[bytes, bytes]]
    ) -> Part:
        kept = list(increments)
        part = self._put(store, incremental_part_path(version, revision, shard, self.world.unique()), kept)
        dead = sum(is_tombstone(value) for _, value in kept)
        return Part(part, _FILE if part else (), len(kept) - dead, dead)

    def _put(self, store: MemoryStore, directory: str, content: list[Any]) -> str:
        self.world.data_point("writing a part")
        if not content:
            return ""
        store.put_part(directory, content)
        return directory

    def read_full_part(self, store: MemoryStore, part: Part, layout: RowLayout, verify: bool = True) -> Iterator[RowBlock]:
        yield from store.read_part(part.directory)

    def read_incremental_part(self, store: MemoryStore, part: Part, verify: bool = True) -> Iterator[tuple[bytes, bytes]]:
        yield from store.read_part(part.directory)

    def verify_part(self, store: MemoryStore, part: Part) -> None:
        store.read_part(part.directory)

    # --- snapshots --------------------------------------------------------------------------------------------------------------

    def write_snapshot(self, store: MemoryStore, job: SnapshotJob) -> ShardSnapshot:
        described = describe_checkpoint(Path(job.checkpoint_directory), job.shard, job.identity)
        snapshot = dataclasses.replace(described, files=_FILE).named(self.world.unique())
        self.world.point(f"writing {snapshot.directory}")
        store.put_part(f"{snapshot.directory}/files", [self.disk_of(job.checkpoint_directory).directories[job.checkpoint_directory].copy()])
        store.put_bytes(snapshot_manifest_path(job.shard, snapshot.unique), encode_snapshot(snapshot))
        return snapshot

    def restore_snapshot(self, store: MemoryStore, snapshot: ShardSnapshot, directory: Path) -> None:
        held = store.read_part(f"{snapshot.directory}/files")
        if not held:
            raise Unavailable("missing_file", snapshot.directory)
        self.world.point(f"restoring {snapshot.directory}")
        self.disk_of(directory).directories[str(directory)] = held[0].copy()
        self.world.say("restored from snapshot at %s", snapshot.next_offsets)


def _replacements(boundary: Boundary) -> list[tuple[Any, str, object]]:
    unique: Callable[[], str] = boundary.world.unique
    removal = SimpleNamespace(rmtree=boundary.remove)
    return [
        (streams.builders.full_part, "read_full_part", boundary.read_full_part),
        (streams.builders.full_part, "read_incremental_part", boundary.read_incremental_part),
        (streams.builders.full_part, "verify_part", boundary.verify_part),
        (streams.builders.full_part, "open_shard_reader", boundary.open_shard_reader),
        (streams.builders.full_part, "write_full_part", boundary.write_full_part),
        (streams.builders.sealer, "open_shard_reader", boundary.open_shard_reader),
        (streams.builders.sealer, "write_incremental_part", boundary.write_incremental_part),
        (streams.builders.sealer, "read_full_part", boundary.read_full_part),
        (streams.builders.sealer, "new_unique", unique),
        (streams.builders.running_jobs, "new_unique", unique),
        (streams.builders.running_jobs, "shutil", removal),
        (streams.shard.snapshot_files, "open_shard_reader", boundary.open_shard_reader),
        (streams.shard.start, "open_shard", boundary.open_shard),
        (streams.shard.start, "restore_snapshot", boundary.restore_snapshot),
        (streams.shard.start, "_has_files", boundary.has_files),
        (streams.shard.start, "_set_aside", boundary.set_aside),
        (streams.shard.start, "shutil", removal),
    ]


@contextlib.contextmanager
def replaced(replacements: Iterable[tuple[Any, str, object]]) -> Iterator[None]:
    """Attributes of modules or classes that are others within the block."""
    made = list(replacements)
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in made]
    try:
        for owner, name, value in made:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


@contextlib.contextmanager
def simulated(world: World, disks: dict[str, Disk]) -> Iterator[Boundary]:
    """See the module."""
    boundary = Boundary(world, disks)
    with replaced(_replacements(boundary) + shortcuts(is_literal=world.seed % 4 == 2)):
        yield boundary
