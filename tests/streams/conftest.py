"""What the tests of several rooms begin with: a small index, and workers as processes. Both end with their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.version_world import Worker, World
from tests.streams.worker_stage import WorkerStage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With all workers that the test makes of it."""
    one = World(tmp_path)
    yield one
    one.close()


@pytest.fixture
def worker(world: World) -> Worker:
    return Worker(world)


@pytest.fixture
def stage(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> Iterator[WorkerStage]:
    one = WorkerStage(tmp_path, bootstrap_servers, topic_prefix)
    yield one
    one.stop()
