"""The merger over real fronts: two calls in parallel with retrieval, one version, and servers that are lost, refuse or are slow."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from infra.processes import wait_until
from infra.settings import load_settings
from schemas.errors import AifError, Misconfigured, RejectedInput, Unavailable
from schemas.ids import Id
from schemas.token import VersionToken
from serving.calls.carried_state import CarriedStates
from serving.engine.work import UserWork
from serving.merger import merger as module
from serving.merger.merger import Merged, Merger
from serving.merger.trace import Latency, Retrieval, decode_latency, describe, trace_request
from serving.settings import ServerSettings
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version, running_engine
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

Retrieve = Callable[[Id], Awaitable[Sequence[Id]]]


def candidates(*ids: Id) -> Retrieve:
    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.sleep(0.1)
        return ids

    return retrieve


def ask(urls: Sequence[str], retrieve: Retrieve, user: Id = 1, **options: Any) -> Merged:
    async def run() -> Merged:
        async with Merger(urls, retrieve) as merger:
            return await merger.recommend(user, **{"deadline_ms": 20_000, **options})

    return asyncio.run(run())


def ask_after_call_one(urls: str, ids: Sequence[Id], then: Callable[[], None] = lambda: None, user: Id = 1, **options: Any) -> Merged:
    """Retrieval takes exactly until call 1 and the signal are answered, and `then` happens before call 2. `urls`: with blanks between them."""

    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.gather(*merger[0]._calls)
        then()
        return ids

    async def run() -> Merged:
        async with Merger(urls.split(), retrieve) as opened:
            merger.append(opened)
            return await opened.recommend(user, **{"deadline_ms": 20_000, **options})

    merger: list[Merger] = []
    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, 20, "what the test waits for")


@contextlib.contextmanager
def open_real() -> Iterator[tuple[Any, list[Id]]]:
    with running_engine(version := make_version(SPECS["full"], 40)) as engine:
        yield engine, version.ids[:20]


@contextlib.contextmanager
def open_fake() -> Iterator[tuple[Any, list[Id]]]:
    yield FakeEngine(), list(range(20))


@pytest.fixture(params=[open_fake, open_real], ids=["fake", "real"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Front, list[Id]]]:
    with request.param() as (engine, known), open_front(engine) as front:
        yield front, known


def test_call_one_passes_beside_retrieval_and_call_two_uses_its_state(served: tuple[Front, list[Id]]) -> None:
    front, known = served
    front.tell(1)
    merged = ask_after_call_one(front.url, known, top_k=5)
    assert merged.user_answer is not None and merged.user_answer.behaviours == 1
    assert (merged.answer.rung, merged.attempts) == ("cached", 1)
    assert merged.answer.degraded in ([], ["unsigned_items"])  # some items of the real engine's sample have no embedding
    assert merged.answer.version_token == merged.user_answer.version_token and merged.answer.request_id == merged.user_answer.request_id
    assert len(merged.answer.items) == 5
    spans, lines = {span.name: span for span in merged.spans}, describe(merged)
    assert spans["call 1"].start_ms < spans["retrieval"].end_ms <= spans["call 2"].start_ms
    assert len(lines) == 4 and "passed during retrieval" in lines[-1]


def test_a_version_that_flips_between_the_calls_changes_nothing_for_this_request() -> None:
    engine = FakeEngine()
    with open_front(engine) as front:
        front.tell(1)

        def flip() -> None:
            engine.previous, engine.current = engine.current, VersionToken(8, 0, "1" * 8)

        merged = ask_after_call_one(front.url, [1, 2], flip)
        assert (merged.answer.rung, merged.answer.version_token) == ("cached", "7.0-00000000")


def test_a_server_lost_between_the_calls_costs_one_recompute_and_no_error() -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        stacks = {}
        for stack in (first, second):
            front = stack.enter_context(open_front(FakeEngine()))
            front.tell(1)
            stacks[front.url] = (stack, front)

        async def lose(_: Id) -> Sequence[Id]:
            stack, front = stacks[route[0]]
            await until(lambda: len(front.states) == 1)
            await asyncio.to_thread(stack.close)
            return [1, 2, 3]

        async def run() -> tuple[Merged, list[str]]:
            async with Merger(list(stacks), lose) as merger:
                route.extend(merger.route(1))
                return await merger.recommend(1, deadline_ms=20_000), merger.route(1)

        route: list[str] = []
        merged, after = asyncio.run(run())
        assert (merged.server, merged.attempts, merged.answer.rung, merged.answer.degraded) == (route[1], 2, "inline", [])
        assert after == route[::-1], "the lost one is asked last from now on"


def test_a_server_that_refuses_is_passed_over_for_the_next() -> None:
    def refuse() -> None:
        raise Unavailable("overloaded", "full", 1.0)

    with open_front(FakeEngine()) as one, open_front(FakeEngine()) as other:
        fronts = {front.url: front for front in (one, other)}

        async def run() -> tuple[Merged, str]:
            async with Merger(list(fronts), candidates(1, 2)) as merger:
                busy = merger.route(1)[0]
                fronts[busy].paced.check_queue = refuse  # type: ignore[method-assign]
                return await merger.recommend(1, deadline_ms=20_000), busy

        merged, busy = asyncio.run(run())
        assert merged.server != busy and merged.attempts == 2


def test_where_every_server_refuses_the_merger_comes_back_when_they_ask_for_it() -> None:
    refusals = iter([1, 1])

    def refuse() -> None:
        if next(refusals, None):
            raise Unavailable("overloaded", "full", 0.05)

    with open_front(FakeEngine()) as front:

        async def run() -> Merged:
            async with Merger([front.url, "http://127.0.0.1:9"], candidates(1, 2)) as merger:
                front.paced.check_queue = refuse  # type: ignore[method-assign]
                return await merger.recommend(1, deadline_ms=20_000)

        merged = asyncio.run(run())
        assert merged.server == front.url and merged.attempts >= 2 and len(merged.answer.items) == 2


def test_a_call_one_that_fails_or_is_late_holds_nobody_up() -> None:
    class NoCallOne(FakeEngine):
        def submit_user(self, work: UserWork) -> "Future[Any]":
            return Future()

    with open_front(NoCallOne()) as front:
        merged = ask([front.url], candidates(1, 2), deadline_ms=1_500)
        assert merged.user_answer is None and len(merged.answer.items) == 2


def test_when_nobody_answers_the_error_says_why() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        ask(["http://127.0.0.1:9", "http://127.0.0.1:10"], candidates(1))
    with open_front(FakeEngine()) as front, pytest.raises(Unavailable, match="retrieve faster"):
        ask([front.url], candidates(1), deadline_ms=50)


def test_what_the_sender_did_wrong_is_not_tried_elsewhere() -> None:
    with open_front(FakeEngine()) as one, open_front(FakeEngine()) as other, pytest.raises(RejectedInput):
        ask([one.url, other.url], candidates())
    assert sum(front.metrics.counter("requests").labels("/v1/rank", "422")._value.get() for front in (one, other)) == 1


def test_a_rolling_restart_under_load_loses_nothing() -> None:
    with contextlib.ExitStack() as rest:
        stacks = [contextlib.ExitStack() for _ in range(3)]
        urls = [stack.enter_context(open_front(FakeEngine())).url for stack in stacks]
        for stack in stacks:
            rest.push(stack)

        async def load(merger: Merger, user: int) -> None:
            while not stop.is_set():
                merged = await merger.recommend(user, deadline_ms=20_000)
                assert len(merged.answer.items) == 2
                answered.append(merged.server)

        async def run() -> None:
            async with Merger(urls, candidates(1, 2)) as merger:
                tasks = [asyncio.create_task(load(merger, user)) for user in range(6)]
                for stack in stacks[:2]:
                    await asyncio.sleep(0.3)
                    await asyncio.to_thread(stack.close)
                before = len(answered)
                await until(lambda: len(answered) >= before + 10)
                stop.set()
                await asyncio.gather(*tasks)

        stop, answered = asyncio.Event(), list[str]()
        asyncio.run(run())
        assert set(answered[-5:]) == {urls[2]}


def test_a_server_that_says_it_is_not_ready_is_left_before_a_request_fails_there_and_taken_again_when_it_is() -> None:
    with open_front(FakeEngine()) as one, open_front(FakeEngine()) as other:
        fronts = {front.url: front for front in (one, other)}

        async def run() -> None:
            async with Merger(list(fronts), candidates(1, 2), poll_s=0.02) as merger:
                mine, next_one = merger.route(1)
                fronts[mine].ready = (False, "draining")
                assert (await merger.recommend(1, deadline_ms=20_000)).attempts == 1, "it still answers who comes"
                await until(lambda: merger.route(1)[0] == next_one)
                fronts[mine].ready = (True, "")
                await until(lambda: merger.route(1)[0] == mine)

        asyncio.run(run())


def test_a_server_thought_lost_is_asked_first_again_as_soon_as_a_probe_finds_it() -> None:
    with open_front(FakeEngine()) as one, open_front(FakeEngine()) as other:

        async def run() -> None:
            async with Merger([one.url, other.url], candidates(1, 2), poll_s=0.02) as merger:
                mine = merger.route(1)[0]
                merger._servers[mine].lost_until_s = float("inf")
                assert merger.route(1)[0] != mine
                await merger.recommend(1, deadline_ms=20_000)
                await until(lambda: merger.route(1)[0] == mine)

        asyncio.run(run())


def test_a_state_that_call_two_brings_itself_survives_the_loss_of_its_server() -> None:
    def open_one(stack: contextlib.ExitStack) -> Front:
        engine, _ = stack.enter_context(open_real())
        return stack.enter_context(open_front(engine, carried=CarriedStates(SecretStr("a key of the tests"), "index", 600)))

    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        stacks = {front.url: (stack, front) for stack in (first, second) for front in [open_one(stack)]}

        async def lose(_: Id) -> Sequence[Id]:
            await asyncio.gather(*merger[0]._calls)
            await asyncio.to_thread(stacks[merger[0].route(1)[0]][0].close)
            return make_version(SPECS["full"], 40).ids[:5]

        async def run() -> Merged:
            async with Merger(list(stacks), lose, carries_state=True) as opened:
                merger.append(opened)
                return await opened.recommend(1, deadline_ms=20_000)

        merger: list[Merger] = []
        merged = asyncio.run(run())
        assert (merged.attempts, merged.answer.rung) == (2, "carried")


def test_the_stand_in_draws_latencies_and_candidates_as_told_and_again_the_same() -> None:
    assert decode_latency("fixed:20").draw_ms(random.Random(0)) == 20
    assert all(10 <= decode_latency("uniform:10,30").draw_ms(random.Random(seed)) <= 30 for seed in range(20))
    median = sorted(decode_latency("lognormal:20,0.3").draw_ms(random.Random(seed)) for seed in range(401))[200]
    assert 18 < median < 22
    drawn = [asyncio.run(Retrieval(range(100), 7, Latency("fixed", 0), seed=3).retrieve(1)) for _ in range(2)]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 7


@pytest.mark.parametrize("text", ["", "fixed", "fixed:x", "fixed:1,2", "normal:1", "uniform:1", "fixed:-1", "fixed:nan"])
def test_a_latency_that_is_none_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(RejectedInput, match="lognormal:MEDIAN_MS"):
        decode_latency(text)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "a certificate that is not trusted here"),
        (httpx.RemoteProtocolError("closed"), r"running there, with TLS \(https://\)"),
    ],
)
def test_a_server_that_speaks_tls_otherwise_is_unreachable_with_the_reason(error: httpx.RequestError, words: str) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise error

    def open_client(url: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(refuse))

    async def run() -> None:
        async with Merger(["http://one"], candidates(1), open_client, poll_s=0.01) as merger:
            with pytest.raises(Unavailable, match=words):
                await merger.recommend(1, deadline_ms=2_000)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "content", "code"),
    [({}, b"<html>busy</html>", "bad_answer"), ({"content-encoding": "gzip"}, b"no gzip", "server_unreachable")],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_ours_and_the_servers_are_watched_on(
    headers: dict[str, str], content: bytes, code: str
) -> None:
    def garble(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))

    def open_client(url: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(garble))

    async def run() -> None:
        async with Merger(["http://one"], candidates(1), open_client, poll_s=0.01) as merger:
            with pytest.raises(AifError) as caught:
                await merger.recommend(1, deadline_ms=2_000)
            assert caught.value.code == code
            await asyncio.sleep(0)
            assert merger._polling and not any(probe.done() for probe in merger._polling)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["http://127.0.0.1:9,127.0.0.1:8100", "http://", ","])
def test_a_trace_over_what_is_no_address_is_refused_by_its_name(url: str) -> None:
    """It was called a server that does not answer."""
    with pytest.raises(Misconfigured, match="bad_url"):
        trace_request(load_settings(ServerSettings, environment={}), url, "1", [1], 1, 200, "fixed:1")


def test_the_signal_for_a_prefix_goes_to_the_server_that_ranks() -> None:
    with contextlib.ExitStack() as opened:
        fronts = [opened.enter_context(open_front(FakeEngine())) for _ in range(3)]
        for user in range(6):
            merged = ask_after_call_one(" ".join(front.url for front in fronts), (1, 2, 3), user=user, top_k=3, final_top_k=2)
            assert merged.signalled == merged.server
            assert merged.answer.final is not None and len(merged.answer.items) == 2


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, b"<html>busy</html>"),
        (404, b"no such host"),
        (500, b'{"code": "internal", "message": "an unexpected error"}'),
        (502, b"<html>"),
    ],
)
def test_a_server_that_fails_or_is_something_else_is_passed_over_for_the_next(status: int, content: bytes) -> None:
    def open_client(url: str) -> httpx.AsyncClient:
        wrong = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
        return httpx.AsyncClient(base_url=url, transport=wrong if url == "http://wrong" else None)

    async def run(url: str) -> None:
        async with Merger(["http://wrong", url], candidates(1, 2), open_client, poll_s=60.0) as merger:
            user = next(user for user in range(100) if merger.route(user)[0] == "http://wrong")
            merged = await merger.recommend(user, deadline_ms=20_000)
            assert (merged.server, merged.attempts, len(merged.answer.items)) == (url, 2, 2)

    with open_front(FakeEngine()) as front:
        asyncio.run(run(front.url))


def test_a_server_whose_answers_drip_costs_no_more_than_the_deadline_and_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROBE_S_MAX", 0.2)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    async def run() -> None:
        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Merger([url], candidates(1, 2), poll_s=0.02) as merger:
                with pytest.raises(Unavailable, match="deadline_passed"):
                    await asyncio.wait_for(merger.recommend(1, deadline_ms=300), 20)
                await until(lambda: not merger._servers[url].ready)
            await asyncio.sleep(0.1)  # for the server to see that its clients are gone

    asyncio.run(run())
