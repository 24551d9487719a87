"""Records read in one compiled pass, held to the strict models: whatever is accepted, they accept, with the same updates."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.kafka.reader import SourceRecord
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate, decode_updates, encode_record
from schemas.ids import IdKind, partition_of
from schemas.topics import ITEM_FEATURES
from streams.core.item_state import EmbeddingUpdate, FeaturesUpdate
from streams.shard.decode import _decode_plain_records, _features_update, decode_source_records
from streams.stored.plain_records import load_records, read_plain_records


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    load_records()


numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False)
printed = st.decimals(-1000, 1000, places=4).map(float) | st.sampled_from(
    [0.0, -0.0, 1e-4, 9.9e-5, 1e15, 123456789012345.0, 0.1 + 0.2, 1e16]
)
texts = st.text(max_size=8) | st.text("az09 _-.", max_size=12)
values = st.booleans() | st.none() | numbers | printed | texts | st.lists(numbers | printed | texts, max_size=4)
features = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), values, max_size=6)


@st.composite
def updates(draw: st.DrawFn, ids: st.SearchStrategy[Any]) -> dict[str, Any]:
    op = draw(st.sampled_from(["upsert", "upsert", "delete"]))
    return {"op": op, "item_id": draw(ids), "version": draw(st.integers(0, (1 << 63) - 1) | st.integers(0, 9)), "features": draw(features)}


def decode_plain(record: SourceRecord, kind: IdKind, shards: int) -> list[FeaturesUpdate | EmbeddingUpdate] | None:
    (plain,) = _decode_plain_records([record], kind, shards)
    return None if plain is None else list(plain)


def judge(value: bytes, kind: IdKind, shards: int = 1) -> bool:
    """Whether the record is plain; then the models must agree."""
    record = SourceRecord(ITEM_FEATURES, 0, 77, b"", value, (), 0)
    plain = decode_plain(record, kind, shards)
    decoded = decode_updates(ItemFeaturesRecord, ItemFeaturesUpdate, value, kind, 0, shards, lambda u: u.item_id)
    if plain is not None:
        assert decoded.rejected == []
        assert plain == [_features_update(record, index, update) for index, update in decoded.accepted]
    (found,) = decode_source_records([record], kind, shards)
    assert (len(found.updates), found.rejected) == (len(decoded.accepted), decoded.rejected)
    return plain is not None


def as_record(some: list[dict[str, Any]]) -> bytes:
    return json.dumps({"schema": 1, "updates": some}, separators=(",", ":"), ensure_ascii=False).encode()


INT_IDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 99) | st.integers().map(str)
TEXT_IDS = st.text(min_size=1, max_size=12) | st.text("ab:-", min_size=1, max_size=140)


@settings(max_examples=150, deadline=None)
@given(st.lists(updates(INT_IDS), min_size=1, max_size=4), st.lists(updates(TEXT_IDS), min_size=1, max_size=3), st.integers(1, 3))
def test_what_is_accepted_is_what_the_models_accept(numbered: list[dict[str, Any]], named: list[dict[str, Any]], shards: int) -> None:
    for some, kind in ((numbered, IdKind.INT64), (named, IdKind.TEXT), (numbered, IdKind.TEXT), (named, IdKind.INT64)):
        judge(as_record(some), kind, shards)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(updates(st.integers(0, 99)), min_size=1, max_size=2),
    st.integers(0, 400),
    st.binary(max_size=2)
    | st.sampled_from(
        [
            b'"',
            b"]",
            b"}",
            b",",
            b" ",
            b"-",
            b"0",
            b".",
            b"e5",
            b"1.50",
            b"-0",
            b"NaN",
            b"00",
            b"\\",
            b"[",
            b"{}",
            b'"a":1,',
            b"\x7f",
            b"\xff",
        ]
    ),
    st.integers(0, 3),
)
def test_no_damage_makes_a_bad_record_plain(some: list[dict[str, Any]], at: int, patch: bytes, removed: int) -> None:
    value = as_record(some)
    at %= len(value)
    judge(value[:at] + patch + value[at + removed :], IdKind.INT64)


@pytest.mark.parametrize(
    "value",
    [1, -5, 0, 10**17, 0.5, -0.0001, 12.0, 0.0, -0.0, 123456789.25, "c1", "", True, None, [], [1, "x", 0.25]],
)
def test_what_publishers_mostly_send_is_plain(value: object) -> None:
    update = ItemFeaturesUpdate(item_id=7, version=3, features={"z": value, "a": 1, "b_2": "t"})
    assert judge(encode_record(ItemFeaturesRecord(updates=[update, update])), IdKind.INT64)
    named = update.model_copy(update={"item_id": "sku-1"})
    assert judge(encode_record(ItemFeaturesRecord(updates=[named])), IdKind.TEXT)


@pytest.mark.parametrize(
    "patch",
    [b"1.50", b"1e5", b"-0", b"0.00001", b"01", b"0.1234567890123456", b'"\\u0041"', b'"\xc3\xa9"', b'1,"a":2', b"NaN", b"1.", b"nul"],
)
def test_what_is_printed_in_another_way_is_never_taken_as_it_stands(patch: bytes) -> None:
    value = b'{"schema":1,"updates":[{"op":"upsert","item_id":7,"version":3,"features":{"a":' + patch + b"}}]}"
    judge(value, IdKind.INT64)


def test_an_update_of_another_partition_or_too_many_of_them_are_left_to_the_models() -> None:
    other = next(i for i in range(100) if partition_of(i, 2) == 1)
    one = {"op": "upsert", "item_id": other, "version": 1, "features": {}}
    assert not judge(as_record([one]), IdKind.INT64, shards=2)
    assert not judge(as_record([{**one, "item_id": 1}] * 257), IdKind.INT64) and judge(
        as_record([{**one, "item_id": 1}] * 256), IdKind.INT64
    )


def test_an_update_that_only_python_reads_leaves_its_neighbours_plain() -> None:
    some = [{"op": "upsert", "item_id": i, "version": 1, "features": {"a": a}} for i, a in enumerate((0.5, 0.1 + 0.2, "é"))]
    assert judge(as_record(some), IdKind.INT64)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(updates(st.integers(0, 99)), min_size=1, max_size=3), max_size=5), st.sets(st.integers(0, 4)), st.data())
def test_records_read_together_are_judged_as_each_alone(groups: list[list[dict[str, Any]]], damaged: set[int], data: st.DataObject) -> None:
    values: list[bytes | None] = [as_record(group) for group in groups]
    for place in damaged & set(range(len(values))):
        whole = values[place] or b""
        values[place] = data.draw(st.sampled_from([None, b"", whole[:-2], whole[: len(whole) // 2], whole.replace(b"version", b"versiom")]))
    records = [SourceRecord(ITEM_FEATURES, 0, offset, b"7", value, (), 0) for offset, value in enumerate(values)]
    alone = [one for record in records for one in decode_source_records([record], IdKind.INT64, 1)]
    found = decode_source_records(records, IdKind.INT64, 1)
    assert [(one.record, list(one.updates), one.rejected) for one in found] == [
        (one.record, list(one.updates), one.rejected) for one in alone
    ]


def test_the_smallest_update_is_not_smaller_than_room_is_made_for() -> None:
    smallest = {"op": "upsert", "item_id": 1, "version": 1, "features": {}}
    value = as_record([smallest] * 256)
    plain = read_plain_records([value, value], IdKind.INT64, 0, 1)
    assert plain is not None and plain.ends_N1 == [0, 256, 512]
