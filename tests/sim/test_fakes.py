"""The simulated disk, store and row-stamp rule do what the real ones do: the same cases on both (a fake that differs would prove nothing)."""

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.index.parts import read_full_part, read_incremental_part, write_full_part, write_incremental_part
from infra.index.store import FolderStore, IndexStore, open_index_store
from infra.rocks import open_database, open_read_only
from schemas.errors import Corrupted, Unavailable
from schemas.ids import IdKind
from schemas.index.layout import STAMP, RowBlock, encode_increment
from schemas.index.manifest import Part, PartFile, Seal
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.shard.decode import decode_source_record
from streams.shard.outbox import decode_outbox_entry
from tests.schemas.index.stamp_rule import is_newer
from tests.sim import haste
from tests.sim.boundary import Boundary
from tests.sim.disk import Disk, open_memory_database
from tests.sim.encoder import LAYOUT
from tests.sim.haste import (
    _ALWAYS,
    decode_known_record,
    fast_asdict,
    fast_fields,
    remembered,
    remembered_outbox,
)
from tests.sim.history import run_history
from tests.sim.quick_json import QuickEncoder, QuickJson
from tests.sim.server import may_replace
from tests.sim.store import MemoryStore
from tests.sim.world import Chances, World

FAMILIES = ("a", "b")
KEYS = [bytes([n]) for n in range(6)]


def memory_store() -> MemoryStore:
    return MemoryStore(lambda _: None, lambda: 1_000)


# --- the disk -----------------------------------------------------------------------------------------------------------------


def change(database: Any, seed: int) -> None:
    """A batch of puts, deletes and range deletes, in any order, several of one key."""
    chance, batch = random.Random(seed), database.new_batch()
    for _ in range(chance.randrange(1, 8)):
        family, key = chance.choice(FAMILIES), chance.choice(KEYS)
        match chance.randrange(4):
            case 0:
                batch.delete(family, key)
            case 1:
                batch.delete_range(family, *sorted((key, chance.choice(KEYS))))
            case _:
                batch.put(family, key, bytes([chance.randrange(256)]))
    database.write(batch, sync=chance.random() < 0.5)


def held(database: Any) -> list[object]:
    """Everything that can be read, in every way."""
    scans = [list(database.scan(f, start, end)) for f in FAMILIES for start, end in ((b"", None), (KEYS[2], None), (KEYS[1], KEYS[4]))]
    pages = [database.scan(f, KEYS[1]).take(3) for f in FAMILIES]
    return [scans, pages, *(database.multi_get(f, KEYS) for f in FAMILIES), database.get("a", KEYS[3])]


def test_a_simulated_directory_is_a_rocksdb_directory(tmp_path: Path) -> None:
    disk = Disk()
    real, simulated = open_database(tmp_path / "d", FAMILIES), open_memory_database(Path("h/d"), FAMILIES, disk)
    for seed in range(40):
        change(real, seed)
        change(simulated, seed)
        assert held(real) == held(simulated)
    before = held(real)
    real.create_checkpoint(tmp_path / "c")
    simulated.create_checkpoint(Path("h/c"))
    change(real, 99)
    change(simulated, 99)
    for database, opened in (
        (real, lambda: open_database(tmp_path / "d")),
        (simulated, lambda: open_memory_database(Path("h/d"), FAMILIES, disk)),
    ):
        with pytest.raises(Unavailable, match="database_locked"):
            opened()
        database.close()
    with open_database(tmp_path / "d", FAMILIES) as again, open_read_only(tmp_path / "c") as checkpoint:
        assert held(again) == held(open_memory_database(Path("h/d"), FAMILIES, disk))
        assert held(checkpoint) == held(open_memory_database(Path("h/c"), FAMILIES, disk)) == before


