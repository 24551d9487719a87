"""What makes a version live by itself: a wish that its revival has fulfilled, or the newest published one once its canary has sung (protocol B9, B11).

    wish         a revived version that an operator asked for: `promote`, at once, whatever its canary would say and whoever holds
    canary       the newest published version is compared with the live one in a builder process; then `promote`, or `withhold` with the reason
    approved     `promote` without a canary

Here: who waits for what, and the entries. Not here: which version is next (core/versions.py), the comparison (streams/builders/canary.py, core/canary.py).
Invariants: the only state is the job that runs, so a crash costs its time; any worker may do it, several at once, and one entry is written. A verdict
counts only against the version that is still live, and never against an operator's word that came meanwhile. Nothing waits in the caller's thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from infra.clock import Clock
from infra.index.control_log import ControlLog
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from streams.builders.jobs import CanaryJob
from streams.builders.pool import Ticket
from streams.builders.running_jobs import Builders
from streams.core.canary import CanaryFigures, CanaryRules, judge_canary
from streams.core.versions import plan_promotion, plan_wish
from streams.versions.publication import append_entry


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Which version is compared with which."""

    version: int
    live: int | None


class Promotion:
    """One per reconciler; the same thread calls. `step` gives the entries that it wrote."""

    def __init__(self, control_log: ControlLog, clock: Clock, builders: Builders, rules: CanaryRules, by: str) -> None:
        self._control_log, self._clock, self._builders, self._rules, self._by = control_log, clock, builders, rules, by
        self._running: tuple[_Comparison, Ticket] | None = None

    def step(self) -> Iterator[Entry]:
        """What is due now. Raises what the canary raised; the next call begins it again."""
        if (wished := append_entry(self._control_log, self._make_wished)) is not None:
            yield wished
        state = self._control_log.state
        version = plan_promotion(state)
        comparison = None if version is None else _Comparison(version, state.live)
        if comparison is None or not self._rules.enabled or state.versions[comparison.version].approved:
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
        """The figures once they are there; begins the work where it does not run."""
        if self._running is None or self._running[0] != comparison:
            self.close()
            live = None if comparison.live is None else state.versions[comparison.live]
            job = CanaryJob(state.versions[comparison.version], live, self._rules.users, self._rules.items)
            self._running = comparison, self._builders.submit(job)
        _, ticket = self._running
        if not ticket.future.done():
            return None
        self._running = None
        figures = ticket.future.result()
        assert isinstance(figures, CanaryFigures)
        return figures

    def _make_verdict(self, state: ControlState, comparison: _Comparison | None, figures: CanaryFigures | None) -> Entry | None:
        """On the newest log: it must still ask for the same."""
        version = plan_promotion(state)
        if version is None or comparison != _Comparison(version, state.live):
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
        """Gives up a comparison that runs."""
        if self._running is not None:
            self._running[1].abandon()
            self._running = None
