"""Eight characters at a time: the same names and numbers as character by character."""

import json
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.stored.feature_texts import FLOAT, WHOLE, FeatureTexts, read_cells

_AFTER = b'{"z":"something to read beyond the end"}'


def cells_of(text: bytes, names: list[str], after: bytes):
    """Of one text; what follows it in the buffer is not of it."""
    buffer = np.frombuffer(text + after, np.uint8)
    return read_cells(FeatureTexts(buffer, np.zeros(1, np.int64), np.array([len(text)])), names)


numbers = st.one_of(
    st.integers(-(10**10), 10**10).map(str),
    st.tuples(st.integers(-9999, 9999), st.integers(0, 10**7), st.integers(1, 7)).map(lambda n: f"{n[0]}.{n[1]:0{n[2]}d}"),
    st.floats(-1e4, 1e4).map(lambda x: repr(round(x, 3))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "0", "-0.0", "0.000", "-0.001", "1e3", "12e-4", "9999999", "99999999", "1.5e5", "0.5"]),
)


@given(st.lists(numbers, min_size=1, max_size=4), st.sampled_from([b"", b"}", _AFTER]))
@settings(max_examples=200, deadline=None)
def test_numbers_of_every_length_are_those_of_python(printed: list[str], after: bytes) -> None:
    names = [f"n{i}" for i in range(len(printed))]
    text = "{" + ",".join(f'"{name}":{number}' for name, number in zip(names, printed, strict=True)) + "}"
    cells = cells_of(text.encode(), names, after)
    if not cells.plain_R[0]:
        assert any(len(number) > 19 for number in printed)
        return
    for f, (name, number) in enumerate(zip(names, printed, strict=True)):
        known = json.loads(text)[name]
        assert struct.pack("d", cells.numbers_FR[f, 0]) == struct.pack("d", float(known)), number
        assert cells.kinds_FR[f, 0] == (WHOLE if isinstance(known, int) else FLOAT)
        assert text[cells.begins_FR[f, 0] : cells.ends_FR[f, 0]] == number


names = st.lists(st.text("ab_", min_size=1, max_size=20), min_size=1, max_size=6, unique=True).map(sorted)


@given(names, names, st.sampled_from([b"", _AFTER]))
@settings(max_examples=200, deadline=None)
def test_names_are_found_whatever_they_share(written: list[str], wanted: list[str], after: bytes) -> None:
    text = json.dumps({name: at for at, name in enumerate(written)}, separators=(",", ":")).encode()
    cells = cells_of(text, wanted, after)
    assert cells.plain_R[0]
    found = [None if np.isnan(number) else int(number) for number in cells.numbers_FR[:, 0]]
    assert found == [written.index(name) if name in written else None for name in wanted]
