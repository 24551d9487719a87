"""Files: every way in which CSV and Parquet are commonly written gives the same rows, with their numbers."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.data.mapping import Column, Source
from infra.data.tables import LoadedTable, Rejections, load_table
from infra.data.where import Condition
from schemas.errors import Misconfigured

ROWS = {"id": ["1", "2", "3"], "name": ["a, b", "c\nd", "é"]}


def _source(file: str, **more: object) -> Source:
    return Source("items", file, {"id": Column(("id",)), "name": Column(("name",))}, **more)  # type: ignore[arg-type]


def _load(folder: Path, source: Source, limit: int | None = None) -> LoadedTable:
    return load_table(folder, source, limit, Rejections())


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_csv_reads_whatever_sets_its_cells_and_lines_apart(tmp_path: Path, separator: str, end: str, start: str) -> None:
    cells = [["id", "other", "name"], *([i, "x", f'"{name}"'] for i, name in zip(*ROWS.values(), strict=True))]
    (tmp_path / "t.csv").write_bytes((start + end.join(separator.join(row) for row in cells)).encode())
    assert _load(tmp_path, _source("t.csv")).table.to_pydict() == ROWS


def test_gzip_latin1_and_parquet_read_the_same(tmp_path: Path) -> None:
    text = 'id,name\n1,"a, b"\n2,"c\nd"\n3,é\n'
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.csv").write_bytes(text.encode("latin-1"))
    pq.write_table(pa.table(ROWS), tmp_path / "c.parquet")
    for source in (_source("a.csv.gz"), _source("b.csv", encoding="latin-1"), _source("c.parquet")):
        assert _load(tmp_path, source).table.to_pydict() == ROWS


def test_rows_keep_their_numbers_through_bad_rows_filters_and_files(tmp_path: Path) -> None:
    (tmp_path / "a1.csv").write_text("id,name\n1,x\n2\n3,y\n4,x,z\n5,x\n")
    (tmp_path / "a2.csv").write_text("name,id\nx,6\ny,7\n")
    table = _load(tmp_path, _source("a*.csv", where=(Condition("name", "==", "x"),)))
    assert table.table.column("id").to_pylist() == ["1", "5", "6"]
    assert table.row_R.tolist() == [1, 5, 1] and table.file_R.tolist() == [0, 0, 1]
    assert [(r.file, r.row, r.reason) for r in table.rejections.named] == [
        ("a1.csv", 2, "has 1 cells, expected 2"),
        ("a1.csv", 4, "has 3 cells, expected 2"),
    ]


def test_the_limit_counts_rows_that_count(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,name\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(100)))
    table = _load(tmp_path, _source("t.csv", where=(Condition("name", "==", "y"),)), 3)
    assert table.table.column("id").to_pylist() == ["1", "3", "5"]


def test_a_file_of_only_a_header_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,name\n")
    assert len(_load(tmp_path, _source("t.csv"))) == 0


@pytest.mark.parametrize(("name", "content"), [("t.parquet", b"PAR1 not really"), ("t.csv", b""), ("t.csv", b"id,name\n\xff\xfe\xfa,1\n")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Misconfigured, match=name):
        _load(tmp_path, _source(name))
