"""The points of a replay and their meaning for a shard: read, planned, refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Incompatible
from schemas.index.shard_snapshot import ShardSnapshot
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.core.replay_plan import (
    Begin,
    Offsets,
    Sample,
    ShardLog,
    ShardReplay,
    plan_forecast,
    plan_shard_replay,
)


def at(features: int, embeddings: int) -> Offsets:
    return {ITEM_FEATURES: features, NEW_ITEMS: embeddings}


def snapshot(unique: str, next_offsets: Offsets) -> ShardSnapshot:
    return ShardSnapshot(0, unique, "this index", (), next_offsets, 0)


OLD, NEW = snapshot("old", at(5, 5)), snapshot("new", at(9, 6))
WHOLE, CUT = ShardLog(0, at(0, 0), at(20, 10), (NEW, OLD)), ShardLog(0, at(4, 0), at(20, 10), (NEW, OLD))
ANY, EARLIEST = Begin(False), Begin(True)


def test_from_earliest_means_offset_0_and_a_gap_is_named() -> None:
    assert plan_shard_replay(WHOLE, EARLIEST, at(20, 10)) == ShardReplay(0, at(0, 0), at(20, 10))
    with pytest.raises(Incompatible, match=r"log_start_gone.*item-features: offsets 0 to 3 are gone"):
        plan_shard_replay(CUT, EARLIEST, at(20, 10))
    assert plan_shard_replay(CUT, EARLIEST, at(0, 10)) == ShardReplay(0, at(0, 0), at(0, 10))  # none of the removed records is wanted


def test_from_a_snapshot_takes_the_one_with_the_least_to_replay_that_is_not_beyond_the_end() -> None:
    assert plan_shard_replay(CUT, ANY, at(20, 10)).snapshot == "new"
    assert plan_shard_replay(CUT, ANY, at(8, 10)) == ShardReplay(0, at(5, 5), at(8, 10), "old")
    with pytest.raises(Incompatible, match=r"no_base.*offsets 0 to 3 are gone"):
        plan_shard_replay(CUT, ANY, at(4, 10))


def test_from_a_point_takes_the_newest_base_not_after_it_or_the_whole_log() -> None:
    assert plan_shard_replay(CUT, Begin(False, {0: at(8, 8)}), at(20, 10)).snapshot == "old"
    assert plan_shard_replay(WHOLE, Begin(False, {0: at(3, 3)}), at(20, 10)) == ShardReplay(0, at(0, 0), at(20, 10))
    with pytest.raises(Incompatible, match=r"no_base"):
        plan_shard_replay(CUT, Begin(False, {0: at(4, 4)}), at(20, 10))


def test_an_end_that_the_log_does_not_have_is_refused() -> None:
    with pytest.raises(Incompatible, match=r"offset_gone.*ends at 20"):
        plan_shard_replay(WHOLE, EARLIEST, at(21, 0))


OFFSET = st.integers(0, 30)
PAIR = st.builds(at, OFFSET, OFFSET)


@given(PAIR, PAIR, PAIR, st.lists(PAIR, max_size=4), st.one_of(st.none(), PAIR), st.booleans())
def test_a_plan_never_begins_in_the_middle_without_a_base_nor_reads_what_is_gone(
    start: Offsets, held: Offsets, end: Offsets, snapshots: list[Offsets], not_after: Offsets | None, earliest: bool
) -> None:
    log = ShardLog(0, start, {t: start[t] + held[t] for t in start}, tuple(snapshot(str(n), s) for n, s in enumerate(snapshots)))
    try:
        plan = plan_shard_replay(log, Begin(earliest, None if not_after is None else {0: not_after}), end)
    except Incompatible:
        return
    base = snapshots[int(plan.snapshot)] if plan.snapshot else at(0, 0)
    assert plan.start == base and plan.end == end and plan.records >= 0
    assert all(log.start[t] <= plan.start[t] <= plan.end[t] <= log.end[t] or plan.end[t] == 0 for t in start)


def test_a_forecast_scales_the_sample_and_a_throttle_sets_the_least_time() -> None:
    sample = Sample(100, 400, 50, 2.0, 10, 0.5)
    forecast = plan_forecast(1_000, sample, None, None)
    assert (forecast.updates, forecast.rows, forecast.apply_s, forecast.encode_s) == (4_000, 500, 20.0, 25.0)
    assert plan_forecast(1_000, sample, 70, 10.0).apply_s == 100.0 and plan_forecast(1_000, sample, 70, None).rows == 70
    assert plan_forecast(1_000, sample, 0, None).rows == 50  # a seal from before the catalogue came
    assert plan_forecast(0, Sample(0, 0, 0, 0.0, 0, 0.0), None, None).total_s == 0
