"""The rule of allocation: how much work one request gets, and why.

    price     the highest of the plan's, the queue's and the floor's
    allowed   lists that are long enough for the answer and in time, a kept answer if there is one, and a drop where the table's values decide
    best      the allowed action with the highest value - price x cost; full work at a price of 0
    action    the best one, or what the request's random slice or the drop rule prescribes

The hash of the request's id draws the random slices. In `probe` a request gets full work, in `random` any action that is allowed. In `undropped` the drop
rule never drops it. They make fits and judgements unbiased. So every decision has its propensity: the chance with which this request gets this action.

Here: pure functions. Not here: the parts of the price (core/price.py), costs, values and their table (schemas/allocation.py, serving/allocation/tables.py),
carrying a decision out (serving/allocation/decisions.py).
"""

import enum
import hashlib
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.actions import SECOND_PASS
from schemas.allocation import ActionTable, Facts, LevelCost
from schemas.knapsack import choose_one
from serving.core.price import Price, highest, queue_price

DEFAULT_CLASS = "default"
BOUND_WORK = 2.0  # the queue at which the price is infinite, in multiples of the mean full work
ROOM = 2  # an answer of k items is made from so many times k candidates, because some of them may be unknown
ANY_CLASS = (1.0, True)


class Mode(enum.StrEnum):
    """What the allocator may do."""

    OFF = "off"
    SHADOW = "shadow"
    QUEUE = "queue"
    VALUE = "value"


class Arm(enum.StrEnum):
    """Who chose the action."""

    POLICY = "policy"
    PROBE = "probe"
    RANDOM = "random"
    UNDROPPED = "undropped"


class Slices(NamedTuple):
    """Shares of requests in the random slices; the rest is the policy's."""

    probe: float
    random: float
    undropped: float


NO_SLICES = Slices(0.0, 0.0, 0.0)


# --- inputs ----------------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """One request, as the decision sees it. `left_ms`: of its deadline; `drop_due`: the drop rule wants to drop it."""

    request_id: str
    version: int
    facts: Facts
    top_k: int
    left_ms: float
    group: str = DEFAULT_CLASS
    drop_due: bool = False


class Level(NamedTuple):
    """The lists of a level: their cost, their places in the table's actions, and their lengths, rising. More candidates than the last length take that one."""

    cost: LevelCost
    places: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    def find_lists(self, candidates: int, least: int) -> Sequence[int]:
        """The places of the lists that a request may get: from `least` candidates, or all of them, to all of them."""
        whole = bisect_left(self.lengths, candidates, 0, len(self.lengths) - 1)
        return self.places[bisect_left(self.lengths, least, 0, whole) : whole + 1]

    def all_ms(self, facts: Facts) -> float:
        """The cost of all candidates, also of more than the last length."""
        cost, behaviours = self.cost, facts.behaviours
        user_ms = cost.user_fixed_ms + 1e-3 * cost.user_behaviour_us * behaviours if facts.needs_user else 0.0
        return cost.fixed_ms + user_ms + facts.candidates * (1e-3 * cost.candidate_us + 1e-6 * cost.pair_ns * behaviours)


class Prepared(NamedTuple):
    """A table, and what is found in it once. `blind`: only its mean row decides; `unit`: of the queue's price and the floor.

    drop, cached: their places in the table's actions; -1 where it has no such action, or no age of an answer.
    """

    table: ActionTable
    blind: bool
    unit: float
    full: Level
    two_pass: Level
    drop: int
    cached: int


class Moment(NamedTuple):
    """What decides besides the request and the queue. It holds until the next tick, switch or table.

    plan, floor: prices. scale: measured time over the table's costs. full_ms: mean full work by the table, 0: not known yet. classes: (share, sheddable).
    """

    mode: Mode
    prepared: Prepared
    plan: float = 0.0
    floor: float = 0.0
    scale: float = 1.0
    full_ms: float = 0.0
    classes: Mapping[str, tuple[float, bool]] = {}
    slices: Slices = NO_SLICES


class Inputs(NamedTuple):
    """All that a decision depends on. queue_ms: all work that waits, measured; own_ms: that of the request's class, by the table."""

    ask: Ask
    moment: Moment
    queue_ms: float
    own_ms: float


