"""The draw of a step's requests: all alike, or ever more of the newest as a fit goes on."""

import numpy as np

from schemas.train_choices import TrainChoices
from streams.training.trainer import draw_requests

_DAY_MS = 86_400_000
TIME_Q = np.arange(100) * _DAY_MS


def drawn(chance: np.random.Generator, half_life_days: float, count: int, share: float, time_Q: np.ndarray = TIME_Q) -> np.ndarray:
    return draw_requests(chance, time_Q, TrainChoices(half_life_days=half_life_days, batch_requests=count), share, 0)


def mean_day(half_life_days: float, share: float) -> float:
    chance = np.random.default_rng(0)
    return float(np.mean([drawn(chance, half_life_days, 8, share) for _ in range(300)]))


def test_a_pass_takes_every_request_once_in_an_order_of_its_own() -> None:
    chosen = TrainChoices(batch_requests=30, seed=4)
    steps = [draw_requests(np.random.default_rng(0), TIME_Q, chosen, 0.0, step) for step in range(6)]
    first, second = np.concatenate(steps[:3]), np.concatenate(steps[3:])
    assert len(set(first.tolist())) == len(set(second.tolist())) == 90, (
        "ten of the hundred are left out of a pass, so that all batches are full"
    )
    assert (first != second).any() and (first != np.sort(first)).any()


def test_a_fit_begins_with_all_alike_and_ends_with_the_newest() -> None:
    beginning, middle, end = (mean_day(10.0, share) for share in (0.0, 0.5, 1.0))
    assert abs(beginning - 49.5) < 2
    assert beginning + 10 < middle < end - 3


def test_a_request_one_half_life_older_comes_half_as_often_at_the_end() -> None:
    chance = np.random.default_rng(0)
    newest = np.mean([drawn(chance, 10.0, 1, 1.0, np.array([0, 10 * _DAY_MS]))[0] for _ in range(3_000)])
    assert abs(newest - 2 / 3) < 0.03


def test_a_batch_is_full_however_short_the_half_life() -> None:
    assert len(set(drawn(np.random.default_rng(0), 0.01, 64, 1.0).tolist())) == 64
    assert len(drawn(np.random.default_rng(0), 0.01, 1_000, 1.0)) == 100
