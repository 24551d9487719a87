"""The draw of a step's requests: all alike, or ever more of the newest as a fit goes on."""

import numpy as np

from streams.training.request_draw import RequestDraw

_DAY_MS = 86_400_000
TIME_Q = np.arange(100) * _DAY_MS


def mean_day(half_life_days: float, share: float) -> float:
    draw, chance = RequestDraw(TIME_Q, half_life_days), np.random.default_rng(0)
    return float(np.mean([draw.draw(chance, 8, share) for _ in range(300)]))


def test_without_a_half_life_the_generator_is_asked_as_it_always_was() -> None:
    drawn = [RequestDraw(TIME_Q, 0.0).draw(np.random.default_rng(3), 16, share) for share in (0.0, 1.0)]
    assert all((one == np.random.default_rng(3).choice(100, 16, replace=False)).all() for one in drawn)


def test_a_fit_begins_with_all_alike_and_ends_with_the_newest() -> None:
    beginning, middle, end = (mean_day(10.0, share) for share in (0.0, 0.5, 1.0))
    assert abs(beginning - 49.5) < 2
    assert beginning + 10 < middle < end - 3
    assert mean_day(0.0, 1.0) < 52


def test_a_request_one_half_life_older_comes_half_as_often_at_the_end() -> None:
    draw, chance = RequestDraw(np.array([0, 10 * _DAY_MS]), 10.0), np.random.default_rng(0)
    newest = np.mean([draw.draw(chance, 1, 1.0)[0] for _ in range(3_000)])
    assert abs(newest - 2 / 3) < 0.03


def test_a_batch_is_full_however_short_the_half_life() -> None:
    drawn = RequestDraw(TIME_Q, 0.01).draw(np.random.default_rng(0), 64, 1.0)
    assert len(set(drawn.tolist())) == 64
    assert len(RequestDraw(TIME_Q, 0.01).draw(np.random.default_rng(0), 1_000, 1.0)) == 100
