"""A decision with its receipt: the action, and why, by the rule in full.

Here: pure functions of plain values. Not here: the quick decision (pick.py), the moment of a server (allocator.py), the rule (serving/core/choice.py).
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.allocation import ActionTable
from serving.allocation.pick import CACHED, DROP, Ask, Lengths, Limits, Mode, Moment, draw_arm, find_limits, find_two_pass, pick
from serving.allocation.prepared import Prepared
from serving.core.choice import NO_SLICES, Arm, Decision, decide
from serving.core.price import Price, Source, highest


class Choice(NamedTuple):
    """What a request gets. `candidates`: how many of its candidates are ranked, None if all; 0: it is dropped, or gets a kept answer.

    expected_ms: by the table's costs. moment: None in mode off, where nothing is picked. queue_ms, own_ms: as `pick` has them. passes: 2 if they are ranked
    by level `twopass`.
    """

    ask: Ask
    candidates: int | None = None
    expected_ms: float = 0.0
    moment: Moment | None = None
    queue_ms: float = 0.0
    own_ms: float = 0.0
    picked: int = 0
    passes: int = 1

    @property
    def is_full(self) -> bool:
        """Whether the request gets full work."""
        return self.candidates is None and self.passes == 1

    @property
    def cached(self) -> bool:
        """Whether the request gets a kept answer."""
        return self.candidates == 0 and self.picked == CACHED

    @property
    def shed(self) -> bool:
        """Whether the request is dropped."""
        return self.candidates == 0 and self.picked == DROP

    @property
    def inputs(self) -> "Inputs | None":
        """The inputs of the rule in full; None in mode off."""
        return None if self.moment is None else look(self.ask, self.moment, self.queue_ms, self.own_ms)

    @property
    def arm(self) -> Arm:
        """The slice that the request was drawn for."""
        return Arm.POLICY if self.moment is None else draw_arm(self.ask, self.moment)[0]

    @property
    def by_rule(self) -> bool:
        """Whether the drop rule drops it."""
        return self.shed and self.ask.drop_due and self.arm is Arm.POLICY

    @property
    def action(self) -> int:
        """The place of the picked action in the table."""
        assert self.moment is not None, "in mode off nothing is picked"
        of = self.moment.prepared
        place = of.drop if self.picked == DROP else of.cached if self.picked == CACHED else of.places[self.picked]
        assert place is not None
        return place

    def receipt(self) -> Mapping[str, Any]:
        """schemas.requests.Receipt, as it travels. Made when the answer is, so that it delays no decision."""
        return off_receipt(self.ask.facts.candidates) if (inputs := self.inputs) is None else _describe(self, inputs)


def choose_work(ask: Ask, moment: Moment, queue_ms: float, own_ms: float) -> Choice:
    """The choice for a request. In mode shadow it gets full work, and `picked` is the work of mode queue."""
    picked, base_ms, each_ms = pick(ask, moment, queue_ms, own_ms)
    candidates, of, mode = ask.facts.candidates, moment.prepared, moment.mode
    if mode is Mode.SHADOW and picked < of.start:
        base_ms, each_ms = of.full.parts(ask.facts)
    count, expected_ms, passes = None, base_ms + candidates * each_ms, 1
    if mode is Mode.SHADOW:
        pass
    elif picked < 0:
        count, costs = 0, of.table.costs
        expected_ms = costs.cached_ms if picked == CACHED else costs.drop_ms
    else:
        passes = 2 if picked < of.start else 1
        if of.lengths[picked] < candidates and not of.is_longest(picked):
            count = of.lengths[picked]
            expected_ms = base_ms + count * each_ms
    fields = (ask, count, expected_ms, moment, queue_ms, own_ms, picked, passes)
    return tuple.__new__(Choice, fields)  # a third of the time of its constructor


class Inputs(NamedTuple):
    """What the rule in full decides by."""

    ask: Ask
    moment: Moment
    limits: Limits
    two_pass: Lengths | None

    @property
    def prepared(self) -> Prepared:
        """The table of the moment."""
        return self.moment.prepared

    @property
    def table(self) -> ActionTable:
        """The same as it was published."""
        return self.prepared.table

    @property
    def price(self) -> Price:
        """The highest of the three."""
        return highest(self.moment.plan, self.limits.queue, self.moment.floor)

    @property
    def drops(self) -> bool:
        """Whether the request may be dropped."""
        may = self.moment.mode is Mode.VALUE and self.limits.sheddable and not self.prepared.blind
        return may and 0 < self.price.value < math.inf

    @property
    def allowed(self) -> list[int]:
        """The actions that the request may get, as places in the table, ascending."""
        of, limits = self.prepared, self.limits
        if not limits.sheddable:
            return [of.places[limits.whole]]
        others = [of.drop if self.drops else None, None if self.ask.facts.cached_s is None else of.cached]
        twice = () if self.two_pass is None else of.places[self.two_pass.first : self.two_pass.last + 1]
        return sorted([*(place for place in others if place is not None), *twice, *of.places[limits.first : limits.last + 1]])

    def replay(self) -> Decision:
        """The decision by the rule in full."""
        due, blind, slices = self.drops and self.ask.drop_due, self.prepared.blind, self.moment.slices
        arm = draw_arm(self.ask, self.moment)
        if self.moment.mode is not Mode.VALUE:
            slices = NO_SLICES
        return decide(self.table, self.ask.facts, self.price, self.allowed, arm, slices, blind=blind, drop_due=due)


def look(ask: Ask, moment: Moment, queue_ms: float, own_ms: float) -> Inputs:
    """The inputs of the rule in full; the arguments are those of `pick`."""
    return Inputs(ask, moment, find_limits(ask, moment, queue_ms, own_ms), find_two_pass(ask, moment, queue_ms))


def _describe(choice: Choice, inputs: Inputs) -> Mapping[str, Any]:
    decision, allowed = inputs.replay(), inputs.allowed
    actions, facts = inputs.table.actions, inputs.ask.facts
    runner_up = actions[decision.runner_up].name if decision.runner_up in allowed and decision.runner_up != decision.action else ""
    return make_receipt(
        inputs.moment.mode,
        actions[decision.action].name,
        facts.candidates if choice.candidates is None else choice.candidates,
        decision.price,
        decision.value,
        decision.cost_ms,
        runner_up,
        _reason(inputs, decision),
        name_table(inputs.table, inputs.prepared.blind),
        arm=decision.arm.value,
        propensity=decision.propensity,
        passes=choice.passes,
    )


def explain(choice: Choice) -> Mapping[str, Any]:
    """The inputs of a decision, its receipt, and a recomputation of the decision."""
    inputs = choice.inputs
    assert inputs is not None and choice.moment is not None, "in mode off nothing is decided"
    unhurried = look(choice.ask._replace(left_ms=math.inf), choice.moment, choice.queue_ms, choice.own_ms)
    again, table, facts, price, limits = inputs.replay(), inputs.table, inputs.ask.facts, inputs.price.value, inputs.limits
    values, costs = table.values_of(facts, blind=inputs.prepared.blind), table.costs_ms(facts)
    return {
        "request_id": inputs.ask.request_id,
        "receipt": choice.receipt(),
        "inputs": {
            "facts": facts._asdict(),
            "class": inputs.ask.group,
            "sheddable": limits.sheddable,
            "left_ms": inputs.ask.left_ms,
            "wait_ms": limits.wait_ms,
            "bound_ms": limits.bound_ms,
            "plan": inputs.moment.plan,
            "floor": inputs.moment.floor,
            "lambda": finite(price),
            "arm": choice.arm.value,
        },
        "actions": [
            {
                "action": table.actions[place].name,
                "value": values[place],
                "cost_ms": costs[place],
                "net": finite(values[place] - price * costs[place]),
                "in_time": place in inputs.allowed,
            }
            for place in unhurried.allowed
        ],
        "replayed_action": table.actions[again.action].name,
        "equal": again.action == choice.action,
    }


def _reason(inputs: Inputs, decision: Decision) -> str:
    limits = inputs.limits
    if not limits.sheddable:
        return f"class {inputs.ask.group} is not sheddable"
    if decision.arm is not Arm.POLICY:
        return f"random slice {decision.arm.value}"
    if decision.by_rule:
        return f"the user's last {inputs.table.drop.row} answers were followed by nothing"
    if decision.price.source is Source.NONE:
        return "no pressure" if limits.last == limits.whole else "the deadline allows no more"
    return {
        Source.QUEUE: f"{limits.wait_ms:.1f} ms of work wait, of {limits.bound_ms:.1f}",
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
    passes: int = 1,
) -> Mapping[str, Any]:
    """schemas.requests.Receipt, as it travels."""
    return {
        "mode": mode.value,
        "action": action,
        "candidates": candidates,
        "passes": passes,
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
