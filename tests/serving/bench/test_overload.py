"""The server process of `aif bench overload`: which cores its threads may use."""

import contextlib
import os

import pytest

from serving.bench.overload import OverloadPlan, open_server


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
