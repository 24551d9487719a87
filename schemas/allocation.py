"""Computation allocation: costs and values of actions, and the table that a fit gives to servers.

Here: a table and its file, cost and value of each action for one request or for many. Not here: the actions (schemas/actions.py), the rule that chooses
(schemas/knapsack.py), the price (serving/core/price.py), the outcome record (schemas/events.py `AllocationOutcome`), fitting (streams/allocation).

Costs are milliseconds of the engine. A value is in the unit of the outcomes, for example expected clicks
times bid. A table belongs to one version of the model: costs and values of another version are refused (`table_version`).

Arrays: R requests, A actions, B bins of the history's length.
"""

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from schemas.actions import FULL, SECOND_PASS, TWO_PASS, Action, Kind
from schemas.drop_rule import DropRule
from schemas.errors import Incompatible
from schemas.fields import corrupted_as, read_fields

FORMAT = 1
TABLE_BYTES_MAX = 1 << 20
NUMBER_MAX = 1e9  # of a cost or value: with larger ones, or costs below its reciprocal, sums and prices could be infinite
_LOG_MAX = 20.0


class Facts(NamedTuple):
    """The facts of a request before its decision. `needs_user`: no user half is ready, so the action's own call 1 is paid too.

    user_value: what the caller knows of the user's value, above 0. retrieval_top: mean of retrieval's best 100 scores. None: not known.
    cached_s: the age of an answer in the score cache, None without one.
    """

    candidates: int
    behaviours: int
    needs_user: bool = False
    user_value: float | None = None
    retrieval_top: float | None = None
    cached_s: float | None = None


@dataclass(frozen=True, slots=True)
class LevelCost:
    """Cost of a level: call 2 by candidates and by pairs of a candidate and a behaviour, and the call 1 that suffices for it."""

    fixed_ms: float
    candidate_us: float
    pair_ns: float = 0.0
    user_fixed_ms: float = 0.0
    user_behaviour_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of all actions. Ports (bytes in and out) are part of them."""

    levels: Mapping[str, LevelCost]
    drop_ms: float = 0.05
    pass_ms: float = 0.06
    cached_ms: float = 0.12


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise linear function of one feature, constant outside its knots."""

    knots: tuple[float, ...]
    effects: tuple[float, ...]

    def at(self, x: float) -> float:
        """The value at one point."""
        place = bisect.bisect_right(self.knots, x)
        if place == 0 or place == len(self.knots):
            return self.effects[max(0, place - 1)]
        left, right = self.knots[place - 1], self.knots[place]
        return self.effects[place - 1] + (self.effects[place] - self.effects[place - 1]) * (x - left) / (right - left)


@dataclass(frozen=True, slots=True)
class Values:
    """Value of full work: exp(intercept + sum of the features' curves); of an action: that times its share, by bin of log(1 + behaviours).

    An unknown feature contributes 0. `curves` may name `user_value`, `behaviours` (both as logarithms) and `retrieval_top`.
    """

    intercept: float
    curves: Mapping[str, Curve]
    bins: tuple[float, ...]  # B - 1 edges
    shares: tuple[tuple[float, ...], ...]  # [B, A]; the last column is 1

    def whole(self, facts: Facts) -> float:
        """The value of full work for one request."""
        log = self.intercept
        for name, curve in self.curves.items():
            x = _feature(facts, name)
            log += 0.0 if x is None else curve.at(x)
        return math.exp(min(_LOG_MAX, max(-_LOG_MAX, log)))


def _feature(facts: Facts, name: str) -> float | None:
    if name == "behaviours":
        return math.log1p(facts.behaviours)
    if name == "user_value":
        return None if facts.user_value is None else math.log(max(facts.user_value, 1e-9))
    return facts.retrieval_top


@dataclass(frozen=True, slots=True)
class CachedAge:
    """Answers of an age: the share of full work's value that they keep, and Platt's calibration of their scores: sigmoid(slope x logit + intercept)."""

    age_s: float
    kept: float
    slope: float = 1.0
    intercept: float = 0.0


