"""The automatic rollback: one entry when servers report that the live version misbehaves (core/misbehaviour.py).

Invariants: it is decided on the newest log, so only one of several workers writes it, and never after a hold, a pin or another promotion. The entry
`rollback` also holds: nothing is promoted by itself until an operator has released the hold. It goes back also to a version that fell behind in a shard
(B5), which an operator may only with --force: whoever types can wait for another way, and requests that fail now cannot; a right answer about what items
were is better than a wrong one or none. The entry says what the version lacks, and every worker that has such a shard keeps saying it (shard_versions.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from infra.clock import Clock
from infra.index.control_log import ControlLog, append_entry
from infra.index.delta_tail import describe_lag
from schemas.errors import AifError
from schemas.index.control import ControlState, Entry, VersionStatus
from schemas.index.lifecycle import EntryKind
from streams.core.misbehaviour import Misbehaviour, ReportHistory, ReportRules, plan_rollback


@dataclass
class RollbackWatch:
    """One per reconciler, called by its thread. `reports`: what servers have reported so far; `reports_now_ms`: the time by the clock that dates them, None
    while that is not known. `clock`: for the entry. `lag`: by shard, how many records a version lacks; asked only
    before it is gone back to, because that takes a second or more."""

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
