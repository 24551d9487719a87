"""Open-loop load: requests leave at a constant rate, whether or not the earlier ones were answered; over HTTP, or any call.

A latency counts from the intended departure of its request. A server that stalls is therefore charged for every request that was due meanwhile; a closed
loop would leave them out ("coordinated omission"). Connections are kept alive and carry one request at a time. Where all are busy a new one is opened, up
to a bound; beyond it a request waits at the sender while its clock runs.
Source: Gil Tene, "How NOT to measure latency"; DDSketch (arXiv 1908.10693), relative error 1%.
"""

import asyncio
import itertools
import select
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from ddsketch import DDSketch

from schemas.errors import AifError, Unavailable
from serving.core.infer_body import encode_infer_request
from serving.core.tensors import Tensor

_CONNECTIONS_MAX = 256
_ANSWER_S_MAX = 30.0
_SEND_BYTES = 1 << 20

T = TypeVar("T")
OK, REFUSED, FAILED = "ok", "refused", "failed"  # 200; 429 and 503; anything else, a lost connection included


@dataclass
class Latencies:
    """Latencies in milliseconds by outcome; `seconds` is the time from the first intended send to the last answer.

    `late` has the sender's own lag: milliseconds from the moment at which a request was meant to leave until it left. It is part of every latency, so
    where it is not small against them, the bench has measured the sender.
    """

    sketches: dict[str, DDSketch] = field(default_factory=lambda: {name: DDSketch(0.01) for name in (OK, REFUSED, FAILED)})
    late: DDSketch = field(default_factory=lambda: DDSketch(0.01))
    seconds: float = 0.0

    def add(self, outcome: str, ms: float) -> None:
        """Adds an answer."""
        self.sketches[outcome].add(ms)

    def merge(self, other: "Latencies") -> None:
        """Adds all answers and the seconds of another window."""
        for outcome, sketch in other.sketches.items():
            self.sketches[outcome].merge(sketch)
        self.late.merge(other.late)
        self.seconds += other.seconds

    async def time(self, answering: Awaitable[object], intended_s: float) -> None:
        """Waits for an answer and adds it. An error of ours is an outcome; any other is raised."""
        outcome = OK
        try:
            await answering
        except Unavailable:
            outcome = REFUSED
        except AifError:
            outcome = FAILED
        self.add(outcome, (time.perf_counter() - intended_s) * 1000)

    def count(self, outcome: str) -> int:
        """How many answers had an outcome."""
        return int(self.sketches[outcome].count)

    def quantile(self, outcome: str, share: float) -> float | None:
        """The latency in ms that the share `share` of the answers with an outcome did not exceed; None where there was no such answer."""
        value: float | None = self.sketches[outcome].get_quantile_value(share)
        return value


@dataclass(frozen=True, slots=True)
class Target:
    """The address of the requests; each is a POST of prepared bytes to `path`."""

    url: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, body: bytes) -> bytes:
        """The bytes of the HTTP request with this body."""
        head = [f"POST {self.path} HTTP/1.1", f"host: {urlsplit(self.url).netloc}", f"content-length: {len(body)}"]
        return "\r\n".join([*head, *(f"{name}: {value}" for name, value in self.headers), "", ""]).encode() + body


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time; without streams and tasks, which would cost the sender more than the server has to do for a refusal."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._came, self._status, self._body, self._ends = bytearray(), 0, 0, -1  # answer: bytes, status, where its body begins, ends
        self.stays = True

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """(status, body). Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        self._came, self._ends, self._answer = bytearray(), -1, loop.create_future()
        late = loop.call_later(_ANSWER_S_MAX, self._fail, TimeoutError("no answer"))
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            late.cancel()

    def close(self) -> None:
        """Ends it."""
        self.stays = False
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # a request leaves in one call

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self._ends < 0 and (head_ends := self._came.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._came[:head_ends]).lower()
            self._ends = head_ends + 4 + int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0] or b"0")
            self._body, self._status = head_ends + 4, int(head.split(b" ", 2)[1])
            self.stays = self.stays and b"connection: close" not in head
        if 0 <= self._ends <= len(self._came) and self._answer is not None and not self._answer.done():
            self._answer.set_result((self._status, bytes(self._came[self._body : self._ends])))

    def connection_lost(self, exc: Exception | None) -> None:
        self.stays = False
        self._fail(exc or ConnectionResetError("the connection ended"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Connections:
    """Kept alive, newest first, so that spare connections stay unused."""

    def __init__(self, url: str, count_max: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._free: list[_Connection] = []
        self._room = asyncio.Semaphore(count_max)

    async def exchange(self, request: bytes, left: Callable[[], object]) -> tuple[int, bytes]:
        """(status, body) of the answer; `left` is called when it leaves. Raises OSError or TimeoutError: connection lost."""
        async with self._room:
            connection = self._take() or await self._open()
            try:
                left()
                answer = await connection.exchange(request)
            except BaseException:
                connection.close()
                raise
            if connection.stays:
                self._free.append(connection)
            else:
                connection.close()
            return answer

    async def close(self) -> None:
        for connection in self._free:
            connection.close()
        await asyncio.sleep(0)

    def _take(self) -> _Connection | None:
        while self._free:
            if (connection := self._free.pop()).stays:  # and was not ended by the server meanwhile
                return connection
        return None

    async def _open(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return connection


OnAnswer = Callable[[bytes], None]  # gets the body of every answer with status 200; a ValueError of its own counts as FAILED


def _ignore(*_: object) -> None:
    pass


async def _send(
    connections: Connections, request: bytes, intended_s: float, late: Callable[[float], object], on_answer: OnAnswer = _ignore
) -> tuple[str, float, bytes]:
    """(outcome, milliseconds since the intended departure, body); the body is empty if no answer came. `late` gets the sender's own lag."""
    body = b""
    try:
        status, body = await connections.exchange(request, lambda: late((time.perf_counter() - intended_s) * 1000))
        outcome = OK if status == 200 else REFUSED if status in (429, 503) else FAILED
        if outcome == OK:
            on_answer(body)
    except (OSError, TimeoutError, ValueError):
        outcome = FAILED
    return outcome, (time.perf_counter() - intended_s) * 1000, body


