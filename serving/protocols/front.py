"""What the HTTP port and the gRPC port share: the inference operations, access control, the bound on concurrent requests, metrics, the access log."""

import logging
from collections.abc import Callable

import structlog
from prometheus_client import Counter, Histogram

from infra.metrics import Metrics
from schemas.ids import IdKind
from serving.calls.rank_call import RankCall
from serving.engine.loop.engine import Engine
from serving.protocols.access import Access
from serving.protocols.intake import Intake
from serving.protocols.open_inference import OpenInference
from serving.settings import ServeSection

OWN_FAULTS = frozenset({"500", "INTERNAL", "UNKNOWN"})  # statuses in HTTP and gRPC
_LOG = logging.getLogger("serving.access")
logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.access")


class Front:
    """The shared parts. `ready` returns (is ready, why not)."""

    def __init__(self, ready: Callable[[], tuple[bool, str]], settings: ServeSection, metrics: Metrics) -> None:
        self.ready, self.settings, self.metrics = ready, settings, metrics
        self.inference = OpenInference(ready, settings.deadline_ms, settings.candidates_max)
        self.access = Access(settings.token)
        self.intake = Intake(settings.requests_max)
        # The process will end: HTTP answers close their connections, so that no request is sent on one that is about to go.
        self.draining = False
        self.ranked, self.faults = 0, 0  # answers of rankings since the start, and those among them that failed through a fault of ours
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def open_calls(self, engine: Engine, rank_call: RankCall, id_kind: IdKind) -> None:
        """From now on inferences are answered. Before that they fail with Unavailable (`no_index`), while the process is alive (protocol C4)."""
        self.inference.open_calls(engine, rank_call, id_kind)

    def log(self, method: str, path: str, status: int | str, seconds: float, size: int) -> None:
        """The access log: one line for one answer of `size` bytes. With the id of the request, where it was read (calls/user_halves.py)."""
        level = logging.INFO if self.settings.access_log else logging.DEBUG
        if _LOG.isEnabledFor(level):  # structlog would build the line before it looks at the level
            took_ms = round(seconds * 1000, 3)
            logger.log(level, "request", method=method, path=path[:80], status=status, took_ms=took_ms, bytes=size)

    def record(self, route: str, status: str, seconds: float, ranked: bool) -> None:
        """Counts one answer. `ranked`: whether its time goes into the histogram; it does not for a GET route or a refusal, which compute nothing."""
        if (route, status) not in self._counters:
            self._counters[route, status] = self.metrics.counter("requests").labels(route, status)
        self._counters[route, status].inc()
        if not ranked:
            return
        self.ranked, self.faults = self.ranked + 1, self.faults + (status in OWN_FAULTS)
        if route not in self._histograms:
            self._histograms[route] = self.metrics.histogram("request_seconds").labels(route)
        self._histograms[route].observe(seconds)
