"""The windows of `aif bench affinity` on servers in this process, one of which is lost."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from infra.figures import Figures
from lab.load import FAILED, OK, REFUSED
from lab.serving import affinity, overload
from lab.serving.affinity import AFFINITY, AffinityPlan, Moves, Window, _add_window, find_moves, load_and_lose
from lab.serving.overload import BenchServer
from schemas.ids import Id
from serving.merger.merger import Merger, Retrieve
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front


class PatientMerger(Merger):
    """Its retrieval takes at least until call 1 is answered, on a busy machine too."""

    def __init__(self, urls: Sequence[str], retrieve: Retrieve) -> None:
        async def retrieve_after_call_one(user: Id) -> Sequence[Id]:
            await asyncio.gather(*self._calls, return_exceptions=True)
            return await retrieve(user)

        super().__init__(urls, retrieve_after_call_one)


def test_a_lost_server_costs_recomputes_and_no_error_and_moves_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "Merger", PatientMerger)
    plan = AffinityPlan(servers=3, kills=2, users=12, rate_per_s=60.0, seconds=0.5, retrieval_ms=1.0)
    with contextlib.ExitStack() as rest:
        stacks = {}
        for _ in range(3):
            stack = rest.enter_context(contextlib.ExitStack())
            stacks[stack.enter_context(open_front(FakeEngine())).url] = stack
        servers = [BenchServer(url, 0, np.arange(6).reshape(2, 3)) for url in stacks]
        steady, lost, moves = asyncio.run(load_and_lose(plan, servers, lambda server: stacks[server.url].close()))
    assert steady.latencies.count(OK) == lost.latencies.count(OK) == 30
    assert steady.found_share == 1.0 and steady.asked_again == 0
    assert lost.latencies.count(FAILED) == lost.latencies.count(REFUSED) == 0
    assert [(0 < one.share < 1, one.needless_share, one.servers) for one in moves] == [(True, 0, 3), (True, 0, 2)]
    assert len(lost.servers) <= 2


def test_of_a_window_without_answers_no_share_and_no_latency_is_told() -> None:
    figures = Figures(AFFINITY)
    _add_window(figures, "lost", Window())
    assert [figures.value(f"lost.{name}") for name in ("found_share", "p50_ms", "p99_ms", "answers")] == [None, None, None, 0]


def test_who_moved_without_need_is_told_from_who_had_to() -> None:
    before, after = {1: "a", 2: "a", 3: "b", 4: "c"}, {1: "b", 2: "c", 3: "b", 4: "b"}
    moves = find_moves(before, after, "a")
    assert moves == Moves(0.75, 0.25, 3) and moves.beyond_mean == pytest.approx(0.75 - 1 / 3)


def test_every_server_of_a_bench_runs_on_the_same_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one leaves the bench itself on the last core, which the others must not inherit."""
    inherited, before = list[set[int]](), os.sched_getaffinity(0)

    class Child:
        def __init__(self, _: Sequence[str]) -> None:
            inherited.append(os.sched_getaffinity(0))

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, starts: str) -> str:
            return '{"url": "", "pid": 0}'

    monkeypatch.setattr(overload, "LineChild", Child)
    monkeypatch.setattr(overload.np, "load", lambda _: None)
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(overload.open_server(overload.OverloadPlan(), before))
    assert inherited[0] == inherited[1] == inherited[2] and os.sched_getaffinity(0) == before
