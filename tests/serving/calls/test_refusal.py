"""A request that is one too many is answered when its head is there, and its connection carries the next one all the same."""

import math
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from infra.metrics import Metrics
from schemas.errors import Unavailable
from schemas.users import BehaviourEvent
from serving.calls.paced_engine import PacedEngine
from serving.core.admission import Costs, Offered
from serving.engine.work import RankWork, UserWork
from tests.serving.fake_engine import FakeEngine, FakeState
from tests.serving.front import Front, connect, open_front

INFER = b"/v2/models/prerank/infer"


@contextmanager
def open_overloaded() -> Iterator[Front]:
    """A front in a flood whose engine never answers and has learnt that it is slow: one request waits, all others are too many."""
    with open_front(FakeEngine(stuck=True)) as front:
        front.paced.costs = Costs({("user", 0): 1e5, ("rank", 1): 1e5, ("rank", 2): 1e5}, 1e5)
        with connect(front.http) as first:
            first.sendall(head(b"/v1/prerank", len(BODY)) + BODY)
            while front.paced.queue_ms() == 0:
                pass
            front.paced.offered = flood_of(100.0, time.monotonic() * 1000)
            yield front


def flood_of(load: float, at_ms: float = 0.0) -> Offered:
    """A flood that does not end by itself within a test."""
    return Offered(load, at_ms, late_ms=1e12)


BODY = b'{"user_id": 1, "item_ids": [1, 2], "deadline_ms": 60000}'


def head(path: bytes, length: int) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (path, length)


