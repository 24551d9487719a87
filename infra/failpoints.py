"""Named places at which a process can be made to die, and disks that can be made to fail, for tests of crashes. By default nothing happens here.

`failpoint("after-write")`: the environment variable FAILPOINT switches one on. `NAME:PASSES:FILE` kills the process with SIGKILL, as the kernel would,
when it passes NAME for the PASSES-th time. It makes FILE before that, so that the test knows. Children inherit the variable.
`failing_disk()`: the environment variable FAILING_DISK names a folder. While it holds a file `full` or `broken`, writes to databases and index stores fail
with ENOSPC or EIO, in every process that inherits the variable.
Invariant: a name that is not in FAILPOINTS can neither be passed nor armed, so the list is complete.
"""

import errno
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from schemas.errors import Misconfigured

VARIABLE = "FAILPOINT"  # not AIF_...: it is no setting
WRITING = ("before-write", "after-write", "after-outbox-send", "before-outbox-confirm", "before-checkpoint")  # passed all the time
VERSIONING = ("after-building", "before-seal", "after-manifest", "before-control-append", "after-control-append", "before-snapshot")
FAILPOINTS = frozenset((*WRITING, *VERSIONING))


DISK_VARIABLE = "FAILING_DISK"
DISK_FULL, DISK_BROKEN = "full", "broken"
_DISK_ERRORS = {DISK_FULL: errno.ENOSPC, DISK_BROKEN: errno.EIO}


class _Armed:
    """The one failpoint of this process."""

    def __init__(self, name: str, passes: int, file: Path) -> None:
        self.name, self._passes, self._file = name, passes, file
        self._lock = threading.Lock()

    def take_pass(self) -> None:
        with self._lock:
            self._passes -= 1
            if self._passes == 0:
                self._file.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def read_armed(environment: Mapping[str, str]) -> _Armed | None:
    """The failpoint that the environment arms. Raises Misconfigured (`bad_failpoint`)."""
    raw = environment.get(VARIABLE)
    if raw is None:
        return None
    name, _, rest = raw.partition(":")
    passes, _, file = rest.partition(":")
    if name not in FAILPOINTS or not passes.isdigit() or int(passes) < 1 or not file:
        raise Misconfigured("bad_failpoint", f"{VARIABLE}={raw!r}, expected NAME:PASSES:FILE with a name of {sorted(FAILPOINTS)}")
    return _Armed(name, int(passes), Path(file))


_ARMED = read_armed(os.environ)
_DISK = os.environ.get(DISK_VARIABLE)


def arm() -> None:
    """Reads the environment again, in a process whose environment has changed since it imported this (fork_server.py)."""
    global _ARMED, _DISK
    _ARMED, _DISK = read_armed(os.environ), os.environ.get(DISK_VARIABLE)


def failpoint(name: str) -> None:
    """A place where tests let a process die."""
    if _ARMED is not None and _ARMED.name == name:
        _ARMED.take_pass()
    assert name in FAILPOINTS, name


def failing_disk() -> OSError | None:
    """The error with which a write to the disk must fail now; None if it must not fail."""
    if _DISK is None:
        return None
    number = next((number for name, number in _DISK_ERRORS.items() if Path(_DISK, name).exists()), 0)
    return OSError(number, os.strerror(number)) if number else None
