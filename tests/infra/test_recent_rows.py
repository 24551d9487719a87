"""Rows in memory in front of RocksDB: what is asked for is what RocksDB has, and memory is bounded."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.recent_rows import RecentRows
from infra.rocks import open_database

FAMILY = "rows"


class CountingDatabase:
    """A family in a dictionary; counts the keys that it was asked for."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.asked = 0

    def multi_get(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        assert family == FAMILY
        self.asked += len(keys)
        return [self.rows.get(key) for key in keys]


keys = st.sampled_from([b"a", b"b", b"c", b"d"])
steps = st.lists(st.tuples(st.sampled_from(["get", "write", "forget"]), st.lists(keys, min_size=1, max_size=4), st.binary(max_size=300)))


@given(steps, st.sampled_from([0, 700, 1 << 20]))
def test_what_is_read_is_what_the_database_has(given_steps: list[tuple[str, list[bytes], bytes]], bytes_max: int) -> None:
    database = CountingDatabase()
    recent = RecentRows(database, FAMILY, bytes_max)  # type: ignore[arg-type]
    for step, some, value in given_steps:
        if step == "write":
            database.rows |= dict.fromkeys(some, value)
            recent.note_written([(key, value) for key in some])
        elif step == "forget":
            recent.forget()
        assert recent.multi_get(some) == [database.rows.get(key) for key in some]


def test_a_held_row_is_not_read_again_and_neither_is_one_that_is_not_there() -> None:
    database = CountingDatabase()
    recent = RecentRows(database, FAMILY, 1 << 20)  # type: ignore[arg-type]
    recent.note_written([(b"a", b"1")])
    assert [recent.multi_get([b"a", b"b"]) for _ in range(3)] == 3 * [[b"1", None]]
    assert database.asked == 1


@pytest.mark.parametrize("value", [b"", b"x" * 1_000])
def test_memory_is_bounded_however_many_rows_are_read_and_however_often_one_is_written(value: bytes) -> None:
    database = CountingDatabase()
    recent = RecentRows(database, FAMILY, 50_000)  # type: ignore[arg-type]
    for i in range(2_000):
        recent.note_written([(b"%d" % i, value), (b"same", value)])
        assert sum(200 + len(held or b"") for held in recent._rows.values()) <= 52_000
    for _ in range(3):
        recent.forget()
        for _ in range(10):
            recent.note_written([(b"same", value)])
        database.asked = 0
        recent.multi_get([b"same"])
        assert database.asked == 0


def test_it_stands_in_front_of_a_real_database(tmp_path: Path) -> None:
    with open_database(tmp_path, [FAMILY]) as database:
        recent, batch = RecentRows(database, FAMILY, 1_000), database.new_batch()
        batch.put_all(FAMILY, [(b"k", b"v")])
        database.write(batch)
        assert recent.multi_get([b"k", b"l"]) == [b"v", None]