def test_a_power_cut_keeps_what_was_synced_and_a_beginning_of_the_rest() -> None:
    for kept in range(4):
        disk = Disk()
        database = open_memory_database(Path("h/d"), FAMILIES, disk)
        for n, sync in enumerate((False, True, False, False, False)):
            batch = database.new_batch()
            batch.put("a", KEYS[n], b"x")
            database.write(batch, sync=sync)
        database.close()
        disk.lose_tails(lambda unsynced, kept=kept: min(kept, unsynced))  # type: ignore[misc]
        assert [k for k, _ in open_memory_database(Path("h/d"), FAMILIES, disk).scan("a")] == KEYS[: 2 + kept]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_write_that_failed_is_there_whole_or_not_at_all_and_the_next_one_needs_a_reopen(is_there: bool) -> None:
    disk, faults = Disk(), [("disk_full", is_there), None, None, None]
    database = open_memory_database(Path("h/d"), FAMILIES, disk)
    database._find_fault = lambda: faults.pop(0)

    def write(*keys: bytes) -> str:
        batch = database.new_batch()
        for key in keys:
            batch.put("a", key, b"x")
        try:
            database.write(batch)
        except Unavailable as error:
            return error.code
        return "written"

    assert (write(KEYS[0], KEYS[1]), write(KEYS[2])) == ("disk_full", "database_failed")
    database.reopen()
    assert write(KEYS[3]) == "written"
    assert [k for k, _ in database.scan("a")] == [*(KEYS[:2] if is_there else []), KEYS[3]]


# --- the store ----------------------------------------------------------------------------------------------------------------


def use_store(store: Any) -> list[object]:
    """What a user sees: results, lists, and the codes of refusals."""

    def code(call: Callable[[], object]) -> object:
        try:
            return call()
        except (Unavailable, Corrupted) as error:
            return error.code

    seen = [store.put_exclusive("control/000000000", b"one"), store.put_exclusive("control/000000000", b"two")]
    seen += [code(lambda: store.put_bytes("x/a.json", b"same")), code(lambda: store.put_bytes("x/a.json", b"same"))]
    seen += [code(lambda: store.put_bytes("x/a.json", b"other")), code(lambda: store.get("x/none")), code(lambda: store.get("x/a.json", 2))]
    seen += [
        store.get("control/000000000"),
        store.exists("x/a.json"),
        store.exists("x"),
        store.list("x/"),
        store.list(),
        store.list("none/"),
        [(f.path, f.size_bytes, f == store.stat(f.path)) for f in store.list_files("x/")],
    ]
    seen += [store.stat("x/a.json").size_bytes, code(lambda: store.stat("x/none")), store.remove("x/a.json"), store.remove("x/a.json")]
    return [*seen, store.list()]


def test_the_store_in_memory_is_a_folder_store(tmp_path: Path) -> None:
    assert use_store(memory_store()) == use_store(open_index_store(str(tmp_path)))


def test_parts_come_back_as_they_were_written(tmp_path: Path) -> None:
    boundary, real, simulated = Boundary(World(0, 1, Chances()), {}), FolderStore(tmp_path), memory_store()
    blocks, increments = some_rows()
    for some_blocks, some_increments in ((blocks, increments), ([], [])):
        full = write_full_part(real, 1, 0, some_blocks, LAYOUT), boundary.write_full_part(simulated, 1, 0, some_blocks, LAYOUT)
        real_shape, simulated_shape = ((p.rows, p.tombstones, bool(p.files), bool(p.directory)) for p in full)
        assert real_shape == simulated_shape
        assert read_rows(read_full_part(real, full[0], LAYOUT)) == read_rows(boundary.read_full_part(simulated, full[1], LAYOUT))
        parts = write_incremental_part(real, 1, 0, 0, some_increments), boundary.write_incremental_part(simulated, 1, 0, 0, some_increments)
        assert (parts[0].rows, parts[0].tombstones) == (parts[1].rows, parts[1].tombstones)
        assert list(read_incremental_part(real, parts[0])) == list(boundary.read_incremental_part(simulated, parts[1]))


def some_rows() -> tuple[list[RowBlock], list[tuple[bytes, bytes]]]:
    keys, rows = [n.to_bytes(8, "big") for n in range(4)], np.zeros(4, LAYOUT.dtype)
    rows["bid"], stamps = range(4), np.zeros(4, STAMP)
    dead = stamps[0].copy()
    dead["dead"] = 1
    return [RowBlock(keys, stamps, rows)], [(keys[0], encode_increment(stamps[0], rows[1])), (keys[1], encode_increment(dead, None))]


