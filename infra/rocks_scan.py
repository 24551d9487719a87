"""Rows of a RocksDB database in key order.

Invariant: a scan never ends early in silence. rocksdict's `items()` does so at a corrupt block; the `status()` of an iterator after the last row does not.
Source: RocksDB 9.8 through rocksdict 0.3.29.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter

from infra.rocks_errors import REBUILD, MappedErrors
from schemas.errors import Corrupted

_NO_ROWS: Iterator[tuple[bytes, bytes]] = iter(())


class Scan(Iterator[tuple[bytes, bytes]]):
    """(key, value) in key order of the moment it began. Raises Corrupted where rocksdict would end early; `close()` frees its iterator."""

    def __init__(self, path: Path, family: str, iterator: RdictIter | None, end: bytes) -> None:
        self._path, self._family, self._end_key = path, family, end
        self._iterator: RdictIter | None = iterator

    def __next__(self) -> tuple[bytes, bytes]:
        iterator = self._iterator
        if iterator is None:
            raise StopIteration
        if not iterator.valid():
            del iterator
            self._end()
            raise StopIteration
        key = iterator.key()
        # Not the iterator's own upper bound: rocksdict frees that key with its ReadOptions, under the running iterator.
        if key >= self._end_key:
            self._iterator = None
            raise StopIteration
        item = key, iterator.value()
        iterator.next()
        return item

    def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        """The next rows, at most `rows_max`; fewer only at the end. Half the cost of asking for sequentially."""
        rows = self._take(rows_max)
        if len(rows) < rows_max and self._iterator is not None:
            self._end()
        if rows and rows[-1][0] >= self._end_key:
            self._iterator = None
            rows = [row for row in rows if row[0] < self._end_key]
        return rows

    def _take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        iterator, rows = self._iterator, list[tuple[bytes, bytes]]()
        if iterator is None:
            return rows
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
        for _ in range(rows_max):
            if not valid():
                break
            rows.append((key(), value()))
            step()
        return rows

    def _end(self) -> None:
        """Raises Corrupted if a damaged block ended it. No frame may keep the iterator: an error that is held would hold the directory's LOCK."""
        iterator, self._iterator = self._iterator, None
        try:
            with MappedErrors(self._path, f"scan of {self._family}"):
                if iterator is not None:
                    iterator.status()
        finally:
            del iterator

    def close(self) -> None:
        """Give the iterator back; the scan is at its end."""
        self._iterator = None


class FrozenScan(Scan):
    """The same over a directory that no process writes, at two thirds of the cost: one call a row. But `items()` of rocksdict ends early in silence at a
    corrupt block. So a plain iterator must end at the same place."""

    def __init__(self, path: Path, family: str, column_family: Rdict, start: bytes, end: bytes) -> None:
        self._column_family, self._next_key = column_family, start
        self._rows: Iterator[tuple[Any, Any]] = iter(column_family.items(from_key=start))
        super().__init__(path, family, None, end)

    def __next__(self) -> tuple[bytes, bytes]:
        if not (rows := self.take(1)):
            raise StopIteration
        return rows[0]

    def take(self, rows_max: int) -> list[tuple[bytes, bytes]]:
        """The next rows, at most `rows_max`; fewer only at the end."""
        rows = list(itertools.islice(self._rows, rows_max))
        if rows:
            self._next_key = rows[-1][0] + b"\0"
        if len(rows) < rows_max and self._rows is not _NO_ROWS:
            self._check_end()
        if rows and rows[-1][0] >= self._end_key:
            self.close()
            rows = [row for row in rows if row[0] < self._end_key]
        return rows

    def _check_end(self) -> None:
        self.close()
        with MappedErrors(self._path, f"scan of {self._family}"):
            after = self._column_family.iter()
            after.seek(self._next_key)
            if after.valid():
                raise Corrupted(
                    "database_corrupted", f"a scan of {self._family} in {self._path} ended before {after.key().hex()}; {REBUILD}"
                )
            after.status()

    def close(self) -> None:
        """Give the iterator back; the scan is at its end."""
        self._rows = _NO_ROWS
