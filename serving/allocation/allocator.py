"""How much work each request gets: the mode, the price of this moment, the decision, and its receipt.

    off     every request gets full work, and admission refuses
    shadow  the same, and counts what `queue` would have done
    queue   the price falls on the table's mean row: under load requests are ranked in two passes or with fewer candidates, not refused
    value   the same with the value of each request, if the table's gate allows it; worthless requests of sheddable classes are dropped

The price is the highest of three (core/price.py). Each request reads `queue` from the work that waits. `plan` is set every 0.2 s: the price at which the
last requests fit into the time. `floor` rises while answers are late or refused.

Here: state and wiring. Not here: the decision (core/choice.py), its receipt (decisions.py), values and costs (schemas/allocation.py).
Invariants: at a price of 0 a request gets full work, unless its deadline allows less or a random slice chose. The queue's bound is never below the cost of
the request's full work, so an idle server cannot lock itself out. Only this server's own queue moves the price. Decision and submission happen in one turn
of the event loop, so a decision never reads a queue that another one is about to fill.
"""

import math
import time
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from infra.metrics import Metrics
from schemas.actions import TWO_PASS
from schemas.allocation import CachedAge, Facts, Requests, stack_costs, stack_values
from schemas.errors import RejectedInput
from schemas.ids import Id
from schemas.knapsack import find_price
from serving.allocation.answers_in_row import AnswersInRow
from serving.allocation.decisions import Choice, choose_work, explain, finite, make_receipt, name_table
from serving.allocation.outcomes import Given, Outcomes, Probe
from serving.allocation.score_cache import ScoreCache
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables, prepare
from serving.core.choice import DEFAULT_CLASS, NO_SLICES, ROOM, Arm, Ask, Inputs, Mode, Moment, Prepared, Slices, decide
from serving.core.price import Floor, Price, fold_floor, highest

TARGET = 0.95  # share of the engine's time that the plan spends
TICK_S = 0.2
_PLAN_WEIGHT = 0.4  # of the newest tick in the offered work
_MEAN_WEIGHT = 0.05
_SAMPLED = 64  # requests from which the plan's price is found
_KEPT = 10_000  # decisions that can be explained
_TIMED_EACH, _TIMED = 4, 8_192  # one decision in so many is timed; times that are kept
_FOLDED = 4_096  # decisions after which they are counted, where no tick comes
_PREPARED_MAX = 16
_NOTHING_MS = 1e-6  # what rounding leaves of work that is done


class Queue(Protocol):
    """The engine's queue, as serving/calls/paced_engine.py shows it. `refused`: requests that admission refused before their decision, since the start."""

    refused: int
    worked_ms: float  # measured since the start
    full_ms: float  # mean full work, below which admission's bounds do not fall; 0: no bound

    def queue_ms(self) -> float:
        """Milliseconds that a piece of work submitted now would wait."""

    def cost_scale(self) -> float:
        """What work took, divided by what the table expected."""


