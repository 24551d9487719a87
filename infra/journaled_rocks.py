"""A RocksDB directory whose new rows wait in a journal and in memory, and go to table files as sorted runs.

A row that is put the plain way costs 3 us in the write and holds the interpreter meanwhile; in the journal thousands of rows are one value. Rows that
change again before the journal is settled cost nothing more, and what was read or written lately is answered from memory.

Here: `JournaledDatabase`, the interface of infra/rocks.py `Database` for one owner, and the bytes of a journal entry. Not here: what the rows are.
Invariants: a batch is written whole or not at all, as one RocksDB batch that holds its rows as one entry of the family `journal`; `settle` makes table
files of what the journal holds, after everything before it is synced, and only then removes the entries, so that a crash in between repeats rows that
are there already (I1). A checkpoint holds no journal: its readers know nothing of one. Memory and journal are bounded (I8).
"""

import heapq
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np

from infra.rocks import Batch, Database, DiskFacts, Scan
from schemas.errors import Corrupted
from schemas.limits import JOURNAL_BYTES_MAX, JOURNALED_ROWS_KEPT_BYTES_MAX

JOURNAL = "journal"
_ENTRY_KEY = struct.Struct(">Q")
_COUNTS = struct.Struct("<HI")  # bytes of a family's name, rows
_ABSENT = bytes(bytearray(b"absent"))  # what is held of a key that is not there; compared by identity, so no constant of the interpreter's
_ROW_COST_BYTES = 256  # what a row costs in memory beside its bytes


