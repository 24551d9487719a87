"""What goes live without an operator's `promote` (protocol B9, B11).

    wish       a frozen version that an operator wanted live has been revived: `promote` at once, without a canary and even under a hold
    canary     the newest published version is compared with the live one in a builder process; then `promote`, or `withhold` with the reason
    approved   an operator has approved the newest published version: `promote` without a canary

Invariants: the only state is the running job, so a crash costs only its time. Several workers may do this at once; one entry is written. The canary's
verdict counts only if the version that it was compared with is still live, and never against what an operator has decided meanwhile. The caller's
thread never waits for a canary.
"""

from collections.abc import Iterator

from infra.clock import Clock
from infra.index.control_log import ControlLog, append_entry
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from streams.builders.jobs import CanaryJob
from streams.builders.pool import Ticket
from streams.builders.running_jobs import Builders
from streams.core.canary import CanaryFigures, CanaryRules, judge_canary
from streams.core.version_plans import plan_promotion, plan_wish

_Comparison = tuple[int, int | None]  # which version is compared with which live one


class Promotion:
    """One per reconciler, called by its thread."""

    def __init__(self, control_log: ControlLog, clock: Clock, builders: Builders, rules: CanaryRules, by: str) -> None:
        self._control_log, self._clock, self._builders, self._rules, self._by = control_log, clock, builders, rules, by
        self._running: tuple[_Comparison, Ticket] | None = None

    def step(self) -> Iterator[Entry]:
        """Write the due entries and yield them. Raises what the canary raised; the next call begins a new canary."""
        if (wished := append_entry(self._control_log, self._make_wished)) is not None:
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

    def _make_wished(self, state: ControlState) -> Entry | None:
        version = plan_wish(state)
        return None if version is None else self._entry(EntryKind.PROMOTE, version, "")

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
