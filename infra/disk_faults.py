"""A database whose disk takes no writes, full or broken: said once, again while it lasts, and when it is over."""

import logging
from collections.abc import Callable

from schemas.errors import AifError

REOPEN_CODES = frozenset({"disk_full", "database_failed", "database_closed"})  # until the database is opened again, every write fails
_AGAIN_S = 30.0
_SETTLED_S = 1.0  # a disk with a few free KiB takes a small write between two that fail
_log = logging.getLogger("aif.disk")


class DiskFaults:
    """Logs the faults of one database. For one thread at a time.

    owner      its name ("shard 3")
    monotonic  gives seconds
    tell       gets the fault whenever it is logged, and None when it is over
    last       the present fault, or None
    """

    def __init__(self, owner: str, monotonic: Callable[[], float], tell: Callable[[AifError | None], None] = lambda _: None) -> None:
        self._owner, self._monotonic, self._tell = owner, monotonic, tell
        self.last: AifError | None = None
        self._began = self._at = self._logged = 0.0

    def note_fault(self, error: AifError) -> None:
        """A write or an opening failed."""
        now = self._at = self._monotonic()
        if self.last is None:
            self._began, self._logged = now, float("-inf")
        self.last = error
        if now >= self._logged + _AGAIN_S:
            self._logged = now
            _log.error("disk_fault: %s has waited %.0f s for its disk and retries: %s", self._owner, now - self._began, error)
            self._tell(error)

    def note_success(self) -> None:
        """A step succeeded."""
        if self.last is not None and (now := self._monotonic()) >= self._at + _SETTLED_S:
            self.last = None
            _log.warning("disk_fault_over: %s writes again after %.0f s", self._owner, now - self._began)
            self._tell(None)
