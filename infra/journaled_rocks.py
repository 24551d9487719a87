"""A RocksDB directory whose new rows wait in a journal and in memory, and go to table files as sorted runs.

A row that is put the plain way costs 3 us in the write and holds the interpreter meanwhile; in the journal thousands of rows are one value. Rows that
change again before the journal is settled cost nothing more, and what was read or written lately is answered from memory.

Here: `JournaledDatabase`, the interface of infra/rocks.py `Database` for one owner, and the bytes of a journal entry. Not here: what the rows are, and the
memory that holds them (infra/held_rows.py).
Invariants: a batch is written whole or not at all, as one RocksDB batch that holds its rows as one entry of the family `journal`; `settle` makes table
files of what the journal holds, after everything before it is synced, and only then removes the entries, so that a crash in between repeats rows that
are there already (I1). A checkpoint holds no journal: its readers know nothing of one. Memory and journal are bounded (I8).
"""

import heapq
import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from infra.held_rows import ROW_COST_BYTES, HeldRows
from infra.joined import Joined, join_runs, join_some, join_stored, pack_into
from infra.rocks import Batch, Database, DiskFacts
from infra.rocks_scan import Scan
from schemas.errors import Corrupted
from schemas.limits import JOURNAL_BYTES_MAX, JOURNALED_ROWS_KEPT_BYTES_MAX

JOURNAL = "journal"
_ENTRY_KEY = struct.Struct(">Q")
_COUNTS = struct.Struct("<HI")  # bytes of a family's name, rows
_READ_ALL_MIN = 256  # rows that one call misses: fewer are asked for one by one
_READ_ALL_PAGE = 2_048
_BYTES_OF_STORED = 2  # of rows in memory for each byte of compressed tables

Rows = tuple[Joined, Joined]  # keys and values


class JournaledBatch:
    """Changes that become visible together, in the order of the calls. Made by `JournaledDatabase.new_batch`, used once."""

    __slots__ = ("_families", "_runs", "_single", "plain", "removes")

    def __init__(self, plain: Batch, families: Sequence[str]) -> None:
        self.plain, self._families = plain, families
        self._runs: dict[str, list[Rows]] = {}
        self._single: dict[str, tuple[list[bytes], list[bytes]]] = {}
        self.removes: set[str] = set()  # journaled families that it takes rows out of

    def __len__(self) -> int:
        return len(self.plain) + sum(keys.rows for keys, _ in self.rows().values())

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set `key`."""
        if family not in self._families:
            self.plain.put(family, key, value)
        else:
            keys, values = self._single.setdefault(family, ([], []))
            keys.append(key)
            values.append(value)

    def put_joined(self, family: str, keys: Joined, values: Joined) -> None:
        """Set each of `keys`, in a journaled family, after those that were put one by one. Both stay as they are until the batch is written."""
        self._runs.setdefault(family, []).append((keys, values))

    def rows(self) -> dict[str, Rows]:
        """What it sets in each journaled family, in order."""
        found: dict[str, Rows] = {}
        for family in self._families if self._single or self._runs else ():
            runs = list(self._runs.get(family, ()))
            if family in self._single:
                keys, values = self._single[family]
                runs.insert(0, (join_stored(keys), join_stored(values)))
            if runs:
                found[family] = join_runs([k for k, _ in runs]), join_runs([v for _, v in runs])
        return found

    def delete(self, family: str, key: bytes) -> None:
        """Remove `key`."""
        self._begin_removal(family)
        self.plain.delete(family, key)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Remove every key from `start` to before `end`."""
        self._begin_removal(family)
        self.plain.delete_range(family, start, end)

    def _begin_removal(self, family: str) -> None:
        if family in self._families:
            self.unjournal(family)
            self.removes.add(family)

    def unjournal(self, family: str) -> None:
        """What was set in a journaled family so far is written the plain way, before what follows."""
        if family not in self._runs and family not in self._single:
            return
        keys, values = self.rows()[family]
        for key, value in zip(keys.present(), values.present(), strict=True):
            self.plain.put(family, key, value)
        self._runs.pop(family, None)
        self._single.pop(family, None)


