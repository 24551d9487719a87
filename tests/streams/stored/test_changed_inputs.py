"""Which inputs differ, asked of stored texts, against the dependency table, which asks decoded features."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.core.item_state import encode_raw_features
from streams.core.stale import Dependencies, Stale
from streams.stored.changed_inputs import compare_inputs
from streams.stored.feature_texts import FeatureTexts

NAMES = ["a", "ab", "b", "z_1"]
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 1e30, 0.1 + 0.2, 10**25])
texts = st.sampled_from(["", ",", 'q"uote', 'x","a":1', "\\", "\\\\", "é", "[1,2]", "null", "{"])
plain = scalars | texts | st.lists(scalars | texts, max_size=3)
features = st.dictionaries(st.sampled_from([*NAMES, "c"]), plain, max_size=5)


def differ(before: bytes, after: bytes, names: list[str]) -> bool | None:
    """None: it is not known."""
    changed_P, known_P = compare_inputs(FeatureTexts.join([before]), FeatureTexts.join([after]), names)
    return bool(changed_P[0]) if known_P[0] else None


@settings(max_examples=300, deadline=None)
@given(
    features,
    st.dictionaries(st.sampled_from([*NAMES, "c"]), plain, max_size=2),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
)
@example({"a": None}, {}, {"a"}, {"a"})
@example({"a": 1, "b": 2}, {"c": 3}, set(), {"c"})
def test_inputs_differ_where_the_table_says_so(before: dict[str, Any], other: dict[str, Any], gone: set[str], wanted: set[str]) -> None:
    after = {name: value for name, value in {**before, **other}.items() if name not in gone}
    a, b = encode_raw_features(before), encode_raw_features(after)
    assert differ(a, b, sorted(wanted)) is bool(a != b and Dependencies(tuple(wanted), Stale.ROW).by_features(before, after) & Stale.VECTOR)


def test_what_holds_other_values_is_left_to_python() -> None:
    whole = b'{"a":{"b":1}}'
    for pair in (
        (b'{"a":1}', whole),
        (whole, b'{"a":1}'),
        (b'{"a":1}', b'{"a":[[1]]}'),
        (b"", b'{"a":1}'),
        (b'{"a":"x}', b'{"a":1}'),
        (b'{"a}', b"{}"),
    ):
        assert differ(*pair, ["a"]) is None
    assert differ(b'{"a":[1,"]",2],"c":1}', b'{"a":[1,"]",2],"c":2}', ["a"]) is False
