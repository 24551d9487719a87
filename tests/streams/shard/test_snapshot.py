"""Snapshots of shards: put, found, restored; a new owner starts from them, and every source that does not fit is refused by name."""

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from infra.index.removal import read_store_content, remove_due
from infra.index.store import FolderStore, IndexStore, open_index_store
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.index.control import ControlState, Init
from schemas.index.manifest import describe_repair
from schemas.index.retention import RetentionRules, plan_removals
from schemas.index.shard_snapshot import ShardSnapshot, snapshot_manifest_path
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.shard_state import encode_identity
from streams.shard.log_ends import LogRange
from streams.shard.shard import Shard
from streams.shard.snapshot_files import list_snapshots, restore_snapshot, write_snapshot
from streams.shard.start import start_shard
from streams.shard.task import ShardTask
from tests.streams.shard_world import (
    INIT,
    ITEMS,
    HashEncoder,
    ManualClock,
    embed,
    everything,
    features_record,
    new_items_record,
    open_test_shard,
    upsert,
)
from tests.streams.version_world import Worker, World

CUT = {ITEM_FEATURES: LogRange(2, 9), NEW_ITEMS: LogRange(1, 9)}  # the head of the log is gone
WHOLE = {ITEM_FEATURES: LogRange(0, 9), NEW_ITEMS: LogRange(0, 9)}
RECORDS = [
    features_record(0, upsert(ITEMS[0], 1, price=1.0)),
    new_items_record(0, embed(ITEMS[0], 1.0)),
    features_record(1, upsert(ITEMS[1], 1)),
    features_record(2, upsert(ITEMS[2], 1), upsert(ITEMS[0], 2, price=4.0)),
    new_items_record(1, embed(ITEMS[2], 2.0)),
]


@pytest.fixture
def store(tmp_path: Path) -> IndexStore:
    return open_index_store(str(tmp_path / "store"))


def take(store: IndexStore, shard: Shard, scratch: Path) -> ShardSnapshot:
    shard.create_checkpoint(scratch)
    snapshot = write_snapshot(store, 0, encode_identity(0, INIT).decode(), scratch)
    shutil.rmtree(scratch)
    return snapshot


@pytest.fixture
def snapshot(store: IndexStore, tmp_path: Path) -> ShardSnapshot:
    """Of a shard that had applied three of the five records; the shard went on afterwards, and its directory is lost."""
    shard = open_test_shard(tmp_path / "first")
    shard.apply(RECORDS[:3])
    taken = take(store, shard, tmp_path / "scratch")
    shard.apply(RECORDS[3:])
    shard.close()
    return taken


def start(directory: Path, store: IndexStore, log: Mapping[str, LogRange] = CUT, init: Init = INIT) -> Shard:
    return start_shard(directory, 0, init, "index", ManualClock(), log, store)


