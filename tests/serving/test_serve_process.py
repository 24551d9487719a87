"""`aif serve` and `aif query` as processes: start, answer, end on SIGTERM; and what a server says when it cannot start."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.processes import Child, free_ports, wait_ready, wait_until
from infra.settings import load_settings
from schemas.errors import Misconfigured, Unavailable
from serving.client import Client
from serving.server import RankingServer
from serving.settings import ServerSettings
from tests.serving.server_process import AIF, WAIT_S, publish_index, run_server

NVIDIA = Path("/dev/nvidiactl")


def wait_ended(child: Child, deadline_s: float) -> None:
    """Waits for the end of a process that has been told to end; of one that does not, the message says where each of its threads stands."""
    try:
        wait_until(lambda: not child.alive(), deadline_s, f"{child.name} to end")
    except Unavailable as error:
        os.kill(child.pid, signal.SIGABRT)
        child.process.wait()
        raise AssertionError(f"{error}\n{child.log_path.read_text()[-30_000:]}") from None


def run(arguments: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AIF, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False)


def test_a_server_process_answers_a_query_and_ends_cleanly_on_sigterm(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    version, variables = publish_index(tmp_path, bootstrap_servers, topic_prefix)
    [grpc_port] = free_ports(1)
    with run_server(tmp_path, variables, "--grpc-port", str(grpc_port)) as server:
        child, url = server.child, server.url
        assert server.grpc == f"127.0.0.1:{grpc_port}"
        with Client(url) as client:
            wait_ready(child, client.ready, WAIT_S)
        answer = json.loads(run(["query", "1", "--random", "20", "--top-k", "3", "--url", url, "--json"], variables).stdout)
        assert (len(answer["items"]), answer["candidates"], answer["unknown_count"]) == (3, 20, 0)
        chosen = tmp_path / "items"
        chosen.write_text(f"{version.ids[0]}\n\n{version.ids[1]}\n77\n")
        shown = run(["query", "1", "--items", str(chosen), "--url", url], variables).stdout
        assert str(version.ids[0]) in shown and "version 5.0-" in shown and re.search(r"rows (\d+\.\d s old|of unknown age)", shown)
        assert "degraded: unknown_items, unsigned_items, cold_user (1 of 3 candidates unknown)" in shown
        traced = run(["query", "1", "--items", str(chosen), "--url", url, "--trace", "--retrieval", "fixed:200"], variables)
        assert "passed during retrieval" in traced.stderr and "call 1" in traced.stderr and str(version.ids[0]) in traced.stdout
        # Its terminal is gone; under nohup, where all processes of the suite ignore that signal, it gets another one.
        os.kill(child.pid, signal.SIGTERM if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else signal.SIGHUP)
        wait_ended(child, 20)
        assert child.process.wait() == 0, child.log_tail()
        assert '"stopped"' in child.log_tail() and f"listening on {url}" in (tmp_path / "server.log").read_text()
        refused = run(["query", "", "--items", str(chosen), "--url", url], variables)
        assert refused.returncode == 1 and "bad_request: user_id" in refused.stderr and "Traceback" not in refused.stderr
        failed = run(["query", "1", "--items", str(chosen), "--url", url], variables)
        assert failed.returncode == 1 and "server_unreachable" in failed.stderr and "aif serve" in failed.stderr


def test_a_cold_start_on_a_damaged_only_version_is_named_to_whoever_asks(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    version, variables = publish_index(tmp_path, bootstrap_servers, topic_prefix)
    table = max((tmp_path / "store").rglob("*.sst"), key=lambda path: path.stat().st_size)
    table.chmod(0o600)
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    with run_server(tmp_path, variables) as server, Client(server.url) as client:
        wait_ready(server.child, lambda: "bad_part_file" in client.status()["not_ready_because"], WAIT_S)
        with pytest.raises(Unavailable, match="no_version: no version is live yet; bad_part_file: .*" + table.name):
            client.rank(1, version.ids[:3])


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        ({"serve": {"port": 99_999}}, {}, "99999"),
        ({"engine": {"device": "tpu"}}, {}, "tpu"),
        pytest.param({"engine": {"device": "cuda"}}, {}, "--device cpu", marks=pytest.mark.skipif(NVIDIA.exists(), reason="has a GPU")),
        ({"index": {"store": "ftp://files"}}, {}, "ftp://files"),
        ({}, {"AIF_SERVE__PROT": "1"}, "AIF_SERVE__PORT"),
        ({}, {"AIF_KAFKA__BOOTSTRAP_SERVERS": ""}, "aif broker start"),
        ({}, {"AIF_SERVE__HOST": ""}, "serve.host"),
        ({"serve": {"port": 0, "grpc_port": 0, "address_file": "/"}}, {}, "cannot be written to /: "),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_next_step(
    tmp_path: Path, flags: dict[str, dict[str, object]], variables: dict[str, str], named: str
) -> None:
    async def start() -> None:
        await RankingServer(load_settings(ServerSettings, flags, base | variables)).run()

    base = {
        "AIF_INDEX__STORE": str(tmp_path / "store"),
        "AIF_BROKER__DATA_DIR": str(tmp_path / "none"),
        "AIF_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9",
    }
    with pytest.raises(Misconfigured, match=named):
        asyncio.run(start())
