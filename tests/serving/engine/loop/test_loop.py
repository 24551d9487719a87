"""The engine's thread: answers from exactly one version, flips between two pieces of work, bounds, errors that stay with their request."""

import dataclasses
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.ids import encode_index_key
from schemas.index.layout import encode_increment, row_layout
from schemas.limits import CANDIDATES_MAX, DELTA_ROWS_PER_APPLY_MAX, STATE_EXTENSIONS_MAX
from serving.engine.devices.cpu import CpuScorer
from serving.engine.devices.workers import Workers
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import ChangeBatch
from serving.engine.tables.changes import Changes
from serving.engine.work import RankWork, UserWork
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, changes_of_pairs, make_behaviours, make_version, reference_answer, stamp

WAIT_S = 30.0


def make_with_bids(number: int, bid: float, items: int = 200) -> Version:
    """A version whose scores all lie in (0, bid)."""
    version = make_version(SPECS["full"], items, seed=number)
    version.rows["bid"] = bid
    version.tables.columns["bid"][:] = bid
    return version


@pytest.fixture
def engine():
    made = Engine(queue_max=1000)
    made.start()
    yield made
    made.close()


def changes_at(version: Version, number: int, places, rows: np.ndarray, features_version: int, position: int = 1) -> ChangeBatch:
    pairs = [(encode_index_key(version.ids[p]), encode_increment(stamp(features_version, 9), rows[i])) for i, p in enumerate(places)]
    changes = changes_of_pairs(row_layout(version.spec), pairs)
    return ChangeBatch(number, 0, changes, position, {"item-features": position, "new-items": 0}, 77)


def assert_is_reference(result, version: Version, behaviours, places, top_k: int) -> None:
    wanted = reference_answer(version, PROFILE, behaviours, places, top_k)
    scores = {i: s for i, s, _ in reference_answer(version, PROFILE, behaviours, places, len(places))}
    assert np.allclose(result.scores_A, [s for _, s, _ in wanted], rtol=1e-5)
    assert all(np.isclose(scores[i], s, rtol=1e-5) for i, s in zip(result.ids, result.scores_A.tolist(), strict=True))
    assert len(result.ids) == len(set(result.ids)) == min(top_k, len(places))


def test_a_rank_is_the_reference_answer_in_both_calls_and_in_one(engine: Engine) -> None:
    version = make_version(SPECS["full"])
    engine.install(version.resident()).result(WAIT_S)
    user, places = UserWork(PROFILE, make_behaviours(version, 30)), list(range(0, 300, 2))
    first = engine.submit_user(user).result(WAIT_S)
    ids = [version.ids[p] for p in places]
    two = engine.submit_rank(RankWork([*ids, 123456, ids[0]], 20, state=first.state, context=CONTEXT)).result(WAIT_S)
    one = engine.submit_rank(RankWork(np.array(ids), 20, user=user, context=CONTEXT)).result(WAIT_S)
    assert_is_reference(two, version, user.behaviours, places, 20)
    assert two.ids == one.ids and np.array_equal(two.scores_A, one.scores_A) and two.token == one.token == first.token
    assert (two.unknown, two.unknown_count, two.candidates, one.unknown_count) == ([123456], 1, len(places) + 1, 0)


