"""A host's disk: directories that stand for RocksDB, with what a power cut and a disk that fails do to them.

Here: `Directory` (the bytes, durable or not) and `MemoryDatabase` (an open handle, the interface of infra/rocks.py `Database`). Not here: who owns one.
Invariants, as of RocksDB with its write-ahead log: a batch is written whole or not at all. A killed process loses nothing that `write` returned from. A power
cut loses the last writes since the last synced one, never one in between. After a write that failed, all of it is there or nothing, and every further one
fails until the directory is opened again. A directory has one owner at a time.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from infra.rocks import DiskFacts
from schemas.errors import Unavailable

Families = dict[str, dict[bytes, bytes]]
Put = tuple[str, bytes, bytes]
Delete = tuple[str, bytes, None]
DeleteRange = tuple[str, bytes, None, bytes]
Change = Put | Delete | DeleteRange
BeforeWrite = Callable[[str], None]
Fault = tuple[str, bool]  # the code of the error, and whether the write took effect all the same
FindFault = Callable[[], Fault | None]


class MemoryBatch:
    """Changes that become visible together."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __len__(self) -> int:
        return len(self.changes)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.changes.append((family, key, value))

    def put_all(self, family: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self.changes += [(family, key, value) for key, value in rows]

    def delete(self, family: str, key: bytes) -> None:
        self.changes.append((family, key, None))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.changes.append((family, start, None, end))


class MemoryScan(Iterator[tuple[bytes, bytes]]):
    """(key, value) in key order of the moment it began."""

    def __init__(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._items = iter(items)

    def __next__(self) -> tuple[bytes, bytes]:
        return next(self._items)

    def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        return list(itertools.islice(self._items, rows_max))

    def close(self) -> None:
        self._items = iter(())


class Directory:
    """The bytes of one database: its first content, and every write since. `_synced` counts the writes that are synced; `owner` has it open for writing."""

    def __init__(self, begun: Families) -> None:
        self.owner: MemoryDatabase | None = None
        self.families = _copy(begun)
        self._begun, self._writes, self._synced = begun, list[list[Change]](), 0

    def write(self, changes: list[Change], sync: bool) -> None:
        """All of `changes`. Synced: they and everything before them survive a power cut."""
        _apply(self.families, changes)
        self._writes.append(changes)
        if sync:
            self._synced = len(self._writes)

    @property
    def unsynced(self) -> int:
        """How many writes a power cut may take."""
        return len(self._writes) - self._synced

    def lose_tail(self, kept: int) -> None:
        """A power cut after which the first `kept` of the unsynced writes are there."""
        del self._writes[self._synced + kept :]
        self._synced = len(self._writes)
        self.families = _copy(self._begun)
        for changes in self._writes:
            _apply(self.families, changes)

    def copy(self) -> "Directory":
        """The same bytes, durable, on their own from now on."""
        return Directory(_copy(self.families))


def _copy(families: Families) -> Families:
    return {name: dict(values) for name, values in families.items()}


def _apply(families: Families, changes: list[Change]) -> None:
    for change in changes:
        held = families[change[0]]
        if len(change) == 4:
            for key in [k for k in held if change[1] <= k < change[3]]:
                del held[key]
        elif change[2] is None:
            held.pop(change[1], None)
        else:
            held[change[1]] = change[2]


class Disk:
    """The directories of one host, by path."""

    def __init__(self) -> None:
        self.directories: dict[str, Directory] = {}

    def lose_tails(self, choose: Callable[[int], int]) -> None:
        """A power cut; `choose(n)` says how many of n unsynced writes of a directory survive."""
        for directory in self.directories.values():
            directory.lose_tail(choose(directory.unsynced))

    def free(self) -> None:
        """Its processes are dead, so no process holds a directory."""
        for directory in self.directories.values():
            if directory.owner is not None:
                directory.owner.close()

    def remove(self, path: str) -> None:
        """Forget a directory and those below it."""
        for name in [n for n in self.directories if n == path or n.startswith(path + "/")]:
            del self.directories[name]


class MemoryDatabase:
    """An open directory. `point(what)` is called before and after every write: the process may end there. `find_fault()`: the disk may fail."""

    def __init__(
        self,
        path: Path,
        disk: Disk,
        directory: Directory,
        point: BeforeWrite = lambda _: None,
        read_only: bool = False,
        find_fault: FindFault = lambda: None,
    ) -> None:
        self.path, self.read_only, self.is_open = path, read_only, True
        self._disk, self.directory, self._point, self._find_fault = disk, directory, point, find_fault
        self._broken = False
        if not read_only:
            self._own()

    def _own(self) -> None:
        if self.directory.owner is not None:
            raise Unavailable("database_locked", f"{self.path}: another owner has it open")
        self._fail()
        self.directory.owner = self

    def _fail(self, changes: Sequence[Change] = (), sync: bool = False) -> None:
        """Raises Unavailable when the disk fails now, or has failed since the directory was opened."""
        fault = ("database_failed", False) if self._broken else self._find_fault()
        if fault is not None:
            self._broken = True
            if fault[1] and changes:
                self.directory.write(list(changes), sync)
            raise Unavailable(fault[0], f"{self.path}: the disk fails")

    @property
    def column_families(self) -> tuple[str, ...]:
        return ("default", *self.directory.families)

    def get(self, family: str, key: bytes) -> bytes | None:
        return self.directory.families[family].get(key)

    def multi_get(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self.directory.families[family]
        return [held.get(key) for key in keys]

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> MemoryScan:
        rows: Iterable[tuple[bytes, bytes]] = self.directory.families[family].items()
        if start or end is not None:
            rows = [row for row in rows if row[0] >= start and (end is None or row[0] < end)]
        return MemoryScan(sorted(rows))

    def new_batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: MemoryBatch, sync: bool = False) -> None:
        assert self.is_open and not self.read_only
        self._point("before a write")
        self._fail(batch.changes, sync)
        self.directory.write(batch.changes, sync)
        self._point("after a write")

    def facts(self) -> DiskFacts:
        return DiskFacts(sum(map(len, self.directory.families.values())), 0, 0, 0)

    def flush(self, wait: bool = True) -> None:
        """Nothing of it can be seen."""

    def is_flushing(self) -> bool:
        return False

    def create_checkpoint(self, directory: Path) -> None:
        self._disk.directories[str(directory)] = self.directory.copy()

    def reopen(self) -> None:
        self.close()
        self._broken = False
        self._own()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        if self.directory.owner is self:
            self.directory.owner = None


def open_memory_database(
    path: Path, families: Sequence[str], disk: Disk, point: BeforeWrite = lambda _: None, find_fault: FindFault = lambda: None
) -> MemoryDatabase:
    """Opens or creates."""
    name = str(path)
    directory = disk.directories.get(name)
    if directory is None:
        directory = disk.directories[name] = Directory({family: {} for family in families})
    return MemoryDatabase(path, disk, directory, point, find_fault=find_fault)
