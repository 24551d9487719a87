"""What tests of commands share: an index of two shards, named as every process is told of it, whose topics are not made yet."""

from pathlib import Path

import pytest


@pytest.fixture
def prefix(bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The prefix of its topics."""
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", bootstrap_servers)
    monkeypatch.setenv("AIF_KAFKA__TOPIC_PREFIX", topic_prefix)
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path / "store"))
    monkeypatch.setenv("AIF_INDEX__SHARDS", "2")
    return topic_prefix
