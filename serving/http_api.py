"""The HTTP front: routes, bytes in, bytes out, status codes. One RSGI application inside the server's event loop.

    POST /v1/user  /v1/rank  /v1/prerank     models of schemas/requests.py
    GET  /v1/status                          what is resident, how far, what went wrong last
    GET  /v2/health/live  /v2/health/ready   200 or 503
    GET  /v2/models/prerank                  metadata in the form of the Open Inference Protocol
    GET  /metrics                            Prometheus text

Here: reading a body within its bound, deadlines, the count of requests in work, one log line per request, and that no exception gets past this
file. Not here: what the routes compute (user_call.py, rank_call.py), what the bodies must be (bodies.py).
Invariant (I8): a body is read up to BODY_BYTES_MAX, and what is beyond is thrown away unread by anybody, so that the client gets its 413.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from granian.rsgi import ProtocolError
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from infra.metrics import Metrics
from schemas.errors import AifError, RejectedInput, Unavailable
from schemas.limits import BODY_BYTES_MAX, DEADLINE_MS_MAX
from schemas.requests import DEADLINE_HEADER, PrerankRequest, RankRequest, UserRequest
from serving.bodies import decode_body
from serving.deadline import Deadline
from serving.http_errors import encode_error, status_of
from serving.rank_call import RankCall
from serving.settings import ServeSection
from serving.user_call import UserCall

_THROWN_AWAY_BYTES_MAX = 4 * BODY_BYTES_MAX  # of a body that is too large; a client that sends more loses its connection
_BODY_S_MAX = 10.0
_JSON = "application/json"

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.http")


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Views:
    """What the GET routes show: live and ready (with the reason when not), and plain values for status and metadata."""

    ready: Callable[[], tuple[bool, str]]
    status: Callable[[], Mapping[str, Any]]
    model: Callable[[], Mapping[str, Any]]
    before_metrics: Callable[[], None]


class HttpApi:
    """The application. `in_work` = requests between receipt and answer."""

    def __init__(self, views: Views, settings: ServeSection, metrics: Metrics) -> None:
        self._views, self._settings, self._metrics = views, settings, metrics
        self._calls: Mapping[str, type[BaseModel]] = {"/v1/user": UserRequest, "/v1/rank": RankRequest, "/v1/prerank": PrerankRequest}
        self._handlers: Mapping[str, Callable[[Any, Deadline], Awaitable[BaseModel]]] = {}
        self._looks: Mapping[str, Callable[[], Reply]] = {
            "/v1/status": lambda: _plain(200, self._views.status()),
            "/v2/health/live": lambda: _plain(200, {"live": True}),
            "/v2/health/ready": self._show_ready,
            "/v2/models/prerank": lambda: _plain(200, self._views.model()),
            "/metrics": self._show_metrics,
        }
        self.in_work = 0

    def open_calls(self, user_call: UserCall, rank_call: RankCall) -> None:
        """From now on the POST routes are answered; until then they are Unavailable (`no_index`), and the process is alive (protocol C4)."""
        self._handlers = {"/v1/user": user_call.answer, "/v1/rank": rank_call.answer, "/v1/prerank": rank_call.answer}

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """One request. Nothing is raised from here."""
        received_s = time.monotonic()
        self.in_work += 1
        try:
            reply = await self._reply(scope, protocol, received_s)
        finally:
            self.in_work -= 1
        protocol.response_bytes(reply.status, [("content-type", reply.content_type), *reply.headers], reply.body)
        self._record(scope, reply, time.monotonic() - received_s)

    async def _reply(self, scope: Any, protocol: Any, received_s: float) -> Reply:
        try:
            return await self._route(scope, protocol, received_s)
        except Exception as error:
            return _failed(error, scope)

    async def _route(self, scope: Any, protocol: Any, received_s: float) -> Reply:
        path, method = scope.path, scope.method
        if path in self._calls:
            _check_method(path, method, "POST")
            return await self._call(path, scope, protocol, received_s)
        if path in self._looks:
            _check_method(path, method, "GET")
            return self._looks[path]()
        known = ", ".join((*self._calls, *self._looks))
        raise RejectedInput("no_such_route", f"{method} {path[:80]}: there is no such route; there are {known}")

    async def _call(self, path: str, scope: Any, protocol: Any, received_s: float) -> Reply:
        if self.in_work > self._settings.requests_max:
            message = f"{self._settings.requests_max} requests are in work, which is all this server takes; send it again a little later"
            raise Unavailable("overloaded", message, retry_after_s=0.05)
        raw = await _read_body(scope, protocol)
        body = decode_body(self._calls[path], raw)
        deadline = Deadline(received_s, _budget_ms(body, scope, self._settings.deadline_ms))
        deadline.left_s()
        if path not in self._handlers:
            raise Unavailable(
                "no_index", "the index store has no identity yet: no worker has opened it; start `aif worker` on the same store"
            )
        answer = await self._handlers[path](body, deadline)
        return Reply(200, answer.model_dump_json().encode())

    def _show_ready(self) -> Reply:
        ready, reason = self._views.ready()
        return _plain(200 if ready else 503, {"ready": ready} | ({} if ready else {"reason": reason}))

    def _show_metrics(self) -> Reply:
        self._views.before_metrics()
        return Reply(200, generate_latest(self._metrics.registry), CONTENT_TYPE_PLAIN_0_0_4)

    def _record(self, scope: Any, reply: Reply, seconds: float) -> None:
        route = scope.path if scope.path in self._calls or scope.path in self._looks else "other"
        self._metrics.counter("requests").labels(route, str(reply.status)).inc()
        if route in self._calls:
            self._metrics.histogram("request_seconds").labels(route).observe(seconds)
        write = logger.info if self._settings.access_log else logger.debug
        write(
            "request",
            method=scope.method,
            path=scope.path[:80],
            status=reply.status,
            took_ms=round(seconds * 1000, 3),
            bytes=len(reply.body),
        )


def _check_method(path: str, method: str, expected: str) -> None:
    if method != expected:
        raise RejectedInput("method_not_allowed", f"{method} {path}: this route takes {expected}")


async def _read_body(scope: Any, protocol: Any) -> bytes:
    """The whole body; RejectedInput: `body_too_large` before memory beyond the bound is taken, `body_too_slow`, `body_cut`."""
    try:
        async with asyncio.timeout(_BODY_S_MAX):
            return await _collect_body(scope, protocol)
    except ProtocolError as error:
        raise RejectedInput("body_cut", "the connection ended before the body was complete; send it again", "malformed") from error
    except TimeoutError as error:
        raise RejectedInput("body_too_slow", f"the body was not complete after {_BODY_S_MAX:g} s; send it at once") from error


async def _collect_body(scope: Any, protocol: Any) -> bytes:
    declared = scope.headers.get("content-length") or ""
    kept_max = 0 if declared.isdigit() and int(declared) > BODY_BYTES_MAX else BODY_BYTES_MAX
    chunks: list[bytes] = []
    size = 0
    async for chunk in protocol:
        size += len(chunk)
        if size <= kept_max:
            chunks.append(bytes(chunk))
        else:
            chunks.clear()
        if size > _THROWN_AWAY_BYTES_MAX:
            break
    if size > kept_max:
        raise _too_large(f"{declared} bytes" if kept_max == 0 else f"more than {BODY_BYTES_MAX} bytes")
    return b"".join(chunks)


def _too_large(size: str) -> RejectedInput:
    return RejectedInput("body_too_large", f"the body has {size}, expected at most {BODY_BYTES_MAX}; send fewer candidates or behaviours")


def _budget_ms(body: Any, scope: Any, default_ms: int) -> int:
    """The deadline of a request: its field, else its header, else the setting."""
    if body.deadline_ms is not None:
        return int(body.deadline_ms)
    header = scope.headers.get(DEADLINE_HEADER)
    if header is None:
        return default_ms
    if not (header.isascii() and header.isdigit() and 1 <= int(header[:9]) <= DEADLINE_MS_MAX):
        raise RejectedInput(
            "bad_deadline", f"header {DEADLINE_HEADER} is {header[:40]!r}, expected milliseconds from 1 to {DEADLINE_MS_MAX}"
        )
    return int(header)


def _plain(status: int, values: Mapping[str, Any]) -> Reply:
    return Reply(status, json.dumps(values).encode())


def _failed(error: Exception, scope: Any) -> Reply:
    answer, error_id = encode_error(error)
    if not isinstance(error, AifError):
        logger.error("request_failed", error_id=error_id, path=scope.path[:80], exc_info=error)
    headers = (("retry-after", str(max(1, round(answer.retry_after_s)))),) if answer.retry_after_s else ()
    return Reply(status_of(error), answer.model_dump_json().encode(), headers=headers)
