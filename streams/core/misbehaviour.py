"""When servers say that the live version misbehaves: the one rule by which a version is rolled back from without anybody asking. Pure.

Here: what is remembered of reports, what counts as a fault, how many servers it takes. Not here: reading reports (streams/versions/server_reports.py), the
entry (streams/versions/rollback.py).

    fault of a server   in the last `window_s`, on the live version, with at least `answers_min` requests: too many failed or not finite, too many
                        answers unlike the reference, or answers much slower; each also `worse_by` times what the same server had on the version
                        that would come back, where it has told that: a fault that was there before is not the version's
    rule                more than a `quorum` of the servers that work have a fault

Invariants: never under a hold or a pin, which are somebody's decision; never without a backup version; never to one that was itself rolled back from.
A rollback holds, so nothing is promoted by itself after it, and the rule has nothing more to say: it cannot flap.
Reports of old times and of other versions are only the measure that the new ones are held against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.index.control import ControlState
from schemas.index.lifecycle import SERVABLE

REPORTS_KEPT = 64  # of one server and version; an older one gives way
SERVERS_MAX = 10_000

Place = tuple[str, int]  # server, version


@dataclass(frozen=True, slots=True)
class ReportRules:
    """The defaults roll back what hurts people now: every hundredth request lost, on most servers, for more than a moment.

    bad_share_max     of requests that failed or whose answer holds no number; a healthy server has 0
    parity_share_max  of at least `parity_min` answers that the reference computed again; one may be off by a change that came in between
    slower_max        times the 99th percentile on the former version, and never below `slow_ms_min`: a flip alone costs less
    """

    enabled: bool = True
    window_s: float = 60.0
    answers_min: int = 100
    quorum: float = 0.5
    bad_share_max: float = 0.01
    parity_share_max: float = 0.5
    parity_min: int = 3
    slower_max: float = 5.0
    slow_ms_min: float = 100.0
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
    latency_p99_ms: float | None = None


Book = Mapping[Place, Sequence[Report]]  # ascending in time


def fold_report(book: Book, report: Report, horizon_ms: int) -> Book:
    """The book with one more report, without what is older than `horizon_ms`. A server that says the same twice is heard once."""
    place = report.server, report.version
    known = book.get(place, ())
    if known and known[-1].at_ms >= report.at_ms:
        return book
    kept = {p: reports for p, reports in book.items() if p != place and reports[-1].at_ms >= horizon_ms}
    while len(kept) >= SERVERS_MAX:
        kept.pop(next(iter(kept)))
    return {**kept, place: (*known, report)[-REPORTS_KEPT:]}


@dataclass(frozen=True, slots=True)
class Seen:
    """Some reports of one server on one version, taken together; the latency is the mean of their 99th percentiles."""

    requests: int
    bad_share: float
    parity_checked: int
    parity_share: float
    p99_ms: float | None


def sum_reports(reports: Sequence[Report]) -> Seen:
    """Nothing seen is no fault."""
    requests = sum(r.answers + r.failed for r in reports)
    checked = sum(r.parity_checked for r in reports)
    slow = [r.latency_p99_ms for r in reports if r.latency_p99_ms is not None]
    return Seen(
        requests,
        sum(r.not_finite + r.failed for r in reports) / max(requests, 1),
        checked,
        sum(r.parity_mismatched for r in reports) / max(checked, 1),
        sum(slow) / len(slow) if slow else None,
    )


def find_fault(seen: Seen, before: Seen, rules: ReportRules) -> str:
    """What is wrong on one server, in words; empty when nothing is, or too little was seen."""
    if seen.requests < rules.answers_min:
        return ""
    if seen.bad_share > rules.bad_share_max and seen.bad_share > rules.worse_by * before.bad_share:
        return f"{seen.bad_share:.1%} of {seen.requests} requests failed or were not finite, {before.bad_share:.1%} before"
    if seen.parity_checked >= rules.parity_min and seen.parity_share > max(rules.parity_share_max, rules.worse_by * before.parity_share):
        return f"{seen.parity_share:.0%} of {seen.parity_checked} answers are not what the reference computes"
    if seen.p99_ms is not None and before.p99_ms is not None and seen.p99_ms > max(rules.slow_ms_min, rules.slower_max * before.p99_ms):
        return f"99% of the answers took up to {seen.p99_ms:.0f} ms, {before.p99_ms:.0f} ms before"
    return ""


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """The live version, the one to go back to, and why."""

    version: int
    back_to: int
    reason: str


def plan_rollback(state: ControlState, book: Book, now_ms: int, rules: ReportRules) -> Misbehaviour | None:
    """What to roll back, if anything."""
    back_to = _backup_of(state)
    if not rules.enabled or back_to is None or state.live is None:
        return None
    since_ms = now_ms - int(rules.window_s * 1000)
    recent = {server: [r for r in reports if r.at_ms > since_ms] for (server, version), reports in book.items() if version == state.live}
    seen = {server: sum_reports(reports) for server, reports in recent.items()}
    working = sorted(server for server, one in seen.items() if one.requests > 0)
    faults = {server: find_fault(seen[server], sum_reports(book.get((server, back_to), ())), rules) for server in working}
    faulty = [server for server in working if faults[server]]
    if not faulty or len(faulty) <= rules.quorum * len(working):
        return None
    return Misbehaviour(state.live, back_to, f"{len(faulty)} of {len(working)} servers report faults; {faulty[0]}: {faults[faulty[0]]}")


def _backup_of(state: ControlState) -> int | None:
    """The version that may come back by itself."""
    if state.unknown_entry or state.held or state.pinned is not None or state.backup is None:
        return None
    backup = state.versions[state.backup]
    return None if backup.turned_away or backup.state not in SERVABLE else backup.version
