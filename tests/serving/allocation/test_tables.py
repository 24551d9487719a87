"""Tables followed from the index store: the newest of the served version, and what decides when it cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from infra.index.store import open_index_store
from schemas.allocation import ActionTable, Gate, encode_table, table_path
from serving.allocation.tables import Tables, built_in_table


def make_table(version: int, made_at_ms: int, serves: bool = True) -> ActionTable:
    return replace(built_in_table(), version=version, made_at_ms=made_at_ms, gate=Gate(0.1, 0.0 if serves else -0.1, 0.2))


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Tables, list[int | None], Path]:
    served: list[int | None] = [None]
    return Tables(open_index_store(str(tmp_path / "index")), lambda: served[0]), served, tmp_path / "index"


def put(tables: Tables, table: ActionTable, raw: bytes | None = None) -> None:
    assert tables._store is not None
    tables._store.put_bytes(table_path(table.version, table.made_at_ms), encode_table(table) if raw is None else raw)


def test_the_newest_table_of_the_served_version_decides(opened: tuple[Tables, list[int | None], Path]) -> None:
    tables, served, _ = opened
    tables.look()
    assert tables.find(3)[0].made_at_ms == 0 and tables.age_s() is None, "the built-in one"
    served[0] = 3
    for made_at_ms, serves in ((1_000, True), (2_000, False)):
        put(tables, make_table(3, made_at_ms, serves))
        tables.look()
        found, blind = tables.find()
        assert found.made_at_ms == made_at_ms and blind is not serves and tables.last_error == ""
    assert (tables.age_s() or 0) > 1_000


def test_a_copy_of_an_older_table_serves_as_the_newest_and_is_taken_once(opened: tuple[Tables, list[int | None], Path]) -> None:
    tables, served, _ = opened
    served[0] = 3
    for made_at_ms in (1_000, 2_000):
        put(tables, make_table(3, made_at_ms))
    put(tables, make_table(3, 3_000), encode_table(make_table(3, 1_000)))
    tables.look()
    known = tables.known
    tables.look()
    assert tables.find()[0].name == "v3-1000" and tables.known is known, "a server prepares a table again where `known` is another object"


def test_after_a_flip_the_mean_row_of_the_former_version_decides_until_there_is_a_table(
    opened: tuple[Tables, list[int | None], Path],
) -> None:
    tables, served, _ = opened
    served[0] = 3
    put(tables, make_table(3, 1_000))
    tables.look()
    served[0] = 4
    tables.look()
    assert tables.find()[0].name == "v3-1000" and tables.find()[1] and tables.last_error == ""
    put(tables, make_table(4, 2_000))
    tables.look()
    assert tables.find()[0].name == "v4-2000" and not tables.find()[1] and not tables.find(3)[1]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"no table", "bad_table"),
        (encode_table(make_table(9, 2_000)), "table_version"),
        (encode_table(replace(make_table(3, 2_000), mean_row=(0.0, 1.0))), "bad_table"),
        (encode_table(replace(make_table(3, 2_000), queue_price=-1.0)), "bad_table"),
    ],
)
def test_a_wrong_table_leaves_the_one_before(opened: tuple[Tables, list[int | None], Path], raw: bytes, code: str) -> None:
    tables, served, _ = opened
    served[0] = 3
    put(tables, make_table(3, 1_000))
    tables.look()
    put(tables, make_table(3, 2_000), raw)
    tables.look()
    assert tables.find()[0].name == "v3-1000" and tables.last_error.startswith(code)
    restarted = Tables(tables._store, lambda: 3)
    restarted.look()
    assert restarted.find()[0].name == "v3-1000" and restarted.last_error.startswith(code), "one bad file hides no good one"
