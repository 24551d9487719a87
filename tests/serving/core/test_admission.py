"""Admission against a small simulator: one server, one queue, arrivals at random, predictions learnt from earlier work."""

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.admission import (
    LOAD_MAX,
    QUEUE_MS_MIN,
    Costs,
    Job,
    Offered,
    count_kept,
    decide_deadline,
    decide_queue,
    fold_cost,
    fold_doubt,
    fold_offered,
    predict_ms,
    queue_ms_max,
)

REQUESTS, LEARNING = 6_000, 200
JOB = Job("rank", 1_000)


@dataclass(frozen=True)
class Outcome:
    """Latencies of those that were let in, and how many were not."""

    admitted_ms: list[float]
    refused: int
    queue_max_ms: float

    def quantile(self, share: float) -> float:
        return sorted(self.admitted_ms)[int(share * len(self.admitted_ms))]


class Simulator:
    """One server that takes 10 ms for a piece, more or less by `spread`, and whose sizes tell nothing of it."""

    def __init__(self, spread: float, seed: int) -> None:
        self.rng, self.spread = random.Random(seed), spread
        self.costs, self.offered, self.now, self.began = Costs(), Offered(), 0.0, 0.0
        self.queue, self.done = list[tuple[float, float]](), list[tuple[int, float]]()  # (came, takes); (answered before, ms)
        self.refused, self.queue_max = 0, 0.0

    def come(self, now: float) -> None:
        """One more request, let in or not."""
        self._answer_until(now)
        piece_ms, spent_ms = predict_ms(self.costs, JOB), now - self.began
        wait_ms = max(0.0, len(self.queue) * piece_ms - spent_ms) if self.queue else 0.0
        load = self.offered.now(now, self.costs.mean_ms)
        flood = self.offered.is_flood(now, self.costs.mean_ms)
        is_in = not flood or decide_queue(self.costs, wait_ms, load=load) is None
        self.offered = fold_offered(self.offered, piece_ms, now, self.costs.mean_ms)
        if not is_in:
            kept = count_kept([piece_ms] * len(self.queue), spent_ms, queue_ms_max(self.costs, load=load), load)
            self.refused += 1 + len(self.queue) - kept
            del self.queue[kept:]
            return
        if not self.queue:
            self.began = now
        self.queue.append((now, 10 * (1 + self.spread * (2 * self.rng.random() - 1))))
        if len(self.done) > LEARNING:  # the first ones come in before anything is known
            self.queue_max = max(self.queue_max, self.began + sum(took for _, took in self.queue) - now)

    def _answer_until(self, now: float) -> None:
        while self.queue and self.began + self.queue[0][1] <= now:
            came, took = self.queue.pop(0)
            self.began += took
            self.done.append((len(self.done), self.began - came))
            self.costs = fold_cost(self.costs, [JOB], took)

    def outcome(self) -> Outcome:
        """Of all that came after the first few."""
        self._answer_until(float("inf"))
        return Outcome([ms for place, ms in self.done if place >= LEARNING], self.refused, self.queue_max)


def simulate(load: float, spread: float, seed: int = 1, even: bool = False, calm: int = 0, requests: int = REQUESTS) -> Outcome:
    """`load` times what the server carries, after `calm` requests at 80%; at random, or at even distances."""
    simulator, now = Simulator(spread, seed), 0.0
    for number in range(calm + requests):
        at = 0.8 if number < calm else load
        now += 10 / at if even else simulator.rng.expovariate(at / 10)
        simulator.come(now)
    return simulator.outcome()


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
def test_beyond_what_can_be_carried_admitted_requests_keep_their_latency_and_the_rest_is_refused(load: float, spread: float) -> None:
    calm, flood = simulate(0.8, spread), simulate(load, spread)
    assert flood.quantile(0.99) <= 1.25 * calm.quantile(0.99)
    carried = 1 - flood.refused / REQUESTS
    assert carried == pytest.approx(1 / load, rel=0.15), "the server admits as much as it can do: nothing stands idle"
    assert flood.queue_max_ms <= 10 * 10 * (1 + spread)


def test_at_ten_times_the_load_nobody_who_is_let_in_waits_long_also_where_nobody_waited_before() -> None:
    calm, flood = simulate(0.8, 0.3, even=True), simulate(10.0, 0.3, even=True)
    assert calm.quantile(0.99) < 14, "at even distances no request waits at 80%"
    assert flood.quantile(0.99) <= 1.25 * calm.quantile(0.99)
    assert 1 - flood.refused / REQUESTS == pytest.approx(0.1, rel=0.05), "and the engine is busy all the time"


def test_a_flood_is_noticed_while_at_most_four_requests_are_answered_late() -> None:
    flood = simulate(10.0, 0.3, even=True, calm=LEARNING + 50, requests=500)
    assert sum(ms > 20 for ms in flood.admitted_ms) <= 4, "all others of the first are withdrawn"
    assert simulate(10.0, 0.3).quantile(0.99) < 20, "neither where many come together by chance"


def come_together(simulator: Simulator, count: int, at: float, within_ms: float) -> None:
    for number in range(count):
        simulator.come(at + within_ms * number / count)


