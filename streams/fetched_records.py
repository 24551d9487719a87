"""What aiokafka's consumer gives for one fetch: committed records, and a `SkippedOffset` for every other offset in it.

Transactions: a marker ends each transaction and takes an offset, and the records of an aborted transaction keep theirs. aiokafka passes over both. A shard
could not distinguish them from lost records, and would never reach an end offset behind them. So they are given too, as offsets without a record. Header
names: any producer may write one that is not UTF-8, and the broker takes it. aiokafka raises at such a record, at every start again. Here its bytes that are
not UTF-8 become U+FFFD; key, value and the headers' values are untouched.
This is the one place that puts parts of our own into aiokafka.
Invariants: every offset of a batch is given once, in order. An offset that no batch covers is never given. The compiled parser of aiokafka reads the batches.
Only where that stops is a fetch read again, by its parser in Python. A batch that this one refuses too, as for a wrong checksum, stays refused.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SkippedOffset:
    """An offset without a record for readers: a transaction's marker, or a record of an aborted transaction."""

    topic: str
    partition: int
    offset: int


class PartitionRecords(fetcher.PartitionRecords):
    """aiokafka's, which also gives skipped offsets, and continues where a header's name is not UTF-8. For a consumer that reads committed records."""

    _tp: Any
    _records: Any
    next_fetch_offset: int
    _aborted_transactions: list[tuple[int, int]]  # (producer id, first offset), ascending by offset

    def _unpack_records(self) -> Iterator[Any]:
        try:
            yield from self._read(self._records)
        except (CorruptRecordException, UnicodeDecodeError):
            yield from self._read(_LenientRecords(self._records.raw))  # passes over the records that were given already

    def _read(self, batches: Any) -> Iterator[Any]:
        aborted, aborting = deque(self._aborted_transactions), set[int]()
        while batches.has_next():
            batch = batches.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            while aborted and aborted[0][1] <= batch.base_offset:
                aborting.add(aborted.popleft()[0])
            if batch.is_control_batch:
                aborting.discard(batch.producer_id)
                yield from self._skip(batch)
            elif batch.is_transactional and batch.producer_id in aborting:
                yield from self._skip(batch)
            else:
                for record in batch:
                    if record.offset >= self.next_fetch_offset:
                        self.next_fetch_offset = record.offset + 1
                        yield self._consumer_record(self._tp, record)
            self.next_fetch_offset = max(self.next_fetch_offset, batch.next_offset)

    def _skip(self, batch: Any) -> Iterator[SkippedOffset]:
        for offset in range(max(self.next_fetch_offset, batch.base_offset), batch.next_offset):
            self.next_fetch_offset = offset + 1
            yield SkippedOffset(self._tp.topic, self._tp.partition, offset)


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


def give_every_offset() -> None:
    """Makes every consumer of aiokafka in this process read as described above."""
    fetcher.MemoryRecords, fetcher.PartitionRecords = FetchedRecords, PartitionRecords
