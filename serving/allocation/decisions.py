"""A decision about one request, with everything that it depends on: how it is made again, and how it reads as a receipt.

Here: pure functions of plain values. Not here: where the values come from (allocator.py), the rule (serving/core/choice.py).
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from schemas.allocation import ActionTable, Facts
from serving.core.choice import Arm, Decision, Slices, decide
from serving.core.price import Price, Source

DEFAULT_CLASS = "default"


class Mode(enum.StrEnum):
    """What the allocator may do."""

    OFF = "off"
    SHADOW = "shadow"
    QUEUE = "queue"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, as the decision sees it. `left_ms`: of its deadline."""

    request_id: str
    version: int
    facts: Facts
    top_k: int
    left_ms: float
    group: str = DEFAULT_CLASS


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a decision depends on. `replay` is a pure function of it."""

    ask: Ask
    mode: Mode
    table: ActionTable
    blind: bool
    price: Price
    allowed: tuple[int, ...]
    arm: tuple[Arm, float]
    slices: Slices
    wait_ms: float
    bound_ms: float
    plan: float
    floor: float
    in_time: int  # of the allowed actions, so many fit into the deadline
    sheddable: bool
    full_ms: float  # of the whole request, by the table's costs

    def replay(self) -> Decision:
        """The decision."""
        places = self.allowed[: self.in_time] if self.sheddable else self.allowed[-1:]
        return decide(self.table, self.ask.facts, self.price, places, self.arm, self.slices, blind=self.blind)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request gets. `candidates`: how many of its candidates are ranked, None if all; 0: it is dropped. `expected_ms`: by the table's costs."""

    candidates: int | None
    expected_ms: float
    group: str
    inputs: Inputs | None
    decision: Decision | None
    offered: int = 0  # candidates of the request

    @property
    def shed(self) -> bool:
        """Whether the request is dropped."""
        return self.candidates == 0

    def receipt(self) -> Mapping[str, Any]:
        """schemas.requests.Receipt, as it travels."""
        return off_receipt(self.offered) if self.inputs is None or self.decision is None else _describe(self, self.inputs, self.decision)


def _describe(choice: Choice, inputs: Inputs, decision: Decision) -> Mapping[str, Any]:
    actions, facts = inputs.table.actions, inputs.ask.facts
    action = actions[decision.action]
    ranked = 0 if choice.candidates == 0 else min(facts.candidates, choice.candidates or facts.candidates)
    runner_up = actions[decision.runner_up].name if decision.runner_up in inputs.allowed and decision.runner_up != decision.action else ""
    name = name_table(inputs.table, inputs.blind)
    return make_receipt(
        inputs.mode,
        action.name,
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
    if decision.price.source is Source.NONE:
        return "no pressure" if inputs.in_time == len(inputs.allowed) else "the deadline allows no more"
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
