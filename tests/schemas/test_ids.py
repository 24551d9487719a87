"""Ids: partitions as Kafka computes them, keys that sort as ids do, wire forms that lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.ids import (
    INT64_MAX,
    INT64_MIN,
    IdKind,
    decode_id,
    decode_index_key,
    encode_index_key,
    encode_wire_id,
    hash_bucket,
    murmur2,
    partition_of,
)

INT64 = st.integers(INT64_MIN, INT64_MAX)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)

# Source: Kafka's own UtilsTest.testMurmur2, as signed 32-bit numbers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), KAFKA_VECTORS.items())
def test_murmur2_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


@given(INT64, INT64)
def test_int64_index_keys_sort_as_numbers(a: int, b: int) -> None:
    assert (encode_index_key(a) < encode_index_key(b)) == (a < b)


@given(TEXT, TEXT)
def test_text_index_keys_sort_as_utf8(a: str, b: str) -> None:
    assert (encode_index_key(a) < encode_index_key(b)) == (a.encode() < b.encode())


@given(INT64)
def test_an_int64_survives_its_index_key_and_its_wire_form(value: int) -> None:
    assert decode_index_key(encode_index_key(value), IdKind.INT64) == value
    assert decode_id(encode_wire_id(value), IdKind.INT64) == value


@given(TEXT)
def test_a_text_id_survives_its_index_key(value: str) -> None:
    assert decode_index_key(encode_index_key(value), IdKind.TEXT) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1 << 63, IdKind.INT64),
        ("9" * 5000, IdKind.INT64),
        ("12a", IdKind.INT64),
        ("", IdKind.INT64),
        ("٣", IdKind.INT64),
        ("01", IdKind.INT64),
        ("-0", IdKind.INT64),
        ("-", IdKind.INT64),
        ("--1", IdKind.INT64),
        (7, IdKind.TEXT),
        ("", IdKind.TEXT),
        ("x" * 129, IdKind.TEXT),
        ("\ud800", IdKind.TEXT),
    ],
)
def test_an_id_of_the_wrong_kind_or_size_is_refused_by_name(value: int | str, kind: IdKind) -> None:
    with pytest.raises(RejectedInput, match="bad_id"):
        decode_id(value, kind)


@given(INT64, st.integers(1, 64))
def test_a_partition_lies_in_range_and_depends_on_the_text_alone(value: int, partitions: int) -> None:
    assert partition_of(value, partitions) == partition_of(str(value), partitions)
    assert 0 <= partition_of(value, partitions) < partitions


@given(TEXT, st.integers(2, 1000))
def test_bucket_zero_is_kept_for_missing_values(value: str, buckets: int) -> None:
    assert 1 <= hash_bucket(value, buckets, b"salt") < buckets
