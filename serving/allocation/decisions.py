"""A decision about one request, with everything that it depends on: how it is made again, and how it reads as a receipt.

Here: pure functions of plain values. Not here: where the values come from (allocator.py), the rule (serving/core/choice.py).
"""

import enum
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.allocation import ActionTable, Facts, Kind
from serving.core.choice import Arm, Decision, Slices, decide
from serving.core.price import Price, Source, highest

DEFAULT_CLASS = "default"
LEVEL = "full"  # the engine computes all parts of the model, so lengths are what it can choose


class Mode(enum.StrEnum):
    """What the allocator may do."""

    OFF = "off"
    SHADOW = "shadow"
    QUEUE = "queue"
    VALUE = "value"


class Ask(NamedTuple):
    """One request, as the decision sees it. `left_ms`: of its deadline."""

    request_id: str
    version: int
    facts: Facts
    top_k: int
    left_ms: float
    group: str = DEFAULT_CLASS


class Inputs(NamedTuple):
    """Everything that a decision depends on. `replay` is a pure function of it. `plan`, `queue`, `floor`: the three prices."""

    ask: Ask
    mode: Mode
    table: ActionTable
    blind: bool
    plan: float
    queue: float
    floor: float
    allowed: tuple[int, ...]  # places in the table's actions
    in_time: int  # of these so many fit into the deadline
    sheddable: bool
    arm: tuple[Arm, float]
    slices: Slices
    wait_ms: float
    bound_ms: float
    full_ms: float  # of the whole request, by the table's costs

    @property
    def price(self) -> Price:
        """The highest of the three."""
        return highest(self.plan, self.queue, self.floor)

    def replay(self) -> Decision:
        """The decision."""
        places = self.allowed[: self.in_time] if self.sheddable else self.allowed[-1:]
        return decide(self.table, self.ask.facts, self.price, places, self.arm, self.slices, blind=self.blind)


class Choice(NamedTuple):
    """What a request gets. `candidates`: how many of its candidates are ranked, None if all; 0: it is dropped. `expected_ms`: by the table's costs."""

    candidates: int | None
    expected_ms: float
    group: str
    offered: int  # candidates of the request
    inputs: Inputs | None = None  # None in mode off
    action: int = -1  # its place in the table's actions

    @property
    def shed(self) -> bool:
        """Whether the request is dropped."""
        return self.candidates == 0

    def receipt(self) -> Mapping[str, Any]:
        """schemas.requests.Receipt, as it travels. Made when the answer is, so that it delays no decision."""
        return off_receipt(self.offered) if self.inputs is None else _describe(self, self.inputs, self.inputs.replay())


class Menu(NamedTuple):
    """The lengths that a request of a size may get, ascending. The last one takes all its candidates.

    Their costs are linear in the candidates. So at a price only points of the upper hull of value over candidates are ever best, and which one depends on the
    price of a candidate alone. `hull`: places in `allowed`; `steps`: minus the value of a candidate between two neighbours of the hull, ascending.
    """

    allowed: tuple[int, ...]
    names: tuple[str, ...]
    lengths: tuple[int, ...]
    hull: tuple[int, ...]
    steps: tuple[float, ...]

    def best(self, candidate_price: float) -> int:
        """The place in `allowed` of the best length."""
        return self.hull[bisect_left(self.steps, -candidate_price)] if candidate_price > 0 else len(self.allowed) - 1


def make_menu(table: ActionTable, candidates: int, least: int) -> Menu:
    """The lengths from `least` up to the first that takes all of so many candidates."""
    ranks = [(place, action.candidates) for place, action in enumerate(table.actions) if action.kind is Kind.RANK]
    whole = next((place for place, length in ranks if length >= candidates), ranks[-1][0])
    shorter = [(place, length) for place, length in ranks if least <= length < candidates and place < whole]
    allowed, lengths = zip(*shorter, (whole, candidates), strict=True)
    hull, steps = [0], list[float]()
    for number in range(1, len(allowed)):
        while True:
            left = hull[-1]
            step = (table.mean_row[allowed[number]] - table.mean_row[allowed[left]]) / (lengths[number] - lengths[left])
            if not steps or step < -steps[-1]:
                break
            hull.pop()
            steps.pop()
        if step > 0:
            hull.append(number)
            steps.append(-step)
    return Menu(allowed, tuple(table.actions[place].name for place in allowed), lengths, tuple(hull), tuple(steps))


def cost_ms(table: ActionTable, facts: Facts, candidates: int) -> float:
    """What ranking so many candidates of a request costs, by the table."""
    cost = table.costs.levels[LEVEL]
    user_ms = cost.user_fixed_ms + 1e-3 * cost.user_behaviour_us * facts.behaviours if facts.needs_user else 0.0
    return cost.fixed_ms + candidates * candidate_ms(table, facts) + user_ms


def candidate_ms(table: ActionTable, facts: Facts) -> float:
    """What each further candidate costs."""
    cost = table.costs.levels[LEVEL]
    return 1e-3 * cost.candidate_us + 1e-6 * cost.pair_ns * facts.behaviours


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
