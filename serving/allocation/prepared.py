"""A table as a decision reads it: plain tuples, made once, so that a decision is a few steps of plain arithmetic.

Here: the tuples, the unit of the price. Not here: tables and their files (tables.py, schemas/allocation.py), the decision (pick.py).
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from schemas.actions import FULL, TWO_PASS, Kind
from schemas.allocation import ActionTable, Facts, LevelCost
from schemas.knapsack import find_price
from serving.core.choice import Steps, make_steps

SERVED = (TWO_PASS, FULL)  # levels that this engine can carry out
TYPICAL_BEHAVIOURS = 1_000
_UNIT_MIN = 1e-12  # the price must rise with the queue, whatever the values are


class LevelMs(NamedTuple):
    """`LevelCost` in ms."""

    fixed_ms: float
    candidate_ms: float
    pair_ms: float
    user_ms: float
    behaviour_ms: float

    @classmethod
    def of(cls, cost: LevelCost) -> "LevelMs":
        """The same cost."""
        return cls(cost.fixed_ms, 1e-3 * cost.candidate_us, 1e-6 * cost.pair_ns, cost.user_fixed_ms, 1e-3 * cost.user_behaviour_us)

    def parts(self, facts: Facts) -> tuple[float, float]:
        """(ms of a request without candidates, ms of each candidate)."""
        user_ms = self.user_ms + self.behaviour_ms * facts.behaviours if facts.needs_user else 0.0
        return self.fixed_ms + user_ms, self.candidate_ms + self.pair_ms * facts.behaviours


class Prepared(NamedTuple):
    """A table as plain tuples. `places`: of the actions that rank, in the table; `rows`: their values by bin of the history.

    The lengths are those of `twopass`, rising, then from `start` on those of `full`. A list of all candidates takes the last length of its level.

    blind: only the mean row decides. unit: of the queue price and the floor. drop_shares: by bin.
    drop, cached: their places; None where the table has no such action, or no age of an answer.
    steps: by bin, first and last place; the decisions that need them fill it.
    """

    table: ActionTable
    blind: bool
    unit: float
    places: tuple[int, ...]
    lengths: tuple[int, ...]
    start: int
    bins: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    full: LevelMs
    two_pass: LevelMs
    drop: int | None
    drop_shares: tuple[float, ...]
    cached: int | None
    steps: dict[tuple[int, int, int], Steps]

    def bounds(self, candidates: int, least: int) -> tuple[int, int]:
        """(first, whole): places in the lengths of `full` of the shortest list that a request may get, `least` or longer, and of all candidates."""
        whole = bisect_left(self.lengths, candidates, self.start, len(self.lengths) - 1)
        return bisect_left(self.lengths, least, self.start, whole), whole

    def is_longest(self, place: int) -> bool:
        """Whether this is the last length of its level."""
        return place in (self.start - 1, len(self.lengths) - 1)

    def find_steps(self, bin_: int, first: int, last: int) -> Steps:
        """Makes the steps of a bin's row between two places."""
        found = self.steps[bin_, first, last] = make_steps(self.lengths, self.rows[bin_], first, last)
        return found


def prepare(table: ActionTable, blind: bool) -> Prepared:
    """The tuples of a table that this server can carry out."""
    places = tuple(place for place, action in enumerate(table.actions) if action.kind is Kind.RANK)
    lengths = tuple(table.actions[place].candidates for place in places)
    values, costs = (table.mean_row,) if blind else table.values.shares, table.costs.levels
    kinds, start = [action.kind for action in table.actions], sum(action.level == TWO_PASS for action in table.actions)
    drop = kinds.index(Kind.DROP) if Kind.DROP in kinds else None
    return Prepared(
        table,
        blind,
        quarter_price(table),
        places,
        lengths,
        start,
        () if blind else table.values.bins,
        tuple(tuple(row[place] for place in places) for row in values),
        LevelMs.of(costs[FULL]),
        LevelMs.of(costs[TWO_PASS if start else FULL]),
        drop,
        tuple(row[drop] for row in values) if drop is not None else (),
        kinds.index(Kind.CACHED) if Kind.CACHED in kinds and table.ages else None,
        {},
    )


def quarter_price(table: ActionTable) -> float:
    """The price at which a typical request's list costs a quarter of full work: the unit of the queue price and of the floor.

    It comes from the table's own costs and mean row, so it is in their units. Costs that are wrong by a factor give the same choices.
    """
    facts = Facts(table.actions[-1].candidates, TYPICAL_BEHAVIOURS)
    ranks = [place for place, action in enumerate(table.actions) if action.kind is Kind.RANK]
    value_A, cost_A = (np.array(row)[ranks] for row in (table.values_of(facts, blind=True), table.costs_ms(facts)))
    return max(_UNIT_MIN, find_price(value_A[None], cost_A[None], float(cost_A[-1]) / 4))
