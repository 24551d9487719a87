"""The decision before the answer: which work a request gets at the prices of this moment, in some microseconds.

Everything else about a decision can wait until its receipt is read: the runner-up, the propensity, the reason (decisions.py). Tests hold `pick` to the rule
in full (serving/core/choice.py), which takes ten times as long.

Here: pure functions of plain tuples, and their inputs.
"""

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from schemas.actions import SECOND_PASS
from schemas.allocation import Facts
from serving.allocation.prepared import Prepared
from serving.core.choice import Arm, Slices, arm_of
from serving.core.ladder import count_in_time
from serving.core.price import queue_price

DEFAULT_CLASS = "default"
DROP, CACHED = -1, -2  # picked instead of a place in `Prepared.lengths`
BOUND_WORK = 2.0  # the queue at which the price is infinite, in multiples of the mean full work
ROOM = 2  # an answer of k items is made from so many times k candidates, because some of them may be unknown
ANY_CLASS = (1.0, True)


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
    slices: Slices = Slices()


class Limits(NamedTuple):
    """What a request may get, and the queue's price for it, at `wait_ms` of `bound_ms`. base_ms, each_ms: its cost without candidates, and of each one.

    first, last, whole: places in the table's lengths of the shortest and the longest list that it may get, and of all its candidates.
    """

    base_ms: float
    each_ms: float
    first: int
    last: int
    whole: int
    sheddable: bool
    queue: float
    wait_ms: float
    bound_ms: float


class Lengths(NamedTuple):
    """The lengths of a level that a request may get, from place `first` to `last`, and its cost there: without candidates, and of each one."""

    base_ms: float
    each_ms: float
    first: int
    last: int

    def cost_ms(self, of: Prepared, place: int, candidates: int) -> float:
        """The cost of a length."""
        return self.base_ms + min(of.lengths[place], candidates) * self.each_ms


def find_two_pass(ask: Ask, moment: Moment, queue_ms: float) -> Lengths | None:
    """The lengths of two passes that a request may get. None: the table has none, its second pass would be too short for the answer, or none is in time."""
    of, candidates, scale, least = moment.prepared, ask.facts.candidates, moment.scale, SECOND_PASS * ROOM * ask.top_k
    if not of.start or candidates < least:
        return None
    last = bisect_left(of.lengths, candidates, 0, of.start - 1)
    found = Lengths(*of.two_pass.parts(ask.facts), bisect_left(of.lengths, least, 0, last), last)
    while queue_ms + found.cost_ms(of, last, candidates) * scale > ask.left_ms:
        last -= 1
        if last < found.first:
            return None
    return found._replace(last=last)


def find_limits(ask: Ask, moment: Moment, queue_ms: float, own_ms: float) -> Limits:
    """The limits of a request; the arguments are those of `pick`."""
    of, facts, scale = moment.prepared, ask.facts, moment.scale
    share, sheddable = moment.classes.get(ask.group, ANY_CLASS)
    first, whole = of.bounds(facts.candidates, ROOM * ask.top_k)
    base_ms, each_ms = of.full.parts(facts)
    last, full_ms = whole, base_ms + facts.candidates * each_ms
    if queue_ms + full_ms * scale > ask.left_ms:
        costs_ms = [(base_ms + length * each_ms) * scale for length in of.lengths[first:whole]]
        last = first + count_in_time(costs_ms, queue_ms, ask.left_ms) - 1
    # A class within its share of the queue sees only its own work, one beyond it sees the whole queue.
    wait_ms = min(queue_ms, own_ms * scale / share)
    bound_ms = max(BOUND_WORK * (moment.full_ms or full_ms), full_ms) * scale
    return Limits(base_ms, each_ms, first, last, whole, sheddable, queue_price(wait_ms, bound_ms, of.unit), wait_ms, bound_ms)


def draw_arm(ask: Ask, moment: Moment) -> tuple[Arm, float]:
    """The random slice of a request. Mode value alone has slices, without a table too: the first one is learnt from them."""
    return arm_of(ask.request_id, moment.slices) if moment.mode is Mode.VALUE and ask.request_id else (Arm.POLICY, 0.0)


