"""How much work a request gets, and what happens to a server under three times its load when costs, tables or clocks are wrong."""

import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.metrics import Metrics
from schemas.actions import list_actions
from schemas.allocation import Costs, Facts, Gate, LevelCost
from schemas.errors import RejectedInput
from serving.allocation.allocator import TICK_S, Allocator
from serving.allocation.decisions import Choice
from serving.allocation.settings import AllocationSection, ClassShare
from serving.allocation.tables import Tables, built_in_table, prepare, quarter_price, servable
from serving.core.choice import NO_SLICES, Ask, Inputs, Mode, Moment, Slices, decide
from serving.core.price import queue_price

FULL_MS = 5.15  # of 10,000 candidates, by the built-in table


@dataclass
class FakeQueue:
    """A queue that the test fills."""

    wait_ms: float = 0.0
    scale: float = 1.0
    refused: int = 0
    worked_ms: float = 0.0
    full_ms: float = 0.0

    def queue_ms(self) -> float:
        return self.wait_ms

    def cost_scale(self) -> float:
        return self.scale


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def make_allocator(mode: str = "queue", **settings: object) -> tuple[Allocator, FakeQueue, Clock]:
    queue, clock = FakeQueue(), Clock()
    section = AllocationSection.model_validate({"mode": mode, **settings})
    return Allocator(section, Tables(None, lambda: None), Metrics(), queue, clock), queue, clock


def ask(number: int = 0, candidates: int = 10_000, top_k: int = 100, left_ms: float = 1e6, group: str = "default") -> Ask:
    return Ask(f"r{number}", 1, Facts(candidates, 0), top_k, left_ms, group)


def ranked(choice: Choice, candidates: int = 10_000) -> int:
    return candidates if choice.candidates is None else choice.candidates


@pytest.mark.parametrize("mode", list(Mode))
def test_without_pressure_every_request_gets_full_work(mode: str) -> None:
    allocator, _, _ = make_allocator(mode)
    for candidates in (1, 100, 3_000, 10_000, 20_000):
        choice = allocator.decide(ask(candidates=candidates))
        assert choice.candidates is None and choice.receipt()["candidates"] == candidates and choice.receipt()["lambda"] == 0


def test_the_fuller_the_queue_the_fewer_candidates_and_none_is_refused() -> None:
    allocator, queue, _ = make_allocator()
    work = []
    for queue.wait_ms in (0.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 1e6):
        choice = allocator.decide(ask())
        assert not choice.shed
        allocator.end(choice)
        work.append((ranked(choice), choice.passes))
        allocator._waiting["default"] = 1e9  # the class has filled its share, so it sees the whole queue
    lengths = [length for length, _ in work]
    assert lengths == sorted(lengths, reverse=True) and work[0] == (10_000, 1) and work[-1] == (500, 1)
    assert (10_000, 2) in work, "before lists become shorter, they are ranked in two passes"


def test_an_answer_is_made_from_twice_its_items_at_least() -> None:
    allocator, queue, _ = make_allocator()
    queue.wait_ms, allocator._waiting["default"] = 1e6, 1e9
    assert allocator.decide(ask(top_k=900)).candidates == 2_000
    assert allocator.decide(ask(top_k=9_000)).candidates is None


@given(st.lists(st.floats(0, 1e4), max_size=60), st.floats(0.01, 100))
def test_an_empty_queue_always_gets_full_work_whatever_was_before(waits: list[float], scale: float) -> None:
    """No self-lock: only the plan may still hold the price up, and without new requests it ends."""
    allocator, queue, clock = make_allocator()
    queue.scale = scale
    for number, queue.wait_ms in enumerate(waits):
        allocator.end(allocator.decide(ask(number)))
        queue.refused += number % 2
        clock.now_s += 0.05
        allocator.tick()
    queue.wait_ms = 0.0
    for _ in range(200):
        clock.now_s += TICK_S
        allocator.tick()
    assert allocator.decide(ask()).candidates is None


def test_a_queue_shorter_than_the_dearest_action_is_never_full() -> None:
    allocator, queue, _ = make_allocator()
    for number in range(200):  # many small requests
        allocator.end(allocator.decide(ask(number, candidates=200)))
    queue.wait_ms, allocator._waiting["default"] = 0.9 * FULL_MS, 1e9
    assert allocator.decide(ask(left_ms=1e6)).receipt()["lambda"] is not None


