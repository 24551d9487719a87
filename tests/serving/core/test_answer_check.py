"""A correct top-k passes whatever ties do within the tolerance; everything else is named."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.answer_check import Claim, Reference, check_answer

SCORES = {10: 0.9, 11: 0.8, 12: 0.8 + 1e-7, 13: 0.5, 14: 0.1}


def reference(scores: dict[int, float] = SCORES, tolerance: float = 1e-6, unknown: int = 0) -> Reference:
    values = np.array(list(scores.values()))
    place = {i: at for at, i in enumerate(scores)}
    return Reference(place, values, values[:, None], np.full(len(values), tolerance), tolerance, unknown)


def claim(*ids: int, top_k: int = 3, **scores: float) -> Claim:
    given_scores = [scores.get(f"s{i}", SCORES.get(i, 0.0)) for i in ids]
    return Claim(list(ids), given_scores, [[s] for s in given_scores], 0, top_k)


RIGHT = claim(10, 12, 11)


def test_the_exact_answer_passes() -> None:
    assert check_answer(reference(), RIGHT) == ("", 0.0)


def test_a_tie_within_the_tolerance_may_stand_in_either_order_and_at_the_end_either_one() -> None:
    assert check_answer(reference(), claim(10, 11, 12, s11=0.8 + 2e-7))[0] == ""
    assert check_answer(reference(), claim(10, 11, top_k=2))[0] == ""
    assert check_answer(reference(), claim(10, 12, top_k=2))[0] == ""


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (claim(10, 12), "2 items"),
        (claim(10, 12, 12), "2 different"),
        (claim(10, 12, 99), "99"),
        (claim(10, 12, 13), "11"),
        (claim(12, 10, 11), "descending"),
        (claim(10, 12, 11, s10=0.91), "score of 10 is 0.91"),
        (dataclasses.replace(RIGHT, probabilities=[[0.9], [0.8], [0.7]]), "probability"),
        (dataclasses.replace(RIGHT, unknown_count=1), "unknown"),
    ],
)
def test_what_is_wrong_is_named(wrong: Claim, named: str) -> None:
    assert named in check_answer(reference(), wrong)[0]


def test_no_known_candidates_need_an_empty_answer() -> None:
    assert check_answer(reference({}, unknown=2), dataclasses.replace(claim(), unknown_count=2))[0] == ""
    assert "expected 0" in check_answer(reference({}), claim(10))[0]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), st.integers(1, 30), st.randoms(use_true_random=False))
def test_the_top_k_of_scores_that_are_off_by_less_than_the_tolerance_always_passes(scores: list[float], top_k: int, random: object) -> None:
    exact, tolerance = dict(enumerate(scores)), 1e-3
    seen = {i: s + random.uniform(-0.99, 0.99) * tolerance for i, s in exact.items()}  # type: ignore[attr-defined]
    best = sorted(seen, key=lambda i: (-seen[i], i))[:top_k]
    answer = Claim(best, [seen[i] for i in best], [[seen[i]] for i in best], 0, top_k)
    assert check_answer(reference(exact, tolerance), answer)[0] == ""
