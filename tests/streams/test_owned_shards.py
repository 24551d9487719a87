"""The shards that a worker owns: what is told to whom while they come and go."""

import asyncio
from pathlib import Path

from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.topics import MODEL_CHECKPOINTS
from streams.owned_shards import OwnedShards
from tests.streams.shard_world import ManualClock


def test_nobody_waits_for_a_store_that_is_away_from_the_moment_partitions_are_given_away_until_they_are_open_again(tmp_path: Path) -> None:
    owned = OwnedShards("nowhere:9", "aif.", tmp_path, Init(1, 1, IdKind.INT64, {}), ManualClock(), lambda _: None, lambda: 7)  # type: ignore[arg-type,return-value]
    assert not owned.closing.is_set()
    owned.begin_close()
    assert owned.closing.is_set()
    assert asyncio.run(owned.open_partitions(frozenset({(MODEL_CHECKPOINTS, 0)}))) == {(MODEL_CHECKPOINTS, 0): 7}
    assert not owned.closing.is_set()
