"""The relay's rankings equal one pass of the network over the same tokens, whatever was computed before, by whom, and on which version."""

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.limits import MIB
from schemas.model.parameters import Parameters
from schemas.model.ranker.layers import Kv
from schemas.model.ranker.spec import window_start
from serving.core.relay_rungs import FinalRung
from serving.core.relay_trigger import Decision
from serving.relay import relay
from serving.relay.backend import RankerBackend
from serving.relay.final_work import FinalResult, FinalWork, aif_order
from serving.relay.kv_pool import PrefixKey
from serving.relay.window import Window, open_window
from tests.serving.relay.stage import SPEC, Bench, longer, open_bench, user_of, work_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    opened = open_bench(host_mib=4.0)
    yield opened
    opened.relay.close()


def test_a_signalled_prefix_is_resident_and_newer_behaviours_are_added(bench: Bench) -> None:
    user = user_of(50)
    assert bench.relay.signal(1, user, 1, "r", 9) is Decision.ADMITTED
    bench.wait_until_computed()
    result = bench.rank(work_of(longer(user, 3)))
    assert (result.rung, result.kept, result.read) == (FinalRung.RESIDENT, 50, 53)
    assert bench.rank(work_of(longer(user, 3), request_id="next")).rung is FinalRung.EXTENDED


def test_without_a_signal_everything_is_computed_inline(bench: Bench) -> None:
    assert bench.rank(work_of(user_of(50))).rung is FinalRung.INLINE
    assert bench.rank(work_of(user_of(0))).rung is FinalRung.INLINE


def test_a_signal_of_a_user_who_came_back_extends_what_is_kept(bench: Bench) -> None:
    user = user_of(40)
    bench.relay.signal(1, user, 1, "r", 9)
    bench.wait_until_computed()
    bench.rank(work_of(user))
    more = longer(user, 5)
    assert bench.relay.signal(1, more, 1, "s", 9) is Decision.EXTENDED
    bench.wait_until_computed()
    result = bench.rank(work_of(more, request_id="s"))
    assert (result.rung, result.kept) == (FinalRung.RESIDENT, 45)


def test_a_ranking_takes_over_a_prefix_that_is_not_finished(bench: Bench) -> None:
    user, wait = user_of(60), Future[None]()
    bench.relay._prefixes.put(lambda: wait.result(30))  # the prefix thread has something else to do
    assert bench.relay.signal(1, user, 1, "r", 9) is Decision.ADMITTED
    assert bench.relay.signal(1, user, 1, "s", 9) is Decision.RUNNING
    assert bench.rank(work_of(user)).rung is FinalRung.WAITED
    assert bench.rank(work_of(user, request_id="s")).rung is FinalRung.RESIDENT  # the ranking has stored it
    wait.set_result(None)
    bench.wait_until_computed()
    assert bench.relay.signal(1, user, 1, "t", 9) is Decision.RESIDENT


def test_a_signal_that_lengthens_a_prefix_under_a_ranking_never_counts_what_nobody_computed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, more, wait, choose = user_of(40), longer(user_of(40), 20), Future[None](), bench.relay._choose
    bench.relay._prefixes.put(lambda: wait.result(30))
    bench.relay.signal(1, user, 1, "r", 9)

    def lengthen(*found: Any) -> FinalRung:
        assert bench.relay.signal(1, more, 1, "s", 9) is Decision.EXTENDED
        return choose(*found)

    with monkeypatch.context() as patch:
        patch.setattr(bench.relay, "_choose", lengthen)
        bench.rank(work_of(user))
    assert not bench.prefix(1).finished
    wait.set_result(None)
    bench.wait_until_computed()
    assert bench.rank(work_of(more, request_id="s")).rung is FinalRung.RESIDENT


def test_what_a_ranking_took_over_is_saved_and_computed_on_after_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    user, wait, pool, backend = user_of(60), Future[None](), bench.relay._pool, bench.relay._backends[1]
    assert pool is not None
    bench.relay._prefixes.put(lambda: wait.result(30))
    for request_id in ("bad", "good"):
        bench.relay.signal(1, user, 1, request_id, 9)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "extend", lambda *_: 1 / 0)
        assert bench.rank(work_of(user, request_id="bad")).rung is FinalRung.AIF_ORDER
    assert not bench.prefix(1).taken_over
    assert bench.rank(work_of(user, request_id="good")).rung is FinalRung.WAITED
    wait.set_result(None)
    bench.wait_until_computed()
    assert pool.saved_tokens(PrefixKey(1, 1), open_window(backend.spec, user))


