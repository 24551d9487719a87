"""The fast reader of records accepts nothing that the pydantic models refuse, and reads the same values."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.decoding import decode_record
from schemas.errors import RejectedInput
from schemas.events import ItemFeaturesRecord, NewItemsRecord
from schemas.limits import FEATURE_TEXT_BYTES_MAX, FEATURES_PER_SCHEMA_MAX, RECORD_BYTES_MAX, TEXT_ID_BYTES_MAX, UPDATES_PER_RECORD_MAX
from streams.shard.decode import read_item_features, read_new_items

# Values as text, so that what JSON's own writers never write is among them.
ODD = [
    "1", "-0", "0", "-0.0", "1.0", "1e2", "1E400", "-1e400", "1e-400", "NaN", "Infinity", "01", "+1", ".5", "1.", "0x1", "1_0",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
    "0.1", "5e-324", "179769313486231580793e289", "true", "false", "null", "nul", '""', '"a"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\n"', '"\\x"',
    "[]", "[1,2.5,\"a\"]", "[true]", "[null]", "[[1]]", "{}", '{"a":1}', "[1,]", "[" * 300 + "]" * 300, '"' + "x" * (FEATURE_TEXT_BYTES_MAX + 1) + '"',
    '"' + "é" * FEATURE_TEXT_BYTES_MAX + '"', "[" + ",".join(["1"] * 1025) + "]",
]  # fmt: skip
odd = st.sampled_from(ODD)
plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4)).map(json.dumps)
value = odd | plain | st.lists(plain, max_size=3).map(lambda values: "[" + ",".join(values) + "]")
name = st.sampled_from(['"price"', '"_a1"', '"1a"', '"a b"', '""', '"price\\n"', '"é"', '"' + "n" * 200 + '"', "price"]) | st.text(
    max_size=3
).map(json.dumps)
features = st.lists(st.tuples(name, value), max_size=4).map(lambda pairs: "{" + ",".join(f"{n}:{v}" for n, v in pairs) + "}")
FIELDS = {
    "item_id": st.sampled_from(["1", '"a"', "-7", '"' + "x" * (TEXT_ID_BYTES_MAX + 1) + '"', '""']) | value,
    "version": st.sampled_from(["0", "3", "-1", "9007199254740993"]) | value,
    "op": st.sampled_from(['"upsert"', '"delete"', '"other"']) | value,
    "features": features | value,
    "embedding": st.sampled_from(["[1, 2.5]", "[]", "[1e400]", "[true]"]) | value,
    "other": value,
}


def update(wanted: list[str]) -> st.SearchStrategy[str]:
    """An update with these fields; now and then another one, one twice, or one fewer."""
    names = st.lists(st.sampled_from([*FIELDS]), max_size=1).map(lambda more: wanted + more) | st.just(wanted[:-1]) | st.just(wanted)
    return names.flatmap(lambda some: st.tuples(*(FIELDS[n].map(lambda v, n=n: f'"{n}":{v}') for n in some))).map(
        lambda f: "{" + ",".join(f) + "}"
    )


def record(of: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    updates = st.lists(of, max_size=3).map(lambda u: '"updates":[' + ",".join(u) + "]")
    schema = st.sampled_from(["", '"schema":1,', '"schema":1.0,', '"schema":true,', '"schema":2,', '"x":1,', '"schema":2,"schema":1,'])
    whole = st.tuples(schema, updates).map(lambda pair: "{" + "".join(pair) + "}")
    return whole.map(str.encode) | st.tuples(whole, st.integers(0, 400), st.binary(max_size=2)).map(lambda t: _damaged(*t))


def _damaged(text: str, at: int, by: bytes) -> bytes:
    raw = text.encode()
    return raw[: at % (len(raw) + 1)] + by + raw[at % (len(raw) + 1) + len(by) :]


def exact(value: Any) -> Any:
    """A value with its types and the sign of zero."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    return type(value), value, math.copysign(1, value) if isinstance(value, float) else 0


def judged(record_type: type[Any], raw: bytes) -> list[Any] | None:
    """What the models read."""
    try:
        return list(decode_record(record_type, raw).updates)
    except RejectedInput:
        return None


@given(record(update(["item_id", "version", "features"])))
@example(b'{"updates":[{"item_id":1,"item_id":2,"version":3,"version":4,"features":{"a":1,"a":2}}]}')
@example(b'\xef\xbb\xbf{"updates":[{"item_id":1,"version":3}]}')
@example(b'{"updates":[{"item_id":"\xff","version":3}]}')
@example(b'{"updates":[{"item_id":1,"version":3,"features":{"a":-0}}]}')
def test_a_record_of_item_features_that_is_read_is_what_the_models_read(raw: bytes) -> None:
    read, models = read_item_features(raw), judged(ItemFeaturesRecord, raw)
    if read is not None:
        assert models is not None, f"the models refuse {raw!r}"
        assert [exact([u.item_id, u.version, u.op, u.features]) for u in read] == [
            exact([u.item_id, u.version, u.op, u.features]) for u in models
        ]


@given(record(update(["item_id", "embedding"])))
def test_a_record_of_new_items_that_is_read_is_what_the_models_read(raw: bytes) -> None:
    read, models = read_new_items(raw), judged(NewItemsRecord, raw)
    if read is not None:
        assert models is not None, f"the models refuse {raw!r}"
        assert [exact([u.item_id, u.embedding]) for u in read] == [exact([u.item_id, u.embedding]) for u in models]


@pytest.mark.parametrize("value", ODD)
def test_an_odd_value_is_read_as_the_models_read_it_or_left_to_them(value: str) -> None:
    raw = f'{{"updates":[{{"item_id":1,"version":3,"features":{{"a":{value}}}}}]}}'.encode()
    read, models = read_item_features(raw), judged(ItemFeaturesRecord, raw)
    assert read is None or (models is not None and exact(read[0].features) == exact(models[0].features))


def test_what_publishers_write_is_read() -> None:
    features = {"price": 1.5, "brand": "x", "tags": ["a", 2, 0.5], "stock": True, "gone": None}
    raw = json.dumps({"schema": 1, "updates": [{"op": "upsert", "item_id": 7, "version": 3, "features": features}] * 256}).encode()
    read = read_item_features(raw)
    assert read is not None and len(read) == 256 and exact(read[0].features) == exact(features)
    assert read_new_items(b'{"updates":[{"item_id":"a","embedding":[1,2.5]}]}') is not None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"updates":[' + b",".join([b'{"item_id":1,"version":1}'] * (UPDATES_PER_RECORD_MAX + 1)) + b"]}",
        b'{"updates":[{"item_id":1,"version":1,"features":{'
        + b",".join(b'"a%d":1' % i for i in range(FEATURES_PER_SCHEMA_MAX + 1))
        + b"}}]}",
        b'{"updates":[{"item_id":1,"version":1}]}' + b" " * RECORD_BYTES_MAX,
        b"",
    ],
)
def test_what_is_too_large_is_left_to_the_models(raw: bytes) -> None:
    assert read_item_features(raw) is None and read_new_items(raw) is None


def test_names_that_are_known_are_bounded() -> None:
    for n in range(0, 10_000, 100):
        named = ",".join(f'"n{n + i}":1' for i in range(100))
        assert read_item_features(f'{{"updates":[{{"item_id":1,"version":1,"features":{{{named}}}}}]}}'.encode()) is not None
    assert read_item_features(b'{"updates":[{"item_id":1,"version":1,"features":{"n 1":1}}]}') is None
