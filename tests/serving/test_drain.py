"""A front that is closed under load: requests that it has taken are answered, later ones are refused, none is cut."""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from infra.processes import port_is_free, wait_until
from infra.settings import load_settings
from schemas.errors import Unavailable
from serving.client import Client
from serving.server import RankingServer
from serving.settings import ServerSettings
from tests.serving.calls.test_user_rungs import SlowEngine
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import open_front


def test_requests_in_work_are_answered_while_the_port_takes_no_more() -> None:
    engine = SlowEngine()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        front = stack.enter_context(open_front(engine))
        for user in range(4):
            front.tell(user, user)
        with Client(front.url) as client, Client(front.url) as late:
            waiting = [threads.submit(client.user, user, deadline_ms=20_000) for user in range(4)]
            wait_until(lambda: len(engine.held) == 4, 10, "the requests to be in work")
            closing = threads.submit(stack.close)
            wait_until(lambda: port_is_free(int(front.url.rpartition(":")[2])), 10, "the port to be closed")
            with pytest.raises(Unavailable):
                late.status()
            assert not any(one.done() for one in waiting)
            engine.release()
            assert [one.result().behaviours for one in waiting] == [1, 1, 1, 1]
            closing.result()


def test_a_server_that_will_end_closes_each_connection_with_its_answer() -> None:
    """So that a client's pool sends its next request on a new connection, to another server, and not on one that is about to be closed."""
    with open_front(FakeEngine()) as front, httpx.Client(base_url=front.url, timeout=60) as client:
        body, stream = {"user_id": 1, "item_ids": [1]}, "network_stream"
        first, second = client.post("/v1/rank", json=body), client.post("/v1/rank", json=body)
        assert "connection" not in second.headers and first.extensions[stream] is second.extensions[stream]
        front.leave()
        last, after = client.post("/v1/rank", json=body), client.post("/v1/rank", json=body)
        assert (last.status_code, last.headers["connection"], after.status_code) == (200, "close", 200)


def test_a_server_that_is_told_to_end_tells_so_to_who_is_connected(tmp_path: Path) -> None:
    """A request that is sent while its connection is being closed is cut: every second busy connection had one, without that moment."""
    settings = {"AIF_INDEX__STORE": str(tmp_path / "store"), "AIF_USERS__DATA_DIR": str(tmp_path / "users"), "AIF_SERVE__PORT": "0"}

    async def answer_after_stop() -> httpx.Response:
        server = RankingServer(load_settings(ServerSettings, {}, {**settings, "AIF_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}))
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(server.run(url.set_result))
        async with httpx.AsyncClient(base_url=await url, timeout=60) as client:
            assert "connection" not in (await client.get("/v2/health/live")).headers
            stopped_s = time.monotonic()
            server.stop()
            answer = await client.get("/v2/health/live")
        await running
        assert time.monotonic() - stopped_s >= server.settings.serve.leave_s > 0
        return answer

    answer = asyncio.run(answer_after_stop())
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
