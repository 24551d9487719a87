"""How much work each request gets: the mode, the price of this moment, the decision, and its receipt.

    off     every request gets full work, and admission refuses (today's path)
    shadow  the same, and counts what `queue` would have done
    queue   the price falls on the table's mean row: under load requests are ranked with fewer candidates, not refused
    value   the same with the value of each request, if the table's gate allows it; worthless requests of sheddable classes are dropped

Price = the highest of three (core/price.py). `queue` is read from the work that waits, at each request. `plan` is set every 0.2 s: the price at which the
requests that came last fit into the time. `floor` rises while answers are late or refused.

Here: state and wiring. Not here: the rule (core/choice.py), values and costs (schemas/allocation.py), which lengths the time allows (core/ladder.py).
Invariants: at a price of 0 a request gets full work, unless its deadline allows less or a random slice chose. The queue's bound is never below the cost of
the request's full work, so an idle server cannot lock itself out. Only this server's own queue moves the price. Decision and submission happen in one turn
of the event loop, so a decision never reads a queue that another one is about to fill.
"""

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from infra.metrics import Metrics
from schemas.allocation import CachedAge, Facts, Requests, stack_costs, stack_values
from schemas.errors import RejectedInput
from schemas.ids import Id
from schemas.knapsack import find_price
from serving.allocation.answers_in_row import AnswersInRow
from serving.allocation.decisions import Ask, Choice, Inputs, Mode, Prepared, carry_out, finite, make_receipt, name_table, prepare
from serving.allocation.outcomes import Given, Outcomes, Probe
from serving.allocation.score_cache import ScoreCache
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables
from serving.core.choice import Arm, Slices, arm_of
from serving.core.ladder import count_in_time
from serving.core.price import Floor, Price, fold_floor, highest, queue_price

