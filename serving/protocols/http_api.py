"""The HTTP front: routes, bytes in, bytes out, status codes. One RSGI application inside the server's event loop.

    POST /v1/user  /v1/rank  /v1/prerank     models of schemas/requests.py
    POST /v1/prefix  /v1/rank_final          the second stage
    GET  /v1/status                          what is resident, how far, what went wrong last
    GET  /openapi.json                       these routes for machines
    GET  /metrics                            Prometheus text
    ...  /v2/...                             the Open Inference Protocol (open_inference_http.py)

Invariant: cheap checks come first: number of headers, token, route, number of requests in work, body. A request that is refused by its head is answered
as soon as that has arrived; its body is read and thrown away after the answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from schemas.errors import RejectedInput
from schemas.limits import HTTP_HEADER_BYTES_MAX, HTTP_HEADERS_MAX, HTTP_URI_CHARS_MAX, KIB
from schemas.requests import DEADLINE_HEADER, FinalRequest, PrefixRequest, PrerankRequest, RankRequest, UserRequest
from serving.calls.deadline import Deadline, decode_deadline_header
from serving.calls.rank_call import RankCall
from serving.calls.user_call import UserCall
from serving.protocols.answer_body import encode_answer
from serving.protocols.client_watch import ClientWatch
from serving.protocols.front import Front
from serving.protocols.http_body import UnwantedBodies, decode_body, read_body
from serving.protocols.http_reply import BEFORE_BODY, TOO_MANY, Reply, WrongMethod, error_reply, json_reply
from serving.protocols.open_inference import no_index
from serving.protocols.open_inference_http import PREFIX, PROBES, OpenInferenceHttp
from serving.protocols.openapi import openapi_json
from serving.users.user_store import KnownUser

_AT_ONCE_BYTES_MAX = 32 * KIB  # read in 1 ms
_ACCEPTED = 202  # a signal's work begins after its answer
_LOOKS = ("GET", "HEAD")  # HEAD is what probes of load balancers like to send; Granian leaves the body of its answer out


Watch = Callable[[RankRequest | PrerankRequest, KnownUser | None, bytes], None]


@dataclass(frozen=True, slots=True)
class Views:
    """What the GET routes show. `status`: the server's state as plain values; `before_metrics`: called before the metrics are read, to update gauges."""

    status: Callable[[], Mapping[str, Any]]
    before_metrics: Callable[[], None]


