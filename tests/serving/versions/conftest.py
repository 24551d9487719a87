"""The deployment of one test, whose loaders are forked from one process for all tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.versions.deployment import Deployment
from tests.serving.versions.forked_loaders import forked_loaders


@pytest.fixture(scope="module")
def _loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with forked_loaders(tmp_path_factory.mktemp("loaders") / "log"):
        yield


@pytest.fixture
def deployment(_loaders: None, tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "store", bootstrap_servers, topic_prefix)
    yield made
    made.close()
