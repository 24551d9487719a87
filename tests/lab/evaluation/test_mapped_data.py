"""One model on mapped files: candidates as matrices, plain scores, and figures with paired gains."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from infra.figures import Figures
from lab.catalogues.catalogue import Evaluation, HeldOutUser
from lab.evaluation import mapped_data
from lab.evaluation.candidates import collect_candidates
from lab.evaluation.mapped_data import (
    DATA,
    DataOptions,
    add_data_figures,
    measure,
    model_scores,
    run_data,
)
from lab.evaluation.rungs import RUNGS
from schemas.events import Behaviour
from schemas.model.checkpoint import read_checkpoint
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.comparison import MODEL, compare, judge
from streams.training.impressions import join_events
from streams.training.measures import UserValues
from streams.training.plain_scores import simple_scores
from streams.training.questions import ask, score_tasks
from tests.infra.data.shops import write_number_shop, write_text_shop
from tests.streams.training.shop import shop


def evaluation() -> Evaluation:
    met = [Behaviour(user_id=1, item_id=item, time_ms=5) for item in (10, 10, 12)]
    return Evaluation(
        (HeldOutUser(1, {}, met, np.array([10, 11, 12]), frozenset({10, 11})), HeldOutUser(2, {}, [], np.array([11, 12]), frozenset({12}))),
        {11: 4.0, 12: 1.0},
        "recall",
        9,
    )


def test_candidates_stand_in_rows_and_a_shorter_row_is_padded() -> None:
    found = collect_candidates(evaluation())
    assert found.ids_UC.tolist() == [[10, 11, 12], [11, 12, None]]
    assert found.present().tolist() == [[True, True, True], [True, True, False]]
    assert found.relevant_UC.tolist() == [[True, True, False], [False, True, False]]
    assert found.met_UC.tolist() == [[2, 0, 1], [0, 0, 0]] and found.popularity_UC.tolist() == [[0, 4, 1], [4, 1, 0]]


def test_repeats_come_first_and_popularity_decides_among_equals() -> None:
    candidates = collect_candidates(evaluation())
    found = simple_scores(candidates.popularity_UC, candidates.met_UC)["repeats"]
    assert np.argsort(-found[0], kind="stable").tolist() == [0, 2, 1] and found[1, 0] > found[1, 1]


def test_what_a_user_has_met_counts_in_gauc_and_not_in_gauc_new() -> None:
    candidates = collect_candidates(evaluation())
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 1.0, 9.0]])
    found = measure(candidates, scores, 100)
    assert found["gauc"].value_U.tolist() == pytest.approx([0.5, 1.0]) and found["gauc"].weight_U.tolist() == [2, 1]
    assert found["gauc_new"].weight_U.tolist() == [0, 1]  # only item 11 is new to user 1: no pair
    assert found["recall_at_100"].value_U.tolist() == [1.0, 1.0]
    assert measure(candidates, scores, 2)["recall_at_2"].value_U.tolist() == [0.5, 1.0]


def test_users_are_measured_alike_together_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, scores = collect_candidates(evaluation()), np.array([[3.0, 1.0, 2.0], [0.0, 1.0, 9.0]])
    together = measure(candidates, scores, 2)
    monkeypatch.setattr(mapped_data, "PAIRS_AT_ONCE", 3)
    one_by_one = measure(candidates, scores, 2)
    for name, values in together.items():
        assert (
            one_by_one[name].value_U.tolist() == values.value_U.tolist() and one_by_one[name].weight_U.tolist() == values.weight_U.tolist()
        )


def test_the_model_is_measured_by_the_formula_that_it_is_served_by() -> None:
    """As serving ranks: by every task and the bid with their exponents, not by the click alone."""
    spec, events = shop()
    spec = dataclasses.replace(spec, tasks=("click", "buy"), rank_by="click * buy^0.5 * bid^0.25")
    data = join_events(spec, make_w_hash(0, spec.hash_bits, spec.schema.mm_width), events, every_item=True)
    torch.manual_seed(0)
    network = AifNetwork(spec, make_w_hash(0, spec.hash_bits, spec.schema.mm_width))
    asked = Evaluation((HeldOutUser(1, {}, [], np.array([0, 1, 2, 77], object), frozenset({1})),), {}, "recall", 300)
    found = model_scores(network, data, asked, collect_candidates(asked))
    p = 1 / (1 + np.exp(-score_tasks(network, ask(data, [1], 300, np.array([[0, 1, 2]], object))).astype(float)))
    bids = data.items.bid_R.numpy()[data.items.rows_as_of(np.array([0, 1, 2]), np.full(3, 300))]
    np.testing.assert_allclose(found[0, :3], p[0, :, 0] * p[0, :, 1] ** 0.5 * bids**0.25, rtol=1e-6)
    assert found[0, 3] == -1.0, "what the log does not describe comes last"


def test_the_gain_is_over_the_best_plain_score_of_each_measure() -> None:
    def level(value: float) -> dict[str, UserValues]:
        return {"gauc": UserValues(np.full(5, value), np.ones(5))}

    figures = Figures(DATA)
    add_data_figures(figures, "shop", {"popularity": level(0.6), "repeats": level(0.7), "aif": level(0.75)})
    assert figures.value("shop.aif.gauc_gain") == pytest.approx(0.05) and figures.value("shop.aif.gauc_low") == pytest.approx(0.75)


def test_a_model_that_is_not_better_than_a_plain_score_is_named_with_the_score() -> None:
    def users(value: float) -> dict[str, UserValues]:
        return {name: UserValues(np.linspace(value - 0.1, value + 0.1, 9), np.ones(9)) for name in ("gauc", "recall_at_100")}

    figures = Figures(DATA)
    better, worse = users(0.8), users(0.5)
    warnings = add_data_figures(figures, "shop", {"popularity": worse, "item_knn": {**worse, "gauc": better["gauc"]}, "aif": users(0.7)})
    assert figures.value("shop.best_plain.gauc") == pytest.approx(0.8)
    assert "DOES NOT BEAT item_knn in gauc: 0.7000 against 0.8000, a gain of -0.1000 [-0.1000, -0.1000]" in warnings[0]
    assert "only 9 are measured" in warnings[1] and len(warnings) == 2


def test_a_measure_of_nobody_has_no_winner() -> None:
    of_all, of_nobody = UserValues(np.ones(200), np.ones(200)), UserValues(np.zeros(200), np.zeros(200))
    found = judge(compare({name: {"gauc": of_all, "gauc_new": of_nobody} for name in (MODEL, "popularity")}))
    assert found == [found[0], "only 0 are measured: the intervals are rough, measure more"] and " in gauc: " in found[0]


def test_with_impressions_the_first_figure_is_the_order_of_the_items_shown_later(tmp_path: Path) -> None:
    mapping = write_number_shop(tmp_path)
    figures = run_data(DataOptions(tmp_path, mapping, steps=3, batch_requests=8, hash_bits=64))
    named = list(figures.as_dict()["figures"])
    assert named[0].endswith("gauc_shown")
    prefix = named[0].partition(".")[0]
    for score in ("aif", "best_plain", "item_rate", "popularity", "trees"):
        assert 0 <= figures.value(f"{prefix}.{score}.gauc_shown") <= 1  # type: ignore[operator]
    assert f"{prefix}.aif.gauc_shown_gain_low" in named and f"{prefix}.item_rate.recall_at_100" in named


def test_a_whole_run_gives_every_figure_and_a_checkpoint_that_carries_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "files"
    files.mkdir()
    mapping = write_text_shop(files)
    out = tmp_path / "shop.safetensors"
    figures = run_data(DataOptions(files, mapping, 3, "softmax", 4e-3, 8, 64, 0, out, "2024-04-01", "2024-04-08", rungs=True))
    assert (figures.config["from"], figures.config["until"]) == ("2024-04-01T00:00:00+00:00", "2024-04-08T00:00:00+00:00")
    assert "--split user measures users who do not come back" in capsys.readouterr().err
    named = figures.as_dict()["figures"]
    prefix = next(name for name in named if name.endswith(".aif.gauc")).removesuffix(".aif.gauc")
    for score in ("aif", "popularity", "popularity_decayed", "repeats", "item_knn", "ease", "last_item", "best_plain"):
        for name in ("gauc", "gauc_new", "recall_at_100"):
            assert {f"{prefix}.{score}.{name}{end}" for end in ("", "_low", "_high")} <= named.keys()
    fresh, *others = (figures.value(f"{prefix}.rung.{rung}.gauc") for rung in RUNGS)
    assert fresh == figures.value(f"{prefix}.aif.gauc") and all(one != fresh for one in others)
    card = read_checkpoint(out).info.card
    assert card[f"{prefix}.aif.gauc"] == figures.value(f"{prefix}.aif.gauc") and card["steps"] == 3


def test_the_command_line_comes_before_the_catalogue() -> None:
    options = DataOptions(Path(), Path(), steps=9, loss="click")
    chosen = options.train(TrainChoices(steps=5, batch_requests=7, softmax=0.5))
    assert (chosen.steps, chosen.batch_requests) == (9, 7)
    assert (chosen.click, chosen.softmax, chosen.copr) == (1.0, 0.0, 0.0)
