"""An open loop of whole requests on an engine, at a constant rate: call 1 when a request arrives, call 2 when its candidates do.

Here: sending, and `find_rate_max`. Not here: the requests (table4.py), the open loop over HTTP (lab/load.py).
A latency counts from the moment at which the candidates were meant to arrive. If call 1 is not done by then, the request waits for it and the clock
runs. Nothing is sent later because something else was slow, so there is no coordinated omission.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.load import FAILED, OK, REFUSED, Latencies
from schemas.errors import Unavailable
from serving.engine.loop.engine import Engine
from serving.engine.work import RankWork, UserResult, UserState, UserWork


@dataclass(frozen=True, slots=True)
class Request:
    """`user`: call 1, None where there is none. `rank`: makes call 2 from the state of call 1, or from None without a call 1."""

    user: UserWork | None
    rank: Callable[[UserState | None], RankWork]


class _Window:
    """The answers of one window. Futures are completed in the engine's thread or in the sender's, so the counts are under a lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._all_done = engine, threading.Condition()
        self._states: dict[int, Future[UserResult]] = {}
        self._open = 0
        self.latencies = Latencies()

    def send_user(self, number: int, request: Request) -> None:
        """Sends call 1, if there is one."""
        if request.user is not None:
            self._states[number] = self._engine.submit_user(request.user)

    def send_rank(self, number: int, request: Request, intended_s: float) -> None:
        """Sends call 2, at once or as soon as its state is there."""
        with self._all_done:
            self._open += 1
        made = self._states.pop(number, None)
        if made is None:
            self._rank(request.rank(None), intended_s)
        else:
            made.add_done_callback(partial(self._rank_after, request, intended_s))

    def wait(self) -> None:
        """Waits until every request is answered."""
        with self._all_done:
            self._all_done.wait_for(lambda: self._open == 0)

    def _rank_after(self, request: Request, intended_s: float, made: "Future[UserResult]") -> None:
        if made.exception() is not None:
            self._end(intended_s, made)
        else:
            self._rank(request.rank(made.result().state), intended_s)

    def _rank(self, work: RankWork, intended_s: float) -> None:
        self._engine.submit_rank(work).add_done_callback(partial(self._end, intended_s))

    def _end(self, intended_s: float, done: "Future[Any]") -> None:
        taken_ms, error = 1e3 * (time.perf_counter() - intended_s), done.exception()
        outcome = OK if error is None else REFUSED if isinstance(error, Unavailable) else FAILED
        with self._all_done:
            self.latencies.add(outcome, taken_ms)
            self._open -= 1
            self._all_done.notify_all()


def send_requests(engine: Engine, request_of: Callable[[int], Request], rate_per_s: float, seconds: float, retrieval_s: float) -> Latencies:
    """Sends requests at a constant rate for `seconds`, the candidates of each `retrieval_s` after it; returns when the last one is answered."""
    window, started_s = _Window(engine), time.perf_counter()
    for intended_s, step, number in _schedule(started_s + retrieval_s, max(1, round(rate_per_s * seconds)), rate_per_s, retrieval_s):
        wait_s = intended_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        request = request_of(number)
        if step == 0:
            window.send_user(number, request)
        else:
            window.send_rank(number, request, intended_s)
    window.wait()
    window.latencies.seconds = time.perf_counter() - started_s - retrieval_s
    return window.latencies


def _schedule(start_s: float, count: int, rate_per_s: float, retrieval_s: float) -> Iterator[tuple[float, int, int]]:
    """(time, 0 for call 1 or 1 for call 2, number of the request), in the order of time."""
    ranks = ((start_s + number / rate_per_s, 1, number) for number in range(count))
    users = ((start_s + number / rate_per_s - retrieval_s, 0, number) for number in range(count))
    return heapq.merge(users, ranks)


def find_rate_max(p99_ms_at: Callable[[float], float], bound_ms: float, low: float, high: float, steps: int) -> float:
    """The highest rate per second at which p99 stays within the bound, between `low` and `high`; 0 if it does not at `low`.

    After `steps` bisections the rate is interpolated between the highest that holds and the lowest that does not, by the logarithms of their p99s,
    because the last interval is as wide as the differences between rows. A rate that fails is measured twice and the better result counts, because
    other processes on the machine can only make it worse.
    """

    def seen_ms(rate: float) -> float:
        p99_ms = p99_ms_at(rate)
        return p99_ms if p99_ms <= bound_ms else min(p99_ms, p99_ms_at(rate))

    low_ms, high_ms = seen_ms(low), math.inf
    if low_ms > bound_ms:
        return 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        middle_ms = seen_ms(middle)
        if middle_ms <= bound_ms:
            low, low_ms = middle, middle_ms
        else:
            high, high_ms = middle, middle_ms
    return low + (high - low) * math.log(bound_ms / low_ms) / math.log(high_ms / low_ms)