# Before anything is measured: full work of docs/BENCHMARKS.md, and what cached answers kept in `aif eval allocation`. Nothing is calibrated.
ASSUMED_COST = LevelCost(fixed_ms=1.0, candidate_us=0.415, pair_ns=0.14, user_fixed_ms=0.1, user_behaviour_us=0.79)
# The first pass takes 1.7 ms where full work for 1,000 behaviours takes 3.2 ms (docs/EXPERIMENTS.md). The second takes a tenth of full work.
ASSUMED_COSTS: Mapping[str, LevelCost] = {
    TWO_PASS: replace(
        ASSUMED_COST, candidate_us=0.295 + ASSUMED_COST.candidate_us / SECOND_PASS, pair_ns=ASSUMED_COST.pair_ns / SECOND_PASS
    ),
    FULL: ASSUMED_COST,
}
ASSUMED_AGES = (CachedAge(0.0, 1.0), CachedAge(600.0, 0.68), CachedAge(1800.0, 0.35))


@dataclass(frozen=True, slots=True)
class Gate:
    """Lift of the table over the tuned static mix on requests that did not choose it, with its interval of 95%. The table serves if `low` >= 0."""

    lift: float = 0.0
    low: float = -1.0
    high: float = 0.0

    @property
    def serves(self) -> bool:
        """Whether the value model may decide; otherwise the mean row does."""
        return self.low >= 0


@dataclass(frozen=True)
class ActionTable:
    """What a fit hands to servers. `queue_price`: the price at which the mean cost is a quarter of full work's, as `aif allocate show` prints it. A server
    finds the unit of its prices in the costs and the mean row, so that both are in the same units.

    mean_row: the value of each action without any feature. A blind decision takes it for a request whose full work costs `full_ms`, the mean. For
    other requests it scales the row with the cost, so that all get about the same point of the static curve. With full_ms = 0 the row stays.
    mix: the tuned static mix at the fit's budget, (action's place, share).
    """

    version: int
    made_at_ms: int
    actions: tuple[Action, ...]
    costs: Costs
    values: Values
    mean_row: tuple[float, ...]
    queue_price: float
    full_ms: float = 0.0
    mix: tuple[tuple[int, float], ...] = ()
    ages: tuple[CachedAge, ...] = ()
    drop: DropRule = field(default_factory=DropRule)
    gate: Gate = Gate()
    requests: Mapping[str, int] = field(default_factory=dict)  # that the fit learnt from, by arm

    @property
    def name(self) -> str:
        """`v7-1700000000000`: the `table` of an answer."""
        return f"v{self.version}-{self.made_at_ms}"

    @cached_property
    def _terms(self) -> list[tuple[float, int, float, float, float, float]]:
        """Of each action (fixed ms, candidates, ms a candidate, ms a pair, ms of call 1, ms of call 1 a behaviour)."""
        plain = {Kind.DROP: self.costs.drop_ms, Kind.PASS: self.costs.pass_ms, Kind.CACHED: self.costs.cached_ms}
        rows = []
        for action in self.actions:
            if action.kind is Kind.RANK:
                c = self.costs.levels[action.level]
                rows.append(
                    (c.fixed_ms, action.candidates, 1e-3 * c.candidate_us, 1e-6 * c.pair_ns, c.user_fixed_ms, 1e-3 * c.user_behaviour_us)
                )
            else:
                rows.append((plain[action.kind], 0, 0.0, 0.0, 0.0, 0.0))
        return rows

    def costs_ms(self, facts: Facts) -> list[float]:
        """The cost of each action for one request. An action for more candidates than there are costs what those cost."""
        n, behaviours, user = facts.candidates, facts.behaviours, float(facts.needs_user)
        return [
            fixed + min(n, most) * (each + pair * behaviours) + user * (once + behaviour * behaviours)
            for fixed, most, each, pair, once, behaviour in self._terms
        ]

    def values_of(self, facts: Facts, *, blind: bool = False) -> list[float]:
        """The value of each action for one request, `blind` of the mean request. That of `cached` is minus infinity without a usable answer."""
        if blind or not self.gate.serves:
            scale = self.costs_ms(facts)[-1] / self.full_ms if self.full_ms else 1.0
            row = [scale * value for value in self.mean_row]
        else:
            whole = self.values.whole(facts)
            row = [whole * share for share in self.values.shares[bisect.bisect_left(self.values.bins, math.log1p(facts.behaviours))]]
        for place, action in enumerate(self.actions):
            if action.kind is Kind.CACHED:
                row[place] = row[-1] * self.kept_share(facts.cached_s) if facts.cached_s is not None and self.ages else -math.inf
        return row

    def kept_share(self, age_s: float) -> float:
        """The share of full work's value that a cached answer of this age keeps; 0 beyond the oldest that was measured."""
        if not self.ages or age_s > self.ages[-1].age_s:
            return 0.0
        return Curve(tuple(a.age_s for a in self.ages), tuple(a.kept for a in self.ages)).at(age_s)


