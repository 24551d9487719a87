"""The rule of allocation: the price, what a request may get, the random slices, the drop rule, and their propensities."""

import collections
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.allocation import CachedAge, Facts, Gate
from serving.allocation.tables import built_in_table, prepare, servable
from serving.core.choice import NO_SLICES, Arm, Ask, Decision, Inputs, Mode, Moment, Slices, arm_of, decide
from tests.schemas.test_allocation import small_table

TABLE = servable(small_table())
PREPARED = prepare(TABLE, False)
FACTS = Facts(9000, 700, needs_user=True, user_value=1.0, cached_s=60.0)


def make(name: str = "r", plan: float = 0.0, slices: Slices = NO_SLICES, left_ms: float = 1e6, drop_due: bool = False) -> Decision:
    ask = Ask(name, 7, FACTS, 100, left_ms, drop_due=drop_due)
    return decide(Inputs(ask, Moment(Mode.VALUE, PREPARED, plan, slices=slices), 0.0, 0.0))


def name_of(decision: Decision) -> str:
    return TABLE.actions[decision.action].name


@pytest.mark.parametrize("value", [0.01, 0.1, 0.5, 5.0])
def test_a_higher_price_never_costs_more_and_none_means_full_work(value: float) -> None:
    full, some, none_left = (make(plan=plan) for plan in (0.0, value, math.inf))
    assert name_of(full) == "full/4000" and name_of(none_left) == "cached"
    assert full.cost_ms >= some.cost_ms >= none_left.cost_ms
    assert name_of(make(left_ms=3.0)) == "full/1000", "without a price, the longest list of full work that is in time"


@given(
    st.lists(st.floats(0, 10), min_size=22, max_size=22),
    st.builds(Facts, st.integers(1, 20_000), st.integers(0, 50_000), st.booleans(), cached_s=st.sampled_from([None, 0.0, 40.0])),
    st.floats(1e-3, 30),
    st.sampled_from([1.0, 6.0, 1e6]),
)
def test_of_the_allowed_actions_the_one_that_is_worth_most_at_the_price_is_chosen(
    row: list[float], facts: Facts, plan: float, left_ms: float
) -> None:
    """For any values, rising or not. No list is too long for the deadline but the shortest, none too short for twice the answer but all candidates."""
    table = replace(servable(built_in_table()), gate=Gate(0.1, 0.0, 0.2), ages=(CachedAge(60.0, 0.8),))
    table = replace(table, values=replace(table.values, shares=((0.0, *row[1:]),)))
    made = decide(Inputs(Ask("r", 7, facts, 300, left_ms), Moment(Mode.VALUE, prepare(table, False), plan), 0.0, 0.0))
    values, costs = table.values_of(facts), table.costs_ms(facts)
    net = {place: values[place] - plan * costs[place] for place in made.limits.allowed}
    rounding = 1e-9 * (1 + plan * max(costs))
    assert net.pop(made.action) >= max(net.values()) - rounding and net[made.runner_up] >= max(net.values()) - rounding
    full = [place for place in made.limits.allowed if table.actions[place].level == "full"]
    assert all(costs[place] <= left_ms for place in made.limits.allowed if place != full[0])
    assert all(table.actions[place].candidates >= min(600, facts.candidates) for place in full)
    twice = [place for place in made.limits.allowed if table.actions[place].level == "twopass"]
    assert all(min(table.actions[place].candidates, facts.candidates) >= 6_000 for place in twice)
    assert (0 in made.limits.allowed, 1 in made.limits.allowed) == (True, facts.cached_s is not None)


def test_slices_are_drawn_by_hash_and_have_their_shares() -> None:
    slices = Slices(0.1, 0.2, 0.3)
    arms = [arm_of(f"r{i}", slices) for i in range(20_000)]
    counts = collections.Counter(arm for arm, _ in arms)
    shares = {Arm.PROBE: 0.1, Arm.RANDOM: 0.2, Arm.UNDROPPED: 0.3, Arm.POLICY: 0.4}
    assert all(abs(counts[arm] / len(arms) - share) < 0.015 for arm, share in shares.items())
    assert arms[5] == arm_of("r5", slices)


@pytest.mark.parametrize("drop_due", [False, True])
def test_propensities_are_the_shares_with_which_actions_happen(drop_due: bool) -> None:
    made = [make(f"r{i}", 0.3, Slices(0.1, 0.2, 0.1), drop_due=drop_due) for i in range(20_000)]
    counts = collections.Counter(d.action for d in made)
    said = {d.action: d.propensity for d in made}
    assert all(counts[action] / len(made) == pytest.approx(said[action], abs=0.015) for action in counts)
    assert sum(said.values()) == pytest.approx(1.0)
    assert any(d.by_rule for d in made) is drop_due
    assert not any(d.by_rule for d in made if d.arm is not Arm.POLICY), "a random slice is never dropped by the rule"


def test_at_an_infinite_price_nothing_is_random() -> None:
    made = [make(f"r{i}", math.inf, Slices(0.3, 0.3, 0.3)) for i in range(50)]
    assert {(name_of(one), one.arm, one.propensity) for one in made} == {("cached", Arm.POLICY, 1.0)}