def test_a_new_owner_starts_from_a_snapshot_and_the_rest_of_the_log_gives_the_same_shard(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    shard = start(tmp_path / "second", store)
    assert shard.next_offsets == snapshot.next_offsets == {ITEM_FEATURES: 2, NEW_ITEMS: 1}
    shard.apply(RECORDS[3:])
    first = open_test_shard(tmp_path / "first")
    assert everything(shard) == everything(first)
    shard.close()
    first.close()
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_store_s_files_stay_what_they_were_though_shards_live_on_links_to_them(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    shard = start(tmp_path / "second", store)
    shard.apply(RECORDS[3:])
    shard.database.flush()
    shard.close()
    start(tmp_path / "third", store).close()
    restore_snapshot(store, snapshot, tmp_path / "fourth")


def test_every_file_of_an_older_snapshot_goes_though_newer_ones_link_the_same_files(store: IndexStore, tmp_path: Path) -> None:
    shard, rules = open_test_shard(tmp_path / "first"), RetentionRules(1, grace_ms=1_000, keep_snapshots=1)
    shard.apply(RECORDS)
    shard.database.flush()
    oldest, second, newest = (take(store, shard, tmp_path / "scratch") for _ in range(3))
    shard.close()
    later_ms = store.stat(snapshot_manifest_path(0, second.unique)).put_ms + 9_000
    for path in (f.path for f in store.list_files(f"{newest.directory}/")):
        os.utime(store.local_path(path), ns=(later_ms * 1_000_000, later_ms * 1_000_000))
    assert max(f.put_ms for f in store.list_files(f"{oldest.directory}/")) == later_ms  # the time of the last link
    planned = plan_removals(ControlState(), read_store_content(store, ControlState()), rules)
    remove_due(store, planned, later_ms, rules, {0})
    assert [f.snapshot for f in list_snapshots(store, 0)[0]] == [newest, second]
    assert not store.list(f"{oldest.directory}/")


def test_of_several_snapshots_the_one_with_the_least_to_replay_is_taken_and_damaged_ones_are_passed_over(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    shard = open_test_shard(tmp_path / "first")
    newer = take(store, shard, tmp_path / "scratch")
    shard.close()
    assert [f.snapshot for f in list_snapshots(store, 0)[0]] == [newer, snapshot]
    assert isinstance(store, FolderStore)
    table = next(store.local_path(f"{newer.directory}/files/{f.name}") for f in newer.files if f.name.endswith(".sst"))
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 2] ^= 1
    table.unlink()  # the shard's own directory links it too
    table.write_bytes(raw)
    with pytest.raises(Corrupted, match="bad_snapshot_file"):
        restore_snapshot(store, newer, tmp_path / "x")
    started = start(tmp_path / "second", store)
    assert started.next_offsets == snapshot.next_offsets
    started.close()


def test_a_store_that_does_not_answer_is_no_damaged_snapshot(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start would be refused for good (`log_gone`), or begin at offset 0."""

    def fail(path: str, bytes_max: int = 0) -> bytes:
        raise Unavailable("store_unreadable", f"{path}: EIO")

    monkeypatch.setattr(store, "get", fail)
    for log in (CUT, WHOLE):
        with pytest.raises(Unavailable, match="store_unreadable"):
            start(tmp_path / "second", store, log)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("lost", ["file", "manifest"])
def test_half_of_a_snapshot_is_none(lost: str, store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path) -> None:
    name = f"files/{snapshot.files[0].name}" if lost == "file" else "snapshot.json"
    store.remove(f"{snapshot.directory}/{name}")
    with pytest.raises(Incompatible, match="log_gone") as refused:
        start(tmp_path / "second", store)
    assert ("missing_file" if lost == "file" else "has no snapshot") in str(refused.value)
    assert not (tmp_path / "second").exists()
    from_0 = start(tmp_path / "second", store, WHOLE)
    assert from_0.next_offsets == {ITEM_FEATURES: 0, NEW_ITEMS: 0}
    from_0.close()


@pytest.mark.parametrize("remedy", ["restore", "remove"])
def test_the_remedies_that_messages_about_snapshots_name_work(
    remedy: str, store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    folder, away = Path(store.url) / snapshot.directory, tmp_path / "copy-of-the-snapshot"
    if remedy == "restore":
        folder.rename(away)
        with pytest.raises(Incompatible, match="restore a snapshot into the index store"):
            start(tmp_path / "second", store)
        away.rename(folder)
    else:
        newer = folder.with_name("another-snapshot")
        shutil.copytree(folder, newer)
        (newer / "files" / snapshot.files[0].name).unlink()
        assert "remove the snapshot's folder" in describe_repair(f"snapshots/{newer.name}/files/x")
        shutil.rmtree(newer)
    shard = start(tmp_path / "second", store)
    assert shard.next_offsets == snapshot.next_offsets
    shard.close()


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ({ITEM_FEATURES: LogRange(3, 9), NEW_ITEMS: LogRange(0, 9)}, "the log starts at 3"),
        ({ITEM_FEATURES: LogRange(1, 1), NEW_ITEMS: LogRange(0, 9)}, "the log ends at 1"),
    ],
)
def test_a_snapshot_that_the_log_does_not_complete_is_refused_with_both_offsets(
    log: Mapping[str, LogRange], reason: str, store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    with pytest.raises(Incompatible, match=f"log_gone.*{snapshot.unique}.*{reason}"):
        start(tmp_path / "second", store, log)


@pytest.mark.parametrize(
    "other",
    [dataclasses.replace(INIT, shards=3), dataclasses.replace(INIT, topic_ids={**INIT.topic_ids, NEW_ITEMS: "another"})],
)
def test_a_snapshot_of_another_index_is_refused_by_what_it_belongs_to(
    other: Init, store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    with pytest.raises(Incompatible, match=r"log_gone.*it belongs to"):
        start(tmp_path / "second", store, init=other)


def test_a_directory_that_needs_lost_records_gives_way_to_a_snapshot_and_is_kept_aside(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path
) -> None:
    old = open_test_shard(tmp_path / "second")
    old.apply(RECORDS[:1])
    old.close()
    shard = start(tmp_path / "second", store)
    assert shard.next_offsets == snapshot.next_offsets
    shard.close()
    assert (tmp_path / "second.damaged-1").is_dir()


def test_a_damaged_directory_gives_way_to_a_snapshot(store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "CURRENT").write_bytes(b"\x00garbage")
    shard = start(tmp_path / "second", store, WHOLE)
    assert shard.next_offsets == snapshot.next_offsets
    shard.close()


def test_a_table_that_does_not_read_while_it_is_used_is_set_aside_at_the_next_start_and_its_snapshot_not_taken_again(
    store: IndexStore, tmp_path: Path
) -> None:
    """Opening reads the first row. Without the mark each start would meet the same block again, and so would a directory that begins as the same snapshot."""
    directory = tmp_path / "s"
    records = [features_record(n, *(upsert(item, n, brand=str((n + item + 2) ** 150)) for item in ITEMS)) for n in (0, 1)]
    with closing(start(directory, store, WHOLE)) as shard:
        shard.apply(records[:1])
        shard.database.flush()
        table = max(directory.glob("*.sst"), key=lambda p: p.stat().st_size)
        table.write_bytes(table.read_bytes()[:5000] + b"damage" + table.read_bytes()[5006:])
        snapshot = take(store, shard, tmp_path / "scratch")
    shutil.rmtree(directory)
    task = ShardTask(start(directory, store, WHOLE), ManualClock(), lambda _: None)
    task.admit()
    with pytest.raises(Corrupted, match="database_corrupted"):
        asyncio.run(task.apply(records[1:]))
    task.close()
    with pytest.raises(Incompatible, match=f"log_gone.*{snapshot.directory}: .*s.damaged-1, which began as it, is damaged"):
        start(directory, store, {ITEM_FEATURES: LogRange(1, 9), NEW_ITEMS: LogRange(0, 9)})
    with closing(start(directory, store, WHOLE)) as shard, closing(open_test_shard(tmp_path / "other")) as other:
        shard.apply(records)
        other.apply(records)
        assert everything(shard) == everything(other)


def test_a_store_that_does_not_answer_is_waited_for_and_never_taken_for_an_empty_one(
    store: IndexStore, snapshot: ShardSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("store_unreadable", "no answer")

    monkeypatch.setattr(FolderStore, "fetch", fail)
    with pytest.raises(Unavailable, match="store_unreadable"):
        start(tmp_path / "second", store, WHOLE)
    assert not (tmp_path / "second").exists()


def test_a_shard_that_was_set_back_seals_only_after_it_caught_up_with_the_log(store: IndexStore, tmp_path: Path) -> None:
    shard = open_test_shard(tmp_path / "first")
    shard.start_version(HashEncoder(7), {ITEM_FEATURES: 0, NEW_ITEMS: 0})
    shard.apply(RECORDS[:3])
    take(store, shard, tmp_path / "scratch")
    shard.close()
    back = start(tmp_path / "second", store)
    assert back.versions[7].want_end_offsets == {ITEM_FEATURES: 9, NEW_ITEMS: 9}
    back.close()


def test_workers_without_the_directory_carry_a_live_version_on_from_a_snapshot(world: World, tmp_path: Path) -> None:
    """The version was wanted, built and served after the snapshot; its readers get every row again and none goes back."""
    world.publish_items(*(upsert(i, 1, category=i % 5, price=1.0 + i) for i in range(80)))
    worker = Worker(world)
    worker.settle()
    assert len(list_snapshots(world.store, 0)[0]) == 1
    world.want(4)
    worker.settle()
    world.publish_items(upsert(3, 9, price=8.0), upsert(900, 1, price=2.0))
    worker.step()
    worker.close()
    (tmp_path / "shard-0").rename(tmp_path / "lost")
    at = list_snapshots(world.store, 0)[0][0].snapshot.next_offsets
    ends = world.sources_end(0)
    log = {topic: LogRange(at[topic], ends[topic]) for topic in ends}
    start_shard(tmp_path / "shard-0", 0, world.init, "index", world.clock, log, world.store).close()
    worker = Worker(world)
    world.publish_items(upsert(4, 9, price=7.0))
    worker.settle()
    assert world.reader(4) == world.oracle(4)
