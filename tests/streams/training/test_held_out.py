"""What a card says of a model's quality: on users who are not learnt, with the measures that the tables have."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from schemas.events import ImpressionRecord, ItemFeaturesUpdate
from schemas.ids import IdKind
from schemas.model.network import AifNetwork
from streams.training import held_out
from streams.training.held_out import HeldOut, keep_out
from streams.training.impressions import TrainingSet, join_events
from tests.streams.training.shop import shop, shown


def joined(users: range, clicked: tuple[int, bool] = (1, True)) -> TrainingSet:
    """Two requests of each user, in which item 1 was clicked and item 0 was not."""
    spec, events = shop()
    impressions = [
        ImpressionRecord(request_id=f"{u}-{n}", user_id=u, time_ms=300 + n, items=shown(IdKind.INT64, clicked, (0, False)))
        for u in users
        for n in range(2)
    ]
    return join_events(spec, None, dataclasses.replace(events, impressions=impressions))


def users_of(data: TrainingSet) -> set[object]:
    names = list(data.histories.index)
    return {names[u] for u in data.user_Q}


def test_a_user_is_learnt_or_kept_out_as_a_whole_and_by_the_id_alone() -> None:
    learnt, held = keep_out(joined(range(1, 400)), 0.1)
    assert len(learnt) + len(held) == 2 * 399 and not users_of(learnt) & users_of(held) and 20 <= len(users_of(held)) <= 60
    assert users_of(keep_out(joined(range(1, 900)), 0.1)[1]) >= users_of(held)
    learnt, held = keep_out(joined(range(1, 400)), 0.0)
    assert (len(learnt), len(held)) == (2 * 399, 0)
    assert len(keep_out(joined(range(1, 900)), 0.5)[1]) == held_out.REQUESTS_MAX


def test_of_a_few_users_nobody_is_kept_out() -> None:
    one = next(iter(users_of(keep_out(joined(range(1, 400)), 0.1)[1])))
    learnt, held = keep_out(joined(range(int(str(one)), int(str(one)) + 1)), 0.1)
    assert (len(learnt), len(held)) == (2, 0)


@pytest.mark.parametrize(("sign", "auc", "recall"), [(1, 1.0, 1.0), (-1, 0.0, 0.0)])
def test_clicked_items_are_looked_for_among_those_shown_and_drawn(
    sign: int, auc: float, recall: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a model that knows the clicks, and by its opposite; of the shop's items known by then, two were shown and one is drawn."""
    learnt, held = keep_out(joined(range(1, 400)), 0.1)

    def score(_: AifNetwork, asked: TrainingSet) -> np.ndarray:
        known = asked.row_QC >= 0
        assert (known.sum(axis=1) == 3).all()
        rows: Any = np.where(known, asked.row_QC, 0)
        return sign * (rows == held.row_QC[:, :1])[..., None].astype(np.float32)

    monkeypatch.setattr(held_out, "score_tasks", score)
    monkeypatch.setattr(held_out, "K", 1)
    found = HeldOut(learnt, held).measure(None)  # type: ignore[arg-type]
    assert found is not None and found["gauc"] == [auc] * 3 and found["recall_at_1"] == [recall] * 3
    # Others clicked the same item, so its popularity knows as much as the model that knows the clicks.
    best = found["best_plain"]["gauc"]
    assert best["value"] == [1.0] * 3 and best["gain"] == [auc - 1.0] * 3 and "DOES NOT BEAT popularity in gauc" in found["verdict"][0]
    assert (found["requests"], found["users"]) == (len(held), len(users_of(held)))


def pairs_shown(users: int, apart: int, items: list[ItemFeaturesUpdate]) -> TrainingSet:
    """A request of each user at 300, with two items of which the first is clicked; the items of the next user come `apart` later."""
    spec, events = shop()
    impressions = [
        ImpressionRecord(request_id=str(u), user_id=u, time_ms=300, items=shown(IdKind.INT64, (apart * u, True), (apart * u + 1, False)))
        for u in range(users)
    ]
    return join_events(spec, None, dataclasses.replace(events, items=items, impressions=impressions), every_item=True)


def test_a_model_that_tells_nothing_apart_finds_the_clicked_by_chance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown items come before those drawn, and ties are broken by the order: it must not reveal the clicks."""
    items = [ItemFeaturesUpdate(item_id=n, version=0, features={"category": 1, "price": 1.0, "stock": 1}) for n in range(1_500)]
    held = pairs_shown(200, 7, items)
    monkeypatch.setattr(held_out, "score_tasks", lambda network, asked: np.zeros((*asked.row_QC.shape, 1), np.float32))
    found = HeldOut(held, held).measure(None)  # type: ignore[arg-type]
    assert found is not None and found["gauc"][0] == 0.5 and 0.05 < found["recall_at_100"][0] < 0.15


def test_a_request_whose_items_came_later_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held = pairs_shown(30, 2, [ItemFeaturesUpdate(item_id=n, version=0 if n < 40 else 500, features={"category": 1}) for n in range(60)])
    monkeypatch.setattr(held_out, "score_tasks", lambda network, asked: np.zeros((*asked.row_QC.shape, 1), np.float32))
    found = HeldOut(held, held).measure(None)  # type: ignore[arg-type]
    assert found is not None and (len(held), found["requests"], found["users"]) == (30, 20, 20)


def test_an_interval_is_over_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the users are ranked rightly, the others wrongly: a hundred requests of each of four users are no four hundred observations."""
    spec, events = shop()
    impressions = [
        ImpressionRecord(request_id=f"{u}-{n}", user_id=u, time_ms=300 + n, items=shown(IdKind.INT64, (u % 2, True), (1 - u % 2, False)))
        for u in range(4)
        for n in range(100)
    ]
    held = join_events(spec, None, dataclasses.replace(events, impressions=impressions))
    monkeypatch.setattr(held_out, "score_tasks", lambda _, asked: asked.row_QC[..., None].astype(np.float32))
    found = HeldOut(held, held).measure(None)  # type: ignore[arg-type]
    assert found is not None and found["gauc"] == [0.5, 0.0, 1.0] and "only 4 are measured" in found["verdict"][-1]


def test_nothing_is_said_where_no_request_has_both_a_click_and_an_item_without_one() -> None:
    for data in (joined(range(1, 5)).take(np.array([], np.int64)), joined(range(1, 5), (1, False))):
        assert HeldOut(data, data).measure(None) is None  # type: ignore[arg-type]
