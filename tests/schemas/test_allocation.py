"""Actions, the table's file, and its costs and values."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from schemas.actions import Action, list_actions
from schemas.allocation import (
    ActionTable,
    CachedAge,
    Costs,
    Curve,
    Facts,
    Gate,
    LevelCost,
    Requests,
    Values,
    decode_table,
    encode_table,
    stack_costs,
    stack_values,
)
from schemas.errors import Corrupted, Incompatible
from schemas.knapsack import choose_one


def small_table(version: int = 7, low: float = 0.01) -> ActionTable:
    """Two levels, two lengths, all actions."""
    actions = list_actions(("twopass", "full"), (1000, 4000))
    costs = Costs({"twopass": LevelCost(1.0, 0.26, 0.0, 0.1, 0.35), "full": LevelCost(1.0, 0.415, 0.14, 0.1, 0.79)})
    shares = (0.0, 0.4, 0.0, 0.7, 0.8, 0.9, 1.0)
    curves = {"user_value": Curve((-2.0, 2.0), (-1.0, 1.0)), "behaviours": Curve((0.0, 8.0), (-0.1, 0.1))}
    values = Values(0.5, curves, (5.0,), (shares, (0.0, 0.3, 0.0, 0.6, 0.7, 0.9, 1.0)))
    mean_row = tuple(2.0 * share for share in shares)
    ages = (CachedAge(0, 1.0), CachedAge(600, 0.8, 0.9, -0.2))
    return ActionTable(version, 123, actions, costs, values, mean_row, 0.5, 4.0, ((3, 0.4), (5, 0.6)), ages, gate=Gate(0.03, low, 0.05))


def test_names_of_actions() -> None:
    names = ["drop", "pass", "cached", "twopass/1000", "twopass/4000", "full/1000", "full/4000"]
    assert [action.name for action in small_table().actions] == names
    assert [Action.parse(name).name for name in names] == names
    for wrong in ("", "huge/10", "full/0", "full/x", "rank"):
        with pytest.raises(ValueError, match=r"."):
            Action.parse(wrong)


def test_a_table_survives_its_file() -> None:
    table = small_table()
    assert decode_table(encode_table(table), 7) == table


def test_a_table_of_another_version_is_refused() -> None:
    with pytest.raises(Incompatible, match="table_version"):
        decode_table(encode_table(small_table(6)), 7)


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.update(format=2),
        lambda t: t["mean_row"].pop(),
        lambda t: t["actions"].reverse(),
        lambda t: t.update(queue_price=0),
        lambda t: t["values"]["shares"].pop(),
        lambda t: t["values"]["bins"].append(1.0),
        lambda t: t["costs"].update(drop_ms=-1.0),
        lambda t: t["costs"]["levels"].pop("full"),
        lambda t: t["mix"].append([99, 0.5]),
        lambda t: t.update(unknown=1),
        lambda t: t["mean_row"].__setitem__(0, "1"),
        lambda t: t["values"]["curves"]["user_value"]["knots"].reverse(),
        lambda t: t.update(gate=None),
        lambda t: t["costs"]["levels"]["full"].update(candidate_us=1e300),
        lambda t: t["ages"].reverse(),
        lambda t: t["mean_row"].__setitem__(0, 1.0),
        lambda t: t["drop"].update(row=-1),
        lambda t: t.update(full_ms=5e-324),
        lambda t: t["costs"]["levels"]["full"].update(fixed_ms=1e-300),
    ],
)
def test_a_wrong_table_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    read = json.loads(encode_table(small_table()))
    damage(read)
    with pytest.raises(Corrupted, match="bad_table"):
        decode_table(json.dumps(read).encode(), 7)


def test_one_request_and_many_have_the_same_costs_and_values() -> None:
    table = small_table()
    facts = [
        Facts(3000, 700, user_value=0.3),
        Facts(9000, 0, needs_user=True, cached_s=60.0),
        Facts(10, 50_000, needs_user=True, cached_s=900),
    ]
    costs, values, blind = (
        f(Requests.of(facts)) for f in (partial(stack_costs, table), partial(stack_values, table), partial(stack_values, table, blind=True))
    )
    for row, one in enumerate(facts):
        np.testing.assert_allclose(costs[row], table.costs_ms(one), rtol=1e-12)
        np.testing.assert_allclose(values[row], table.values_of(one), rtol=1e-12)
        np.testing.assert_allclose(blind[row], table.values_of(one, blind=True), rtol=1e-12)
    assert costs[0][-1] == pytest.approx(1.0 + 3000 * (0.415e-3 + 0.14e-6 * 700)), "no more candidates than there are"


def test_values_by_features_and_without() -> None:
    table = small_table()
    low, high, unknown = (table.values_of(Facts(9000, 700, user_value=v)) for v in (0.2, 5.0, None))
    assert low[-1] < unknown[-1] < high[-1]
    facts = Facts(9000, 700, user_value=5.0)
    blind = table.values_of(facts, blind=True)
    assert blind[-1] == pytest.approx(table.mean_row[-1] * table.costs_ms(facts)[-1] / 4.0), "in proportion to the cost of full work"
    assert dataclasses.replace(table, gate=Gate(0.01, -0.001, 0.02)).values_of(facts) == blind, "a closed gate"


def test_a_cached_answer_is_an_action_only_where_there_is_one() -> None:
    table = small_table()
    place = [a.name for a in table.actions].index("cached")
    for facts, kept in ((Facts(9000, 10, cached_s=300), 0.9), (Facts(9000, 10, cached_s=601), 0.0)):
        row = table.values_of(facts)
        assert row[place] == pytest.approx(kept * row[-1])
    without = table.values_of(Facts(9000, 10))
    assert without[place] == -float("inf")
    for price in (0.0, 0.5, float("inf")):
        assert place not in choose_one(without, table.costs_ms(Facts(9000, 10)), price)
