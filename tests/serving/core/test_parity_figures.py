"""How far an answer is from a reference: by hand."""

import numpy as np

from serving.core.parity_figures import ParityFigures, compare_answer

PLACE = {7: 0, 8: 1, 9: 2}
SCORES = np.array([0.9, 0.5, 0.1])
REFERENCE = SCORES[:, None]


def test_the_same_answer_has_no_difference_and_the_whole_top() -> None:
    assert compare_answer(PLACE, SCORES, REFERENCE, [7, 8], REFERENCE[:2]) == ParityFigures(0.0, 1.0)


def test_a_wrong_item_lowers_the_overlap_and_a_wrong_probability_is_the_difference() -> None:
    figures = compare_answer(PLACE, SCORES, REFERENCE, [7, 9], np.array([[0.9], [0.35]]))
    assert figures.overlap == 0.5 and np.isclose(figures.difference_max, 0.25)


def test_an_empty_answer_agrees_with_anything() -> None:
    assert compare_answer({}, np.zeros(0), np.zeros((0, 1)), [], np.zeros((0, 1))) == ParityFigures(0.0, 1.0)
