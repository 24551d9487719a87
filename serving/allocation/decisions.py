"""A decision about one request, with everything that it depends on: how it is made, how it is made again, and how it reads as a receipt.

A server decides by `Inputs.pick`, plain arithmetic on tuples that are prepared once for each table. The rule in full (serving/core/choice.py) takes ten times
as long. It is applied when a receipt is read, and gives the same action, the runner-up and the propensity.

Here: pure functions of plain values. Not here: where the values come from (allocator.py), the rule (serving/core/choice.py).
"""

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.allocation import ActionTable, Facts, Kind
from serving.core.choice import Arm, Decision, Slices, decide
from serving.core.price import Price, Source, highest

DEFAULT_CLASS = "default"
LEVEL = "full"  # the engine computes all parts of the model, so lengths are what it can choose
TYPICAL_BEHAVIOURS = 1_000
DROP, CACHED = -1, -2  # what `Inputs.pick` returns for them; else a place in `Prepared.lengths`


class Mode(enum.StrEnum):
    """What the allocator may do."""

    OFF = "off"
    SHADOW = "shadow"
    QUEUE = "queue"
    VALUE = "value"


class Ask(NamedTuple):
    """One request, as the decision sees it. `left_ms`: of its deadline; `drop_due`: the drop rule wants to drop it."""

    request_id: str
    version: int
    facts: Facts
    top_k: int
    left_ms: float
    group: str = DEFAULT_CLASS
    drop_due: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table as plain tuples. `places`: of the actions that rank, in the table; `rows`: their values by bin of the history; a cost's parts in ms.

    blind: only the mean row decides. unit: of the queue price and the floor. drop, cached: their places, None where the table has none or no answer's age
    is known. drop_shares: by bin.
    """

    table: ActionTable
    blind: bool
    unit: float
    places: tuple[int, ...]
    lengths: tuple[int, ...]
    longest: int  # the last place in `lengths`
    bins: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    fixed_ms: float
    candidate_ms: float
    pair_ms: float
    user_ms: float
    behaviour_ms: float
    drop: int | None
    drop_shares: tuple[float, ...]
    cached: int | None

    def bounds(self, candidates: int, least: int) -> tuple[int, int]:
        """(first, whole): places in `lengths` of the shortest list that a request may get, `least` or longer, and of the one that takes all candidates."""
        whole = min(bisect_left(self.lengths, candidates), self.longest)
        return min(bisect_left(self.lengths, least), whole), whole


def prepare(table: ActionTable, blind: bool) -> Prepared:
    """The tuples of a table that this server can carry out."""
    places = tuple(place for place, action in enumerate(table.actions) if action.kind is Kind.RANK)
    values = (table.mean_row,) if blind else table.values.shares
    cost, kinds = table.costs.levels[LEVEL], [action.kind for action in table.actions]
    drop = kinds.index(Kind.DROP) if Kind.DROP in kinds else None
    return Prepared(
        table,
        blind,
        _unit_of(table, blind, places),
        places,
        tuple(table.actions[place].candidates for place in places),
        len(places) - 1,
        () if blind else table.values.bins,
        tuple(tuple(row[place] for place in places) for row in values),
        cost.fixed_ms,
        1e-3 * cost.candidate_us,
        1e-6 * cost.pair_ns,
        cost.user_fixed_ms,
        1e-3 * cost.user_behaviour_us,
        drop,
        tuple(row[drop] for row in values) if drop is not None else (),
        kinds.index(Kind.CACHED) if Kind.CACHED in kinds and table.ages else None,
    )


def _unit_of(table: ActionTable, blind: bool, places: tuple[int, ...]) -> float:
    """The table's queue price, but not above the price at which the mean request's best list is just worth its cost.

    Otherwise a table whose price does not belong to its costs would have requests dropped as soon as anything waits.
    """
    costs = table.costs_ms(Facts(table.actions[-1].candidates, TYPICAL_BEHAVIOURS))
    scale = costs[-1] / table.full_ms if blind and table.full_ms else 1.0
    worth = max(scale * table.mean_row[place] / costs[place] for place in places)
    return min(table.queue_price, worth) if worth > 0 else table.queue_price


class Inputs(NamedTuple):
    """Everything that a decision depends on; `pick` and `replay` are pure functions of it. `plan`, `queue`, `floor`: the three prices.

    first, last, whole: places in the table's lengths of the shortest and the longest list that it may get, and of all its candidates.
    """

    ask: Ask
    mode: Mode
    prepared: Prepared
    plan: float
    queue: float
    floor: float
    first: int
    last: int
    whole: int
    sheddable: bool
    drops: bool  # whether it may be dropped
    arm: tuple[Arm, float]
    slices: Slices
    wait_ms: float
    bound_ms: float
    base_ms: float  # what the request costs without any candidate
    each_ms: float  # what each candidate adds

    @property
    def price(self) -> Price:
        """The highest of the three."""
        return highest(self.plan, self.queue, self.floor)

    @property
    def table(self) -> ActionTable:
        """The table."""
        return self.prepared.table

    @property
    def full_ms(self) -> float:
        """What all candidates cost."""
        return self.base_ms + self.ask.facts.candidates * self.each_ms

    @property
    def allowed(self) -> list[int]:
        """The actions that the request may get, as places in the table, ascending."""
        of = self.prepared
        if not self.sheddable:
            return [of.places[self.whole]]
        others = [of.drop if self.drops else None, None if self.ask.facts.cached_s is None else of.cached]
        return sorted([*(place for place in others if place is not None), *of.places[self.first : self.last + 1]])

    def replay(self) -> Decision:
        """The decision by the rule in full."""
        due, blind = self.drops and self.ask.drop_due, self.prepared.blind
        return decide(self.table, self.ask.facts, self.price, self.allowed, self.arm, self.slices, blind=blind, drop_due=due)

    def pick(self) -> int:
        """The action that `replay` decides for: a place in `Prepared.lengths`, or DROP or CACHED. One function, because the engine empties the caches."""
        ask, _, of, plan, queue, floor, first, last, whole, sheddable, drops, (arm, within), _, _, _, base_ms, each_ms = self
        price = max(queue, plan)
        price = max(price, floor)
        if not sheddable:
            return whole
        if price <= 0 and arm is not Arm.RANDOM:
            return last
        candidates, behaviours, _, _, _, cached_s = ask.facts
        has_cached = cached_s is not None and of.cached is not None
        if price == math.inf:
            return CACHED if has_cached else first
        if arm is Arm.PROBE:
            return last
        if arm is Arm.RANDOM:
            place = int(within * (last - first + 1 + has_cached)) - has_cached
            return first + place if place >= 0 else CACHED
        if drops and ask.drop_due and arm is Arm.POLICY:
            return DROP
        scale, bin_, lengths = 1.0, 0, of.lengths
        if not of.blind:
            scale, bin_ = of.table.values.whole(ask.facts), bisect_left(of.bins, math.log1p(behaviours))
        elif of.table.full_ms:  # the mean row, in proportion to what the whole request costs
            longest = lengths[of.longest]
            scale = (base_ms + (min(longest, candidates)) * each_ms) / of.table.full_ms
        row, candidate_price, best, most = of.rows[bin_], price * each_ms, first, -math.inf
        for place in range(first, last + 1):
            length = lengths[place]
            net = scale * row[place] - candidate_price * (min(candidates, length))
            if net > most:
                best, most = place, net
        if has_cached or drops:
            most -= price * base_ms
        if has_cached:
            net = scale * row[-1] * of.table.kept_share(cached_s or 0.0) - price * of.table.costs.cached_ms
            if net > most:
                best, most = CACHED, net
        return DROP if drops and scale * of.drop_shares[bin_] - price * of.table.costs.drop_ms > most else best


class Choice(NamedTuple):
    """What a request gets. `candidates`: how many of its candidates are ranked, None if all; 0: it is dropped, or `cached`: it gets a kept answer.

    `expected_ms`: by the table's costs.
    """

    candidates: int | None
    expected_ms: float
    group: str
    offered: int  # candidates of the request
    inputs: Inputs | None = None  # None in mode off
    picked: int = 0
    cached: bool = False

    @property
    def shed(self) -> bool:
        """Whether the request is dropped."""
        return self.candidates == 0 and not self.cached

    @property
    def by_rule(self) -> bool:
        """Whether the drop rule drops it."""
        return self.shed and self.inputs is not None and self.inputs.ask.drop_due and self.inputs.arm[0] is Arm.POLICY

    @property
    def action(self) -> int:
        """The place of what was picked in the table's actions."""
        assert self.inputs is not None, "in mode off nothing is picked"
        of = self.inputs.prepared
        place = of.drop if self.picked == DROP else of.cached if self.picked == CACHED else of.places[self.picked]
        assert place is not None
        return place

    def receipt(self) -> Mapping[str, Any]:
        """schemas.requests.Receipt, as it travels. Made when the answer is, so that it delays no decision."""
        return off_receipt(self.offered) if self.inputs is None else _describe(self, self.inputs, self.inputs.replay())