def receive(connection: socket.socket) -> bytes:
    """One whole answer."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(65_536)
    start, _, rest = raw.partition(b"\r\n\r\n")
    length = int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(rest) < length:
        rest += connection.recv(65_536)
    return start + b"\r\n\r\n" + rest


@pytest.mark.parametrize("length", [40, 80_000, 3_000_000])
@pytest.mark.parametrize("path", [b"/v1/rank", INFER])
def test_the_refusal_comes_before_the_body_and_the_connection_lives_on(path: bytes, length: int) -> None:
    with open_overloaded() as front, connect(front.http) as connection:
        for _ in range(3):
            connection.sendall(head(path, length))
            answer = receive(connection)
            assert answer.startswith(b"HTTP/1.1 429") and b'"overloaded"' in answer and b"retry_after_s" in answer
            connection.sendall(b"x" * length)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
        assert receive(connection).startswith(b"HTTP/1.1 200")


def test_what_is_refused_is_part_of_the_load_that_is_offered() -> None:
    paced = PacedEngine(FakeEngine(stuck=True), Metrics(), clock=lambda: 0.0)  # type: ignore[arg-type]
    paced.costs, paced.offered = Costs({("rank", 1): 1_000.0}, 10.0), flood_of(0.0)
    paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False)))
    assert paced.load() == 1, "one request alone is never more than the engine can do"
    for check in (paced.check_queue, paced.check_queue, lambda: paced.check_work(1.0, 60.0)):
        with pytest.raises(Unavailable, match="overloaded"):
            check()
    assert paced.load() == pytest.approx(2)


def test_a_burst_on_an_idle_engine_is_refused_by_nothing_but_its_deadlines() -> None:
    now_s = [0.0]
    paced = PacedEngine(FakeEngine(stuck=True), Metrics(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    paced.costs = Costs({("rank", 1): 10.0}, 10.0)

    def ask(left_s: float, after_s: float = 0.0) -> None:
        now_s[0] += after_s
        paced.check_queue()
        paced.check_work(10.0, left_s)
        paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False)))

    for _ in range(50):
        ask(30.0, after_s=0.0005)
    with pytest.raises(Unavailable, match="of its deadline 200 ms are left"):
        ask(0.2)
    ask(30.0)
    with pytest.raises(Unavailable, match="this server lets"):
        deque((ask(30.0, after_s=0.001) for _ in range(1_000)), maxlen=0)
    assert now_s[0] < 0.05, "a flood is noticed soon"


@pytest.mark.parametrize(("all_came_together", "refused"), [(True, False), (False, True)])
def test_a_burst_is_judged_by_when_its_requests_came_and_not_by_when_their_bodies_were_read(all_came_together: bool, refused: bool) -> None:
    now_s, caught = [0.0], False
    paced = PacedEngine(FakeEngine(stuck=True), Metrics(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    paced.costs = Costs({("rank", 1): 10.0}, 10.0)
    for _ in range(50):
        now_s[0] += 0.002
        received_s = 0.0 if all_came_together else now_s[0]
        try:
            paced.check_work(10.0, 30.0)
        except Unavailable:
            caught = True
        else:
            paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False)), received_s)
    assert caught is refused


def test_a_long_user_half_beside_the_queue_delays_and_teaches_nothing_but_its_like() -> None:
    now_s, engine = [0.0], FakeEngine(stuck=True, long_history=0)
    paced = PacedEngine(engine, Metrics(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    long, short = UserWork({}, [BehaviourEvent(1, "click", 0)]), UserWork()
    paced.costs = Costs({("user", 1): 100.0, ("user", 0): 1.0, ("rank", 1): 2.0}, 2.0)
    half = paced.submit_user(long)
    assert paced.queue_ms() == 0 and paced.wait_ms(long) == 100 and paced.load() == 0
    paced.check_work(2.0, 0.01)
    paced.check_user(short, 0.01)
    now_s[0] = 0.03
    ranking = paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False)))
    now_s[0] = 0.032
    ranking.set_result(None)
    assert paced.costs.by_bucket["rank", 1] == pytest.approx(2.0), "not what passed since the half began"
    now_s[0] = 0.15
    half.set_result(None)
    assert paced.costs.by_bucket["user", 1] == pytest.approx(110.0) and paced.costs.mean_ms == pytest.approx(2.0)
    assert paced.wait_ms(long) == 0
    for _ in range(7):
        paced.check_user(long, 60.0)
        paced.submit_user(long)
    with pytest.raises(Unavailable, match="deadline"):
        paced.check_user(long, 0.1)


def test_a_piece_of_work_that_takes_longer_than_predicted_takes_no_time_from_what_waits_behind_it() -> None:
    now_s, half = [0.0], UserWork({}, [BehaviourEvent(1, "click", 0)])
    paced = PacedEngine(FakeEngine(stuck=True, long_history=0), Metrics(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    paced.costs = Costs({("rank", 1): 10.0, ("user", 1): 10.0}, 10.0)
    rankings = []
    for _ in range(2):
        rankings.append(paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False))))
        paced.submit_user(half)
    assert paced.queue_ms() == paced.wait_ms(half) == 20
    for now_s[0], left_ms in ((0.004, 16), (0.019, 10), (0.09, 10)):
        assert paced.queue_ms() == paced.wait_ms(half) == pytest.approx(left_ms)
    rankings[0].set_result(None)
    assert paced.queue_ms() == 10, "finished work waits no longer"


def test_a_refusal_holds_until_a_piece_of_work_ends_or_a_place_may_be_free() -> None:
    now_s, engine = [0.0], FakeEngine(stuck=True)
    paced = PacedEngine(engine, Metrics(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    paced.costs = Costs({("rank", 1): 30.0}, 10.0)

    def told() -> str | None:
        try:
            paced.check_queue()
        except Unavailable as error:
            return error.message
        return None

    work = paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False)))
    paced.offered = flood_of(10.0)
    first = told()
    now_s[0] = 0.007
    assert first is not None and told() == first, "found once, told to everybody"
    assert paced.load() == pytest.approx(10 * math.exp(-7 / 30) + 2 * 10 / 30), "and everybody is counted"
    now_s[0] = 0.008
    assert told() not in (first, None), "after some time it is judged again"
    work.cancel()
    assert told() is None, "and when work has ended at once"


def test_a_refusal_that_was_found_while_work_ended_is_told_to_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work ends in the engine's thread, at any instruction of the event loop's."""
    paced = PacedEngine(FakeEngine(stuck=True), Metrics(), clock=lambda: 0.0)  # type: ignore[arg-type]
    paced.costs, paced.offered = Costs({("rank", 1): 30.0}, 10.0), flood_of(10.0)
    work, find_queue_ms = paced.submit_rank(RankWork([1], 1, state=FakeState(1, 1, 1, 0, False))), paced.queue_ms

    def end_work_meanwhile() -> float:
        queue_ms = find_queue_ms()
        work.cancel()
        return queue_ms

    monkeypatch.setattr(paced, "queue_ms", end_work_meanwhile)
    with pytest.raises(Unavailable, match="overloaded"):
        paced.check_queue()
    paced.check_queue()


def test_a_ranking_that_waits_is_withdrawn_by_a_flood_and_answered_as_a_refusal() -> None:
    with (
        open_front(FakeEngine(stuck=True)) as front,
        connect(front.http) as first,
        connect(front.http) as second,
        connect(front.http) as third,
    ):
        front.paced.costs = Costs({("user", 0): 1e4, ("rank", 2): 1e4}, 1e4)
        for connection in (first, second):
            before = front.paced.queue_ms()
            connection.sendall(head(b"/v1/prerank", len(BODY)) + BODY)
            while front.paced.queue_ms() <= before:
                pass
        front.paced.offered = flood_of(100.0, time.monotonic() * 1000)
        third.sendall(head(b"/v1/prerank", len(BODY)))
        assert receive(third).startswith(b"HTTP/1.1 429")
        answer = receive(second)
        assert answer.startswith(b"HTTP/1.1 429") and b"while it waited" in answer and b"retry_after_s" in answer
        second.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
        assert receive(second).startswith(b"HTTP/1.1 200"), "its connection lives on"
        assert 0 < front.paced.queue_ms() <= 2e4, "the one that is being computed stays"
        assert front.paced.refused == 1, "the withdrawn one was decided about before, and its end is counted"
