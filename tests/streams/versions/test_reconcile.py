"""A version's life through real shards and a real store: build, seal, publish, promote, revise, and what must not go wrong."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from infra.clock import SystemClock
from infra.index.control_folds import control_path
from infra.index.store import FolderStore
from schemas.index.control import Entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import UNIQUE_DIGITS, Part, Seal, checked_name, encode_seal, seal_path
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.builders.jobs import BuildJob, BuildResult
from streams.shard.log_ends import LogRange
from streams.shard.start import start_shard
from streams.versions.attempts import Attempts
from streams.versions.shard_versions import _accept_full
from tests.schemas.index.entries import raw_entry
from tests.streams.shard_world import ITEMS, HashEncoder, delete, embed, features_record, open_test_shard, upsert
from tests.streams.version_world import Worker, World


def fill(world: World, items: int = 600, version: int = 1) -> None:
    """Items with everything: some without an embedding, some deleted."""
    for start in range(0, items, 100):
        world.publish_items(*(upsert(i, version, category=i % 7, price=1.0 + i, stock=version) for i in range(start, start + 100)))
    world.publish_embeddings(*(embed(i, *(float((i * k) % 11 - 5) for k in range(1, 7))) for i in range(0, min(items, 400), 3)))
    world.publish_items(*(delete(i, version) for i in range(0, items, 50)))


def go_live(world: World) -> Worker:
    """A worker with version 1 live, of 100 items."""
    worker = Worker(world)
    fill(world, 100)
    worker.settle()
    world.want(1)
    worker.settle()
    return worker


def test_a_wanted_version_goes_live_with_the_digest_of_the_plain_oracle(world: World, worker: Worker) -> None:
    fill(world)
    worker.settle()
    world.want(4)
    worker.settle()
    state = world.state
    assert state.live == 4 and state.versions[4].state is State.LIVE
    manifest = world.manifest(4)
    assert (manifest.digest, manifest.data_digest) == world.oracle(4) == world.reader(4)
    assert manifest.seals[0].full.rows == manifest.rows == 588
    assert {e.kind for e in worker.events} == {"building", "built", "sealed", "published", "promoted"}


def test_a_table_of_a_shard_that_does_not_read_in_a_build_is_named_and_the_next_start_sets_the_directory_aside(
    world: World, worker: Worker
) -> None:
    fill(world)
    worker.settle()
    shard = worker.tasks[0].shard
    shard.database.flush()
    table = max(shard.database.path.glob("*.sst"), key=lambda p: p.stat().st_size)
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 3] ^= 8
    table.write_bytes(raw)
    world.want(4)
    news = [text for _ in range(5) for text in worker.step().news]
    named = next(text for text in news if text.startswith("result of the build of version 4, shard 0: database_corrupted: "))
    assert "the next start of this worker does so with shard 0" in named
    log = {topic: LogRange(0, end) for topic, end in world.sources_end(0).items()}
    worker.close()
    with closing(start_shard(shard.database.path, 0, world.init, "index", world.clock, log, world.store)) as rebuilt:
        assert set(rebuilt.next_offsets.values()) == {0} and shard.database.path.with_name("shard-0.damaged-1").is_dir()


def test_a_version_over_zero_items_goes_live_and_fills_by_deltas(world: World, worker: Worker) -> None:
    world.want(0)
    worker.settle()
    assert world.state.live == 0 and world.manifest(0).rows == 0
    fill(world, 100)
    worker.step()
    assert world.reader(0) == world.oracle(0)


def test_updates_that_arrive_at_any_step_of_the_build_are_in_the_version(world: World, worker: Worker) -> None:
    fill(world)
    worker.settle()
    world.want(4)
    for n in range(1, 8):
        worker.step()
        world.publish_items(upsert(10 * n, 2, category=n, price=0.5), delete(10 * n + 1, 2), upsert(1000 + n, 1, price=2.0))
        world.publish_embeddings(embed(10 * n, *range(n, n + 6)))
    worker.settle()
    manifest = world.manifest(4)
    seal = manifest.seals[0]
    assert seal.incremental.rows > 0 and seal.incremental.tombstones > 0
    at_seal = world.oracle_shard(0, 4, seal.source_offsets)
    assert (seal.digest, seal.data_digest, seal.rows) == (at_seal.hexdigest, at_seal.data_hexdigest, at_seal.rows)
    assert world.reader(4) == world.oracle(4)


def test_a_shard_seals_only_after_it_applied_what_was_there_when_it_saw_the_version(world: World, worker: Worker) -> None:
    worker.settle()
    fill(world, 100)
    world.want(4)
    task = worker.tasks[0]
    task.consume = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        worker.step()
    assert world.state.versions[4].state is State.WANTED
    del task.consume  # type: ignore[method-assign]
    worker.step()
    worker.settle()
    assert world.manifest(4).seals[0].source_offsets == world.sources_end(0)


def test_a_second_version_makes_the_first_the_backup_and_the_third_freezes_it(world: World, worker: Worker) -> None:
    fill(world, 100)
    worker.settle()
    for version, seed in ((1, 0), (2, 1), (5, 0)):
        world.want(version, seed)
        worker.settle()
        world.publish_items(upsert(7, version + 5, price=3.0))
        worker.step()
    state = world.state
    assert {v: s.state for v, s in state.versions.items()} == {1: State.FROZEN, 2: State.BACKUP, 5: State.LIVE}
    assert set(worker.tasks[0].shard.versions) == {2, 5}
    assert world.reader(2) == world.oracle(2, 1)


def test_a_revision_reuses_the_full_part_and_needs_no_old_delta(world: World) -> None:
    worker = Worker(world, reseal_interval_s=1e12)
    fill(world, 100)
    worker.settle()
    world.want(4)
    worker.settle()
    first = world.manifest(4)
    world.publish_items(upsert(3, 9, price=8.0), delete(4, 9))
    worker.settle()
    worker.close()
    worker = Worker(world, reseal_interval_s=-1e12)  # due at once
    for _ in range(4):
        worker.step()
    worker.close()
    second = world.manifest(4)
    assert second.revision > first.revision and second.seals[0].full == first.seals[0].full
    assert second.seals[0].delta_position == world.deltas_end(0) > first.seals[0].delta_position
    assert world.reader(4) == world.oracle(4) == (second.digest, second.data_digest)


def test_a_step_that_finds_nothing_to_do_asks_the_store_once_what_is_new(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.settle()
    new, asked, get = control_path(world.state.next_number), list[str](), FolderStore.get

    def counted(store: FolderStore, path: str, *bounds: int) -> bytes:
        asked.append(path)
        return get(store, path, *bounds)

    monkeypatch.setattr(FolderStore, "get", counted)
    assert not worker.step().done and asked == [new]


def test_an_aborted_build_leaves_the_shard_and_the_next_version_is_built(world: World, worker: Worker) -> None:
    fill(world, 100)
    worker.settle()
    world.want(4)
    worker.step()
    assert 4 in worker.tasks[0].shard.versions
    world.write(Entry(EntryKind.ABORT, 0, version=4))
    world.want(5, 1)
    worker.settle()
    assert set(worker.tasks[0].shard.versions) == {5} and world.state.live == 5


def test_held_means_published_but_not_promoted(world: World, worker: Worker) -> None:
    world.write(Entry(EntryKind.HOLD, 0))
    world.want(4)
    worker.settle()
    assert world.state.live is None and world.state.versions[4].state is State.PUBLISHED
    world.write(Entry(EntryKind.RELEASE, 0))
    worker.settle()
    assert world.state.live == 4


def test_a_version_of_another_encoder_is_behind_and_takes_no_rows(world: World, worker: Worker) -> None:
    world.want(4, fingerprint="another machine")
    fill(world, 100)
    for _ in range(4):
        worker.step()
    assert worker.tasks[0].shard.versions[4].behind
    assert worker.tasks[0].shard.next_offsets == world.sources_end(0)
    assert not world.store.list("versions/")
    assert [e.kind for e in worker.events] == ["behind"]


def test_a_seal_of_another_encoder_gets_into_no_manifest(world: World, worker: Worker) -> None:
    """It would be the best by its position: a worker sealed the shard before its host was upgraded in the midst of a build."""
    nothing = Part("", (), 0)
    foreign = Seal(0, nothing, nothing, 1_000, world.sources_end(0), 0, "", "", "another machine")
    world.want(0)
    raw = encode_seal(foreign)
    world.store.put_bytes(seal_path(0, 0, 0, checked_name("0" * UNIQUE_DIGITS, raw)), raw)
    worker.settle()
    (seal,) = world.manifest(0).seals
    assert (seal.delta_position, seal.encoder_fingerprint) == (0, world.state.versions[0].encoder_fingerprint)


@pytest.mark.parametrize("damage", [lambda raw: raw.replace(b'"delta_position":', b'"delta_position":1'), lambda raw: raw[:-20], None])
def test_a_seal_that_the_store_has_changed_or_lost_is_named_and_made_again(
    damage: Callable[[bytes], bytes] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One digit further, and its readers would go on behind rows that they have not got."""
    put, damaged = FolderStore.put_bytes, list[str]()

    def put_damaged(store: FolderStore, path: str, data: bytes) -> None:
        is_first = "/seals/" in path and not damaged
        damaged.extend([path] if is_first else [])
        if not is_first:
            put(store, path, data)
        elif damage is not None:
            assert damage(data) != data
            put(store, path, damage(data))

    world = World(tmp_path, shards=2)
    fill(world, 100)
    with closing(Worker(world, (0, 1))) as worker:
        worker.settle()
        monkeypatch.setattr(FolderStore, "put_bytes", put_damaged)
        world.want(4)
        reports = [worker.step() for _ in range(8)]
        worker.settle()
        assert damage is None or any(damaged[0] in text for report in reports for text in report.news)
        assert world.state.live == 4 and world.reader(4) == world.oracle(4)


