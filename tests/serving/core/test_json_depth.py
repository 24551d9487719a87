"""Nesting of a JSON text, found without parsing it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from serving.core.json_depth import json_depth

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{}\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"\\[]{}', max_size=5), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.booleans())
def test_the_depth_is_that_of_the_parsed_value_whatever_stands_in_strings(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json_depth(text, enough=0) == depth_of(value)


@given(JSON, st.integers(0, 20))
def test_a_text_is_called_too_deep_exactly_when_it_is(value: object, allowed: int) -> None:
    text = json.dumps(value).encode()
    assert (json_depth(text, allowed) > allowed) == (depth_of(value) > allowed)


@given(st.binary(max_size=60))
def test_any_bytes_have_a_depth(text: bytes) -> None:
    assert 0 <= json_depth(text, 0) <= len(text)
