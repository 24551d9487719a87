"""The open loop against a small server of the test: latencies from the intended send, answers by kind, connections within their bound."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from lab.load import FAILED, OK, REFUSED, Latencies, Target, call_at_rate, run_to_the_microsecond, send_at_rate, send_in_turns

Answer = Callable[[int], Awaitable[int]]


def serve_and(answer: Answer, load: Callable[[Target], Awaitable[Latencies]]) -> tuple[Latencies, int]:
    """A server that answers its n-th request with the status of `answer(n)` (0 = cut the connection), under a load; and how many connections it saw."""
    seen = {"requests": 0, "connections": 0}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen["connections"] += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]))
                number, seen["requests"] = seen["requests"], seen["requests"] + 1
                status = await answer(number)
                if status == 0:
                    break
                writer.write(f"HTTP/1.1 {status} X\r\ninference-header-content-length: 9\r\ncontent-length: 2\r\n\r\nok".encode())
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def run() -> Latencies:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/x", (("content-type", "y"),))
        async with server:
            return await load(target)

    return asyncio.run(run()), seen["connections"]


async def ok(_: int) -> int:
    return 200


def test_every_request_leaves_and_counts_once_by_what_came_back() -> None:
    async def answer(number: int) -> int:
        return (200, 429, 503, 500, 0)[number % 5]

    latencies, _ = serve_and(answer, lambda target: send_at_rate(target, [b"a", b"bb"], 500, 0.1))
    assert sum(latencies.count(outcome) for outcome in (OK, REFUSED, FAILED)) == 50
    assert (latencies.count(OK), latencies.count(REFUSED), latencies.count(FAILED)) == (10, 20, 20)


def test_a_call_that_raises_ends_the_load_and_is_not_left_out_of_its_counts() -> None:
    async def call(number: int, _: float) -> None:
        if number == 3:
            raise ValueError("an answer that is unreadable")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(call_at_rate(call, 1_000, 0.01))
    assert "unreadable" in str(raised.value.exceptions)


def test_a_server_that_stands_still_is_charged_for_everybody_who_would_have_come_meanwhile() -> None:
    async def answer(number: int) -> int:
        if number == 0:
            await asyncio.sleep(0.4)
        return 200

    still, _ = serve_and(answer, lambda target: send_at_rate(target, [b"a"], 100, 0.5, connections_max=1))
    median = still.quantile(OK, 0.5)
    assert median is not None and median > 50, "half of the 50 requests were due while the first one was stuck"


def test_connections_are_used_again_and_never_more_than_allowed() -> None:
    _, calm = serve_and(ok, lambda target: send_in_turns(target, [b"a"], 2, 0.2))
    assert calm <= 2

    async def slow(_: int) -> int:
        await asyncio.sleep(0.02)
        return 200

    latencies, connections = serve_and(slow, lambda target: send_at_rate(target, [b"a"], 1_000, 0.05, connections_max=5))
    assert connections <= 5 and latencies.count(OK) == 50


def test_windows_add_up_and_without_such_an_answer_there_is_no_quantile() -> None:
    whole, window = Latencies(), Latencies(seconds=2.0)
    assert whole.quantile(OK, 0.99) is None
    window.add(OK, 3.0)
    window.late.add(1.0)
    for _ in range(2):
        whole.merge(window)
    assert whole.count(OK) == 2 == whole.late.count and whole.seconds == 4.0 and whole.count(FAILED) == 0


def test_a_closed_loop_sends_at_least_one_request() -> None:
    latencies, _ = serve_and(ok, lambda target: send_in_turns(target, [b"a"], 1, 0.0))
    assert latencies.count(OK) == 1


def test_a_sender_that_is_late_says_by_how_much() -> None:
    async def load(target: Target) -> Latencies:
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.2)  # the sender's own process stands still
        return await send_at_rate(target, [b"a"], 200, 0.4)

    late, _ = serve_and(ok, load)
    worst = late.late.get_quantile_value(1.0)
    assert late.late.count == 80 and worst is not None and worst > 150


def test_a_load_runs_in_a_loop_of_fine_time_as_in_any_other() -> None:
    async def wait() -> int:
        await asyncio.sleep(0.0001)
        return await ok(0)

    assert run_to_the_microsecond(wait()) == 200
