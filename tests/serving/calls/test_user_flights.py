"""Flights in one event loop, without a server: who joins which, and that no request joins one that was given up."""

import asyncio
import time
from concurrent.futures import Future

import pytest

from schemas.errors import Unavailable
from schemas.token import VersionToken
from serving.calls.deadline import Deadline
from serving.calls.state_pool import StateKey
from serving.calls.user_halves import Flight, Flights
from serving.engine.work import UserResult
from tests.serving.fake_engine import FakeState

KEY = (StateKey(1, 7, None), (0, 0))


class Started:
    """Work that was given to the engine, which never answers."""

    def __init__(self) -> None:
        self.futures: list[Future[UserResult]] = []

    def start(self) -> "Future[UserResult]":
        self.futures.append(Future())
        return self.futures[-1]


def join(flights: Flights, started: Started) -> Flight:
    return flights.join_or_start(KEY, started.start, 1.0, lambda state: None)


def test_a_flight_that_its_last_waiter_gave_up_is_joined_by_nobody() -> None:
    async def run() -> None:
        flights, started = Flights(), Started()
        first = join(flights, started)
        with pytest.raises(Unavailable, match="deadline"):
            await first.wait(Deadline(time.monotonic(), 20))
        assert first.shared.cancelled() and list(flights._flights) == [KEY], "cancelled, and its end is still to come"
        assert flights.find(KEY[0]) is None
        second = join(flights, started)
        assert second is not first and flights.find(KEY[0]) is second and flights.joined == 0
        await asyncio.sleep(0)
        assert flights.find(KEY[0]) is second, "the end of the first takes nothing from the second"
        assert join(flights, started) is second and len(started.futures) == 2
        second.shared.cancel()
        await asyncio.sleep(0)
        assert not flights._flights

    asyncio.run(run())


def test_of_two_flights_of_a_user_the_one_of_the_newer_history_is_found() -> None:
    async def run() -> None:
        flights, started = Flights(), Started()
        older, newer = (flights.join_or_start((KEY[0], (0, end)), started.start, 1.0, lambda state: None) for end in (5, 6))
        assert older is not newer and flights.find(KEY[0]) is newer
        newer.shared.cancel()
        assert flights.find(KEY[0]) is older

    asyncio.run(run())


def test_a_flight_that_has_begun_is_kept_though_its_last_waiter_gave_it_up() -> None:
    async def run() -> None:
        flights, started, landed = Flights(), Started(), list[object]()
        flight = flights.join_or_start(KEY, started.start, 1.0, landed.append)
        [work] = started.futures
        work.set_running_or_notify_cancel()
        with pytest.raises(Unavailable, match="deadline"):
            await flight.wait(Deadline(time.monotonic(), 20))
        assert flights.find(KEY[0]) is flight, "call 2 may still wait for it"
        work.set_result(UserResult(VersionToken(7, 0, "0" * 8), FakeState(7, 10, 0, 0, True)))
        await asyncio.wait_for(flight.shared, 10)
        await asyncio.sleep(0)
        assert landed == [FakeState(7, 10, 0, 0, True)]

    asyncio.run(run())
