"""`aif bench overload`: which cores the threads of its server may use; and the ratio of two p99 of alternating turns. Its interval
is narrow where the turns agree, and wide where one stall decides."""

import contextlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from infra.processes import free_ports
from lab.load import OK, REFUSED, Latencies
from lab.serving import overload
from lab.serving.overload import BenchServer, OverloadPlan, measure_overload, merge_turns, open_server, ratio_of_turns
from schemas.errors import Unavailable


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core there is nothing to share out")
def test_the_engine_has_cores_that_the_ports_have_not() -> None:
    """With one engine thread nothing binds it: it stays on the cores that it was started on."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with open_server(OverloadPlan(items=200, users=1, behaviours=5, candidates=10), cores) as server:
        allowed = set()
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                allowed.add(frozenset(os.sched_getaffinity(int(thread))))
        assert os.sched_getaffinity(server.pid) == {cores[1]}, "the event loop, which the ports' threads inherit from"
        assert server.without_core_s() >= 0
    assert {cores[0]} in allowed


def test_a_server_that_answers_nothing_or_ended_ends_the_bench_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    server = BenchServer(f"http://127.0.0.1:{port}", ended.pid, np.arange(6).reshape(2, 3))
    monkeypatch.setattr(overload, "open_server", lambda _: contextlib.nullcontext(server))
    monkeypatch.setattr(overload, "take_short_slices", lambda _: None)
    with pytest.raises(Unavailable, match="answered none of"):
        measure_overload(OverloadPlan(seconds=0.1))
    with pytest.raises(Unavailable, match="has ended"):
        server.rss_mb()
    ended.wait()


def turn(latencies_ms: np.ndarray) -> Latencies:
    seen = Latencies()
    for ms in latencies_ms.tolist():
        seen.add(OK, ms)
    return seen


def turns(scale: float, count: int, seed: int) -> list[Latencies]:
    rng = np.random.default_rng(seed)
    return [turn(scale * rng.uniform(10, 20, 400)) for _ in range(count)]


def test_turns_that_agree_give_a_narrow_interval_around_the_true_ratio() -> None:
    ratio = ratio_of_turns(turns(1.2, 8, 1), turns(1.0, 8, 2), 0.99)
    assert ratio.value == pytest.approx(1.2, rel=0.03)
    assert ratio.low <= ratio.value <= ratio.high and ratio.high - ratio.low < 0.05


def test_one_turn_with_a_stall_makes_the_interval_wide_and_not_only_the_ratio_large() -> None:
    disturbed = turns(1.0, 8, 1)
    disturbed[3] = turn(np.r_[np.full(360, 15.0), np.full(40, 60.0)])
    ratio = ratio_of_turns(disturbed, turns(1.0, 8, 2), 0.99)
    assert ratio.value > 2.5 and ratio.low < 1.1, "without that turn there is no difference"


def test_the_ratio_is_of_the_answers_alone_and_without_any_it_is_no_number() -> None:
    refused = Latencies()
    refused.add(REFUSED, 500.0)
    assert math.isnan(ratio_of_turns([refused], turns(1.0, 1, 1), 0.99).value)
    with_answers = merge_turns([refused, *turns(1.0, 1, 1)])
    assert ratio_of_turns([with_answers], turns(1.0, 1, 1), 0.5).value == pytest.approx(1)
    assert (with_answers.count(OK), with_answers.count(REFUSED)) == (400, 1)