class Allocator:
    """Decides for one server. Used in the event loop only."""

    def __init__(
        self,
        settings: AllocationSection,
        tables: Tables,
        metrics: Metrics,
        queue: Queue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes: Outcomes | None = None
        self.tables, self._metrics, self._clock = tables, metrics, clock
        self._queue = queue
        self.mode = Mode(settings.mode)
        self._slices = Slices(settings.probe_share, settings.random_share, settings.undropped_share)
        self._full_ms = 0.0  # mean of full work, by the table's costs
        self._scale = 1.0  # measured time over the table's costs, as of the last tick
        self._plan, self._floor, self._floor_price = 0.0, Floor(), 0.0
        self._offered_ms, self._let_in_ms = 0.0, 0.0  # since the last tick, by the table: full work, chosen work
        self._demand = 0.0  # full work offered a ms of time, smoothed
        self._worked_ms, self._queue_price = 0.0, 0.0  # at the last tick; of the last request
        self._recent: deque[Facts] = deque(maxlen=_SAMPLED)
        self._tick_s, self._tick_refused, self._tick_answers, self._troubled = clock(), 0, 0, 0
        self._classes = {name: (group.share, group.sheddable) for name, group in settings.classes.items()}
        # Ms of work in the engine's queue, by class; only of classes that have some, because callers name them.
        self._waiting: dict[str, float] = {}
        self.scores = ScoreCache(settings)
        self._in_row = AnswersInRow()
        self._made: list[Choice] = []  # since they were counted last
        self._kept: OrderedDict[str, Choice] = OrderedDict()
        # By version: until the next tick, and until the next switch or table.
        self._moments: dict[int, Moment] = {}
        self._prepared: dict[int, Prepared] = {}
        self._prepared_from = tables.known
        self._took_ns: deque[int] = deque(maxlen=_TIMED)  # by decision
        self._counts: Counter[tuple[str, str]] = Counter()
        self._shortened = 0  # requests that got less than full work

    # --- the decision --------------------------------------------------------------------------------------------------

    def least(self, candidates: int, top_k: int) -> int:
        """The fewest candidates that a request may be ranked with now: what admission has to find time for."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return candidates
        of = self._moment(self.tables.version()).prepared
        shortest, *longer = of.full.find_lists(candidates, ROOM * top_k)
        return of.table.actions[shortest].candidates if longer else candidates

    def decide(self, ask: Ask) -> Choice:
        """The work of one request. The caller submits it at once, and calls `end` when it is done. Counted later, by `_fold`: it delays requests."""
        if self.mode is Mode.OFF:
            return Choice(ask)
        if len(self._made) % _TIMED_EACH:
            return self._decide(ask)
        began_ns = time.perf_counter_ns()
        choice = self._decide(ask)
        self._took_ns.append(time.perf_counter_ns() - began_ns)
        return choice

    def _decide(self, ask: Ask) -> Choice:
        own_ms = self._waiting.get(ask.group, 0.0)
        choice = choose_work(Inputs(ask, self._moment(ask.version), self._queue.queue_ms(), own_ms))
        self._waiting[ask.group] = own_ms + choice.expected_ms
        self._made.append(choice)
        if len(self._made) >= _FOLDED:
            self._fold()
        return choice

    def suggest(self, version: int, behaviours: int) -> int | None:
        """How many candidates are worth sending now, for call 1's answer: one length more than would be ranked. None: all."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return None
        moment = self._moment(version)
        of, own_ms = moment.prepared, self._waiting.get(DEFAULT_CLASS, 0.0)
        ask = Ask("", version, Facts(of.full.lengths[-1], behaviours), 0, math.inf)
        action = of.table.actions[decide(Inputs(ask, moment, self._queue.queue_ms(), own_ms)).action]
        lengths = (of.two_pass if action.level == TWO_PASS else of.full).lengths
        longer = bisect_right(lengths, max(lengths[0], action.candidates))  # a drop has none
        return lengths[longer] if longer < len(lengths) - 1 else None

    def ages(self, version: int) -> Sequence[CachedAge]:
        """The calibration of cached answers by the version's table."""
        return self._moment(version).prepared.table.ages

    def is_drop_due(self, version: int, user: Id, behaviours_at: int) -> bool:
        """Whether the drop rule of the version's table drops this request; `behaviours_at`: the offset of the user's newest behaviour."""
        rule = self._moment(version).prepared.table.drop
        return rule.row > 0 and self._in_row.is_due(rule, user, behaviours_at)

    def is_probe(self, choice: Choice) -> bool:
        """Whether a fit needs all scores of this request: it was drawn to get full work, and outcomes are sent."""
        return self.outcomes is not None and choice.is_full and choice.arm is Arm.PROBE

    def end(
        self,
        choice: Choice,
        user: Id = 0,
        state: str = "ranked",
        took_ms: float | None = None,
        probe: Probe | None = None,
        given: Given | None = None,
    ) -> None:
        """The work of a choice is done, or was refused. `state`: ranked, cached, dropped, refused, late (its deadline passed) or failed."""
        waiting_ms = self._waiting.pop(choice.ask.group, 0.0) - choice.expected_ms
        if waiting_ms > _NOTHING_MS:
            self._waiting[choice.ask.group] = waiting_ms
        self._troubled += state in ("late", "refused")
        if choice.by_rule or state in ("ranked", "cached"):
            self._in_row.note(user, dropped=choice.by_rule)
        if self.outcomes is not None and choice.decision is not None:
            self.outcomes.note(user, choice, "failed" if state == "late" else state, took_ms, probe, given)

    def _moment(self, version: int) -> Moment:
        if self.tables.known is not self._prepared_from:
            self._moments, self._prepared, self._prepared_from = {}, {}, self.tables.known
        return self._moments.get(version) or self._make_moment(version)

    def _make_moment(self, version: int) -> Moment:
        of = self._prepared.get(version)
        if of is None:
            table, blind = self.tables.find(version)
            if len(self._prepared) >= _PREPARED_MAX:
                self._prepared.clear()
                self._moments.clear()
            of = self._prepared[version] = prepare(table, blind or self.mode is not Mode.VALUE)
        slices = self._slices if self.mode is Mode.VALUE else NO_SLICES
        moment = Moment(self.mode, of, self._plan, self._floor_price, self._scale, self._full_ms, self._classes, slices)
        self._moments[version] = moment
        return moment

    def _fold(self) -> None:
        """Counts the decisions that were made since the last time."""
        made, self._made = self._made, []
        for choice in made:
            facts, decision = choice.ask.facts, choice.decision
            assert decision is not None, "in mode off nothing is decided"
            moment, self._queue_price = decision.inputs.moment, decision.limits.queue
            full_ms = moment.prepared.full.all_ms(facts)
            self._counts[moment.mode.value, choice.action.name] += 1
            self._shortened += not choice.is_full
            self._full_ms += (_MEAN_WEIGHT if self._full_ms else 1.0) * (full_ms - self._full_ms)
            self._offered_ms += full_ms
            self._let_in_ms += choice.expected_ms
            self._recent.append(facts)
            self._kept[choice.ask.request_id] = choice
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._tick_answers += len(made)

    # --- the plan ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called several times a second: the plan's price and the floor."""
        passed_s = self._clock() - self._tick_s
        if passed_s < 0:  # a clock that jumped
            self._tick_s = self._clock()
        if passed_s < TICK_S / 2:
            return
        self._fold()
        refused = self._queue.refused
        turned_away = max(0, refused - self._tick_refused)
        answers = self._tick_answers
        self._scale = self._queue.cost_scale()
        # A refused request is taken for one like the others.
        offered_ms = self._scale * self._offered_ms * (1 + turned_away / max(1, answers))
        self._demand += _PLAN_WEIGHT * (offered_ms / (1000 * passed_s) - self._demand)
        trouble = (turned_away + self._troubled) / max(1, turned_away + answers)
        self._floor = fold_floor(self._floor, trouble, passed_s)
        self.hold(self._find_plan(), self._floor.price(self._moment(self.tables.version()).prepared.unit))
        self._queue.full_ms = self._full_ms * self._scale if self.mode in (Mode.QUEUE, Mode.VALUE) else 0.0
        self._show_tick(1000 * passed_s)
        self._offered_ms, self._let_in_ms = 0.0, 0.0
        self._tick_answers, self._troubled, self._tick_refused, self._tick_s = 0, 0, refused, self._clock()

    def _show_tick(self, passed_ms: float) -> None:
        worked_ms = self._queue.worked_ms - self._worked_ms
        self._worked_ms += worked_ms
        self._metrics.gauge("allocation_utilisation").set(min(1.0, worked_ms / passed_ms))
        let_in_ms = self._scale * self._let_in_ms
        self._metrics.counter("allocation_over_utilised_ticks").inc(let_in_ms > passed_ms)
        for kind, ms in (("full", self._scale * self._offered_ms), ("expected", let_in_ms), ("measured", worked_ms)):
            self._metrics.counter("allocation_work_seconds").labels(kind).inc(ms / 1000)

    def hold(self, plan: float, floor: float = 0.0) -> None:
        """Sets the prices that hold until the next tick."""
        self._plan, self._floor_price, self._moments = plan, floor, {}

    def _find_plan(self) -> float:
        """The price at which requests like the last ones take TARGET of the engine's time; 0 if their full work does."""
        if self._demand <= TARGET or not self._recent:
            return 0.0
        of, requests = self._moment(self.tables.version()).prepared, Requests.of(self._recent)
        value_RA, cost_RA = stack_values(of.table, requests, blind=of.blind), stack_costs(of.table, requests)
        return find_price(value_RA, cost_RA, float(cost_RA[:, -1].mean()) * TARGET / self._demand)

    # --- what others see -----------------------------------------------------------------------------------------------

    def switch(self, mode: str) -> None:
        """Changes the mode now. Raises RejectedInput (`bad_mode`)."""
        if mode not in list(Mode):
            raise RejectedInput("bad_mode", f"mode is {str(mode)[:40]!r}, expected one of {', '.join(Mode)}")
        self.mode, self._floor, self._demand, self._prepared = Mode(mode), Floor(), 0.0, {}
        self.hold(0.0)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Decisions by mode and action."""
        self._fold()
        return self._counts

    def show(self) -> None:
        """Writes the state into the metrics."""
        gauge = self._metrics.gauge
        for source, value in (("plan", self._plan), ("queue", self._queue_price), ("floor", self._floor_price)):
            gauge("allocation_price").labels(source).set(value)
        gauge("allocation_demand").set(self._demand)
        gauge("allocation_cost_scale").set(self._queue.cost_scale())
        gauge("allocation_mode").set(list(Mode).index(self.mode))
        age_s = self.tables.age_s()
        gauge("allocation_table_age_seconds").set(math.nan if age_s is None else age_s)
        for labels, count in self.counts.items():
            self._metrics.count_to("allocation_actions", count, *labels)

    def refusal(self, retry_after_s: float, reason: str) -> Mapping[str, Any]:
        """The receipt of a request that admission refused, before or after its decision."""
        price = Price() if self.mode is Mode.OFF else highest(self._plan, 0.0, self._floor_price)
        return make_receipt(self.mode, "drop", 0, price, 0.0, 0.0, "", f"admission: {reason}", "", retry_after_s=retry_after_s)

    def explain(self, request_id: str) -> Mapping[str, Any]:
        """The inputs of a decision, its receipt, and a recomputation of the decision. Raises RejectedInput (`unknown_request`)."""
        self._fold()
        choice = self._kept.get(request_id)
        if choice is None:
            raise RejectedInput(
                "unknown_request",
                f"no decision for request {request_id[:80]!r}: this server keeps the last {_KEPT}, and none in mode off; ask the server that answered it",
            )
        return explain(choice)

    def status(self) -> Mapping[str, Any]:
        """The state as plain values."""
        table, blind = self.tables.find()
        p50_us, p99_us = np.quantile(np.array(self._took_ns or [0]) / 1_000, (0.5, 0.99)).tolist()
        by_mode: dict[str, dict[str, int]] = {}
        for (mode, action), count in sorted(self.counts.items()):
            by_mode.setdefault(mode, {})[action] = count
        return {
            "mode": self.mode.value,
            "table": name_table(table, blind or self.mode is not Mode.VALUE),
            "table_error": self.tables.last_error,
            "lambda": {"plan": self._plan, "floor": self._floor_price, "unit": self._moment(self.tables.version()).prepared.unit},
            "lambda_now": finite(max(self._plan, self._queue_price, self._floor_price)),
            "shortened": self._shortened,
            "answers_kept": len(self.scores),
            "dropped_by_rule_share": self._in_row.dropped_share,
            "demand": self._demand,
            "cost_scale": self._queue.cost_scale(),
            "queue_ms": self._queue.queue_ms(),
            "actions": by_mode,
            "decision_p50_us": p50_us,
            "decision_p99_us": p99_us,
        }
