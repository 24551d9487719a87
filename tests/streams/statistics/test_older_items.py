"""A process without a directory knows items whose records the log has removed."""

import shutil
from pathlib import Path

import pytest

from infra.index.store import open_index_store
from schemas.errors import Incompatible
from schemas.ids import encode_index_key
from schemas.statistics import Log, Measure, Statistic
from schemas.topics import ITEM_FEATURES, USER_BEHAVIOURS
from streams.core.shard_state import encode_identity
from streams.shard.snapshot_files import write_snapshot
from streams.statistics.older_items import take_older_items
from streams.statistics.tally import Tally
from tests.streams.shard_world import INIT, ITEMS, ManualClock, delete, features_record, open_test_shard, upsert

STATISTICS = {"taken_of_maker": Statistic(Log.BEHAVIOURS, Measure.EXACT, by="maker")}


def test_items_of_a_snapshot_exist_with_their_groups_until_the_log_deletes_them(tmp_path: Path) -> None:
    store, shard = open_index_store(str(tmp_path / "store")), open_test_shard(tmp_path / "shard")
    shard.apply([features_record(0, upsert(ITEMS[0], 1, maker="a", price=2.0), upsert(ITEMS[1], 1, maker="a"), upsert(ITEMS[2], 1))])
    shard.create_checkpoint(tmp_path / "scratch")
    write_snapshot(store, 0, encode_identity(0, INIT).decode(), tmp_path / "scratch")
    shutil.rmtree(tmp_path / "scratch")
    shard.close()
    tally = Tally(tmp_path / "counts", STATISTICS, INIT, ManualClock())
    with pytest.raises(Incompatible, match="log_gone"):
        take_older_items(tally, store, INIT, 0, 5, tmp_path / "restored")
    take_older_items(tally, store, INIT, 0, 1, tmp_path / "restored")
    offsets = tally.open_log({f"{ITEM_FEATURES}/0": 1, f"{USER_BEHAVIOURS}/0": 0}, {})
    assert offsets[f"{ITEM_FEATURES}/0"] == 1 and not (tmp_path / "restored").exists()
    tally.apply([features_record(1, delete(ITEMS[1], 2))])
    tally.recover()
    counts = tally.items.counts
    places = [counts.place_of(encode_index_key(item)) for item in ITEMS[:3]]
    assert counts.exist[places].tolist() == [True, False, True]
    groups = counts._groups_BI[0, places].tolist()
    assert groups[0] >= 0 > groups[2], "the maker of the first item is known"
    tally.close()
