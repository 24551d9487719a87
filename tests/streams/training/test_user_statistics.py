"""Statistics of users as training reads them: counted from the log before each request, or as they were sent before it."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import ImpressionRecord, UserFeaturesRecord
from schemas.features import Feature, Scope
from schemas.ids import IdKind
from schemas.kinds import NUMERIC
from schemas.model.spec import ModelSpec
from schemas.statistics import CLICK, HOUR_MS, MINUTE_MS, Log, Measure, Statistic, smoothed_rates, window_begin
from schemas.users import BehaviourEvent, UserHistory
from streams.training.following.view import View
from streams.training.histories import fold_users
from streams.training.impressions import Events, TrainingSet, join_events, join_table
from streams.training.item_table import build_item_table
from streams.training.questions import ask
from streams.training.user_statistics import CountedStatistics
from tests.schemas.catalogue import small_spec
from tests.streams.training.shop import shop, shown

STATISTICS = {
    "taken": Statistic(Log.BEHAVIOURS, Measure.EXACT),
    "buying_1h": Statistic(Log.BEHAVIOURS, Measure.RATE, ("buy",), window_ms=HOUR_MS),
    "first": Statistic(Log.BEHAVIOURS, Measure.FIRST, ("buy",)),
}
DID = Feature("did", Scope.USER, NUMERIC, statistic=Statistic(Log.BEHAVIOURS, Measure.EXACT))
CLICKED = Feature("clicked", Scope.USER, NUMERIC, statistic=Statistic(Log.IMPRESSIONS, Measure.EXACT, (CLICK,)))


def counting_spec() -> ModelSpec:
    spec = small_spec()
    return dataclasses.replace(spec, schema=dataclasses.replace(spec.schema, features=(*spec.schema.features, DID, CLICKED)))


def read(data: TrainingSet) -> list[list[float]]:
    """(did, clicked) as a batch has them, by request."""
    numbers = data.batch(np.arange(len(data))).users.profile.numeric
    return numbers[:, -2:].tolist()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["click", "buy"]), st.integers(0, 9 * HOUR_MS)), max_size=30),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9 * HOUR_MS)), min_size=1, max_size=5),
)
def test_counts_hold_what_came_strictly_before(events: list[tuple[int, str, int]], asked: list[tuple[int, int]]) -> None:
    histories = {u: UserHistory(behaviours=[BehaviourEvent(1, kind, at) for user, kind, at in events if user == u]) for u in range(3)}
    counted = CountedStatistics(STATISTICS, histories, ())
    asked += [(user, at) for user, _, at in events[:5]]
    raw = counted.raw([user for user, _ in asked], np.array([at for _, at in asked]))
    for n, (user, at) in enumerate(asked):
        before = [(u, kind, t) for u, kind, t in events if t < at]
        assert raw["taken"][n] == sum(u == user for u, _, _ in before)
        bought = [t for u, kind, t in before if (u, kind) == (user, "buy")]
        assert raw["first"][n] == ((at - min(bought)) // (24 * HOUR_MS) if bought else None)
        lately = [(u, kind) for u, kind, t in before if t >= window_begin(at, HOUR_MS)]
        all_bought = sum(kind == "buy" for _, kind in lately)
        own = np.array([sum(u == user and kind == "buy" for u, kind in lately)]), np.array([sum(u == user for u, _ in lately)])
        assert raw["buying_1h"][n] == smoothed_rates(*own, all_bought, len(lately))[0]
    assert window_begin(61 * MINUTE_MS, HOUR_MS) == MINUTE_MS


def test_a_batch_has_the_numbers_as_of_each_request_over_those_of_the_profile() -> None:
    _, events = shop()
    profile = UserFeaturesRecord(user_id=1, features={"country": "UK", "did": 77.0})
    told = dataclasses.replace(events, users=[profile])
    data = join_events(counting_spec(), None, told)
    assert read(data) == [[2.0, 0.0], [4.0, 1.0], [0.0, 0.0]], "a click of 150 is not known at 150"
    assert read(data.take(np.array([1]))) == [[4.0, 1.0]]
    assert read(ask(data, [1, 2], 151, np.array([[1], [1]]))) == [[3.0, 1.0], [0.0, 2.0]], "one of the clicks is of an unknown item"
    users = fold_users(told.users, told.behaviours)
    table = build_item_table(counting_spec(), None, told.items, told.new_items, None)
    frozen = join_table(counting_spec(), table, users, told.impressions, frozen_ms=60)
    assert read(frozen) == [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    assert read(ask(frozen, [1], 151, np.array([[1]]))) == [[3.0, 1.0]], "a later question knows more"


def test_requests_after_a_time_see_items_and_histories_as_of_it() -> None:
    """Plain scores are counted up to that time, so a model that saw more would be compared unequally."""
    spec, events = shop()
    users = fold_users(events.users, events.behaviours)
    table = build_item_table(spec, None, events.items, events.new_items, None)
    later = ImpressionRecord(request_id="z", user_id=1, time_ms=300, items=shown(IdKind.INT64, (1, True), (0, False)))
    told, asked = (join_table(spec, table, users, [later], frozen_ms=ms) for ms in (None, 110))
    assert [table.version_R[data.row_QC[0, 0]] for data in (told, asked)] == [200, 100]
    assert [int(data.batch(np.array([0])).users.behaviours.mask_BL.sum()) for data in (told, asked)] == [4, 1]


def test_a_follower_reads_the_numbers_that_were_sent_before_each_request() -> None:
    _, events = shop()
    sent = [
        UserFeaturesRecord(op="statistics", user_id=1, features={"did": float(at), "clicked": 1.0}, time_ms=at) for at in (40, 140, 250)
    ]
    sent += [UserFeaturesRecord(user_id=1, features={"country": "UK"})]
    view = View(counting_spec(), None)
    view.fold(Events(events.items, events.new_items, sent, events.behaviours, []))
    assert read(view.join(events.impressions)) == [[140.0, 1.0], [250.0, 1.0], [0.0, 0.0]]
