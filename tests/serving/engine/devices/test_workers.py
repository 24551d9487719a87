"""Shares of a request: every row once, whoever computes it; errors belong to the request."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from serving.engine.devices.workers import ROWS_PER_SHARE_MIN, SHARES_PER_THREAD, Workers

ROWS = 6 * ROWS_PER_SHARE_MIN + 3
WAIT_S = 30


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 1, ROWS_PER_SHARE_MIN, 2 * ROWS_PER_SHARE_MIN, ROWS])
def test_every_row_is_computed_exactly_once(threads: int, rows: int) -> None:
    seen, workers = np.zeros(rows, int), Workers(threads, binds=False)
    for _ in range(20):
        workers.run(lambda first, end, thread: np.add(seen[first:end], 1, out=seen[first:end]), rows)
    assert (seen == 20).all()


def test_a_thread_has_one_share_at_a_time_and_helpers_do_help() -> None:
    workers, inside, met = Workers(2, binds=False), [0, 0], threading.Barrier(2)

    def part(first: int, end: int, thread: int) -> None:
        inside[thread] += 1
        assert inside[thread] == 1
        met.wait(WAIT_S)  # ends only if both threads are inside a share at the same time
        inside[thread] -= 1

    workers.run(part, 2 * ROWS_PER_SHARE_MIN)


def test_a_share_that_fails_fails_the_request_and_the_next_request_is_computed() -> None:
    workers, done = Workers(2, binds=False), []

    def fail(first: int, end: int, thread: int) -> None:
        raise ValueError("this share")

    for _ in range(5):
        with pytest.raises(ValueError, match="this share"):
            workers.run(fail, ROWS)
        done.clear()
        workers.run(lambda first, end, thread: done.append((first, end)), ROWS)
        assert min(done)[0] == 0 and sum(end - first for first, end in done) == ROWS and len(done) <= 2 * SHARES_PER_THREAD


@contextlib.contextmanager
def busy_helpers(workers: Workers) -> Iterator[None]:
    """No helper begins anything in the block."""
    hold, busy = threading.Event(), threading.Barrier(workers.threads)
    for _ in range(workers.threads - 1):
        assert workers._pool is not None
        workers._pool.submit(lambda: (busy.wait(WAIT_S), hold.wait(WAIT_S)))
    busy.wait(WAIT_S)
    try:
        yield
    finally:
        hold.set()


def test_a_helper_that_does_not_wake_up_is_not_waited_for() -> None:
    workers, done = Workers(2, binds=False), list[int]()
    with busy_helpers(workers):
        workers.run(lambda first, end, thread: done.append(end - first), ROWS)
    assert sum(done) == ROWS


def test_a_request_that_finds_the_helpers_busy_is_computed_in_one_piece() -> None:
    workers, started, hold, done = Workers(2, binds=False), threading.Event(), threading.Event(), []

    def block_the_helper(first: int, end: int, thread: int) -> None:
        if thread == 1:
            started.set()
            hold.wait(WAIT_S)
        else:
            started.wait(WAIT_S)

    blocked = threading.Thread(target=workers.run, args=(block_the_helper, 2 * ROWS_PER_SHARE_MIN))
    blocked.start()
    assert started.wait(WAIT_S)
    workers.run(lambda first, end, thread: done.append((first, end, thread)), ROWS)  # the set is busy: in one piece, by the caller
    assert done == [(0, ROWS, 0)]
    hold.set()
    blocked.join(WAIT_S)


def test_calls_are_made_beside_the_callers_own_work_and_all_are_done_after_it() -> None:
    workers, met, made = Workers(2, binds=False), threading.Barrier(2), list[int]()

    def meet() -> None:
        met.wait(WAIT_S)  # ends only if the body runs meanwhile
        made.append(0)

    with workers.beside() as helpers:
        helpers.add(meet)
        helpers.add(lambda: made.append(1))
        met.wait(WAIT_S)
    assert sorted(made) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_that_no_helper_begins_are_made_by_the_caller(threads: int) -> None:
    made, workers = list[str](), Workers(threads, binds=False)
    with busy_helpers(workers), workers.beside() as helpers:
        for _ in range(3):
            helpers.add(lambda: made.append(threading.current_thread().name))
        assert not made and helpers.needs_caller and helpers.unfinished == 3
        helpers.help()
        assert len(made) == 1 and helpers.unfinished == 2
    assert made == [threading.current_thread().name] * 3
