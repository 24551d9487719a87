"""Stored features of many items, which are canonical JSON texts in one buffer, read as columns in one compiled pass.

Here: `FeatureTexts`, a sequence of such texts whose elements are mappings, and `read_cells`, which finds for each wanted name of each text what kind of
value stands there, its number, and its place. Not here: what a model makes of cells (item_columns.py), JSON in general.
A text must be what `encode_raw_features` writes: ASCII, names ascending, no blanks. It is plain if it also has no escape in a text, no number with
more than 19 digits before its point, and no list or object inside a list or object. A text that is not plain is `False` in `plain_R`, and the caller decodes
it with Python: slower, with the same values.

Arrays: T bytes of all texts, R texts, F wanted names in ascending order, F1 = F + 1 places at which names begin and end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infra.joined import is_same, join_stored
from schemas.model.compiled import kernel, part
from schemas.model.compiled import uint64 as U
from schemas.model.vector_blocks import address
from streams.core.item_state import decode_raw_features
from streams.stored.text_words import WORD_BYTES, divide_by_tens, order_of, read_short_number, to_double

ABSENT, WHOLE, FLOAT, TEXT, BOOLEAN, LIST = range(6)  # kinds of cells; null counts as absent

_QUOTE, _ESCAPE, _COMMA, _COLON, _OPEN, _CLOSE, _LIST, _LIST_END = (ord(c) for c in '"\\,:{}[]')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E = (ord(c) for c in "-+.09e")
_TRUE, _FALSE, _NULL = (ord(c) for c in "tfn")
_DIGITS_MAX = 19
_BAD = -1


class FeatureTexts(Sequence[Mapping[str, Any]]):
    """R texts: text r is text_T[starts_R[r] : ends_R[r]], uint8. As a sequence it gives decoded mappings, one text at a time and no slices."""

    def __init__(self, text_T: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray) -> None:
        self.text_T, self.starts_R, self.ends_R = text_T, starts_R, ends_R

    @classmethod
    def join(cls, texts: Sequence[bytes]) -> "FeatureTexts":
        """A sequence of texts that lie apart, copied into one buffer."""
        return cls(*join_stored(texts))

    def __len__(self) -> int:
        return len(self.starts_R)

    def __getitem__(self, place: Any) -> Any:
        return decode_raw_features(self.text_T[self.starts_R[place] : self.ends_R[place]].tobytes())

    def take(self, places: np.ndarray) -> "FeatureTexts":
        """The texts at some places, int64 or a bool mask [R], in the same buffer."""
        return FeatureTexts(self.text_T, self.starts_R[places], self.ends_R[places])


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of F names in R texts.

    kinds_FR     uint8: ABSENT to LIST
    numbers_FR   float64: NaN where there is no number; true is 1, false 0
    begins_FR, ends_FR   int64: where the value stands in the buffer, without its quotes or brackets
    plain_R      bool: texts of which all this is known
    """

    kinds_FR: np.ndarray
    numbers_FR: np.ndarray
    begins_FR: np.ndarray
    ends_FR: np.ndarray
    plain_R: np.ndarray


def read_cells(texts: FeatureTexts, names: Sequence[str]) -> Cells:
    """The cells of `names`, which must ascend."""
    assert list(names) == sorted(names), names
    shape, rows = (len(names), len(texts)), len(texts)
    cells = Cells(
        np.zeros(shape, np.uint8), np.full(shape, np.nan), np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(rows, np.bool_)
    )
    raw = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    wanted = np.frombuffer(b"".join(raw), np.uint8)
    _read_texts(
        texts.text_T,
        texts.starts_R,
        texts.ends_R,
        wanted,
        ends,
        cells.kinds_FR,
        cells.numbers_FR,
        cells.begins_FR,
        cells.ends_FR,
        cells.plain_R,
        np.zeros(1, np.uint64),
    )
    return cells


@part
def _find_name(text: np.ndarray, begin: int, end: int, names: np.ndarray, name_ends_F1: np.ndarray, f: int) -> tuple[int, bool]:
    """(the first wanted name from `f` on that is not below text[begin:end], whether it is that text)."""
    while f < name_ends_F1.shape[0] - 1:
        order = order_of(text, begin, end, names, name_ends_F1[f], name_ends_F1[f + 1])
        if order <= 0:
            return f, order == 0
        f += 1
    return f, False


@part
def _pass_name(text: np.ndarray, begin: int, end: int, names: np.ndarray, name_ends_F1: np.ndarray, f: int) -> int:
    """The place of the closing quote if the text at `begin` is the wanted name `f`, as it mostly is; else -1."""
    name, name_end = name_ends_F1[f], name_ends_F1[f + 1]
    at_end = begin + name_end - name
    return at_end if at_end < end and text[at_end] == _QUOTE and is_same(text, begin, at_end, names, name, name_end) else _BAD


