"""A journaled database answers as a plain one does, whatever was settled, reopened or cut off in between."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import infra.journaled_rocks
from infra.joined import join_stored
from infra.journaled_rocks import JOURNAL, JournaledBatch, JournaledDatabase, decode_journal_entry, encode_journal_entry
from infra.rocks import Database, open_database
from schemas.errors import Corrupted

JOURNALED, PLAIN = ("rows", "texts"), "state"
FAMILIES = (*JOURNALED, JOURNAL, PLAIN)
KEYS = [bytes([n]) for n in range(12)]
Held = dict[str, dict[bytes, bytes]]


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "d", FAMILIES) as database:
        yield database


def change(database: JournaledDatabase, model: Held, chance: random.Random) -> None:
    """One batch, on the database and on plain dictionaries."""
    batch = database.new_batch()
    set_some(batch, model, chance)
    if chance.random() < 0.15:
        family, (start, end) = chance.choice((*JOURNALED, PLAIN)), sorted(chance.sample(KEYS, 2))
        batch.delete_range(family, start, end)
        model[family] = {k: v for k, v in model[family].items() if not start <= k < end}
    if chance.random() < 0.15:
        family, key = chance.choice(JOURNALED), chance.choice(KEYS)
        batch.delete(family, key)
        model[family].pop(key, None)
    set_some(batch, model, chance)
    database.write(batch, sync=chance.random() < 0.2)


def set_some(batch: JournaledBatch, model: Held, chance: random.Random) -> None:
    for _ in range(chance.randrange(4)):
        family, key, value = chance.choice((*JOURNALED, PLAIN)), chance.choice(KEYS), chance.randbytes(chance.randrange(1, 9))
        batch.put(family, key, value)
        model[family][key] = value


def check(database: JournaledDatabase, model: Held, chance: random.Random) -> None:
    for family, held in model.items():
        keys = chance.choices(KEYS, k=5)
        assert database.multi_get(family, keys) == [held.get(key) for key in keys]
        start, end = sorted(chance.sample(KEYS, 2))
        assert list(database.scan(family, start, end)) == sorted((k, v) for k, v in held.items() if start <= k < end)
        assert database.scan(family).take(3) == sorted(held.items())[:3]
        assert database.get(family, keys[0]) == held.get(keys[0])


@pytest.mark.parametrize("seed", range(6))
def test_it_reads_as_dictionaries_do_whatever_is_settled_evicted_and_reopened(
    seed: int, plain: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra.journaled_rocks, "JOURNAL_BYTES_MAX", 200)
    monkeypatch.setattr(infra.journaled_rocks, "JOURNALED_ROWS_KEPT_BYTES_MAX", 2_000 if seed % 2 else 20_000)
    monkeypatch.setattr(infra.journaled_rocks, "_READ_ALL_MIN", 256 if seed % 2 else 2)  # at 20,000 bytes all rows fit
    chance, model = random.Random(seed), {family: dict[bytes, bytes]() for family in (*JOURNALED, PLAIN)}
    database = JournaledDatabase(plain, JOURNALED)
    for _ in range(60):
        change(database, model, chance)
        if chance.random() < 0.5:
            check(database, model, chance)
        match chance.randrange(12):
            case 0:
                database.settle()
                assert not list(plain.scan(JOURNAL))
            case 1:
                database.reopen()
            case 2:
                database = JournaledDatabase(plain, JOURNALED)  # another process after a kill
    check(database, model, chance)
    database.settle()
    assert {family: dict(plain.scan(family)) for family in model} == model


def put(database: JournaledDatabase, key: bytes, value: bytes) -> None:
    batch = database.new_batch()
    batch.put_joined("rows", join_stored([key]), join_stored([value]))
    batch.put(PLAIN, b"offset", value)
    database.write(batch)


def test_rows_wait_in_the_journal_and_a_checkpoint_has_them_in_their_tables(plain: Database, tmp_path: Path) -> None:
    database = JournaledDatabase(plain, JOURNALED)
    put(database, b"a", b"1")
    put(database, b"a", b"2")
    assert (list(plain.scan("rows")), len(list(plain.scan(JOURNAL)))) == ([], 2)
    database.create_checkpoint(tmp_path / "c")
    with open_database(tmp_path / "c") as checkpoint:
        assert (list(checkpoint.scan("rows")), list(checkpoint.scan(JOURNAL)), checkpoint.get(PLAIN, b"offset")) == (
            [(b"a", b"2")],
            [],
            b"2",
        )


def test_a_kill_between_the_table_files_and_the_end_of_the_journal_repeats_rows_and_loses_none(plain: Database, monkeypatch: Any) -> None:
    database = JournaledDatabase(plain, JOURNALED)
    put(database, b"a", b"1")
    put(database, b"b", b"1")
    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            database.settle()
    assert dict(plain.scan("rows")) == {b"a": b"1", b"b": b"1"}
    again = JournaledDatabase(plain, JOURNALED)
    put(again, b"a", b"2")
    again.settle()
    assert dict(plain.scan("rows")) == {b"a": b"2", b"b": b"1"}


def test_memory_and_journal_have_bounds(plain: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infra.journaled_rocks, "JOURNAL_BYTES_MAX", 2_000)
    monkeypatch.setattr(infra.journaled_rocks, "JOURNALED_ROWS_KEPT_BYTES_MAX", 8_000)
    database = JournaledDatabase(plain, JOURNALED)
    for n in range(300):
        put(database, n.to_bytes(2, "big"), bytes(100))
        assert database._journal_bytes <= 2_000
        assert database._held_bytes() <= 8_000
    for n in range(300):
        put(database, n.to_bytes(2, "big"), b"")  # what a row costs in memory is more than its bytes in the journal
        assert database._held_bytes() <= 8_000
    for n in range(300):
        assert database.multi_get("rows", [n.to_bytes(2, "big"), b"none"]) == [b"", None]
        assert database._held_bytes() <= 8_000 + 2 * 300  # and what the last call read


def test_an_entry_that_is_not_what_was_written_is_named() -> None:
    rows = {"rows": ([b"a", b"bc"], [b"", b"xyz"]), "texts": ([b"k"], [b"v"])}
    entry = encode_journal_entry({family: (join_stored(keys), join_stored(values)) for family, (keys, values) in rows.items()})
    read = decode_journal_entry(entry)
    assert {family: (keys.to_list(), values.to_list()) for family, (keys, values) in read.items()} == rows
    for damaged in (entry[:-1], entry + b"x", entry[:9]):
        with pytest.raises(Corrupted, match="bad_journal_entry"):
            decode_journal_entry(damaged)


def test_the_bytes_of_a_journal_entry_stay_what_they_are() -> None:
    assert encode_journal_entry({"rows": (join_stored([b"a", b"bc"]), join_stored([b"", b"xyz"]))}).hex() == (
        "040002000000726f77730100000003000000000000000300000061626378797a"
    )
