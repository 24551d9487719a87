"""A shard of each test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.shard.shard import Shard
from tests.streams.shard_world import open_test_shard


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    one = open_test_shard(tmp_path / "s")
    yield one
    one.close()
