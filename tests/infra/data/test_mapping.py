"""Mapping files: what is wrong is named with its key and the nearest right one."""

from pathlib import Path

import pytest

from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.errors import Misconfigured
from tests.infra.data.shops import write_items

ITEMS = '[items]\nfile = "items.csv"\nid = "id"\n'
LOG = '[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\n'


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "m.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[items\] is missing"),
        ("[items\n", "cannot be read as TOML"),
        ('[item]\nfile = "x"\n', r"m\.toml: item is not known here; did you mean 'items'\?"),
        ('[items]\nfile = "x"\nidd = "a"\n', r"\[items\] idd is not known here; did you mean 'id'"),
        ('[items]\nfile = "x"\n', r"\[items\] id is missing"),
        (ITEMS + 'creatd = "a"\n', r"\[items\] creatd is not known here; did you mean 'created'\?"),
        (ITEMS + '[items.features]\na = { colum = "x" }\n', r"features\.a colum is not known here; did you mean 'column'"),
        (ITEMS + '[items.features]\na = { column = "x", kind = "number" }\n', "kind is 'number', expected one of categorical, numeric"),
        (ITEMS + "[items.features]\na = 3\n", "features.a is 3, expected a column name"),
        (ITEMS + "[items.features]\na = { kind = 'numeric' }\n", "needs exactly one of column, columns, prefix and value"),
        (ITEMS + '[schema]\nid_kind = "int32"\n', "expected one of int64, text"),
        (ITEMS + '[schema]\nbidd = "x"\n', r"\[schema\] bidd is not known here; did you mean 'bid'"),
        (ITEMS + '[model]\nrankby = "click"\n', r"\[model\] rankby is not known here; did you mean 'rank_by'"),
        (ITEMS + "[embeddings]\nwidth = 3\n", "exactly one of column, columns, prefix and text"),
        (ITEMS + "[impressions]\nnegatives = 0\n", "negatives is 0, expected a whole number from 1"),
        (ITEMS + "[impressions]\nnegatives = 500\n", "2004 items a request, expected at most 1000"),
        (ITEMS + '[evaluation]\ncandidates = "some"\n', "expected one of all, recent"),
        (ITEMS + 'where = "a = b"\n', "texts need quotes"),
        (ITEMS + 'where = "a"\n', "does not read at 'a'"),
        (ITEMS + 'where = [["a", "~", 1]]\n', "with an op of =="),
        (ITEMS + 'where = "a in 3"\n', "need a list"),
        (ITEMS + "[users.features]\ncount = { count_days = 3 }\n", r"\[users\] file is missing"),
        (ITEMS + "[items.features]\na = { count_days = 3, clusters = 4 }\n", "derive features of .items., one of them a feature"),
        (ITEMS + '[items.features]\na = { days_since = "ever" }\n', "days_since is 'ever', expected one of first, last"),
        (ITEMS + '[items.features]\na = { count_days = 3, of = "buyers" }\n', "of is 'buyers', expected one of behaviours, users"),
        (ITEMS + '[items.features]\na = { clusters = 4, of = "users" }\n', "of says what count_days counts"),
        (ITEMS + "[items.features]\na = { expected_days = 0 }\n", "expected_days is 0, expected a number above 0"),
        (ITEMS + "[items.features]\na = { taken_together = 1 }\n", "expected a whole number from 2"),
    ],
)
def test_a_wrong_mapping_is_named_with_key_and_expectation(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        read_mapping(_write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[items]\nfile = "itms.csv"\nid = "id"\n', "'itms.csv' is not in .*did you mean 'items.csv'"),
        ('[items]\nfile = "../items.csv"\nid = "id"\n', "must lie inside the data folder"),
        ('[items]\nfile = "items.csv"\nid = "idd"\n', r"\[items\] id: items.csv has no column 'idd'; did you mean 'id'"),
        (ITEMS + '[items.features]\nprice = "prise"\n', r"features\.price: items.csv has no column 'prise'; did you mean 'price'"),
        (ITEMS + 'where = "pricee > 1"\n', r"where: items.csv has no column 'pricee'; did you mean 'price'"),
        (ITEMS + '[embeddings]\nprefix = "emb_"\n', "no column of items.csv is 'emb_' and a number"),
        (
            ITEMS + '[schema]\nbid = "cpc"\n[items.features]\nprice = "price"\n',
            r"\[schema\] bid names 'cpc', which is no feature of \[items\]",
        ),
        (ITEMS + 'where = "price > 100"\n', r"\[items\] gives no item"),
        (ITEMS + "[items.features]\nc = { clusters = 4 }\n", r"needs a section \[embeddings\]"),
        (
            ITEMS + '[items.features]\nprice = { column = "price", buckets = "x", kind = "categorical" }\n',
            "buckets is 'x', expected a whole number",
        ),
        (ITEMS + '[behaviours]\nfile = "items.csv"\nuser = "id"\nitem = "id"\nkind = "buy"\n', r"no column 'buy'.*value = "),
        (
            ITEMS + '[behaviours]\nfile = "items.csv"\nuser = "id"\nitem = "id"\n[impressions]\npositive_kinds = ["buy"]\n',
            "names 'buy', which no behaviour is",
        ),
    ],
)
def test_a_mapping_that_does_not_fit_the_files_is_named(tmp_path: Path, text: str, message: str) -> None:
    mapping = write_items(tmp_path, text, id=[1, 2], price=[3.5, 4])
    with pytest.raises(Misconfigured, match=message):
        list(MeasuredCatalogue(read_mapping(mapping), tmp_path).items())


def test_embeddings_take_file_id_and_filter_of_the_items(tmp_path: Path) -> None:
    mapping = read_mapping(_write(tmp_path, ITEMS + 'where = "price > 1"\n[embeddings]\nprefix = "e"\n'))
    source = mapping.embeddings
    assert source is not None and source.file == "items.csv" and source.where == mapping.items.where
    assert source.roles["id"] == mapping.items.roles["id"]


@pytest.mark.parametrize(("line", "words"), [("learning_rat = 1", "did you mean 'learning_rate'"), ("steps = -1", "steps = -1")])
def test_how_to_train_is_checked_when_the_mapping_is_read(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(f'[items]\nfile = "a.csv"\nid = "id"\n[train]\n{line}\n')
    with pytest.raises(Misconfigured, match=rf"m\.toml: \[train\].*{words}"):
        read_mapping(path)


def test_a_mapping_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(ITEMS, "utf-8-sig")
    assert read_mapping(path) == read_mapping(_write(tmp_path, ITEMS))