class JournaledBatch:
    """Changes that become visible together. Made by `JournaledDatabase.new_batch`, used once."""

    __slots__ = ("plain", "removes", "rows")

    def __init__(self, plain: Batch, families: Iterable[str]) -> None:
        self.plain = plain
        self.rows: dict[str, tuple[list[bytes], list[bytes]]] = {family: ([], []) for family in families}
        self.removes = False  # whether it takes rows out of a journaled family

    def __len__(self) -> int:
        return len(self.plain) + sum(len(keys) for keys, _ in self.rows.values())

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set `key`."""
        rows = self.rows.get(family)
        if rows is None:
            self.plain.put(family, key, value)
        else:
            rows[0].append(key)
            rows[1].append(value)

    def put_many(self, family: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set each of `keys`, in a journaled family."""
        rows = self.rows[family]
        rows[0].extend(keys)
        rows[1].extend(values)

    def delete(self, family: str, key: bytes) -> None:
        """Remove `key`."""
        self.removes |= family in self.rows
        self.plain.delete(family, key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove every key from `start` to before `end`."""
        self.removes |= family in self.rows
        self.plain.delete_range(family, start, end)


class JournaledDatabase:
    """See the module. `families`: those whose rows are journaled; the database has them and JOURNAL."""

    def __init__(self, database: Database, families: Sequence[str]) -> None:
        self._database, self._families = database, tuple(families)
        self._load()

    def _load(self) -> None:
        """What the journal holds, oldest first."""
        self._held: dict[str, dict[bytes, bytes | None]] = {
            family: {} for family in self._families
        }  # lately written or read; None: not there
        self._unsettled: dict[str, list[Sequence[bytes]]] = {family: [] for family in self._families}  # keys of each entry
        self._held_bytes = self._journal_bytes = 0
        self._entries: list[bytes] = []  # keys of the journal
        self._next_entry = 0
        for key, entry in self._database.scan(JOURNAL):
            self._hold(key, len(entry), decode_journal_entry(entry))

    def _hold(self, entry_key: bytes, entry_bytes: int, rows: Mapping[str, tuple[Sequence[bytes], Sequence[bytes]]]) -> None:
        for family, (keys, values) in rows.items():
            self._held[family].update(zip(keys, values, strict=True))
            self._unsettled[family].append(keys)
        self._entries.append(entry_key)
        self._next_entry = _ENTRY_KEY.unpack(entry_key)[0] + 1
        size = entry_bytes + _ROW_COST_BYTES * sum(len(keys) for keys, _ in rows.values())
        self._journal_bytes += size
        self._held_bytes += size

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._database.path

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""
        return self.multi_get(family, [key])[0]

    def multi_get(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order."""
        held = self._held.get(family)
        if held is None:
            return self._database.multi_get(family, keys)
        values: list[bytes | None] = list(map(held.get, keys))
        if None in values:
            values = self._read_missing(family, keys, values)
        return [None if value is _ABSENT else value for value in values] if _ABSENT in values else values

    def _read_missing(self, family: str, keys: Sequence[bytes], found: list[bytes | None]) -> list[bytes | None]:
        """Fills the gaps from table files, and keeps what it read."""
        missing = [key for key, value in zip(keys, found, strict=True) if value is None]
        values = [_ABSENT if value is None else value for value in self._database.multi_get(family, missing)]
        self._make_room(sum(map(len, values)) + _ROW_COST_BYTES * len(values))
        self._held[family].update(zip(missing, values, strict=True))
        read = iter(values)
        return [next(read) if value is None else value for value in found]

    def _make_room(self, incoming_bytes: int) -> None:
        """Lets go of everything that is in table files when memory has reached its bound."""
        self._held_bytes += incoming_bytes
        if self._held_bytes <= JOURNALED_ROWS_KEPT_BYTES_MAX:
            return
        self._held = {family: dict(self._unsettled_rows(family)) for family in self._families}
        self._held_bytes = incoming_bytes + self._measure_held()

    def _measure_held(self) -> int:
        values = chain.from_iterable(held.values() for held in self._held.values())
        return sum(map(len, values)) + _ROW_COST_BYTES * sum(map(len, self._held.values()))

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> "Scan | MergedScan":
        """Rows from `start` to before `end` (None = to the last), in key order, as of now."""
        scan = self._database.scan(family, start, end)
        newer = [row for row in self._unsettled_rows(family) if row[0] >= start and (end is None or row[0] < end)]
        return MergedScan(scan, newer) if newer else scan

    def _unsettled_rows(self, family: str) -> list[tuple[bytes, bytes]]:
        """Rows that only the journal has, in key order."""
        keys = sorted(set(chain.from_iterable(self._unsettled.get(family, ()))))
        return list(zip(keys, map(self._held[family].__getitem__, keys), strict=True)) if keys else []

    def facts(self) -> DiskFacts:
        """How large the directory is."""
        return self._database.facts()

    # --- writing -----------------------------------------------------------------------------------------------------

    def new_batch(self) -> JournaledBatch:
        """An empty batch for `write`."""
        return JournaledBatch(self._database.new_batch(), self._families)

    def write(self, batch: JournaledBatch, sync: bool = False) -> None:
        """Apply a batch, all or nothing, as infra/rocks.py does. After an error it is there or not: `reopen` finds out."""
        if batch.removes:
            self._write_plainly(batch, sync)
            return
        rows = {family: rows for family, rows in batch.rows.items() if rows[0]}
        if not rows:
            self._database.write(batch.plain, sync)
            return
        key, entry = _ENTRY_KEY.pack(self._next_entry), encode_journal_entry(rows)
        batch.plain.put(JOURNAL, key, entry)
        self._database.write(batch.plain, sync)
        self._hold(key, len(entry), rows)
        if self._journal_bytes > JOURNAL_BYTES_MAX:
            self.settle()

    def _write_plainly(self, batch: JournaledBatch, sync: bool) -> None:
        """Rare: nothing of the journal may come back over what is removed."""
        self.settle()
        for family, (keys, values) in batch.rows.items():
            for key, value in zip(keys, values, strict=True):
                batch.plain.put(family, key, value)
        self._database.write(batch.plain, sync)
        self._forget()

    def settle(self) -> None:
        """Takes every row of the journal into table files and empties it."""
        if not self._entries:
            return
        for family in self._families:
            if rows := self._unsettled_rows(family):
                self._database.ingest_rows(family, rows)
        batch = self._database.new_batch()
        for key in self._entries:
            batch.delete(JOURNAL, key)
        self._database.write(batch)
        self._entries, self._journal_bytes = [], 0
        self._unsettled = {family: [] for family in self._families}
        self._held_bytes = self._measure_held()
        self._make_room(0)

    def _forget(self) -> None:
        self._held, self._held_bytes = {family: {} for family in self._families}, 0

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove every key from `start` to before `end`."""
        batch = self.new_batch()
        batch.delete_range(family, start, end)
        self.write(batch)

    # --- the directory -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Settles, and writes what else is in memory to table files."""
        self.settle()
        self._database.flush()

    def begin_flush(self) -> None:
        """The same, the second part in the background: a checkpoint finds little to write then."""
        self.settle()
        self._database.begin_flush()

    def is_flushing(self) -> bool:
        """Whether that goes on."""
        return self._database.is_flushing()

    def create_checkpoint(self, directory: Path) -> None:
        """A consistent copy, with all rows in their tables, in the new folder `directory`."""
        self.settle()
        self._database.create_checkpoint(directory)

    def reopen(self) -> None:
        """The way out of a full disk; the journal is read again, because a write that failed may be there all the same."""
        self._database.reopen()
        self._load()

    def close(self) -> None:
        """Frees the directory."""
        self._database.close()
        self._forget()


class MergedScan(Iterator[tuple[bytes, bytes]]):
    """(key, value) in key order, of a table and of newer rows over it."""

    def __init__(self, table: Iterator[tuple[bytes, bytes]], newer: Sequence[tuple[bytes, bytes]]) -> None:
        self._rows: Iterator[tuple[bytes, bytes]] = heapq.merge(newer, table, key=itemgetter(0))  # of equal keys the newer comes first
        self._last: bytes | None = None

    def __next__(self) -> tuple[bytes, bytes]:
        row = next(self._rows)
        while row[0] == self._last:
            row = next(self._rows)
        self._last = row[0]
        return row

    def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        """The next rows, at most `rows_max`."""
        return [row for _, row in zip(range(rows_max), self, strict=False)]

    def close(self) -> None:
        """Ends it."""
        self._rows = iter(())


def encode_journal_entry(rows: Mapping[str, tuple[Sequence[bytes], Sequence[bytes]]]) -> bytes:
    """For each family: its name and number of rows, where keys and values end (uint32 each), the keys, the values."""
    parts: list[bytes] = []
    for family, (keys, values) in rows.items():
        name = family.encode()
        parts += [_COUNTS.pack(len(name), len(keys)), name, _ends_of(keys), _ends_of(values), *keys, *values]
    return b"".join(parts)


def _ends_of(texts: Sequence[bytes]) -> bytes:
    return np.cumsum(np.fromiter(map(len, texts), np.uint32, len(texts)), dtype=np.uint32).tobytes()


def decode_journal_entry(entry: bytes) -> dict[str, tuple[list[bytes], list[bytes]]]:
    """What `encode_journal_entry` was given. Raises Corrupted (`bad_journal_entry`)."""
    rows, at = dict[str, tuple[list[bytes], list[bytes]]](), 0
    try:
        while at < len(entry):
            name_bytes, count = _COUNTS.unpack_from(entry, at)
            at += _COUNTS.size
            family = entry[at : at + name_bytes].decode()
            at += name_bytes
            ends = np.frombuffer(entry, "<u4", 2 * count, at).reshape(2, count).tolist()
            at += 8 * count
            keys, at = _cut(entry, at, ends[0])
            values, at = _cut(entry, at, ends[1])
            rows[family] = keys, values
    except (struct.error, ValueError) as error:
        raise Corrupted("bad_journal_entry", f"a journal entry of {len(entry)} bytes does not read: {error}; restore the shard") from error
    if at != len(entry):
        raise Corrupted("bad_journal_entry", f"a journal entry of {len(entry)} bytes ends at {at}; restore the shard")
    return rows


def _cut(entry: bytes, at: int, ends: Sequence[int]) -> tuple[list[bytes], int]:
    cuts = [at, *(at + end for end in ends)]
    return [entry[a:b] for a, b in pairwise(cuts)], cuts[-1]
