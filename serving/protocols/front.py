"""What the HTTP port and the gRPC port share: who may ask, how much at once (I8), the inference operations, metrics and the access log.

The health and readiness probes are answered without a token: an orchestrator that asks them has none, and the answer reveals nothing else.
"""

import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from prometheus_client import Counter, Histogram
from pydantic import SecretStr

from infra.metrics import Metrics
from schemas.errors import Misconfigured, RejectedInput, Unavailable
from schemas.ids import IdKind
from schemas.limits import BODIES_BYTES_MAX
from schemas.requests import BEARER_TOKEN
from serving.calls.rank_call import RankCall
from serving.engine.loop.engine import Engine
from serving.protocols.open_inference import OpenInference
from serving.settings import ServeSection

OWN_FAULTS = frozenset({"500", "INTERNAL", "UNKNOWN"})  # statuses in HTTP and gRPC
_TOKEN_CHARS_MIN = 16
_SCHEME = "bearer "
_LOG = logging.getLogger("serving.access")
logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.access")


class Access:
    """Lets in the requests that carry the token, or all of them if no token is set."""

    def __init__(self, token: SecretStr | None) -> None:
        self._token = None if token is None else token.get_secret_value().encode()

    @property
    def open(self) -> bool:
        """Whether requests need no token."""
        return self._token is None

    def check(self, authorization: Sequence[str]) -> None:
        """Raises RejectedInput (`unauthorized`) unless `authorization`, the values of all such headers, is the token once.

        Several are refused: a proxy in between might have judged another one. The comparison takes the same time for every wrong token.
        """
        if self._token is None:
            return
        if len(authorization) > 1:
            raise RejectedInput(
                "unauthorized", f"the request has {len(authorization)} authorization headers, expected one; send only the token's"
            )
        given = authorization[0] if authorization else ""
        matches = hmac.compare_digest(given[len(_SCHEME) :].encode(errors="replace"), self._token)
        if not (given[: len(_SCHEME)].lower() == _SCHEME and matches):
            raise RejectedInput(
                "unauthorized", "this server needs a token; send it as `Authorization: Bearer <token>` (AIF_SERVE__TOKEN there)"
            )


def check_exposure(host: str, token: SecretStr | None, allow_open: bool) -> None:
    """Raises Misconfigured: `bad_token`, or `open_to_the_network` for an address beyond loopback without a token."""
    if token is not None and not (len(token.get_secret_value()) >= _TOKEN_CHARS_MIN and BEARER_TOKEN.fullmatch(token.get_secret_value())):
        raise Misconfigured(
            "bad_token",
            f"AIF_SERVE__TOKEN must have at least {_TOKEN_CHARS_MIN} characters, all of them visible ASCII: no space, no end of a line;"
            " make a longer one, or leave those out",
        )
    if token is None and not allow_open and not _is_loopback(host):
        raise Misconfigured(
            "open_to_the_network",
            f"address {host} is reachable from other machines and no token is set; set AIF_SERVE__TOKEN, or AIF_SERVE__ALLOW_OPEN=true",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Intake:
    """Counts requests between receipt and answer, and bytes of bodies that are being read, over all ports. Used in the event loop only."""

    def __init__(self, requests_max: int) -> None:
        self.requests_max, self.in_work, self.reading_bytes = requests_max, 0, 0
        self.receipt: Callable[[float, str], Mapping[str, Any]] | None = None  # of a refusal: (seconds to the retry, reason)
        self.admit: Callable[[], None] = lambda: None  # raises Unavailable if one more request would wait too long

    def enter(self) -> "Intake":
        """`with intake.enter()`: one request is in work inside. `check` decides whether it is too many; probes skip it, so they are answered under load."""
        return self

    def __enter__(self) -> None:
        self.in_work += 1

    def __exit__(self, *raised: object) -> None:
        self.in_work -= 1

    def check(self) -> None:
        """Raises Unavailable (`overloaded`) if the request that entered last is one too many, by number or by the time it would wait."""
        try:
            self.check_number()
            self.admit()
        except Unavailable as error:
            if self.receipt is not None:
                error.receipt = self.receipt(error.retry_after_s, error.code)
            raise

    def check_number(self) -> None:
        """The same by number alone. Called again once the body has arrived, because other requests came meanwhile."""
        if self.in_work > self.requests_max:
            raise _overloaded(f"{self.requests_max} requests are in work")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """A body is read inside. The function it yields counts arrived bytes and raises Unavailable (`overloaded`) when there are too many.

        Meanwhile the request does not count as in work: a slow sender would take the place of others.
        """
        taken = 0
        self.in_work -= 1

        def take(count: int) -> None:
            nonlocal taken
            taken += count
            self.reading_bytes += count
            if self.reading_bytes > BODIES_BYTES_MAX:
                raise _overloaded(f"bodies of {BODIES_BYTES_MAX} bytes are being read")

        try:
            yield take
        finally:
            self.in_work += 1
            self.reading_bytes -= taken


def _overloaded(what: str) -> Unavailable:
    return Unavailable("overloaded", f"{what}, which is all this server takes; send it again a little later", retry_after_s=0.05)


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
