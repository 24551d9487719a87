"""Answers of full work that may be given again under load, with probabilities calibrated for their age.

An answer is kept by user, version, request class and the chosen context features. It can be given again for `cache_ttl_s`, if each of its items is still a
candidate and it has enough of them. Off by default: then nothing is kept.

Here: keeping, finding, calibration. Not here: whether a kept answer is given (serving/core/choice.py), the fit (streams/allocation/calibration_fit.py).
Arrays: A items of an answer, T tasks.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from schemas.allocation import CachedAge
from schemas.ids import Id
from serving.allocation.settings import AllocationSection
from serving.core.final_order import logits_of
from serving.engine.work import RankResult, UserState


@dataclass(frozen=True, slots=True)
class _NoState:
    """The facts of a kept answer's user half. The half itself would hold megabytes."""

    version: int
    behaviours: int
    behaviours_without_row: int
    cold: bool
    size_bytes: int = 0

    @classmethod
    def of(cls, state: UserState) -> "_NoState":
        return cls(state.version, state.behaviours, state.behaviours_without_row, state.cold)


class Kept(NamedTuple):
    """An answer, without its user half, and its age in seconds now."""

    result: RankResult
    age_s: float


class ScoreCache:
    """Used in the event loop only. The answers that were kept longest ago make room."""

    def __init__(self, settings: AllocationSection, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s, self._answers_max, self._by, self._clock = settings.cache_ttl_s, settings.cache_answers, settings.cache_by, clock
        self._kept: OrderedDict[Hashable, tuple[RankResult, float, frozenset[Id]]] = OrderedDict()

    def key(self, user: Id, version: int, group: str, context: Mapping[str, Any]) -> Hashable:
        """The key of a request's answers; None: no answers are kept."""
        return (user, version, group, *(repr(context.get(name)) for name in self._by)) if self._ttl_s else None

    def keep(self, key: Hashable, result: RankResult) -> None:
        """Keeps an answer of full work."""
        self._kept.pop(key, None)
        self._kept[key] = (replace(result, state=_NoState.of(result.state)), self._clock(), frozenset(result.ids))
        if len(self._kept) > self._answers_max:
            self._kept.popitem(last=False)

    def find(self, key: Hashable, item_ids: Sequence[Id] | np.ndarray, top_k: int) -> Kept | None:
        """The kept answer of a key, cut to `top_k`, if it can be given to a request for these candidates."""
        result, kept_s, ids = self._kept.get(key, (None, 0.0, frozenset[Id]()))
        age_s = self._clock() - kept_s
        if result is None or len(result.ids) < min(top_k, len(item_ids)) or not 0 <= age_s <= self._ttl_s:
            return None
        if not ids.issubset(item_ids.tolist() if isinstance(item_ids, np.ndarray) else item_ids):
            return None
        return Kept(result, age_s)

    def __len__(self) -> int:
        return len(self._kept)


def give_again(kept: Kept, ages: Sequence[CachedAge], top_k: int) -> RankResult:
    """The kept answer with the first task's probabilities calibrated for its age. Order and scores stay: calibration is monotone."""
    result = kept.result
    probability_AT = result.probabilities_AT[:top_k].copy()
    knots = [age.age_s for age in ages]
    slope, intercept = (float(np.interp(kept.age_s, knots, [getattr(age, name) for age in ages])) for name in ("slope", "intercept"))
    probability_AT[:, 0] = 1 / (1 + np.exp(-(slope * logits_of(probability_AT[:, 0]) + intercept)))
    return replace(result, ids=result.ids[:top_k], scores_A=result.scores_A[:top_k], probabilities_AT=probability_AT)
