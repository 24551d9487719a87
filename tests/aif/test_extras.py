"""What each extra brings is enough for what needs it, and a command without its extra says which one to install."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement
from typer.main import get_command

from infra.cli import build_app
from infra.extras import ALL, EXTRA_OF_COMMAND, name_missing_extra
from infra.kafka.admin import apply_topics
from tests.aif.fake_server import run_fake_server

ROOT = Path(__file__).parents[2]
ROOMS = ("aif", "schemas", "infra", "streams", "serving", "lab")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The modules that the commands of an extra run, and what may be missing: obstore and torch have a door with a message of its own.
NEEDS = {
    "": (["aif", "infra.kafka.json_lines", "infra.settings"], set[str]()),
    "worker": (["streams.worker", "streams.builders.process", "streams.shard.cli", "streams.replay.cli"], {"obstore"}),
    "serve": (
        ["serving.server", "serving.merger.trace", "serving.query", "infra.tools.cli", "infra.kafka.dlq_cli"],
        {"obstore", "torch", "triton", "grpcio-tools"},
    ),
    "train": (["streams.training.cli", "infra.data.cli"], {"obstore"}),
    ALL: (["lab.cli", "streams.cli", "serving.cli"], {"triton", "grpcio-tools"}),
}
_OPTIONAL = {"pandas"}  # rank_frame says how to install it
_DOORS = {"infra.index.checkpoint_upload", "schemas.index.control"}  # the base install does without them


@cache
def imports() -> Any:
    return grimp.build_graph(*ROOMS, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by(extra: str) -> set[str]:
    """The distributions that the base install and an extra name, and what these name in turn."""
    names = [Requirement(one) for one in PROJECT["project"]["dependencies"]]
    waiting, found = [*names, *(Requirement(one) for one in PROJECT["project"]["optional-dependencies"].get(extra, []))], set[str]()
    while waiting:
        one = waiting.pop()
        if one.name == "aif":
            waiting += [Requirement(text) for name in one.extras for text in PROJECT["project"]["optional-dependencies"][name]]
            continue
        if normal(one.name) in found:
            continue
        found.add(normal(one.name))
        for text in importlib.metadata.requires(one.name) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed)
    return found


@pytest.mark.parametrize("extra", NEEDS)
def test_an_extra_brings_every_distribution_that_its_modules_import(extra: str) -> None:
    modules, missing = NEEDS[extra]
    graph, distributions = imports(), importlib.metadata.packages_distributions()
    reached: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [] if extra == "" and module in _DOORS else graph.find_modules_directly_imported_by(module)
    foreign = {name.partition(".")[0] for name in reached} - set(ROOMS) - sys.stdlib_module_names
    brought = brought_by(extra) | missing | _OPTIONAL
    unmet = {name for name in foreign if not {normal(one) for one in distributions.get(name, [name])} & brought}
    assert unmet == set()


def test_every_command_with_an_extra_of_its_own_exists_and_so_does_the_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(EXTRA_OF_COMMAND) <= set(get_command(build_app()).commands)  # type: ignore[attr-defined]
    assert {*EXTRA_OF_COMMAND.values(), ALL} <= set(extras)


def test_a_missing_module_names_the_extra_and_a_missing_module_of_ours_is_a_bug() -> None:
    error = name_missing_extra(ModuleNotFoundError(name="numba.core"), "aif serve", "serve")
    assert (error.code, "pip install 'aif[serve]'" in error.message, "numba" in error.message) == ("extra_missing", True, True)
    with pytest.raises(ModuleNotFoundError):
        name_missing_extra(ModuleNotFoundError(name="serving.gone"), "aif serve", "serve")


_PROGRAM = """
import asyncio, sys, time
import aif

url, bootstrap, prefix = sys.argv[1:]
with aif.Publisher(bootstrap, source="wheel", prefix=prefix) as publisher:
    assert publisher.publish_item(42, version=1, features={"price": 1.5}).result(30).topic == "item-features"
    try:
        publisher.publish_checkpoint_file(None, None)
    except aif.Misconfigured as error:
        assert error.code == "extra_missing", error
with aif.Client(url) as client:
    assert [one.item_id for one in client.rank(1, [42, 43, 44], top_k=2).items] == [42, 43]


async def ask():
    async with aif.AsyncClient(url) as client:
        return len((await client.rank(1, [42, 43, 44], top_k=2)).items)


assert asyncio.run(ask()) == 2
print("done")
"""


@pytest.mark.campaign
def test_the_built_wheel_publishes_and_ranks_in_a_fresh_environment(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    def run(*command: str | Path) -> str:
        bare = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        return subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=True).stdout

    run("uv", "build", "-q", "--wheel", "-o", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run("uv", "venv", "-q", "-p", sys.executable, "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run("uv", "pip", "install", "-q", "-p", python, wheel)
    mib = sum(file.stat().st_size for file in (tmp_path / "venv").rglob("*") if file.is_file()) / 2**20
    assert mib < 80
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    with run_fake_server() as url:
        assert run(python, "-c", _PROGRAM, url, bootstrap_servers, topic_prefix) == "done\n"
    served = subprocess.run([python.with_name("aif"), "serve"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert served.returncode == 1 and "aif[serve]" in served.stderr
