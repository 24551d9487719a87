"""The rollback rule: the reports that count, the rollbacks that it never makes, and that it cannot flap."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.index.control import ControlState, encode_entry, fold_entry
from schemas.index.lifecycle import EntryKind
from streams.core.misbehaviour import REPORTS_KEPT, Report, ReportHistory, ReportRules, fold_report, plan_rollback, sum_reports
from tests.schemas.index.entries import act, lived, log

RULES = ReportRules(window_s=60.0, answers_min=100)
NOW = 1_000_000


def history_of(*reports: Report) -> ReportHistory:
    found: ReportHistory = {}
    for report in reports:
        found = fold_report(found, report, 0)
    return found


def said(server: str = "a", version: int = 2, at_ms: int = NOW - 5_000, answers: int = 1_000, **what: float) -> Report:
    return Report(server, version, at_ms, answers, **{"candidates": 1_000 * answers, **what})  # type: ignore[arg-type]


TWO = log(*lived(1, 2))
BEFORE = said(version=1, at_ms=NOW - 500_000, processor_ms=8_000.0)
REPORTS: dict[str, tuple[tuple[Report, ...], bool]] = {
    "nobody says anything": ((), False),
    "all is well": ((BEFORE, said(processor_ms=9_000.0)), False),
    "answers hold no numbers": ((BEFORE, said(not_finite=30)), True),
    "requests fail": ((BEFORE, said(failed=30)), True),
    "as many as before": ((said(version=1, at_ms=1, failed=30), said(failed=31)), False),
    "many more than before": ((said(version=1, at_ms=1, failed=5), said(failed=31)), True),
    "too little was seen": ((said(answers=60, failed=39),), False),
    "together enough was seen": ((said(answers=60, failed=30, at_ms=NOW - 20_000), said(answers=60, failed=30)), True),
    "long ago": ((said(failed=300, at_ms=NOW - 61_000),), False),
    "of another version": ((said(version=1, failed=300),), False),
    "answers are unlike the reference": ((said(parity_checked=4, parity_mismatched=3),), True),
    "one of them is": ((said(parity_checked=1, parity_mismatched=1),), False),
    "much slower": ((BEFORE, said(processor_ms=50_000.0)), True),
    "ten times longer lists": (
        (dataclasses.replace(BEFORE, processor_ms=2_400.0), said(candidates=10_000_000, processor_ms=24_000.0)),
        False,
    ),
    "short lists that are slow": ((dataclasses.replace(BEFORE, candidates=10_000_000), said(processor_ms=22_000.0)), True),
    "much slower and still fast": ((dataclasses.replace(BEFORE, processor_ms=400.0), said(processor_ms=12_000.0)), False),
    "slow, of a server that does not count candidates": ((BEFORE, said(candidates=0, processor_ms=50_000.0)), False),
    "slow, and its earlier time is unknown": ((said(processor_ms=900_000.0),), False),
    "one server of two": ((said("a", failed=300), said("b")), False),
    "two of three": ((said("a", failed=300), said("b", failed=300), said("c")), True),
    "two of three, the third is idle": ((said("a", failed=300), said("b"), said("c", answers=0)), False),
    "the only one that works": ((said("a", failed=300), said("b", answers=0)), True),
}


@pytest.mark.parametrize(("reports", "expected"), REPORTS.values(), ids=REPORTS)
def test_a_version_is_rolled_back_from_when(reports: tuple[Report, ...], expected: bool) -> None:
    found = plan_rollback(TWO, history_of(*reports), NOW, RULES)
    assert (found is not None) is expected
    if found is not None:
        assert (found.version, found.back_to) == (2, 1) and "servers report faults; a: " in found.reason


BAD = history_of(said(failed=500))
STATES = {
    "no backup version": log(*lived(2)),
    "a hold": log(*lived(1, 2), act(EntryKind.HOLD)),
    "a pin": log(*lived(1, 2), act(EntryKind.PIN, 2)),
    "nothing live": log(),
    "a backup that was rolled back from": log(*lived(2, 3), act(EntryKind.ROLLBACK, 2), act(EntryKind.RELEASE)),
    "a backup that is frozen": log(*lived(1, 2), act(EntryKind.FREEZE, 1)),
    "an entry that this code does not know": dataclasses.replace(TWO, unknown_entry="9: x"),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_nothing_rolls_back_by_itself_with(state: ControlState) -> None:
    assert plan_rollback(state, BAD, NOW, RULES) is None
    assert plan_rollback(TWO, BAD, NOW, dataclasses.replace(RULES, enabled=False)) is None
    assert plan_rollback(TWO, BAD, NOW, RULES) is not None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.booleans()), max_size=12), st.booleans())
def test_it_cannot_flap_whatever_is_reported_and_however_often_somebody_releases(steps: list[tuple[str, int, bool]], release: bool) -> None:
    """Between two promotions by hand every version is left at most once."""
    state, left = TWO, list[int]()
    reports: ReportHistory = {}
    for n, (server, version, bad) in enumerate(steps):
        reports = fold_report(reports, said(server, version, NOW + n, failed=900 if bad else 0), 0)
        found = plan_rollback(state, reports, NOW + n, RULES)
        if found is not None:
            left.append(found.version)
            state = fold_entry(state, state.next_number, encode_entry(act(EntryKind.ROLLBACK, found.back_to)))
            assert not state.refused and state.held
        if release:
            state = fold_entry(state, state.next_number, encode_entry(act(EntryKind.RELEASE)))
    assert left in ([], [2])


def test_the_book_is_bounded_and_forgets() -> None:
    found = history_of(*(said(at_ms=n) for n in range(REPORTS_KEPT + 50)))
    assert len(found["a", 2]) == REPORTS_KEPT and found["a", 2][-1].at_ms == REPORTS_KEPT + 49
    assert fold_report(found, said(at_ms=3), 0) == found
    assert set(fold_report(found, said("b", at_ms=9_000), 8_000)) == {("b", 2)}
    assert sum_reports(()).requests == 0