def read_rows(blocks: Any) -> list[tuple[bytes, bytes, bytes]]:
    return [(k, o.tobytes(), r.tobytes()) for b in blocks for k, o, r in zip(b.keys, b.stamps, b.rows, strict=True)]


def test_a_store_is_an_index_store() -> None:
    """As far as the shell uses it: the names of the interface, but for those that need a file system."""
    local = {"put_file", "fetch", "sha256", "uri"}
    names = {name for name in vars(IndexStore) if not name.startswith("_")} - local
    assert names <= set(dir(memory_store())), names - set(dir(memory_store()))


# --- rules --------------------------------------------------------------------------------------------------------------------


def test_the_simulated_reader_has_the_row_stamp_rule() -> None:
    stamps = [(*f, *e, 0, 0) for f, e in itertools.product(itertools.product((0, 1), (0, 1), (0, 1)), itertools.product((-1, 0), (0, 1)))]
    array = np.array(stamps, STAMP)
    for (i, incoming), (j, current) in itertools.product(enumerate(stamps), enumerate(stamps)):
        assert may_replace(incoming, current, 0) == bool(is_newer(array[i], array[j]))


@pytest.mark.parametrize("tombstones", [0, 3])
def test_a_quick_form_of_a_document_is_the_document(tombstones: int) -> None:
    part = Part("d", (PartFile("f", 1, "0"),), 2, tombstones)
    seal = Seal(0, part, part, 3, {"t": 1}, 2, "a", "b", "c")
    assert json.dumps(fast_asdict(seal)) == json.dumps(dataclasses.asdict(seal))
    assert fast_fields(seal) == dataclasses.fields(Seal)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_quick_json_is_json(separators: tuple[str, str]) -> None:
    document = {"b": [1, 2.5, None, True, "\u00e9\\"], "a": {"d": {}, "c": 1 << 70}}
    for sort_keys in (False, True):
        text = json.dumps(document, sort_keys=sort_keys, separators=separators)
        assert QuickEncoder(sort_keys, separators).encode(document) == text
        assert QuickJson.loads(text.encode()) == document
    for bad in (b"", b"{", b"{} x", b"\xff", b"[" * 100_000):
        with pytest.raises((ValueError, RecursionError)) as quick:
            QuickJson.loads(bad)
        with pytest.raises(quick.type):
            json.loads(bad)


def test_what_was_written_is_what_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every codec that gives readers the written value instead of its decoded bytes."""
    compared: Counter[str] = Counter()

    def comparing(remember: Callable[..., Any], decode: Callable[..., Any]) -> tuple[Any, Any]:
        write, read = remember()

        def read_both(*raw: Any) -> Any:
            found = read(*raw)
            assert found == decode(*raw)
            compared[decode.__name__] += 1
            return found

        return write, read_both

    monkeypatch.setattr(haste, "remembered", lambda encode, decode: comparing(lambda: remembered(encode, decode), decode))
    monkeypatch.setattr(haste, "remembered_outbox", lambda: comparing(remembered_outbox, decode_outbox_entry))
    for seed in range(24):
        assert run_history(seed).violation is None
    assert compared.keys() == {*(decode.__name__ for _, decode, _, _ in haste._CODECS), "decode_outbox_entry"}, compared


def test_a_remembered_record_is_the_record() -> None:
    world = World(2, 1, Chances())
    for _ in range(30):
        world.publish_items()
        world.publish_embedding()
    for record in (r for topic in (ITEM_FEATURES, NEW_ITEMS) for r in world.topics[topic, 0].records):
        assert [decode_known_record(record, IdKind.INT64, 1) for _ in range(2)] == 2 * [decode_source_record(record, IdKind.INT64, 1)]


def test_what_is_remembered_is_asked_for() -> None:
    """A shortcut for a module that does not call the function any more would save nothing."""
    for seed in range(8):
        run_history(seed)
    idle = [name for _, name, shortcut in _ALWAYS if hasattr(shortcut, "cache_info") and not shortcut.cache_info().hits]
    assert not idle, f"nobody asks twice for {idle}"
