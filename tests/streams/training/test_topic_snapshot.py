"""A snapshot is the log: the same offsets give the same bytes, and training from it gives the same batches as from the topics."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from infra.cli import build_app
from infra.kafka.admin import end_offsets
from infra.kafka.publisher import Publisher
from infra.kafka.reader import read_topic
from infra.kafka.removed_records import RemovedRecords
from schemas.errors import Corrupted, Misconfigured
from schemas.ids import IdKind
from schemas.model.inputs import map_tensors
from schemas.model.lsh import make_w_hash
from schemas.topics import IMPRESSIONS, ITEM_FEATURES
from streams.training import topic_snapshot
from streams.training.impressions import join_events
from streams.training.topic_snapshot import SnapshotEvents, write_snapshot
from tests.infra.small_files import files_of_at_most
from tests.streams.training.shop import open_log, publish_shop, shop
from tests.streams.training.test_topic_events import produce

INDEX = {"AIF_INDEX__SHARDS": "2", "AIF_INDEX__USER_PARTITIONS": "2", "AIF_INDEX__ID_KIND": "int64"}


def delete_records(bootstrap_servers: str, before: dict[tuple[str, int], int]) -> None:
    """As retention does: records before these offsets go, by (topic, partition)."""
    positions = [TopicPartition(topic, p, offset) for (topic, p), offset in before.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for done in admin.delete_records(positions).values():
        done.result(30)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_the_topics_and_their_snapshot_give_the_same_batches(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path, kind: IdKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_snapshot, "_GROUP_RECORDS", 2)
    log = open_log(bootstrap_servers, topic_prefix, kind)
    publish_shop(bootstrap_servers, topic_prefix, kind)
    for topic in ("item-features", "impressions", "user-features"):
        produce(bootstrap_servers, topic_prefix + topic, b"\xff not json", key="a compacted topic wants one")
    write_snapshot(tmp_path / "a", log, log.range_now())
    spec, _ = shop(kind)
    w_hash_KM = make_w_hash(1, spec.hash_bits, 16)
    sources = (log, SnapshotEvents(tmp_path / "a"))
    ours, theirs = (join_events(spec, w_hash_KM, source.read(source.ends())) for source in sources)
    assert sources[0].decoder.skipped == sources[1].decoder.skipped and len(ours) == 3 and ours.digest == theirs.digest
    seen: list[list[torch.Tensor]] = [[], []]
    for data, tensors in zip((ours, theirs), seen, strict=True):
        map_tensors(data.batch(np.arange(3)), lambda t, into=tensors: (into.append(t), t)[1])  # type: ignore[misc]
    assert all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in zip(*seen, strict=True))


def test_the_same_offsets_give_the_same_bytes_whatever_was_published_since(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    log = open_log(bootstrap_servers, topic_prefix)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    write_snapshot(tmp_path / "a", log, log.range_now())
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    write_snapshot(tmp_path / "b", log, SnapshotEvents(tmp_path / "a").range)
    write_snapshot(tmp_path / "c", log, log.range_now())
    a, b, c = (files_of(tmp_path / name) for name in "abc")
    assert a == b and a != c
    assert SnapshotEvents(tmp_path / "a").digest == SnapshotEvents(tmp_path / "b").digest
    first = SnapshotEvents(tmp_path / "a")
    assert SnapshotEvents(tmp_path / "c").read(first.ends()).impressions == first.read(first.ends()).impressions


@pytest.mark.parametrize("kind", list(IdKind), ids=str)
def test_topics_of_the_other_kind_of_ids_are_not_written(bootstrap_servers: str, topic_prefix: str, tmp_path: Path, kind: IdKind) -> None:
    other = next(k for k in IdKind if k is not kind)
    log = open_log(bootstrap_servers, topic_prefix, kind)
    publish_shop(bootstrap_servers, topic_prefix, other)
    with pytest.raises(Misconfigured, match=f"id_kind_differs: item-features has {other} ids .* AIF_INDEX__ID_KIND={other}"):
        write_snapshot(tmp_path / "a", log, log.range_now())
    assert not list(tmp_path.iterdir())


def test_of_the_compacted_topic_only_the_last_record_of_each_user_is_taken(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    log = open_log(bootstrap_servers, topic_prefix)
    with Publisher(bootstrap_servers, topic_prefix, "test", 2, 2, IdKind.INT64) as publisher:
        for country in ("UK", "FR", "DE"):
            publisher.publish_user(1, {"country": country})
        publisher.publish_user(2, {"country": "IT"})
    write_snapshot(tmp_path / "a", log, log.range_now())
    kept = SnapshotEvents(tmp_path / "a")
    users = kept.read(kept.ends()).users
    assert sorted((u.user_id, u.features["country"]) for u in users) == [(1, "DE"), (2, "IT")]


def test_an_export_and_a_training_say_what_retention_removed_and_from_when_on_the_data_is_complete(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    log = open_log(bootstrap_servers, topic_prefix)
    for _ in range(2):
        publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    assert log.removed() == []
    begins = {p: 1 for p, end in end_offsets(bootstrap_servers, topic_prefix + ITEM_FEATURES).items() if end > 1}
    last = {p: end for p, end in end_offsets(bootstrap_servers, topic_prefix + IMPRESSIONS).items() if end}
    delete_records(bootstrap_servers, {(topic_prefix + ITEM_FEATURES, p): n for p, n in begins.items()})
    delete_records(bootstrap_servers, {(topic_prefix + IMPRESSIONS, p): n for p, n in last.items()})
    oldest_ms = [next(read_topic(bootstrap_servers, ITEM_FEATURES, start={p: 1}, prefix=topic_prefix)).timestamp_ms for p in begins]
    wanted = [RemovedRecords(ITEM_FEATURES, len(begins), max(oldest_ms)), RemovedRecords(IMPRESSIONS, sum(last.values()), None)]
    assert begins and sorted(log.removed(), key=str) == sorted(wanted, key=str)
    write_snapshot(tmp_path / "a", log, log.range_now())
    assert sorted(SnapshotEvents(tmp_path / "a").removed(), key=str) == sorted(wanted, key=str)
    environment = {"AIF_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers, "AIF_KAFKA__TOPIC_PREFIX": topic_prefix, **INDEX}
    shown = CliRunner().invoke(build_app(), ["export", str(tmp_path / "b"), "--json"], env=environment)
    assert shown.exit_code == 0 and f"warning: {ITEM_FEATURES}: retention removed the first {len(begins)} records" in shown.stderr
    assert f"{IMPRESSIONS}: retention removed all" in json.loads(shown.stdout)["removed"][IMPRESSIONS]


def test_an_export_that_the_disk_refuses_leaves_nothing_and_names_its_folder(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    log = open_log(bootstrap_servers, topic_prefix)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    now = log.range_now()
    with files_of_at_most(500), pytest.raises(OSError, match=str(tmp_path / "a")):
        write_snapshot(tmp_path / "a", log, now)
    assert not list(tmp_path.iterdir())


def test_a_changed_file_an_old_form_and_a_folder_that_is_there_are_refused(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    log = open_log(bootstrap_servers, topic_prefix)
    now = log.range_now()
    write_snapshot(tmp_path / "a", log, now)
    with pytest.raises(Misconfigured, match="snapshot_exists"):
        write_snapshot(tmp_path / "a", log, now)
    with (tmp_path / "a" / "impressions.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Corrupted, match=r"impressions\.parquet"):
        SnapshotEvents(tmp_path / "a").read(now.ends)
    (tmp_path / "a" / "snapshot.json").write_text('{"format": 99}')
    with pytest.raises(Corrupted, match="format 99"):
        SnapshotEvents(tmp_path / "a")
    with pytest.raises(Corrupted, match="aif export"):
        SnapshotEvents(tmp_path)
