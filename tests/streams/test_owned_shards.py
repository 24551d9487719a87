"""The shards that a worker owns: what is told to whom while they come and go."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from infra.index.store import open_index_store
from schemas.ids import IdKind
from schemas.index.control import ControlState, Init
from schemas.topics import ITEM_FEATURES, MODEL_CHECKPOINTS
from streams.owned_shards import OwnedShards
from tests.streams.shard_world import ManualClock

INDEX = ControlState(init=Init(1, 1, IdKind.INT64, {}))


def open_owned(folder: Path) -> OwnedShards:
    store = open_index_store(str(folder / "store"))
    return OwnedShards("nowhere:9", "aif.", folder, INDEX, ManualClock(), lambda _: None, lambda: 7, lambda: None, store)  # type: ignore[arg-type,return-value]


def test_nobody_waits_for_a_store_that_is_away_from_the_moment_partitions_are_given_away_until_they_are_open_again(tmp_path: Path) -> None:
    owned = open_owned(tmp_path)
    assert not owned.closing.is_set()
    owned.begin_close()
    assert owned.closing.is_set()
    assert asyncio.run(owned.open_partitions(frozenset({(MODEL_CHECKPOINTS, 0)}))) == {(MODEL_CHECKPOINTS, 0): 7}
    assert not owned.closing.is_set()


def test_records_of_a_shard_are_taken_only_while_it_is_open_and_admitted(tmp_path: Path) -> None:
    """A worker that had no shard, and so was reading, fetched records of one that it was still opening: Faust ended at them, and with it the process."""
    owned = open_owned(tmp_path)
    assert [owned.takes((topic, 0)) for topic in (ITEM_FEATURES, MODEL_CHECKPOINTS)] == [False, True]
    for admitted in (False, True):
        owned._tasks = {0: SimpleNamespace(admitted=admitted)}  # type: ignore[dict-item]
        assert owned.takes((ITEM_FEATURES, 0)) is admitted
