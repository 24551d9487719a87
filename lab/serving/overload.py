"""`aif bench overload`: a server under ten times the load that it can carry, compared with the same server at 80% of that load.

    capacity    answers per second of a closed loop of a few senders
    steady      open loop at 80% of the capacity
    overload    open loop at 10 times the capacity: latencies of admitted and of refused requests, memory before and after

The engine has all cores but one; the last one is shared by the load generator and the server's ports. With engine threads on all cores the bench would
measure a delayed generator, and ports on all cores would delay the engine. The generator asks the kernel for short slices, as the ports do, because its own
time slice would be in every latency otherwise. Its own lag is a figure, and a warning is printed where it is not small. Requests are inferences with binary
tensors, so that the engine is the bottleneck and not the decoding of JSON. Every user's half is in the pool; long histories make SimTier the larger part of
the work. Steady and overload alternate, because other processes may use the machine. The ratio of their p99 has an interval: with two turns of each, nine
answers decide a p99, and runs gave 1.08 to 1.43. A stall of the machine affects all answers of one moment, so the bootstrap draws turns and not answers,
each with its neighbour of the other kind.
Source: Efron, "Bootstrap methods" (1979); percentile interval.
"""

import json
import math
import os
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from infra.command import say
from infra.figures import Figures, Interval
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, REFUSED, Latencies, encode_inferences, run_to_the_microsecond, send_at_rate, send_in_turns
from lab.serving.child import LineChild
from schemas.errors import Unavailable
from serving.time_slices import take_short_slices

OVERLOAD_BENCH = read_bench("bench overload")

STEADY, OVERLOAD = 0.8, 10.0
_SENDERS = 3
_LATE_MS_MAX = 1.0
_WITHOUT_CORE_PCT_MAX = 10.0
_DRAWS = 400
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class OverloadPlan:
    """The synthetic world, and how long is measured."""

    items: int = 100_000
    users: int = 32
    behaviours: int = 5_000
    candidates: int = 10_000
    seconds: float = 10.0  # of each turn
    turns: int = 8


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A server in a process of its own. `requests`: lists of candidates of its catalogue, int64 [requests, candidates]."""

    url: str
    pid: int
    requests: np.ndarray

    def rss_mb(self) -> float:
        """Its resident memory now, in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise Unavailable("child_died", "the server of the bench has ended")  # and is not reaped yet

    def without_core_s(self) -> float:
        """Seconds for which its threads were ready to run and other threads had the cores, so far and all together."""
        return sum(int(one.read_text().split()[1]) for one in Path(f"/proc/{self.pid}/task").glob("*/schedstat")) / 1e9


