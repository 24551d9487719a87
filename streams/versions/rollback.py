"""The automatic rollback: one entry when servers report that the live version misbehaves (core/misbehaviour.py).

Here: the entry. Not here: the rule, the reports (server_reports.py).
Invariants: decided on the newest log, so of several workers one writes it, and never after a hold, a pin or another promotion. The entry is a
`rollback`, which holds: the version is left, and nothing comes back by itself until somebody has looked and released.
"""

from collections.abc import Callable
from dataclasses import dataclass

from infra.clock import Clock
from infra.index.control_log import ControlLog
from schemas.index.control import ControlState, Entry
from schemas.index.lifecycle import EntryKind
from streams.core.misbehaviour import Book, Misbehaviour, ReportRules, plan_rollback
from streams.versions.publication import append_entry


@dataclass
class RollbackWatch:
    """One per reconciler; the same thread calls. `reports`: what servers have said so far."""

    control_log: ControlLog
    clock: Clock
    rules: ReportRules
    reports: Callable[[], Book]
    by: str

    def step(self) -> Misbehaviour | None:
        """What was rolled back, if it was this call that wrote it."""
        planned: list[Misbehaviour | None] = [None]

        def make(state: ControlState) -> Entry | None:
            planned[0] = found = plan_rollback(state, self.reports(), self.clock.now_ms(), self.rules)
            return None if found is None else Entry(EntryKind.ROLLBACK, self.clock.now_ms(), self.by, found.back_to, reason=found.reason)

        return planned[0] if append_entry(self.control_log, make) is not None else None
