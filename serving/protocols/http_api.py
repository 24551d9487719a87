"""The HTTP front: routes, bytes in, bytes out, status codes. One RSGI application inside the server's event loop.

    POST /v1/user  /v1/rank  /v1/prerank     models of schemas/requests.py
    POST /v1/prefix  /v1/rank_final          the second stage
    GET  /v1/status                          what is resident, how far, what went wrong last
    GET  /v1/allocation[/requests/ID]        how much work requests get, and why a request got what it got
    POST /v1/allocation/mode                 {"mode": ...}: off, shadow, queue, value
    GET  /openapi.json                       these routes for machines
    GET  /metrics                            Prometheus text
    ...  /v2/...                             the Open Inference Protocol (open_inference_http.py)

Invariant: cheap checks come first: number of headers, token, route, number of requests in work, body. A request that is refused by its head is answered
as soon as that has arrived; its body is read and thrown away after the answer.

The request of a client that has gone is given up. Asking Granian for that costs 20 to 40 us, a timer 1: so a request that is answered at once is never
asked for.
Invariant: the bytes of a ranking, made from the engine's arrays, equal those of the pydantic model field by field (a test checks it). The same serializer
writes both.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from pydantic_core import to_json

from schemas.errors import RejectedInput
from schemas.ids import Id, encode_wire_id
from schemas.limits import HTTP_HEADER_BYTES_MAX, HTTP_HEADERS_MAX, HTTP_URI_CHARS_MAX, KIB
from schemas.requests import DEADLINE_HEADER, AllocationRequest, FinalRequest, PrefixRequest, PrerankRequest, RankRequest, UserRequest
from serving.allocation.allocator import Allocator
from serving.calls.deadline import Deadline, decode_deadline_header
from serving.calls.rank_call import RankCall, Ranked
from serving.calls.user_call import UserCall
from serving.engine.work import RankResult
from serving.protocols.front import Front
from serving.protocols.http_body import UnwantedBodies, decode_body, read_body
from serving.protocols.http_reply import BEFORE_BODY, TOO_MANY, Reply, WrongMethod, error_reply, json_reply
from serving.protocols.open_inference import no_index
from serving.protocols.open_inference_http import PREFIX, PROBES, OpenInferenceHttp
from serving.protocols.openapi import openapi_json
from serving.users.user_store import KnownUser

_AT_ONCE_BYTES_MAX = 32 * KIB  # read in 1 ms
_ACCEPTED = 202  # a signal's work begins after its answer
_ALLOCATION, _MODE, _DECISIONS = "/v1/allocation", "/v1/allocation/mode", "/v1/allocation/requests/"
_LOOKS = ("GET", "HEAD")  # HEAD is what probes of load balancers like to send; Granian leaves the body of its answer out


Watch = Callable[[RankRequest | PrerankRequest, KnownUser | None, bytes], None]


_ASKS_AFTER_S = 0.01


_ITEMS_PER_TURN = 1_000  # of the event loop: 0.5 ms. In one piece, 10,000 items kept all other requests waiting for 7 ms


async def encode_answer(ranked: Ranked, took_ms: float) -> bytes:
    """The body of a 200 answer. Nothing is validated, because every value comes from this process."""
    result = ranked.result
    head = {
        "request_id": ranked.request_id,
        "version_token": str(result.token),
        "rung": ranked.rung.value,
        "degraded": ranked.degraded,
        **{name: ranked.receipt[name] for name in ("action", "lambda", "table")},
        "receipt": ranked.receipt,
    }
    tail = {
        "candidates": result.candidates,
        "unknown_count": result.unknown_count,
        "unknown_items": encode_wire_ids(result.unknown),
        "freshness": {"age_s": ranked.ages.worst_s, "lagging_shards": ranked.ages.lagging, "watermark": result.watermark},
        "final": ranked.final,
        "took_ms": took_ms,
    }
    items = b",".join([part async for part in _encode_items(result)])
    return b"".join((_encode(head)[:-1], b',"items":[', items, b"],", _encode(tail)[1:]))


async def _encode_items(result: RankResult) -> AsyncIterator[bytes]:
    """The items, separated by commas. Between two parts the event loop answers others."""
    rows = zip(encode_wire_ids(result.ids), result.scores_A.tolist(), result.probabilities_AT.tolist(), strict=True)
    while part := [{"item_id": one, "score": score, "probabilities": of_tasks} for one, score, of_tasks in islice(rows, _ITEMS_PER_TURN)]:
        yield _encode(part)[1:-1]
        if len(part) == _ITEMS_PER_TURN:
            await asyncio.sleep(0)


def _encode(values: object) -> bytes:
    return to_json(values, inf_nan_mode="null")


def encode_wire_ids(ids: Sequence[Id]) -> Sequence[Id]:
    """Ids as they travel in JSON. If the smallest and the greatest id fit into a JSON number, all do; this is the common case and needs no loop."""
    if ids and isinstance(ids[0], int) and all(isinstance(encode_wire_id(one), int) for one in (min(ids), max(ids))):
        return ids
    return [encode_wire_id(one) for one in ids]


class ClientWatch:
    """`with ClientWatch(protocol):` what computes an answer, in the request's own task. Raises RejectedInput (`client_gone`), which has no reader."""

    def __init__(self, protocol: Any) -> None:
        """`protocol`: Granian's, of the request."""
        self._protocol, self._gone = protocol, False
        self._task: asyncio.Task[Any] | None = None
        self._disconnect: Any = None  # Granian's future, once it is asked

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_ASKS_AFTER_S, self._ask)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        if self._disconnect is not None:
            self._disconnect.cancel()
        # Python's collector does not see into Granian's future: through it this would hold itself permanently, 1 KB a request.
        self._disconnect = self._task = None
        if self._gone and isinstance(error, asyncio.CancelledError):
            raise RejectedInput("client_gone", "the client went away before its answer") from error

    def _ask(self) -> None:
        self._disconnect = self._protocol.client_disconnect()
        self._disconnect.add_done_callback(self._give_up)

    def _give_up(self, disconnect: Any) -> None:
        if self._task is not None and not disconnect.cancelled():
            self._gone = True
            self._task.cancel()


@dataclass(frozen=True, slots=True)
class Views:
    """The sources of the GET routes.

    - status: returns the server's state as plain values
    - before_metrics: called before the metrics are read, to update gauges
    - allocator: decides how much work requests get
    """

    status: Callable[[], Mapping[str, Any]]
    before_metrics: Callable[[], None]
    allocator: Allocator


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
            _ALLOCATION: lambda: json_reply(200, self._views.allocator.status()),
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
        if path == _MODE:
            _check_method(path, method, "POST")
            self._views.allocator.switch(decode_body(AllocationRequest, await read_body(scope, protocol, self._front.intake)).mode)
            return self._looks[_ALLOCATION]()
        if path.startswith(_DECISIONS):
            _check_method(path, method, *_LOOKS)
            return json_reply(200, self._views.allocator.explain(unquote(path.removeprefix(_DECISIONS))))
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
        deadline.require_time()
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