@pytest.mark.parametrize("within_ms", [0.0, 10.0, 40.0])
def test_a_burst_loses_nothing_also_after_a_flood_and_in_normal_traffic(within_ms: float) -> None:
    simulator, now = Simulator(0.3, 1), 0.0
    for load, requests in ((0.5, 300), (10.0, 300), (0.5, 100)):
        for _ in range(requests):
            now += simulator.rng.expovariate(load / 10)
            simulator.come(now)
    before = simulator.refused
    assert before > 200
    for _ in range(5):
        come_together(simulator, 50, now, within_ms)
        assert simulator.refused == before and len(simulator.queue) >= 40
        simulator.come(now + 60)
        assert simulator.refused == before, "one that comes while it waits is no flood"
        now += 700


def test_what_waits_is_judged_again_only_in_a_flood() -> None:
    assert count_kept([10.0] * 6, 2.0, 15.0, load=10.0) == 2
    assert count_kept([10.0] * 6, 2.0, 15.0, load=1.2) == 6
    assert count_kept([], 0.0, 0.0, load=10.0) == 0
    assert count_kept([10.0], 0.0, 0.0, load=10.0) == 1, "the piece that is being computed stays"


def test_the_offered_load_counts_what_is_refused_and_fades() -> None:
    offered = Offered()
    for now in range(1_000):
        offered = fold_offered(offered, 10.0, now, 10.0)
    assert offered.now(1_000, 10.0) == pytest.approx(10.0, rel=0.05)
    assert offered.now(1_300, 10.0) < 0.001


def test_at_eighty_percent_hardly_anybody_is_refused() -> None:
    calm = simulate(0.8, 0.3)
    assert calm.refused < 0.004 * REQUESTS


def test_a_server_that_knows_nothing_yet_lets_everybody_in() -> None:
    assert predict_ms(Costs(), Job("rank", 10_000)) == 0.0
    assert decide_queue(Costs(), 0.0) is None and decide_deadline(0.0, 0.0, 0.0) is None


def test_costs_are_learnt_by_size_and_an_unknown_size_is_judged_by_its_neighbour() -> None:
    costs = Costs()
    for _ in range(30):
        costs = fold_cost(costs, [Job("rank", 1_000)], 2.0)
        costs = fold_cost(costs, [Job("user", 100)], 1.0)
    assert predict_ms(costs, Job("rank", 900)) == pytest.approx(2.0)
    assert predict_ms(costs, Job("rank", 8_000)) == pytest.approx(16.0)
    assert predict_ms(costs, Job("rank", 10)) == pytest.approx(2.0)
    assert predict_ms(costs, Job("user", 100)) == pytest.approx(1.0)
    both = fold_cost(costs, [Job("user", 100), Job("rank", 1_000)], 3.0)
    assert (predict_ms(both, Job("user", 100)), predict_ms(both, Job("rank", 1_000))) == (pytest.approx(1.0), pytest.approx(2.0))


def test_a_change_of_speed_is_believed_after_some_work() -> None:
    costs = fold_cost(Costs(), [Job("rank", 1)], 1.0)
    for _ in range(15):
        costs = fold_cost(costs, [Job("rank", 1)], 10.0)
    assert predict_ms(costs, Job("rank", 1)) > 9.0


def test_the_bound_on_the_queue_in_a_flood_follows_the_work_and_bursts_of_tiny_requests_are_no_overload() -> None:
    assert queue_ms_max(Costs(mean_ms=0.1)) == QUEUE_MS_MIN
    assert queue_ms_max(Costs(mean_ms=20.0), 8) == queue_ms_max(Costs(mean_ms=20.0), 8, load=1.0) == 160
    assert queue_ms_max(Costs(mean_ms=20.0), 8, load=4 * LOAD_MAX) == pytest.approx(10)
    refusal = decide_queue(Costs(mean_ms=20.0), 200, 8)
    assert refusal is not None and refusal.retry_after_ms == 60 and "200 ms" in refusal.reason


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_deadline_refuses_exactly_what_does_not_fit_and_says_by_how_much(queue: float, work: float, left: float) -> None:
    refusal = decide_deadline(queue, work, left)
    assert (refusal is None) == (queue == 0 or queue + work <= left)
    if refusal is not None:
        assert refusal.retry_after_ms == pytest.approx(queue + work - left)


def test_predictions_never_shrink_with_the_size_beyond_what_is_known() -> None:
    costs = fold_cost(Costs(), [Job("rank", 100)], 5.0)
    predicted = [predict_ms(costs, Job("rank", size)) for size in (100, 1_000, 10_000, 100_000)]
    assert all(a <= b for a, b in itertools.pairwise(predicted))


def test_what_is_avoided_for_its_cost_is_believed_less_and_less_and_tried_again() -> None:
    costs, avoided = fold_cost(Costs(), [Job("user", 100)], 1_000.0), 0
    while predict_ms(costs, Job("user", 1_000)) > 100:
        costs, avoided = fold_doubt(costs, Job("user", 1_000)), avoided + 1
    assert 40 < avoided < 120 and predict_ms(costs, Job("user", 100)) == 1_000, "doubt is about one size only"
