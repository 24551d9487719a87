"""A directory that cannot be used is counted again, and a failed attempt leaves nothing open."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

import streams.statistics.owner as owner_module
from schemas.errors import Corrupted, Incompatible
from schemas.statistics import Log, Measure, Statistic
from schemas.topics import IMPRESSIONS, ITEM_FEATURES
from streams.shard.start import mark_damaged
from streams.statistics.owner import TOPICS, TallyOwner
from streams.statistics.tally import Tally
from tests.streams.shard_world import INIT, ManualClock

STATISTICS = {"taken": Statistic(Log.BEHAVIOURS, Measure.EXACT)}
PARTITIONS = frozenset((topic, 0) for topic in TOPICS)


def open_as(monkeypatch: pytest.MonkeyPatch, owner: TallyOwner, start: int) -> tuple[Tally, Mapping[str, int]]:
    """Opens the tally of a log that begins and ends at an offset."""
    for name in ("start_offsets", "end_offsets"):
        monkeypatch.setattr(owner_module, name, lambda *_: {0: start})
    return owner._open(PARTITIONS)


def test_an_attempt_that_fails_frees_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_snapshot(*_: object) -> None:
        raise Incompatible("log_gone", "no snapshot")

    owner = TallyOwner(
        "b",
        "p.",
        tmp_path / "counts",
        lambda path: Tally(path, STATISTICS, INIT, ManualClock()),
        no_snapshot,
        lambda _: None,  # type: ignore[arg-type, return-value]
    )
    with pytest.raises(Incompatible, match="log_gone"):
        open_as(monkeypatch, owner, 5)
    tally, offsets = open_as(monkeypatch, owner, 0)
    assert offsets == {f"{topic}/0": 0 for topic in TOPICS}
    tally.close()


@pytest.mark.parametrize("first", ["stale", "damaged"])
def test_a_new_directory_that_does_not_read_either_is_an_error(first: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Tally] = []

    def open_tally(path: Path) -> Tally:
        if made or first == "damaged":
            raise Corrupted("database_corrupted", "no MANIFEST")
        made.append(tally := Tally(path, STATISTICS, INIT, ManualClock()))
        tally.open_log({f"{ITEM_FEATURES}/0": 7}, {})
        return tally

    owner = TallyOwner("b", "p.", tmp_path / "counts", open_tally, lambda *_: None, lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(Corrupted, match="no MANIFEST"):
        open_as(monkeypatch, owner, 0)


def test_a_partition_that_was_added_since_the_assignment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each topic grows by a command of its own, so an assignment may be older than the second. The process ended, for an operator."""
    owner = TallyOwner("b", "p.", tmp_path, lambda path: Tally(path, STATISTICS, INIT, ManualClock()), lambda *_: None, lambda _: None)  # type: ignore[arg-type, return-value]
    for name in ("start_offsets", "end_offsets"):
        monkeypatch.setattr(owner_module, name, lambda _, topic: dict.fromkeys(range(1 + topic.endswith(IMPRESSIONS)), 0))
    assert asyncio.run(owner.open_partitions(PARTITIONS, 1)) == {}
    assert (owner.task, owner.assigned) == (None, False) and "impressions/1" in caplog.text


def test_a_directory_that_was_found_damaged_is_counted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Opening it does not read the outbox, for instance: the process ended at each start."""
    directory, asked = tmp_path / "counts", list[int]()
    owner = TallyOwner(
        "b",
        "p.",
        directory,
        lambda path: Tally(path, STATISTICS, INIT, ManualClock()),
        lambda tally, shard, start: asked.append(start),
        lambda _: None,  # type: ignore[arg-type, return-value]
    )
    for _ in range(2):  # the second time there is no mark any more
        tally, _ = open_as(monkeypatch, owner, 7)
        tally.take_items(f"{ITEM_FEATURES}/0", 7, tally.database.scan("items"))
        tally.close()
    assert asked == [7]
    mark_damaged(directory, Corrupted("outbox_value_missing", "an entry is gone"))
    tally, _ = open_as(monkeypatch, owner, 7)
    tally.close()
    assert asked == [7, 7]
