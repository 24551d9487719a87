"""The canary's figures against independent ones, and what its rules stop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.canary import (
    CanaryFigures,
    CanaryRules,
    Scores,
    judge_canary,
    measure_bad_share,
    measure_distance,
    measure_overlap,
    measure_spread,
)

NUMBERS = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=30)


@given(NUMBERS, NUMBERS)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(a: list[float], b: list[float]) -> None:
    below = [[np.mean(np.array(one) <= x) for x in (*a, *b)] for one in (a, b)]
    assert measure_distance(np.array(a), np.array(b)) == pytest.approx(max(abs(p - q) for p, q in zip(*below, strict=True)))


def test_the_overlap_of_the_best_tenth_is_one_for_the_same_order_and_nothing_for_the_reverse() -> None:
    scores_UC = np.random.default_rng(0).random((3, 50))
    assert measure_overlap(scores_UC, 2 * scores_UC + 1) == 1.0
    assert measure_overlap(scores_UC, -scores_UC) == 0.0
    assert measure_overlap(scores_UC[:, :1], -scores_UC[:, :1]) == 1.0  # fewer than ten candidates: the best one


def test_the_overlap_is_a_mean_over_users() -> None:
    a = np.arange(20.0)
    assert measure_overlap(np.stack([a, a]), np.stack([a, -a])) == 0.5


def test_a_pair_is_bad_where_its_score_or_its_probability_is_no_number() -> None:
    scores, probabilities = np.zeros((2, 5)), np.zeros((2, 5))
    scores[0, 0], probabilities[0, 0], probabilities[1, 4] = np.inf, np.nan, np.nan
    assert measure_bad_share(Scores(scores, probabilities)) == pytest.approx(0.2)
    assert measure_bad_share(Scores(np.zeros((3, 0)), np.zeros((3, 0)))) == 0.0


def test_the_spread_does_not_depend_on_the_scale_of_the_probabilities() -> None:
    p_UC = np.random.default_rng(0).random((4, 100))
    assert (
        measure_spread(p_UC) == pytest.approx(measure_spread(p_UC / 1_000)) == pytest.approx(np.mean(p_UC.std(axis=1) / p_UC.mean(axis=1)))
    )
    assert measure_spread(np.full((2, 3), 0.5)) == measure_spread(np.zeros((2, 3))) == 0.0


CASES = {
    "a first version with numbers passes": (CanaryFigures(1, 0, 100, 0.0), 0),
    "a first version without does not": (CanaryFigures(1, 0, 100, 0.01), 1),
    "a version over nothing passes": (CanaryFigures(1, 0, 0, 0.0), 0),
    "the same again passes": (CanaryFigures(2, 0, 100, 0.0, 1, 0.0, 1.0), 0),
    "scores on another scale do not": (CanaryFigures(2, 0, 100, 0.0, 1, 1.0, 0.9), 1),
    "an unrelated ranking does not": (CanaryFigures(2, 0, 100, 0.0, 1, 0.1, 0.1), 1),
    "a model trained anew passes": (CanaryFigures(2, 0, 100, 0.0, 1, 0.09, 0.7), 0),
    "a model of another loss passes": (CanaryFigures(2, 0, 100, 0.0, 1, 0.41, 0.75), 0),
    "every reason is given": (CanaryFigures(2, 0, 100, 0.5, 1, 1.0, 0.0), 3),
}


@pytest.mark.parametrize(("figures", "reasons"), CASES.values(), ids=CASES)
def test_the_verdict(figures: CanaryFigures, reasons: int) -> None:
    assert len(judge_canary(figures, CanaryRules())) == reasons
    assert str(figures.pairs) in figures.describe()
