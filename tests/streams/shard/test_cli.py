"""`aif shards`: what a worker left, without touching it."""

import json
from pathlib import Path

from typer.testing import CliRunner

from infra.cli import build_app
from tests.streams.shard_world import ITEMS, features_record, open_test_shard, upsert


def test_counters_and_offsets_of_a_closed_shard_are_shown_and_its_directory_stays_as_it_was(tmp_path: Path) -> None:
    directory = tmp_path / "shards" / "00000"
    shard = open_test_shard(directory)
    shard.apply([features_record(0, upsert(ITEMS[0], 1), upsert(ITEMS[0], 0))])
    shard.close()
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    done = CliRunner().invoke(build_app(), ["shards", str(tmp_path), "--json"])
    (row,) = json.loads(done.stdout)["shards"]
    assert row["shard"] == 0 and row["next_offsets"] == {"item-features": 1, "new-items": 0} and row["versions"] == {}
    assert row["counts"]["item-features"] == {"consumed": 2, "applied": 1, "superseded": 1, "dead_lettered": 0}
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
