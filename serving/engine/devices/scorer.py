"""What the engine needs of a device: `Scorer`; and one that changes to the CPU's, on the same rows, when its device fails.

After most CUDA errors every later call in the process fails too, so a device that failed once is not tried again before the next start. Call 1 is the
CPU's on every device, so kept user states stay valid. Memory that is used up is no such error: that request fails, and the next may succeed.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from schemas.model.parameters import Parameters
from serving.engine.tables.tables import Applied
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

    def score(self, state: UserState, slots_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
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

    def score(self, state: UserState, slots_C: np.ndarray, context: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """See Scorer."""
        return self._call(lambda scorer: scorer.score(state, slots_C, context))

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
