"""Private folders of a process, removed when it is done with them, or by another process if it was killed.

Invariant: a folder that a living process holds is never removed. The process holds a lock on it, which the kernel frees when the process ends.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from infra.failpoints import failing_disk
from infra.files import TEMPORARY_PREFIX, is_disk_full, try_lock
from schemas.errors import Unavailable

_PREFIX = f"{TEMPORARY_PREFIX}scratch-"
SCRATCH_AGE_S_MIN = 3_600.0


class ScratchFolders:
    """Scratch folders below `root`, which exists."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """A private, empty folder. Raises Unavailable (`disk_full`, `store_unwritable`)."""
        with disk_errors(f"the scratch folder {name}"):
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=self.root))
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)

    def remove_dead(self, age_s_min: float = SCRATCH_AGE_S_MIN) -> int:
        """Remove what killed processes have left; how many. Folders younger than `age_s_min` stay, because a process on another machine may hold one
        where machines do not share locks."""
        removed = 0
        for folder in self.root.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # it ended by itself in the meantime
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if try_lock(descriptor) and time.time() - os.fstat(descriptor).st_mtime >= age_s_min:
                        shutil.rmtree(folder)
                        removed += 1
                finally:
                    os.close(descriptor)
        return removed


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """For a block that writes files of the index store on this machine: an OSError becomes Unavailable (`disk_full`, `store_unwritable`)."""
    try:
        failing = failing_disk()
        if failing is not None:
            raise failing
        yield
    except OSError as error:
        code = "disk_full" if is_disk_full(error) else "store_unwritable"
        raise Unavailable(code, f"{what} cannot be written for the index store: {error}", 5.0) from error
