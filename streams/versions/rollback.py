"""The automatic rollback: one entry when servers report that the live version misbehaves (core/misbehaviour.py).

Here: the entry. Not here: the rule (core/misbehaviour.py), the reports (server_reports.py).
Invariants: it is decided on the newest log, so only one of several workers writes it, and never after a hold, a pin or another promotion. The entry
`rollback` also holds: nothing is promoted by itself until an operator has released the hold.
"""

from collections.abc import Callable
from dataclasses import dataclass

from infra.clock import Clock
from infra.index.control_log import ControlLog, append_entry
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from streams.core.misbehaviour import Misbehaviour, ReportHistory, ReportRules, plan_rollback


@dataclass
class RollbackWatch:
    """One per reconciler, called by its thread. `reports`: what servers have reported so far."""

    control_log: ControlLog
    clock: Clock
    rules: ReportRules
    reports: Callable[[], ReportHistory]
    by: str

    def step(self) -> Misbehaviour | None:
        """What was rolled back; None if this call wrote no entry."""
        found: Misbehaviour | None = None

        def make(state: ControlState) -> Entry | None:
            nonlocal found
            found = plan_rollback(state, self.reports(), self.clock.now_ms(), self.rules)
            return None if found is None else Entry(EntryKind.ROLLBACK, self.clock.now_ms(), self.by, found.back_to, reason=found.reason)

        return found if append_entry(self.control_log, make) is not None else None
