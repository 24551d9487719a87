"""A log of few requests: a training learns by likeness alone, and the dry run says so; a log of many trains as usual."""

from pathlib import Path

import numpy as np
import pytest

from infra.data.choices import describe_choices
from infra.data.mapping import read_mapping
from infra.data.sampled_impressions import REQUESTS_FEW, ROUNDS_OF_FEW
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.ids import Id
from schemas.train_choices import ALL, LIKENESS

DAY_S, DAYS, ITEMS = 86_400, 300, 200
MAPPING = '[items]\nfile = "log.csv"\nid = "item"\n{}[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\ntime = "at"\n{}'


def _open(folder: Path, users: int, of_items: str = "", end: str = "") -> MeasuredCatalogue:
    """Every user takes something in each window of four weeks."""
    rng = np.random.default_rng(0)
    rows = [
        f"{user},i{rng.integers(ITEMS)},{1_600_000_000 + int((day + rng.random()) * DAY_S)}\n"
        for user in range(users)
        for day in range(0, DAYS, 14)
    ]
    (folder / "log.csv").write_text("user,item,at\n" + "".join(rows))
    (folder / "m.toml").write_text(MAPPING.format(of_items, end))
    return MeasuredCatalogue(read_mapping(folder / "m.toml"), folder)


@pytest.mark.parametrize(("users", "learns", "rounds"), [(50, LIKENESS, ROUNDS_OF_FEW), (400, ALL, 1)])
def test_few_requests_teach_likeness_alone_and_are_asked_again_with_other_items(
    tmp_path: Path, users: int, learns: str, rounds: int
) -> None:
    catalogue = _open(tmp_path, users, end="[impressions]\nmoments = 0\n")
    assert catalogue.train.learns == learns
    assert any(choice.startswith("learns: likeness") for choice in describe_choices(catalogue)) == (learns == LIKENESS)
    asked: dict[tuple[Id, int], list[frozenset[Id]]] = {}
    for request in catalogue.impressions():
        asked.setdefault((request.user_id, request.time_ms), []).append(frozenset(shown.item_id for shown in request.items))
    assert (len(asked) < REQUESTS_FEW) == (learns == LIKENESS) and {len(samples) for samples in asked.values()} == {rounds}
    last_ms = max(time_ms for _, time_ms in asked)
    assert all(len(set(samples)) == rounds for (_, time_ms), samples in asked.items() if time_ms == last_ms), (
        "each with a sample of its own"
    )


@pytest.mark.parametrize(
    ("of_items", "end"),
    [
        ("popularity = false\n", ""),
        ("[items.features]\ntaken = { count = 'taken' }\n", ""),
        ("", '[train]\nlearns = "all"\n'),
        ("", '[train]\nstart = "random"\n'),
    ],
)
def test_without_vectors_of_what_was_taken_together_or_as_the_mapping_says_all_is_learnt(tmp_path: Path, of_items: str, end: str) -> None:
    assert _open(tmp_path, 50, of_items, end).train.learns == ALL