class JournaledDatabase:
    """See the module. `families`: those whose rows are journaled; the database has them and JOURNAL."""

    def __init__(self, database: Database, families: Sequence[str]) -> None:
        self._database, self._families = database, tuple(families)
        database.keep_no_blocks(families)
        self._load()

    def _load(self) -> None:
        """What the journal holds, oldest first."""
        self._held = {family: self._new_held(family) for family in self._families}  # lately written or read
        self._journal_bytes = 0
        self._entries: list[bytes] = []  # keys of the journal
        self._next_entry = 0
        for key, entry in self._database.scan(JOURNAL):
            self._hold(key, len(entry), decode_journal_entry(entry))

    def _new_held(self, family: str) -> HeldRows:
        """Nothing of a family is held yet, which is all of it where its tables are empty."""
        scan = self._database.scan(family)
        is_empty = next(scan, None) is None
        scan.close()
        return HeldRows(is_complete=is_empty)

    def _hold(self, entry_key: bytes, entry_bytes: int, rows: Mapping[str, Rows]) -> None:
        for family, (keys, values) in rows.items():
            self._held[family].put(keys, values, settled=False)
        self._entries.append(entry_key)
        self._next_entry = _ENTRY_KEY.unpack(entry_key)[0] + 1
        self._journal_bytes += entry_bytes

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
        if family not in self._held:
            return self._database.multi_get(family, keys)
        return self.get_joined(family, join_stored(keys)).to_list() if keys else []

    def get_joined(self, family: str, keys: Joined) -> Joined:
        """The value of each key, or none, in a journaled family. Good until the next write."""
        held = self._held[family]
        found = held.get(keys)
        missing = held.unknown(found)
        if not len(missing):
            return found
        if self._held_bytes() > JOURNALED_ROWS_KEPT_BYTES_MAX:
            self._let_go()
            missing = held.unknown(held.get(keys))
        if len(missing) >= _READ_ALL_MIN and self._fits():
            self._read_all(family)
            missing = held.unknown(held.get(keys))
        if len(missing):
            asked = keys.take(missing)
            held.put(asked, join_some(self._database.multi_get(family, asked.present())), settled=True)
        return held.get(keys)

    def _fits(self) -> bool:
        """Whether memory has room for every family that is not held whole, as far as RocksDB can say."""
        estimates = [self._database.estimate_rows(family) for family, held in self._held.items() if not held.is_complete]
        needed = sum(_BYTES_OF_STORED * size + ROW_COST_BYTES * rows for rows, size in estimates)
        return self._held_bytes() + needed <= JOURNALED_ROWS_KEPT_BYTES_MAX

    def _read_all(self, family: str) -> None:
        """A family row after row, which costs less than to ask for each; and then it is known what is not there."""
        held, scan = self._held[family], self._database.scan(family)
        while page := scan.take(_READ_ALL_PAGE):
            keys, values = join_stored([key for key, _ in page]), join_stored([value for _, value in page])
            older = held.unknown(held.get(keys))  # what is held may be newer
            held.put(keys.take(older), values.take(older), settled=True)
            if self._held_bytes() > JOURNALED_ROWS_KEPT_BYTES_MAX:
                scan.close()
                return
        held.is_complete = True

    def _held_bytes(self) -> int:
        return sum(held.bytes for held in self._held.values())

    def _let_go(self) -> None:
        """Of everything that is in table files, when memory has reached its bound."""
        for held in self._held.values():
            held.let_go()

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> "Scan | MergedScan":
        """Rows from `start` to before `end` (None = to the last), in key order, as of now."""
        scan = self._database.scan(family, start, end)
        newer = [row for row in self._unsettled_rows(family) if row[0] >= start and (end is None or row[0] < end)]
        return MergedScan(scan, newer) if newer else scan

    def _unsettled_rows(self, family: str) -> list[tuple[bytes, bytes]]:
        """Rows that only the journal has, in key order."""
        if family not in self._held:
            return []
        keys, values = self._held[family].unsettled()
        return sorted(zip(keys.present(), values.present(), strict=True), key=itemgetter(0))

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
        rows = batch.rows()
        if not rows:
            self._database.write(batch.plain, sync)
            return
        key, entry = _ENTRY_KEY.pack(self._next_entry), encode_journal_entry(rows)
        batch.plain.put(JOURNAL, key, entry)
        self._database.write(batch.plain, sync)
        self._hold(key, len(entry), rows)
        if self._journal_bytes > JOURNAL_BYTES_MAX or self._held_bytes() > JOURNALED_ROWS_KEPT_BYTES_MAX:
            self.begin_flush()  # with the entries gone there is hardly anything to write, which later there would be

    def _write_plainly(self, batch: JournaledBatch, sync: bool) -> None:
        """Rare: nothing of the journal may come back over what is removed."""
        self.settle()
        changed = batch.removes | batch.rows().keys()
        for family in changed:
            batch.unjournal(family)
        self._database.write(batch.plain, sync)
        for family in changed:
            self._held[family] = self._new_held(family)

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
        for held in self._held.values():
            held.settle()
        if self._held_bytes() > JOURNALED_ROWS_KEPT_BYTES_MAX:
            self._let_go()

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
        self._held = {family: HeldRows() for family in self._families}


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


