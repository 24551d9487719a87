"""How much work each request gets: the mode, the price of this moment, the decision, and its receipt.

    off     every request gets full work, and admission refuses (today's path)
    shadow  the same, and counts what `queue` or `value` would have done
    queue   the price falls on the table's mean row: under load requests are ranked with fewer candidates, not refused
    value   the same with the value of each request, if the table's gate allows it; worthless requests of sheddable classes are dropped

Price = the highest of three (core/price.py). `queue` is read from the work that waits, at each request. `plan` is set every 0.2 s: the price at which the
requests that came last fit into the time. `floor` rises while answers are late or refused.

Here: state and wiring. Not here: the rule (core/choice.py), values and costs (schemas/allocation.py), which lengths the time allows (core/ladder.py).
Invariants: at a price of 0 a request gets full work. The queue's bound is never below the cost of the request's full work, so an idle server cannot lock
itself out. Only this server's own queue moves the price. Decision and submission happen in one turn of the event loop, so a decision never reads a queue
that another one is about to fill.
"""

import math
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from infra.metrics import Metrics
from schemas.allocation import ActionTable, Facts, Kind
from schemas.errors import RejectedInput
from schemas.ids import Id
from schemas.knapsack import find_price
from serving.allocation.decisions import Ask, Choice, Inputs, Menu, Mode, candidate_ms, cost_ms, finite, make_menu, make_receipt, name_table
from serving.allocation.outcomes import Outcomes, Probe
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables
from serving.core.choice import Arm, Slices, arm_of
from serving.core.ladder import count_in_time
from serving.core.price import Floor, Price, fold_floor, highest, queue_price

BOUND_WORK = 3.0  # the queue at which the price is infinite, in multiples of the mean full work
TARGET = 0.95  # share of the engine's time that the plan spends
TICK_S = 0.2
_PLAN_WEIGHT = 0.4  # of the newest tick in the offered work
_MEAN_WEIGHT = 0.05
_SAMPLED = 64  # requests from which the plan's price is found
_KEPT = 10_000  # decisions that can be explained
_TIMED = 8_192  # decisions whose time is kept
_MENUS_KEPT = 1_024
_ROOM = 2  # an answer of k items is made from so many times k candidates, because some of them may be unknown
_NO_SLICES, _POLICY = Slices(0.0, 0.0, 0.0), (Arm.POLICY, 0.0)


