"""Header names that are not UTF-8, in batches as the broker sends them. What a worker does with the records: test_worker.py."""

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from faust.types import TP

from streams.fetched_records import FetchedRecords, PartitionRecords, SkippedOffset


class AnyName(str):
    """A name with bytes of its own."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"ce_\xff"


def batch(first: int, names: list[str], compression: int = 0) -> bytearray:
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, -1, 1 << 20)
    for at, name in enumerate(names):
        builder.append(at, 0, b"key", b"\xff%d" % (first + at), [(name, b"\xfe"), ("plain", None)])
    raw = builder.build()
    raw[:8] = first.to_bytes(8, "big")  # the broker's own number, outside the checksum
    return raw


def read(raw: bytes, check: bool = True) -> list[tuple[int, bytes, tuple[tuple[str, bytes | None], ...]]]:
    records = PartitionRecords(TP("t", 0), FetchedRecords(raw), [], 1, None, None, check, 0)
    return [(r.offset, r.value, tuple(r.headers)) for r in records]


@pytest.mark.parametrize("compression", [0, 1])
def test_a_header_name_that_is_not_utf8_hides_no_record_before_or_behind_it(compression: int) -> None:
    fetched = b"".join(batch(at, ["a", AnyName("?"), "b"], compression) for at in (0, 3))
    names = ["a", "ce_\ufffd", "b"] * 2
    expected = [(at, b"\xff%d" % at, ((name, b"\xfe"), ("plain", None))) for at, name in enumerate(names)]
    assert read(fetched) == expected[1:]  # the fetch was for offset 1


def test_a_batch_with_a_wrong_checksum_stays_refused() -> None:
    damaged = batch(0, ["a"])
    damaged[-3] ^= 1
    with pytest.raises(CorruptRecordException):
        read(bytes(damaged))


def transactional(first: int, producer: int, values: list[bytes], *, marker: bool = False) -> bytearray:
    builder = _DefaultRecordBatchBuilderPy(2, 0, 1, producer, 0, 0, 1 << 20)
    for at, value in enumerate(values):
        builder.append(at, 0, b"key", value, [])
    if marker:
        builder._get_attributes = lambda *_: builder.TRANSACTIONAL_MASK | builder.CONTROL_MASK  # type: ignore[method-assign]
    raw = builder.build()
    raw[:8] = first.to_bytes(8, "big")
    return raw


@pytest.mark.parametrize("bad_name", [False, True])
def test_every_offset_of_a_fetch_is_given_and_those_of_markers_and_aborted_records_are_skipped(bad_name: bool) -> None:
    """Producer 1 aborts twice and commits in between; the second time a header name has to be read by the parser in Python."""
    fetched = b"".join(
        [
            transactional(0, 1, [b"aborted"]),
            transactional(1, 2, [b"kept", b"kept"]),
            transactional(3, 1, [b""], marker=True),
            transactional(4, 1, [b"kept"]),
            transactional(5, 1, [b""], marker=True),
            transactional(6, 2, [b""], marker=True),
            transactional(7, 1, [b"aborted"]),
            batch(8, [AnyName("?") if bad_name else "a"]),
            transactional(9, 1, [b"aborted", b"aborted"]),
            transactional(11, 1, [b""], marker=True),
        ]
    )
    records = PartitionRecords(TP("t", 0), FetchedRecords(fetched), [(1, 7), (1, 0)], 0, None, None, True, 1)
    given = list(records)
    assert [r.offset for r in given] == list(range(12)) and records.next_fetch_offset == 12
    skipped = {r.offset for r in given if isinstance(r, SkippedOffset)}
    assert skipped == {0, 3, 5, 6, 7, 9, 10, 11}
