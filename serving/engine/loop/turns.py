"""The state of the engine's thread, from outside: when it last turned, and its errors outside a request."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_log = logging.getLogger("aif.engine")


class Turns:
    """Written by the engine's thread, read by any. faults: unexpected errors outside a request; last_fault: the last of them, "" = none."""

    def __init__(self) -> None:
        self.faults, self.last_fault = 0, ""
        self._turned_s = time.monotonic()

    def note(self) -> None:
        """A turn begins, or the thread looks for work."""
        self._turned_s = time.monotonic()

    def note_fault(self, error: BaseException) -> None:
        """Logs and counts an error that the thread survives."""
        self.faults, self.last_fault = self.faults + 1, repr(error)
        _log.error("engine_fault: %r; the requests of this turn failed, the engine continues", error, exc_info=error)

    def age_s(self, thread: threading.Thread, closed: bool) -> float:
        """Seconds since the last `note`: 0 before the thread's start and after the engine was closed, infinite if the thread has ended by itself."""
        if thread.ident is None or closed:
            return 0.0
        return time.monotonic() - self._turned_s if thread.is_alive() else math.inf


def answer(future: "Future[Any]", call: Callable[[], Any]) -> bool:
    """Runs `call` and puts its result or error into the future. True for a result. A cancelled future (deadline passed) is not computed."""
    if not future.set_running_or_notify_cancel():
        return False
    try:
        future.set_result(call())
        return True
    except BaseException as error:  # it belongs to this request
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return False
