"""The Merger of the paper's Figure 3: when a request arrives, call 1 is sent while retrieval runs; the candidates follow in call 2, with call 1's token.

    arrival ──┬── retrieval ─────────────── candidates ──┬── call 2 (rank) ── answer
              └── call 1 (user half) ── version token ───┘

Invariants: call 2 is sent as soon as there are candidates; if call 1 is late, the server waits for it. If a server is lost between the two calls, the next
one computes the user half again, without an error. With `carries_state` it need not, because call 2 brings the state. After a refusal, or a fault of a
server, the next one is asked. If all refuse, they are asked again after the time that they named, a few times and within the deadline.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import httpx

from schemas.errors import AifError, Corrupted, Incompatible, Unavailable
from schemas.ids import Id, encode_wire_id
from schemas.requests import RankAnswer, UserAnswer
from serving.core.routing import ServerLoad, plan_route
from serving.http_calls import READY, decode_answer, decode_error, name_unreachable

POLL_S_DEFAULT = 0.5
_PROBE_S_MAX = 1.0  # a server that takes longer to say that it is ready is not ready
ROUNDS_MAX = 3  # over all servers
_LOST_S = 1.0  # a server that did not answer is asked last for this long
_MARGIN_MS = 50  # the server answers by the deadline, and then its answer has to arrive

T = TypeVar("T")
A = TypeVar("A", UserAnswer, RankAnswer)
Retrieve = Callable[[Id], Awaitable[Sequence[Id]]]
Open = Callable[[str], httpx.AsyncClient]


@dataclass(frozen=True, slots=True)
class Span:
    """A step that lasted from `start_ms` to `end_ms`, counted from the arrival of the request."""

    name: str
    start_ms: float
    end_ms: float
    detail: str = ""

    @property
    def took_ms(self) -> float:
        """Its duration in ms."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Merged:
    """An answer, the server that gave it, the number of calls, and the timeline.

    `user_answer` None: call 1 gave no answer in time. `signalled`: the server that took the signal for the ranker's prefix.
    """

    answer: RankAnswer
    server: str
    attempts: int
    spans: Sequence[Span]
    user_answer: UserAnswer | None = None
    signalled: str | None = None

    @property
    def took_ms(self) -> float:
        """Milliseconds from arrival to answer."""
        return max(span.end_ms for span in self.spans)


@dataclass
class _Server:
    url: str
    http: httpx.AsyncClient
    in_flight: int = 0
    ready: bool = True  # as the last probe said
    lost_until_s: float = field(default=float("-inf"))


def open_http(url: str) -> httpx.AsyncClient:
    """A client without a token."""
    return httpx.AsyncClient(base_url=url)


