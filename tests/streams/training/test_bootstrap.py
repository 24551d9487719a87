"""Intervals over users: paired, seeded, and of the right width."""

import numpy as np
import pytest

from schemas.errors import Misconfigured
from streams.training.bootstrap import Bootstrap
from streams.training.measures import UserValues


def values(seed: int, users: int = 400, shift: float = 0.0, noise: float = 1.0) -> UserValues:
    chance = np.random.default_rng(seed)
    return UserValues(noise * chance.standard_normal(users) + shift, np.ones(users))


def test_the_interval_of_a_mean_is_about_two_standard_errors_each_side() -> None:
    drawn = values(0)
    found = Bootstrap(400).interval(drawn)
    error = drawn.value_U.std() / 20
    assert found.value == drawn.mean()
    assert found.value - found.low == pytest.approx(1.96 * error, rel=0.15) and found.high - found.value == pytest.approx(
        1.96 * error, rel=0.15
    )


def test_a_difference_is_paired_so_noise_that_two_models_share_cancels() -> None:
    ours = values(0)
    theirs = UserValues(ours.value_U - 0.1 + 0.01 * values(1).value_U, ours.weight_U)
    found = Bootstrap(400).difference(ours, theirs)
    assert 0.09 < found.low < found.value < found.high < 0.11


def test_weights_are_those_of_the_users_drawn() -> None:
    weighted = UserValues(np.array([0.0, 1.0]), np.array([3.0, 1.0]))
    bootstrap = Bootstrap(2)
    assert set(np.round(bootstrap.means(weighted), 6)) == {0.0, 0.25, 1.0} and bootstrap.interval(weighted).value == 0.25


def test_a_user_without_weight_changes_nothing() -> None:
    one = values(3)
    wider = UserValues(np.append(one.value_U, 1e6), np.append(one.weight_U, 0.0))
    assert Bootstrap(401).interval(wider).value == one.mean() and Bootstrap(401).interval(wider).high < 1


def test_a_ratio_of_differences_has_an_interval_over_the_same_resamples() -> None:
    base, full, ours = (values(0, shift=shift, noise=0.01) for shift in (0.0, 1.0, 0.9))
    share = Bootstrap(400).interval_of(lambda mean: (mean(ours) - mean(base)) / (mean(full) - mean(base)))
    assert share.value == pytest.approx(0.9) and share.low == pytest.approx(0.9) and share.high == pytest.approx(0.9)


def test_the_same_seed_draws_the_same_resamples_and_another_seed_others() -> None:
    assert np.array_equal(Bootstrap(9, seed=1).counts_RU, Bootstrap(9, seed=1).counts_RU)
    assert not np.array_equal(Bootstrap(9, seed=1).counts_RU, Bootstrap(9, seed=2).counts_RU)
    assert (Bootstrap(9).counts_RU.sum(1) == 9).all()


def test_an_interval_over_nobody_is_refused() -> None:
    with pytest.raises(Misconfigured, match="no_users"):
        Bootstrap(0)
