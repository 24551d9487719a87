"""Which changes of features touch the inputs of a model, many at once: the question of core/stale.py, asked of stored texts.

Here: `find_changed_inputs`, and `compare_inputs` for texts that lie in buffers. Not here: the table (core/stale.py), which is also the answer for
texts that are not plain.
Canonical texts differ exactly where values are printed differently, so the places of two values are compared byte by byte.

Arrays: P pairs of texts, F names.
"""

from collections.abc import Sequence

import numba
import numpy as np

from streams.stored.feature_texts import ABSENT, FeatureTexts, read_cells

Pair = tuple[bytes, bytes]  # canonical features before and after a change


def find_changed_inputs(pairs: Sequence[Pair], names: Sequence[str]) -> dict[Pair, bool]:
    """For each pair whose texts are plain: whether a value of `names` is printed differently. The others are left out."""
    before, after = (FeatureTexts.join([pair[side] for pair in pairs]) for side in (0, 1))
    changed_P, known_P = compare_inputs(before, after, names)
    return {pair: changed for pair, changed, known in zip(pairs, changed_P.tolist(), known_P.tolist(), strict=True) if known}


def compare_inputs(before: FeatureTexts, after: FeatureTexts, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """changed_P bool: whether a value of `names` is printed differently; known_P bool: both texts are plain, so that this is known."""
    ascending = sorted(names)
    a, b = read_cells(before, ascending), read_cells(after, ascending)
    changed_P = np.zeros(len(before), np.bool_)
    _compare(before.text_T, a.kinds_FR, a.begins_FR, a.ends_FR, after.text_T, b.kinds_FR, b.begins_FR, b.ends_FR, changed_P)
    return changed_P, a.plain_R & b.plain_R


@numba.njit(nogil=True, cache=True)
def _compare(
    text_a: np.ndarray,
    kinds_a: np.ndarray,
    begins_a: np.ndarray,
    ends_a: np.ndarray,
    text_b: np.ndarray,
    kinds_b: np.ndarray,
    begins_b: np.ndarray,
    ends_b: np.ndarray,
    changed_P: np.ndarray,
) -> None:
    for p in range(changed_P.shape[0]):
        for f in range(kinds_a.shape[0]):
            size = ends_a[f, p] - begins_a[f, p]
            if kinds_a[f, p] != kinds_b[f, p] or (kinds_a[f, p] != ABSENT and ends_b[f, p] - begins_b[f, p] != size):
                changed_P[p] = True
                break
            if kinds_a[f, p] == ABSENT:
                continue
            for i in range(size):
                if text_a[begins_a[f, p] + i] != text_b[begins_b[f, p] + i]:
                    changed_P[p] = True
                    break
            if changed_P[p]:
                break


def compile_changes() -> None:
    """Takes the kernel from numba's cache, or compiles it."""
    find_changed_inputs([(b'{"a":1}', b'{"a":2}')], ["a"])
