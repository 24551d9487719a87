"""Events: each update of a record judged alone, every rejection with its reason, and no bytes that raise anything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from schemas.decoding import Decoded, decode_record, decode_updates
from schemas.errors import RejectedInput
from schemas.events import (
    RECORDS,
    Behaviour,
    BehavioursRecord,
    CheckpointRecord,
    ItemFeaturesRecord,
    ItemFeaturesUpdate,
    NewItem,
    NewItemsRecord,
    Record,
    ServerReport,
    encode_record,
    join_updates,
)
from schemas.ids import IdKind, partition_of
from schemas.limits import RECORD_BYTES_MAX

PARTITIONS = 4


def decode(value: bytes | None, partition: int | None = None) -> Decoded[ItemFeaturesUpdate]:
    at = partition_of(5, PARTITIONS) if partition is None else partition
    return decode_updates(ItemFeaturesRecord, ItemFeaturesUpdate, value, IdKind.INT64, at, PARTITIONS, lambda u: u.item_id)


def record(*updates: object) -> bytes:
    return json.dumps({"schema": 1, "updates": updates}).encode()


GOOD = {"item_id": 5, "version": 1, "features": {"price": 2.5, "tags": ["a", 3]}}


def test_a_report_of_the_least_and_the_most_that_there_is_survives_its_encoding() -> None:
    counts = {"at_ms": 0, "version": 0, "seconds": 1, "answers": 0}
    report = ServerReport(server_id="s", version_token="0.0-a", probability_p05=0.0, probability_p95=1.0, **counts)
    assert decode_record(ServerReport, encode_record(report)) == report


def test_a_good_record_survives_its_encoding() -> None:
    decoded = decode(record(GOOD, {**GOOD, "op": "delete", "version": 2}))
    assert [(i, u.op, u.version) for i, u in decoded.accepted] == [(0, "upsert", 1), (1, "delete", 2)] and not decoded.rejected
    again = ItemFeaturesRecord(updates=[u for _, u in decoded.accepted])
    assert decode(encode_record(again)) == decoded


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"item_id": 1.5, "version": 1}, "updates.0.item_id"),
        ({"item_id": "", "version": 1}, "updates.0.item_id"),
        ({"item_id": 5, "version": 1, "features": {"price": {"a": 1}}}, "updates.0.features.price"),
        ({"item_id": 5, "version": 1, "features": {"tags": ["a", [1]]}}, "updates.0.features.tags"),
    ],
)
def test_what_fits_no_type_of_a_union_is_one_fault_in_our_words_at_the_senders_own_names(bad: object, place: str) -> None:
    with pytest.raises(RejectedInput) as caught:
        decode_record(ItemFeaturesRecord, record(bad))
    assert caught.value.message.startswith(f"{place}: expected ") and ";" not in caught.value.message


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"item_id": 5, "version": -1}, "version"),
        ({"item_id": 5, "version": 1, "colour": 3}, "colour"),
        ({"item_id": 5, "version": "1"}, "version"),
        ({"item_id": 5, "version": 1, "features": {"price": float("nan")}}, "price"),
        ({"item_id": 5, "version": 1, "features": {"price": float("inf")}}, "price"),
        ({"item_id": 5, "version": 1, "features": {"9x": 1}}, "9x"),
        ({"item_id": 5, "version": 1, "features": {"x": "y" * 1025}}, "x"),
        ({"version": 1}, "item_id"),
        ("nonsense", "nonsense"),
    ],
)
def test_one_bad_update_is_rejected_with_a_reason_and_its_neighbours_are_not(bad: object, word: str) -> None:
    whole = record(GOOD, bad, {**GOOD, "version": 2})
    for value in (whole, whole.replace(b'"schema": 1, ', b"")):  # a record may leave the number of its schema out
        decoded = decode(value)
        assert [i for i, _ in decoded.accepted] == [0, 2]
        assert [(r.index, r.disposition) for r in decoded.rejected] == [(1, "schema")] and word in decoded.rejected[0].reason


def test_an_update_in_the_wrong_partition_is_semantic() -> None:
    wrong = (partition_of(5, PARTITIONS) + 1) % PARTITIONS
    decoded = decode(record(GOOD), wrong)
    assert not decoded.accepted and decoded.rejected[0].code == "wrong_partition" and decoded.rejected[0].disposition == "semantic"


@pytest.mark.parametrize(
    ("value", "disposition"),
    [
        (None, "malformed"),
        (b"", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"{", "malformed"),
        (b"[1]", "schema"),
        (b"null", "schema"),
        (record(), "schema"),
        (record(*[GOOD] * 257), "schema"),
        (b'{"schema":2,"updates":[]}', "schema"),
        (b" " * (RECORD_BYTES_MAX + 1), "malformed"),
        (b"[" * 100_000, "malformed"),
    ],
)
def test_an_unreadable_record_is_one_rejection(value: bytes | None, disposition: str) -> None:
    decoded = decode(value)
    assert not decoded.accepted and [(r.index, r.disposition) for r in decoded.rejected] == [(0, disposition)]


def test_an_update_that_was_sent_without_its_record_is_told_what_a_record_is() -> None:
    bare = b'{"op": "upsert", "item_id": 42, "version": 7, "features": {}}'
    (refused,) = decode(bare).rejected
    assert (refused.code, refused.disposition) == ("bad_record", "schema") and '{"updates": [...]}' in refused.reason


def test_a_missing_field_is_named_without_all_that_is_around_it() -> None:
    (refused,) = decode(b'{"updates": [{"item_id": 42, "features": {"a": "' + b"x" * 500 + b'"}}]}').rejected
    assert refused.reason == "version: Field required"


def test_a_record_of_wrong_values_only_costs_no_more_errors_than_a_reason_needs() -> None:
    """Before lists ended at their first fault, 4 MB like this were 7.7 million errors: gigabytes, and 80 s without a heartbeat."""
    bag = "[" + ",".join(["{}"] * 1_000) + "]"
    update = '{"item_id": 1, "version": 1, "features": {"a": ' + bag + ', "b": ' + bag + "}}"
    value = ('{"schema": 1, "updates": [' + ",".join([update] * 16) + "]}").encode()
    with pytest.raises(ValidationError) as refused:
        ItemFeaturesRecord.model_validate_json(value)
    assert refused.value.error_count() < 50
    unknown = ",".join(f'"x{n}": 1' for n in range(10_000))
    with pytest.raises(RejectedInput, match="10002 faults, too many"):
        decode_record(ItemFeaturesRecord, ('{"schema": 1, "updates": [{' + unknown + "}]}").encode())


@given(st.data())
def test_a_mutated_record_never_raises_anything_and_loses_no_update(data: st.DataObject) -> None:
    raw = bytearray(record(GOOD, GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decoded = decode(bytes(raw))
    assert len(decoded.accepted) + len(decoded.rejected) in (1, 2)


@given(st.binary(max_size=200), st.sampled_from(sorted(RECORDS)))
def test_random_bytes_are_refused_and_nothing_else(raw: bytes, topic: str) -> None:
    with pytest.raises(RejectedInput):
        decode_record(RECORDS[topic], raw)


def test_ids_of_behaviours_come_back_in_the_catalogues_kind() -> None:
    value = b'{"schema":1,"updates":[{"user_id":"9007199254740993","item_id":"7","time_ms":1}]}'
    at = partition_of(9007199254740993, PARTITIONS)
    decoded = decode_updates(BehavioursRecord, Behaviour, value, IdKind.INT64, at, PARTITIONS, lambda u: u.user_id)
    assert [(u.user_id, u.item_id) for _, u in decoded.accepted] == [(9007199254740993, 7)]


@pytest.mark.parametrize("field", ["sha256", "feature_schema", "size_bytes", "uri", "model_id"])
def test_a_checkpoint_record_needs_every_field(field: str) -> None:
    good = {"uri": "file:///m", "size_bytes": 1, "sha256": "a" * 64, "model_id": "m", "feature_schema": "b" * 16}
    assert decode_record(CheckpointRecord, json.dumps(good).encode()).model_id == "m"
    with pytest.raises(RejectedInput, match=field):
        decode_record(CheckpointRecord, json.dumps({k: v for k, v in good.items() if k != field}).encode())


def test_updates_that_are_encoded_one_by_one_make_the_bytes_of_their_record() -> None:
    some: list[tuple[type[Record], list[BaseModel]]] = [
        (
            ItemFeaturesRecord,
            [
                ItemFeaturesUpdate(item_id=1, version=2, features={"a": 1.5, "tags": ["é", 2]}),
                ItemFeaturesUpdate(item_id="b", version=0, op="delete"),
            ],
        ),
        (NewItemsRecord, [NewItem(item_id=2**60, embedding=[0.1, -2.0])]),
        (BehavioursRecord, [Behaviour(user_id="u", item_id=3, kind="buy", time_ms=5)]),
    ]
    for record_type, updates in some:
        assert join_updates(map(encode_record, updates)) == encode_record(record_type(updates=updates))
