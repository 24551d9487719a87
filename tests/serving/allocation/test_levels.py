"""The second level of work: two passes, chosen before lists become shorter, and never without a price."""

from dataclasses import replace

import pytest

from schemas.actions import Kind, list_actions
from schemas.allocation import Costs, LevelCost
from serving.allocation.tables import built_in_table, servable
from tests.serving.allocation.test_allocator import FULL_MS, ask, make_allocator, ranked


def test_two_passes_are_work_and_cost_of_their_own() -> None:
    """Of every candidate the first pass, and of a tenth full work. A second pass too short for the answer is none."""
    allocator, _, _ = make_allocator()
    allocator.hold(0.05)
    choice = allocator.decide(ask(number=1))
    level = built_in_table().costs.levels["twopass"]
    assert (choice.candidates, choice.passes, choice.is_full) == (None, 2, False)
    assert choice.expected_ms == pytest.approx(level.fixed_ms + 10 * level.candidate_us) and choice.expected_ms < 0.9 * FULL_MS
    receipt = choice.receipt()
    assert (receipt["action"], receipt["passes"], receipt["candidates"]) == ("twopass/10000", 2, 10_000)
    assert receipt["cost_ms"] == pytest.approx(choice.expected_ms) and allocator.explain("r1")["equal"]
    assert allocator.decide(ask(top_k=500)).passes == 2 and allocator.decide(ask(top_k=501)).passes == 1
    assert allocator.decide(ask(candidates=1_999)).passes == 1 and allocator.decide(ask(candidates=2_000)).passes == 2
    allocator.switch("shadow")
    allocator.hold(0.05)
    shown = allocator.decide(ask())
    assert shown.is_full and shown.expected_ms == pytest.approx(FULL_MS) and shown.receipt()["passes"] == 1


def test_without_a_price_no_request_is_ranked_in_two_passes_however_dear_a_table_says_they_are() -> None:
    table = built_in_table()
    dear = {**table.costs.levels, "twopass": LevelCost(9.0, 9.0)}
    allocator, _, _ = make_allocator()
    allocator.tables.known = {1: servable(replace(table, version=1, made_at_ms=1, costs=replace(table.costs, levels=dear)))}
    for left_ms in (1e6, 3.0):
        choice = allocator.decide(ask(left_ms=left_ms))
        assert choice.passes == 1 and choice.receipt()["action"].startswith("full/") and allocator.explain("r0")["equal"]


def test_a_table_without_two_passes_is_served_with_the_lengths_that_it_has() -> None:
    drop, *_, short, full = list_actions(("full",), (500, 10_000))
    table = replace(built_in_table(), version=1, made_at_ms=1, actions=(drop, short, full), mean_row=(0.0, 0.5, 1.0))
    table = replace(table, costs=Costs({"full": table.costs.levels["full"]}), values=replace(table.values, shares=((0.0, 0.5, 1.0),)))
    allocator, _, _ = make_allocator()
    allocator.tables.known = {1: servable(table)}
    for plan, length in ((0.0, 10_000), (0.01, 10_000), (10.0, 500)):
        allocator.hold(plan)
        choice = allocator.decide(ask())
        assert (ranked(choice), choice.passes) == (length, 1)


def test_actions_that_the_engine_cannot_carry_out_are_left_out() -> None:
    whole = replace(built_in_table(), actions=list_actions(), mean_row=tuple(range(15)))
    whole = replace(whole, values=replace(whole.values, shares=(whole.mean_row,)), mix=((14, 0.5), (1, 0.5)))
    table = servable(whole)
    assert all(action.kind is not Kind.PASS and action.level in ("", "twopass", "full") for action in table.actions)
    assert len(table.mean_row) == len(table.values.shares[0]) == len(table.actions) and table.mean_row[-1] == 14
    assert table.mix == ((len(table.actions) - 1, 0.5),)
