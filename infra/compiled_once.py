"""One process of a machine compiles kernels; others that start meanwhile wait and take them from numba's cache.

Otherwise a server, its loader and the processes next to them would each compile the same kernels on the same cores.
Invariant: this is only a wait. If there is no folder to write to, or the lock is not freed in time, a process compiles for itself: slower, but the same
code.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra.files import try_lock
from schemas.kernels.compiled import toolchain

WAIT_S_MAX = 120.0
_POLL_S = 0.05
_log = logging.getLogger("aif.infra.compile")


def is_compiled(what: str, sources: Path) -> bool:
    """Whether some process of this machine has compiled these kernels from these sources."""
    return _says(_folder(sources) / f"compiled-{what}", _stamp(sources))


@contextmanager
def compiled_once(what: str, sources: Path) -> Iterator[None]:
    """To be put around the first calls of the kernels in the folder `sources`; `what` names them. Does not wait if they are in the cache already."""
    folder = _folder(sources)
    done, stamp = folder / f"compiled-{what}", _stamp(sources)
    if _says(done, stamp) or (lock := _open_lock(folder / f"compiling-{what}")) is None:
        yield
        return
    try:
        _log.info(
            "compiling kernels %r, or waiting for another process that does: once per machine and code, seconds on a free core, minutes on a busy one",
            what,
        )
        end = time.monotonic() + WAIT_S_MAX
        while not try_lock(lock) and time.monotonic() < end:
            time.sleep(_POLL_S)
        yield
        with suppress(OSError):
            done.write_text(stamp)
    finally:
        os.close(lock)  # frees it, as the end of the process does


def _folder(sources: Path) -> Path:
    """Where numba keeps the code that it compiled from these sources."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or sources / "__pycache__")


def _stamp(sources: Path) -> str:
    """A hash of what numba's cache depends on: the sources, and what all compiled code is made with."""
    files = sorted((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sources.rglob("*.py"))
    return hashlib.sha256(repr((toolchain(), files)).encode()).hexdigest()


def _says(done: Path, stamp: str) -> bool:
    try:
        return done.read_bytes() == stamp.encode()
    except OSError:
        return False


def _open_lock(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
