"""`aif bench relay`: a generative ranker whose prefix is computed while retrieval runs, and the same server without signals.

    request   call 1 (and the signal) at its arrival; 30 to 60 ms of retrieval; then /v1/rank_final with 300 candidates
    latency   from the moment at which the ranking was meant to be sent, over HTTP; good = within the budget, with the whole history
    inline    no signals: the ranking computes the whole history
    relay     signals, decided by the trigger
    all       signals, all of them admitted

Requests arrive independently of each other (Poisson), as in MLPerf's Server scenario, at the same moments with and without signals. At a constant rate rankings
rarely meet, and inline is late only where rankings meet.
Nothing is kept for a user's next request, so each gain comes from within one request. Weights are random: times do not depend on them. Searches bisect a
grid, so a noisy window moves a figure by few steps. A window of a search ends when it has too many late answers to be good.
"""

import asyncio
import bisect
import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from infra.command import say
from infra.figures import Figures
from lab.figures.declared import read_bench
from lab.load import FAILED, OK, Connections, Latencies, Target, call_at, call_at_rate, run_to_the_microsecond, sleep_until
from lab.serving.overload import BenchServer, OverloadPlan, open_server, ratio_of_turns
from schemas.ids import Id, encode_wire_id
from schemas.model.ranker.layers import Kv, Layers, alone, causal, make_room
from schemas.model.ranker.spec import RankerSpec
from serving.core.relay_rungs import DEGRADED_RUNGS, FinalRung
from serving.merger.merger import Merger
from serving.relay.relay import PIECE

RELAY = read_bench("bench relay")

_RETRIEVAL_MS = (30.0, 60.0)
_AIF_PER_S = 20.0
_DEADLINE_MS = 5_000  # long: no ranking is cut short, so every answer is whole and its latency is its cost
_GOOD_SHARE = 0.99
_TRIES = 3  # of a window that is not good
_STEP = 2**0.125  # of lengths
_RATES_PER_S = tuple(1.5 * 1.25**step for step in range(21))
_INLINE_SHARE = 0.6  # of the budget, at the length of the throughput
_ALONE_PER_S = 5.0  # rankings that rarely meet
_AT_ONCE = {"all": {"margin_ms": 10_000.0, "load_share": 1.0}, "relay": {}}


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """The synthetic world and the load."""

    items: int = 20_000
    users: int = 16  # of each length
    candidates: int = 300
    aif_candidates: int = 10_000
    length_min: int = 256
    lengths: int = 33
    budget_ms: float = 30.0
    rate_per_s: float = 12.0  # while lengths are searched
    seconds: float = 15.0  # of each window, at least
    requests: int = 120  # of each window, at least
    servers: int = 4
    turns: int = 4

    def quick(self) -> "RelayPlan":
        """A look, not a measurement."""
        return replace(self, users=8, seconds=4.0, requests=50, servers=2, turns=2)

    @property
    def grid(self) -> list[int]:
        """Lengths of histories, each an eighth of an octave longer."""
        return [round(self.length_min * _STEP**step) for step in range(self.lengths)]


@dataclass
class Window:
    """What became of the requests of one window."""

    latencies_ms: list[float] = field(default_factory=list)
    rungs: list[str] = field(default_factory=list)
    failed: int = 0

    def bad(self, budget_ms: float) -> int:
        """Answers that came after the budget, and requests that failed."""
        return sum(ms > budget_ms for ms in self.latencies_ms) + self.failed

    def p99_ms(self) -> float:
        """Of the answers."""
        return float(np.quantile(self.latencies_ms, 0.99)) if self.latencies_ms else math.nan


