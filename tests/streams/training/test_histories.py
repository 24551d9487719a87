"""Histories of all users at once: the same fold as serving's, record by record, and the history as of a time by a plain loop."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Behaviour, UserFeaturesRecord
from schemas.features import Scope, encode_features
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.inputs import FeatureTensors
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


def test_a_profile_is_joined_from_the_time_on_since_which_it_holds() -> None:
    spec = small_spec()
    told = [(1, "UK", None), (2, "UK", 100), (3, "FR", None), (3, "UK", 100), (4, "UK", 100), (4, "FR", None)]
    found = fold_users([UserFeaturesRecord(user_id=u, features={"country": c}, time_ms=at) for u, c, at in told], [])
    histories = build_histories(spec, build_item_table(spec, None, [], [], None), found)
    nothing, users = len(found), np.arange(4)
    assert histories.profiles_as_of(users, np.full(4, 100)).tolist() == [0, 1, 2, 3]
    assert histories.profiles_as_of(users, np.full(4, 99)).tolist() == [0, nothing, nothing, 3]
    unknown = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [{}]))
    assert torch.equal(histories.profiles.categorical[nothing:], unknown.categorical)
    assert not torch.equal(histories.profiles.categorical[1:2], unknown.categorical)


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
