"""Histories of all users at once: the same fold as serving's, record by record, and the history as of a time by a plain loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Behaviour, UserFeaturesRecord
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile
from streams.training.histories import build_histories, fold_users
from streams.training.item_table import build_item_table
from tests.schemas.catalogue import small_spec

ACTIONS = st.lists(st.tuples(st.sampled_from(["u1", "u2", "ü3"]), st.integers(0, 5), st.integers(0, 30)), max_size=40)


def behaviours_of(actions: list[tuple[str, int, int]]) -> list[Behaviour]:
    return [Behaviour(user_id=user, item_id=number, time_ms=at) for user, number, at in actions]


@given(ACTIONS)
def test_folding_all_at_once_is_folding_record_by_record(actions: list[tuple[str, int, int]]) -> None:
    profiles = [UserFeaturesRecord(user_id="u1", features={"country": c}) for c in ("UK", "FR")]
    one_by_one: dict[str, UserHistory] = {}
    for offset, profile in enumerate(profiles):
        fold_profile(one_by_one.setdefault("u1", UserHistory()), offset, profile.features)
    for offset, (user, number, at) in enumerate(actions):
        fold_behaviours(one_by_one.setdefault(user, UserHistory()), offset, [BehaviourEvent(number, "click", at)])
    found = fold_users(profiles, behaviours_of(actions))
    assert {u: (h.profile, h.behaviours) for u, h in found.items()} == {u: (h.profile, h.behaviours) for u, h in one_by_one.items()}


def test_only_the_newest_behaviours_are_kept() -> None:
    more = BEHAVIOURS_PER_USER_MAX + 3
    found = fold_users([], (Behaviour(user_id=1, item_id=n, time_ms=n) for n in range(more)))
    assert [e.item_id for e in found[1].behaviours] == list(range(3, more))


@given(ACTIONS, st.integers(0, 31))
def test_a_history_as_of_a_time_ends_at_the_first_behaviour_that_is_not_before_it(
    actions: list[tuple[str, int, int]], time_ms: int
) -> None:
    """A late event stands where the log has it, so nothing behind an event of the future is known either."""
    spec = small_spec()
    found = fold_users([], behaviours_of(actions))
    histories = build_histories(spec, build_item_table(spec, None, [], [], None), found)
    users = np.arange(len(found))
    ends = histories.ends_as_of(users, np.full(len(found), time_ms))
    for user, history in found.items():
        number = histories.index[user]
        known = 0
        while known < len(history.behaviours) and history.behaviours[known].time_ms < time_ms:
            known += 1
        assert ends[number] - histories.begin_U[number] == known
