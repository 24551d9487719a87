"""The worker's numbers have the right values, not only the right names."""

from collections import Counter
from pathlib import Path

import pytest

from infra.metrics import Metrics
from infra.rocks import DiskFacts
from schemas.errors import Unavailable
from schemas.ids import partition_of
from schemas.index.manifest import WORK_SKIPPED
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.shard_state import TopicCounts
from streams.shard.batch_result import BatchResult
from streams.shard.shard import Shard, open_shard
from streams.shard.task import ShardTask
from streams.worker import read_shards
from streams.worker_metrics import LagClock, WorkerMetrics
from tests.streams.shard_world import INIT, SHARDS, ManualClock, features_record, upsert

OTHER = next(i for i in range(100) if partition_of(i, SHARDS) == 1)


def shown(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_batch_is_counted_by_topic_disposition_and_work() -> None:
    metrics = Metrics()
    result = BatchResult(
        counts={ITEM_FEATURES: TopicCounts(10, 6, 3, 1)},
        work=Counter(rows_encoded=4, rows_rewritten=2, skipped_identical=5, skipped_no_features=1, rows_removed=9),
        dead_letters=Counter({(ITEM_FEATURES, "schema"): 1}),
    )
    worker = WorkerMetrics(metrics)
    for _ in range(2):
        worker.count(3, result, 0.25)
    place = {"topic": ITEM_FEATURES, "shard": "3"}
    assert shown(metrics, "aif_updates_consumed_total", **place) == 20
    assert shown(metrics, "aif_updates_applied_total", **place) == 12
    assert shown(metrics, "aif_updates_superseded_total", **place) == 6
    assert shown(metrics, "aif_dead_letters_total", topic=ITEM_FEATURES, disposition="schema") == 2
    assert shown(metrics, "aif_rows_encoded_total", shard="3") == 8
    skipped = {cause: shown(metrics, "aif_work_skipped_total", shard="3", cause=cause) for cause in WORK_SKIPPED}
    assert skipped == {"rows_rewritten": 4, "skipped_identical": 10, "skipped_no_features": 2, "build_taken_over": None}
    assert shown(metrics, "aif_micro_batch_seconds_sum", shard="3") == 0.5
    assert shown(metrics, "aif_micro_batch_seconds_count", shard="3") == 2


def test_lag_is_against_the_end_of_the_partition_and_disappears_with_the_shard() -> None:
    metrics = Metrics()
    worker = WorkerMetrics(metrics)
    ends = {f"p.{ITEM_FEATURES}": {0: 10, 1: 4}, f"p.{NEW_ITEMS}": {0: 0, 1: 0}}
    held = [(0, {ITEM_FEATURES: 7, NEW_ITEMS: 0}), (1, {ITEM_FEATURES: 4, NEW_ITEMS: 0})]
    worker.show_offsets("p.", held, ends.__getitem__, 100.0)
    worker.show_offsets("p.", held, ends.__getitem__, 105.0)
    first, second = {"topic": ITEM_FEATURES, "shard": "0"}, {"topic": ITEM_FEATURES, "shard": "1"}
    assert (shown(metrics, "aif_shard_offset", **first), shown(metrics, "aif_lag_records", **first)) == (7, 3)
    assert (shown(metrics, "aif_lag_seconds", **first), shown(metrics, "aif_lag_seconds", **second)) == (5, 0)
    worker.show_offsets("p.", held[1:], ends.__getitem__, 106.0)
    assert shown(metrics, "aif_lag_seconds", **first) is None and shown(metrics, "aif_lag_records", **second) == 0
    worker.show_offsets("p.", [], ends.__getitem__, 107.0)
    assert shown(metrics, "aif_shard_offset", **second) is None


def test_a_shard_whose_disk_is_full_is_named_and_its_lag_and_that_of_the_others_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets stand still while it waits: the previous numbers for all shards said that nothing was behind."""
    metrics, clock = Metrics(), ManualClock()
    tasks = [ShardTask(open_shard(tmp_path / str(n), n, INIT, clock), clock, lambda _: None) for n in (0, 1)]
    facts = tasks[0].submit(lambda shard: shard.database.facts()).result()
    before = read_shards(tasks, {})
    assert before == {n: (dict.fromkeys((ITEM_FEATURES, NEW_ITEMS), 0), facts) for n in (0, 1)}

    def fail(_: Shard) -> None:
        raise Unavailable("disk_full", "no space left on device")

    monkeypatch.setattr(Shard, "recover", fail)
    with pytest.raises(Unavailable):
        tasks[0].submit(fail).result()
    tasks[1].submit(lambda shard: shard.apply([features_record(0, upsert(OTHER, 1), partition=1)])).result()
    held = read_shards(tasks, before)
    assert [offsets[ITEM_FEATURES] for offsets, _ in held.values()] == [0, 1]
    worker = WorkerMetrics(metrics)
    worker.show_disk_faults({task.number: task.waits_for_disk for task in tasks})
    assert [shown(metrics, "aif_shard_disk_fault", shard=n) for n in "01"] == [1, 0]
    monkeypatch.undo()
    clock.seconds += 1
    read_shards(tasks, held)
    worker.show_disk_faults({task.number: task.waits_for_disk for task in tasks[:1]})
    assert [shown(metrics, "aif_shard_disk_fault", shard=n) for n in "01"] == [0, None]
    for task in tasks:
        task.close()


def test_how_long_the_broker_is_silent_grows_until_it_answers() -> None:
    metrics, clock = Metrics(), ManualClock()
    worker = WorkerMetrics(metrics, clock)
    clock.seconds = 7.0
    assert shown(metrics, "aif_broker_silent_seconds") == 7
    worker.note_answer()
    assert shown(metrics, "aif_broker_silent_seconds") == 0


def test_lag_seconds_are_of_the_oldest_record_that_is_not_applied_also_while_records_keep_coming() -> None:
    clock = LagClock()
    assert clock.lag_s(0, 0, 1.0) == 0
    assert clock.lag_s(0, 5, 2.0) == 0  # seen now
    assert clock.lag_s(0, 9, 4.0) == 2
    assert clock.lag_s(5, 9, 5.0) == 1  # the second lot came at 4.0
    assert clock.lag_s(9, 9, 9.0) == 0
    assert clock.lag_s(9, 10, 1_000.0) == 0  # a quiet topic is not a late one


def test_versions_builds_and_refused_checkpoints_are_shown() -> None:
    metrics = Metrics()
    worker = WorkerMetrics(metrics)
    assert shown(metrics, "aif_version_wanted") == -1
    worker.show_versions(4, (), [0.5, 2.0], {"unreachable": 2})
    worker.show_versions(4, (), [], {"unreachable": 3})
    assert shown(metrics, "aif_version_wanted") == 4
    assert shown(metrics, "aif_build_seconds_sum") == 2.5 and shown(metrics, "aif_build_seconds_count") == 2
    assert shown(metrics, "aif_checkpoints_rejected_total", reason="unreachable") == 3


def test_a_records_age_is_from_its_time_to_the_moment_it_was_written_in_seconds_and_the_future_is_flagged() -> None:
    metrics, clock = Metrics(), ManualClock()
    clock.seconds = 100.0
    result = BatchResult(stage_s={"decode": 0.5, "write": 0.25}, record_times_ms={ITEM_FEATURES: [99_000, 99_500, 100_900, 102_500]})
    WorkerMetrics(metrics, clock).count(0, result, 1.0)
    assert shown(metrics, "aif_stored_seconds_count", topic=ITEM_FEATURES) == 4
    assert shown(metrics, "aif_stored_seconds_sum", topic=ITEM_FEATURES) == 1.5
    assert shown(metrics, "aif_clock_ahead_total", topic=ITEM_FEATURES) == 1
    assert shown(metrics, "aif_batch_stage_seconds_sum", stage="decode") == 0.5


def test_the_size_of_a_shard_disappears_with_it_and_every_state_is_shown() -> None:
    metrics = Metrics()
    worker = WorkerMetrics(metrics)
    worker.show_disk({0: DiskFacts(5, 100, 7, 9), 1: DiskFacts(1, 2, 3, 4)})
    worker.show_disk({1: DiskFacts(1, 2, 4, 5)})
    assert shown(metrics, "aif_shard_bytes", shard="0") is None
    assert shown(metrics, "aif_shard_compaction_debt_bytes", shard="1") == 4 and shown(metrics, "aif_shard_keys", shard="1") == 1
    worker.show_versions(None, ["live", "frozen", "frozen"], (), {})
    assert [shown(metrics, "aif_versions", state=s) for s in ("live", "frozen", "backup")] == [1, 2, 0]
