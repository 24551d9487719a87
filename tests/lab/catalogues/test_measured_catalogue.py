"""Who is measured, when, and with which candidates."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.catalogues.measured_catalogue import MeasuredCatalogue, draw_candidates
from schemas.errors import Misconfigured
from schemas.events import ItemFeaturesUpdate
from tests.infra.data.shops import DAY_MS, PLAIN_MAPPING, START_MS, open_items, open_shop

USERS, ITEMS, ROWS = 7, 12, 200
LOG = [(n % USERS, n % ITEMS, START_MS + n * DAY_MS // 2) for n in range(ROWS)]


def open_log(folder: Path, more: str, log: list[tuple[int, int, int]] = LOG) -> MeasuredCatalogue:
    items = "item\n" + "".join(f"{n}\n" for n in range(ITEMS))
    return open_shop(folder, PLAIN_MAPPING + more, items=items, log="user,item,at\n" + "".join(f"{u},{i},{t}\n" for u, i, t in log))


def newest(updates: list[ItemFeaturesUpdate], time_ms: int) -> dict[object, float]:
    return {u.item_id: u.features["taken"] for u in updates if u.version <= time_ms}


def test_a_period_of_several_windows_is_measured_window_by_window(tmp_path: Path) -> None:
    catalogue = open_log(tmp_path, "[impressions]\nwindow_days = 5\n[evaluation]\nfrom = 2024-05-20\n")
    found = list(catalogue.evaluations())
    assert len(found) == len(catalogue.parts) > 2 and found[0].now_ms == catalogue.sources.now_ms
    assert catalogue.parts[-1].end_ms == catalogue.sources.end_ms
    told = list(catalogue.until([part.start_ms for part in catalogue.parts[1:]]).items())
    assert [u for u in told if u.version <= catalogue.sources.now_ms] == list(catalogue.items()), "training sees what it saw"
    for part, evaluation in zip(catalogue.parts, found, strict=True):
        assert newest(told, part.start_ms) == {i: sum(t < part.start_ms for _, item, t in LOG if item == i) for i in range(ITEMS)}
        for user in evaluation.users:
            own = [(i, t) for u, i, t in LOG if u == user.user_id]
            assert [(b.item_id, b.time_ms) for b in user.behaviours] == [(i, t) for i, t in own if t < part.start_ms]
            assert user.relevant == {i for i, t in own if part.start_ms <= t < part.end_ms}


@pytest.mark.parametrize("days", [5, 100])
def test_a_period_in_which_nobody_comes_back_is_refused_whether_it_has_parts_or_not(tmp_path: Path, days: int) -> None:
    strangers = [(n, item, at) for n, (_, item, at) in enumerate(LOG)]
    catalogue = open_log(tmp_path, f"[impressions]\nwindow_days = {days}\n[evaluation]\nfrom = 2024-05-20\n", strangers)
    with pytest.raises(Misconfigured, match="leaves no user to measure on"):
        list(catalogue.evaluations())


def test_a_split_by_user_holds_out_the_latest_fifth_of_each_user(tmp_path: Path) -> None:
    catalogue = open_log(tmp_path, '[evaluation]\nsplit = "user"\n')
    evaluation = catalogue.evaluation()
    assert len(evaluation.users) == USERS and len(list(catalogue.evaluations())) == 1
    for user in evaluation.users:
        own = [(i, t) for u, i, t in LOG if u == user.user_id]
        kept = len(own) - len(own) // 5
        assert [(b.item_id, b.time_ms) for b in user.behaviours] == own[:kept]
        assert user.relevant == {i for i, _ in own[kept:]}
    told = {(b.user_id, b.item_id, b.time_ms) for b in catalogue.behaviours()}
    assert len(told) == sum(len(user.behaviours) for user in evaluation.users)
    counted = newest(list(catalogue.items()), evaluation.now_ms)
    assert sum(counted.values()) == len(told), "no statistic counts what is held out"
    assert all(request.time_ms < evaluation.now_ms for request in catalogue.impressions())
    with pytest.raises(Misconfigured, match=r'split = "user" is for sampled impressions, without from and until'):
        open_log(tmp_path, '[evaluation]\nsplit = "user"\nfrom = 2024-05-20\n').evaluation()


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60)), st.integers(1, 20), st.data())
def test_candidates_hold_the_relevant_then_the_recent_and_no_more_than_asked(
    pool: set[int], recent: set[int], most: int, data: st.DataObject
) -> None:
    relevant = data.draw(st.sets(st.sampled_from(sorted(pool)), min_size=1, max_size=most))
    arrays = (np.array(sorted(places), np.int64) for places in (pool, recent, relevant))
    drawn = draw_candidates(np.random.default_rng(0), *arrays, most).tolist()
    assert relevant <= set(drawn) <= pool
    assert drawn == sorted(set(drawn)) and len(drawn) == min(len(pool), most)
    assert set(drawn) - relevant <= recent or recent & pool <= set(drawn)


def test_changes_for_a_head_that_learns_by_likeness_move_what_it_reads(tmp_path: Path) -> None:
    """It does not read a price, so a demo on such data timed out waiting for another score."""
    text = '[items.features]\nprice = "price"\nstock = { column = "stock", realtime = true }\n[train]\nlearns = "LEARNS"\n'
    for learns, moved in (("likeness", "stock"), ("all", "price")):
        catalogue = open_items(tmp_path, text.replace("LEARNS", learns), id=[1, 2, 3], price=[1.5, 2, 3], stock=[4, 5, 6.5])
        before = {u.item_id: u.features for u in catalogue.items()}
        changes = list(catalogue.price_changes(20, 1))
        assert changes
        assert {name for c in changes for name, value in c.features.items() if value != before[c.item_id][name]} == {moved}
