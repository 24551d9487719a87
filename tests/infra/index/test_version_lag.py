"""A version whose rows are behind those of others is not served by mistake: what its shards tell readers is looked at from outside."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics
from schemas.errors import AifError
from schemas.index.layout import DeltaHeader, encode_delta
from tests.infra.aif_command import run_aif
from tests.infra.index_fixture import publish_version

BEHIND, LIVE = 0, 1


def tell(bootstrap: str, prefix: str, *told: tuple[int, int, int]) -> None:
    """(version, shard, next offset of item-features) each, as watermarks."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for sequence, (version, shard, offset) in enumerate(told):
        header = DeltaHeader(version, shard, sequence, (offset, 5), 1)
        producer.produce(f"{prefix}index-deltas", encode_delta(header), b"", shard)
    assert producer.flush(30) == 0


def test_a_backup_that_fell_behind_is_served_again_only_by_force_and_its_lag_is_said(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"INDEX__STORE": str(tmp_path), "KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers, "KAFKA__TOPIC_PREFIX": topic_prefix}
    for name, value in settings.items():
        monkeypatch.setenv(f"AIF_{name}", value)
    apply_topics(bootstrap_servers, topic_prefix, 2, 1)
    store = open_index_store(str(tmp_path))
    for _ in (BEHIND, LIVE):
        publish_version(store)  # sealed at 10 and 11
    tell(bootstrap_servers, topic_prefix, (BEHIND, 0, 10), (LIVE, 0, 10), (BEHIND, 1, 40), (LIVE, 1, 40), (LIVE, 1, 52))
    for command in (("rollback",), ("pin", "0"), ("promote", "0")):
        with pytest.raises(AifError, match=r"version_behind: version 0 fell behind \(shard 1 by 12 records\).*--force"):
            run_aif("index", *command)
    tell(bootstrap_servers, topic_prefix, (BEHIND, 1, 52))
    assert run_aif("index", "rollback")["live"] == BEHIND
    tell(bootstrap_servers, topic_prefix, *((BEHIND, 0, 10 + n) for n in range(300)))
    with pytest.raises(
        AifError, match=r"version 1 fell behind \(shard 0 by 299 records\)"
    ):  # nothing is told of it: its seals say how far it is
        run_aif("index", "promote", str(LIVE))
    assert run_aif("index", "promote", str(LIVE), "--force")["live"] == LIVE
    assert ControlLog(store).refresh().live == LIVE
