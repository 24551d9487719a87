"""Nesting, number of values and repeated keys of a JSON text, found without parsing it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.limits import BODY_BYTES_MAX, CANDIDATES_MAX, JSON_VALUES_MAX
from serving.core.json_bounds import check_json, check_keys, count_keys, json_size

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{},\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"\\[]{},', max_size=5), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def separators_of(value: object) -> int:
    """Opening brackets and commas."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(separators_of, inner))


@given(JSON, st.booleans())
def test_depth_and_values_are_those_of_the_parsed_value_whatever_stands_in_strings(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json_size(text, 0, 0) == (depth_of(value), separators_of(value)) or depth_of(value) == 0


@given(JSON, st.integers(0, 20), st.integers(0, 20))
def test_a_text_is_called_too_deep_or_too_large_exactly_when_it_is(value: object, depth_max: int, values_max: int) -> None:
    depth, values = json_size(json.dumps(value, separators=(",", ":")).encode(), depth_max, values_max)
    assert (depth > depth_max, values > values_max) == (depth_of(value) > depth_max, separators_of(value) > values_max)


KEYS = st.text(alphabet='a"\\:{,', max_size=2)
TWICE = st.recursive(
    st.just("1") | KEYS.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(KEYS, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{json.dumps(key)} :{one}" for key, one in pairs) + "}"
        )
    ),
    max_leaves=12,
)


@given(TWICE)
def test_a_key_twice_in_one_object_is_found_wherever_it_stands(text: str) -> None:
    twice = False

    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal twice
        twice = twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    json.loads(text, object_pairs_hook=build)
    if twice:
        with pytest.raises(RejectedInput, match="duplicate_key"):
            check_keys(text.encode(), count_keys(json.loads(text)))
    else:
        check_keys(text.encode(), count_keys(json.loads(text)))


@given(st.binary(max_size=60))
def test_any_bytes_have_a_size(text: bytes) -> None:
    depth, values = json_size(text, 0, 0)
    assert 0 <= depth <= len(text) and 0 <= values <= len(text)


def test_the_most_candidates_pass_also_as_texts_full_of_commas_and_more_values_do_not() -> None:
    ids = ['a,[\\",{' for _ in range(CANDIDATES_MAX)]
    check_json(json.dumps({"user_id": "u", "item_ids": ids}).encode())
    for many in (b"[" + b"1," * JSON_VALUES_MAX + b"1]", b"[" + b"[]," * JSON_VALUES_MAX + b"1]", b"[1," * (BODY_BYTES_MAX // 3)):
        with pytest.raises(RejectedInput) as refused:
            check_json(many)
        assert refused.value.code in ("json_too_large", "json_too_deep")
