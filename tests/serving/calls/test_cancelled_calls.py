"""Both calls, cancelled by the client at each of their awaits in turn: nothing of a request stays in leases, flights, the queue or the counters."""

import asyncio
import itertools
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.metrics import Metrics
from schemas.errors import AifError
from schemas.ids import IdKind
from schemas.requests import AtLeast, RankRequest, UserRequest
from schemas.token import VersionToken
from serving.allocation.allocator import Allocator
from serving.allocation.settings import AllocationSection
from serving.allocation.tables import Tables
from serving.calls.deadline import Deadline
from serving.calls.paced_engine import PacedEngine
from serving.calls.rank_call import RankCall
from serving.calls.state_pool import StateKey, StatePool
from serving.calls.user_call import UserCall
from serving.calls.user_halves import Asked, Users
from serving.core.admission import Costs
from serving.users.user_store import StoreBounds
from tests.serving.fake_engine import FakeEngine, FakeState
from tests.serving.front import open_view

TURNS_MAX = 200
CURRENT, FORMER = VersionToken(7, 0, "0" * 8), VersionToken(6, 0, "0" * 8)


@dataclass
class SlowEngine(FakeEngine):
    """Work takes some turns of the event loop. `begins`: it begins at once, and can then not be cancelled. `goes_after`: the current
    version goes after so many pieces."""

    begins: bool = False
    goes_after: int = -1
    futures: list["Future[Any]"] = field(default_factory=list)

    def _future(self, make: Callable[[], Any]) -> "Future[Any]":
        if self.goes_after == 0:
            self.current, self.previous = VersionToken(8, 0, "1" * 8), None
        self.goes_after -= 1
        done = super()._future(make)
        future: Future[Any] = Future()
        if self.begins:
            future.set_running_or_notify_cancel()
        self.futures.append(future)
        self._end_later(future, done, 3)
        return future

    def _end_later(self, future: "Future[Any]", done: "Future[Any]", turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._end_later, future, done, turns - 1)
        elif self.begins or future.set_running_or_notify_cancel():
            error = done.exception()
            future.set_result(done.result()) if error is None else future.set_exception(error)


@dataclass
class Server:
    """Both calls over a slow engine."""

    engine: SlowEngine
    users: Users
    paced: PacedEngine
    user_call: UserCall
    rank_call: RankCall

    async def call_one(self, **fields: Any) -> Any:
        return await self.user_call.answer(UserRequest(user_id=1, **fields), Deadline(time.monotonic(), 60_000))

    async def call_two(self, **fields: Any) -> Any:
        return await self.rank_call.rank(RankRequest(user_id=1, item_ids=[1, 2], **fields), Deadline(time.monotonic(), 60_000))

    def check_nothing_stays(self) -> None:
        pool, paced = self.users.pool, self.paced
        assert [kept.leases for kept in pool._kept.values()] == [0] * len(pool), "leases"
        assert not self.users.flights._flights and not paced._waiting and not paced._beside, "flights, queue"
        assert paced.queue_ms() == 0 and paced._waiting_ms == 0
        assert all(future.done() for future in self.engine.futures)
        assert pool.size_bytes == sum(kept.state.size_bytes for kept in pool._kept.values())


Call = Callable[[Server], Coroutine[Any, Any, Any]]


def be_busy(server: Server) -> None:
    """What the server has learnt rules out every half that would have to be made."""
    server.paced.costs = Costs({("user", 0): 1e6, ("rank", 2): 1.0}, 1.0)


def keep(server: Server, version: int) -> None:
    server.users.pool.put(StateKey(1, version), FakeState(version, 10, 0, 0, True), (0, 0))


async def call_two_on_a_kept_state(server: Server) -> Any:
    keep(server, 7)
    return await server.call_two()


async def call_two_on_the_last_kept_state(server: Server) -> Any:
    be_busy(server)
    keep(server, 6)
    return await server.call_two()


async def call_two_on_the_prior(server: Server) -> Any:
    be_busy(server)
    return await server.call_two()


async def call_one_on_a_version_that_goes(server: Server) -> Any:
    server.engine.goes_after = 0
    return await server.call_one()


async def call_two_on_a_version_that_goes(server: Server) -> Any:
    keep(server, 7)
    server.engine.goes_after = 0
    return await server.call_two()


async def call_two_waiting_for_call_one(server: Server) -> Any:
    """Call 1 is another process's, who goes on waiting for it."""
    asked = Asked(1, "other")
    deadline = Deadline(time.monotonic(), 60_000)
    flight = server.users.fly(server.paced, asked, await server.users.find(asked, deadline), 7, deadline)
    other = asyncio.create_task(flight.wait(deadline))
    try:
        return await server.call_two()
    finally:
        await other


async def call_two_at_least_what_comes_later(server: Server) -> Any:
    asyncio.get_running_loop().call_later(0.003, server.engine.watermark[0].update, {"item-features": 9})
    return await server.call_two(consistency=AtLeast(topic="item-features", partition=0, offset=9))


CALLS: dict[str, Call] = {
    "call 1": Server.call_one,
    "call 1 with a history": lambda server: server.call_one(features={}),
    "call 1, version goes": call_one_on_a_version_that_goes,
    "inline": Server.call_two,
    "cached": call_two_on_a_kept_state,
    "waited": call_two_waiting_for_call_one,
    "last cached": call_two_on_the_last_kept_state,
    "prior": call_two_on_the_prior,
    "call 2, version goes": call_two_on_a_version_that_goes,
    "at least": call_two_at_least_what_comes_later,
}


@types.coroutine
def cancelled_at(inner: Coroutine[Any, Any, Any], number: int) -> Generator[Any, Any, Any]:
    """`inner`, with its task cancelled at its await of that number, counted from 0."""
    error: BaseException | None = None
    for place in itertools.count():
        try:
            waited = inner.send(None) if error is None else inner.throw(error)
        except StopIteration as done:
            return done.value
        if place == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        error = None
        try:
            yield waited
        except BaseException as raised:
            error = raised


@pytest.fixture
def open_server(tmp_path: Path) -> Iterator[Callable[[bool], Server]]:
    store = open_view(tmp_path, IdKind.INT64, 4, StoreBounds(decoded_users_max=0))  # every history is read from disk

    def open_(begins: bool) -> Server:
        engine, metrics = SlowEngine(begins=begins, current=CURRENT, previous=FORMER), Metrics()
        users = Users(store, StatePool(100, 1 << 20), IdKind.INT64, metrics)
        paced = PacedEngine(engine, metrics)  # type: ignore[arg-type]
        allocator = Allocator(AllocationSection(), Tables(None, lambda: None), metrics, paced)
        return Server(engine, users, paced, UserCall(paced, users, allocator), RankCall(paced, users, 100, metrics, allocator))

    yield open_
    store.close()


@pytest.mark.parametrize("begins", [False, True], ids=["waits", "has begun"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cancelled_at_any_await_leaves_nothing(name: str, begins: bool, open_server: Callable[[bool], Server]) -> None:
    async def run(number: int) -> bool:
        """Whether the call reached that await."""
        server = open_server(begins)
        task = asyncio.ensure_future(cancelled_at(CALLS[name](server), number))
        try:
            await task
            reached = False
        except asyncio.CancelledError:
            reached = True
        except AifError:
            reached = False
        for _ in range(10):
            await asyncio.sleep(0)
        server.check_nothing_stays()
        return reached

    reached = 0
    while asyncio.run(run(reached)):
        reached += 1
        assert reached < TURNS_MAX
    assert reached > 0, "the call never waited"
