"""What somebody gets who maps other data for the first time: each mistake is named, with the file, the column and what to write instead."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.data.inferred_schema import infer_feature
from infra.data.mapping import Items
from infra.data.mapping_source import Column, FeatureSource
from infra.data.spool import Spool, SpoolBounds
from infra.data.tables import LoadedTable, Rejections
from schemas.errors import Misconfigured
from schemas.features import Scope

MAPPING = """[items]
file = "books.tsv"
id = "isbn"
created = "added"
[items.features]
pages = "pages"
[embeddings]
column = "vector"
[behaviours]
file = "loans.tsv"
user = "card"
item = "isbn"
time = "when"
where = "count > 0"
[evaluation]
from = 2024-03-20
"""


def _try(folder: Path, before: str, after: str) -> str:
    """What a dry run says on standard error; raises what it raises."""
    assert before in MAPPING
    books = "".join(f"{i}\tthe book {i}\t{i * 9}\t2024-01-0{1 + i % 9}\t{i}.5 1.0\n" for i in range(20))
    loans = "".join(f"c{i % 4}\t{i % 20}\t2024-03-{1 + i // 7:02d}\t1\tlend\n" for i in range(200))
    (folder / "books.tsv").write_text("isbn\tname\tpages\tadded\tvector\n" + books)
    (folder / "loans.tsv").write_text("card\tisbn\twhen\tcount\twhat\n" + loans)
    (folder / "books.json").write_text("[\n{}]")
    (folder / "books.xlsx").write_text("PK")
    (folder / "books.csv").write_text("17,the book,9\n")
    (folder / "twice.csv").write_text("user,age,user\n1,2,3\n")
    (folder / "days").mkdir(exist_ok=True)
    (folder / "wide.tsv").write_text("card\tisbn\twhen\n1\t2\t3\n", encoding="utf-16")
    (folder / "lines.txt").write_text('{"card": 1, "isbn": 2}\n')
    (folder / "shop.toml").write_text(MAPPING.replace(before, after))
    result = CliRunner().invoke(build_app(), ["import", str(folder), "--mapping", str(folder / "shop.toml"), "--dry-run"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stderr


def test_the_mapping_without_a_mistake_is_read(tmp_path: Path) -> None:
    assert "warning" not in _try(tmp_path, "card", "card") and "rejected" not in _try(tmp_path, "card", "card")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            'time = "when"',
            'time = "what"',
            "[behaviours] none of its 200 rows can be used; row 1 of loans.tsv: no usable time: column 'what' is 'lend'; a time that is not ISO",
        ),
        ("from = 2024-03-20", "from = 2030-01-01", "must lie within the positives, which are from 2024-03-01"),
        ("from = 2024-03-20", "from = 1999-01-01", "must lie within the positives"),
        (
            'time = "when"',
            'time = { column = "when", time_format = 5 }',
            "[behaviours] time.time_format is 5, expected text or a list of texts",
        ),
        ('user = "card"', "user = { column = 5 }", "[behaviours] user.column is 5, expected text"),
        ('column = "vector"', 'column = "vector"\nseparator = 5', "separator is 5, expected text"),
        (
            'pages = "pages"',
            'pages = { column = "name", kind = "numeric" }',
            "no cell of column 'name' is a number; the first is 'the book 0'",
        ),
        ('pages = "pages"', 'pages = { column = "pages", knd = "numeric" }', "did you mean 'kind'"),
        ('column = "vector"', 'column = "name"', "[embeddings] no cell of name is a vector: a list, or numbers"),
        ('pages = "pages"', 'pages = { column = "name", kind = "embedding" }', "or semicolons; the first is 'the book 0'"),
        ('time = "when"', 'time = "when"\ndelimiter = ","', "reads as one column: is its `delimiter` another?"),
        ('time = "when"', 'time = "when"\ndelimiter = "many words"', "expected one character, several like '::', or tab"),
        (
            'time = "when"',
            'time = "when"\nheader = ["card", "isbn", "when"]',
            "header names 3 columns, but the first row of loans.tsv has 5",
        ),
        ('time = "when"', 'time = "when"\nheader = ["card", "card"]', "expected different names"),
        ('pages = "pages"', 'pages = { column = "pages", pattern = "(" }', "which is no regular expression"),
        (
            'pages = "pages"',
            'pages = { column = "pages", where = "pages > 1" }',
            "has a where of its own, which is for features of item_history",
        ),
        ('"books.tsv"', '"books.xlsx"', "books.xlsx is Excel, expected CSV, JSON lines or Parquet"),
        ('"books.tsv"', '"books.json"', "books.json cannot be read as JSON lines: expected one JSON object a line, its first line is "),
        ('"books.tsv"', '"books.csv"', 'where the first line is data already, name the columns: header = ["user", "item", "time"]'),
        (
            "from = 2024-03-20",
            "from = 2024-03-20\nuntil = 2024-03-20",
            "until = 2024-03-20 must come after the time from which is measured",
        ),
        ('time = "when"', 'time = "when"\nencoding = "utf-9"', "encoding is 'utf-9'"),
        (
            "[evaluation]",
            '[impressions]\nfile = "loans.tsv"\nuser = "card"\nitem = "isbn"\ntime = "when"\nclicked = "what"\n[evaluation]',
            "no cell of its column is a flag",
        ),
        (
            "[evaluation]",
            '[impressions]\nfile = "loans.tsv"\nuser = "card"\nitem = "isbn"\nclicked = "count"\n[evaluation]',
            "needs request, or a time",
        ),
        ('id = "isbn"', 'id = "isbn"\nwhere = "pages < 0"', "gives no item: no row of books.tsv counts"),
        (
            'id = "isbn"',
            'id = { column = "isbn", pattern = "x" }',
            "has an id; books.tsv row 1 [items]: no usable id: column 'isbn' is empty",
        ),
        (
            'pages = "pages"',
            'pages = "pages"\n[users]\nfile = "twice.csv"\nid = "user"',
            "twice.csv has 2 columns 'user', expected one; rename",
        ),
        (
            'user = "card"',
            'user = "card"\nexplode = { column = "what", pattern = "x" }',
            "explode needs columns of lists or of text, like",
        ),
        ('"loans.tsv"', '"days"', "[behaviours] file = 'days' is a folder; its files are 'days/*'"),
        ('"loans.tsv"', '"wide.tsv"', "are these characters of another `encoding`"),
        ('"loans.tsv"', '"lines.txt"', "lines of JSON are read from a file whose name ends in .jsonl"),
        ('time = "when"', 'time = { column = "when", time_format = "%d.%m.%Y" }', "time_format ['%d.%m.%Y'] does not fit"),
        (
            "[evaluation]\nfrom = 2024-03-20",
            "[impressions]\nwindow_days = 90",
            "evaluation at 2024-03-25T00:00:00+00:00: the positives are from 2024-03-01T00:00:00+00:00 to 2024-03-29T00:00:00+00:00; give a smaller one",
        ),
        (
            'time = "when"\nwhere = "count > 0"\n[evaluation]\nfrom = 2024-03-20',
            'time = { value = "2024-03-20" }',
            "gives every positive one time, 2024-03-20",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, before: str, after: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(words)):
        _try(tmp_path, before, after)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            'user = "card"\nitem = "isbn"\ntime = "when"\nwhere = "count > 0"\n',
            'user = { value = 1 }\nitem = "isbn"\ntime = "when"\n[impressions]\nmoments = 0\n',
            "no impressions came of 200 positives, so this catalogue cannot train a model",
        ),
        ('id = "isbn"\ncreated = "added"', 'id = "isbn"\ncreated = "pages"', "the times of [items] created are from 1970-01-01T00:00:00"),
        ("count > 0", "count > 9", "no row of loans.tsv counts: [behaviours] where keeps none"),
        (
            'created = "added"',
            'created = { column = "added", time_format = "%d.%m.%Y" }',
            "no usable time of creation, taken as always there",
        ),
    ],
)
def test_what_can_be_imported_but_looks_wrong_is_said(tmp_path: Path, before: str, after: str, words: str) -> None:
    said = " ".join(_try(tmp_path, before, after).split())
    assert words in said


@pytest.mark.parametrize("cells", [[{"n": 1}], [[{"n": "a"}, {"n": "b"}]], [[[1.5], [2.5]]]])
def test_structs_and_lists_of_lists_are_no_categories(cells: list[object]) -> None:
    source, items = FeatureSource(name="facts", columns=("facts",)), Items(file="items.csv", id=Column(columns=("id",)))
    facts = pa.table({"facts": cells})
    table = LoadedTable(items, Spool(facts.schema, SpoolBounds()), (), Rejections(), {})
    with pytest.raises(
        Misconfigured,
        match=r"'facts': column 'facts' holds (struct|list)<.*name a field of a struct, like 'facts.NAME'; .* as separate columns",
    ):
        infer_feature(source, Scope.ITEM, table.rows(facts))
