"""When a snapshot is due: cases and the law that bounds what a new owner replays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.index.shard_snapshot import ShardSnapshot
from streams.shard.snapshot_files import FoundSnapshot
from streams.versions.keepers import SnapshotTimes

TIMES = SnapshotTimes(every_s=0.5, every_updates=100)


def found(put_ms: int, updates: int) -> FoundSnapshot:
    return FoundSnapshot(ShardSnapshot(0, "one", "this index", (), {}, updates), put_ms)


NEWEST = found(1_000, 50)
CASES = {
    "an empty shard has nothing to keep": (None, 0, 9_999, False),
    "the first one as soon as there is something": (None, 1, 0, True),
    "nothing moved": (NEWEST, 50, 10**9, False),
    "a shard that was set back waits until it is beyond": (NEWEST, 49, 10**9, False),
    "moved a little, not yet time": (NEWEST, 51, 1_499, False),
    "moved a little, and time": (NEWEST, 51, 1_500, True),
    "moved much": (NEWEST, 150, 1_001, True),
}


@pytest.mark.parametrize(("newest", "updates", "now_ms", "due"), CASES.values(), ids=CASES)
def test_a_snapshot_is_due(newest: FoundSnapshot | None, updates: int, now_ms: int, due: bool) -> None:
    assert TIMES.is_due(newest, updates, now_ms) is due


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=60))
def test_neither_the_age_nor_the_replay_behind_the_newest_ever_exceeds_its_bound_by_more_than_one_step(
    steps: list[tuple[int, int]],
) -> None:
    now_ms, updates = 0, 1
    newest = found(0, 1)
    for passed_ms, moved in steps:
        now_ms, updates = now_ms + passed_ms, updates + moved
        if TIMES.is_due(newest, updates, now_ms):
            newest = found(now_ms, updates)
        assert updates - newest.snapshot.updates < 100
        assert updates == newest.snapshot.updates or now_ms - newest.put_ms < 500
