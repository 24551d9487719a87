"""Rows of a RocksDB database in key order.

Invariant: a scan never ends early in silence. rocksdict's `items()` does so at a corrupt block; the `status()` of an iterator after the last row does not.
Source: RocksDB 9.8 through rocksdict 0.3.29.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from rocksdict import RdictIter

from infra.rocks_errors import MappedErrors


class Scan(Iterator[tuple[bytes, bytes]]):
    """(key, value) in key order of the moment it began. Raises Corrupted where rocksdict would end early; `close()` frees its iterator."""

    def __init__(self, path: Path, family: str, iterator: RdictIter, end: bytes) -> None:
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
        """The next rows, at most `rows_max`; fewer only at the end."""
        return list(itertools.islice(self, rows_max))

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
