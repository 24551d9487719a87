"""A directory that cannot be used is counted again, and a failed attempt leaves nothing open."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import streams.statistics.owner as owner_module
from schemas.errors import Corrupted, Incompatible
from schemas.statistics import Log, Measure, Statistic
from schemas.topics import ITEM_FEATURES
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