@part
def skip_text(text: np.ndarray, at: int, end: int) -> int:
    """The place of the closing quote of the text that begins at `at`; -1 if it holds what Python must read."""
    while at < end:
        byte = text[at]
        if byte == _QUOTE:
            return at
        if byte == _ESCAPE or byte >= 0x80:
            return _BAD
        at += 1
    return _BAD


@part
def _pass_digits(text: np.ndarray, at: int, end: int) -> int:
    while at < end and _ZERO <= text[at] <= _NINE:
        at += 1
    return at


@part
def read_number(text: np.ndarray, at: int, end: int, bits_1: np.ndarray) -> tuple[int, bool]:
    """(the place after a number, whether it is whole); its fp64 bits in `bits_1`. The place is -1 if Python must read it."""
    negative = text[at] == _MINUS
    at += 1 if negative else 0
    if at + WORD_BYTES <= text.shape[0]:
        length, places, short = read_short_number(text, at)
        if length > 0 and short > 0 and at + length <= end and text[at + length] != _E:
            number = divide_by_tens(short, places)
            bits_1.view(np.float64)[0] = -number if negative else number
            return at + length, places < 0
    begin, is_whole, after = at, True, _pass_digits(text, at, end)
    if after == begin or after - begin > _DIGITS_MAX:
        return _BAD, False
    if after < end and text[after] == _POINT:
        is_whole, after = False, _pass_digits(text, after + 1, end)
    if after < end and text[after] == _E:
        is_whole, after = False, after + 1
        if after < end and (text[after] == _MINUS or text[after] == _PLUS):
            after += 1
        after = _pass_digits(text, after, end)
    number = to_double(address(text) + begin)
    if negative and not (is_whole and number == 0.0):
        number = -number
    bits_1.view(np.float64)[0] = number
    return after, is_whole


@part
def _skip_list(text: np.ndarray, at: int, end: int) -> int:
    """The place of the closing bracket of a list of plain values."""
    while at < end:
        byte = text[at]
        if byte == _LIST_END:
            return at
        if byte in (_LIST, _OPEN):
            return _BAD
        if byte == _QUOTE:
            at = skip_text(text, at + 1, end)
            if at < 0:
                return _BAD
        at += 1
    return _BAD


@part
def _read_value(text: np.ndarray, at: int, end: int, bits_1: np.ndarray) -> tuple[int, int, int, int]:
    """Kind, begin and end of the value at `at`, and the place after it (or _BAD); a number's bits go to `bits_1`, NaN otherwise."""
    byte, bits_1[0] = text[at], U(0x7FF8000000000000)
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        after, is_whole = read_number(text, at, end, bits_1)
        return WHOLE if is_whole else FLOAT, at, after, after
    if byte == _QUOTE:
        value_end = skip_text(text, at + 1, end)
        return TEXT, at + 1, value_end, value_end + 1 if value_end >= 0 else _BAD
    if byte == _LIST:
        value_end = _skip_list(text, at + 1, end)
        return LIST, at + 1, value_end, value_end + 1 if value_end >= 0 else _BAD
    if byte in (_TRUE, _FALSE):
        bits_1.view(np.float64)[0] = 1.0 if byte == _TRUE else 0.0
        after = at + (4 if byte == _TRUE else 5)
        return BOOLEAN, at, after, after
    if byte == _NULL:
        return ABSENT, at, at + 4, at + 4
    return ABSENT, at, _BAD, _BAD


@kernel
def _read_texts(
    text: np.ndarray,
    starts_R: np.ndarray,
    ends_R: np.ndarray,
    names: np.ndarray,
    name_ends_F1: np.ndarray,
    kinds_FR: np.ndarray,
    numbers_FR: np.ndarray,
    begins_FR: np.ndarray,
    ends_FR: np.ndarray,
    plain_R: np.ndarray,
    bits_1: np.ndarray,
) -> None:
    count = name_ends_F1.shape[0] - 1
    number_1 = bits_1.view(np.float64)
    for r in range(starts_R.shape[0]):
        at, end, f = starts_R[r] + 1, ends_R[r] - 1, 0
        if end < at or text[at - 1] != _OPEN or text[end] != _CLOSE:
            continue
        good = True
        while at < end:
            good = text[at] == _QUOTE
            if not good:
                break
            name = at + 1
            at = _pass_name(text, name, end, names, name_ends_F1, f) if f < count else _BAD
            wanted = at >= 0
            if not wanted:
                at = skip_text(text, name, end)
            good = 0 <= at < end - 1 and text[at + 1] == _COLON
            if not good:
                break
            if not wanted:
                f, wanted = _find_name(text, name, at, names, name_ends_F1, f)
            at += 2
            kind, begin, value_end, at = _read_value(text, at, end, bits_1)
            good = 0 <= at <= end and (at == end or text[at] == _COMMA)
            if not good:
                break
            if wanted:
                kinds_FR[f, r], numbers_FR[f, r], begins_FR[f, r], ends_FR[f, r] = kind, number_1[0], begin, value_end
                f += 1
            at += 1
        plain_R[r] = good
