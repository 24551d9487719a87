"""Dead letters: the record untouched, the reason beside it, the identity readable again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka.dead_letters import (
    INDEX_HEADER,
    TRUNCATED_HEADER,
    dead_letter_topic,
    decode_dead_letter,
    encode_dead_letter,
    is_truncated,
    truncate_oversized,
)
from infra.kafka.reader import SourceRecord
from infra.kafka.redrive import DeadLetter, Filter, plan_redrive
from schemas.decoding import Rejection
from schemas.errors import Corrupted
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import TOPICS

HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=4).map(tuple)


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS, st.text(max_size=50), st.integers(0, 255))
def test_key_value_and_headers_are_kept_byte_for_byte_and_the_source_is_readable(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], reason: str, index: int
) -> None:
    record = SourceRecord("item-features", 3, 42, key, value, headers, 1_700_000_000_000)
    rejection = Rejection(index, "bad_update", reason, "schema")
    dead_key, dead_value, dead_headers = encode_dead_letter(record, rejection)
    assert (dead_key, dead_value, tuple(dead_headers[: len(headers)])) == (key, value, headers)
    source = decode_dead_letter(dead_headers)
    assert (source.topic, source.partition, source.offset, source.index) == ("item-features", 3, 42, index)
    assert (source.code, source.disposition) == ("bad_update", "schema")
    assert encode_dead_letter(record, rejection) == (dead_key, dead_value, dead_headers)


@pytest.mark.parametrize("headers", [(), (("name", b"x" * (1 << 20)),)])
def test_an_oversized_record_is_truncated_and_keeps_its_source_and_the_size_of_its_value(headers: tuple[tuple[str, bytes], ...]) -> None:
    value = b"v" * (10 << 20)
    record = SourceRecord("item-features", 3, 42, b"k" * 100_000, value, headers, 1_700_000_000_000)
    key, kept, found = encode_dead_letter(record, Rejection(0, "record_too_large", "why", "malformed"))
    assert key == b"k" * 1024 and kept is not None and value.startswith(kept) and 1024 <= len(kept) <= 64 * 1024
    assert dict(found)[TRUNCATED_HEADER] == b"%d" % len(value) and is_truncated(found)
    assert decode_dead_letter(found).offset == 42 and "name" not in dict(found)
    again = truncate_oversized(record)
    assert truncate_oversized(again) == again, "a server stores it so, and sends it so"
    whole = SourceRecord("item-features", 3, 42, b"", b"v" * RECORD_BYTES_MAX)
    assert encode_dead_letter(whole, Rejection(0, "x", "y", "malformed"))[1] == whole.value
    letter = DeadLetter(decode_dead_letter(found), SourceRecord("dlq.item-features", 0, 0, key, kept, tuple(found)))
    assert plan_redrive([letter], "item-features", Filter(), set(), 10) == []


def test_the_headers_have_the_names_that_consoles_show() -> None:
    _, _, headers = encode_dead_letter(SourceRecord("new-items", 0, 1, b"k", b"v"), Rejection(0, "not_json", "why", "malformed"))
    assert [name for name, _ in headers] == [
        "__connect.errors.topic",
        "__connect.errors.partition",
        "__connect.errors.offset",
        "__connect.errors.stage",
        "__connect.errors.exception.class.name",
        "__connect.errors.exception.message",
        "disposition",
        "attempt",
        "first_seen",
        "code_version",
        INDEX_HEADER,
    ]


def test_a_dead_letter_of_a_dead_letter_has_the_newest_source() -> None:
    once = encode_dead_letter(SourceRecord("new-items", 0, 1, b"k", b"v"), Rejection(0, "not_json", "why", "malformed"))
    again = SourceRecord("dlq.new-items", 0, 9, once[0], once[1], tuple(once[2]))
    assert decode_dead_letter(encode_dead_letter(again, Rejection(4, "x", "y", "poison"))[2]).offset == 9


def test_headers_of_another_system_are_no_dead_letter() -> None:
    with pytest.raises(Corrupted, match="bad_dead_letter"):
        decode_dead_letter([("aif.index", b"0")])


def test_every_dead_letter_topic_is_in_the_table() -> None:
    names = {t.name for t in TOPICS}
    assert {dead_letter_topic(t) for t in ("item-features", "new-items", "model-checkpoints")} <= names
