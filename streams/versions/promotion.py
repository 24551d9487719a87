"""What goes live without an operator's `promote`, and the automatic rollback (protocol B9, B11).

    wish       a frozen version that an operator wanted live has been revived: `promote` at once, without a canary and even under a hold
    canary     the newest published version is compared with the live one in a builder process; then `promote`, or `withhold` with the reason
    approved   an operator has approved the newest published version: `promote` without a canary
    rollback   servers report that the live version misbehaves (core/misbehaviour.py)

Invariants: the only state is the running job, so a crash costs only its time. Several workers may do this at once; one entry is written. The canary's verdict
counts only if the version that it was compared with is still live, and never against an operator's later decision. The caller's thread never waits for a
canary.
A rollback is decided on the newest log, so only one of several workers writes it, and never after a hold, a pin or another promotion. The entry `rollback`
also holds: nothing is promoted by itself until an operator has released the hold. A rollback also goes to a version that fell behind in a shard (B5),
although an operator needs --force for that. Requests fail now, and an answer about older items is better than an error. The entry names the missing records,
and every worker with such a shard raises an alarm (shard_versions.py).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from infra.clock import Clock
from infra.index.control_log import ControlLog, append_entry
from infra.index.delta_tail import describe_lag
from schemas.errors import AifError
from schemas.index.control import ControlState, Entry, VersionStatus
from schemas.index.lifecycle import EntryKind
from streams.builders.jobs import CanaryJob
from streams.builders.pool import Ticket
from streams.builders.running_jobs import Builders
from streams.core.canary import CanaryFigures, CanaryRules, judge_canary
from streams.core.misbehaviour import Misbehaviour, ReportHistory, ReportRules, plan_rollback
from streams.core.version_plans import plan_promotion, plan_wish

_Comparison = tuple[int, int | None]  # which version is compared with which live one


class Promotion:
    """One per reconciler, called by its thread."""

    def __init__(self, control_log: ControlLog, clock: Clock, builders: Builders, rules: CanaryRules, by: str) -> None:
        self._control_log, self._clock, self._builders, self._rules, self._by = control_log, clock, builders, rules, by
        self._running: tuple[_Comparison, Ticket] | None = None

    def step(self) -> Iterator[Entry]:
        """Write the due entries and yield them. Raises what the canary raised; the next call begins a new canary."""

        def make_wished(state: ControlState) -> Entry | None:
            version = plan_wish(state)
            return None if version is None else self._entry(EntryKind.PROMOTE, version, "")

        if (wished := append_entry(self._control_log, make_wished)) is not None:
            yield wished
        state = self._control_log.state
        version = plan_promotion(state)
        comparison = None if version is None else (version, state.live)
        if comparison is None or not self._rules.enabled or state.versions[comparison[0]].approved:
            self.close()
            figures = None
        elif (figures := self._compare(state, comparison)) is None:
            return
        entry = append_entry(self._control_log, lambda newest: self._make_verdict(newest, comparison, figures))
        if entry is not None:
            yield entry

    def _compare(self, state: ControlState, comparison: _Comparison) -> CanaryFigures | None:
        """The figures; None while the comparison runs, which is begun here if it does not run yet."""
        if self._running is None or self._running[0] != comparison:
            self.close()
            version, live = comparison
            live_status = None if live is None else state.versions[live]
            job = CanaryJob(state.versions[version], live_status, self._rules.users, self._rules.items)
            self._running = comparison, self._builders.submit(job)
        _, ticket = self._running
        if not ticket.future.done():
            return None
        self._running = None
        figures = ticket.future.result()
        assert isinstance(figures, CanaryFigures)
        return figures

    def _make_verdict(self, state: ControlState, comparison: _Comparison | None, figures: CanaryFigures | None) -> Entry | None:
        """The entry on the newest log, if that still asks for the same comparison."""
        version = plan_promotion(state)
        if version is None or comparison != (version, state.live):
            return None
        if figures is None:
            return self._entry(EntryKind.PROMOTE, version, state.versions[version].reason)
        if state.versions[version].approved or not (reasons := judge_canary(figures, self._rules)):
            return self._entry(EntryKind.PROMOTE, version, f"canary: {figures.describe()}")
        return self._entry(
            EntryKind.WITHHOLD, version, f"canary: {'; '.join(reasons)} ({figures.describe()}); to overrule: aif index approve {version}"
        )

    def _entry(self, kind: EntryKind, version: int, reason: str) -> Entry:
        return Entry(kind, self._clock.now_ms(), self._by, version, reason=reason)

    def close(self) -> None:
        """Gives up a running comparison."""
        if self._running is not None:
            self._running[1].abandon()
            self._running = None


@dataclass
class RollbackWatch:
    """One per reconciler, called by its thread.

    reports         the reports of servers so far
    reports_now_ms  the time by the clock that dates them, None while that is not known; `clock` dates the entry
    lag             by shard, the number of records that a version lacks; asked only before a rollback, because that takes a second or more
    """

    control_log: ControlLog
    clock: Clock
    rules: ReportRules
    reports: Callable[[], ReportHistory]
    by: str
    lag: Callable[[VersionStatus], Mapping[int, int]]
    reports_now_ms: Callable[[], int | None]

    def step(self) -> Misbehaviour | None:
        """The rollback; None if this call wrote no entry."""
        found: Misbehaviour | None = None

        def make(state: ControlState) -> Entry | None:
            nonlocal found
            now_ms = self.reports_now_ms()
            found = None if now_ms is None else plan_rollback(state, self.reports(), now_ms, self.rules)
            if found is None:
                return None
            found = replace(found, reason=found.reason + self._describe_lag(state.versions[found.back_to]))
            return Entry(EntryKind.ROLLBACK, self.clock.now_ms(), self.by, found.back_to, reason=found.reason)

        return found if append_entry(self.control_log, make) is not None else None

    def _describe_lag(self, back_to: VersionStatus) -> str:
        try:
            lag = describe_lag(self.lag(back_to))
        except AifError as error:
            return f"; cannot tell whether version {back_to.version} has the latest updates: {error}"
        return f"; version {back_to.version} fell behind ({lag}) and serves older items: publish its checkpoint again" if lag else ""