def measure_overload(plan: OverloadPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(OVERLOAD_BENCH, asdict(plan))
    with open_server(plan) as server:
        take_short_slices({threading.get_native_id()})
        requests = [{"user_id": np.array([number % plan.users]), "item_ids": ids} for number, ids in enumerate(server.requests)]
        target, bodies = encode_inferences(server.url, {"parameters": {"binary_data_output": True}}, requests)
        say("each user's half ...")
        for body in bodies:
            run_to_the_microsecond(send_in_turns(target, [body], 1, 0.0))
        carried = run_to_the_microsecond(send_in_turns(target, bodies, _SENDERS, plan.seconds))
        capacity = carried.count(OK) / carried.seconds
        if not capacity:
            raise Unavailable(
                "no_answers", f"the server answered none of {carried.count(REFUSED) + carried.count(FAILED)} requests of the closed loop"
            )
        say(f"carries {capacity:.0f} answers a second; {plan.turns} turns of {STEADY:g} and {OVERLOAD:g} times that ...")
        turns: dict[float, list[Latencies]] = {STEADY: [], OVERLOAD: []}
        rss, without_core_s = [server.rss_mb()], dict.fromkeys(turns, 0.0)
        for _ in range(plan.turns):
            for share, seen in turns.items():
                before_s = server.without_core_s()
                seen.append(run_to_the_microsecond(send_at_rate(target, bodies, share * capacity, plan.seconds)))
                without_core_s[share] += server.without_core_s() - before_s
            rss.append(server.rss_mb())
    steady, flood = (merge_turns(seen) for seen in turns.values())
    figures.add("capacity_per_s", capacity)
    figures.add("steady_p50_ms", steady.quantile(OK, 0.5))
    figures.add("steady_p99_ms", steady.quantile(OK, 0.99))
    figures.add("steady_refused", steady.count(REFUSED))
    figures.add("admitted_p50_ms", flood.quantile(OK, 0.5))
    figures.add("admitted_p99_ms", flood.quantile(OK, 0.99))
    figures.add_interval("admitted_p99_ratio", ratio_of_turns(turns[OVERLOAD], turns[STEADY], 0.99))
    figures.add_interval("admitted_p50_ratio", ratio_of_turns(turns[OVERLOAD], turns[STEADY], 0.5))
    figures.add("answers_steady", steady.count(OK))
    figures.add("answers_admitted", flood.count(OK))
    figures.add("admitted_per_s", flood.count(OK) / flood.seconds)
    figures.add("refused_p50_ms", flood.quantile(REFUSED, 0.5))
    figures.add("refused_p99_ms", flood.quantile(REFUSED, 0.99))
    figures.add("refused", flood.count(REFUSED))
    figures.add("sender_late_p99_ms", late_ms := flood.late.get_quantile_value(0.99))
    if late_ms is not None and late_ms > _LATE_MS_MAX:
        say(f"the load generator itself was late by {late_ms:.1f} ms (p99), and every latency above has that in it: its core was not free")
    figures.add("steady_without_core_pct", steady_pct := 100 * without_core_s[STEADY] / steady.seconds)
    figures.add("admitted_without_core_pct", 100 * without_core_s[OVERLOAD] / flood.seconds)
    if steady_pct > _WITHOUT_CORE_PCT_MAX:
        say(
            f"at {STEADY:.0%} of its load the server waited for a core {steady_pct:.0f}% of the time: each p99 above is that of the other processes"
        )
    figures.add("failed", sum(seen.count(FAILED) for seen in (carried, steady, flood)))
    figures.add("rss_growth_mb", rss[-1] - rss[0])
    return figures


def ratio_of_turns(over: Sequence[Latencies], under: Sequence[Latencies], share: float) -> Interval:
    """The quantile `share` of all answers in `over`, divided by that of `under`; over[i] and under[i] are neighbours in time."""
    turns, rng = len(over), np.random.default_rng(0)
    drawn = [_ratio(over, under, rng.integers(0, turns, turns), share) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, _PERCENTILES)
    return Interval(_ratio(over, under, range(turns), share), float(low), float(high))


def merge_turns(turns: Sequence[Latencies]) -> Latencies:
    """All of them as one."""
    merged = Latencies()
    for one in turns:
        merged.merge(one)
    return merged


def _ratio(over: Sequence[Latencies], under: Sequence[Latencies], places: Sequence[int] | np.ndarray, share: float) -> float:
    above, below = (merge_turns([turns[at] for at in places]).quantile(OK, share) for turns in (over, under))
    return math.nan if above is None or not below else above / below


@contextmanager
def open_server(
    plan: OverloadPlan, cores: Collection[int] | None = None, lengths: Sequence[int] = (), relay: Mapping[str, object] | None = None
) -> Iterator[BenchServer]:
    """A server with the plan's catalogue and users, ended with the block. Two servers of the same plan have the same data.

    cores    the engine gets all but the last, on which this process runs until the block ends; None: those that this process may use now
             (with several servers: those that it could use before the first)
    lengths  of histories, each of `plan.users` users, instead of the plan's one
    relay    settings of the relay; the model has a ranker then
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "candidates.npy")
        numbers = map(str, (plan.items, plan.users, ",".join(map(str, lengths)) or plan.behaviours, plan.candidates))
        cores = sorted(cores or os.sched_getaffinity(0))
        command = [sys.executable, "-m", "lab.serving.server", *numbers, str(path), ",".join(map(str, cores[-1:]))]
        command += [] if relay is None else [json.dumps(relay)]
        say(f"a server of {plan.items} items, {plan.users} users of {plan.behaviours} behaviours ...")
        os.sched_setaffinity(0, cores[:-1] or cores)  # the child inherits it, and makes as many engine threads
        try:
            with LineChild(command) as child:
                os.sched_setaffinity(0, cores[-1:])
                address = json.loads(child.ask(starts="{"))
                yield BenchServer(address["url"], address["pid"], np.load(path))
        finally:
            os.sched_setaffinity(0, cores)
