"""A state that continues from an earlier one equals the state of the whole history, up to rounding, or it is made from scratch."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.limits import STATE_EXTENSIONS_MAX
from serving.engine.call_one.call_one import find_base
from serving.engine.call_one.user_state import EngineUserState
from serving.engine.devices.cpu import CpuScorer
from serving.engine.work import UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.call_one.test_user_state import assert_equal_up_to_rounding, wanted_arrays
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version

VERSIONS: dict[str, tuple[Version, CpuScorer]] = {}
EXTENDED = sorted(name for name in SPECS if not SPECS[name].recency)
SHORT = {"attended_behaviours": 6, "simtier_behaviours": 9, "sim_behaviours": 3}


def opened(name: str) -> tuple[Version, CpuScorer]:
    if name not in VERSIONS:
        version = make_version(dataclasses.replace(SPECS[name], **SHORT), 60)
        VERSIONS[name] = version, version.scorer()
    return VERSIONS[name]


def assert_same(scorer: CpuScorer, state: EngineUserState, wanted: EngineUserState) -> None:
    assert (state.behaviours, state.behaviours_without_row, state.newest) == (
        wanted.behaviours,
        wanted.behaviours_without_row,
        wanted.newest,
    )
    scores = [scorer.score(one, np.arange(60), CONTEXT)[1] for one in (state, wanted)]
    assert np.abs(scores[0] - scores[1]).max() < 2e-6


@given(st.sampled_from(EXTENDED), st.integers(0, 99), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 30))
@settings(deadline=None, max_examples=20)
def test_going_on_from_a_state_is_making_it_of_the_whole_history(name: str, seed: int, steps: list[int], start: int) -> None:
    version, scorer = opened(name)
    behaviours = make_behaviours(version, start + sum(steps), seed)
    state, at = scorer.user_state(UserWork({}, behaviours[:start], 1)), start
    for step in steps:
        at += step
        extended = scorer.user_state(UserWork(PROFILE, behaviours[:at], 1, state))
        assert extended.extensions == state.extensions + 1
        assert_same(scorer, extended, scorer.user_state(UserWork(PROFILE, behaviours[:at], 1)))
        state = extended
    assert state.extensions == len(steps)


def other_version(work: UserWork) -> UserWork:
    return dataclasses.replace(work, base=dataclasses.replace(work.base, version=2))  # type: ignore[type-var]


def other_history(work: UserWork) -> UserWork:
    events: Any = list(work.behaviours)
    return dataclasses.replace(work, behaviours=[*events[1:], events[0]])


def too_many_new_ones(work: UserWork) -> UserWork:
    return dataclasses.replace(work, behaviours=[*work.behaviours, *work.behaviours])


def too_often(work: UserWork) -> UserWork:
    return dataclasses.replace(work, base=dataclasses.replace(work.base, extensions=STATE_EXTENSIONS_MAX))  # type: ignore[type-var]


def nothing_new(work: UserWork) -> UserWork:
    return dataclasses.replace(work, behaviours=work.behaviours[:20])


@pytest.mark.parametrize("change", [other_version, other_history, too_many_new_ones, too_often, nothing_new])
def test_a_state_that_does_not_fit_is_not_gone_on_from_and_the_answer_is_right_all_the_same(change: Any) -> None:
    version, scorer = opened("full")
    behaviours = make_behaviours(version, 23)
    work = change(UserWork(PROFILE, behaviours, 1, scorer.user_state(UserWork(PROFILE, behaviours[:20], 1))))
    assert find_base(scorer.spec, 1, work) is None
    assert_same(scorer, scorer.user_state(work), scorer.user_state(dataclasses.replace(work, base=None)))


def test_where_recency_counts_the_whole_history_is_read_because_every_behaviour_got_older() -> None:
    version, scorer = opened("recency")
    behaviours = make_behaviours(version, 23)
    work = UserWork(PROFILE, behaviours, 1, scorer.user_state(UserWork(PROFILE, behaviours[:22], 1)))
    state = scorer.user_state(work)
    assert state.extensions == 0
    assert_same(scorer, state, scorer.user_state(dataclasses.replace(work, base=None)))


def test_a_history_longer_than_the_model_reads_is_cut_as_in_training() -> None:
    """The reference network, which training runs, reads the same behaviours, and an earlier state would contain older ones."""
    version = make_version(dataclasses.replace(SPECS["full"], behaviours_max=20, **SHORT), 60)
    scorer, behaviours = version.scorer(), make_behaviours(version, 23)
    state = scorer.user_state(UserWork(PROFILE, behaviours[:19], 1))
    extended = scorer.user_state(UserWork(PROFILE, behaviours[:20], 1, state))
    cut = scorer.user_state(UserWork(PROFILE, behaviours, 1, extended))
    assert (state.behaviours, extended.extensions, cut.behaviours, cut.extensions) == (19, 1, 20, 0)
    assert_same(scorer, cut, scorer.user_state(UserWork(PROFILE, behaviours[3:], 1)))
    assert_equal_up_to_rounding(version, cut.arrays.named(), wanted_arrays(version, PROFILE, behaviours))


def test_a_full_history_is_read_whole_because_its_oldest_behaviours_left(monkeypatch: pytest.MonkeyPatch) -> None:
    version, scorer = opened("full")
    behaviours = make_behaviours(version, 23)
    work = UserWork(PROFILE, behaviours, 1, scorer.user_state(UserWork(PROFILE, behaviours[:20], 1)))
    assert find_base(scorer.spec, 1, work) is not None
    monkeypatch.setattr("serving.engine.call_one.call_one.BEHAVIOURS_PER_USER_MAX", 23)
    assert find_base(scorer.spec, 1, work) is None
