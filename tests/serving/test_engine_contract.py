"""What the front relies on in an engine, run on the fake of the fast tests and on the real one: the fake may not promise anything else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from schemas.errors import Incompatible, Unavailable
from schemas.ids import Id
from schemas.users import BehaviourEvent
from serving.engine.work import RankWork, UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version, running_engine, token_of
from tests.serving.fake_engine import FakeEngine

TOKENS = {number: token_of(number) for number in (1, 2, 3)}
WAIT_S = 30


@dataclass
class Subject:
    """An engine without a version, its known ids, and how it flips; at most two versions are resident."""

    engine: Any
    known: list[Id]
    flip: Callable[[int], None]


def open_fake() -> Iterator[Subject]:
    engine = FakeEngine(current=None)

    def flip(number: int) -> None:
        engine.previous, engine.current = engine.current, TOKENS[number]

    yield Subject(engine, list(range(20)), flip)


def open_real() -> Iterator[Subject]:
    version, flips = make_version(SPECS["full"], 40), list[int]()

    def flip(number: int) -> None:
        engine.install(version.resident(number)).result(WAIT_S)
        flips.append(number)
        if len(flips) > 2:
            assert engine.release(flips[-3], 0.0).result(WAIT_S)

    with running_engine() as engine:
        yield Subject(engine, version.ids[:20], flip)


@pytest.fixture(params=[open_fake, open_real], ids=["fake", "real"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    yield from request.param()


def history(subject: Subject) -> UserWork:
    return UserWork({"age": 1.0}, [BehaviourEvent(subject.known[0], "click", 1)])


def test_without_a_version_both_calls_are_unavailable(subject: Subject) -> None:
    assert subject.engine.status().current is None
    for future in (subject.engine.submit_user(UserWork()), subject.engine.submit_rank(RankWork([subject.known[0]], 1))):
        with pytest.raises(Unavailable) as caught:
            future.result(WAIT_S)
        assert caught.value.code == "no_version"


def test_call_one_answers_from_the_current_version_or_the_one_that_is_named(subject: Subject) -> None:
    subject.flip(1)
    assert subject.engine.submit_user(UserWork()).result(WAIT_S).state.cold
    subject.flip(2)
    results = [subject.engine.submit_user(UserWork(version=v)).result(WAIT_S) for v in (None, 1, 2)]
    assert [r.token for r in results] == [TOKENS[2], TOKENS[1], TOKENS[2]]
    assert [r.state.version for r in results] == [2, 1, 2]
    made = subject.engine.submit_user(history(subject)).result(WAIT_S).state
    assert (made.cold, made.behaviours, made.behaviours_without_row) == (False, 1, 0) and made.size_bytes > 0


def test_a_version_that_is_gone_is_refused(subject: Subject) -> None:
    subject.flip(1)
    state = subject.engine.submit_user(history(subject)).result(WAIT_S).state
    subject.flip(2)
    assert subject.engine.submit_rank(RankWork(subject.known, 3, state)).result(WAIT_S).token == TOKENS[1]
    subject.flip(3)
    for future in (
        subject.engine.submit_user(UserWork(version=1)),
        subject.engine.submit_rank(RankWork(subject.known, 3, state)),
        subject.engine.submit_rank(RankWork(subject.known, 3, user=UserWork(version=1))),
    ):
        with pytest.raises(Incompatible) as caught:
            future.result(WAIT_S)
        assert caught.value.code == "version_gone"


@pytest.mark.parametrize("as_array", [True, False])
def test_an_answer_counts_each_candidate_once_names_the_unknown_and_orders_by_score_then_id(subject: Subject, as_array: bool) -> None:
    subject.flip(1)
    strange = [9_000_001, 9_000_002]
    asked = [*subject.known, *strange, subject.known[0]]
    result = subject.engine.submit_rank(RankWork(np.array(asked) if as_array else asked, 5, user=history(subject))).result(WAIT_S)
    assert (result.candidates, result.unknown_count, result.unknown) == (22, 2, strange)
    assert len(result.ids) == len(set(result.ids)) == 5 and set(result.ids) <= set(subject.known)
    assert all(type(i) is int for i in result.ids)
    keys = [(-score, i) for score, i in zip(result.scores_A.tolist(), result.ids, strict=True)]
    assert keys == sorted(keys) and result.probabilities_AT.shape == (5, 1)
    assert not result.state.cold
    nothing = subject.engine.submit_rank(RankWork(strange, 5)).result(WAIT_S)
    assert (nothing.ids, nothing.unknown_count, nothing.state.cold) == ([], 2, True)
    assert nothing.scores_A.shape == (0,) and nothing.probabilities_AT.shape == (0, 1)
    assert subject.engine.submit_rank(RankWork([], 5)).result(WAIT_S).candidates == 0


def test_the_status_names_the_current_version_and_all_residents(subject: Subject) -> None:
    subject.flip(1)
    subject.flip(2)
    status = subject.engine.status()
    assert status.current == subject.engine.current == TOKENS[2]
    assert [subject.engine.find_token(version) for version in (1, 2, 3)] == [TOKENS[1], TOKENS[2], None]
    assert {report.token for report in status.residents} == {TOKENS[1], TOKENS[2]}
    assert all(report.watermark and report.rows > 0 for report in status.residents)
