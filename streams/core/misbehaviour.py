"""The one rule by which the live version is rolled back without an operator: servers report that it misbehaves. Pure.

    fault of a server   in the last `window_s` it answered at least `answers_min` requests with the live version, and too many of them failed or were not
                        finite, or too many answers differ from the reference, or a candidate takes much more processor time. Each must also be
                        `worse_by` times as bad as what the same server reported of the backup version: a fault that was there before is not the
                        live version's
    rule                more than a `quorum` of the working servers have a fault

Invariants: no rollback under a hold or a pin, which are an operator's decision; none without a backup version; none to a version that was itself rolled
back. A rollback holds, so nothing is promoted by itself after it, and this rule does nothing more: it cannot switch back.
Older reports and those of other versions only serve as the measure for the new ones. Latency is no fault of a version: it rises with the load of the
server, and with that of its neighbours on the machine. Processor time rises with neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.index.control import ControlState
from schemas.index.lifecycle import SERVABLE

REPORTS_KEPT = 64  # of one server and version; the oldest is dropped for a new one
SERVERS_MAX = 10_000

Place = tuple[str, int]  # server, version


@dataclass(frozen=True, slots=True)
class ReportRules:
    """The defaults roll back what hurts people now: every hundredth request is lost, on most servers, for more than a moment.

    bad_share_max     largest share of requests that failed or whose answer is not finite; a healthy server has 0.
    parity_share_max  largest share of answers that differ from the reference, of at least `parity_min`. One may differ because of a change in between.
    slower_max        largest ratio of the processor time of a candidate to the backup version's. Lists are shorter under load, so that of an answer differs
                      without a fault; but no version is too slow whose answers take less than `slow_ms_min`.
    """

    enabled: bool = True
    window_s: float = 60.0
    answers_min: int = 100
    quorum: float = 0.5
    bad_share_max: float = 0.01
    parity_share_max: float = 0.5
    parity_min: int = 3
    slower_max: float = 5.0
    slow_ms_min: float = 20.0
    worse_by: float = 2.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a server saw of a version up to `at_ms` since its report before (schemas/events.py `ServerReport`)."""

    server: str
    version: int
    at_ms: int
    answers: int
    not_finite: int = 0
    failed: int = 0
    parity_checked: int = 0
    parity_mismatched: int = 0
    candidates: int = 0  # of all answers, as is the processor time
    processor_ms: float = 0.0


ReportHistory = Mapping[Place, Sequence[Report]]  # ascending in time


def fold_report(history: ReportHistory, report: Report, horizon_ms: int) -> ReportHistory:
    """The history with one more report and without those older than `horizon_ms`. A report that comes twice counts once."""
    place = report.server, report.version
    known = history.get(place, ())
    if known and known[-1].at_ms >= report.at_ms:
        return history
    kept = {p: reports for p, reports in history.items() if p != place and reports[-1].at_ms >= horizon_ms}
    while len(kept) >= SERVERS_MAX:
        kept.pop(next(iter(kept)))
    return {**kept, place: (*known, report)[-REPORTS_KEPT:]}


@dataclass(frozen=True, slots=True)
class ReportTotals:
    """Some reports of one server on one version, taken together. answer_ms, candidate_us: processor time of each."""

    requests: int
    bad_share: float
    parity_checked: int
    parity_share: float
    answer_ms: float
    candidate_us: float


def sum_reports(reports: Sequence[Report]) -> ReportTotals:
    """The totals; all shares and times are 0 where there is no report."""
    requests = sum(r.answers + r.failed for r in reports)
    checked = sum(r.parity_checked for r in reports)
    candidates, processor_ms = sum(r.candidates for r in reports), sum(r.processor_ms for r in reports)
    return ReportTotals(
        requests,
        sum(r.not_finite + r.failed for r in reports) / max(requests, 1),
        checked,
        sum(r.parity_mismatched for r in reports) / max(checked, 1),
        processor_ms / max(sum(r.answers for r in reports), 1),
        1e3 * processor_ms / candidates if candidates else 0.0,  # reports of an older server do not count them
    )


def find_fault(seen: ReportTotals, before: ReportTotals, rules: ReportRules) -> str:
    """The fault of one server, in words; empty without a fault or with too few requests. `before`: on the backup version."""
    if seen.requests < rules.answers_min:
        return ""
    if seen.bad_share > rules.bad_share_max and seen.bad_share > rules.worse_by * before.bad_share:
        return f"{seen.bad_share:.1%} of {seen.requests} requests failed or were not finite, {before.bad_share:.1%} before"
    if seen.parity_checked >= rules.parity_min and seen.parity_share > max(rules.parity_share_max, rules.worse_by * before.parity_share):
        return f"{seen.parity_share:.0%} of {seen.parity_checked} answers are not what the reference computes"
    if seen.answer_ms > rules.slow_ms_min and seen.candidate_us > rules.slower_max * before.candidate_us > 0:
        return f"a candidate takes {seen.candidate_us:.2g} us of processor time, {before.candidate_us:.2g} us before"
    return ""


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """The live version, the one to go back to, and why."""

    version: int
    back_to: int
    reason: str


def plan_rollback(state: ControlState, history: ReportHistory, now_ms: int, rules: ReportRules) -> Misbehaviour | None:
    """What to roll back, if anything."""
    back_to = _backup_of(state)
    if not rules.enabled or back_to is None or state.live is None:
        return None
    since_ms = now_ms - int(rules.window_s * 1000)
    recent = {server: [r for r in reports if r.at_ms > since_ms] for (server, version), reports in history.items() if version == state.live}
    seen = {server: sum_reports(reports) for server, reports in recent.items()}
    working = sorted(server for server, one in seen.items() if one.requests > 0)
    faults = {server: find_fault(seen[server], sum_reports(history.get((server, back_to), ())), rules) for server in working}
    faulty = [server for server in working if faults[server]]
    if not faulty or len(faulty) <= rules.quorum * len(working):
        return None
    return Misbehaviour(state.live, back_to, f"{len(faulty)} of {len(working)} servers report faults; {faulty[0]}: {faults[faulty[0]]}")


def _backup_of(state: ControlState) -> int | None:
    """The version to which a rollback may go automatically; None if absent, or if an operator has decided otherwise."""
    if state.unknown_entry or state.held or state.pinned is not None or state.backup is None:
        return None
    backup = state.versions[state.backup]
    return None if backup.turned_away or backup.state not in SERVABLE else backup.version