class Queue(Protocol):
    """The engine's queue, as serving/calls/paced_engine.py shows it. `refused`: requests that admission refused since the start."""

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
        self._slices = Slices(settings.probe_share, settings.random_share, 2 * settings.probe_share)
        self._full_ms = 0.0  # mean of full work, by the table's costs
        self._scale = 1.0  # measured time over the table's costs, as of the last tick
        self._plan, self._floor, self._floor_price = 0.0, Floor(), 0.0
        self._offered_ms, self._let_in_ms = 0.0, 0.0  # since the last tick, by the table: full work, chosen work
        self._demand = 0.0  # full work offered a ms of time, smoothed
        self._worked_ms, self._queue_price = 0.0, 0.0  # at the last tick; of the last request
        self._recent: deque[Facts] = deque(maxlen=_SAMPLED)
        self._tick_s, self._tick_refused, self._tick_answers, self._late = clock(), 0, 0, 0
        self._waiting: defaultdict[str, float] = defaultdict(float)  # ms of work in the engine's queue, by class
        self._kept: OrderedDict[str, Choice] = OrderedDict()
        self._menus: dict[tuple[int, int, int, int], Menu] = {}
        self._took_us: deque[float] = deque(maxlen=_TIMED)
        self.counts: Counter[tuple[str, str]] = Counter()  # (mode, action)
        self._shortened = 0  # requests that got less than full work
        self._shown: Counter[tuple[str, str]] = Counter()

    # --- the decision --------------------------------------------------------------------------------------------------

    def least(self, candidates: int, top_k: int) -> int:
        """The fewest candidates that a request may be ranked with now: what admission has to find time for."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return candidates
        table, _ = self.tables.find()
        return self._menu(table, candidates, top_k).lengths[0]

    def decide(self, ask: Ask) -> Choice:
        """The work of one request. The caller submits it at once, and calls `end` when it is done."""
        if self.mode is Mode.OFF:
            return Choice(None, 0.0, ask.group, ask.facts.candidates)
        began = time.perf_counter_ns()
        inputs, menu = self._look(ask)
        choice = self._choose(inputs, menu)
        self._took_us.append((time.perf_counter_ns() - began) / 1_000)
        return choice

    def suggest(self, version: int, behaviours: int) -> int | None:
        """How many candidates are worth sending now, for call 1's answer: one length more than would be ranked. None: all."""
        if self.mode in (Mode.OFF, Mode.SHADOW):
            return None
        table, _ = self.tables.find(version)
        inputs, menu = self._look(Ask("", version, Facts(table.actions[-1].candidates, behaviours), 0, math.inf))
        place = self._find(inputs, menu)
        return None if place >= len(menu.allowed) - 2 else menu.lengths[max(0, place) + 1]

    def is_probe(self, choice: Choice) -> bool:
        """Whether a fit needs all scores of this request: it was drawn to get full work, and outcomes are sent."""
        return self.outcomes is not None and choice.candidates is None and choice.inputs is not None and choice.inputs.arm[0] is Arm.PROBE

    def end(self, choice: Choice, user: Id = 0, state: str = "ranked", took_ms: float | None = None, probe: Probe | None = None) -> None:
        """The work of a choice is done, or was refused. `state`: ranked, dropped, refused, late (its deadline passed) or failed; `took_ms`: measured."""
        self._waiting[choice.group] -= choice.expected_ms
        self._late += state == "late"
        if self.outcomes is not None and choice.inputs is not None:
            self.outcomes.note(user, choice, "failed" if state == "late" else state, took_ms, probe)

    def _look(self, ask: Ask) -> tuple[Inputs, Menu]:
        table, blind = self.tables.find(ask.version)
        facts, group, scale = ask.facts, self._settings.group(ask.group), self._scale
        menu = self._menu(table, facts.candidates, ask.top_k)
        whole_ms, full_ms, allowed, in_time = (
            self._queue.queue_ms(),
            cost_ms(table, facts, facts.candidates),
            menu.allowed,
            len(menu.allowed),
        )
        bound_ms = max(BOUND_WORK * self._full_ms, full_ms) * scale
        # A class within its share of the queue sees only its own work, one beyond it sees the whole queue.
        wait_ms = min(whole_ms, self._waiting[ask.group] * scale / group.share)
        queue = self._queue_price = queue_price(wait_ms, bound_ms, table.queue_price)
        if whole_ms + full_ms * scale > ask.left_ms:
            in_time = count_in_time([cost_ms(table, facts, length) * scale for length in menu.lengths], whole_ms, ask.left_ms)
        floor, arm, slices = self._floor_price, _POLICY, _NO_SLICES
        if self.mode is not Mode.VALUE:
            blind = True
        else:  # without a table too: the first one is learnt from the slices
            arm, slices = (arm_of(ask.request_id, self._slices) if ask.request_id else _POLICY), self._slices
            if not blind and group.sheddable and table.actions[0].kind is Kind.DROP and queue < math.inf:
                allowed, in_time = (0, *allowed), in_time + 1
        inputs = Inputs(
            ask,
            self.mode,
            table,
            blind,
            self._plan,
            queue,
            floor,
            allowed,
            in_time,
            group.sheddable,
            arm,
            slices,
            wait_ms,
            bound_ms,
            full_ms,
        )
        return inputs, menu

    @staticmethod
    def _find(inputs: Inputs, menu: Menu) -> int:
        """The decision as a place in the menu, -1 for a drop: at once where only the mean row counts, else by the rule in full."""
        if not inputs.sheddable:
            return len(menu.allowed) - 1
        if inputs.blind and inputs.in_time == len(menu.allowed) and inputs.arm[0] is Arm.POLICY:
            price = max(inputs.plan, inputs.queue, inputs.floor)
            return menu.best(price * candidate_ms(inputs.table, inputs.ask.facts))
        action = inputs.replay().action
        return menu.allowed.index(action) if action in menu.allowed else -1

    def _choose(self, inputs: Inputs, menu: Menu) -> Choice:
        place, ask = self._find(inputs, menu), inputs.ask
        self.counts[inputs.mode.value, menu.names[place] if place >= 0 else Kind.DROP.value] += 1
        candidates, expected_ms = None, inputs.full_ms
        if place < len(menu.allowed) - 1 and inputs.mode is not Mode.SHADOW:
            candidates = menu.lengths[place] if place >= 0 else 0
            expected_ms = cost_ms(inputs.table, ask.facts, candidates)
            self._shortened += 1
        action = menu.allowed[place] if place >= 0 else 0
        choice = Choice(candidates, expected_ms, ask.group, ask.facts.candidates, inputs, action)
        self._full_ms += (_MEAN_WEIGHT if self._full_ms else 1.0) * (inputs.full_ms - self._full_ms)
        self._offered_ms += inputs.full_ms
        self._let_in_ms += expected_ms
        self._waiting[ask.group] += expected_ms
        self._tick_answers += 1
        self._recent.append(ask.facts)
        self._kept[ask.request_id] = choice
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return choice

    def _menu(self, table: ActionTable, candidates: int, top_k: int) -> Menu:
        key = (table.version, table.made_at_ms, candidates, top_k)
        found = self._menus.get(key)
        if found is None:
            if len(self._menus) >= _MENUS_KEPT:
                self._menus.clear()
            found = self._menus[key] = make_menu(table, candidates, _ROOM * top_k)
        return found

    # --- the plan ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called several times a second: the plan's price and the floor."""
        passed_s = self._clock() - self._tick_s
        if passed_s < 0:  # a clock that jumped
            self._tick_s = self._clock()
        if passed_s < TICK_S / 2:
            return
        refused = self._queue.refused
        turned_away = max(0, refused - self._tick_refused)
        answers = self._tick_answers
        # A refused request is taken for one like the others.
        offered_ms = self._scale * self._offered_ms * (1 + turned_away / max(1, answers))
        self._demand += _PLAN_WEIGHT * (offered_ms / (1000 * passed_s) - self._demand)
        trouble = (turned_away + self._late) / max(1, turned_away + answers)
        self._floor, self._scale = fold_floor(self._floor, trouble, passed_s), self._queue.cost_scale()
        self._floor_price = self._floor.price(self.tables.find()[0].queue_price)
        self._plan = self._find_plan()
        self._queue.full_ms = self._full_ms * self._scale if self.mode in (Mode.QUEUE, Mode.VALUE) else 0.0
        self._show_tick(1000 * passed_s)
        self._offered_ms, self._let_in_ms = 0.0, 0.0
        self._tick_answers, self._late, self._tick_refused, self._tick_s = 0, 0, refused, self._clock()

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
        table, blind = self.tables.find()
        rows = [self._row(table, facts, blind or self.mode is not Mode.VALUE) for facts in self._recent]
        value_RA, cost_RA = np.array([value for value, _ in rows]), np.array([cost for _, cost in rows])
        return find_price(value_RA, cost_RA, float(cost_RA[:, -1].mean()) * TARGET / self._demand)

    @staticmethod
    def _row(table: ActionTable, facts: Facts, blind: bool) -> tuple[list[float], list[float]]:
        return table.values_of(facts, blind=blind), table.costs_ms(facts)

    # --- what others see -----------------------------------------------------------------------------------------------

    def switch(self, mode: str) -> None:
        """Changes the mode now. Raises RejectedInput (`bad_mode`)."""
        if mode not in list(Mode):
            raise RejectedInput("bad_mode", f"mode is {str(mode)[:40]!r}, expected one of {', '.join(Mode)}")
        self.mode, self._plan, self._floor, self._floor_price = Mode(mode), 0.0, Floor(), 0.0
        self._demand = 0.0

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
        for (mode, action), count in (self.counts - self._shown).items():
            self._metrics.counter("allocation_actions").labels(mode, action).inc(count)
        self._shown = Counter(self.counts)

    def refusal(self, retry_after_s: float, reason: str) -> Mapping[str, Any]:
        """The receipt of a request that admission refused, before or after its decision."""
        price = Price() if self.mode is Mode.OFF else highest(self._plan, 0.0, self._floor_price)
        return make_receipt(self.mode, "drop", 0, price, 0.0, 0.0, "", f"admission: {reason}", "", retry_after_s=retry_after_s)

    def explain(self, request_id: str) -> Mapping[str, Any]:
        """The inputs of a decision, its receipt, and the decision made again from the inputs. Raises RejectedInput (`unknown_request`)."""
        choice = self._kept.get(request_id)
        if choice is None or choice.inputs is None:
            raise RejectedInput(
                "unknown_request",
                f"no decision for request {request_id[:80]!r}: this server keeps the last {_KEPT}, and none in mode off; ask the server that answered it",
            )
        inputs = choice.inputs
        again = inputs.replay()
        places = inputs.allowed
        values, costs = inputs.table.values_of(inputs.ask.facts, blind=inputs.blind), inputs.table.costs_ms(inputs.ask.facts)
        return {
            "request_id": request_id,
            "receipt": choice.receipt(),
            "inputs": {
                "facts": {name: getattr(inputs.ask.facts, name) for name in Facts.__slots__},
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
                    "in_time": number < inputs.in_time,
                }
                for number, place in enumerate(places)
            ],
            "replayed_action": inputs.table.actions[again.action].name,
            "equal": again.action == choice.action,
        }

    def status(self) -> Mapping[str, Any]:
        """The state as plain values."""
        table, blind = self.tables.find()
        took = np.array(self._took_us) if self._took_us else np.zeros(1)
        by_mode: dict[str, dict[str, int]] = {}
        for (mode, action), count in sorted(self.counts.items()):
            by_mode.setdefault(mode, {})[action] = count
        return {
            "mode": self.mode.value,
            "table": name_table(table, blind or self.mode is not Mode.VALUE),
            "table_error": self.tables.last_error,
            "lambda": {"plan": self._plan, "floor": self._floor_price, "unit": table.queue_price},
            "lambda_now": finite(max(self._plan, self._queue_price, self._floor_price)),
            "shortened": self._shortened,
            "demand": self._demand,
            "cost_scale": self._queue.cost_scale(),
            "queue_ms": self._queue.queue_ms(),
            "actions": by_mode,
            "decision_p50_us": float(np.quantile(took, 0.5)),
            "decision_p99_us": float(np.quantile(took, 0.99)),
        }
