"""Two processes of `aif serve` behind one merger, under load: each is restarted in turn, one is killed between the two calls, and no client notices."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.processes import Child, free_ports, start_child, wait_ready, wait_until
from schemas.ids import Id
from serving.client import Client
from serving.merger.merger import Merged, Merger
from tests.serving.server_process import AIF, WAIT_S, publish_index

SERVERS, USERS = 2, 8
NEW_USER = 1_001  # no server has a state of this one


class Fleet:
    """The processes, each on a port that it keeps."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables | {"AIF_SERVE__LEAVE_S": "1"}
        self.children: dict[str, Child] = {}
        for port in free_ports(SERVERS):
            self.start(f"http://127.0.0.1:{port}")

    def start(self, url: str) -> None:
        port = url.rpartition(":")[2]
        command = [*AIF, "serve", "--device", "cpu", "--grpc-port", "0", "--port", port]
        self.children[url] = start_child("server", command, self.folder / f"server-{port}.log", environment=self.variables)

    def wait(self, url: str) -> None:
        with Client(url) as client:
            wait_ready(self.children[url], client.ready, WAIT_S)

    def end(self, url: str, number: int) -> None:
        os.kill(self.children[url].pid, number)
        wait_until(lambda: not self.children[url].alive(), 30, "the server to end")

    def restart(self, url: str) -> None:
        self.end(url, signal.SIGTERM)
        assert self.children[url].process.wait() == 0, self.children[url].log_tail()
        self.start(url)
        self.wait(url)

    def kill(self) -> None:
        for child in self.children.values():
            child.kill()


@pytest.mark.campaign
@pytest.mark.timeout(900)  # six starts of a process, each of which imports torch
def test_a_rolling_restart_and_a_kill_between_the_calls_lose_nothing(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    version, variables = publish_index(tmp_path, bootstrap_servers, topic_prefix)
    fleet = Fleet(tmp_path, variables)
    try:
        for url in fleet.children:
            fleet.wait(url)
        answered = asyncio.run(restart_under_load(fleet, version.ids[:20]))
        assert len(answered) > 100 and {len(merged.answer.items) for merged in answered} == {20}
        assert {merged.answer.version_token for merged in answered} == {answered[0].answer.version_token}
        killed = asyncio.run(kill_between_the_calls(fleet, version.ids[:20]))
        assert (killed.attempts, killed.answer.rung, killed.answer.degraded) == (2, "inline", ["unsigned_items", "cold_user"])
    finally:
        fleet.kill()


async def restart_under_load(fleet: Fleet, ids: Sequence[Id]) -> list[Merged]:
    """Every request's answer while all servers are restarted, sequentially; an error of any request is raised."""

    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.sleep(0.02)
        return ids

    async def load(user: int) -> None:
        while not stop.is_set():
            answered.append(await merger.recommend(user, deadline_ms=30_000))

    stop, answered = asyncio.Event(), list[Merged]()
    async with Merger(list(fleet.children), retrieve, poll_s=0.1) as merger, asyncio.TaskGroup() as tasks:
        for user in range(USERS):
            tasks.create_task(load(user))
        for url in list(fleet.children):
            before = len(answered)
            await asyncio.to_thread(fleet.restart, url)
            await asyncio.to_thread(wait_until, lambda before=before: len(answered) > before + USERS, WAIT_S, "answers after a restart")
        stop.set()
    return answered


async def kill_between_the_calls(fleet: Fleet, ids: Sequence[Id]) -> Merged:
    """One request, whose server is killed when it has answered call 1."""

    async def retrieve(_: Id) -> Sequence[Id]:
        await asyncio.gather(*merger._calls)
        await asyncio.to_thread(fleet.end, merger.route(NEW_USER)[0], signal.SIGKILL)
        return ids

    async with Merger(list(fleet.children), retrieve, poll_s=60) as merger:
        return await merger.recommend(NEW_USER, deadline_ms=60_000)
