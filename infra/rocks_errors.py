"""The one place where errors of rocksdict become ours.

rocksdict raises a bare `Exception` for every refusal of RocksDB, and an OSError without a path if it cannot write its own configuration. Only the text names
the cause.
Source: RocksDB 9.8 through rocksdict 0.3.29.
"""

from pathlib import Path
from types import TracebackType

from schemas.errors import AifError, Corrupted, Incompatible, Unavailable

_DISK_FULL_RETRY_S = 5.0
REBUILD = "restart the worker or server that owns it: that rebuilds it from its source"  # the end of a message about a damaged directory


def rocks_error(error: BaseException, path: Path, doing: str) -> AifError:
    """One of our errors for what rocksdict raised while `doing` something in `path`."""
    text = str(error)
    lower = text.lower()
    if "no space left" in lower or "quota exceeded" in lower:
        return Unavailable(
            "disk_full", f"{doing} in {path}: {text}; free disk space, and a worker or server continues automatically", _DISK_FULL_RETRY_S
        )
    if "lock hold" in lower or "while lock file" in lower:
        return Unavailable("database_locked", f"{doing} in {path}: another owner has it open ({text}); stop that one or wait for its end")
    if "corruption" in lower or "no such file" in lower or "does not exist" in lower or "checksum mismatch" in lower:
        return Corrupted("database_corrupted", f"{doing} in {path}: {text}; {REBUILD}")
    if "closed" in lower:
        return Unavailable("database_closed", f"{doing} in {path}: {text}; a worker or server opens it again by itself")
    if "invalid argument" in lower or "not implemented" in lower or "not supported" in lower:
        return Incompatible("database_refused", f"{doing} in {path}: {text}")
    return Unavailable("database_failed", f"{doing} in {path}: {text}; a worker or server opens it again by itself")


class MappedErrors:
    """`with` block in which a foreign exception becomes one of ours. A class: cheaper than a generator around every get."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: Path, doing: str) -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A bare Exception is RocksDB's, an OSError that of rocksdict's own file; TypeError and the like are our own mistakes, and pass unchanged.
        if error is not None and kind is not None and (kind is Exception or issubclass(kind, OSError) or kind.__name__ == "DbClosedError"):
            raise rocks_error(error, self._path, self._doing) from error