class Merger:
    """Ranks for users over several servers. For one event loop; close it, or use it with `async with`."""

    def __init__(
        self,
        urls: Sequence[str],
        retrieve: Retrieve,
        open_client: Open = open_http,
        *,
        poll_s: float = POLL_S_DEFAULT,
        carries_state: bool = False,
    ) -> None:
        """`open_client` makes the client of an address; give your own to bring a token or trust a certificate.

        `poll_s`: time between two probes, from the first request on. `carries_state`: the servers have a key for it (calls/carried_state.py).
        """
        self._poll_s, self._carries_state = poll_s, carries_state
        self._polling: Sequence[asyncio.Task[None]] = ()
        self._servers = {url: _Server(url, open_client(url)) for url in urls}
        self._retrieve = retrieve
        self._calls: set[asyncio.Task[Any]] = set()

    async def recommend(
        self, user: Id, top_k: int = 100, deadline_ms: int = 200, context: Mapping[str, Any] | None = None, final_top_k: int | None = None
    ) -> Merged:
        """The top-k of what retrieval finds, or the ranker's `final_top_k` of them. Then the signal for its prefix goes to the server of call 1: the route is
        decided once. Raises the last server's error if none answers, Unavailable (`deadline_passed`) after the deadline."""
        request = _Request(user, uuid.uuid4().hex, time.perf_counter(), deadline_ms)
        self._watch_servers()
        route = self.route(user)
        first = self._begin(self._user_half(request, route[0]))
        signal = None if final_top_k is None else self._begin(self._post(request, route[0], "/v1/prefix", {"candidates": top_k}))
        item_ids = await self._retrieve(user)
        request.note("retrieval", 0.0, f"{len(item_ids)} candidates")
        user_answer = first.result() if first.done() and first.exception() is None else None
        if user_answer is not None and user_answer.candidates_max is not None:  # the server would rank no more of them now
            item_ids = item_ids[: max(user_answer.candidates_max, 2 * top_k)]
        body = {"item_ids": [encode_wire_id(one) for one in item_ids], "top_k": top_k, "context": dict(context or {})}
        if user_answer is not None:
            body["version_token"] = user_answer.version_token
            if user_answer.user_state is not None:
                body["user_state"] = user_answer.user_state
        if final_top_k is not None:
            body["final"] = {"top_k": final_top_k}
        merged = await self._rank(request, route, body, user_answer)
        signalled = route[0] if signal is not None and signal.done() and signal.exception() is None else None
        return replace(merged, signalled=signalled)

    def route(self, user: Id) -> list[str]:
        """The servers in the order in which they are asked about a user."""
        now_s = time.monotonic()
        loads = [
            ServerLoad(server.url, server.ready and now_s >= server.lost_until_s, server.in_flight) for server in self._servers.values()
        ]
        return plan_route(user, loads)

    async def _user_half(self, request: "_Request", url: str) -> UserAnswer:
        """Call 1. Its failure does no harm, because call 2 can do without it."""
        started_ms = request.took_ms()
        wanted = {"carry_state": True} if self._carries_state else {}
        answer = request.check(decode_answer(UserAnswer, await self._post(request, url, "/v1/user", wanted)))
        request.note("call 1", started_ms, f"{answer.behaviours} behaviours, version {answer.version_token}")
        return answer

    async def _rank(self, request: "_Request", route: Sequence[str], body: Mapping[str, Any], user_answer: UserAnswer | None) -> Merged:
        """Call 2, on the next server if one is lost, refuses or fails. If all do, again after the shortest retry time that they named."""
        attempts = 0
        for turn in range(ROUNDS_MAX):
            errors = list[AifError]()
            for url in route:
                attempts += 1
                try:
                    answer = await self._ask(request, url, body)
                    return Merged(answer, url, attempts, tuple(request.spans), user_answer)
                except AifError as error:
                    errors.append(error)
                    if not _may_succeed_elsewhere(error):
                        raise
            hints = [error.retry_after_s for error in errors if isinstance(error, Unavailable) and error.retry_after_s > 0]
            if turn == ROUNDS_MAX - 1 or not hints or min(hints) * 1000 + _MARGIN_MS > request.left_ms():
                raise errors[-1]
            await asyncio.sleep(min(hints))
            route = self.route(request.user)
        raise AssertionError("a merger has at least one server")

    async def _ask(self, request: "_Request", url: str, body: Mapping[str, Any]) -> RankAnswer:
        """Call 2 on one server, noted in the timeline. Raises as `_post`, and Incompatible (`bad_answer`)."""
        started_ms = request.took_ms()
        try:
            answer = request.check(decode_answer(RankAnswer, await self._post(request, url, "/v1/rank", body)))
        except AifError as error:
            request.note("call 2", started_ms, f"{url}: {error.code}")
            raise
        request.note("call 2", started_ms, f"{url}: user half {answer.rung}, {answer.took_ms:.1f} ms in the server")
        return answer

    async def _post(self, request: "_Request", url: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """One call. Raises the server's error, Unavailable (`server_unreachable`, `deadline_passed`)."""
        server, left_ms = self._servers[url], request.left_ms()
        fields = {**body, "user_id": encode_wire_id(request.user), "request_id": request.request_id, "deadline_ms": left_ms}
        limit_s = (left_ms + _MARGIN_MS) / 1000
        server.in_flight += 1
        try:
            async with asyncio.timeout(limit_s):  # httpx bounds each read, and an answer that drips has many
                answer = await server.http.post(path, json=fields, timeout=limit_s)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise request.passed() from error
        except httpx.RequestError as error:
            server.lost_until_s = time.monotonic() + _LOST_S
            raise Unavailable("server_unreachable", name_unreachable(url, error).message, 0.0) from error
        finally:
            server.in_flight -= 1
        server.lost_until_s = float("-inf")
        if answer.status_code not in (200, 202):
            raise decode_error(answer)
        return answer

    def _watch_servers(self) -> None:
        if not self._polling:
            self._polling = [asyncio.create_task(self._watch(server)) for server in self._servers.values()]

    async def _watch(self, server: _Server) -> None:
        """Asks a server each `poll_s` whether it is ready. Never ends by itself.

        A request learns only about its own server, and at its own cost. A probe notices a server that drains, hangs or is back before a request does.
        """
        while True:
            try:
                async with asyncio.timeout(_PROBE_S_MAX):
                    server.ready = (await server.http.get(READY, timeout=_PROBE_S_MAX)).status_code == 200
            except (TimeoutError, httpx.RequestError):
                server.ready = False
            if server.ready:
                server.lost_until_s = float("-inf")
            await asyncio.sleep(self._poll_s)

    def _begin(self, call: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A call in parallel with retrieval, whose failure does no harm."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, call: "asyncio.Task[Any]") -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # call 2 has answered or raised; this error is of no interest

    async def close(self) -> None:
        """Cancels running calls and probes, and closes the connections."""
        calls: list[asyncio.Task[Any]] = [*self._calls, *self._polling]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for server in self._servers.values():
            await server.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass
class _Request:
    """The clock of one request, and its timeline so far."""

    user: Id
    request_id: str
    arrived_s: float
    deadline_ms: int
    spans: list[Span] = field(default_factory=list)

    def took_ms(self) -> float:
        return (time.perf_counter() - self.arrived_s) * 1000

    def left_ms(self) -> int:
        left = int(self.deadline_ms - self.took_ms())
        if left < 1:
            raise self.passed()
        return left

    def check(self, answer: A) -> A:
        """The answer, if it is of this request. Raises Incompatible (`bad_answer`), for example where a proxy mixes answers up."""
        if answer.request_id != self.request_id:
            raise Incompatible("bad_answer", f"the answer is of request {answer.request_id[:80]!r}, expected {self.request_id!r}")
        return answer

    def passed(self) -> Unavailable:
        return Unavailable("deadline_passed", f"no answer within {self.deadline_ms} ms; allow more, or retrieve faster", 0.0)

    def note(self, name: str, started_ms: float, detail: str) -> None:
        self.spans.append(Span(name, started_ms, self.took_ms(), detail))


def _may_succeed_elsewhere(error: AifError) -> bool:
    """Whether another server may answer: this one is lost, refuses, has a fault of its own, or is not `aif serve` at all, such as a proxy."""
    if error.code == "deadline_passed":
        return False
    return isinstance(error, Unavailable | Corrupted) or error.code == "bad_answer"