def test_a_full_part_is_taken_once_and_only_if_the_increments_go_on_where_it_ends(tmp_path: Path) -> None:
    """One that was begun before the version was stopped and started again may lack rows that no increment has (B6)."""
    shard = open_test_shard(tmp_path / "s")
    shard.apply([features_record(0, upsert(ITEMS[0], 1))])
    shard.start_version(HashEncoder(4), {})
    job, part = BuildJob(4, 0, "", "", ""), Part("", (), 0)
    taken = [_accept_full(shard, job, BuildResult(part, {ITEM_FEATURES: at, NEW_ITEMS: 0}, 0)) for at in (0, 1, 1)]
    assert taken == [False, True, False] and shard.versions[4].full == part


def test_an_error_of_one_version_is_reported_and_does_not_stop_the_others(world: World, worker: Worker) -> None:
    fill(world, 100)
    world.want(4)
    worker.settle()
    world.want(6, 1)
    path = next(p for p in world.store.list("checkpoints/") if p != f"checkpoints/{world.manifest(4).checkpoint_sha256}.safetensors")
    world.store.remove(path)
    report = worker.step()
    assert len(report.errors) == 1 and "checkpoint_damaged" in report.errors[0]
    world.publish_items(upsert(7, 9, price=3.0))
    worker.step()
    assert world.reader(4) == world.oracle(4)