def test_admissions_bounds_do_not_fall_with_the_length_of_the_lists() -> None:
    allocator, queue, clock = make_allocator()
    for number, queue.wait_ms in enumerate((0.0, 1e6, 1e6, 1e6)):
        allocator.decide(ask(number))
    clock.now_s += TICK_S
    allocator.tick()
    assert queue.full_ms == pytest.approx(FULL_MS)
    allocator.switch("off")
    clock.now_s += TICK_S
    allocator.tick()
    assert queue.full_ms == 0.0


def test_the_time_left_bounds_the_length_as_the_price_does() -> None:
    allocator, _, _ = make_allocator()
    choice = allocator.decide(ask(left_ms=3.0))
    assert choice.candidates is not None and choice.candidates < 5_600 and "deadline" in choice.receipt()["reason"]


def test_only_classes_that_may_be_shed_get_less() -> None:
    classes = {"ads": ClassShare(share=0.5, sheddable=False), "feed": ClassShare(share=0.5)}
    allocator, queue, _ = make_allocator(classes=classes)
    queue.wait_ms = 1e6
    allocator._waiting.update(ads=1e9, feed=1e9)
    assert allocator.decide(ask(group="ads")).candidates is None and allocator.decide(ask(group="feed")).candidates == 500


def test_a_class_within_its_share_does_not_pay_for_the_flood_of_another() -> None:
    classes = {"calm": ClassShare(share=0.5), "flood": ClassShare(share=0.5)}
    allocator, queue, _ = make_allocator(classes=classes)
    queue.wait_ms = 14.0
    allocator._waiting.update(flood=14.0)
    assert allocator.decide(ask(group="calm")).candidates is None
    assert ranked(allocator.decide(ask(group="flood"))) < 2_000


def test_what_callers_name_and_ask_leaves_nothing_behind() -> None:
    """Classes are free names of callers. And a suggestion is no decision."""
    allocator, queue, _ = make_allocator()
    for choice in [allocator.decide(ask(number, group=f"g{number}")) for number in range(20)]:
        allocator.end(choice)
    queue.wait_ms = 5.0
    before = allocator._queue_price, allocator._full_ms
    allocator.suggest(1, 100)
    assert not allocator._waiting and before == (allocator._queue_price, allocator._full_ms)


def test_a_ranking_that_was_withdrawn_after_its_decision_counts_once() -> None:
    allocator, _, clock = make_allocator()
    for number in range(100):
        allocator.end(allocator.decide(ask(number)), state="refused" if number < 50 else "ranked")
    clock.now_s += 1.0
    allocator.tick()
    assert allocator.status()["demand"] == pytest.approx(0.4 * 100 * FULL_MS / 1_000) and allocator.status()["lambda"]["floor"] > 0


def test_a_price_that_drops_another_arms_request_is_no_rule() -> None:
    """Only a drop by the rule starts the user's count again."""
    table = servable(replace(built_in_table(), version=1, made_at_ms=1, gate=Gate(0.1, 0.0, 0.2)))
    for slices, by_rule in ((Slices(0.0, 0.0, 1.0), False), (NO_SLICES, True)):
        moment = Moment(Mode.VALUE, prepare(table, False), plan=1e6, slices=slices)
        decision = decide(Inputs(ask()._replace(drop_due=True), moment, 0.0, 0.0))
        assert table.actions[decision.action].name == "drop" and decision.by_rule is by_rule


def test_shadow_changes_nothing_and_counts_what_would_have_been() -> None:
    allocator, queue, _ = make_allocator("shadow")
    queue.wait_ms, allocator._waiting["default"] = 1e6, 1e9
    choice = allocator.decide(ask())
    assert choice.candidates is None and choice.receipt()["candidates"] == 10_000
    assert allocator.counts == {("shadow", "full/500"): 1} and allocator.least(10_000, 100) == 10_000


def test_a_decision_is_explained_by_making_it_again() -> None:
    allocator, queue, _ = make_allocator()
    for number, queue.wait_ms in enumerate((0.0, 5.0, 1e6)):
        allocator._waiting["default"] = 1e9
        choice = allocator.decide(ask(number))
        explained = allocator.explain(f"r{number}")
        assert explained["equal"] and explained["replayed_action"] == choice.receipt()["action"] == explained["receipt"]["action"]
        assert {one["action"] for one in explained["actions"]} >= {"full/500", "full/10000"}
    with pytest.raises(RejectedInput, match="unknown_request"):
        allocator.explain("r9")
    with pytest.raises(RejectedInput, match="bad_mode"):
        allocator.switch("fast")


