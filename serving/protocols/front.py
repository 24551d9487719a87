"""What the HTTP port and the gRPC port share: the protocol's operations, who may ask, how many at a time, what is counted.

Here: the parts, made once per process. Not here: either port (http_api.py, grpc_api.py), nor what a request computes (user_call.py, rank_call.py).
"""

from collections.abc import Callable

from prometheus_client import Counter, Histogram

from infra.metrics import Metrics
from schemas.ids import IdKind
from serving.calls.rank_call import RankCall
from serving.engine.loop import Engine
from serving.protocols.access import Access
from serving.protocols.intake import Intake
from serving.protocols.open_inference import OpenInference
from serving.settings import ServeSection


class Front:
    """The parts. `ready` answers (ready, why not)."""

    def __init__(self, ready: Callable[[], tuple[bool, str]], settings: ServeSection, metrics: Metrics) -> None:
        self.ready, self.settings, self.metrics = ready, settings, metrics
        self.inference = OpenInference(ready, settings.deadline_ms)
        self.access = Access(settings.token)
        self.intake = Intake(settings.requests_max)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def open_calls(self, engine: Engine, rank_call: RankCall, id_kind: IdKind) -> None:
        """From now on inferences are answered; until then they are Unavailable (`no_index`), and the process is alive (protocol C4)."""
        self.inference.open_calls(engine, rank_call, id_kind)

    def record(self, route: str, status: str, seconds: float, ranked: bool) -> None:
        """Counts one answer. `ranked`: a call whose time is worth a histogram, not a look, and not a refusal, which takes none."""
        if (route, status) not in self._counters:
            self._counters[route, status] = self.metrics.counter("requests").labels(route, status)
        self._counters[route, status].inc()
        if not ranked:
            return
        if route not in self._histograms:
            self._histograms[route] = self.metrics.histogram("request_seconds").labels(route)
        self._histograms[route].observe(seconds)