class HttpApi:
    """The RSGI application that Granian calls for each request."""

    def __init__(self, front: Front, views: Views, watch: Watch = lambda request, history, answer: None) -> None:
        """`watch` is called with every ranking of the JSON routes: its request, the history it was made from (`Ranked.history`), its body."""
        self._front, self._views, self._watch = front, views, watch
        self._inference, self._unwanted, self._decoding = OpenInferenceHttp(front.inference), UnwantedBodies(), asyncio.Lock()
        self._calls: Mapping[str, type[BaseModel]] = {
            "/v1/user": UserRequest,
            "/v1/rank": RankRequest,
            "/v1/prerank": PrerankRequest,
            "/v1/prefix": PrefixRequest,
            "/v1/rank_final": FinalRequest,
        }
        self._handlers: Mapping[str, Callable[[Any, Deadline], Awaitable[bytes]]] = {}
        self._looks: Mapping[str, Callable[[], Reply]] = {
            "/v1/status": lambda: json_reply(200, self._views.status()),
            "/openapi.json": lambda: Reply(200, openapi_json(self._front.settings.candidates_max)),
            "/metrics": self._show_metrics,
        }

    def open_calls(self, user_call: UserCall, rank_call: RankCall) -> None:
        """From now on the POST routes are answered. Before that they fail with Unavailable (`no_index`), while the process is alive (protocol C4)."""

        async def user(request: UserRequest, deadline: Deadline) -> bytes:
            return (await user_call.answer(request, deadline)).model_dump_json().encode()

        async def rank(request: RankRequest | PrerankRequest, deadline: Deadline) -> bytes:
            ranked = await rank_call.rank(request, deadline)
            answer = await encode_answer(ranked, deadline.took_ms())
            if ranked.final is None:
                self._watch(request, ranked.history, answer)
            return answer

        async def prefix(request: PrefixRequest, deadline: Deadline) -> bytes:
            if rank_call.final is None:
                raise no_index()
            return (await rank_call.final.signal(request, deadline)).model_dump_json().encode()

        async def rank_final(request: FinalRequest, deadline: Deadline) -> bytes:
            return await rank(request.as_rank_request(), deadline)

        self._handlers = {"/v1/user": user, "/v1/rank": rank, "/v1/prerank": rank, "/v1/prefix": prefix, "/v1/rank_final": rank_final}

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answers one request. Raises nothing."""
        received_s = time.monotonic()
        with self._front.intake.enter():
            reply = await self._reply(scope, protocol, received_s)
        closing = [("connection", "close")] if self._front.draining else []
        protocol.response_bytes(reply.status, [("content-type", reply.content_type), *reply.headers, *closing], reply.body)
        self._record(scope, reply, time.monotonic() - received_s)
        if reply.status in BEFORE_BODY:
            await self._unwanted.throw_away(scope, protocol)

    async def _reply(self, scope: Any, protocol: Any, received_s: float) -> Reply:
        try:
            _check_headers(scope)
            if not self._front.access.open and scope.path not in PROBES:
                self._front.access.check(scope.headers.get_all("authorization"))
            with ClientWatch(protocol):
                return await self._route(scope, protocol, received_s)
        except Exception as error:
            return error_reply(error, scope.path)

    async def _route(self, scope: Any, protocol: Any, received_s: float) -> Reply:
        path, method = scope.path, scope.method
        if path in self._calls:
            _check_method(path, method, "POST")
            return await self._call(path, await self._take_body(scope, protocol), scope, received_s)
        if self._inference.is_infer(path):
            _check_method(path, method, "POST")
            raw = await self._take_body(scope, protocol)
            return await self._inference.infer(path, raw, scope.headers, received_s, _header_ms(scope))
        if path in self._looks:
            _check_method(path, method, *_LOOKS)
            return self._looks[path]()
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            self._inference.check_route(path)
            _check_method(path, method, *_LOOKS)
            return self._inference.look(path)
        known = ", ".join((*self._calls, *self._looks, f"{PREFIX}/..."))
        raise RejectedInput("no_such_route", f"{method} {path[:80]}: there is no such route; there are {known}")

    async def _take_body(self, scope: Any, protocol: Any) -> bytes:
        self._front.intake.check()
        raw = await read_body(scope, protocol, self._front.intake)
        self._front.intake.check_number()
        return raw

    async def _call(self, path: str, raw: bytes, scope: Any, received_s: float) -> Reply:
        body: Any = await self._decode(self._calls[path], raw)
        deadline = Deadline(received_s, body.deadline_ms or _header_ms(scope) or self._front.settings.deadline_ms)
        deadline.left_s()
        if path not in self._handlers:
            raise no_index()
        return Reply(_ACCEPTED if path == "/v1/prefix" else 200, await self._handlers[path](body, deadline))

    async def _decode(self, kind: type[BaseModel], raw: bytes) -> BaseModel:
        """What may bring a history is decoded in a thread: 20,000 behaviours take 0.1 s, in which the event loop answers others."""
        if len(raw) <= _AT_ONCE_BYTES_MAX or "behaviours" not in kind.model_fields:
            return decode_body(kind, raw)
        with self._front.intake.reading() as take:  # while it waits for a thread, it is one of the bodies that are bounded
            take(len(raw))
            async with self._decoding:  # several at once would be no faster, and leave the event loop fewer turns
                return await asyncio.to_thread(decode_body, kind, raw)

    def _show_metrics(self) -> Reply:
        self._views.before_metrics()
        return Reply(200, generate_latest(self._front.metrics.registry), CONTENT_TYPE_PLAIN_0_0_4)

    def _record(self, scope: Any, reply: Reply, seconds: float) -> None:
        path = scope.path
        route = path if path in self._calls or path in self._looks else self._inference.label(path)
        ranked = reply.status != TOO_MANY and (path in self._calls or self._inference.is_infer(path))
        self._front.record(route, str(reply.status), seconds, ranked)
        self._front.log(scope.method, path, reply.status, seconds, len(reply.body))


def _check_headers(scope: Any) -> None:
    """Raises RejectedInput: `uri_too_long`, `too_many_headers`, `headers_too_large`. Beyond twice these bounds Granian refuses, without a body."""
    uri, headers = len(scope.path) + len(scope.query_string), scope.headers.items()
    if uri > HTTP_URI_CHARS_MAX:
        raise RejectedInput("uri_too_long", f"path and query have {uri} characters, expected at most {HTTP_URI_CHARS_MAX}; send a body")
    if (
        count := max(len(headers), len(scope.headers))
    ) > HTTP_HEADERS_MAX:  # the first lacks values that are not ASCII, the second repeated names
        raise RejectedInput("too_many_headers", f"the request has {count} headers, expected at most {HTTP_HEADERS_MAX}; send fewer")
    if (size := sum(len(name) + len(value) for name, value in headers)) > HTTP_HEADER_BYTES_MAX:
        raise RejectedInput("headers_too_large", f"the headers have {size} bytes, expected at most {HTTP_HEADER_BYTES_MAX}; send fewer")


def _check_method(path: str, method: str, *allowed: str) -> None:
    if method not in allowed:
        raise WrongMethod(method, path, allowed)


def _header_ms(scope: Any) -> int | None:
    # Granian has no text for a value that is not ASCII
    return decode_deadline_header(scope.headers.get(DEADLINE_HEADER, "no ASCII") if DEADLINE_HEADER in scope.headers else None)
