"""The canary's figures against independent ones, and what its rules stop."""

import numpy as np
import pytest

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


def test_the_distance_is_the_shift_of_the_typical_pair_however_far_the_logits_spread() -> None:
    for spread in (0.0, 0.01, 1.0, 3.0):
        logits_UC = np.random.default_rng(0).normal(-2.0, spread, (4, 50)).astype(np.float32)
        assert measure_distance(logits_UC, logits_UC) == 0.0
        assert measure_distance(logits_UC + 4, logits_UC) == measure_distance(logits_UC - 4, logits_UC) == pytest.approx(4.0, abs=1e-5)
    outlier_UC = logits_UC.copy()
    outlier_UC[0, :20] += 100
    assert measure_distance(outlier_UC, logits_UC) == 0.0


def test_the_overlap_of_the_best_tenth_is_one_for_the_same_order_and_nothing_for_the_reverse() -> None:
    scores_UC = np.random.default_rng(0).random((3, 50))
    assert measure_overlap(scores_UC, 2 * scores_UC + 1) == 1.0
    assert measure_overlap(scores_UC, -scores_UC) == 0.0
    assert measure_overlap(scores_UC[:, :1], -scores_UC[:, :1]) == 1.0  # fewer than ten candidates: the best one


def test_the_overlap_is_a_mean_over_users() -> None:
    a = np.arange(20.0)
    assert measure_overlap(np.stack([a, a]), np.stack([a, -a])) == 0.5


def test_a_pair_is_bad_where_its_score_or_a_logit_is_no_number() -> None:
    scores, logits = np.zeros((2, 5)), np.zeros((2, 5, 2))
    scores[0, 0], logits[0, 0, 0], logits[1, 4, 1] = np.inf, np.nan, np.nan
    assert measure_bad_share(Scores(scores, logits, ("click", "buy"))) == pytest.approx(0.2)
    assert measure_bad_share(Scores(np.zeros((3, 0)), np.zeros((3, 0, 1)), ("click",))) == 0.0


def test_the_spread_is_that_of_a_users_candidates_wherever_they_stand() -> None:
    logits_UC = np.random.default_rng(0).normal(0.0, 0.3, (4, 1_000))
    assert measure_spread(logits_UC) == pytest.approx(measure_spread(logits_UC + np.arange(4)[:, None])) == pytest.approx(0.3, rel=0.1)
    assert measure_spread(np.full((2, 3), 0.5)) == 0.0


CASES = {
    "a first version with numbers passes": (CanaryFigures(100, 0.0), 0),
    "a first version without does not": (CanaryFigures(100, 0.01), 1),
    "the same again passes": (CanaryFigures(100, 0.0, 1, 0.0, 1.0, 1.0), 0),
    "scores on another scale do not": (CanaryFigures(100, 0.0, 1, 4.0, 0.9, 1.0), 1),
    "they do not either where the live version hardly ranks": (CanaryFigures(100, 0.0, 1, 4.0, 0.1, 0.02), 1),
    "an unrelated ranking does not": (CanaryFigures(100, 0.0, 1, 0.1, 0.1, 1.0), 1),
    "it does where the live version hardly ranks": (CanaryFigures(100, 0.0, 1, 0.1, 0.1, 0.02), 0),
    "a model trained from scratch passes": (CanaryFigures(100, 0.0, 1, 0.5, 0.73, 2.0), 0),
    "one that was compared with nothing does not": (CanaryFigures(100, 0.0, uncompared="version 1 cannot be read"), 1),
    "every reason is given": (CanaryFigures(100, 0.5, 1, 5.0, 0.0, 1.0), 3),
}


@pytest.mark.parametrize(("figures", "reasons"), CASES.values(), ids=CASES)
def test_the_verdict(figures: CanaryFigures, reasons: int) -> None:
    assert len(judge_canary(figures, CanaryRules())) == reasons
    assert str(figures.pairs) in figures.describe()


def test_a_rule_lets_a_version_pass_that_was_compared_with_nothing() -> None:
    figures = CanaryFigures(100, 0.0, uncompared="version 1 cannot be read")
    assert not judge_canary(figures, CanaryRules(allow_uncompared=True)) and "version 1 cannot be read" in figures.describe()
