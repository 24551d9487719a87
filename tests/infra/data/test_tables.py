"""Files: every way in which CSV and Parquet are commonly written gives the same rows, with their numbers."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.data.columns import decode_parts
from infra.data.files import common_schema, load_table, read_chunks, with_short_delimiter
from infra.data.mapping import Items
from infra.data.mapping_source import Column, FeatureSource, FileFormat, Source
from infra.data.spool import SpoolBounds
from infra.data.tables import FILE, ROW, LoadedRows, Rejections
from schemas.errors import Misconfigured

ROWS = {"id": ["1", "2", "3"], "name": ["a, b", "c\nd", "é"]}


def _source(file: str, **more: object) -> Source:
    return Items(file=file, id=Column(columns=("id",)), features={"name": FeatureSource(columns=("name",))}, **more)  # type: ignore[arg-type]


def _load(folder: Path, source: Source, limit: int | None = None) -> LoadedRows:
    return load_table(folder, source, limit, Rejections(), SpoolBounds()).sample


def _cells(rows: LoadedRows) -> dict[str, list[object]]:
    return rows.table.drop_columns([ROW, FILE]).to_pydict()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\r\n\n"])
def test_csv_reads_whatever_sets_its_cells_and_lines_apart(tmp_path: Path, separator: str, end: str, start: str) -> None:
    cells = [["id", "other", "name"], *([i, "x", f'"{name}"'] for i, name in zip(*ROWS.values(), strict=True))]
    (tmp_path / "t.csv").write_bytes((start + end.join(separator.join(row) for row in cells)).encode())
    assert _cells(_load(tmp_path, _source("t.csv"))) == ROWS


def test_gzip_latin1_and_parquet_read_the_same(tmp_path: Path) -> None:
    text = 'id,name\n1,"a, b"\n2,"c\nd"\n3,é\n'
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.csv").write_bytes(text.encode("latin-1"))
    pq.write_table(pa.table(ROWS), tmp_path / "c.parquet")
    for source in (_source("a.csv.gz"), _source("b.csv", encoding="latin-1"), _source("c.parquet")):
        assert _cells(_load(tmp_path, source)) == ROWS


def test_lines_of_json_read_the_same_and_lines_that_are_no_object_are_named(tmp_path: Path) -> None:
    lines = ['{"id": 1, "name": "a, b"}', "", '{"id": "2", "name": "c\\nd", "tags": ["x"]}', "[3]", '{"name": "é", "id": 3}', '{"name": "x']
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    rows = _load(tmp_path, _source("t.jsonl.gz"))
    assert _cells(rows) == ROWS and rows.numbers(ROW).tolist() == [1, 3, 5]
    assert [(r.row, r.reason) for r in rows.of.rejections.named] == [(4, "is no JSON object"), (6, "is no JSON object")]
    (tmp_path / "u.json").write_text('{"id": 7.0, "name": {"de": "ä", "n": null}}\n{"name": true}\n{"id": NaN, "name": "\\ud800"}')
    assert _cells(_load(tmp_path, _source("u.json"))) == {"id": ["7.0", None, None], "name": ['{"de": "ä", "n": null}', "true", "?"]}


def test_what_lies_deeper_in_a_line_of_json_is_named_by_its_path(tmp_path: Path) -> None:
    lines = [
        '{"id": 1, "a": {"b": {"c": "x"}}}',
        '{"id": 2, "a": null}',
        '{"id": 3, "a": {"b": 4}}',
        '{"id": 4, "a.b.c": "y", "a": {"b": {"c": "no"}}}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    source = Items(file="t.jsonl", id=Column(columns=("id",)), features={"name": FeatureSource(columns=("a.b.c",))})
    assert _cells(_load(tmp_path, source)) == {"id": ["1", "2", "3", "4"], "a.b.c": ["x", None, None, "y"]}
    with pytest.raises(Misconfigured, match=r"no column 'a.b.d'; did you mean 'a.b.c'\?"):
        _load(tmp_path, Items(file="t.jsonl", id=Column(columns=("a.b.d",))))
    with pytest.raises(Misconfigured, match=r"\[items\] id: column 'a\.b' of t\.jsonl holds objects, expected one value.*\(a\.b\.FIELD\)"):
        _load(tmp_path, Items(file="t.jsonl", id=Column(columns=("a.b",))))


def test_a_field_of_a_struct_in_parquet_is_named_by_its_path(tmp_path: Path) -> None:
    deep = [{"b": {"c": "x", "n": 1}}, {"b": None}, None]
    pq.write_table(pa.table({"who.id": [7, 8, 9], "who": [{"id": 1}, {"id": 2}, None], "a": deep}), tmp_path / "t.parquet")

    def load(name: str, **more: object) -> dict[str, list[object]]:
        features = {"name": FeatureSource(columns=(name,))}
        return _cells(_load(tmp_path, Items(file="t.parquet", id=Column(columns=("who.id",)), features=features, **more)))  # type: ignore[arg-type]

    assert load("a.b.c") == {"who.id": [7, 8, 9], "a.b.c": ["x", None, None]}
    assert load("a.b.c", where="a.b.n != 1") == {"who.id": [8, 9], "a.b.c": [None, None], "a.b.n": [None, None]}
    with pytest.raises(Misconfigured, match=r"t.parquet has no column 'a.b.d'; did you mean 'a.b"):
        load("a.b.d")


def test_a_file_without_a_header_whose_cells_end_in_two_characters_reads_the_same(tmp_path: Path) -> None:
    text = '1::2::The "Best" One\n2::x\n3:::::é: the end:\n'
    (tmp_path / "t.dat.gz").write_bytes(gzip.compress(text.encode("latin-1")))
    rows = _load(tmp_path, _source("t.dat.gz", delimiter="::", encoding="latin-1", header=("id", "other", "name")))
    assert _cells(rows) == {"id": ["1", "3"], "name": ['The "Best" One', ":é: the end:"]}
    assert rows.numbers(ROW).tolist() == [1, 3] and [(r.row, r.reason) for r in rows.of.rejections.named] == [
        (2, "has 2 cells, expected 3")
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_delimiter_that_lies_across_two_reads_is_found(size: int) -> None:
    text = b"1::a:b::::3\n::::x:::"
    stream = with_short_delimiter(pa.BufferReader(text), FileFormat(delimiter="::"))
    assert b"".join(iter(lambda: stream.read(size), b"")) == text.replace(b"::", b"\x1f")


def test_rows_keep_their_numbers_through_bad_rows_filters_and_files(tmp_path: Path) -> None:
    (tmp_path / "a1.csv").write_text("id,name\n1,x\n2\n3,y\n4,x,z\n5,x\n")
    (tmp_path / "a2.csv").write_text("name,id\nx,6\ny,7\n")
    table = _load(tmp_path, _source("a*.csv", where='name == "x"'))
    assert table.table.column("id").to_pylist() == ["1", "5", "6"]
    assert table.numbers(ROW).tolist() == [1, 5, 1] and table.numbers(FILE).tolist() == [0, 0, 1]
    assert [(r.file, r.row, r.reason) for r in table.of.rejections.named] == [
        ("a1.csv", 2, "has 1 cells, expected 2"),
        ("a1.csv", 4, "has 3 cells, expected 2"),
    ]


def test_beside_parts_lie_files_of_whoever_wrote_them(tmp_path: Path) -> None:
    for name, text in {"part-0": "id,name\n1,x\n", "part-1": "", "_SUCCESS": "", ".part-0.crc": "crc"}.items():
        (tmp_path / name).write_text(text)
    assert _cells(_load(tmp_path, _source("*"))) == {"id": ["1"], "name": ["x"]}


def test_a_quote_that_stays_open_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,name\n1,x\n"2,y\n3,z\n')
    assert "several lines; with quoted = false" in _load(tmp_path, _source("t.csv")).of.rejections.named[0].reason
    (tmp_path / "t.csv").write_text('id,name\n1,x\n"2,y\n' + f"{'z' * 1_000}\n" * 20_000)
    with pytest.raises(Misconfigured, match='does a " stay open'):
        _load(tmp_path, _source("t.csv"))


def test_bytes_in_parquet_are_text(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({name: pa.array([text.encode() for text in cells], pa.binary()) for name, cells in ROWS.items()}), tmp_path / "t.parquet"
    )
    assert _cells(_load(tmp_path, _source("t.parquet", where='id != "9"'))) == ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_each_value_of_a_cell_may_be_a_row(tmp_path: Path, name: str) -> None:
    cells = [["7-0", "9-1", "8-0"], None, ["7-1"]]
    (tmp_path / "t.csv").write_text("id,name\n" + "".join(f"{n},{' '.join(cell or [])}\n" for n, cell in enumerate(cells)))
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps({'id': n, 'name': cell})}\n" for n, cell in enumerate(cells)))
    pq.write_table(pa.table({"id": ["0", "1", "2"], "name": cells}), tmp_path / "t.parquet")
    rows = _load(tmp_path, _source(name, explode=Column(columns=("name",)), where="id != 1"))
    assert _cells(rows) == {"id": ["0", "0", "0", "2"], "name": ["7-0", "9-1", "8-0", "7-1"]}
    assert rows.numbers(ROW).tolist() == [1, 1, 1, 3]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_lists_of_objects_are_lists_of_their_fields_and_explode_together(tmp_path: Path, name: str) -> None:
    told = [{"id": 0, "e": [{"a": 7, "t": "x"}, {"a": 8, "t": None}]}, {"id": 1, "e": None}, {"id": 2, "e": [{"a": 9, "t": "y"}]}]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in told))
    pq.write_table(pa.Table.from_pylist(told), tmp_path / "t.parquet")
    features = {name: FeatureSource(columns=(f"e.{name}",)) for name in "at"}
    source = Items(file=name, id=Column(columns=("id",)), features=features, explode=Column(columns=("e.a", "e.t")))
    cells = _cells(_load(tmp_path, source))
    assert {name: [*map(str, values)] for name, values in cells.items()} == {"id": [*"002"], "e.a": [*"789"], "e.t": ["x", "None", "y"]}
    pq.write_table(pa.table({"id": [1, 2], "name": [["x"], ["y", "z"]], "other": [["x"], []]}), tmp_path / "u.parquet")
    with pytest.raises(Misconfigured, match=r"u\.parquet .* row 2 has 2 of 'name', 0 of 'other'"):
        _load(tmp_path, _source("u.parquet", explode=Column(columns=("name", "other"))))


def test_rows_of_exploded_cells_come_a_chunk_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.data.files.CHUNK_ROWS", 4)
    (tmp_path / "t.csv").write_text("id,name\n1,a/b c/d/e/f\n2,\n")
    source = _source("t.csv", explode=Column(columns=("name",), separator="/"))
    rejections = Rejections()
    chunks = [rows.tolist() for _, rows in read_chunks(tmp_path / "t.csv", source, common_schema([tmp_path / "t.csv"], source), rejections)]
    assert chunks == [[1, 1, 1, 1], [1]]
    pq.write_table(pa.table({"id": ["0"], "name": [3.5]}), tmp_path / "t.parquet")
    with pytest.raises(Misconfigured, match=r"explode: column 'name' of t\.parquet holds double, expected lists or text"):
        _load(tmp_path, _source("t.parquet", explode=Column(columns=("name",))))


@pytest.mark.parametrize("cells", [[[1.0], [2.0]], [{"a": 1}, {"a": 2}]], ids=["lists", "structs"])
def test_a_column_of_several_values_is_no_id_and_has_no_pattern(tmp_path: Path, cells: list[object]) -> None:
    pq.write_table(pa.table({"id": cells, "name": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(Misconfigured, match=r"\[items\] id: column 'id' of t\.parquet holds .*, expected one value in each row"):
        _load(tmp_path, _source("t.parquet"))
    pq.write_table(pa.table({"id": [1, 2], "name": cells}), tmp_path / "t.parquet")
    assert len(_load(tmp_path, _source("t.parquet"))) == 2
    name = FeatureSource(columns=("name",), pattern="a")
    with pytest.raises(Misconfigured, match=r"\[items\] features\.name: column 'name' of t\.parquet holds"):
        _load(tmp_path, Items(file="t.parquet", id=Column(columns=("id",)), features={"name": name}))


def test_the_limit_counts_rows_that_count(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,name\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(100)))
    table = _load(tmp_path, _source("t.csv", where='name == "y"'), 3)
    assert table.table.column("id").to_pylist() == ["1", "3", "5"]


def test_of_many_rows_that_are_rejected_the_cells_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("id,name\n" + "".join(f"{i},x\n" for i in range(50)))
    source = Items(file="t.csv", id=Column(columns=("id",), pattern="[a-z]+"))
    rows, decoded = _load(tmp_path, source), list[str]()
    monkeypatch.setattr("infra.data.tables.decode_parts", lambda cells, pattern: decoded.append(pattern) or decode_parts(cells, pattern))
    rows.reject_cells(np.arange(50) >= 10, "id", "id")
    assert decoded == ["[a-z]+"] and [r.row for r in rows.of.rejections.named] == list(range(11, 51))
    assert rows.of.rejections.named[0].reason == "no usable id: column 'id' is empty"


def test_a_long_cell_that_is_rejected_is_cut_and_its_length_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"id,name\n{'x' * 200},x\n")
    rows = _load(tmp_path, _source("t.csv"))
    rows.reject_cells(np.array([True]), "id", "id")
    assert rows.of.rejections.named[0].reason == f"no usable id: column 'id' is '{'x' * 60}'... of 200 characters"


def test_a_file_of_only_a_header_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,name\n")
    assert len(_load(tmp_path, _source("t.csv"))) == 0


@pytest.mark.parametrize(("name", "content"), [("t.parquet", b"PAR1 not really"), ("t.csv", b""), ("t.csv", b"id,name\n\xff\xfe\xfa,1\n")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Misconfigured, match=name):
        _load(tmp_path, _source(name))


def test_a_file_that_breaks_off_is_named_with_the_row(tmp_path: Path) -> None:
    lines = "".join(f"{i},{'x' * 400}\n" for i in range(30_000))
    (tmp_path / "t.csv").write_bytes(b"id,name\n" + lines.encode() + b"1,\xff\n")
    with pytest.raises(Misconfigured, match=r"t.csv cannot be read as CSV from row 2\d,\d{3} on: .*column #1"):
        _load(tmp_path, _source("t.csv"))


def test_files_of_one_section_may_differ_in_types_that_hold_each_other(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "name": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([2**40]), "name": pa.array(["x"]).dictionary_encode()}), tmp_path / "b.parquet")
    assert _cells(_load(tmp_path, _source("*.parquet"))) == {"id": [1, 2**40], "name": [None, "x"]}
    pq.write_table(pa.table({"id": pa.array([[1]]), "name": pa.array(["x"])}), tmp_path / "c.parquet")
    with pytest.raises(Misconfigured, match=r"c\.parquet has other types of columns than a\.parquet"):
        _load(tmp_path, _source("*.parquet"))


def test_of_many_rows_every_nth_is_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.data.tables.SAMPLED_ROWS_MAX", 10)
    (tmp_path / "t.csv").write_text("id,name\n" + "".join(f"{i},x\n" for i in range(95)))
    table = load_table(tmp_path, _source("t.csv"), None, Rejections(), SpoolBounds(memory_bytes=1, block_rows=7))
    assert table.sample.table.column("id").to_pylist() == [str(i) for i in range(0, 95, 10)]


@pytest.mark.parametrize("name", ["part-00000", "log.parquet.br"])
def test_parquet_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / name)
    assert _cells(_load(tmp_path, _source(name))) == ROWS


def test_a_row_counts_once_and_rows_beyond_the_bound_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.data.tables.KNOWN_REJECTIONS_MAX", 3)
    found = Rejections()
    for row in (1, 2, 2, 3, 4, 5, 1):
        found.add("items", "a.csv", row, "no id")
    assert len(found) == 5
