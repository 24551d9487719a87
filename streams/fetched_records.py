"""Records with headers whose names are not UTF-8, which Faust's client refuses together with everything behind them: here they are read.

Any producer may write such a name, the broker takes it, and then a partition stands still for ever: aiokafka raises at that record, the worker ends, and its
next start meets the record again. A name's bytes that are no UTF-8 become U+FFFD; key, value and the headers' values are untouched.
Here: the one place that puts parts of our own into aiokafka. Invariant: batches that aiokafka reads are read by aiokafka, by its compiled parser; only
where it stops is a fetch read again from there, by its parser in Python. What that refuses too, such as a wrong checksum, stays refused.
"""

from collections.abc import Iterator
from typing import Any, SupportsIndex, overload

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy


class FetchedRecords:
    """aiokafka's MemoryRecords, which remembers the bytes it was made of."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        records = MemoryRecords(raw)
        self.has_next, self.next_batch, self.size_in_bytes = records.has_next, records.next_batch, records.size_in_bytes


class PartitionRecords(fetcher.PartitionRecords):
    """aiokafka's, which goes on where a header's name is not UTF-8."""

    _records: Any

    def _unpack_records(self) -> Iterator[Any]:
        try:
            yield from super()._unpack_records()
        except (CorruptRecordException, UnicodeDecodeError):
            self._records = _LenientRecords(self._records.raw)
            yield from super()._unpack_records()  # passes over what was given already


class _LenientRecords(_MemoryRecordsPy):
    def next_batch(self, *_: Any) -> "_LenientBatch":
        piece = self._next_slice
        assert piece is not None
        self._cache_next()
        return _LenientBatch(piece)  # of format 2, as every broker of today sends them


class _LenientBatch(_DefaultRecordBatchPy):
    _buffer: Any

    def __iter__(self) -> "_LenientBatch":
        super().__iter__()
        self._buffer = _LenientBytes(self._buffer)
        return self


class _LenientBytes(bytearray):
    """Bytes whose parts decode whatever they hold."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> "_LenientBytes": ...
    def __getitem__(self, at: SupportsIndex | slice) -> "int | _LenientBytes":
        return _LenientBytes(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def decode(self, *_: Any) -> str:
        return super().decode(errors="replace")


def accept_any_header_names() -> None:
    """Makes every consumer of aiokafka in this process read them."""
    fetcher.MemoryRecords, fetcher.PartitionRecords = FetchedRecords, PartitionRecords
