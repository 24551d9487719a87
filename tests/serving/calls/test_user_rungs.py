"""Call 2's way down the ladder in a running front: each rung taken where the one above gives way, and one computation for all who wait."""

import dataclasses
import gzip
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.kafka.reader import SourceRecord
from infra.processes import wait_until
from schemas.errors import Unavailable
from schemas.events import UserFeaturesRecord, encode_record
from schemas.ids import encode_kafka_key, partition_of
from schemas.requests import InlineBehaviour
from schemas.topics import USER_FEATURES
from serving.client import Client
from serving.core.admission import Costs, Job, fold_cost
from serving.engine.work import RankWork, UserWork
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front


@dataclass
class SlowEngine(FakeEngine):
    """Work with behaviours waits until it is let go; all other work is done at once."""

    held: list[tuple[Future[Any], Any]] = field(default_factory=list)
    let_go: bool = False

    def _hold(self, work: UserWork | RankWork, make: Any) -> "Future[Any]":
        user = work if isinstance(work, UserWork) else work.user
        if self.let_go or user is None or not user.behaviours:
            return self._future(make)
        future: Future[Any] = Future()
        self.held.append((future, make))
        return future

    def submit_user(self, work: UserWork) -> "Future[Any]":
        inner = super()
        return self._hold(work, lambda: inner.submit_user(work).result())

    def submit_rank(self, work: RankWork) -> "Future[Any]":
        inner = super()
        return self._hold(work, lambda: inner.submit_rank(work).result())

    def release(self) -> None:
        self.let_go = True
        for future, make in self.held:
            if future.set_running_or_notify_cancel():
                future.set_result(make())


@pytest.fixture
def front() -> Iterator[Front]:
    with open_front(SlowEngine()) as opened:
        yield opened


@pytest.fixture
def client(front: Front) -> Iterator[Client]:
    with Client(front.url) as opened:
        yield opened


def know_profile(front: Front, user: int) -> None:
    value = encode_record(UserFeaturesRecord(user_id=user, features={"country": "nl"}))
    front.store.fold_record(SourceRecord(USER_FEATURES, partition_of(user, 4), 0, encode_kafka_key(user), value))


def make_slow(front: Front, behaviours: int = 1, ms: float = 10_000.0) -> None:
    """From now on a user half with so many behaviours is known to take long."""
    front.paced.costs = dataclasses.replace(
        front.paced.costs, by_bucket={**front.paced.costs.by_bucket, ("user", behaviours.bit_length()): ms}
    )


def begin_call_one(front: Front, client: Client, threads: ThreadPoolExecutor) -> Future[Any]:
    """Call 1 of user 1, which the engine has and does not answer yet."""
    first = threads.submit(client.user, 1, deadline_ms=20_000)
    wait_until(lambda: len(front.engine.held) == 1, 10, "call 1 to be under way")
    return first


def test_call_two_waits_for_the_call_one_that_is_under_way(front: Front, client: Client) -> None:
    front.tell(1)
    front.store.find(1)
    with ThreadPoolExecutor(4) as threads:
        first = begin_call_one(front, client, threads)
        seconds = [threads.submit(client.rank, 1, [1, 2], deadline_ms=20_000) for _ in range(2)]
        again = threads.submit(client.user, 1, deadline_ms=20_000)
        wait_until(
            lambda: front.users.flights.joined == 1 and all(f.waiters == 4 for f in front.users.flights._flights.values()),
            10,
            "all to wait",
        )
        front.engine.release()
        assert [second.result().rung for second in seconds] == ["waited", "waited"]
        assert first.result().behaviours == again.result().behaviours == 1
    assert front.engine.user_calls == 1, "one computation for four requests"
    assert client.rank(1, [1]).rung == "cached"


def test_a_disk_that_stalls_costs_whoever_is_not_in_memory_the_deadline_and_nobody_else(front: Front) -> None:
    """Such requests had no end. They stayed in work, until that was full and everybody was refused."""
    front.engine.let_go = True
    front.tell(1)
    with Client(front.url, timeout_s=10.0) as client:
        assert client.rank(1, [1, 2]).rung == "inline"
        with front.store._disk:
            assert client.rank(1, [1, 2]).rung == "cached"
            for ask in (lambda: client.rank(2, [1, 2], deadline_ms=200), lambda: client.user(2, deadline_ms=200)):
                with pytest.raises(Unavailable, match=r"deadline_passed.*was not read from disk"):
                    ask()
            with ThreadPoolExecutor(16) as threads:
                asked = [threads.submit(client.rank, user, [1, 2], deadline_ms=4_000) for user in range(10, 26)]
                wait_until(lambda: front.in_work() >= 16, 10, "many who are not in memory to wait")
                body = gzip.compress(b'{"user_id": 1, "item_ids": [1, 2]}')
                packed = client._http.post("/v1/rank", content=body, headers={"content-encoding": "gzip"})
                assert packed.status_code == 200, "its body is unpacked in a thread"
                assert not any(one.done() for one in asked)
                assert all(isinstance(one.exception(), Unavailable) for one in asked)
            assert front.in_work() == 0
            wait_until(lambda: front.users._readers._work_queue.qsize() == 0, 10, "no look to be left")
        assert client.rank(2, [1, 2]).rung == "inline"


