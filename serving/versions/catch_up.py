"""How far a loaded version has to follow its deltas before it goes live, and what a server does that serves nothing yet and cannot get there.

A server that serves a version waits: the next one goes live with every delta that was in the log at the hand-over (C2). A server that has just started
and cannot (the broker is away, or the deltas are damaged or gone) serves the sealed files with what it could apply, because the alternative is no answer.
It says so (`behind`) until the version has reached the end of the log.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from infra.kafka.security import KafkaTopics
from schemas.errors import AifError, Incompatible, Unavailable
from serving.engine.loop.resident import Resident
from serving.versions.deltas import check_positions

CATCH_UP_S_MAX = 120.0
ALONE_S_MAX = 3.0  # for the broker's answer, and between two deltas, while the server serves nothing
_BROKER_S_MAX = 30.0
_POLL_S = 0.005
_LOOK_EVERY_S, _LOOK_S_MAX = 2.0, 1.0

logger = structlog.get_logger("versions")


class Followed(Protocol):
    """A version that follows its deltas. `behind`: why it may lack deltas that were in the log when it went live; "" if it does not."""

    resident: Resident
    behind: str

    @property
    def error(self) -> str:
        """Why it takes no more changes; "" if it does."""


class CatchUp:
    """`topic_id`: Kafka's id of the index's index-deltas, "" if it is not known. Used by the follower's thread."""

    def __init__(self, kafka: KafkaTopics, topic_id: Callable[[], str], stopped: threading.Event) -> None:
        self._kafka, self._topic_id, self._stopped = kafka, topic_id, stopped
        self._looked_s = 0.0

    def check(self, version: int, positions: Mapping[int, int], deadline_s: float = _BROKER_S_MAX) -> dict[int, int]:
        """See `check_positions`."""
        return check_positions(self._kafka, version, positions, self._topic_id(), deadline_s)

    def run(self, held: Followed, positions: Mapping[int, int], alone: bool) -> None:
        """Waits until the engine has applied every delta that is in the log now. `alone`: the server serves nothing yet; then a failure is noted in
        `held.behind`. Otherwise raises what `check` raises, Incompatible (`deltas_failed`), Unavailable (`deltas_behind`)."""
        try:
            self._follow(
                held,
                self.check(held.resident.version, positions, ALONE_S_MAX if alone else _BROKER_S_MAX),
                ALONE_S_MAX if alone else CATCH_UP_S_MAX,
            )
        except AifError as error:
            if not alone or self._stopped.is_set():
                raise
            held.behind = str(error)
            logger.warning("version_starts_behind", token=str(held.resident.token), error=held.behind)

    def look(self, held: Followed) -> None:
        """Called again and again while a version is behind: notes when it has reached the end of the log."""
        if not held.behind or held.error or time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        try:
            ends = self.check(held.resident.version, held.resident.positions, _LOOK_S_MAX)
            if all(held.resident.positions[p] >= end for p, end in ends.items()):
                held.behind = ""
                logger.info("version_caught_up", token=str(held.resident.token))
        except AifError as error:
            held.behind = str(error)
        self._looked_s = time.monotonic()

    def _follow(self, held: Followed, ends: Mapping[int, int], idle_s_max: float) -> None:
        """Raises Unavailable (`deltas_behind`) after CATCH_UP_S_MAX, or `idle_s_max` without any progress."""
        positions, began_s = dict(held.resident.positions), time.monotonic()
        moved_s = began_s
        while any(held.resident.positions[p] < end for p, end in ends.items()):
            if held.error:
                raise Incompatible("deltas_failed", f"version {held.resident.version} cannot follow its deltas: {held.error}")
            now_s, before = time.monotonic(), positions
            if (positions := dict(held.resident.positions)) != before:
                moved_s = now_s
            if now_s - began_s > CATCH_UP_S_MAX or now_s - moved_s > idle_s_max or self._stopped.wait(_POLL_S):
                raise Unavailable(
                    "deltas_behind",
                    f"version {held.resident.version} stands at {positions} in index-deltas after {now_s - began_s:.0f} s, wanted {dict(ends)}; is the "
                    "broker up?",
                )