@dataclass(frozen=True)
class Requests:
    """`Facts` of many requests, in columns; a number that is not known is nan."""

    candidates_R: np.ndarray
    behaviours_R: np.ndarray
    needs_user_R: np.ndarray
    user_value_R: np.ndarray
    retrieval_top_R: np.ndarray
    cached_s_R: np.ndarray

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> "Requests":
        """The columns of some requests."""
        return cls(*np.array(facts, float).reshape(-1, len(Facts._fields)).T)

    def __len__(self) -> int:
        return len(self.candidates_R)

    def rows(self, place_R: np.ndarray) -> "Requests":
        """The requests at these places, or of this mask."""
        return Requests(*(getattr(self, column.name)[place_R] for column in fields(self)))

    def feature(self, name: str) -> np.ndarray:
        """A column as `Values` reads it: [R], nan where it is not known."""
        if name == "behaviours":
            return np.log1p(self.behaviours_R)
        return np.log(np.maximum(self.user_value_R, 1e-9)) if name == "user_value" else self.retrieval_top_R


def stack_costs(table: ActionTable, requests: Requests) -> np.ndarray:
    """`ActionTable.costs_ms` of many requests: float64 [R, A]."""
    fixed, most, each, pair, once, behaviour = (np.array(column)[None] for column in zip(*table._terms, strict=True))
    history, user = requests.behaviours_R[:, None], requests.needs_user_R[:, None].astype(float)
    return fixed + np.minimum(requests.candidates_R[:, None], most) * (each + pair * history) + user * (once + behaviour * history)


def stack_whole(values: Values, requests: Requests) -> np.ndarray:
    """`Values.whole` of many requests: float64 [R]."""
    log_R = np.full(len(requests), values.intercept)
    for name, curve in values.curves.items():
        log_R += np.nan_to_num(np.interp(requests.feature(name), curve.knots, curve.effects))
    return np.asarray(np.exp(np.clip(log_R, -_LOG_MAX, _LOG_MAX)))


def stack_values(table: ActionTable, requests: Requests, *, blind: bool = False) -> np.ndarray:
    """`ActionTable.values_of` of many requests: float64 [R, A]."""
    if blind or not table.gate.serves:
        scale_R = stack_costs(table, requests)[:, -1] / table.full_ms if table.full_ms else np.ones(len(requests))
        value_RA = scale_R[:, None] * np.array(table.mean_row)
    else:
        bin_R = np.searchsorted(table.values.bins, np.log1p(requests.behaviours_R))
        value_RA = stack_whole(table.values, requests)[:, None] * np.array(table.values.shares)[bin_R]
    if Action(Kind.CACHED) in table.actions:
        kept_R = np.array([table.kept_share(age) if age == age and table.ages else -math.inf for age in requests.cached_s_R])
        value_RA[:, table.actions.index(Action(Kind.CACHED))] = np.where(np.isfinite(kept_R), kept_R * value_RA[:, -1], -math.inf)
    return value_RA


