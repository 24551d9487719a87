"""Whether this server is able to answer: its engine turns, its rankings succeed, its threads run.

A thread that fails begins again (infra/guarded_thread.py). The server stays ready meanwhile and answers from its present data. Otherwise a fault in all
servers at once would take every one of them from its load balancer.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from infra.guarded_thread import report_threads
from serving.engine.work import EngineStatus

LATE_S = 5.0  # between two looks, which come several times a second: then all threads of the process stood still
TURN_S_MAX = 10.0  # a turn takes milliseconds; the first ranking of a version on a device compiles for some seconds
HUNG_S_MAX = 60.0  # then the process ends: a thread that hangs in a device or a library cannot be mended from inside
WINDOW_S = 10.0
FAULTS_MIN, FAULT_SHARE_MAX = 5, 0.5


class Health:
    """`status`: the engine's; `counted`: (rankings answered, those that failed through a fault of ours), both since the start."""

    def __init__(
        self, status: Callable[[], EngineStatus], counted: Callable[[], tuple[int, int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._status, self._counted, self._clock = status, counted, clock
        self._seen: deque[tuple[float, int, int]] = deque([(clock(), *counted())])
        self._looked_s, self._resumed_s = clock(), float("-inf")

    def look(self) -> None:
        """Called several times a second."""
        now_s = self._clock()
        if now_s - self._looked_s > LATE_S:  # the engine had no time either, and may turn in a moment
            self._resumed_s = now_s
        self._looked_s = now_s
        self._seen.append((now_s, *self._counted()))
        while len(self._seen) > 2 and self._seen[1][0] < now_s - WINDOW_S:
            self._seen.popleft()

    def why_not(self) -> str:
        """Why the server is not able to answer; "" if it is."""
        if (age_s := self._turn_age_s()) > TURN_S_MAX:
            return f"the engine has not turned for {age_s:.0f} s, expected at most {TURN_S_MAX:g} s; restart the server"
        if dead := [report.name for report in report_threads() if not report.alive]:
            return f"threads have ended: {', '.join(dead)}; restart the server"
        (_, answers_before, faults_before), (answers, faults) = self._seen[0], self._counted()
        new, failed = answers - answers_before, faults - faults_before
        if failed >= FAULTS_MIN and failed > FAULT_SHARE_MAX * new:
            return f"{failed} of the last {new} rankings failed through a fault of this server; look for the errors in its log"
        return ""

    @property
    def is_hung(self) -> bool:
        """Whether only the end of the process helps."""
        return self._turn_age_s() > HUNG_S_MAX

    def _turn_age_s(self) -> float:
        """Seconds without a turn since the process last resumed; infinite if the engine's thread has ended."""
        age_s = self._status().turn_age_s
        return age_s if math.isinf(age_s) else min(age_s, self._clock() - self._resumed_s)

    def describe(self) -> dict[str, Any]:
        """The engine's thread and the guarded threads as plain values."""
        status = self._status()
        threads = {r.name: {"alive": r.alive, "faults": r.faults, "last_fault": r.last_fault} for r in report_threads()}
        engine = {"alive": status.turn_age_s != float("inf"), "faults": status.faults, "last_fault": status.last_fault}
        return {"engine": engine, **threads}
