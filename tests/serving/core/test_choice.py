"""One decision: the rule, the random slices, the drop rule, and their propensities."""

import collections
import math

import pytest

from schemas.allocation import Facts
from serving.core.choice import Arm, Slices, arm_of, decide
from serving.core.price import Price, Source
from tests.schemas.test_allocation import small_table

TABLE = small_table()
ALL = range(len(TABLE.actions))
FACTS = Facts(9000, 700, needs_user=True, user_value=1.0, cached_s=60.0)


@pytest.mark.parametrize("value", [0.01, 0.1, 0.5, 5.0])
def test_a_higher_price_never_costs_more_and_none_means_full_work(value: float) -> None:
    full, some, none_left = (decide(TABLE, FACTS, Price(p, Source.QUEUE), ALL) for p in (0.0, value, math.inf))
    assert TABLE.actions[full.action].name == "full/4000" and TABLE.actions[none_left.action].name == "drop"
    assert full.cost_ms >= some.cost_ms >= none_left.cost_ms
    assert decide(TABLE, FACTS, Price(0.0), [1, 4]).action == 4, "of the allowed actions, the dearest"


def test_slices_are_drawn_by_hash_and_have_their_shares() -> None:
    slices = Slices(0.1, 0.2, 0.3)
    arms = [arm_of(f"r{i}", slices) for i in range(20_000)]
    counts = collections.Counter(arm for arm, _ in arms)
    shares = {Arm.PROBE: 0.1, Arm.RANDOM: 0.2, Arm.UNDROPPED: 0.3, Arm.POLICY: 0.4}
    assert all(abs(counts[arm] / len(arms) - share) < 0.015 for arm, share in shares.items())
    assert arms[5] == arm_of("r5", slices)


@pytest.mark.parametrize("drop_due", [False, True])
def test_propensities_are_the_shares_with_which_actions_happen(drop_due: bool) -> None:
    slices, price = Slices(0.1, 0.2, 0.1), Price(0.3, Source.PLAN)
    made = [decide(TABLE, FACTS, price, ALL, arm_of(f"r{i}", slices), slices, drop_due=drop_due) for i in range(20_000)]
    counts = collections.Counter(d.action for d in made)
    said = {d.action: d.propensity for d in made}
    assert all(counts[action] / len(made) == pytest.approx(said[action], abs=0.015) for action in counts)
    assert sum(said.values()) == pytest.approx(1.0)
    assert any(d.by_rule for d in made) is drop_due
    assert not any(d.by_rule for d in made if d.arm is not Arm.POLICY), "a random slice is never dropped by the rule"


def test_at_an_infinite_price_nothing_is_random() -> None:
    slices = Slices(0.3, 0.3, 0.3)
    assert {decide(TABLE, FACTS, Price(math.inf), ALL, arm_of(f"r{i}", slices), slices).action for i in range(50)} == {0}