def table_path(version: int, made_at_ms: int) -> str:
    """The file of a table in the index store, next to the parts of its version. Of several the newest one serves."""
    return f"allocation/v{version:012d}/{made_at_ms:015d}.json"


def table_prefix(version: int) -> str:
    """The folder of a version's tables."""
    return f"allocation/v{version:012d}/"


def encode_table(table: ActionTable) -> bytes:
    """The bytes of a table's file."""
    read: dict[str, Any] = {"format": FORMAT, **asdict(table), "actions": [action.name for action in table.actions]}
    return json.dumps(read, allow_nan=False, separators=(",", ":")).encode()


def decode_table(data: bytes, version: int) -> ActionTable:
    """The table of a file, for a server of `version`. Raises Corrupted (`bad_table`) and, for another version's table, Incompatible (`table_version`)."""
    with corrupted_as("bad_table", "the allocation table cannot be read", "fit a new one: `aif allocate fit`"):
        read = json.loads(data)
        if read.pop("format") != FORMAT:
            raise ValueError(f"format, expected {FORMAT}")
        table = read_fields(ActionTable, read | {"actions": [Action.parse(name) for name in read["actions"]]})
        _check(table)
    if table.version != version:
        raise Incompatible(
            "table_version", f"the allocation table belongs to version {table.version}, the server runs {version}; fit one for {version}"
        )
    return table


def _check(table: ActionTable) -> None:
    """ValueError unless every number is within NUMBER_MAX, costs are not near 0, and rows have a number for each action, of which the last is full work."""
    actions, rows = len(table.actions), [table.mean_row, *table.values.shares]
    knots = [table.values.bins, tuple(age.age_s for age in table.ages), *(c.knots for c in table.values.curves.values())]
    numbers = [x for row in rows for x in row] + [x for c in table.values.curves.values() for x in (*c.knots, *c.effects)]
    numbers += [
        table.queue_price,
        table.full_ms,
        table.values.intercept,
        table.gate.low,
        *(x for age in table.ages for x in asdict(age).values()),
    ]
    terms = [x for term in table._terms for x in term]
    if not all(abs(x) <= NUMBER_MAX for x in (*numbers, *terms, *table.values.bins)):  # no nan is
        raise ValueError(f"a number is not finite, or beyond {NUMBER_MAX:g}")
    if not 0 <= table.drop.share_max <= 1:
        raise ValueError("the drop rule has a share beyond 0 to 1")
    if any(len(row) != actions for row in rows) or len(table.values.shares) != len(table.values.bins) + 1:
        raise ValueError(f"a row of values has not {actions} numbers, or there is not one for each bin")
    curves = table.values.curves.values()
    if any(list(k) != sorted(set(k)) for k in knots) or any(len(c.knots) != len(c.effects) for c in curves):
        raise ValueError("knots are not rising")
    if any(age.slope <= 0 or not 0 <= age.kept <= 1 for age in table.ages):
        raise ValueError("an age has a slope that is not above 0, or keeps a share beyond 0 to 1")
    least = min(*(term[0] for term in table._terms), table.full_ms or 1.0)  # values are divided by these
    if min(terms) < 0 or least < 1 / NUMBER_MAX or table.queue_price <= 0:
        raise ValueError(f"a cost is below {1 / NUMBER_MAX:g}, or the queue price is not above 0")
    if actions < 2 or table.actions[-1].kind is not Kind.RANK or len(set(table.actions)) != actions:
        raise ValueError("the last action is not full work, or an action is there twice")
    if any(row[place] != 0 for row in rows for place, action in enumerate(table.actions) if action.kind is Kind.DROP):
        raise ValueError("a drop has a value")
    if any(not 0 <= place < actions or not 0 <= share <= 1 for place, share in table.mix):
        raise ValueError("the mix names an action that is not there")
