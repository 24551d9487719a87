"""A decision carried out: the work that the request gets, its receipt, and its explanation.

Here: pure functions of plain values. Not here: the rule (serving/core/choice.py), the moment of a server (allocator.py).
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.actions import TWO_PASS, Action, Kind
from schemas.allocation import ActionTable
from serving.core.choice import Arm, Ask, Decision, Inputs, Mode, decide, find_limits
from serving.core.price import Price, Source


class Choice(NamedTuple):
    """What a request gets. `candidates`: how many of its candidates are ranked, None if all; 0: it is dropped, or gets a kept answer.

    expected_ms: by the table's costs. passes: 2 if the candidates are ranked by level `twopass`. decision: None in mode off, where nothing is decided.
    """

    ask: Ask
    candidates: int | None = None
    expected_ms: float = 0.0
    passes: int = 1
    decision: Decision | None = None

    @property
    def is_full(self) -> bool:
        """Whether the request gets full work."""
        return self.candidates is None and self.passes == 1

    @property
    def cached(self) -> bool:
        """Whether the request gets a kept answer."""
        return self.candidates == 0 and self.action.kind is Kind.CACHED

    @property
    def shed(self) -> bool:
        """Whether the request is dropped."""
        return self.candidates == 0 and self.action.kind is Kind.DROP

    @property
    def arm(self) -> Arm:
        """The slice of the request."""
        return Arm.POLICY if self.decision is None else self.decision.arm

    @property
    def by_rule(self) -> bool:
        """Whether the drop rule drops it."""
        return self.decision is not None and self.decision.by_rule

    @property
    def action(self) -> Action:
        """The action of the decision. In mode shadow the request gets full work instead."""
        assert self.decision is not None, "in mode off nothing is decided"
        return self.decision.inputs.moment.prepared.table.actions[self.decision.action]

    def receipt(self) -> Mapping[str, Any]:
        """schemas.requests.Receipt, as it travels."""
        decision, candidates = self.decision, self.ask.facts.candidates
        if decision is None:
            return off_receipt(candidates)
        moment = decision.inputs.moment
        of = moment.prepared
        return make_receipt(
            moment.mode,
            self.action.name,
            candidates if self.candidates is None else self.candidates,
            decision.limits.price,
            decision.value,
            decision.cost_ms,
            of.table.actions[decision.runner_up].name if decision.runner_up != decision.action else "",
            _reason(decision),
            name_table(of.table, of.blind),
            arm=decision.arm.value,
            propensity=decision.propensity,
            passes=self.passes,
        )


def choose_work(inputs: Inputs) -> Choice:
    """The choice for a request. In mode shadow it gets full work, and the decision is that of mode queue."""
    decision = decide(inputs)
    ask, moment, *_ = inputs
    of, action = moment.prepared, moment.prepared.table.actions[decision.action]
    if moment.mode is Mode.SHADOW:
        return Choice(ask, None, of.full.all_ms(ask.facts), decision=decision)
    if action.kind is not Kind.RANK:
        return Choice(ask, 0, decision.cost_ms, decision=decision)
    level, passes = (of.two_pass, 2) if action.level == TWO_PASS else (of.full, 1)
    if action.candidates < min(ask.facts.candidates, level.lengths[-1]):
        return Choice(ask, action.candidates, decision.cost_ms, passes, decision)
    return Choice(ask, None, level.all_ms(ask.facts), passes, decision)


def explain(choice: Choice) -> Mapping[str, Any]:
    """The inputs of a decision, its receipt, and a recomputation of the decision."""
    decision = choice.decision
    assert decision is not None, "in mode off nothing is decided"
    inputs, limits, price = decision.inputs, decision.limits, decision.limits.price.value
    ask, moment, *_ = inputs
    table, facts = moment.prepared.table, ask.facts
    values, costs = table.values_of(facts, blind=moment.prepared.blind), table.costs_ms(facts)
    unhurried = find_limits(inputs._replace(ask=ask._replace(left_ms=math.inf)), costs)
    again = decide(inputs)
    return {
        "request_id": ask.request_id,
        "receipt": choice.receipt(),
        "inputs": {
            "facts": facts._asdict(),
            "class": ask.group,
            "sheddable": limits.sheddable,
            "left_ms": ask.left_ms,
            "wait_ms": limits.wait_ms,
            "bound_ms": limits.bound_ms,
            "plan": moment.plan,
            "floor": moment.floor,
            "lambda": finite(price),
            "arm": decision.arm.value,
        },
        "actions": [
            {
                "action": table.actions[place].name,
                "value": values[place],
                "cost_ms": costs[place],
                "net": finite(values[place] - price * costs[place]),
                "in_time": place in limits.allowed,
            }
            for place in unhurried.allowed
        ],
        "replayed_action": table.actions[again.action].name,
        "equal": again == decision,
    }


def _reason(decision: Decision) -> str:
    ask, moment, *_ = decision.inputs
    limits = decision.limits
    if not limits.sheddable:
        return f"class {ask.group} is not sheddable"
    if decision.arm is not Arm.POLICY:
        return f"random slice {decision.arm.value}"
    if decision.by_rule:
        return f"the user's last {moment.prepared.table.drop.row} answers were followed by nothing"
    if limits.price.source is Source.NONE:
        return "no pressure" if limits.in_time else "the deadline allows no more"
    return {
        Source.QUEUE: f"{limits.wait_ms:.1f} ms of work wait, of {limits.bound_ms:.1f}",
        Source.PLAN: "more work is offered than the engine can do",
        Source.FLOOR: "answers were late or refused",
    }[limits.price.source]


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
