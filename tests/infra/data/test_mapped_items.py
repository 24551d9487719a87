"""Items that a mapping reads without anything that users did: versions of them, embeddings, clusters."""

from pathlib import Path

import numpy as np
import pytest

from lab.catalogues.open_catalogue import open_mapping
from schemas.errors import Misconfigured
from tests.infra.data.shops import DAY_MS, open_items, write_items


def test_items_alone_can_be_imported_and_say_what_training_needs(tmp_path: Path) -> None:
    mapping = write_items(
        tmp_path,
        '[items]\nfile = "items.csv"\nid = "id"\n[items.features]\nname = "name"\n[embeddings]\ntext = "name"\nwidth = 8\n',
        id=[1, 2, 3, 4],
        name=["blue tea pot", "red tea cup", "garden gnome", ""],
    )
    catalogue = open_mapping(tmp_path, mapping)
    assert [u.item_id for u in catalogue.items()] == [1, 2, 3, 4]
    assert [n.item_id for n in catalogue.new_items()] == [1, 2, 3]
    assert not list(catalogue.behaviours()) and not list(catalogue.users())
    for ask in (lambda: list(catalogue.impressions()), catalogue.evaluation):
        with pytest.raises(Misconfigured, match=r"\[impressions\].*\[behaviours\]"):
            ask()
    assert len(list(catalogue.price_changes(3, 1))) == 3
    assert len(list(catalogue.arrivals(3, 1))) == 3


def test_items_of_one_text_have_embeddings_of_their_own_and_one_cluster(tmp_path: Path) -> None:
    names = ["ice", "ice", "blue tea pot", "red tea pot"]
    features = '[items.features]\ngroup = { clusters = 3 }\n[embeddings]\ntext = "name"\nwidth = 8\n'
    catalogue = open_items(tmp_path, features, id=[1, 2, 3, 4], name=names)
    ice, other, *_ = (n.embedding for n in catalogue.new_items())
    assert ice != other and np.dot(ice, other) > 0.9 * np.linalg.norm(ice) * np.linalg.norm(other)
    groups = [u.features["group"] for u in catalogue.items()]
    assert groups[0] == groups[1] and len(set(groups)) == 3
    together = open_items(tmp_path, features + "apart = false\n", id=[1, 2, 3, 4], name=names)
    ice, other, *_ = (n.embedding for n in together.new_items())
    assert ice == other


def test_vectors_that_are_read_stay_as_they_are_unless_the_mapping_wants_them_apart(tmp_path: Path) -> None:
    text = '[embeddings]\ncolumn = "v"\n'
    columns = {"id": [1, 2], "v": ["[10.0, 20.0, 5.0]"] * 2}
    read = [n.embedding for n in open_items(tmp_path, text, **columns).new_items()]
    assert read == [[10.0, 20.0, 5.0]] * 2
    one, other = (n.embedding for n in open_items(tmp_path, text + "apart = true\n", **columns).new_items())
    assert one != other and np.linalg.norm(np.subtract(one, other)) < 10


def test_items_alone_are_told_with_all_that_their_dates_and_properties_say(tmp_path: Path) -> None:
    text = (
        '[items]\nfile = "items.csv"\nid = "id"\ncreated = "since"\n[item_history]\nfile = "items.csv"\nid = "id"\nknown_after_days = 1\n'
    )
    text += 'time = { value = "2000-01-01" }\n[item_history.features]\ncolour = { column = "value", where = \'name == "colour"\' }\n'
    cells = {"id": [1, 1, 2], "name": ["colour", "size", "colour"], "value": ["red", "5", "blue"], "since": ["2024-01-01"] * 3}
    catalogue = open_mapping(tmp_path, write_items(tmp_path, text, **cells))  # type: ignore[arg-type]
    assert [(u.item_id, u.features) for u in catalogue.items()] == [(1, {"colour": "red"}), (2, {"colour": "blue"})]


def test_several_rows_of_an_item_with_times_are_its_versions(tmp_path: Path) -> None:
    times = ["2024-01-02", "2024-01-01", "2024-01-03 12:00:00"]
    catalogue = open_items(tmp_path, 'time = "at"\n[items.features]\nprice = "price"\n', id=["a", "b", "a"], at=times, price=[1, 2, 3])
    updates = list(catalogue.items())
    assert [(u.item_id, u.features["price"]) for u in updates] == [("b", 2.0), ("a", 1.0), ("a", 3.0)]
    assert updates[2].version - updates[0].version == 2.5 * DAY_MS


def test_vectors_of_another_width_are_named_and_left_out(tmp_path: Path) -> None:
    catalogue = open_items(tmp_path, '[embeddings]\ncolumn = "v"\n', id=[1, 2, 3, 4], v=["[1, 2]", "0.5 0.25", "3", "a b"])
    assert [(n.item_id, n.embedding) for n in catalogue.new_items()] == [(1, [1.0, 2.0]), (2, [0.5, 0.25])]
    assert [r.reason for r in catalogue.rejections.named] == [
        "embedding has 1 numbers, expected 2",
        "embedding has no vector of finite numbers, expected 2",
    ]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["a|b", "b|c", "a", "a|c", "c"], "bag"),
        (["12|x7", "13|y1", "14|z9", "15|q4", "16|p2"], "categorical"),  # two halves of a name: no value comes twice
        (["a|b", "b", "c", "d", "e", "f", "a", "b", "c", "d"], "categorical"),
    ],
)
def test_values_that_come_in_several_combinations_with_bars_between_are_a_bag(tmp_path: Path, cells: list[object], kind: str) -> None:
    catalogue = open_items(tmp_path, '[items.features]\ngenres = "genres"\n', id=list(range(len(cells))), genres=cells)
    assert str(catalogue.schema.item("genres").kind) == kind
    first = next(iter(catalogue.items())).features["genres"]
    assert first == (["a", "b"] if kind == "bag" else cells[0])


def test_a_constant_reads_like_a_column_of_equal_cells(tmp_path: Path) -> None:
    constants = {"tags": '{ value = "a|b", kind = "bag" }', "weight": "{ value = 3 }", "made": '{ value = "here" }'}
    more = "[items.features]\n" + "\n".join(f"{name} = {column}" for name, column in constants.items()) + "\n"
    for update in open_items(tmp_path, more, id=[1, 2]).items():
        assert update.features.items() >= {"tags": ["a", "b"], "weight": 3.0, "made": "here"}.items()