BOUND_WORK = 3.5  # the queue at which the price is infinite, in multiples of the mean full work
TARGET = 0.95  # share of the engine's time that the plan spends
TICK_S = 0.2
_PLAN_WEIGHT = 0.4  # of the newest tick in the offered work
_MEAN_WEIGHT = 0.05
_SAMPLED = 64  # requests from which the plan's price is found
_KEPT = 10_000  # decisions that can be explained
_TIMED = 8_192  # decisions whose time is kept
_FOLDED = 4_096  # decisions after which they are counted, where no tick comes
_PREPARED_MAX = 16
_NOTHING_MS = 1e-6  # what rounding leaves of work that is done
_ROOM = 2  # an answer of k items is made from so many times k candidates, because some of them may be unknown
_NO_SLICES, _POLICY, _ANY_CLASS = Slices(0.0, 0.0, 0.0), (Arm.POLICY, 0.0), (1.0, True)


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
        self._settings, self.tables, self._metrics, self._clock = settings, tables, metrics, clock
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
        self._prepared: dict[int, Prepared] = {}  # by version, for this mode, from these tables
        self._prepared_from = tables.known
        self._took_ns: deque[int] = deque(maxlen=_TIMED)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._shortened = 0  # requests that got less than full work
        self._shown: Counter[tuple[str, str]] = Counter()

    # --- the decision --------------------------------------------------------------------------------------------------

    def least(self, candidates: int, top_k: int) -> int:
        """The fewest candidates that a request may be ranked with now: what admission has to find time for."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return candidates
        of = self._table(self.tables.version())
        first, whole = of.bounds(candidates, _ROOM * top_k)
        return candidates if first == whole else of.lengths[first]

    def decide(self, ask: Ask) -> Choice:
        """The work of one request. The caller submits it at once, and calls `end` when it is done. Counted later, by `_fold`: it delays requests."""
        if self.mode is Mode.OFF:
            return Choice(None, 0.0, ask.group, ask.facts.candidates)
        began = time.perf_counter_ns()
        inputs = self._look(ask)
        choice = carry_out(inputs)
        self._full_ms, self._queue_price = self._full_ms or inputs.full_ms, inputs.queue
        self._waiting[ask.group] = self._waiting.get(ask.group, 0.0) + choice.expected_ms
        self._made.append(choice)
        self._took_ns.append(time.perf_counter_ns() - began)
        if len(self._made) >= _FOLDED:
            self._fold()
        return choice

    def suggest(self, version: int, behaviours: int) -> int | None:
        """How many candidates are worth sending now, for call 1's answer: one length more than would be ranked. None: all."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return None
        lengths = self._table(version).lengths
        inputs = self._look(Ask("", version, Facts(lengths[-1], behaviours), 0, math.inf))
        picked = max(0, inputs.pick())
        return None if picked >= inputs.whole - 1 else lengths[picked + 1]

    def ages(self, version: int) -> Sequence[CachedAge]:
        """The calibration of cached answers by the version's table."""
        return self._table(version).table.ages

    def is_drop_due(self, version: int, user: Id, behaviours_at: int) -> bool:
        """Whether the drop rule of the version's table drops this request; `behaviours_at`: the offset of the user's newest behaviour."""
        rule = self._table(version).table.drop
        return rule.row > 0 and self._in_row.is_due(rule, user, behaviours_at)

    def is_probe(self, choice: Choice) -> bool:
        """Whether a fit needs all scores of this request: it was drawn to get full work, and outcomes are sent."""
        return self.outcomes is not None and choice.candidates is None and choice.inputs is not None and choice.inputs.arm[0] is Arm.PROBE

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
        waiting_ms = self._waiting.pop(choice.group, 0.0) - choice.expected_ms
        if waiting_ms > _NOTHING_MS:
            self._waiting[choice.group] = waiting_ms
        self._troubled += state in ("late", "refused")
        if choice.by_rule or state in ("ranked", "cached"):
            self._in_row.note(user, dropped=choice.by_rule)
        if self.outcomes is not None and choice.inputs is not None:
            self.outcomes.note(user, choice, "failed" if state == "late" else state, took_ms, probe, given)

    def _look(self, ask: Ask) -> Inputs:
        _, version, facts, top_k, left_ms, group, _ = ask
        of, mode, scale, plan, floor = self._table(version), self.mode, self._scale, self._plan, self._floor_price
        share, sheddable = self._classes.get(group, _ANY_CLASS)
        candidates, behaviours, needs_user, *_ = facts
        first, whole = of.bounds(candidates, _ROOM * top_k)
        each_ms = of.candidate_ms + of.pair_ms * behaviours
        base_ms = of.fixed_ms + of.user_ms + of.behaviour_ms * behaviours if needs_user else of.fixed_ms
        whole_ms, full_ms = self._queue.queue_ms(), base_ms + candidates * each_ms
        bound_ms = (max(BOUND_WORK * (self._full_ms or full_ms), full_ms)) * scale
        # A class within its share of the queue sees only its own work, one beyond it sees the whole queue.
        own_ms = self._waiting.get(group, 0.0) * scale / share
        wait_ms = min(whole_ms, own_ms)
        queue = queue_price(wait_ms, bound_ms, of.unit)
        last, arm, slices, drops = whole, _POLICY, _NO_SLICES, False
        if whole_ms + full_ms * scale > left_ms:
            costs_ms = [(base_ms + length * each_ms) * scale for length in of.lengths[first:whole]]
            last = first + count_in_time(costs_ms, whole_ms, left_ms) - 1
        if mode is Mode.VALUE:  # without a table too: the first one is learnt from the slices
            arm, slices = (arm_of(ask.request_id, self._slices) if ask.request_id else _POLICY), self._slices
            drops = sheddable and not of.blind and of.drop is not None and 0 < max(plan, queue, floor) < math.inf
        fields = (ask, mode, of, plan, queue, floor, first, last, whole, sheddable, drops, arm, slices, wait_ms, bound_ms, base_ms, each_ms)
        return tuple.__new__(Inputs, fields)  # a third of the time of its constructor

    def _table(self, version: int) -> Prepared:
        if self.tables.known is self._prepared_from:
            found = self._prepared.get(version)
            if found is not None:
                return found
        else:
            self._prepared, self._prepared_from = {}, self.tables.known
        table, blind = self.tables.find(version)
        found = prepare(table, blind or self.mode is not Mode.VALUE)
        if len(self._prepared) >= _PREPARED_MAX:
            self._prepared.clear()
        self._prepared[version] = found
        return found

    def _fold(self) -> None:
        """Counts the decisions that were made since the last time."""
        made, self._made = self._made, []
        for choice in made:
            inputs = choice.inputs
            assert inputs is not None, "in mode off nothing is decided"
            facts, full_ms = inputs.ask.facts, inputs.full_ms
            self._counts[inputs.mode.value, inputs.table.actions[choice.action].name] += 1
            self._shortened += choice.candidates is not None
            self._full_ms += _MEAN_WEIGHT * (full_ms - self._full_ms)
            self._offered_ms += full_ms
            self._let_in_ms += choice.expected_ms
            self._recent.append(facts)
            self._kept[inputs.ask.request_id] = choice
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
        # A refused request is taken for one like the others.
        offered_ms = self._scale * self._offered_ms * (1 + turned_away / max(1, answers))
        self._demand += _PLAN_WEIGHT * (offered_ms / (1000 * passed_s) - self._demand)
        trouble = (turned_away + self._troubled) / max(1, turned_away + answers)
        self._floor, self._scale = fold_floor(self._floor, trouble, passed_s), self._queue.cost_scale()
        self._floor_price = self._floor.price(self._table(self.tables.version()).unit)
        self._plan = self._find_plan()
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

    def _find_plan(self) -> float:
        """The price at which requests like the last ones take TARGET of the engine's time; 0 if their full work does."""
        if self._demand <= TARGET or not self._recent:
            return 0.0
        of, requests = self._table(self.tables.version()), Requests.of(self._recent)
        value_RA, cost_RA = stack_values(of.table, requests, blind=of.blind), stack_costs(of.table, requests)
        return find_price(value_RA, cost_RA, float(cost_RA[:, -1].mean()) * TARGET / self._demand)

    # --- what others see -----------------------------------------------------------------------------------------------

    def switch(self, mode: str) -> None:
        """Changes the mode now. Raises RejectedInput (`bad_mode`)."""
        if mode not in list(Mode):
            raise RejectedInput("bad_mode", f"mode is {str(mode)[:40]!r}, expected one of {', '.join(Mode)}")
        self.mode, self._plan, self._floor, self._floor_price = Mode(mode), 0.0, Floor(), 0.0
        self._demand, self._prepared = 0.0, {}

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Decisions by mode and action."""
        self._fold()
        return self._counts

    def show(self) -> None:
        """Writes the state into the metrics."""
        counts = Counter(self.counts)
        gauge = self._metrics.gauge
        for source, value in (("plan", self._plan), ("queue", self._queue_price), ("floor", self._floor_price)):
            gauge("allocation_price").labels(source).set(value)
        gauge("allocation_demand").set(self._demand)
        gauge("allocation_cost_scale").set(self._queue.cost_scale())
        gauge("allocation_mode").set(list(Mode).index(self.mode))
        age_s = self.tables.age_s()
        gauge("allocation_table_age_seconds").set(math.nan if age_s is None else age_s)
        for (mode, action), count in (counts - self._shown).items():
            self._metrics.counter("allocation_actions").labels(mode, action).inc(count)
        self._shown = counts

    def refusal(self, retry_after_s: float, reason: str) -> Mapping[str, Any]:
        """The receipt of a request that admission refused, before or after its decision."""
        price = Price() if self.mode is Mode.OFF else highest(self._plan, 0.0, self._floor_price)
        return make_receipt(self.mode, "drop", 0, price, 0.0, 0.0, "", f"admission: {reason}", "", retry_after_s=retry_after_s)

    def explain(self, request_id: str) -> Mapping[str, Any]:
        """The inputs of a decision, its receipt, and the decision made again from the inputs. Raises RejectedInput (`unknown_request`)."""
        self._fold()
        choice = self._kept.get(request_id)
        if choice is None or choice.inputs is None:
            raise RejectedInput(
                "unknown_request",
                f"no decision for request {request_id[:80]!r}: this server keeps the last {_KEPT}, and none in mode off; ask the server that answered it",
            )
        inputs = choice.inputs
        again = inputs.replay()
        places = inputs._replace(last=inputs.whole).allowed
        table, facts = inputs.table, inputs.ask.facts
        values, costs = table.values_of(facts, blind=inputs.prepared.blind), table.costs_ms(facts)
        limit = inputs.prepared.places[inputs.last]
        return {
            "request_id": request_id,
            "receipt": choice.receipt(),
            "inputs": {
                "facts": facts._asdict(),
                "class": inputs.ask.group,
                "sheddable": inputs.sheddable,
                "left_ms": inputs.ask.left_ms,
                "wait_ms": inputs.wait_ms,
                "bound_ms": inputs.bound_ms,
                "plan": inputs.plan,
                "floor": inputs.floor,
                "lambda": finite(inputs.price.value),
                "arm": inputs.arm[0].value,
            },
            "actions": [
                {
                    "action": inputs.table.actions[place].name,
                    "value": values[place],
                    "cost_ms": costs[place],
                    "net": finite(values[place] - inputs.price.value * costs[place]),
                    "in_time": place <= limit,
                }
                for place in places
            ],
            "replayed_action": inputs.table.actions[again.action].name,
            "equal": again.action == choice.action,
        }

    def status(self) -> Mapping[str, Any]:
        """The state as plain values."""
        table, blind = self.tables.find()
        took_us = np.array(self._took_ns or [0]) / 1_000
        by_mode: dict[str, dict[str, int]] = {}
        for (mode, action), count in sorted(self.counts.items()):
            by_mode.setdefault(mode, {})[action] = count
        return {
            "mode": self.mode.value,
            "table": name_table(table, blind or self.mode is not Mode.VALUE),
            "table_error": self.tables.last_error,
            "lambda": {"plan": self._plan, "floor": self._floor_price, "unit": self._table(self.tables.version()).unit},
            "lambda_now": finite(max(self._plan, self._queue_price, self._floor_price)),
            "shortened": self._shortened,
            "answers_kept": len(self.scores),
            "dropped_by_rule_share": self._in_row.dropped_share,
            "demand": self._demand,
            "cost_scale": self._queue.cost_scale(),
            "queue_ms": self._queue.queue_ms(),
            "actions": by_mode,
            "decision_p50_us": float(np.quantile(took_us, 0.5)),
            "decision_p99_us": float(np.quantile(took_us, 0.99)),
        }
