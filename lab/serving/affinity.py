"""`aif bench affinity`: several servers behind the Merger's routing, of which some are killed under load.

    steady      both calls of a request, and a user's later requests, reach the same server, so call 2 finds the state of call 1
    lost        one server after the other is killed (SIGKILL): its users move to other servers, all others stay

The load is an open loop of whole requests through one Merger, with retrieval in parallel with call 1. A latency counts from the intended departure of
its request. All servers have the same catalogue and know all users, so a lost server costs nothing but its stored states: one recompute each. Each time
the server that the most users go to is killed, the worst case.
"""

import asyncio
import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, REFUSED, Latencies, call_at_rate
from lab.serving.overload import BenchServer, OverloadPlan, open_server
from schemas.ids import Id
from serving.core.ladder import Rung
from serving.merger.merger import Merged, Merger

AFFINITY = read_bench("bench affinity")

FOUND = frozenset({Rung.CACHED, Rung.WAITED})
_DEADLINE_MS = 10_000  # long, so that a slow answer of a busy machine is not taken for a lost server


@dataclass(frozen=True, slots=True)
class AffinityPlan:
    """The synthetic world and the load."""

    servers: int = 12
    kills: int = 3
    items: int = 20_000
    users: int = 3_000
    behaviours: int = 100
    candidates: int = 1_000
    rate_per_s: float = 40.0
    seconds: float = 90.0  # of each window
    retrieval_ms: float = 30.0

    def quick(self) -> "AffinityPlan":
        """A short run, too short for a measurement."""
        return replace(self, servers=min(self.servers, 3), kills=1, users=min(self.users, 60), seconds=min(self.seconds, 5.0))


@dataclass
class Window:
    """Answers of one window: latencies, rungs, servers, and requests for which more than one server was asked."""

    latencies: Latencies = field(default_factory=Latencies)
    rungs: Counter[str] = field(default_factory=Counter)
    servers: Counter[str] = field(default_factory=Counter)
    asked_again: int = 0

    def add(self, merged: Merged) -> None:
        """One answer."""
        self.rungs[merged.answer.rung] += 1
        self.servers[merged.server] += 1
        self.asked_again += merged.attempts > 1

    @property
    def found_share(self) -> float:
        """The share of calls 2 that found the state of their call 1; not a number where none was answered."""
        return sum(self.rungs[rung] for rung in FOUND) / self.rungs.total() if self.rungs else math.nan


@dataclass(frozen=True, slots=True)
class Moves:
    """Users who have another server after a loss, and those of them whose server was not lost, as shares of all users. `servers`: those before the loss."""

    share: float
    needless_share: float
    servers: int

    @property
    def beyond_mean(self) -> float:
        """How far the share is above that of a mean server."""
        return self.share - 1 / self.servers


def measure_affinity(plan: AffinityPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(AFFINITY, asdict(plan))
    with ExitStack() as opened:
        world = OverloadPlan(plan.items, plan.users, plan.behaviours, plan.candidates)
        cores = os.sched_getaffinity(0)
        servers = [opened.enter_context(open_server(world, cores)) for _ in range(plan.servers)]
        steady, lost, moves = asyncio.run(load_and_lose(plan, servers, _kill))
    _add_window(figures, "steady", steady)
    _add_window(figures, "lost", lost)
    figures.add("moved_beyond_mean", max(one.beyond_mean for one in moves))
    figures.add("moved_needlessly_share", max(one.needless_share for one in moves))
    counts = [steady.servers[server.url] for server in servers]
    figures.add_ratio("load_max_over_mean", max(counts), float(np.mean(counts)))
    return figures


def _kill(server: BenchServer) -> None:
    os.kill(server.pid, signal.SIGKILL)


async def load_and_lose(
    plan: AffinityPlan, servers: Sequence[BenchServer], lose: Callable[[BenchServer], None]
) -> tuple[Window, Window, list[Moves]]:
    """(steady window, the windows after each kill as one, who moved with each). `lose` ends a server."""
    requests = [[int(one) for one in ids] for ids in servers[0].requests]
    turn = iter(range(1 << 60))

    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.sleep(plan.retrieval_ms / 1000)
        return requests[next(turn) % len(requests)]

    async with Merger([server.url for server in servers], retrieve) as merger:
        say("every user once ...")
        for user in range(plan.users):
            await merger.recommend(user, deadline_ms=_DEADLINE_MS)
        say(f"{plan.seconds:.0f} s of {plan.rate_per_s:g} requests a second on {plan.servers} servers ...")
        steady, lost, moves, alive = Window(), Window(), list[Moves](), {server.url: server for server in servers}
        await _load(merger, plan, steady, plan.seconds)
        before = _routes(merger, plan)
        for _ in range(plan.kills):
            gone = alive.pop(Counter(before.values()).most_common(1)[0][0])
            say(f"the same for {plan.seconds / plan.kills:.0f} s, and {gone.url} is killed ...")
            await asyncio.to_thread(lose, gone)
            await _load(merger, plan, lost, plan.seconds / plan.kills)
            after = _routes(merger, plan)
            moves.append(find_moves(before, after, gone.url))
            before = after
    return steady, lost, moves


def _routes(merger: Merger, plan: AffinityPlan) -> dict[int, str]:
    return {user: merger.route(user)[0] for user in range(plan.users)}


def find_moves(before: Mapping[int, str], after: Mapping[int, str], gone: str) -> Moves:
    """Who moved, given each user's server before and after `gone` was lost."""
    moved = [user for user in before if after[user] != before[user]]
    needless = [user for user in moved if before[user] != gone]
    return Moves(len(moved) / len(before), len(needless) / len(before), len(set(before.values())))


async def _load(merger: Merger, plan: AffinityPlan, window: Window, seconds: float) -> None:
    """Adds the answers of so many seconds; the users take turns."""

    async def recommend(user: int) -> None:
        window.add(await merger.recommend(user, deadline_ms=_DEADLINE_MS))

    async def ask(number: int, intended_s: float) -> None:
        await window.latencies.time(recommend(number % plan.users), intended_s)

    window.latencies.seconds += await call_at_rate(ask, plan.rate_per_s, seconds)


def _add_window(figures: Figures, name: str, window: Window) -> None:
    latencies = window.latencies
    figures.add(f"{name}.answers", latencies.count(OK))
    figures.add(f"{name}.found_share", window.found_share)
    figures.add(f"{name}.recomputed", window.rungs[Rung.INLINE])
    figures.add(f"{name}.degraded", window.rungs.total() - window.rungs[Rung.INLINE] - sum(window.rungs[rung] for rung in FOUND))
    figures.add(f"{name}.asked_again", window.asked_again)
    figures.add(f"{name}.failed", latencies.count(FAILED) + latencies.count(REFUSED))
    figures.add(f"{name}.p50_ms", latencies.quantile(OK, 0.5))
    figures.add(f"{name}.p99_ms", latencies.quantile(OK, 0.99))
