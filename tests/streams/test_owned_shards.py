"""The shards that a worker owns: offsets, batches and seeks while they come and go."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.index.store import open_index_store
from schemas.errors import Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState, Init
from schemas.topics import ITEM_FEATURES, MODEL_CHECKPOINTS, SHARD_TOPICS
from streams.core.batching import Partition
from streams.owned_shards import OwnedShards
from streams.shard.start import LogRange
from streams.shard.task import ShardTask
from tests.streams.shard_world import ManualClock

INDEX = ControlState(init=Init(1, 4, IdKind.INT64, {}))


def open_owned(folder: Path) -> OwnedShards:
    store, clock = open_index_store(str(folder / "store")), ManualClock()
    return OwnedShards(
        "nowhere:9", "aif.", folder, INDEX, clock, lambda shard: ShardTask(shard, clock, lambda _: None), lambda: 7, lambda: None, store
    )


def partitions(*shards: int) -> frozenset[Partition]:
    return frozenset((topic, shard) for topic in SHARD_TOPICS for shard in shards)


def test_nobody_waits_for_a_store_that_is_away_from_the_moment_partitions_are_given_away_until_they_are_open_again(tmp_path: Path) -> None:
    owned = open_owned(tmp_path)
    assert not owned.closing.is_set()
    owned.suspend()
    assert owned.closing.is_set()
    assert asyncio.run(owned.open_partitions(frozenset({(MODEL_CHECKPOINTS, 0)}), 1)) == {(MODEL_CHECKPOINTS, 0): 7}
    assert not owned.closing.is_set()


def test_records_of_a_shard_are_taken_only_while_it_is_open_and_admitted(tmp_path: Path) -> None:
    """A worker that had no shard, and so was reading, fetched records of one that it was still opening: Faust ended at them, and with it the process."""
    owned = open_owned(tmp_path)
    assert [owned.takes((topic, 0)) for topic in (ITEM_FEATURES, MODEL_CHECKPOINTS)] == [False, True]
    for admitted in (False, True):
        owned._tasks = {0: SimpleNamespace(admitted=admitted)}  # type: ignore[dict-item]
        assert owned.takes((ITEM_FEATURES, 0)) is admitted


def test_a_shard_that_stays_in_the_next_generation_is_not_closed_and_one_that_another_worker_may_have_had_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {topic: dict.fromkeys(range(3), LogRange(0, 0)) for topic in SHARD_TOPICS}
    monkeypatch.setattr("streams.owned_shards.fetch_log_ranges", lambda *_: log)
    owned, turned_away = open_owned(tmp_path), "shard_closed"

    async def assign(shards: Iterable[int], generation: int) -> dict[int, ShardTask]:
        """The tasks after an assignment; all of them are admitted."""
        owned.suspend()
        offsets = await owned.open_partitions(partitions(*shards), generation)
        assert offsets == dict.fromkeys(partitions(*shards), 0)
        for task in owned.tasks:
            task.admit()
        return {task.number: task for task in owned.tasks}

    async def run() -> None:
        first = await assign([0, 1], 5)
        owned.suspend()
        with pytest.raises(Unavailable) as error:
            await first[0].apply([])
        assert error.value.code == turned_away
        second = await assign([1, 2], 6)
        assert second[1] is first[1] and sorted(second) == [1, 2]
        await second[1].apply([])
        with pytest.raises(Unavailable) as error:
            first[0].submit(lambda shard: shard.next_offsets)
        assert error.value.code == turned_away, "the shard that went is closed"
        skipped = await assign([1, 2], 8)
        assert skipped[1] is not second[1] and skipped[2] is not second[2], "another worker may have had them in generation 7"
        owned.suspend()
        monkeypatch.setattr("streams.owned_shards.fetch_log_ranges", fail)
        with pytest.raises(Unavailable, match="no broker"):
            await owned.open_partitions(partitions(1, 2, 0), 9)
        monkeypatch.setattr("streams.owned_shards.fetch_log_ranges", lambda *_: log)
        again = await owned.open_partitions(partitions(1, 2, 0), 9)
        assert {task.number: task for task in owned.tasks}[1] is skipped[1] and len(again) == 6, (
            "an attempt that failed closes nothing that stays"
        )
        await owned.close_partitions()

    asyncio.run(run())


def fail(*_: object) -> None:
    raise Unavailable("kafka_unreachable", "no broker")


def test_a_shard_that_was_not_admitted_yet_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that waits for its admission can be turned away only by the end of the task."""
    monkeypatch.setattr("streams.owned_shards.fetch_log_ranges", lambda *_: {topic: {0: LogRange(0, 0)} for topic in SHARD_TOPICS})
    owned = open_owned(tmp_path)

    async def run() -> None:
        await owned.open_partitions(partitions(0), 5)
        (first,) = owned.tasks
        waiting = asyncio.create_task(first.apply([]))
        await asyncio.sleep(0)
        owned.suspend()
        with pytest.raises(Unavailable, match="another owner"):
            await waiting
        await owned.open_partitions(partitions(0), 6)
        (second,) = owned.tasks
        assert second is not first and not second.admitted
        await owned.close_partitions()

    asyncio.run(run())
