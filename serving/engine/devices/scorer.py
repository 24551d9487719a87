"""The scorer of a device: its interface, the fallback to the CPU when the device fails, its choice, and its kernels compiled before the first request.

After most CUDA errors every later call in the process fails too, so a device that failed once is not tried again before the next start. Call 1 is the
CPU's on every device, so kept user states stay valid. Memory that is used up is no such error: that request fails, and the next may succeed.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import Id, IdKind
from schemas.index.layout import row_layout
from schemas.kinds import CATEGORICAL, EMBEDDING
from schemas.model.parameters import Parameters, parameter_shapes
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.devices.cpu import CpuScorer
from serving.engine.tables.candidates import find_candidates, rank_top
from serving.engine.tables.tables import Applied, Tables, make_tables
from serving.engine.work import UserState, UserWork

T = TypeVar("T")
_log = logging.getLogger("aif.engine")


class Scorer(Protocol):
    """Computes both calls on one version's tables. Used by the engine's thread."""

    @property
    def parameters(self) -> Parameters:
        """The version's model."""

    @property
    def tiers_by(self) -> str:
        """What counts SimTier: see `VersionReport`."""

    @property
    def device_error(self) -> str:
        """Why the CPU ranks instead of the device; "" if it does not."""

    def user_state(self, work: UserWork) -> UserState:
        """Call 1. Other threads may call it while the engine's thread is in `score`."""

    def score(self, state: UserState, row_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Call 2: (scores float32 [C], probabilities float32 [C, T])."""

    def on_applied(self, applied: Applied) -> None:
        """Called after rows of the tables were written."""


def is_device_lost(error: BaseException) -> bool:
    """Whether an error of torch, Triton or the driver means that the device answers no more."""
    return "CUDA" in str(error) and "out of memory" not in str(error)


class GuardedScorer:
    """Implements `Scorer`. `open_device` and `open_cpu` make the two scorers; the second is made when the first fails."""

    def __init__(self, open_device: Callable[[], Scorer], open_cpu: Callable[[], Scorer]) -> None:
        self._open_cpu, self.device_error = open_cpu, ""
        try:
            self._scorer = open_device()
        except RuntimeError as error:
            self._use_cpu(error)

    @property
    def parameters(self) -> Parameters:
        """See Scorer."""
        return self._scorer.parameters

    @property
    def tiers_by(self) -> str:
        """See Scorer."""
        return self._scorer.tiers_by

    def user_state(self, work: UserWork) -> UserState:
        """See Scorer."""
        return self._scorer.user_state(work)

    def score(self, state: UserState, row_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """See Scorer."""
        return self._call(lambda scorer: scorer.score(state, row_C, context))

    def on_applied(self, applied: Applied) -> None:
        """See Scorer."""
        self._call(lambda scorer: scorer.on_applied(applied))

    def _call(self, call: Callable[[Scorer], T]) -> T:
        try:
            return call(self._scorer)
        except RuntimeError as error:
            self._use_cpu(error)
            return call(self._scorer)

    def _use_cpu(self, error: RuntimeError) -> None:
        """Raises the error if it is not the loss of the device."""
        if self.device_error or not is_device_lost(error):
            raise error
        self.device_error = str(error).partition("\n")[0]
        _log.error("device_lost: %s; the CPU ranks from now on, restart the server to use the device again", self.device_error)
        self._scorer = self._open_cpu()


def open_scorer(device: str, parameters: Parameters, version: int, tables: Tables) -> Scorer:
    """A scorer of one version on "cpu" or "cuda". Only the second loads torch, and it falls back to the first if the device fails."""
    if device == "cpu":
        return CpuScorer(parameters, version, tables)
    import torch

    from serving.engine.devices.cuda import CudaScorer

    torch.set_num_threads(1)  # OpenMP's spinning workers would take the core of the engine's own thread
    return GuardedScorer(lambda: CudaScorer(parameters, version, tables, device), lambda: CpuScorer(parameters, version, tables))


@functools.cache
def compile_kernels() -> None:
    """Compiles every kernel (or loads it from numba's cache) for both kinds of ids, so that no flip and no request has to."""
    ids: dict[IdKind, list[Id]] = {IdKind.INT64: [1, 2, 3], IdKind.TEXT: ["a", "b", "a-longer-id"]}
    for kind, bits in ((IdKind.INT64, 128), (IdKind.TEXT, 64)):
        _rank_once(kind, bits, ids[kind])


def _rank_once(kind: IdKind, bits: int, ids: list[Id]) -> None:
    schema = FeatureSchema(
        (Feature("category", Scope.ITEM, CATEGORICAL, buckets=4), Feature("image", Scope.ITEM, EMBEDDING, width=4)),
        id_kind=kind,
        sim_category="category",
        multimodal="image",
    )
    spec = ModelSpec(schema, width=4, bridges=2, bridge_width=4, hash_bits=bits, rank_by="click")
    tables = make_tables(row_layout(spec), ids)
    tables.columns["has_signature"][:] = 1
    arrays = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(spec).items()}
    scorer = CpuScorer(Parameters(spec, arrays), 0, tables)
    state = scorer.user_state(UserWork({}, [BehaviourEvent(i, "click", 0) for i in ids]))
    found = find_candidates(tables, ids)
    scores_C, _ = scorer.score(state, found.row_K, {})
    rank_top(scores_C, found.ids_K, 1)
