"""An open loop of whole requests on an engine: call 1 when a request arrives, call 2 when its candidates do, both at a constant rate.

Here: sending, and latencies counted from the moment at which the candidates were meant to arrive; `find_rate_max`. Not here: what is sent
(table4.py), the open loop over HTTP (infra/bench/load.py). A request whose call 1 is not done when its candidates arrive waits for it, and the clock
runs. Nothing is ever sent later because something was slow.
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

from infra.bench.load import FAILED, OK, REFUSED, Latencies
from schemas.errors import Unavailable
from serving.engine.loop import Engine
from serving.engine.work import RankWork, UserResult, UserState, UserWork


@dataclass(frozen=True, slots=True)
class Request:
    """`user`: call 1, None where the row has none. `rank`: call 2 with the state of call 1 (None without one)."""

    user: UserWork | None
    rank: Callable[[UserState | None], RankWork]


class _Window:
    """The answers of one window. Futures end in the engine's thread, late ones in the sender's: books under a lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock, self._all_done = engine, threading.Lock(), threading.Condition()
        self._states: dict[int, Future[UserResult]] = {}
        self._open = 0
        self.latencies = Latencies()

    def send_user(self, number: int, request: Request) -> None:
        """Call 1, if there is one."""
        if request.user is not None:
            self._states[number] = self._engine.submit_user(request.user)

    def send_rank(self, number: int, request: Request, intended_s: float) -> None:
        """Call 2, at once or as soon as its state is there."""
        with self._all_done:
            self._open += 1
        made = self._states.pop(number, None)
        if made is None:
            self._rank(request.rank(None), intended_s)
        else:
            made.add_done_callback(partial(self._rank_after, request, intended_s))

    def wait(self) -> None:
        """Until every request has its answer."""
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
        with self._lock:
            self.latencies.add(outcome, taken_ms)
        with self._all_done:
            self._open -= 1
            self._all_done.notify_all()


def send_requests(engine: Engine, request_of: Callable[[int], Request], rate_per_s: float, seconds: float, retrieval_s: float) -> Latencies:
    """Requests at a constant rate for so long, candidates `retrieval_s` after their request; returns when the last is answered."""
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
    """(when, 0 = call 1 or 1 = call 2, number) in the order of time."""
    ranks = ((start_s + number / rate_per_s, 1, number) for number in range(count))
    users = ((start_s + number / rate_per_s - retrieval_s, 0, number) for number in range(count))
    return heapq.merge(users, ranks)


def find_rate_max(p99_ms_at: Callable[[float], float], bound_ms: float, low: float, high: float, steps: int) -> float:
    """The rate at which p99 reaches the bound: bisection between two rates, then a place between the highest that holds and the lowest that does not,
    by the logarithms of their p99s; a step of the bisection alone is as wide as the differences that are looked for. 0 where not even the lowest holds.
    A rate that fails is tried once more, and the better counts: a machine that others use too can only make it look worse."""

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
