"""Where a shard starts: its directory, else offset 0 if the log still has it, else a refusal with a name (protocol A7)."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.index.store import open_index_store
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.shard.log_ends import LogRange
from streams.shard.shard import Shard, open_shard
from streams.shard.start import start_shard
from tests.streams.shard_world import INIT, ITEMS, ManualClock, embed, features_record, new_items_record, upsert

WHOLE = {ITEM_FEATURES: LogRange(0, 9), NEW_ITEMS: LogRange(0, 9)}


class RunningClock(ManualClock):
    """Half a minute a look."""

    def monotonic(self) -> float:
        self.seconds += 30
        return self.seconds


def start(directory: Path, log: Mapping[str, LogRange] = WHOLE, init: Init = INIT, index_id: str = "first") -> Shard:
    return start_shard(directory, 0, init, index_id, RunningClock(), log, open_index_store(str(directory.parent / "store")))


def fill(directory: Path) -> None:
    shard = start(directory)
    shard.apply(
        [features_record(0, upsert(ITEMS[0], 1)), features_record(1, upsert(ITEMS[1], 1)), new_items_record(0, embed(ITEMS[0], 1.0))]
    )
    shard.close()


def test_a_shard_goes_on_at_its_own_offsets(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    shard = start(tmp_path / "s", {ITEM_FEATURES: LogRange(2, 2), NEW_ITEMS: LogRange(1, 5)})
    assert shard.next_offsets == {ITEM_FEATURES: 2, NEW_ITEMS: 1}
    shard.close()


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ({ITEM_FEATURES: LogRange(3, 9), NEW_ITEMS: LogRange(0, 9)}, "log_gone"),
        ({ITEM_FEATURES: LogRange(0, 9), NEW_ITEMS: LogRange(2, 9)}, "log_gone"),
        ({ITEM_FEATURES: LogRange(0, 1), NEW_ITEMS: LogRange(0, 9)}, "log_shorter"),
        ({ITEM_FEATURES: LogRange(0, 9), NEW_ITEMS: LogRange(0, 0)}, "log_shorter"),
    ],
)
def test_a_log_that_does_not_hold_the_next_record_is_refused_and_the_directory_let_go(
    log: Mapping[str, LogRange], code: str, tmp_path: Path
) -> None:
    fill(tmp_path / "s")
    with pytest.raises(Incompatible, match=code):
        start(tmp_path / "s", log)
    start(tmp_path / "s").close()


@pytest.mark.parametrize("damage", ["manifest", "current", "marks", "log", "cut", "table", "state"])
def test_a_directory_that_does_not_open_is_set_aside_and_rebuilt_from_0(damage: str, tmp_path: Path) -> None:
    for aside in ("s.damaged-1", "s.damaged-2"):
        fill(tmp_path / "s")
        if damage == "state":
            _spoil_state(tmp_path / "s")
        else:
            _spoil_file(tmp_path / "s", damage)
        shard = start(tmp_path / "s")
        assert shard.next_offsets == {ITEM_FEATURES: 0, NEW_ITEMS: 0}
        shard.close()
        assert (tmp_path / aside).is_dir()


def test_a_damaged_directory_is_not_rebuilt_from_the_middle_of_a_log(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    _spoil_file(tmp_path / "s", "current")
    with pytest.raises(Incompatible, match="log_gone"):
        start(tmp_path / "s", {ITEM_FEATURES: LogRange(1, 9), NEW_ITEMS: LogRange(0, 9)})


def test_damage_that_is_found_after_the_opening_is_known_to_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise Corrupted("database_corrupted", "block checksum mismatch")

    fill(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "hold_index", damaged)
        with pytest.raises(Corrupted):
            start(tmp_path / "s")
    start(tmp_path / "s").close()
    assert (tmp_path / "s.damaged-1").is_dir()


@pytest.mark.parametrize("bytes_cut", [1, 40, 900])
def test_a_torn_write_ahead_log_is_a_consistent_prefix_that_the_topics_complete(bytes_cut: int, tmp_path: Path) -> None:
    running = start(tmp_path / "running")
    running.apply([features_record(0, upsert(ITEMS[0], 1))])
    running.apply([features_record(1, upsert(ITEMS[1], 1)), new_items_record(0, embed(ITEMS[0], 1.0))])
    shutil.copytree(tmp_path / "running", tmp_path / "s")  # as a kill leaves it
    running.close()
    wal = max((tmp_path / "s").glob("*.log"), key=lambda p: p.stat().st_size)
    assert wal.stat().st_size > bytes_cut
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - bytes_cut)
    shard = start(tmp_path / "s")
    held = shard.next_offsets
    assert held in ({ITEM_FEATURES: 0, NEW_ITEMS: 0}, {ITEM_FEATURES: 1, NEW_ITEMS: 0})
    assert shard.state.counters[ITEM_FEATURES].consumed == held[ITEM_FEATURES]
    shard.close()


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(INIT, id_kind=IdKind.TEXT),
        dataclasses.replace(INIT, shards=3),
        dataclasses.replace(INIT, topic_ids={**INIT.topic_ids, ITEM_FEATURES: "another"}),
    ],
)
def test_a_directory_of_another_index_is_refused_and_not_set_aside(changed: Init, tmp_path: Path) -> None:
    fill(tmp_path / "s")
    with pytest.raises(Incompatible, match="other_shard"):
        start(tmp_path / "s", init=changed)
    start(tmp_path / "s").close()
    assert not list(tmp_path.glob("*.damaged*"))


def test_a_shard_of_an_index_that_was_begun_anew_is_refused_and_one_of_before_there_were_identities_keeps_the_first_it_sees(
    tmp_path: Path,
) -> None:
    """The versions of both have the same numbers, so the old shard's seals and rows would count as those of the new index."""
    before = open_shard(tmp_path / "s", 0, INIT, ManualClock())
    before.apply([features_record(0, upsert(ITEMS[0], 1))])
    before.close()
    for _ in range(2):
        start(tmp_path / "s").close()
    for _ in range(2):
        with pytest.raises(
            Incompatible, match=r"other_index_store: .* index first, .* holds index second, .*restore .*AIF_WORKER__DATA_DIR"
        ):
            start(tmp_path / "s", index_id="second")
    start(tmp_path / "s").close()
    assert not list(tmp_path.glob("*.damaged*"))