def pick(ask: Ask, moment: Moment, queue_ms: float, own_ms: float) -> tuple[int, float, float]:
    """(a place in `Prepared.lengths`, or DROP or CACHED; ms of the request without candidates; ms of each candidate), both by the table.

    queue_ms: all work that waits, measured; own_ms: that of the request's class, by the table.
    """
    of, facts = moment.prepared, ask.facts
    base_ms, each_ms, first, last, whole, sheddable, queue, *_ = find_limits(ask, moment, queue_ms, own_ms)
    if not sheddable:
        return whole, base_ms, each_ms
    price = max(moment.plan, moment.floor, queue)
    arm, within = draw_arm(ask, moment)
    if arm is not Arm.RANDOM and price <= 0:
        return last, base_ms, each_ms
    has_cached = facts.cached_s is not None and of.cached is not None
    full, two_pass = Lengths(base_ms, each_ms, first, last), find_two_pass(ask, moment, queue_ms)
    if price == math.inf:
        if has_cached:
            return CACHED, base_ms, each_ms
        if two_pass and two_pass.cost_ms(of, two_pass.first, facts.candidates) <= full.cost_ms(of, first, facts.candidates):
            return two_pass.first, two_pass.base_ms, two_pass.each_ms
        return first, base_ms, each_ms
    if arm is Arm.PROBE:
        return last, base_ms, each_ms
    if arm is Arm.RANDOM:
        twice = two_pass.last - two_pass.first + 1 if two_pass else 0
        place = int(within * (twice + last - first + 1 + has_cached)) - has_cached
        if two_pass and 0 <= place < twice:
            return two_pass.first + place, two_pass.base_ms, two_pass.each_ms
        return first + place - twice if place >= 0 else CACHED, base_ms, each_ms
    drops = moment.mode is Mode.VALUE and not of.blind and of.drop is not None and price > 0
    if drops and ask.drop_due and arm is Arm.POLICY:
        return DROP, base_ms, each_ms
    picked = _best(of, facts, price, full, two_pass, has_cached, drops)
    return (picked, *two_pass[:2]) if two_pass and 0 <= picked < of.start else (picked, base_ms, each_ms)


def _best(of: Prepared, facts: Facts, price: float, full: Lengths, two_pass: Lengths | None, has_cached: bool, drops: bool) -> int:
    """The pick with the greatest value less price times cost."""
    table = of.table
    if of.blind:  # the mean row, in proportion to the cost of the whole request
        bin_, value = 0, full.cost_ms(of, len(of.lengths) - 1, facts.candidates) / table.full_ms if table.full_ms else 1.0
    else:
        bin_, value = bisect_left(of.bins, math.log1p(facts.behaviours)), table.values.whole(facts)
    best, net = _best_length(of, bin_, value, price, full, facts.candidates)
    if two_pass and (twice := _best_length(of, bin_, value, price, two_pass, facts.candidates))[1] > net:
        best, net = twice
    if has_cached:
        cached_net = value * of.rows[bin_][-1] * table.kept_share(facts.cached_s or 0.0) - price * table.costs.cached_ms
        best, net = (CACHED, cached_net) if cached_net > net else (best, net)
    if drops and value * of.drop_shares[bin_] - price * table.costs.drop_ms > net:
        best = DROP
    return best


def _best_length(of: Prepared, bin_: int, value: float, price: float, level: Lengths, candidates: int) -> tuple[int, float]:
    """(the best length of a level, its value less price times cost)."""
    base_ms, each_ms, first, last = level
    # A list of all candidates may be shorter than its length in the table, so the steps end before it.
    row, candidate_price, to = of.rows[bin_], price * each_ms, last - (candidates < of.lengths[last] and first < last)
    steps, falls = of.steps.get((bin_, first, to)) or of.find_steps(bin_, first, to)
    best = steps[bisect_left(falls, -candidate_price / value)]
    net = value * row[best] - candidate_price * min(candidates, of.lengths[best])
    if to < last and (whole_net := value * row[last] - candidate_price * candidates) > net:
        best, net = last, whole_net
    return best, net - price * base_ms
