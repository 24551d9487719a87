"""A follower's checkpoints: written and announced once per interval, and watched until they are live or refused.

Here: when a checkpoint is published, under which name, and what became of it. Not here: judging it (streams/versions/checkpoints.py), versions (the
control log). Nothing is published while there are faults (health.py), or if nothing was learnt since the last checkpoint. A follower does not promote
versions itself: they pass the same gate as all others, and an operator's hold or pin applies to them.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.clock import Clock
from schemas.errors import AifError
from schemas.index.control import ControlState
from schemas.model.checkpoint import write_checkpoint
from schemas.model.network import AifNetwork

_FILES_KEPT = 5  # newest files that stay on disk; the workers have copied those that were announced
_ON_ITS_WAY = ("announced", "wanted", "published")
_log = logging.getLogger("aif.train.follow")


@dataclass(frozen=True, slots=True)
class Published:
    """A published checkpoint. `state` is "announced", then the version's state in the control log; `live_s` is the time from announcement to live,
    None before."""

    version: int
    model_id: str
    at: float
    state: str = "announced"
    reason: str = ""
    live_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For the status line."""
        return {"version": self.version, "model_id": self.model_id, "state": self.state, "reason": self.reason, "live_s": self.live_s}


class Publications:
    """Writes, announces and watches. `announce` publishes the pointer to a file and returns its version; `fetch_control` returns the state of the control
    log. Weights up to step `steps` count as published already."""

    def __init__(
        self,
        out: Path,
        name: str,
        every_s: float,
        announce: Callable[[Path], int],
        fetch_control: Callable[[], ControlState],
        clock: Clock,
        steps: int = 0,
    ) -> None:
        self._out, self._name, self._every_s = out, name, every_s
        self._announce, self._fetch_control, self._clock = announce, fetch_control, clock
        self._due_at = clock.monotonic() + every_s
        self._steps = steps
        self.newest: Published | None = None

    def step(self, network: AifNetwork, steps: int, faults: tuple[str, ...], card: Callable[[], Mapping[str, Any]]) -> None:
        """Publishes if the interval is over, something was learnt and there are no faults; otherwise looks what became of the newest checkpoint."""
        if self._clock.monotonic() >= self._due_at and steps > self._steps and not faults:
            self._publish(network, steps, card())
        elif self.newest is not None and self.newest.state in _ON_ITS_WAY:
            self._watch(self.newest)

    def _publish(self, network: AifNetwork, steps: int, card: Mapping[str, Any]) -> None:
        """Writes and announces a checkpoint. If the broker or the disk fails, it is logged and tried again after the next interval."""
        self._due_at = self._clock.monotonic() + self._every_s
        model_id = f"{self._name}-{steps:09d}"
        path = self._out / f"{model_id}.safetensors"
        self._out.mkdir(parents=True, exist_ok=True)
        for left in self._out.glob(f".{self._name}-*.tmp"):  # left by a follower that was killed while it wrote
            left.unlink(missing_ok=True)
        try:
            write_checkpoint(path, network, model_id, card)
            at = self._clock.monotonic()
            self.newest = Published(self._announce(path), model_id, at)
        except (AifError, OSError) as error:
            _log.error("checkpoint %s not announced: %s", path, error)
            return
        self._steps = steps
        for old in sorted(self._out.glob(f"{self._name}-{'[0-9]' * 9}.safetensors"))[:-_FILES_KEPT]:
            old.unlink(missing_ok=True)

    def _watch(self, newest: Published) -> None:
        try:
            control = self._fetch_control()
        except AifError as error:
            _log.warning("the control log does not answer: %s", error)
            return
        status = control.versions.get(newest.version)
        if status is not None and status.state.value != newest.state:
            live_s = self._clock.monotonic() - newest.at if control.live == newest.version else None
            self.newest = replace(newest, state=status.state.value, reason=status.reason, live_s=live_s)
