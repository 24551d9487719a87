"""The trigger admits rankings at risk, never passes a bound, and is monotone; the ladder takes the best rung in time."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.model.ranker.spec import RankerSpec
from serving.core.kv_pages import KvPages
from serving.core.relay_rungs import FinalRung, choose_final_rung
from serving.core.relay_trigger import Decision, Load, RelayCosts, count_work, decide, predict_ms, predict_p99_ms

SPEC = RankerSpec()
work = st.floats(0, 1e4)
pages = st.integers(0, 100)


@given(st.booleans(), work, work, pages, pages, st.integers(-1, 1))
def test_nothing_is_admitted_beyond_a_bound(
    at_risk: bool, work_ms: float, left_ms: float, wanted: int, free: int, waiting_free: int
) -> None:
    decision = decide(at_risk, work_ms, Load(left_ms=left_ms), wanted, free, waiting_free)
    has_load = waiting_free > 0 and (work_ms <= left_ms or left_ms >= 200)  # all that a pause saves up
    assert (decision is Decision.ADMITTED) == (at_risk and has_load and wanted <= free)


@given(work, work, pages, pages, work, pages)
def test_what_is_refused_stays_refused_with_more_work_or_less_room(
    work_ms: float, left_ms: float, wanted: int, free: int, more_ms: float, more: int
) -> None:
    if decide(True, work_ms, Load(left_ms=left_ms), wanted, free, 1) is not Decision.ADMITTED:
        assert decide(True, work_ms + more_ms, Load(left_ms=left_ms), wanted + more, free, 1) is not Decision.ADMITTED


@given(st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0, 100), st.floats(0, 100))
def test_the_predicted_percentile_grows_with_service_and_rate(service_ms: float, more_ms: float, per_s: float, more_s: float) -> None:
    least = predict_p99_ms(service_ms, per_s)
    assert service_ms <= least <= predict_p99_ms(service_ms + more_ms, per_s) + 1e-9
    assert least <= predict_p99_ms(service_ms, per_s + more_s) + 1e-9


def test_two_requests_that_meet_by_chance_are_seen_at_low_load() -> None:
    assert predict_p99_ms(10.0, 0.01) == pytest.approx(10.0, abs=0.01)
    assert predict_p99_ms(10.0, 10.0) > 18.0  # one in ten meets another
    assert predict_p99_ms(10.0, 99.0) == math.inf


def test_signals_that_come_together_are_expected_to_meet_however_idle_the_server_was() -> None:
    load = Load().arrive(100.0, share=0.5)
    assert predict_ms(10.0, load) == pytest.approx(10.0, rel=0.01)
    for _ in range(2):
        load = load.arrive(100.001, share=0.5)
    assert predict_ms(10.0, load) == pytest.approx(30.0, rel=0.02)
    assert predict_ms(10.0, load.arrive(110.0, share=0.5)) < 12.0


def test_prefixes_may_take_their_share_of_a_core_and_no_more() -> None:
    load, spent_ms = Load(at_s=0.0, left_ms=0.0), 0.0
    for tick in range(1, 1001):
        load = load.arrive(tick / 100, share=0.5)
        if decide(True, 7.0, load, 0, 0, 1) is Decision.ADMITTED:
            load, spent_ms = load.spend(7.0), spent_ms + 7.0
    assert 4_800 <= spent_ms <= 5_000  # of 10 s
    assert load.per_s == pytest.approx(100, rel=0.02)


def test_a_slow_moment_ends_neither_prefixes_nor_rankings() -> None:
    work, costs, load, admitted = count_work(SPEC, 1_024, 0), RelayCosts(), Load(), 0
    for _ in range(30):
        costs = costs.fold_prefix(work, 60_000.0).fold_rank(work, 60_000.0)
    for tick in range(1, 1_001):
        load = load.arrive(float(tick), share=0.6)
        if decide(True, costs.prefix * work, load, 0, 0, 1) is Decision.ADMITTED:
            load, admitted = load.spend(costs.prefix * work), admitted + 1
            for _ in range(8):  # pieces
                costs = costs.fold_prefix(work / 8, 10.0 / 8)
        if costs.rank * work > 100.0:
            costs = costs.doubt_rank()
    assert admitted > 800 and costs.prefix * work < 11.0 and costs.rank * work <= 100.0


def test_one_measurement_that_is_far_off_changes_a_cost_little() -> None:
    assert RelayCosts().fold_rank(1.0, 1e9).rank < 1.5 * RelayCosts().rank
    assert RelayCosts(rank=1e-9).doubt_rank().rank == 1e-9


def test_the_last_layer_of_a_prefix_attends_to_nothing_and_that_of_candidates_does() -> None:
    one_layer = dataclasses.replace(SPEC, layers=1)
    products, attention = 128 * 5 * SPEC.width**2, 128 * 2 * SPEC.width  # of one layer; the latter of each seen token
    assert count_work(one_layer, 128, 1_000) == 128 * 4 * SPEC.width**2
    assert count_work(one_layer, 128, 1_000, causal=False) == products + 1_001 * attention
    assert count_work(SPEC, 128, 1_000) == count_work(one_layer, 128, 1_000) + products + 1_064 * attention


def test_costs_follow_what_is_measured() -> None:
    costs = RelayCosts()
    for _ in range(100):
        costs = costs.fold_rank(count_work(SPEC, 300, 2_000, causal=False), 8.0)
    assert costs.rank * count_work(SPEC, 300, 2_000, causal=False) == pytest.approx(8.0, rel=0.01)
    assert costs.prefix == RelayCosts().prefix


@pytest.mark.parametrize(
    ("took_ms", "best"),
    [
        ({FinalRung.RESIDENT: 10, FinalRung.INLINE: 1}, FinalRung.RESIDENT),
        ({FinalRung.RESIDENT: 11, FinalRung.WAITED: 10}, FinalRung.WAITED),
        ({FinalRung.EXTENDED: 10, FinalRung.RELOADED: 1}, FinalRung.EXTENDED),
        ({FinalRung.RELOADED: 10, FinalRung.INLINE: 1}, FinalRung.RELOADED),
        ({FinalRung.INLINE: 10, FinalRung.OLDER_PREFIX: 1}, FinalRung.INLINE),
        ({FinalRung.INLINE: 11, FinalRung.OLDER_PREFIX: 10, FinalRung.TRUNCATED: 1}, FinalRung.OLDER_PREFIX),
        ({FinalRung.INLINE: 11, FinalRung.TRUNCATED: 10}, FinalRung.TRUNCATED),
        ({FinalRung.INLINE: 11, FinalRung.TRUNCATED: 11}, FinalRung.AIF_ORDER),
        ({}, FinalRung.AIF_ORDER),
    ],
)
def test_each_rung_is_taken_where_it_is_the_best_in_time(took_ms: dict[FinalRung, float], best: FinalRung) -> None:
    assert choose_final_rung(took_ms, 10) is best


@given(st.lists(st.integers(0, 8), max_size=30), st.randoms())
def test_pages_are_taken_whole_or_not_at_all_and_none_is_lost(counts: list[int], random: object) -> None:
    book, held = KvPages(20), list[list[int]]()
    for count in counts:
        free = book.free
        taken = book.take(count)
        assert (taken is None) == (count > free)
        if taken is not None:
            held.append(taken)
        book.check(held)
        if held and random.random() < 0.5:  # type: ignore[attr-defined]
            book.give_back(held.pop())
    book.check(held)


def test_a_page_held_twice_or_lost_is_found() -> None:
    book = KvPages(4)
    taken = book.take(2)
    assert taken is not None
    with pytest.raises(ValueError, match="lost"):
        book.check([taken[:1]])
    book.give_back(taken[:1])
    with pytest.raises(ValueError, match="held twice"):
        book.check([taken])
