"""Which changes of features touch the inputs of a model, for many changes at once: what core/stale.py decides for one, decided on stored texts.

Here: `compare_inputs`. Not here: what a change makes stale (core/stale.py), which also decides
for texts that are not plain (feature_texts.py says what plain is).
Two canonical texts differ exactly where a value is printed differently, and the names of both ascend. So both are walked in step, and only entries whose
bytes differ are looked at. The part that both begin with, up to the last name in it, and the part that both end with are passed over.
Invariant: a change that is known here has the answer of `Dependencies.by_features`.

Arrays: P pairs of texts, F names, F1 = F + 1 places at which names begin and end.
"""

from collections.abc import Sequence

import numpy as np

from infra.joined import is_same
from schemas.model.compiled import kernel, part
from schemas.model.vector_blocks import address, load_word
from streams.stored.feature_texts import FeatureTexts
from streams.stored.text_words import WORD_BYTES, end_of_name, order_of

_QUOTE, _ESCAPE, _COMMA, _COLON, _OPEN, _LIST, _LIST_END, _NULL = (ord(c) for c in '"\\,:{[]n')
_BAD = -1


def compare_inputs(before: FeatureTexts, after: FeatureTexts, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(changed_P, known_P), both bool [P]: whether a value of one of `names` is printed differently, and whether that is known, because both texts are plain.
    `before` and `after` have P texts each."""
    raw = [name.encode() for name in names]
    name_ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    changed_P, known_P = np.zeros(len(before), np.bool_), np.zeros(len(before), np.bool_)
    texts_a, texts_b = (before.text_T, before.starts_R, before.ends_R), (after.text_T, after.starts_R, after.ends_R)
    _compare(*texts_a, *texts_b, np.frombuffer(b"".join(raw), np.uint8), name_ends, changed_P, known_P)
    return changed_P, known_P


@part
def _end_of_text(text: np.ndarray, at: int, end: int) -> int:
    """The place of the closing quote of a text that begins at `at`; `end` or beyond if there is none."""
    while at < end and text[at] != _QUOTE:
        at += 2 if text[at] == _ESCAPE else 1
    return at


@part
def _end_of_value(text: np.ndarray, at: int, end: int) -> int:
    """The place after a value; -1 for what holds other values than plain ones."""
    if text[at] == _QUOTE:
        return _end_of_text(text, at + 1, end) + 1
    if text[at] == _LIST:
        at += 1
        while at < end and text[at] != _LIST_END:
            if text[at] == _QUOTE:
                at = _end_of_text(text, at + 1, end)
            elif text[at] == _LIST or text[at] == _OPEN:
                return _BAD
            at += 1
        return at + 1
    if text[at] == _OPEN:
        return _BAD
    while at < end and text[at] != _COMMA:
        at += 1
    return at


@part
def _end_of_entry(text: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """(the place of the name's closing quote, the place after the value) of the entry at `at`; the second is -1 if the entry is not plain."""
    if text[at] != _QUOTE:
        return _BAD, _BAD
    name_end = _end_of_text(text, at + 1, end)
    if name_end + 2 >= end or text[name_end + 1] != _COLON:
        return _BAD, _BAD
    value_end = _end_of_value(text, name_end + 2, end)
    return name_end, value_end if value_end <= end and (value_end == end or text[value_end] == _COMMA) else _BAD


@part
def _is_wanted(text: np.ndarray, begin: int, end: int, names: np.ndarray, name_ends_F1: np.ndarray) -> bool:
    f, count = 0, name_ends_F1.shape[0] - 1
    while f < count and order_of(text, begin, end, names, name_ends_F1[f], name_ends_F1[f + 1]) != 0:
        f += 1
    return f < count


@part
def _tells(text: np.ndarray, at: int, name_end: int, value_end: int, names: np.ndarray, name_ends_F1: np.ndarray) -> bool:
    """Whether an entry that the other text lacks tells something of a wanted name: null counts as absent."""
    is_null = value_end - name_end == 6 and text[name_end + 2] == _NULL
    return not is_null and _is_wanted(text, at + 1, name_end, names, name_ends_F1)


@part
def _is_same_entry(a: np.ndarray, at_a: int, end_a: int, b: np.ndarray, at_b: int, end: int) -> bool:
    size = end_a - at_a
    if at_b + size > end or (at_b + size < end and b[at_b + size] != _COMMA):
        return False
    return is_same(a, at_a, end_a, b, at_b, at_b + size)


@part
def _pass_alike(a: np.ndarray, at_a: int, end_a: int, b: np.ndarray, at_b: int, end_b: int) -> int:
    """How many bytes both begin with, up to an entry. A comma, a name in quotes and a colon can only be between entries: in a text the quotes would end
    it or be escaped, and in a list no colon follows."""
    size, same, is_one = min(end_a - at_a, end_b - at_b), 0, True
    while is_one and same + WORD_BYTES <= size:
        is_one = load_word(address(a) + at_a + same) == load_word(address(b) + at_b + same)
        same += WORD_BYTES if is_one else 0
    back = at_a + same - 1
    while back > at_a:
        if a[back] == _COMMA and a[back + 1] == _QUOTE:
            name_end = end_of_name(a, back + 2, end_a)
            if name_end > back + 2 and name_end + 1 < end_a and a[name_end] == _QUOTE and a[name_end + 1] == _COLON:
                return back + 1 - at_a
        back -= 1
    return 0


@part
def _compare_texts(
    a: np.ndarray, at_a: int, end_a: int, b: np.ndarray, at_b: int, end_b: int, names: np.ndarray, name_ends_F1: np.ndarray
) -> tuple[bool, bool]:
    """(whether a wanted value differs, whether that is known) of the entries from at_a to end_a and from at_b to end_b, in step: names ascend."""
    alike = _pass_alike(a, at_a, end_a, b, at_b, end_b)
    at_a, at_b = at_a + alike, at_b + alike
    while at_a < end_a or at_b < end_b:
        if is_same(a, at_a, end_a, b, at_b, end_b):
            break
        name_a, value_a, name_b, value_b, order = 0, 0, 0, 0, 0
        if at_a < end_a:
            name_a, value_a = _end_of_entry(a, at_a, end_a)
            if value_a < 0:
                return False, False
            if at_b < end_b and _is_same_entry(a, at_a, value_a, b, at_b, end_b):
                at_b, at_a = at_b + value_a - at_a + 1, value_a + 1
                continue
        if at_b < end_b:
            name_b, value_b = _end_of_entry(b, at_b, end_b)
            if value_b < 0:
                return False, False
        if at_a >= end_a or at_b >= end_b:
            order = 1 if at_a >= end_a else -1
        else:
            order = order_of(a, at_a + 1, name_a, b, at_b + 1, name_b)
        if order == 0 and _is_wanted(a, at_a + 1, name_a, names, name_ends_F1):
            return True, True
        if order < 0 and _tells(a, at_a, name_a, value_a, names, name_ends_F1):
            return True, True
        if order > 0 and _tells(b, at_b, name_b, value_b, names, name_ends_F1):
            return True, True
        at_a = value_a + 1 if order <= 0 else at_a
        at_b = value_b + 1 if order >= 0 else at_b
    return False, True


@kernel
def _compare(
    text_a: np.ndarray,
    starts_a: np.ndarray,
    ends_a: np.ndarray,
    text_b: np.ndarray,
    starts_b: np.ndarray,
    ends_b: np.ndarray,
    names: np.ndarray,
    name_ends_F1: np.ndarray,
    changed_P: np.ndarray,
    known_P: np.ndarray,
) -> None:
    for p in range(changed_P.shape[0]):
        at_a, end_a, at_b, end_b = starts_a[p] + 1, ends_a[p] - 1, starts_b[p] + 1, ends_b[p] - 1
        if end_a < at_a or end_b < at_b or text_a[at_a - 1] != _OPEN or text_b[at_b - 1] != _OPEN:
            continue
        changed_P[p], known_P[p] = _compare_texts(text_a, at_a, end_a, text_b, at_b, end_b, names, name_ends_F1)


def compile_changes() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    text = FeatureTexts.join([b'{"a":1}'])
    compare_inputs(text, text, ["a"])
