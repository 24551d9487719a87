"""The order of a seal (protocol B8): the end of index-deltas, then the ends of the sources, which the shard must reach, then the checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from schemas.index.manifest import Part
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.builders.jobs import SealJob
from streams.builders.sealer import SealPoint, prepare_seal, read_seal_point


class GrowingLog:
    """Every question about an end finds one more record everywhere."""

    def __init__(self) -> None:
        self.end = 0

    def _grow(self) -> int:
        self.end += 1
        return self.end

    def sources_end(self, shard: int) -> Mapping[str, int]:
        return dict.fromkeys((ITEM_FEATURES, NEW_ITEMS), self._grow())

    def deltas_end(self, shard: int) -> int:
        return self._grow()


def test_the_ends_of_the_sources_are_read_after_the_end_of_the_deltas() -> None:
    assert read_seal_point(GrowingLog(), 0) == SealPoint(1, {ITEM_FEATURES: 2, NEW_ITEMS: 2})


def test_a_point_is_reached_by_a_shard_that_has_applied_every_source_up_to_it() -> None:
    point = SealPoint(7, {ITEM_FEATURES: 3, NEW_ITEMS: 0})
    assert point.is_reached({ITEM_FEATURES: 3, NEW_ITEMS: 0}) and point.is_reached({ITEM_FEATURES: 3})
    assert not point.is_reached({ITEM_FEATURES: 2, NEW_ITEMS: 9}) and not point.is_reached({})


def test_a_seal_names_the_position_of_its_point_whatever_was_sent_until_its_checkpoint(tmp_path: Path) -> None:
    log, taken = GrowingLog(), list[Path]()
    point = read_seal_point(log, 0)
    log.deltas_end(0)
    job = prepare_seal(SealJob(1, 0, 0, "sha", "encoder", Part("", (), 0)), point, taken.append, tmp_path / "checkpoint")
    assert (job.delta_position, job.checkpoint_directory, taken) == (1, str(tmp_path / "checkpoint"), [tmp_path / "checkpoint"])
