"""An open loop of whole requests on an engine, at a constant rate: call 1 when a request arrives, call 2 when its candidates do.

Here: sending, and `find_rate_max`. Not here: the requests (table4.py), the open loop over HTTP (infra/bench/load.py).
A latency counts from the moment at which the candidates were meant to arrive. If call 1 is not done by then, the request waits for it and the clock
runs. Nothing is sent later because something else was slow, so there is no coordinated omission.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.bench.load import FAILED, OK, REFUSED, Latencies, call_at_rate, run_to_the_microsecond
from schemas.errors import Unavailable
from serving.engine.loop import Engine
from serving.engine.work import RankWork, UserState, UserWork


@dataclass(frozen=True, slots=True)
class Request:
    """`user`: call 1, None where there is none. `rank`: makes call 2 from the state of call 1, or from None without a call 1."""

    user: UserWork | None
    rank: Callable[[UserState | None], RankWork]


def send_requests(engine: Engine, request_of: Callable[[int], Request], rate_per_s: float, seconds: float, retrieval_s: float) -> Latencies:
    """Sends requests at a constant rate for `seconds`, the candidates of each `retrieval_s` after it; returns when the last one is answered."""
    latencies = Latencies()

    async def send(number: int, arrives_s: float) -> None:
        request, intended_s = request_of(number), arrives_s + retrieval_s
        made = None if request.user is None else asyncio.wrap_future(engine.submit_user(request.user))
        await asyncio.sleep(intended_s - time.perf_counter())
        try:
            state = None if made is None else (await made).state
            await asyncio.wrap_future(engine.submit_rank(request.rank(state)))
            outcome = OK
        except Unavailable:
            outcome = REFUSED
        except Exception:
            outcome = FAILED
        latencies.add(outcome, 1e3 * (time.perf_counter() - intended_s))

    latencies.seconds = run_to_the_microsecond(call_at_rate(send, rate_per_s, seconds)) - retrieval_s
    return latencies


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