def test_worthless_requests_are_dropped_only_in_mode_value_and_only_where_the_gate_allows() -> None:
    table = replace(built_in_table(), version=1, made_at_ms=1, actions=list_actions(("full",), (500, 10_000)))
    row = (0.0, 0.1, -math.inf, 1e-9, 1e-8)
    usual = (0.0, 0.1, -math.inf, 1.0, 5.0)
    table = replace(table, mean_row=usual, values=replace(table.values, shares=(row,)), gate=Gate(0.1, 0.0, 0.2))
    for mode, serves, dropped in (("value", True, True), ("queue", True, False), ("value", False, False)):
        allocator, queue, _ = make_allocator(mode, probe_share=0.0, random_share=0.0, undropped_share=0.0)
        allocator.tables.known = {1: servable(replace(table, gate=table.gate if serves else Gate()))}
        queue.wait_ms, allocator._waiting["default"] = 3.0, 1e9
        choice = allocator.decide(ask())
        assert choice.shed == dropped and (choice.receipt()["action"] == "drop") == dropped


# --- a server under a spike ------------------------------------------------------------------------------------------------


@dataclass
class Spike:
    """What became of the requests of a spike of three times 80% of the load."""

    refused: float
    wait_p99_ms: float
    mean_candidates: float
    latency_p99: float = 0.0


def run_spike(
    allocator: Allocator,
    queue: FakeQueue,
    clock: Clock,
    true_scale: float = 1.0,
    seconds: float = 4.0,
    version: int = 1,
    load: float = 3 * 0.8,
    dear: float = 1.0,
) -> Spike:
    """One engine, request by request; `true_scale`: measured cost over the built-in table's, which are `dear` times lower than this one's.

    Admission refuses behind six pieces of full work.
    """
    rng, free_s, start_s = random.Random(0), clock.now_s, clock.now_s
    full_s = FULL_MS * true_scale / 1000
    waits, latencies, refused, lengths, at_s = list[float](), list[float](), 0, list[int](), clock.now_s
    pending: list[tuple[float, Choice]] = []
    number, expected, took, ticked_s = 0, 0.0, 0.0, at_s
    worked_ms = queue.worked_ms
    while at_s - start_s < seconds:
        at_s += rng.expovariate(load / full_s)
        clock.now_s += at_s - ticked_s  # the allocator's clock may jump
        ticked_s = at_s
        for _, choice in [one for one in pending if one[0] <= at_s]:
            allocator.end(choice)
        pending = [one for one in pending if one[0] > at_s]
        queue.wait_ms = max(0.0, free_s - at_s) * 1000
        allocator.tick()
        number += 1
        if queue.wait_ms > 6 * full_s * 1000:
            refused, queue.refused = refused + 1, queue.refused + 1
            continue
        choice = allocator.decide(ask(number)._replace(version=version))
        work_s = choice.expected_ms * true_scale / dear * rng.lognormvariate(-0.02, 0.2) / 1000
        expected, took = expected + choice.expected_ms, took + work_s * 1000
        queue.scale, queue.worked_ms = took / expected, worked_ms + took
        free_s = max(free_s, at_s) + work_s
        pending.append((free_s, choice))
        latencies.append(free_s - at_s)
        waits.append(queue.wait_ms)
        lengths.append(ranked(choice))
    wait, latency = (sorted(of)[int(0.99 * len(of))] for of in (waits, latencies))
    return Spike(refused / number, wait / (full_s * 1000), sum(lengths) / len(lengths), latency / full_s)


def test_admission_alone_refuses_half_of_a_spike() -> None:
    allocator, queue, clock = make_allocator("off")
    allocator.decide = lambda one: Choice(one, None, FULL_MS)  # type: ignore[method-assign]
    assert run_spike(allocator, queue, clock).refused > 0.4


@pytest.mark.parametrize("true_scale", [1.0, 1 / 0.6, 4.0, 0.5])
def test_a_spike_is_ranked_whatever_the_table_says_of_costs(true_scale: float) -> None:
    allocator, queue, clock = make_allocator()
    seen = run_spike(allocator, queue, clock, true_scale)
    assert seen.refused <= 0.01 and seen.wait_p99_ms < 3.5, "in units of full work"
    assert seen.mean_candidates > 2_000, "and the engine does not idle"


