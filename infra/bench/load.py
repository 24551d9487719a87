"""An open-loop load on one HTTP server: requests leave at a constant rate, whether or not the earlier ones were answered.

Here: sending, and latencies as sketches by kind of answer. Not here: what is sent, what the figures mean.
A latency counts from the moment at which the request was meant to leave, so a server that stands still is charged for everybody who would have come
meanwhile ("coordinated omission" is what a closed loop would measure). Connections are kept alive and taken one request at a time; where all are
busy a new one is opened, up to a bound, beyond which a request waits on the sender's side and its clock runs.
Source: Gil Tene, "How NOT to measure latency"; DDSketch (arXiv 1908.10693), relative error 1%.
"""

import asyncio
import contextlib
import itertools
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from ddsketch import DDSketch

_CONNECTIONS_MAX = 256
_ANSWER_S_MAX = 30.0

T = TypeVar("T")
OK, REFUSED, FAILED = "ok", "refused", "failed"  # 200; 429 and 503; anything else, a lost connection included


@dataclass
class Latencies:
    """Milliseconds by outcome; `seconds` = from the first intended send to the last answer.

    `late` = ms from the moment at which a request was meant to leave until it left: the sender's own lag, which is in every latency too. Where it is
    not small against them, the sender is what was measured.
    """

    sketches: dict[str, DDSketch] = field(default_factory=lambda: {name: DDSketch(0.01) for name in (OK, REFUSED, FAILED)})
    late: DDSketch = field(default_factory=lambda: DDSketch(0.01))
    seconds: float = 0.0

    def add(self, outcome: str, ms: float) -> None:
        """One answer."""
        self.sketches[outcome].add(ms)

    def count(self, outcome: str) -> int:
        """Answers of one kind."""
        return int(self.sketches[outcome].count)

    def quantile(self, outcome: str, share: float) -> float | None:
        """ms; None where there was no such answer."""
        value: float | None = self.sketches[outcome].get_quantile_value(share)
        return value


@dataclass(frozen=True, slots=True)
class Target:
    """Where to; every request is one POST of ready bytes to `path`."""

    url: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, body: bytes) -> bytes:
        """The whole HTTP request."""
        head = [f"POST {self.path} HTTP/1.1", f"host: {urlsplit(self.url).netloc}", f"content-length: {len(body)}"]
        return "\r\n".join([*head, *(f"{name}: {value}" for name, value in self.headers), "", ""]).encode() + body


class _Connections:
    """Kept alive, newest first: those that are not needed grow old and nobody minds."""

    def __init__(self, url: str, count_max: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._room = asyncio.Semaphore(count_max)

    async def exchange(self, request: bytes, left: Callable[[], None]) -> tuple[int, bytes]:
        """(status, body) of the answer; `left` is called when it leaves. Raises OSError or asyncio.IncompleteReadError: connection lost."""
        async with self._room:
            reader, writer = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
            try:
                left()
                writer.write(request)
                status, body, stays = await asyncio.wait_for(_read_answer(reader), _ANSWER_S_MAX)
            except BaseException:
                writer.close()
                raise
            if stays:
                self._free.append((reader, writer))
            else:
                writer.close()
            return status, body

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection stays open)."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0] or b"0")
    body = await reader.readexactly(length)
    return int(head.split(b" ", 2)[1]), body, b"connection: close" not in head


def _outcome(status: int) -> str:
    return OK if status == 200 else REFUSED if status in (429, 503) else FAILED


OnAnswer = Callable[[bytes], None]  # gets the body of every answer with status 200


async def _send(
    connections: _Connections, request: bytes, intended_s: float, latencies: Latencies, on_answer: OnAnswer | None = None
) -> None:
    try:
        status, body = await connections.exchange(request, lambda: latencies.late.add((time.perf_counter() - intended_s) * 1000))
        outcome = _outcome(status)
        if outcome == OK and on_answer is not None:
            on_answer(body)
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
        outcome = FAILED
    latencies.add(outcome, (time.perf_counter() - intended_s) * 1000)


def run_to_the_microsecond(sending: Coroutine[None, None, T]) -> T:
    """Like asyncio.run, and a moment is met to 0.1 ms: the loop's usual way of waiting (epoll) rounds up to whole ms, which would be in every latency.

    For a few hundred connections: this way looks at each of them every time.
    """
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(sending)


async def call_at_rate(call: Callable[[int, float], Awaitable[None]], rate_per_s: float, seconds: float) -> float:
    """`call(number, intended_s)` at a constant rate for so long, whatever became of the earlier ones; returns the seconds until the last is done."""
    tasks, start_s = set[asyncio.Future[None]](), time.perf_counter()
    for number in range(max(1, round(rate_per_s * seconds))):
        intended_s = start_s + number / rate_per_s
        wait_s = intended_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.ensure_future(call(number, intended_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.wait(set(tasks))
    return time.perf_counter() - start_s


async def send_at_rate(
    target: Target,
    bodies: Sequence[bytes],
    rate_per_s: float,
    seconds: float,
    connections_max: int = _CONNECTIONS_MAX,
    on_answer: OnAnswer | None = None,
) -> Latencies:
    """Bodies in turn at a constant rate for so long; returns when the last one is answered."""
    requests, latencies = [target.encode(body) for body in bodies], Latencies()
    connections = _Connections(target.url, connections_max)

    def send(number: int, intended_s: float) -> Awaitable[None]:
        return _send(connections, requests[number % len(requests)], intended_s, latencies, on_answer)

    latencies.seconds = await call_at_rate(send, rate_per_s, seconds)
    await connections.close()
    return latencies


async def send_in_turns(target: Target, bodies: Sequence[bytes], senders: int, seconds: float) -> Latencies:
    """A closed loop: each of `senders` sends its next request when the last one is answered, at least one. What a server carries, not how fast it feels."""
    requests, latencies = [target.encode(body) for body in bodies], Latencies()
    connections, start_s = _Connections(target.url, senders), time.perf_counter()

    async def send_on(first: int) -> None:
        for number in itertools.count(first, senders):
            await _send(connections, requests[number % len(requests)], time.perf_counter(), latencies)
            if time.perf_counter() - start_s >= seconds:
                break

    await asyncio.gather(*(send_on(first) for first in range(senders)))
    latencies.seconds = time.perf_counter() - start_s
    await connections.close()
    return latencies