def test_a_directory_that_another_owner_holds_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    holder = open_shard(tmp_path / "s", 0, INIT, ManualClock())
    with pytest.raises(Unavailable, match="database_locked"):
        start(tmp_path / "s")
    holder.close()
    start(tmp_path / "s").close()


def _spoil_file(directory: Path, which: str) -> None:
    if which in ("table", "cut"):
        shard = open_shard(directory, 0, INIT, ManualClock())
        shard.database.flush()
        shard.close()
    if which == "log":  # of a killed worker; a closed directory has none
        shard = open_shard(directory, 0, INIT, ManualClock())
        shard.apply([features_record(2, upsert(ITEMS[1], 2))])
        shutil.copytree(directory, killed := directory.with_name("killed"))
        shard.close()
        shutil.rmtree(directory)
        killed.rename(directory)
    pattern = {"manifest": "MANIFEST-*", "cut": "MANIFEST-*", "current": "CURRENT", "marks": "marks", "log": "*.log", "table": "*.sst"}[
        which
    ]
    for path in directory.glob(pattern):
        content = path.read_bytes()
        if which in ("table", "marks"):
            path.unlink()
        elif which == "log":
            path.write_bytes(content[:6] + b"\5" + content[7:])  # the type of the first record
        else:
            path.write_bytes(b"\x00garbage" if which != "cut" else content[: len(content) // 2])


def _spoil_state(directory: Path) -> None:
    shard = open_shard(directory, 0, INIT, ManualClock())
    batch = shard.database.new_batch()
    batch.put("meta", b"state", b"{half")
    shard.database.write(batch)
    shard.close()