def test_the_tail_of_a_spike_is_about_that_of_calm_traffic() -> None:
    """The price x^2 / (1 - x) has 1.14 here; this one 1.06."""
    calm, spike = (run_spike(*make_allocator(), seconds=10.0, load=load).latency_p99 for load in (0.8, 2.4))
    assert spike <= 1.08 * calm


def test_costs_that_are_wrong_among_actions_refuse_nobody() -> None:
    """The table says that candidates cost nothing."""
    table = built_in_table()
    cheap = {level: replace(cost, candidate_us=0.04) for level, cost in table.costs.levels.items()}
    allocator, queue, clock = make_allocator()
    allocator.tables.known = {1: servable(replace(table, version=1, made_at_ms=1, costs=replace(table.costs, levels=cheap)))}
    assert run_spike(allocator, queue, clock).refused <= 0.01


def test_costs_that_are_wrong_by_a_factor_give_the_same_choices_whatever_price_comes_with_them() -> None:
    """In mode value a list that costs more than it is worth is dropped. The unit of the price follows the table's own costs, and the first tick their scale.

    Until that tick the server takes the costs as they are; then it catches up. So dear costs drop some more requests in the first second.
    """

    def count(dear: float, queue_price: float = 1.0) -> dict[tuple[str, str], int]:
        costs = {
            name: replace(level, fixed_ms=dear * level.fixed_ms, candidate_us=dear * level.candidate_us, pair_ns=dear * level.pair_ns)
            for name, level in built_in_table().costs.levels.items()
        }
        table = replace(built_in_table(), version=1, made_at_ms=1, costs=Costs(costs, drop_ms=dear * 0.05))
        allocator, queue, clock = make_allocator("value")
        allocator.tables.known = {1: servable(replace(table, queue_price=queue_price, gate=Gate(0.1, 0.0, 0.2)))}
        assert run_spike(allocator, queue, clock, dear=dear).refused <= 0.01
        return dict(allocator.counts)

    right, dear, dearer = count(1.0), count(64.0), count(1e3, 1e9)
    assert right == count(1.0, 1e-9) and dear == dearer
    assert dear["value", "drop"] <= 1.75 * right["value", "drop"]


def test_the_unit_of_the_price_halves_when_costs_double() -> None:
    table = built_in_table()
    levels = table.costs.levels.items()
    twice = {name: replace(level, **{part: 2 * getattr(level, part) for part in LevelCost.__slots__}) for name, level in levels}
    assert quarter_price(replace(table, costs=Costs(twice))) == pytest.approx(quarter_price(table) / 2)


def test_a_version_flip_and_a_lost_table_leave_the_mean_row_of_the_table_before() -> None:
    table = servable(replace(built_in_table(), version=1, made_at_ms=1, gate=Gate(0.1, 0.0, 0.2)))
    allocator, queue, clock = make_allocator("value")
    allocator.tables.known = {1: table}
    assert run_spike(allocator, queue, clock, seconds=1.0).refused <= 0.01
    assert run_spike(allocator, queue, clock, seconds=1.0, version=2).refused <= 0.01
    assert allocator.decide(ask(-1)._replace(version=2)).receipt()["table"] == "v1-1 mean"
    allocator.tables.known = {}
    assert run_spike(allocator, queue, clock, seconds=1.0, version=2).refused <= 0.01
    assert allocator.decide(ask(-2)._replace(version=2)).receipt()["table"] == "built-in"


@pytest.mark.parametrize("jump_s", [-3_600.0, 3_600.0])
def test_a_clock_that_jumps_harms_nothing(jump_s: float) -> None:
    allocator, queue, clock = make_allocator()
    assert run_spike(allocator, queue, clock, seconds=1.0).refused <= 0.01
    clock.now_s += jump_s
    assert run_spike(allocator, queue, clock, seconds=2.0).refused <= 0.01


def test_the_price_of_a_request_is_that_of_its_class_s_wait_against_the_mean_work() -> None:
    of = prepare(servable(built_in_table()), True)
    moment = Moment(Mode.QUEUE, of, scale=2.0, full_ms=3.0, classes={"feed": (0.5, True)})
    asked = Ask("a", 1, Facts(10_000, 100), 100, 1e6, "feed")
    found = decide(Inputs(asked, moment, 8.0, 1.0)).limits
    assert (found.wait_ms, found.bound_ms) == (4.0, 2.0 * 3.0 * 2.0)  # 1 ms by the table, twice as dear, in half of the queue
    assert found.queue == queue_price(4.0, 12.0, of.unit) > 0