def test_a_window_that_moved_is_computed_again_or_answered_from_the_older_prefix(bench: Bench) -> None:
    user = user_of(64)
    bench.relay.signal(1, user, 1, "r", 9)
    bench.wait_until_computed()
    more = longer(user, 2)
    assert window_start(SPEC.ranker, 66) == 16  # type: ignore[arg-type]
    assert bench.rank(work_of(more)).start == 16
    bench.relay.costs = dataclasses.replace(bench.relay.costs, rank=1.0)  # whatever is computed takes minutes
    assert bench.rank(work_of(more)).rung is FinalRung.AIF_ORDER


def test_a_changed_profile_or_history_never_meets_a_prefix_of_the_former_one(bench: Bench) -> None:
    user = user_of(30)
    bench.relay.signal(1, user, 1, "r", 9)
    bench.wait_until_computed()
    for other in (user_of(30, age=4.0), user_of(30, seed=1), user_of(12)):
        assert bench.rank(work_of(other)).rung is FinalRung.INLINE


def test_what_was_evicted_comes_back_from_the_host_tier() -> None:
    bench = open_bench(host_mib=4.0, kv_mib=0.125)  # one page
    try:
        first, second = user_of(40, seed=1), user_of(40, seed=2)
        for user_id, user in ((1, first), (2, second)):
            assert bench.relay.signal(user_id, user, 1, f"r{user_id}", 9) is Decision.ADMITTED
            bench.wait_until_computed()
            bench.rank(work_of(user, user_id=user_id, request_id=f"r{user_id}"))
        result = bench.rank(work_of(longer(first, 2), user_id=1, request_id="again"))
        assert (result.rung, result.kept) == (FinalRung.RELOADED, 40)
    finally:
        bench.relay.close()


def test_no_time_means_a_part_of_the_history_and_then_the_order_of_aif(bench: Bench) -> None:
    assert bench.rank(work_of(user_of(50), left_s=-1.0)).rung is FinalRung.AIF_ORDER


def test_a_prefix_of_another_version_is_never_used_and_goes_with_it(bench: Bench) -> None:
    user = user_of(50)
    bench.relay.signal(1, user, 1, "r", 9)
    bench.wait_until_computed()
    assert bench.rank(work_of(user, version=2)).rung is FinalRung.INLINE
    bench.relay.follow([2])
    assert bench.rank(work_of(user, version=1)).rung is FinalRung.AIF_ORDER
    assert bench.relay.signal(1, user, 1, "s", 9) is Decision.NO_RANKER


def test_prefixes_wait_while_the_engine_has_work() -> None:
    busy, asked = [True], list[int]()

    def is_busy() -> bool:
        asked.append(len(asked))
        return busy[0]

    bench = open_bench(engine_busy=is_busy)
    try:
        assert bench.relay.signal(1, user_of(50), 1, "r", 9) is Decision.ADMITTED
        wait_until(lambda: len(asked) > 3, 30, "the prefix thread to look at the engine")
        assert bench.prefix(1).done == 0
        busy[0] = False
        bench.wait_until_computed()
        assert bench.prefix(1).finished
    finally:
        bench.relay.close()


def test_signals_that_the_prefix_thread_never_reaches_do_not_pile_up() -> None:
    """The engine always has work, and the time of each signal is over."""
    bench = open_bench(engine_busy=lambda: True, kv_mib=0.5)
    try:
        pool, decided = bench.relay._pool, list[Decision]()
        assert pool is not None
        for number in range(10 * pool.pages):
            decided.append(bench.relay.signal(number, user_of(20), 1, f"r{number}", 9))
            pool.drop(PrefixKey(number, 1))
        assert (decided[0], decided[-1]) == (Decision.ADMITTED, Decision.NO_LOAD)
        assert bench.relay._prefixes.qsize() == pool.pages
    finally:
        bench.relay.close()


def test_a_ranking_that_fails_or_has_no_time_is_answered_in_aifs_order_and_its_prefix_is_not_wasted(bench: Bench) -> None:
    works = [
        work_of(user_of(50), request_id="late", left_s=-1.0),
        dataclasses.replace(work_of(user_of(50)), item_ids=[{}], request_id="odd"),
    ]
    for work in works:
        bench.relay.signal(1, user_of(50), 1, work.request_id, 9)
        bench.wait_until_computed()
        assert bench.rank(work).rung is FinalRung.AIF_ORDER
        assert not bench.prefix(1).request_ids and not bench.prefix(1).leases
    assert bench.rank(work_of(user_of(50), request_id="next")).rung is FinalRung.EXTENDED