def carry_out(inputs: Inputs) -> Choice:
    """The choice for a request. In mode shadow it gets full work, and `picked` is what it would have got."""
    picked, of, ask = inputs.pick(), inputs.prepared, inputs.ask
    candidates, count, cached = ask.facts.candidates, None, False
    expected_ms = inputs.base_ms + candidates * inputs.each_ms
    if picked == inputs.whole or inputs.mode is Mode.SHADOW:
        pass
    elif picked >= 0:
        count = of.lengths[picked]
        expected_ms = inputs.base_ms + count * inputs.each_ms
    else:
        count, cached, costs = 0, picked == CACHED, of.table.costs
        expected_ms = costs.cached_ms if cached else costs.drop_ms
    return tuple.__new__(Choice, (count, expected_ms, ask.group, candidates, inputs, picked, cached))


def _describe(choice: Choice, inputs: Inputs, decision: Decision) -> Mapping[str, Any]:
    actions, facts, allowed = inputs.table.actions, inputs.ask.facts, inputs.allowed
    ranked = facts.candidates if choice.candidates is None else choice.candidates
    runner_up = actions[decision.runner_up].name if decision.runner_up in allowed and decision.runner_up != decision.action else ""
    name = name_table(inputs.table, inputs.prepared.blind)
    return make_receipt(
        inputs.mode,
        actions[decision.action].name,
        ranked,
        decision.price,
        decision.value,
        decision.cost_ms,
        runner_up,
        _reason(inputs, decision),
        name,
        arm=decision.arm.value,
        propensity=decision.propensity,
    )


