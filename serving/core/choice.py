"""What to do with one request: argmax of value - price x cost over the allowed actions, or what a random slice prescribes; with a receipt.

The hash of the request's id draws the random slices. In `probe` a request gets full work, in `random` any action that is allowed. In `undropped` the drop
rule never drops it. They make fits and judgements unbiased. So every decision has its propensity: the chance with which this request gets this action.

Here: pure functions. Not here: the price (core/price.py), cost and value (schemas/allocation.py), carrying it out (serving/allocation).
"""

import enum
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.actions import Kind
from schemas.allocation import ActionTable, Facts
from schemas.knapsack import choose_one
from serving.core.price import Price


class Arm(enum.StrEnum):
    """Who chose the action."""

    POLICY = "policy"
    PROBE = "probe"
    RANDOM = "random"
    UNDROPPED = "undropped"


@dataclass(frozen=True, slots=True)
class Slices:
    """Shares of requests in the random slices; the rest is the policy's."""

    probe: float = 0.005
    random: float = 0.005
    undropped: float = 0.02


NO_SLICES = Slices(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """The receipt: the action and its runner-up as places in the table's actions, why, and its expected cost and value."""

    action: int
    runner_up: int
    price: Price
    cost_ms: float
    value: float
    arm: Arm
    propensity: float
    by_rule: bool = False  # dropped by the drop rule


def arm_of(request_id: str, slices: Slices) -> tuple[Arm, float]:
    """The slice of a request, and a number in [0, 1) for the choice within it: equal for equal ids, on every server."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=16).digest()
    place, within = (int.from_bytes(half) / 2.0**64 for half in (digest[:8], digest[8:]))
    for arm, share in ((Arm.PROBE, slices.probe), (Arm.RANDOM, slices.random), (Arm.UNDROPPED, slices.undropped)):
        if place < share:
            return arm, within
        place -= share
    return Arm.POLICY, within


class Steps(NamedTuple):
    """The lengths that some price makes the best, ascending, and minus the value per candidate that each step from one to the next adds, ascending too.

    The best length at a price p > 0 of a candidate is places[bisect_left(falls, -p)].
    """

    places: tuple[int, ...]
    falls: tuple[float, ...]


def make_steps(lengths: Sequence[int], row: Sequence[float], first: int, last: int) -> Steps:
    """The upper hull of values over lengths, between two places. A length below the hull is never the best, whatever the price."""
    places, falls = [first], list[float]()
    for place in range(first + 1, last + 1):
        while (fall := (row[places[-1]] - row[place]) / (lengths[place] - lengths[places[-1]])) <= (falls[-1] if falls else -math.inf):
            places.pop()
            falls.pop()
        if fall < 0:
            places.append(place)
            falls.append(fall)
    return Steps(tuple(places), tuple(falls))


def decide(
    table: ActionTable,
    facts: Facts,
    price: Price,
    allowed: Sequence[int],
    arm: tuple[Arm, float] = (Arm.POLICY, 0.0),
    slices: Slices = NO_SLICES,
    *,
    blind: bool = False,
    drop_due: bool = False,
) -> Decision:
    """The decision at a price. `allowed`: places of actions that this request may get, ascending, not empty. `drop_due`: the drop rule wants to drop it.

    The slices hold only where the price allows full work or less of it: at an infinite price nothing is random, so that they cannot overload a server.
    """
    values, costs = table.values_of(facts, blind=blind), table.costs_ms(facts)
    usable = [place for place in allowed if math.isfinite(values[place])]
    net = [values[place] if place in usable else -math.inf for place in range(len(values))]
    best, runner_up = choose_one(net, costs, price.value)
    if price.value <= 0 and best != usable[-1]:  # another level's list may be dearer than the longest one that the deadline allows
        best, runner_up = usable[-1], best
    drop = next((place for place in usable if table.actions[place].kind is Kind.DROP), None)
    wanted = drop if drop_due and drop is not None else best
    if math.isinf(price.value):
        return Decision(best, runner_up, price, costs[best], values[best], Arm.POLICY, 1.0)
    tried = [place for place in usable if table.actions[place].kind is not Kind.DROP]
    name, within = arm
    action = {Arm.PROBE: usable[-1], Arm.RANDOM: tried[int(within * len(tried))] if tried else best, Arm.UNDROPPED: best}.get(name, wanted)
    rest = 1.0 - slices.probe - slices.random - slices.undropped
    propensity = (
        slices.probe * (action == usable[-1])
        + slices.random * (action in tried) / max(1, len(tried))
        + slices.undropped * (action == best)
        + rest * (action == wanted)
    )
    by_rule = name is Arm.POLICY and drop_due and action == drop
    return Decision(action, best if by_rule else runner_up, price, costs[action], values[action], name, propensity, by_rule)