def test_under_flips_every_answer_is_computed_from_exactly_the_version_its_token_names(engine: Engine) -> None:
    """The bids of the two versions differ by a factor of a thousand, so a mixed answer would lie outside both ranges or differ from both."""
    versions = {1: make_with_bids(1, 1.0), 2: make_with_bids(2, 1000.0)}
    residents = {n: v.resident(n) for n, v in versions.items()}
    engine.install(residents[1]).result(WAIT_S)
    engine.admit(residents[2]).result(WAIT_S)
    work = {n: UserWork(PROFILE, make_behaviours(v, 10)) for n, v in versions.items()}
    states = {n: engine.submit_user(UserWork(PROFILE, work[n].behaviours, version=n)).result(WAIT_S).state for n in versions}
    ids, answers, stop = versions[1].ids[:150], [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(engine.submit_rank(RankWork(ids, 30, user=work[1], context=CONTEXT)).result(WAIT_S))
            answers.append(engine.submit_rank(RankWork(ids, 30, state=states[1], context=CONTEXT)).result(WAIT_S))
            answers.append(engine.submit_rank(RankWork(ids, 30, state=states[2], context=CONTEXT)).result(WAIT_S))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for flip in range(30):
        engine.install(residents[1 + flip % 2]).result(WAIT_S)
        engine.submit_user(work[2]).result(WAIT_S)
    stop.set()
    for thread in threads:
        thread.join()
    wanted = {n: reference_answer(v, PROFILE, work[1].behaviours, range(150), 30) for n, v in versions.items()}
    own = {n: reference_answer(v, PROFILE, work[n].behaviours, range(150), 30) for n, v in versions.items()}
    for answer in answers:
        n = answer.token.version
        by_state = answer.state is states[1] or answer.state is states[2]
        assert answer.state.version == n and (not by_state or answer.state is states[n])
        reference = (own if by_state else wanted)[n]
        assert np.allclose(answer.scores_A, [s for _, s, _ in reference], rtol=1e-5)
    assert {a.token.version for a in answers} == {1, 2}


def test_changes_are_applied_between_two_pieces_of_work_and_the_answer_says_how_far(engine: Engine) -> None:
    version = make_with_bids(1, 1.0)
    engine.install(version.resident()).result(WAIT_S)
    rows = version.rows.copy()
    rows["bid"] = 500.0
    assert engine.offer_changes(changes_at(version, 1, [5], rows[5:6], 2, position=41))
    result = engine.submit_rank(RankWork(version.ids, 1, context=CONTEXT)).result(WAIT_S)
    assert result.ids == [version.ids[5]] and result.watermark[0]["item-features"] == 41
    assert engine.status().residents[0].source_ms == {0: 77}
    gone = changes_of_pairs(row_layout(version.spec), [(encode_index_key(version.ids[5]), encode_increment(stamp(3, 9, dead=1), None))])
    assert engine.offer_changes(ChangeBatch(1, 0, gone, 42))
    after = engine.submit_rank(RankWork(version.ids, 1, context=CONTEXT)).result(WAIT_S)
    assert after.unknown == [version.ids[5]] and after.ids != result.ids and engine.status().residents[0].positions == {0: 42}


def test_a_shard_that_was_set_back_moves_no_claim_until_it_is_ahead_in_every_topic(engine: Engine) -> None:
    version = make_with_bids(1, 1.0)
    engine.install(version.resident()).result(WAIT_S)

    def claims(features: int, new_items: int, position: int) -> dict[str, int]:
        offsets = {"item-features": features, "new-items": new_items, "index-deltas": position}
        assert engine.offer_changes(ChangeBatch(1, 0, None, position, offsets, 1))
        return dict(engine.submit_rank(RankWork(version.ids, 1, context=CONTEXT)).result(WAIT_S).watermark[0])

    assert claims(10, 5, 1) == {"item-features": 10, "new-items": 5, "index-deltas": 1}
    assert claims(8, 7, 2) == {"item-features": 10, "new-items": 5, "index-deltas": 2}
    assert claims(10, 7, 3) == {"item-features": 10, "new-items": 7, "index-deltas": 3}


def test_changes_that_cannot_be_applied_move_no_claim_and_the_version_answers_on_without_later_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = make_with_bids(1, 1.0)
    resident = version.resident()
    engine.install(resident).result(WAIT_S)
    with monkeypatch.context() as broken:
        broken.setattr(version.tables, "apply", lambda changes, covered: 1 // 0)
        assert engine.offer_changes(changes_at(version, 1, [5], version.rows, 2, position=41))
        engine.run(lambda: None).result(WAIT_S)
        engine.run(lambda: None).result(WAIT_S)  # two turns: the change is taken in the first one at the latest
    assert engine.offer_changes(changes_at(version, 1, [5], version.rows, 3, position=42))
    result = engine.submit_rank(RankWork(version.ids, 1, context=CONTEXT)).result(WAIT_S)
    (report,) = engine.status().residents
    assert result.ids and result.watermark[0]["item-features"] == 0 and (report.positions, report.changes_applied) == ({0: 0}, 0)
    assert resident.error == "row changes of version 1 from partition 0 failed: integer division or modulo by zero"


def test_one_turn_applies_a_bounded_number_of_rows_and_requests_get_their_turn_in_a_flood(engine: Engine) -> None:
    version = make_with_bids(1, 1.0)
    resident = version.resident()
    engine.install(resident).result(WAIT_S)
    sizes, apply = [], version.tables.apply

    def recorded(changes: Changes, covered: int):
        sizes.append(len(changes))
        return apply(changes, covered)

    version.tables.apply = recorded  # type: ignore[method-assign]
    held: Future[None] = Future()
    blocked = engine.run(lambda: held.result(WAIT_S))
    for turn in range(20):
        engine.offer_changes(changes_at(version, 1, range(150), version.rows, 2 + turn, position=turn))
    seen = engine.submit_rank(RankWork(version.ids, 1))
    held.set_result(None)
    blocked.result(WAIT_S)
    assert seen.result(WAIT_S).watermark[0]["item-features"] < 19
    assert max(sizes) <= DELTA_ROWS_PER_APPLY_MAX
    engine.run(lambda: None).result(WAIT_S)


def test_a_bad_request_fails_alone_and_the_engine_goes_on(engine: Engine) -> None:
    version = make_version(SPECS["full"])
    engine.install(version.resident()).result(WAIT_S)
    bad = {
        "bad_id": RankWork(["x"], 5),
        "bad_top_k": RankWork(version.ids, 0),
        "too_many_candidates": RankWork(np.zeros(CANDIDATES_MAX + 1, np.int64), 5),
    }
    for code, work in bad.items():
        with pytest.raises(RejectedInput, match=code):
            engine.submit_rank(work).result(WAIT_S)
    with pytest.raises(AttributeError):
        engine.submit_user(UserWork({}, [None])).result(WAIT_S)  # type: ignore[list-item]
    assert len(engine.submit_rank(RankWork(version.ids, 5)).result(WAIT_S).ids) == 5
    engine.run(lambda: None).result(WAIT_S)  # a batch is counted after its last answer
    assert (engine.status().failed, engine.status().answered) == (4, 1)


def test_without_a_version_and_beyond_the_queue_the_answer_is_unavailable_at_once() -> None:
    engine = Engine(queue_max=2)
    engine.start()
    with pytest.raises(Unavailable, match="no_version"):
        engine.submit_user(UserWork()).result(WAIT_S)
    held, begun = Future(), threading.Event()
    blocked = engine.run(lambda: (begun.set(), held.result(WAIT_S)))
    assert begun.wait(WAIT_S)
    waiting = [engine.submit_user(UserWork()) for _ in range(2)]
    refused = engine.submit_rank(RankWork([1], 1))
    assert refused.done() and refused.exception().code == "overloaded" and refused.exception().retry_after_s > 0
    closing = threading.Thread(target=engine.close)
    closing.start()
    held.set_result(None)
    closing.join()
    blocked.result(WAIT_S)
    assert {f.exception(WAIT_S).code for f in waiting} <= {"stopping", "no_version"}
    assert engine.submit_user(UserWork()).exception(0).code == "stopping"


def test_a_state_of_the_former_version_is_ranked_on_it_until_its_arena_is_released_and_then_says_so(engine: Engine) -> None:
    versions = {n: make_with_bids(n, 10.0**n) for n in (1, 2)}
    engine.install(versions[1].resident()).result(WAIT_S)
    state = engine.submit_user(UserWork(PROFILE)).result(WAIT_S).state
    engine.install(versions[2].resident(2)).result(WAIT_S)
    work = RankWork(versions[1].ids, 3, state=state)
    assert engine.submit_rank(work).result(WAIT_S).token.version == 1
    assert not engine.release(2, 0.0).result(WAIT_S), "the current version is never released"
    assert not engine.release(1, 60.0).result(WAIT_S), "a state was made less than the grace ago"
    assert engine.release(1, 0.0).result(WAIT_S)
    with pytest.raises(Incompatible, match="version_gone"):
        engine.submit_rank(work).result(WAIT_S)
    with pytest.raises(Incompatible, match="version_gone"):
        engine.submit_user(UserWork(version=1)).result(WAIT_S)
    assert not engine.offer_changes(ChangeBatch(1, 0, None, 1))


def test_while_a_version_is_loaded_again_each_copy_takes_its_own_changes_and_the_served_one_answers(engine: Engine) -> None:
    first, second = make_with_bids(1, 1.0), make_with_bids(1, 1.0)
    served, loading = first.resident(), second.resident()
    engine.install(served).result(WAIT_S)
    engine.admit(loading).result(WAIT_S)
    assert engine.offer_changes(changes_at(first, 1, [0], first.rows[:1], 2, position=41), served)
    assert engine.offer_changes(changes_at(first, 1, [0], first.rows[:1], 2, position=7), loading)
    engine.run(lambda: None).result(WAIT_S)
    engine.run(lambda: None).result(WAIT_S)
    (shown,) = engine.status().residents
    assert shown.positions[0] == 41 == engine.submit_rank(RankWork(first.ids, 1)).result(WAIT_S).watermark[0]["item-features"]
    assert loading.positions[0] == 7
    engine.install(loading).result(WAIT_S)
    assert not engine.offer_changes(ChangeBatch(1, 0, None, 1), served) and engine.offer_changes(ChangeBatch(1, 0, None, 1), loading)


class Meeting:
    """A scorer whose user halves and rankings begin only together, and whose user half ends only after a ranking, or a change of rows, is through."""

    def __init__(self, scorer: CpuScorer) -> None:
        self._scorer, self._met, self._other, self.order = scorer, threading.Barrier(2), threading.Event(), list[str]()
        self.entered, self.begun = threading.Event(), lambda: None
        self.parameters, self.tiers_by, self.device_error = scorer.parameters, scorer.tiers_by, ""

    def user_state(self, work: UserWork):
        self.entered.set()
        self._met.wait(WAIT_S)
        self.begun()
        assert self._other.wait(WAIT_S)
        self._other.clear()
        self._other.wait(0.1)  # time for a change that does not wait for this
        self.order.append("user")
        return self._scorer.user_state(work)

    def score(self, state, row_C: np.ndarray, context):
        self._met.wait(WAIT_S)
        scored = self._scorer.score(state, row_C, context)
        self.order.append("rank")
        self._other.set()
        return scored

    def on_applied(self, applied) -> None:
        self.order.append("changes")
        self._other.set()


def test_a_batchs_user_halves_are_made_beside_its_rankings_and_changes_wait_for_both(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engine.loop.engine.WORKERS", Workers(2, binds=False))
    version, hold = make_version(SPECS["full"]), threading.Event()
    resident, behaviours = version.resident(), make_behaviours(version, 5)
    state = resident.scorer.user_state(UserWork(PROFILE, behaviours))
    meeting = resident.scorer = Meeting(version.scorer())
    meeting.begun = lambda: engine.offer_changes(changes_at(version, 1, [0], version.rows[:1], 2))
    engine.install(resident).result(WAIT_S)
    engine.run(lambda: hold.wait(WAIT_S))  # until both wait
    user = engine.submit_user(UserWork(PROFILE, make_behaviours(version, 30)))
    ranked = engine.submit_rank(RankWork(version.ids, 20, state, context=CONTEXT))
    hold.set()
    assert_is_reference(ranked.result(WAIT_S), version, behaviours, range(len(version.ids)), 20)
    assert user.result(WAIT_S).state.behaviours == 30
    engine.run(lambda: None).result(WAIT_S)
    engine.run(lambda: None).result(WAIT_S)  # two turns: the change is applied in the first one at the latest
    assert meeting.order == ["rank", "user", "changes"]
    assert (engine.status().answered, engine.status().failed) == (2, 0)


def test_a_ranking_that_comes_while_a_long_user_half_is_made_does_not_wait_for_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engine.loop.engine.WORKERS", Workers(2, binds=False))
    monkeypatch.setattr("serving.engine.loop.engine.LONG_HISTORY", 29)
    version = make_version(SPECS["full"])
    resident = version.resident()
    state = resident.scorer.user_state(UserWork(PROFILE, make_behaviours(version, 5)))
    meeting = resident.scorer = Meeting(version.scorer())
    engine.install(resident).result(WAIT_S)
    user = engine.submit_user(UserWork(PROFILE, make_behaviours(version, 30)))
    assert meeting.entered.wait(WAIT_S)
    assert engine.submit_rank(RankWork(version.ids, 20, state, context=CONTEXT)).result(WAIT_S).candidates == len(version.ids)
    assert user.result(WAIT_S).state.behaviours == 30 and meeting.order == ["rank", "user"]


def test_a_half_is_long_whose_earlier_state_cannot_be_gone_on_from(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engine.loop.engine.WORKERS", Workers(2, binds=False))
    monkeypatch.setattr("serving.engine.loop.engine.LONG_HISTORY", 29)
    version = make_version(SPECS["full"])
    resident, behaviours = version.resident(), make_behaviours(version, 31)
    engine.install(resident).result(WAIT_S)
    base = resident.scorer.user_state(UserWork(PROFILE, behaviours[:30], 1))
    worn = dataclasses.replace(base, extensions=STATE_EXTENSIONS_MAX)
    assert [engine.is_long(UserWork(PROFILE, behaviours, 1, earlier)) for earlier in (None, base, worn)] == [True, False, True]
    assert [engine.count_unread(UserWork(PROFILE, behaviours, 1, earlier)) for earlier in (None, base, worn)] == [31, 1, 31]
    assert not engine.is_long(UserWork(PROFILE, behaviours, 2, worn)), "a version that is not resident fails at once"


def test_what_is_withdrawn_answers_nothing_more_and_the_served_copy_of_its_version_stays(engine: Engine) -> None:
    version = make_version(SPECS["full"])
    served, copy, other = version.resident(), version.resident(), version.resident(2)
    engine.install(served).result(WAIT_S)
    for admitted in (copy, other):
        engine.admit(admitted).result(WAIT_S)
        gate = threading.Event()
        engine.run(lambda gate=gate: gate.wait(WAIT_S))
        waiting = engine.submit_rank(RankWork(version.ids, 5, user=UserWork(version=admitted.version)))
        withdrawn = engine.withdraw(admitted)
        gate.set()
        withdrawn.result(WAIT_S)
        assert [report.token for report in engine.status().residents] == [served.token]
        if admitted is copy:
            assert waiting.result(WAIT_S).token == served.token
        else:
            with pytest.raises(Incompatible, match="version_gone"):
                waiting.result(WAIT_S)
    assert engine.run(lambda: engine.find_resident(1)).result(WAIT_S) is served


def test_a_cancelled_request_is_not_computed(engine: Engine) -> None:
    engine.install(make_version(SPECS["full"], 10).resident()).result(WAIT_S)
    held: Future[None] = Future()
    engine.run(lambda: held.result(WAIT_S))
    waiting = engine.submit_rank(RankWork([1], 1))
    assert waiting.cancel()
    held.set_result(None)
    engine.run(lambda: None).result(WAIT_S)
    assert engine.submit_rank(RankWork([1], 1)).result(WAIT_S).unknown_count == 1
    engine.run(lambda: None).result(WAIT_S)  # a batch is counted after its last answer
    assert engine.status().answered == 1
