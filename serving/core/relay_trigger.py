"""Which prefixes are computed before their rankings: those without which the ranking would be late, as far as memory and load allow. Pure.

    a signal arrives -> what would this ranking take, computed whole, at its 99th percentile? -> more than the budget: at risk
    at risk          -> are there pages for its KV, apart from those that rankings in flight hold? is there load left for prefixes? -> admitted

Costs are measured, and a prefix or ranking that is thought too dear is not computed, so a slow moment could permanently stand as the truth. Therefore one
measurement raises a cost little, a prefix of any cost is admitted after a pause, and a cost that leaves time for no ranking falls again.
The percentile counts the queue: a service time that fits the budget is late as soon as two requests meet (M/D/1). At low load the wait is the rest of
the one job ahead.
Here: decisions from numbers. Not here: computing a prefix (serving/relay).
Source: RelayGR, sequence-aware trigger.
"""

import enum
import math
from dataclasses import dataclass, replace

from schemas.model.ranker.spec import RankerSpec

_BUCKET_S = 0.2  # work that prefixes may take at once after a pause
_RATE_S = 2.0  # over which arrivals are averaged
_MEET_S = 0.1  # a signal that came so long before counts a third: the rankings of two signals that are close may meet
_SATURATED = 0.95
_COST_SHARE = 0.1  # of a new measurement in the average
_OUTLIER = 4.0  # times the average: a measurement counts as no more, because a first piece can take a thousand times as long
_START_MS = 2.5e-7  # per multiply-add, until measured


class Decision(enum.StrEnum):
    """What becomes of a signal; the answer contains the value."""

    ADMITTED = "admitted"
    EXTENDED = "extended"  # a kept prefix is extended by the newer behaviours
    RESIDENT = "resident"  # it is there already
    RUNNING = "running"  # another signal has started it
    NOT_AT_RISK = "not_at_risk"
    NO_ROOM = "no_room"
    NO_LOAD = "no_load"
    NO_RANKER = "no_ranker"
    NO_HISTORY = "no_history"


def count_work(spec: RankerSpec, new: int, past: int, causal: bool = True) -> float:
    """Multiply-adds of `new` tokens after `past` ones; candidates are not causal. Only keys and values of causal tokens are read, so their last layer
    attends to nothing."""
    seen, attending = past + (new / 2 if causal else 1), spec.layers - causal
    return new * (4.0 * spec.layers * spec.width**2 + attending * (spec.width**2 + 2.0 * seen * spec.width))


@dataclass(frozen=True, slots=True)
class RelayCosts:
    """ms per multiply-add, measured: of rankings, and of prefixes, which give way to everything else."""

    rank: float = _START_MS
    prefix: float = _START_MS

    def fold_rank(self, work: float, took_ms: float) -> "RelayCosts":
        """With one more measured ranking."""
        return replace(self, rank=_fold(self.rank, took_ms / max(work, 1.0)))

    def doubt_rank(self) -> "RelayCosts":
        """After a ranking that there was no time for, and so was not measured."""
        return replace(self, rank=min(self.rank, max(_START_MS, (1 - _COST_SHARE) * self.rank)))

    def fold_prefix(self, work: float, took_ms: float) -> "RelayCosts":
        """With one more measured piece of a prefix."""
        return replace(self, prefix=_fold(self.prefix, took_ms / max(work, 1.0)))


def _fold(known: float, measured: float) -> float:
    return known + _COST_SHARE * (min(measured, _OUTLIER * known) - known)


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals and the work left for prefixes, at `at_s` on the monotonic clock."""

    per_s: float = 0.0
    close: float = 0.0  # signals just now, this one included
    left_ms: float = 1000 * _BUCKET_S
    at_s: float = 0.0

    @property
    def is_rested(self) -> bool:
        """Whether prefixes have taken nothing for so long that no more is saved up."""
        return self.left_ms >= 1000 * _BUCKET_S

    def arrive(self, now_s: float, share: float) -> "Load":
        """With one more request; `share`: the most of a core's time that prefixes may take."""
        passed = max(0.0, now_s - self.at_s)
        left_ms = min(1000 * _BUCKET_S, self.left_ms + 1000 * share * passed)
        per_s = self.per_s * math.exp(-passed / _RATE_S) + 1 / _RATE_S
        return Load(per_s, 1 + self.close * math.exp(-passed / _MEET_S), left_ms, max(now_s, self.at_s))

    def spend(self, work_ms: float) -> "Load":
        """With so much less left for prefixes."""
        return replace(self, left_ms=self.left_ms - work_ms)


def predict_p99_ms(service_ms: float, per_s: float) -> float:
    """The 99th percentile of wait and service if every request took `service_ms` in one queue (M/D/1)."""
    rho = per_s * service_ms / 1000
    if rho >= _SATURATED:
        return math.inf
    busy = max(0.0, math.log(max(1.0, 100 * rho))) * service_ms * rho / (2 * (1 - rho))
    idle = service_ms * max(0.0, 1 - 0.01 / max(rho, 1e-9))
    return service_ms + max(busy, idle)


def predict_ms(service_ms: float, load: Load) -> float:
    """The 99th percentile, or the time for which the signals just now would keep each other waiting, whichever is longer."""
    return max(predict_p99_ms(service_ms, load.per_s), service_ms * load.close)


def decide(at_risk: bool, work_ms: float, load: Load, pages_wanted: int, pages_free: int, waiting_free: int) -> Decision:
    """What to do with a prefix that is not there. `pages_free`: those that no ranking in flight needs. `waiting_free`: how many more may wait for the prefix
    thread. A long prefix takes its load in advance.

    Monotone: a refused prefix stays refused with less room, less load left, or more work.
    """
    if not at_risk:
        return Decision.NOT_AT_RISK
    if pages_wanted > pages_free:
        return Decision.NO_ROOM
    has_load = waiting_free > 0 and (work_ms <= load.left_ms or load.is_rested)
    return Decision.ADMITTED if has_load else Decision.NO_LOAD
