"""Only the threads of the ports ask for short time slices; whether the system grants them is not tested."""

import os
import threading

import pytest

from serving import time_slices
from serving.time_slices import list_threads, new_threads_take_short_slices, share_the_interpreter, take_short_slices

_NO_THREAD = (1 << 22) + 1  # more than the system counts to


class Thread:
    """One that waits until it is let go."""

    def __init__(self) -> None:
        self.leave, here = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: (here.set(), self.leave.wait(60)), daemon=True)
        self._thread.start()
        here.wait(60)
        self.number = self._thread.native_id

    def end(self) -> None:
        self.leave.set()
        self._thread.join(60)


def test_exactly_the_threads_that_were_started_inside_and_the_own_one_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(time_slices, "take_short_slices", lambda threads: asked.append(set(threads)))
    before = Thread()
    with new_threads_take_short_slices():
        inside = Thread()
    after = Thread()
    assert {inside.number, threading.get_native_id()} <= asked[0]
    assert not asked[0] & {before.number, after.number}
    for one in (before, inside, after):
        one.end()


def test_a_thread_that_is_not_there_or_follows_other_rules_is_left_alone() -> None:
    assert take_short_slices([_NO_THREAD]) == 0
    other = Thread()
    assert other.number is not None
    os.sched_setscheduler(other.number, os.SCHED_BATCH, os.sched_param(0))
    assert take_short_slices([other.number]) == 0
    other.end()


def test_what_a_thread_is_otherwise_stays_as_it_is_and_what_it_starts_later_has_the_rules_of_the_system() -> None:
    seen: list[tuple[int, int]] = []

    def ask() -> None:
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, 3)
        take_short_slices([own])
        seen.append((os.getpriority(os.PRIO_PROCESS, own), os.sched_getscheduler(own) & ~os.SCHED_RESET_ON_FORK))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(60)
    assert seen == [(3, os.SCHED_OTHER)]
    assert threading.get_native_id() in list_threads()


def test_nobody_keeps_the_interpreter_for_as_long_as_a_request_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("sys.setswitchinterval", asked.append)
    share_the_interpreter()
    assert asked == [time_slices.INTERPRETER_S] and asked[0] < 0.001