@dataclass(frozen=True, slots=True)
class Load:
    """The requests to one server, with or without signals."""

    server: BenchServer
    plan: RelayPlan
    signals: bool

    def users(self, length: int) -> range:
        """The users whose history has this length."""
        first = self.plan.grid.index(length) * self.plan.users
        return range(first, first + self.plan.users)

    def run(self, users: Sequence[int], rate_per_s: float, requests: int, bad_max: float = math.inf) -> Window:
        """An open loop of whole requests, which arrive independently of each other. It ends after the last of them, or with more than `bad_max` bad ones."""
        window = Window()
        gaps_s = np.random.default_rng(0).exponential(1 / rate_per_s, requests)
        moments_s = itertools.takewhile(lambda _: window.bad(self.plan.budget_ms) <= bad_max, np.cumsum(gaps_s).tolist())
        run_to_the_microsecond(self._run(window, users, moments_s))
        return window

    async def _run(self, window: Window, users: Sequence[int], moments_s: Iterable[float]) -> None:
        rng = random.Random(0)
        connections = Connections(self.server.url, 256)
        targets = {path: Target(self.server.url, path) for path in ("/v1/user", "/v1/prefix", "/v1/rank_final")}
        ids = [[encode_wire_id(int(one)) for one in some[: self.plan.candidates]] for some in self.server.requests]

        async def post(path: str, fields: Mapping[str, object]) -> tuple[int, bytes]:
            return await connections.exchange(targets[path].encode(json.dumps(fields).encode()), lambda: None)

        async def ask(number: int, intended_s: float) -> None:
            common = {"user_id": users[number % len(users)], "request_id": f"{number}", "deadline_ms": _DEADLINE_MS}
            before = [post("/v1/user", common)]
            if self.signals:
                before.append(post("/v1/prefix", {**common, "candidates": self.plan.candidates}))
            calls = [asyncio.ensure_future(call) for call in before]
            due_s = intended_s + rng.uniform(*_RETRIEVAL_MS) / 1000
            await sleep_until(due_s)
            try:
                status, body = await post("/v1/rank_final", {**common, "item_ids": ids[number % len(ids)], "top_k": 50})
                await asyncio.gather(*calls)
            except (OSError, TimeoutError):
                status, body = 0, b""
            if status != 200:
                window.failed += 1
                return
            window.latencies_ms.append((time.perf_counter() - due_s) * 1000)
            window.rungs.append(json.loads(body)["final"]["rung"])

        await call_at(ask, moments_s)
        await connections.close()