def test_a_slow_user_half_is_replaced_by_the_last_state_and_the_answer_says_so(front: Front, client: Client) -> None:
    front.engine.let_go = True
    front.tell(1)
    assert client.rank(1, [1, 2]).rung == "inline"
    front.tell(1, 1)
    make_slow(front)
    answer = client.rank(1, [1, 2])
    assert (answer.rung, answer.degraded) == ("last_cached", ["older_history"])


def test_a_state_that_lacks_little_is_gone_on_from_though_the_whole_history_takes_too_long(front: Front, client: Client) -> None:
    """Without this the user was ranked without the newest behaviours, with time enough: 60,000 take 700 ms, one more takes 1."""
    front.engine.let_go = True
    for offset in range(3):
        front.tell(1, offset)
    assert client.rank(1, [1, 2]).rung == "inline"
    front.tell(1, 3)
    make_slow(front, 4)
    answer = client.rank(1, [1, 2])
    assert (answer.rung, answer.degraded) == ("inline", [])


def test_call_one_is_not_refused_for_behaviours_that_its_kept_state_has() -> None:
    """Long halves wait for each other; whoever has nothing to compute, or one behaviour more, was refused with them."""
    with open_front(SlowEngine(long_history=1, let_go=True)) as front, Client(front.url) as client:
        for offset in range(3):
            front.tell(1, offset)
        client.user(1)
        make_slow(front, 3)
        make_slow(front, 4)
        front.engine.let_go = False
        other = front.paced.submit_user(UserWork({}, front.store.find(1).behaviours))
        assert front.paced.wait_ms(UserWork({}, front.store.find(1).behaviours)) > 5_000
        assert client.user(1).behaviours == 3, "taken from the pool"
        front.engine.let_go = True
        front.tell(1, 3)
        assert client.user(1).behaviours == 4, "continued from"
        with pytest.raises(Unavailable, match="overloaded"):
            client.user(1, behaviours=[InlineBehaviour(item_id=1)] * 3)
        assert not other.done()
        front.engine.release()


def test_without_an_older_state_the_profile_alone_answers_and_without_time_for_it_nobodys(front: Front, client: Client) -> None:
    front.engine.let_go = True
    know_profile(front, 1)
    front.tell(1)
    front.store.find(1)
    front.paced.costs = fold_cost(Costs(), [Job("user", 0)], 1.0)
    make_slow(front)
    answer = client.rank(1, [1, 2])
    assert (answer.rung, answer.degraded) == ("profile_only", ["profile_only"])
    assert len(front.states) == 0, "a profile alone is neither the user's state nor the empty user's"
    make_slow(front, 0)
    for _ in range(2):
        answer = client.rank(1, [1, 2])
        assert (answer.rung, answer.degraded) == ("item_prior", ["item_prior"]) and len(answer.items) == 2
    assert front.states.events["kept"] == 1, "the empty user's state is made once"


def test_a_wait_that_takes_too_long_gives_way_to_the_next_rung(front: Front, client: Client) -> None:
    front.tell(1)
    front.store.find(1)
    with ThreadPoolExecutor(1) as threads:
        first = begin_call_one(front, client, threads)
        make_slow(front)  # so inline is no way out either
        answer = client.rank(1, [1, 2], deadline_ms=2_000)
        assert answer.rung in ("profile_only", "item_prior")
        front.engine.release()
        assert first.result().behaviours == 1, "call 1 goes on for its own sake"


def test_call_two_does_not_wait_for_a_call_one_that_is_known_to_end_too_late() -> None:
    with open_front(SlowEngine(long_history=0)) as front, Client(front.url) as client, ThreadPoolExecutor(1) as threads:
        front.tell(1)
        front.store.find(1)
        make_slow(front, ms=60_000.0)
        first = begin_call_one(front, client, threads)
        answer = client.rank(1, [1, 2], deadline_ms=10_000)
        assert answer.rung == "item_prior" and answer.took_ms < 5_000
        front.engine.release()
        assert first.result().behaviours == 1


