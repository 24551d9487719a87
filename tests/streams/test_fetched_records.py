"""Header names that are not UTF-8, in batches as the broker sends them. What a worker does with the records: test_worker.py."""

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from faust.types import TP

from streams.fetched_records import FetchedRecords, PartitionRecords


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