def measure_relay(plan: RelayPlan) -> Figures:
    """All figures of the command."""
    figures = Figures(RELAY, asdict(plan))
    torch.set_num_threads(1)
    _measure_model(figures)
    with _open(plan, "relay") as server:
        inline, relay = Load(server, plan, signals=False), Load(server, plan, signals=True)
        for length in plan.grid[:: max(1, plan.lengths // 4)]:  # costs are learnt, kernels and threads are warm
            inline.run(inline.users(length), 4.0, 8)
        longest, with_signals = _search_length(inline), _search_length(relay)
        figures.add("inline_length", longest)
        figures.add("relay_length", with_signals)
        figures.add_ratio("length_ratio", with_signals, longest)
        length = _find_throughput_length(inline)
        figures.add("throughput_length", length)
        without_per_s, rate_per_s = _search_throughput(length, inline), _search_throughput(length, relay)
        figures.add("inline_rate_per_s", without_per_s)
        figures.add("relay_rate_per_s", rate_per_s)
        figures.add_ratio("slo_throughput_ratio", rate_per_s, without_per_s)
        _measure_aif(figures, plan, relay)
        say("mixed lengths, prefixes by the trigger ...")
        mixed = list(range(plan.grid.index(length) * plan.users + plan.users))
        random.Random(1).shuffle(mixed)
        rate_per_s = 0.8 * rate_per_s
        requests = round(2 * plan.seconds * rate_per_s)
        by_trigger = relay.run(mixed, rate_per_s, requests)
        without = inline.run(mixed, rate_per_s, requests)
    with _open(plan, "all") as server:
        everything = Load(server, plan, signals=True).run(mixed, rate_per_s, requests)
    figures.add("mixed_rate_per_s", rate_per_s)
    figures.add("relay_p99_ms", by_trigger.p99_ms())
    figures.add("all_p99_ms", everything.p99_ms())
    figures.add("inline_p99_ms", without.p99_ms())
    failed = by_trigger.failed + everything.failed + without.failed
    _measure_servers(figures, plan, failed)
    return figures


@contextmanager
def _open(plan: RelayPlan, mode: str) -> Iterator[BenchServer]:
    settings = {"budget_ms": plan.budget_ms, "keep_s": 0.0, "kv_mib": 64.0, "signal_s": 2.0, **_AT_ONCE[mode]}
    world = OverloadPlan(plan.items, plan.users, 0, plan.aif_candidates)
    with open_server(world, lengths=plan.grid, relay=settings) as server:
        yield server


# --- the model alone ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def _measure_model(figures: Figures) -> None:
    """Differences from one pass, and processor time, of 2,048 behaviours and 300 candidates on one thread."""
    spec = RankerSpec()
    torch.manual_seed(0)
    layers = Layers(spec)
    prefix, suffix, candidates = (torch.randn(1, count, spec.width) for count in (2_048, 32, 300))
    positions = torch.arange(2_080)
    mask = torch.ones(2_380, 2_380, dtype=torch.bool).tril()
    mask[2_080:, 2_080:] = torch.eye(300, dtype=torch.bool)
    tokens = torch.cat([prefix, suffix, candidates], 1)
    places = torch.cat([positions, torch.full((300,), 2_080)])[None]
    head, kv = torch.randn(spec.width, 1) / spec.width**0.5, make_room(spec, 2_080)
    whole = _logits(layers.masked(tokens, places, mask[None, None])[:, 2_080:], head)

    def compute(store: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, float, float]:
        began_s = time.process_time()
        _extend(layers, prefix, kv, 0)
        prefix_s = time.process_time() - began_s
        kept = kv.part(0, 2_048)
        kv.put(0, Kv(store(kept.keys), store(kept.values)))
        began_s = time.process_time()
        _extend(layers, suffix, kv, 2_048)
        scored = layers(candidates, torch.full((300,), 2_080), kv, alone)
        return _logits(scored, head), prefix_s, time.process_time() - began_s

    runs = [compute(lambda kept: kept) for _ in range(5)]
    prefix_s, after_s = min(run[1] for run in runs), min(run[2] for run in runs)
    figures.add("off_path_share_2048", prefix_s / (prefix_s + after_s))
    figures.add("prefix_ms", 1000 * prefix_s)
    figures.add("after_ms", 1000 * after_s)
    for name, store in (("fp32", lambda kept: kept), ("fp16", lambda kept: kept.half().float())):
        figures.add(f"epsilon_{name}", float((compute(store)[0] - whole).abs().max()))


def _extend(layers: Layers, tokens: torch.Tensor, kv: Kv, first: int) -> None:
    for piece in tokens.split(PIECE, 1):
        positions = torch.arange(first, first + piece.shape[1])
        kv.put(first, layers.keys_values(piece, positions, kv.part(0, first), causal))
        first += piece.shape[1]


def _logits(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.layer_norm(x, x.shape[-1:]) @ head)[0, :, 0]


# --- over HTTP ------------------------------------------------------------------------------------------------------------


def _search_length(load: Load) -> int:
    """The longest history of the grid of which 99% of the answers come within the budget."""
    grid = load.plan.grid
    place = bisect.bisect_left(grid, True, key=lambda length: not _is_good(load, length, load.plan.rate_per_s))
    return grid[max(0, place - 1)]


def _is_good(load: Load, length: int, rate_per_s: float) -> bool:
    """Whether 99% of the answers came within the budget. A bad window is repeated, because other processes may have used the machine."""
    name, plan = "relay" if load.signals else "inline", load.plan
    requests = max(plan.requests, round(rate_per_s * plan.seconds))
    bad_max = (1 - _GOOD_SHARE) * requests
    for _ in range(_TRIES):
        window = load.run(load.users(length), rate_per_s, requests, bad_max)
        bad = window.bad(plan.budget_ms)
        say(
            f"{name}: {length} behaviours, {rate_per_s:.1f} requests/s, {len(window.latencies_ms)} answers, {bad} late, p99 {window.p99_ms():.1f} ms"
        )
        if bad <= bad_max:
            return True
    return False


def _find_throughput_length(inline: Load) -> int:
    """The longest history of the grid whose ranking takes at most 60% of the budget inline, at a rate at which few rankings meet."""
    plan = inline.plan

    def alone_ms(length: int) -> float:
        return min(float(np.median(inline.run(inline.users(length), _ALONE_PER_S, 20).latencies_ms)) for _ in range(2))

    place = bisect.bisect_right(plan.grid, _INLINE_SHARE * plan.budget_ms, key=alone_ms)
    return plan.grid[max(0, place - 1)]


def _search_throughput(length: int, load: Load) -> float:
    """The most requests a second with 99% good answers; the least of the grid where none is good, so inline's figure is never too low."""
    place = bisect.bisect_left(_RATES_PER_S, True, key=lambda rate_per_s: not _is_good(load, length, rate_per_s))
    return _RATES_PER_S[max(0, place - 1)]


def _measure_aif(figures: Figures, plan: RelayPlan, relay: Load) -> None:
    """AIF's own rankings, with and without as many prefixes as the trigger admits."""
    turns = dict[bool, list[Latencies]]({False: [], True: []})
    # So many that nearly every signal is for a prefix that is not there.
    users = list(range(plan.lengths // 2 * plan.users, plan.lengths * plan.users))
    random.Random(2).shuffle(users)
    say("AIF's rankings, with and without saturated prefixes ...")
    for _ in range(plan.turns):
        for saturated, seen in turns.items():
            seen.append(run_to_the_microsecond(_rank_beside(relay, users, saturated, plan.seconds / 2)))
    figures.add_interval("aif_p99_ratio", ratio_of_turns(turns[True], turns[False], 0.99))


async def _rank_beside(relay: Load, users: Sequence[int], saturated: bool, seconds: float) -> Latencies:
    """AIF's rankings at a constant rate, and if `saturated`, a signal every 20 ms for another user."""
    url, latencies, connections = relay.server.url, Latencies(), Connections(relay.server.url, 64)
    ids = [encode_wire_id(int(one)) for one in relay.server.requests[0]]
    body = json.dumps({"user_id": 0, "item_ids": ids, "deadline_ms": _DEADLINE_MS}).encode()
    rank, prefix = Target(url, "/v1/rank").encode(body), Target(url, "/v1/prefix")

    async def ask(_: int, intended_s: float) -> None:
        status, _body = await connections.exchange(rank, lambda: None)
        latencies.add(OK if status == 200 else FAILED, (time.perf_counter() - intended_s) * 1000)

    async def signal_on() -> None:
        for number in range(1 << 30):
            fields = {"user_id": users[number % len(users)], "request_id": f"s{number}"}
            await connections.exchange(prefix.encode(json.dumps(fields).encode()), lambda: None)
            await asyncio.sleep(0.02)

    beside = asyncio.create_task(signal_on()) if saturated else None
    latencies.seconds = await call_at_rate(ask, _AIF_PER_S, seconds)
    if beside is not None:
        beside.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beside
    await connections.close()
    return latencies


# --- several servers ------------------------------------------------------------------------------------------------------


def _measure_servers(figures: Figures, plan: RelayPlan, failed: int) -> None:
    """Signals and rankings of several servers under changing load, one of which is killed."""
    lengths = plan.grid[12:17]
    small = dataclasses.replace(plan, length_min=lengths[0], lengths=len(lengths))
    with ExitStack() as opened:
        cores = os.sched_getaffinity(0)
        settings = {"budget_ms": 1.0, "margin_ms": 1.0, "kv_mib": 64.0}
        world = OverloadPlan(small.items, small.users, 0, small.candidates)
        servers = [opened.enter_context(open_server(world, cores, small.grid, settings)) for _ in range(plan.servers)]
        say(f"{plan.servers} servers, one of them killed ...")
        same, before, good, answers, lost = asyncio.run(_load_and_lose(small, servers))
    figures.add_ratio("same_server_share", same, before)
    figures.add_ratio("good_share", good, answers)
    figures.add("failed", failed + lost)


async def _load_and_lose(plan: RelayPlan, servers: Sequence[BenchServer]) -> tuple[int, int, int, int, int]:
    """(rankings of the server that took their signal and all rankings, before a server is killed; answers with the whole history, all answers, requests
    without one)."""
    requests = [[int(one) for one in ids] for ids in servers[0].requests]
    rng, same, good, answers, failed = random.Random(0), 0, 0, 0, 0

    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.sleep(rng.uniform(*_RETRIEVAL_MS) / 1000)
        return requests[rng.randrange(len(requests))]

    async with Merger([server.url for server in servers], retrieve) as merger:

        async def ask(number: int, _: float) -> None:
            nonlocal same, good, answers, failed
            try:
                merged = await merger.recommend(number % (plan.users * plan.lengths), plan.candidates, _DEADLINE_MS, final_top_k=50)
            except Exception:
                failed += 1
                return
            answers += 1
            same += merged.signalled == merged.server
            good += merged.answer.final is not None and FinalRung(merged.answer.final.rung) not in DEGRADED_RUNGS

        for share in (0.5, 1.5, 1.0):
            await call_at_rate(ask, share * plan.rate_per_s, plan.seconds / 3)
        same_before, before = same, answers
        os.kill(servers[0].pid, signal.SIGKILL)
        await call_at_rate(ask, plan.rate_per_s, plan.seconds / 3)
    return same_before, before, good, answers, failed