def test_work_that_nobody_waits_for_any_more_is_cancelled(front: Front, client: Client) -> None:
    front.tell(1)
    while not front.engine.held:  # a busy machine may need more than the deadline until the work is in the engine
        with pytest.raises(Unavailable, match="deadline"):
            client.user(1, deadline_ms=60)
    wait_until(front.engine.held[0][0].cancelled, 10, "the work to be cancelled")
    wait_until(lambda: not front.users.flights._flights, 10, "the flight to end")


def test_call_two_with_a_kept_state_never_reads_the_disk(front: Front, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    front.engine.let_go = True
    front.tell(1)
    client.user(1)

    def refuse(user: object) -> None:
        raise AssertionError("read the disk")

    monkeypatch.setattr(front.store, "find", refuse)
    assert client.rank(1, [1]).rung == "cached"
    front.store._decoded.clear()  # the user fell out of memory
    assert client.rank(1, [1]).rung == "cached" and front.states.events["unchecked"] == 1


def test_a_request_that_would_wait_beyond_its_deadline_is_refused_at_once_with_a_time_to_come_back(front: Front, client: Client) -> None:
    front.tell(1)
    front.store.find(1)
    front.paced.costs = Costs({("user", 1): 50.0, ("rank", 2): 50.0}, 50.0)
    front.tell(2, 1)
    with ThreadPoolExecutor(1) as threads:
        first = begin_call_one(front, client, threads)
        front.paced._waiting_ms += 10_000  # as if much more came before it
        front.paced._note_backlog()
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                client.rank(1, list(range(5_000)))
            assert caught.value.code == "overloaded" and caught.value.retry_after_s > 5
        assert client.ready(), "probes are answered under any load"
        front.engine.release()
        assert first.result().behaviours == 1
    assert front.metrics.counter("requests_refused").labels("deadline")._value.get() == 3


def test_a_request_whose_deadline_cannot_be_met_is_refused_before_it_waits(front: Front, client: Client) -> None:
    front.tell(1)
    front.store.find(1)
    with ThreadPoolExecutor(1) as threads:
        first = begin_call_one(front, client, threads)
        front.paced._waiting_ms += 5  # a little, within the bound of the queue
        front.paced._began_s += 3_600
        front.paced._note_backlog()
        front.paced.costs = Costs({("rank", 2): 50_000.0}, 1e9)
        with pytest.raises(Unavailable, match="needs 50000 ms") as caught:
            client.rank(1, [1, 2], deadline_ms=20_000)
        assert caught.value.code == "overloaded"
        front.engine.release()
        assert first.result().behaviours == 1
    assert client.rank(1, [1, 2], deadline_ms=20_000).items, "where nothing waits it is tried, whatever was learnt"


def test_an_avoided_user_half_is_tried_again_in_time(front: Front, client: Client) -> None:
    front.engine.let_go = True
    front.tell(1)
    front.store.find(1)
    make_slow(front, 1, 25_000.0)
    rungs = [client.rank(1, [1, 2], deadline_ms=20_000).rung for _ in range(12)]
    assert rungs[0] != "inline" and rungs[-1] in ("inline", "cached")


@dataclass
class WatchedEngine(FakeEngine):
    """Keeps the work of user halves, of both calls."""

    seen: list[UserWork] = field(default_factory=list)

    def submit_user(self, work: UserWork) -> "Future[Any]":
        self.seen.append(work)
        return super().submit_user(work)

    def submit_rank(self, work: RankWork) -> "Future[Any]":
        if work.user is not None:
            self.seen.append(work.user)
        return super().submit_rank(work)


def test_a_user_half_goes_on_from_the_kept_state_of_the_users_own_history_and_of_nothing_else() -> None:
    engine = WatchedEngine()
    with open_front(engine) as front, Client(front.url) as client:
        front.tell(1)
        client.user(1)
        front.tell(1, 1)
        client.rank(1, [1, 2])
        client.user(1, behaviours=[InlineBehaviour(item_id=1)])
        client.user(2)
        engine.previous, engine.current = engine.current, dataclasses.replace(engine.current, version=8)
        front.tell(1, 2)
        client.user(1)
    first, inline, given, other, flipped = engine.seen
    assert inline.base is not None and (inline.base.behaviours, len(inline.behaviours)) == (1, 2)
    assert first.base is given.base is other.base is flipped.base is None