# --- the rule --------------------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """What a request may get, and its price. `allowed`: places in the table's actions, ascending; the last one is a list of level `full`.

    queue: the queue's part of the price, at `wait_ms` of `bound_ms`. in_time: the deadline allows all candidates.
    """

    allowed: Sequence[int]
    price: Price
    queue: float
    wait_ms: float
    bound_ms: float
    sheddable: bool
    in_time: bool


class Decision(NamedTuple):
    """The action and its runner-up as places in the table's actions, and why. cost_ms, value: of the action, by the table.

    runner_up: the action itself where no other one is allowed. by_rule: dropped by the drop rule.
    """

    inputs: Inputs
    limits: Limits
    action: int
    runner_up: int
    cost_ms: float
    value: float
    arm: Arm
    propensity: float
    by_rule: bool


def decide(inputs: Inputs) -> Decision:
    """The decision. At an infinite price nothing is random, so that the slices cannot overload a server."""
    ask, moment, *_ = inputs
    of = moment.prepared
    costs, values = of.table.costs_ms(ask.facts), of.table.values_of(ask.facts, blind=of.blind)
    limits = find_limits(inputs, costs)
    allowed, price = limits.allowed, limits.price.value
    best, runner_up = (allowed[i] for i in choose_one([values[i] for i in allowed], [costs[i] for i in allowed], price))
    # Without a price full work, also where another level's list is dearer; at a full queue a kept answer, which takes none of the engine's time.
    certain = allowed[-1] if price <= 0 else of.cached if price == math.inf and of.cached in allowed else best
    if best != certain:
        best, runner_up = certain, best
    slices = moment.slices if price < math.inf else NO_SLICES
    arm, within = arm_of(ask.request_id, slices)
    due = ask.drop_due and of.drop in allowed
    wanted = of.drop if due else best
    tried = [place for place in allowed if place != of.drop]
    action = {Arm.PROBE: allowed[-1], Arm.RANDOM: tried[int(within * len(tried))], Arm.UNDROPPED: best, Arm.POLICY: wanted}[arm]
    propensity = (
        slices.probe * (action == allowed[-1])
        + slices.random * (action in tried) / len(tried)
        + slices.undropped * (action == best)
        + (1.0 - slices.probe - slices.random - slices.undropped) * (action == wanted)
    )
    by_rule = due and arm is Arm.POLICY
    return Decision(inputs, limits, action, best if by_rule else runner_up, costs[action], values[action], arm, propensity, by_rule)


def find_limits(inputs: Inputs, costs: Sequence[float]) -> Limits:
    """The limits of a request; `costs`: of the table's actions for it."""
    ask, moment, queue_ms, own_ms = inputs
    of, facts, scale = moment.prepared, ask.facts, moment.scale
    full_ms = of.full.all_ms(facts)
    share, sheddable = moment.classes.get(ask.group, ANY_CLASS)
    # A class within its share of the queue sees only its own work, one beyond it sees the whole queue.
    wait_ms = min(queue_ms, own_ms * scale / share)
    bound_ms = max(BOUND_WORK * (moment.full_ms or full_ms), full_ms) * scale
    queue = queue_price(wait_ms, bound_ms, of.unit)
    price = highest(moment.plan, queue, moment.floor)

    def in_time(lists: Sequence[int]) -> Sequence[int]:
        return [place for place in lists if queue_ms + costs[place] * scale <= ask.left_ms]

    lists = of.full.find_lists(facts.candidates, ROOM * ask.top_k)
    whole = lists[-1]
    if not sheddable:
        return Limits([whole], price, queue, wait_ms, bound_ms, sheddable, True)
    if queue_ms + full_ms * scale > ask.left_ms:  # the shortest list is allowed whatever the time
        lists = in_time(lists[:-1]) or lists[:1]
    least = SECOND_PASS * ROOM * ask.top_k  # the second pass must be long enough for the answer
    twice = of.two_pass.find_lists(facts.candidates, least) if of.two_pass.places and facts.candidates >= least else ()
    others = [of.drop] if of.drop >= 0 and not of.blind and 0 < price.value < math.inf else []
    others += [of.cached] if of.cached >= 0 and facts.cached_s is not None else []
    allowed = sorted([*others, *in_time(twice), *lists])
    return Limits(allowed, price, queue, wait_ms, bound_ms, sheddable, allowed[-1] == whole)


def arm_of(request_id: str, slices: Slices) -> tuple[Arm, float]:
    """The slice of a request, and a number in [0, 1) for the choice within it: equal for equal ids, on every server."""
    if slices == NO_SLICES or not request_id:
        return Arm.POLICY, 0.0
    digest = hashlib.blake2b(request_id.encode(), digest_size=16).digest()
    place, within = (int.from_bytes(half) / 2.0**64 for half in (digest[:8], digest[8:]))
    for arm, share in ((Arm.PROBE, slices.probe), (Arm.RANDOM, slices.random), (Arm.UNDROPPED, slices.undropped)):
        if place < share:
            return arm, within
        place -= share
    return Arm.POLICY, within
