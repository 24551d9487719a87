"""What the demo shows of itself: plain scores next to the model, both orders of two stages, and the verdict."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from infra.figures import Figures
from lab.catalogues.catalogue import Evaluation, HeldOutUser
from lab.catalogues.world import World, WorldSize
from lab.catalogues.world_catalogue import WorldCatalogue
from lab.demo import acts, progress
from lab.demo.one_ranking import Change, Line, OneRanking
from lab.demo.program import DEMO
from lab.plain_client import PlainClient, Ranked
from schemas.events import Behaviour
from schemas.ids import Id


def _user(*met: int) -> HeldOutUser:
    behaviours = [Behaviour(user_id=1, item_id=item, kind="click", time_ms=1, features={}) for item in met]
    return HeldOutUser(1, {}, behaviours, np.array([10, 11, 12, 13]), frozenset([13]))


def test_plain_scores_are_those_of_the_evaluation_and_met_categories() -> None:
    catalogue = WorldCatalogue(World(0, WorldSize(items=300, users=20, held_out=3)))
    evaluation = catalogue.evaluation()
    categories = {update.item_id: str(update.features["category"]) for update in catalogue.items()}
    found = acts.plain_scores(catalogue, evaluation, categories)
    for user, scores in zip(evaluation.users, found, strict=True):
        assert {len(score_C) for score_C in scores.values()} == {len(user.candidates)}
        assert {"popularity", "popularity_decayed", "repeats", "item_knn", "ease", "last_item", "favourite categories"} <= scores.keys()
        assert (scores["popularity"] == evaluation.popularity_of(user.candidates)).all()
        met = [behaviour.item_id for behaviour in user.behaviours]
        for item, repeats, liked in zip(user.candidates.tolist(), scores["repeats"], scores["favourite categories"], strict=True):
            assert int(repeats) == met.count(item)
            assert liked == sum(categories[other] == categories[item] for other in met)


class _TwoStages(PlainClient):
    """A server whose ranker finds the relevant item; it had time for the prefixes of even users."""

    def rank_in_two_stages(self, user_id: Id, item_ids: Sequence[Id]) -> Ranked:
        answer: dict[str, Any] = {"items": [{"item_id": 13}], "final": {"rung": "inline" if int(user_id) % 2 else "resident"}}
        return Ranked(answer, 1.0)


def test_two_orders_count_the_first_ten_of_both_and_the_rungs() -> None:
    aif = [list(range(20, 30)), [*range(20, 29), 13], [*range(20, 30), 13]]
    users = tuple(HeldOutUser(number, {}, [], np.array([10, 11, 12, 13]), frozenset([13])) for number in (2, 3, 4))
    with progress.Steps() as steps, steps.step("rank in two stages") as step:
        orders = acts.show_two_orders(_TwoStages("http://nowhere"), Evaluation(users, {}, "HR", 0), aif, step)
    assert (orders.aif, orders.final) == ([0.0, 1.0, 0.0], [1.0] * 3)
    assert step.result == "2 resident, 1 inline" and orders.resident_share == 2 / 3


def test_every_item_of_the_world_has_a_title_of_its_features() -> None:
    catalogue = WorldCatalogue(World(0, WorldSize(items=50, users=2, held_out=1)))
    item = next(catalogue.items())
    assert catalogue.title(item.features).endswith(f", {item.features['price']:.2f}")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> tuple[progress.Steps, io.StringIO]:
    text = io.StringIO()
    monkeypatch.setattr("sys.stderr", text)
    return progress.Steps(), text


def _figures(model: float, plain: float) -> Figures:
    figures = Figures(DEMO)
    for figure in DEMO.figures:
        figures.add(figure.name, {"hr_at_100": model, "plain_hr_at_100": plain}.get(figure.name, 1.0))
    return figures


@pytest.mark.parametrize(
    ("model", "plain", "verdict"), [(0.6, 0.2, "the model beats repeats in HR@100"), (0.2, 0.3, "THE MODEL DOES NOT BEAT repeats")]
)
def test_the_verdict_says_whether_the_model_beats_the_best_plain_score(
    shown: tuple[progress.Steps, io.StringIO], model: float, plain: float, verdict: str
) -> None:
    steps, text = shown
    gain = acts.Quality([model] * 3, plain={"popularity": [0.1] * 3, "repeats": [plain] * 3}).gain("HR@100")
    steps.print_figures(_figures(model, plain), Evaluation((_user(),), {}, "HR", 0), gain)
    assert verdict in text.getvalue() and "repeats" in text.getvalue()


def test_one_order_is_shown_where_no_ranker_answered(shown: tuple[progress.Steps, io.StringIO]) -> None:
    steps, text = shown
    line = Line(1, 7, 1.5, "evening lamp, 19.90", 2)
    for rung, titles in (("aif_order", 2), ("waited", 3)):
        text.truncate(0)
        steps.print_ranking(OneRanking(3000, (), 10_000, 9.5, (line,), (line,), rung, (), (line,)))
        assert text.getvalue().count("evening lamp") == titles


def test_one_ranking_fits_a_terminal_of_120_columns(shown: tuple[progress.Steps, io.StringIO]) -> None:
    steps, text = shown
    line = Line(1, 2**53 - 1, 1.5, "evening lamp, 19.90", 2)
    change = Change("price change of item 7: price 1 -> 2, bid 1 -> 0.8", "rank 1, score 1.500", "rank 2, score 1.400", 12.0)
    steps.print_ranking(OneRanking(3000, (("click", "lamp"),), 10_000, 9.5, (line,), (line,), "resident", (change,), (line,)))
    gain = acts.Quality([0.5], plain={"favourite categories": [0.2]}).gain("HR@100")
    steps.print_figures(_figures(0.5, 0.2), Evaluation((_user(),), {}, "HR", 0), gain)
    assert max(map(len, text.getvalue().splitlines())) <= 120
    assert "visible 12 ms after" in text.getvalue()