class _FineSelector(selectors.EpollSelector):
    """Waits to the microsecond, whatever the number of connections: epoll rounds up to whole ms, select does not, and may wait for an epoll."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def run_to_the_microsecond(sending: Coroutine[None, None, T]) -> T:
    """Like asyncio.run, and a moment is met to 0.1 ms: the loop's usual way of waiting rounds up to whole ms, which would be in every latency."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_FineSelector())) as runner:
        return runner.run(sending)


async def sleep_until(moment_s: float) -> None:
    """Returns at a moment of `time.perf_counter`, at once where it has passed."""
    wait_s = moment_s - time.perf_counter()
    if wait_s > 0:
        await asyncio.sleep(wait_s)


async def call_at_rate(call: Callable[[int, float], Coroutine[None, None, None]], rate_per_s: float, seconds: float) -> float:
    """`call(number, intended_s)` at a constant rate for so long, whatever became of the earlier ones; returns the seconds until the last is done. An
    error that a call raises ends the whole load."""
    return await call_at(call, [number / rate_per_s for number in range(max(1, round(rate_per_s * seconds)))])


async def call_at(call: Callable[[int, float], Coroutine[None, None, None]], moments_s: Iterable[float]) -> float:
    """`call(number, intended_s)` at each of the moments, in seconds after the start; else as `call_at_rate`. Each moment is taken when the call before
    it has begun."""
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as calls:
        for number, moment_s in enumerate(moments_s):
            await sleep_until(start_s + moment_s)
            calls.create_task(call(number, start_s + moment_s))
    return time.perf_counter() - start_s


async def send_at_rate(
    target: Target,
    bodies: Sequence[bytes],
    rate_per_s: float,
    seconds: float,
    connections_max: int = _CONNECTIONS_MAX,
    on_answer: OnAnswer = _ignore,
) -> Latencies:
    """Bodies in turn at a constant rate for so long; returns when the last one is answered."""
    requests, latencies = [target.encode(body) for body in bodies], Latencies()
    connections = Connections(target.url, connections_max)

    async def send(number: int, intended_s: float) -> None:
        outcome, ms, _ = await _send(connections, requests[number % len(requests)], intended_s, latencies.late.add, on_answer)
        latencies.add(outcome, ms)

    latencies.seconds = await call_at_rate(send, rate_per_s, seconds)
    await connections.close()
    return latencies


async def send_at(
    target: Target,
    bodies: Sequence[bytes],
    moments_s: Sequence[float],
    on_answer: Callable[[int, str, float, bytes], None],
    on_leaving: Callable[[int, float], None] = _ignore,
) -> None:
    """Body i at the moment i.

    Every answer, a refusal included, is passed to `on_answer(number, outcome, ms, body)`; the body is empty if no answer came. A request that leaves is
    passed to `on_leaving(number, late_ms)`, with the sender's own lag."""
    requests, connections = [target.encode(body) for body in bodies], Connections(target.url, _CONNECTIONS_MAX)

    async def send(number: int, intended_s: float) -> None:
        on_answer(number, *await _send(connections, requests[number], intended_s, lambda late_ms: on_leaving(number, late_ms)))

    await call_at(send, moments_s)
    await connections.close()


async def send_in_turns(target: Target, bodies: Sequence[bytes], senders: int, seconds: float, on_answer: OnAnswer = _ignore) -> Latencies:
    """A closed loop: each of `senders` sends its next request when the last one is answered, at least one. What a server carries, not how fast it feels."""
    requests, latencies = [target.encode(body) for body in bodies], Latencies()
    connections, start_s = Connections(target.url, senders), time.perf_counter()

    async def send_on(first: int) -> None:
        for number in itertools.count(first, senders):
            request, intended_s = requests[number % len(requests)], time.perf_counter()
            outcome, ms, _ = await _send(connections, request, intended_s, latencies.late.add, on_answer)
            latencies.add(outcome, ms)
            if time.perf_counter() - start_s >= seconds:
                break

    await asyncio.gather(*(send_on(first) for first in range(senders)))
    latencies.seconds = time.perf_counter() - start_s
    await connections.close()
    return latencies


# --- bodies of inferences -------------------------------------------------------------------------------------------------

Inputs = Mapping[str, np.ndarray | str]


def to_tensors(inputs: Inputs) -> list[Tensor]:
    """Inputs by name: arrays of int64, and texts."""
    return [
        Tensor(name, "BYTES", (1,), [one.encode()]) if isinstance(one, str) else Tensor(name, "INT64", one.shape, one)
        for name, one in inputs.items()
    ]


def encode_inferences(url: str, head: Mapping[str, Any], requests: Iterable[Inputs]) -> tuple[Target, list[bytes]]:
    """One body for each of `requests`. All must have the same sizes, because an HTTP header names the length of their JSON headers."""
    encoded = [encode_infer_request(head, to_tensors(one)) for one in requests]
    (length,) = {length for _, length in encoded}
    target = Target(url, "/v2/models/prerank/infer", (("inference-header-content-length", str(length)),))
    return target, [body for body, _ in encoded]
