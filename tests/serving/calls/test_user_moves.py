"""User halves that are kept move to a version before it goes live: the newest first, only while no request waits, and never for longer than allowed."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from infra.metrics import Metrics
from schemas.ids import IdKind
from schemas.token import VersionToken
from serving.calls.paced_engine import PacedEngine
from serving.calls.state_pool import StateKey, StatePool, prior_key
from serving.calls.user_halves import Users
from serving.calls.user_moves import MOVE_S_MAX, UserMoves
from serving.core.admission import Costs, Job
from serving.engine.work import RankWork, UserWork
from serving.users.user_store import UserStore
from tests.serving.fake_engine import FakeEngine, FakeState
from tests.serving.front import open_view

OLD, NEW = 7, 8


class Engine(FakeEngine):
    """Notes whose halves were made, by the number of behaviours; can hold rankings back."""

    def __init__(self) -> None:
        super().__init__(previous=VersionToken(NEW, 0, "0" * 8))
        self.made: list[int | None] = []
        self.held: list[Future[Any]] = []

    def submit_user(self, work: UserWork) -> "Future[Any]":
        self.made.append(work.version)
        return super().submit_user(work)

    def submit_rank(self, work: RankWork) -> "Future[Any]":
        self.held.append(Future())
        return self.held[-1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[UserStore]:
    opened = open_view(tmp_path / "users", IdKind.INT64, 1)
    yield opened
    opened.close()


def keep(users: Users, user: int, request_id: str | None = None) -> None:
    """A half of the old version, as call 1 leaves it; the user is in memory."""
    users.pool.put(StateKey(user, OLD, request_id), FakeState(OLD, 10, 1, 0, False), users.store.find(user).offsets)


def open_users(store: UserStore) -> Users:
    return Users(store, StatePool(100, 1 << 20), IdKind.INT64, Metrics())


def test_what_is_kept_of_the_current_version_is_there_on_the_next_one_and_the_last_used_comes_first(store: UserStore) -> None:
    async def run() -> None:
        engine, users = Engine(), open_users(store)
        for user in (1, 2, 3):
            keep(users, user)
        keep(users, 4, request_id="of this request only")
        users.pool.put(prior_key(OLD), FakeState(OLD, 10, 0, 0, True))
        lease = users.pool.find(StateKey(1, OLD), users.store.offsets_in_memory(1))
        assert lease is not None
        lease.end()
        assert users.pool.users_of(OLD) == [1, 3, 2]
        moved = await UserMoves(PacedEngine(engine, Metrics()), users).move(NEW)  # type: ignore[arg-type]
        assert moved == 3 and engine.made == [NEW] * 3
        for user in (1, 2, 3):
            found = users.pool.find(StateKey(user, NEW), users.store.offsets_in_memory(user))
            assert found is not None and found.state.version == NEW, "fresh: the next request takes it"
        assert StateKey(4, NEW) not in users.pool

    asyncio.run(run())


def test_while_requests_wait_nothing_is_moved_and_the_flip_is_not_held_up_for_ever(store: UserStore) -> None:
    async def run() -> None:
        engine, users = Engine(), open_users(store)
        keep(users, 1)
        times = iter([0.0, 0.0, *[MOVE_S_MAX] * 10])
        paced = PacedEngine(engine, Metrics(), clock=lambda: 1.0)  # type: ignore[arg-type]
        paced.submit_rank(RankWork([1], 1, state=FakeState(OLD, 1, 1, 0, False)))
        paced._waiting_ms = 50.0
        paced._note_backlog()
        assert await UserMoves(paced, users, clock=lambda: next(times)).move(NEW) == 0
        assert engine.made == []

    asyncio.run(run())


def test_a_move_that_fails_leaves_the_version_as_it_is(store: UserStore) -> None:
    async def run() -> None:
        engine, users = Engine(), open_users(store)
        keep(users, 1)
        engine.previous = None  # the new version is not resident any more
        moves = UserMoves(PacedEngine(engine, Metrics()), users)  # type: ignore[arg-type]
        await asyncio.to_thread(moves.move_from_thread, NEW)
        assert StateKey(1, NEW) not in users.pool and StateKey(1, OLD) in users.pool
        engine.current = None
        assert await moves.move(NEW) == 0, "the first version of all: nothing is kept yet"

    asyncio.run(run())


def test_moving_is_no_load_that_anybody_offered(store: UserStore) -> None:
    async def run() -> None:
        users, paced = open_users(store), PacedEngine(Engine(), Metrics())  # type: ignore[arg-type]
        for user in (1, 2, 3):
            keep(users, user)
        paced.costs = Costs({Job("user", 1).bucket: 20.0}, 5.0)
        assert await UserMoves(paced, users).move(NEW) == 3
        assert paced.load() == 0.0
        paced.submit_user(UserWork())
        assert paced.load() > 0.0

    asyncio.run(run())
