"""Recomputes a share of the answers with the plain form of the head in fp64, in parallel with the engine, and reports the difference as metrics.

    parity_difference_max   greatest difference of a probability since the start      parity_overlap_min   least share of the reference's top
    parity_samples          checked | moved | busy | failed

If a delta was applied between the answer and the copy, the watermarks differ and the sample is dropped as "moved". The user half is the request's own
state, with the rows of its behaviours at call 1 (protocol D1).
Reference: reference_answer.py, which is `AifNetwork.joint_logits` without torch, in blocks of candidates so that its memory is bounded.

Arrays: C known candidates, T tasks, A items of the answer.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import structlog

from infra.metrics import Metrics
from schemas.actions import count_second
from schemas.ids import Id
from schemas.model.parameters import Parameters
from serving.audit.reference_answer import score_plainly
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.loop.engine import Engine
from serving.engine.tables.candidates import find_candidates
from serving.engine.work import RankResult, RankWork

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.parity")


@dataclass(frozen=True, slots=True)
class ParityFigures:
    """difference_max = greatest |probability - reference| of the answer's items; overlap = share of the reference's top that is in the answer."""

    difference_max: float
    overlap: float


@dataclass(frozen=True, slots=True)
class _Copied:
    """Copies of what the reference needs, which no later change of the rows can touch."""

    parameters: Parameters
    ids: Sequence[Id]
    rows_C: np.ndarray


class ParitySampler:
    """Checks `share` of the answers, at most one in `every_s` seconds. Created and called in the event loop."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        share: float,
        every_s: float,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[int, ParityFigures], None] = lambda version, figures: None,
    ) -> None:
        """`tell` is called with the version and the figures of each checked answer."""
        self._tell = tell
        self._engine, self._metrics, self._share, self._every_s, self._clock = engine, metrics, share, every_s, clock
        self._rng = random.Random(seed)
        self._next_s = float("-inf")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="parity")
        self._running: Future[None] | None = None
        self._worst = ParityFigures(0.0, 1.0)

    def offer(self, work: RankWork, result: RankResult) -> None:
        """Offers an answer; the sampler decides whether to check it. Returns at once."""
        if self._share == 0.0 or self._rng.random() >= self._share or self._clock() < self._next_s:
            return
        if not isinstance(result.state, EngineUserState) or (self._running is not None and not self._running.done()):
            self._count("busy")
            return
        self._next_s = self._clock() + self._every_s
        copied = self._engine.run(lambda: self._copy(work, result))
        self._running = self._executor.submit(self._check, copied, work, result)

    def close(self) -> None:
        """Waits for the sample that is being computed."""
        self._executor.shutdown(cancel_futures=True)

    def _copy(self, work: RankWork, result: RankResult) -> _Copied | None:
        """Runs in the engine's turn. None if the version or its rows have changed since the answer."""
        resident = self._engine.find_resident(result.token.version)
        if resident is None or resident.token != result.token or resident.watermark != result.watermark:
            return None
        found = find_candidates(resident.tables, work.item_ids)
        ids = found.ids_K.tolist() if isinstance(found.ids_K, np.ndarray) else found.ids_K
        return _Copied(resident.scorer.parameters, ids, resident.tables.rows_at(found.row_K))

    def _check(self, copied: "Future[_Copied | None]", work: RankWork, result: RankResult) -> None:
        try:
            rows = copied.result()
            if rows is None:
                self._count("moved")
                return
            figures = _compare(rows, work, result)
        except Exception as error:  # a failed check is logged and counted, and disturbs nothing else
            self._count("failed")
            logger.warning("parity_sample_failed", error=repr(error))
            return
        self._count("checked")
        self._tell(result.token.version, figures)
        self._worst = ParityFigures(max(self._worst.difference_max, figures.difference_max), min(self._worst.overlap, figures.overlap))
        self._metrics.gauge("parity_difference_max").set(self._worst.difference_max)
        self._metrics.gauge("parity_overlap_min").set(self._worst.overlap)

    def _count(self, outcome: str) -> None:
        self._metrics.counter("parity_samples").labels(outcome).inc()


def _compare(copied: _Copied, work: RankWork, result: RankResult) -> ParityFigures:
    assert isinstance(result.state, EngineUserState)
    scores_C, probabilities_CT = score_plainly(copied.parameters, result.state.arrays.named(), copied.rows_C, work.context)
    light = result.state.without_long() if work.passes == 2 else None
    if light is not None:
        first_C, _ = score_plainly(copied.parameters, light.arrays.named(), copied.rows_C, work.context)
        scores_C[
            np.argsort(-first_C, kind="stable")[count_second(len(first_C), work.top_k) :]
        ] = -np.inf  # the second pass ranks the others
    place = {one: at for at, one in enumerate(copied.ids)}
    return compare_answer(place, scores_C, probabilities_CT, result.ids, result.probabilities_AT)


def compare_answer(
    place: Mapping[Id, int], scores_C: np.ndarray, reference_CT: np.ndarray, ids: Sequence[Id], probabilities_AT: np.ndarray
) -> ParityFigures:
    """`place` = index of each candidate in the reference's arrays; `ids` the answer, best first. An empty answer agrees with anything."""
    if not ids:
        return ParityFigures(0.0, 1.0)
    places_A = np.array([place[one] for one in ids])
    difference = float(np.abs(reference_CT[places_A] - probabilities_AT).max())
    best = np.argsort(-scores_C, kind="stable")[: len(ids)]
    return ParityFigures(difference, len(set(best.tolist()) & set(places_A.tolist())) / len(ids))