def _reason(inputs: Inputs, decision: Decision) -> str:
    if not inputs.sheddable:
        return f"class {inputs.ask.group} is not sheddable"
    if decision.arm is not Arm.POLICY:
        return f"random slice {decision.arm.value}"
    if decision.by_rule:
        return f"the user's last {inputs.table.drop.row} answers were followed by nothing"
    if decision.price.source is Source.NONE:
        return "no pressure" if inputs.last == inputs.whole else "the deadline allows no more"
    return {
        Source.QUEUE: f"{inputs.wait_ms:.1f} ms of work wait, of {inputs.bound_ms:.1f}",
        Source.PLAN: "more work is offered than the engine can do",
        Source.FLOOR: "answers were late or refused",
    }[decision.price.source]


def name_table(table: ActionTable, blind: bool) -> str:
    """The `table` of a receipt."""
    name = table.name if table.made_at_ms else "built-in"
    return f"{name} mean" if blind and table.made_at_ms else name


def finite(value: float) -> float | None:
    """A number as JSON has it: None for an infinite one."""
    return value if abs(value) < float("inf") else None


def make_receipt(
    mode: Mode,
    action: str,
    candidates: int,
    price: Price,
    value: float,
    cost_ms: float,
    runner_up: str,
    reason: str,
    table: str,
    arm: str = "policy",
    propensity: float = 1.0,
    retry_after_s: float | None = None,
) -> Mapping[str, Any]:
    """schemas.requests.Receipt, as it travels."""
    return {
        "mode": mode.value,
        "action": action,
        "candidates": candidates,
        "lambda": finite(price.value),
        "lambda_source": price.source.value,
        "value": value,
        "cost_ms": cost_ms,
        "runner_up": runner_up,
        "reason": reason,
        "table": table,
        "arm": arm,
        "propensity": propensity,
        "retry_after_s": retry_after_s,
    }


@lru_cache(maxsize=256)
def off_receipt(candidates: int) -> Mapping[str, Any]:
    """Of today's path: full work."""
    return make_receipt(Mode.OFF, f"full/{candidates}", candidates, Price(), 0.0, 0.0, "", "mode off", "")