def test_a_failed_assertion_is_no_fault_of_a_version_that_is_tried_again_but_ends_the_step(
    world: World, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.want(4)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("two writers of one shard")

    monkeypatch.setattr("streams.shard.shard.Shard.start_version", fail)
    with pytest.raises(AssertionError, match="two writers"):
        worker.step()


def test_a_shard_takes_no_batch_before_every_published_version_is_started(world: World) -> None:
    """A new owner without the directory: rows of everything it applies again must reach the version that servers follow."""
    fill(world, 100)
    world.want(4)
    worker = Worker(world)
    worker.settle()
    worker.close()
    (world.folder / "shard-0").rename(world.folder / "lost")
    worker = Worker(world)
    world.publish_items(upsert(7, 9, price=3.0), delete(8, 9))
    task = worker.tasks[0]
    sha = world.manifest(4).checkpoint_sha256
    data = world.store.get(f"checkpoints/{sha}.safetensors")
    world.store.remove(f"checkpoints/{sha}.safetensors")
    report = worker.step()
    assert not task.admitted and report.errors and report.alarms
    world.store.put_bytes(f"checkpoints/{sha}.safetensors", data)
    world.clock.seconds += 10
    worker.settle()
    assert world.reader(4) == world.oracle(4)


def test_a_log_with_an_entry_that_is_not_known_lets_no_batch_in(world: World, worker: Worker) -> None:
    """It may want a version, and rows of it would be missing."""
    world.store.put_exclusive(control_path(world.state.next_number), raw_entry({"at_ms": 1, "kind": "teleport"}))
    fill(world, items=100)
    report = worker.step()
    assert "teleport" in report.alarms[0] and not report.done and not worker.tasks[0].admitted


def test_the_work_of_a_version_and_what_it_was_spared_is_in_its_seals_by_cause(world: World, worker: Worker) -> None:
    fill(world, 100)
    worker.settle()
    world.want(4)
    worker.settle()
    world.publish_items(upsert(7, 5, category=1, price=3.0), upsert(8, 5, category=1, price=3.0))
    world.publish_items(upsert(7, 6, category=1, price=3.0, stock=5), upsert(8, 6, category=1, price=3.0), delete(9, 9))
    worker.step()
    world.publish_items(upsert(7, 7, category=1, price=3.0, stock=6))
    worker.settle()
    world.write(Entry(EntryKind.WANT, 0, version=4, revision=1, cause="revise"))
    worker.settle()
    work = world.manifest(4).work
    assert work["build_computed"] == 98 and work["build_taken_over"] == 0
    assert work["rows_encoded"] == 2 and work["rows_rewritten"] == 1 and work["rows_removed"] == 1
    assert worker.tasks[0].shard.state.work.keys() == {"4"}


def test_a_step_that_is_cancelled_while_its_shard_is_given_away_is_no_error() -> None:
    step: Future[None] = Future()
    step.cancel()
    attempts = Attempts(SystemClock(), 1.0, lambda _: None)
    attempts.attempt("shard 0", step.result)
    assert attempts.report.errors == []