def test_a_thread_that_is_ended_in_a_ranking_answers_it_holds_up_no_prefix_and_begins_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_thread(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(bench.relay, "_rank", end_thread)
        assert bench.rank(work_of(user_of(50))).rung is FinalRung.AIF_ORDER
    rankings = bench.relay._threads[1]
    wait_until(lambda: rankings.report() is not None and rankings._faults == 1, 30, "the fault to be counted")
    bench.relay.signal(1, user_of(50), 1, "s", 9)
    bench.wait_until_computed()
    assert bench.rank(work_of(user_of(50), request_id="s")).rung is FinalRung.RESIDENT


def test_a_prefix_that_is_dropped_before_its_turn_is_left_alone() -> None:
    bench, wait = open_bench(keep_s=0.0), Future[None]()
    try:
        bench.relay._prefixes.put(lambda: wait.result(30))
        bench.relay.signal(1, user_of(60), 1, "r", 9)
        assert bench.rank(work_of(user_of(60))).rung is FinalRung.WAITED
        assert bench.relay._pool is not None
        bench.relay._tidy(bench.relay._pool)  # its time is over
        wait.set_result(None)
        bench.wait_until_computed()
        assert not bench.relay._threads[0]._faults
    finally:
        bench.relay.close()


def test_a_lost_page_is_found(bench: Bench) -> None:
    assert bench.relay._pool is not None
    bench.relay._pool._pages.take(1)  # and loses it
    bench.relay._check_at_s = 0.0
    bench.relay._wake.set()
    wait_until(lambda: "held twice [], lost [" in bench.relay._threads[2]._last_fault, 30, "the lost page to be found")


def test_a_ranker_that_does_not_open_is_tried_again_and_disturbs_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    find, asked = bench.relay._find_parameters, list[int]()

    def fail_once(version: int) -> Parameters | None:
        asked.append(version)
        if asked.count(1) == 1 == version:
            raise MemoryError
        return find(version)

    monkeypatch.setattr(bench.relay, "_find_parameters", fail_once)
    for alive in ([], [1, 2]):
        bench.relay.follow(alive)
    wait_until(lambda: bench.relay.spec(2) is not None, 30, "the other ranker to be opened")
    wait_until(lambda: bench.relay.spec(1) is not None, 30, "the ranker to be tried again")


@pytest.mark.parametrize("fails", [False, True])
def test_a_ranker_is_opening_until_a_first_attempt_has_ended(fails: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    find, go = bench.relay._find_parameters, threading.Event()

    def open_ranker(*_: Any) -> RankerBackend:
        go.wait(30)
        return RankerBackend(*([] if fails else _))

    monkeypatch.setattr("serving.relay.backend.RankerBackend", open_ranker)
    started = relay.Relay(bench.relay.settings, Metrics(), lambda version: None if version == 3 else find(version))
    try:
        assert started.is_opening(1) and not started.is_opening(3), "also before it is asked to follow"
        started.follow([1])
        time.sleep(0.05)
        assert started.is_opening(1)
        go.set()
        wait_until(lambda: not started.is_opening(1), 30, "the attempt to end")
        assert (started.spec(1) is None) == fails and not started.is_opening(2)
    finally:
        started.close()


def test_a_cancelled_ranking_wastes_no_prefix_and_one_that_waits_at_the_end_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.relay.signal(1, user_of(50), 1, "r", 9)
    bench.wait_until_computed()
    begun, wait, rank = threading.Event(), Future[None](), bench.relay._rank

    def hold(work: FinalWork) -> FinalResult:
        begun.set()
        wait.result(30)
        return rank(work)

    monkeypatch.setattr(bench.relay, "_rank", hold)
    bench.relay.submit_rank(work_of(user_of(50), request_id="other"))
    assert begun.wait(30)
    cancelled, waiting = (bench.relay.submit_rank(work_of(user_of(50))) for _ in range(2))
    assert cancelled.cancel()
    closing = threading.Thread(target=bench.relay.close)
    closing.start()
    wait_until(bench.relay._stopping.is_set, 30, "the relay to stop")
    wait.set_result(None)
    late = bench.relay.submit_rank(work_of(user_of(50)))
    closing.join(30)
    assert [one.result(30).rung for one in (waiting, late)] == [FinalRung.AIF_ORDER] * 2
    assert not bench.prefix(1).request_ids and not bench.prefix(1).leases


def test_the_end_does_not_wait_for_a_ranking_that_hangs_in_its_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_CLOSE_S_MAX", 0.1)
    begun, goes_on = threading.Event(), threading.Event()

    def hang(work: FinalWork) -> FinalResult:
        begun.set()
        goes_on.wait(60)
        return aif_order(work)

    monkeypatch.setattr(bench.relay, "_rank", hang)
    bench.relay.submit_rank(work_of(user_of(50)))
    assert begun.wait(30)
    closing = threading.Thread(target=bench.relay.close)
    closing.start()
    closing.join(10)
    is_over = not closing.is_alive()
    goes_on.set()
    assert is_over


def test_a_signal_is_charged_for_what_it_lacks_and_only_if_it_finds_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SPEC.ranker is not None
    page = 2 * SPEC.ranker.layers * SPEC.ranker.width * 16  # 16 tokens
    monkeypatch.setattr("serving.relay.relay.PAGE_ELEMENTS", page)
    bench = open_bench(host_mib=4.0, kv_mib=2 * 3 * page / MIB, load_share=1e-9)
    try:
        first, relay = user_of(40, seed=1), bench.relay
        for user_id, user in ((1, first), (2, user_of(40, seed=2))):
            assert relay.signal(user_id, user, 1, "r", 9) is Decision.ADMITTED
            bench.wait_until_computed()
            bench.rank(work_of(user, user_id=user_id))
        left_ms = relay._load.left_ms
        assert relay.signal(1, first, 1, "s", 9) is Decision.EXTENDED  # from the host tier, whole
        bench.wait_until_computed()
        bench.rank(work_of(first, request_id="s"))
        assert not bench.prefix(1).leases
        assert relay.signal(1, longer(first, 8), 1, "t", 9) is Decision.NO_ROOM  # its own pages are not free for it
        assert relay._load.left_ms == pytest.approx(left_ms, abs=1e-4)
    finally:
        bench.relay.close()


def test_without_risk_nothing_is_computed_before() -> None:
    bench = open_bench(budget_ms=10_000.0)
    try:
        assert bench.relay.signal(1, user_of(50), 1, "r", 9) is Decision.NOT_AT_RISK
    finally:
        bench.relay.close()


def test_a_hundred_signals_and_rankings_of_one_user_compute_it_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    user, backend, computed = user_of(60), bench.relay._backends[1], list[range]()

    def extend(window: Window, done: int, end: int, kv: Kv) -> None:
        computed.append(range(done, end))
        RankerBackend.extend(backend, window, done, end, kv)

    monkeypatch.setattr(backend, "extend", extend)

    async def both(number: int) -> FinalResult:
        await asyncio.to_thread(bench.relay.signal, 1, user, 1, f"r{number}", 9)
        return await asyncio.to_thread(bench.rank, work_of(user, request_id=f"r{number}"))

    async def all_of_them() -> Sequence[FinalResult]:
        return await asyncio.gather(*(both(number) for number in range(100)))

    results = asyncio.run(all_of_them())
    assert {result.rung for result in results} <= {FinalRung.RESIDENT, FinalRung.WAITED, FinalRung.EXTENDED}
    assert bench.relay._metrics.counter("relay_signals").labels("admitted")._value.get() == 1
    assert set(computed) == {range(61)}
    assert len(computed) <= 2  # a ranking may have taken over what the prefix thread had just begun


def test_a_random_life_of_users_versions_and_behaviours_always_gives_one_pass(bench: Bench) -> None:
    rng = random.Random(5)
    users = {number: user_of(rng.randrange(80), seed=number) for number in range(6)}
    for step in range(150):
        number = rng.randrange(6)
        if rng.random() < 0.3:
            users[number] = longer(users[number], rng.randrange(1, 9))
        if rng.random() < 0.05:
            users[number] = user_of(rng.randrange(80), seed=step)
        version = rng.choice([1, 2])
        if rng.random() < 0.6:
            bench.relay.signal(number, users[number], version, f"r{step}", 9)
        if rng.random() < 0.5:
            bench.wait_until_computed()
        bench.rank(work_of(users[number], user_id=number, version=version, request_id=f"r{step}"))
    pool = bench.relay._pool
    assert pool is not None
    pool.check()
