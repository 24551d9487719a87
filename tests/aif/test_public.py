"""The public package: light to import, complete, and its clients and publisher do what README shows."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aif
from aif import AsyncClient, Client, Publisher, Unavailable
from infra.kafka.admin import apply_topics
from infra.kafka.reader import read_topic
from tests.aif.fake_server import BUSY_USER, run_fake_server

ROOT = Path(__file__).parents[2]
# What the base install does not bring.
HEAVY = {
    "aiokafka", "faust", "granian", "grpc", "llvmlite", "matplotlib", "numba", "numpy", "prometheus_client", "pyarrow", "rocksdict", "safetensors",
    "scipy", "sklearn", "structlog", "torch", "xxhash",
}  # fmt: skip
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_fake_server() as address:
        yield address


def test_importing_aif_loads_only_what_the_base_install_brings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, aif; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & (HEAVY | {"streams"})


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(aif.__all__) == sorted(name for name in dir(aif) if name[0].isupper())
    assert [name for name in aif.__all__ if not getattr(aif, name).__doc__] == []


def test_both_clients_rank_with_the_same_options_and_answers(url: str) -> None:
    async def ask() -> list[object]:
        async with AsyncClient(url) as client:
            await client.wait_ready(5.0)
            user = await client.user(1)
            request = aif.PrerankRequest(user_id=1, item_ids=[4, 5], top_k=1)
            ranked = await client.rank(1, [4, 5, 6], top_k=2, version_token=user.version_token)
            return [await client.status(), await client.ready(), user, ranked, await client.prerank(request)]

    with Client(url) as client:
        client.wait_ready(5.0)
        user = client.user(1)
        ranked = client.rank(1, [4, 5, 6], top_k=2, version_token=user.version_token)
        request = aif.PrerankRequest(user_id=1, item_ids=[4, 5], top_k=1)
        assert asyncio.run(ask()) == [client.status(), client.ready(), user, ranked, client.prerank(request)]
    assert [one.item_id for one in ranked.items] == [4, 5]


def test_both_clients_raise_what_the_server_answers(url: str) -> None:
    async def ask() -> None:
        async with AsyncClient(url) as client:
            await client.rank(BUSY_USER, [1])

    with Client(url) as client, pytest.raises(Unavailable) as refused:
        client.rank(BUSY_USER, [1])
    with pytest.raises(Unavailable) as refused_too:
        asyncio.run(ask())
    assert [error.value.code for error in (refused, refused_too)] == ["queue_full"] * 2
    assert refused.value.retry_after_s == refused_too.value.retry_after_s == 0.5


def test_an_async_client_of_no_server_says_so() -> None:
    async def ask() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            assert not await client.ready()
            with pytest.raises(Unavailable, match="not_ready"):
                await client.wait_ready(0.0)
            await client.status()

    with pytest.raises(Unavailable, match="server_unreachable"):
        asyncio.run(ask())


def test_a_publisher_without_topics_says_which_command_makes_them(bootstrap_servers: str, topic_prefix: str) -> None:
    with pytest.raises(Unavailable, match="aif topics apply"):
        Publisher(bootstrap_servers, source="test", prefix=topic_prefix)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_snippets_of_readme_run_as_written(snippet: str, url: str, bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    here = snippet.replace('Publisher("127.0.0.1:9092"', f'Publisher("{bootstrap_servers}", prefix="{topic_prefix}"')
    here = here.replace("127.0.0.1:9092", bootstrap_servers).replace('"aif.', f'"{topic_prefix}').replace("http://127.0.0.1:8100", url)
    exec(compile(here, "README.md", "exec"), {})
    if "publish" in snippet or "produce" in snippet:
        assert [record.key for record in read_topic(bootstrap_servers, "item-features", prefix=topic_prefix)] == [b"42"]


def test_the_snippets_of_readme_import_nothing_of_the_project_but_aif() -> None:
    imported = {name for snippet in SNIPPETS for name in re.findall(r"^(?:from|import) (\w+)", snippet, re.MULTILINE)}
    assert "aif" in imported and not imported & {"schemas", "infra", "streams", "serving", "lab"}