def encode_journal_entry(rows: Mapping[str, Rows]) -> bytes:
    """For each family: its name and number of rows, where keys and values end (uint32 each), the keys, the values."""
    parts: list[bytes] = []
    for family, (keys, values) in rows.items():
        name, ends_2R = family.encode(), np.array([np.cumsum(keys.sizes()), np.cumsum(values.sizes())], np.uint32)
        texts_T = np.empty(int(ends_2R[:, -1].sum()) if keys.rows else 0, np.uint8)
        pack_into(values, texts_T, pack_into(keys, texts_T, 0))
        parts += [_COUNTS.pack(len(name), keys.rows), name, ends_2R.tobytes(), texts_T.tobytes()]
    return b"".join(parts)


def decode_journal_entry(entry: bytes) -> dict[str, Rows]:
    """What `encode_journal_entry` was given. Raises Corrupted (`bad_journal_entry`)."""
    rows, at, whole_T = dict[str, Rows](), 0, np.frombuffer(entry, np.uint8)
    try:
        while at < len(entry):
            name_bytes, count = _COUNTS.unpack_from(entry, at)
            at += _COUNTS.size
            family = entry[at : at + name_bytes].decode()
            at += name_bytes
            ends_2R = np.frombuffer(entry, "<u4", 2 * count, at).reshape(2, count).astype(np.int64)
            at += 8 * count
            keys, at = _cut(whole_T, at, ends_2R[0])
            values, at = _cut(whole_T, at, ends_2R[1])
            rows[family] = keys, values
    except (struct.error, ValueError) as error:
        raise Corrupted(
            "bad_journal_entry",
            f"a journal entry of {len(entry)} bytes does not read: {error}; restart the process: it sets the directory aside and makes it anew",
        ) from error
    if at != len(entry):
        raise Corrupted(
            "bad_journal_entry",
            f"a journal entry of {len(entry)} bytes ends at {at}; restart the process: it sets the directory aside and makes it anew",
        )
    return rows


def _cut(whole_T: np.ndarray, at: int, ends_R: np.ndarray) -> tuple[Joined, int]:
    sizes_R = np.diff(ends_R, prepend=0)
    if (sizes_R < 0).any() or (len(ends_R) and at + ends_R[-1] > len(whole_T)):
        raise ValueError(f"values from {at} end outside it")
    return Joined(whole_T, at + ends_R - sizes_R, at + ends_R), at + int(sizes_R.sum())
