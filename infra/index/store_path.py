"""What every kind of index store needs: the paths that are allowed inside one, and the answer for a missing or hidden file."""

import re
import time
from collections.abc import Callable
from typing import TypeVar

from schemas.errors import Corrupted, Unavailable

_SEGMENT, _DEPTH_MAX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}"), 8
_HIDDEN_S_MAX, _HIDDEN_POLL_S = 2.0, 0.1
T = TypeVar("T")


def check_store_path(path: str) -> None:
    """Check a path, which comes from a manifest that anybody may have written (I10). Raises Corrupted (`bad_store_path`) unless it
    is plain and relative: without empty, hidden or dotted segments, and without anything that a file system could read in another way."""
    segments = path.split("/")
    if len(segments) > _DEPTH_MAX or not all(_SEGMENT.fullmatch(s) for s in segments):
        raise Corrupted("bad_store_path", f"{path[:200]!r} is not a plain path inside the index store; the file that names it is not ours")


def if_there(ask: Callable[[], T]) -> T | None:
    """The answer of the store; None where there is no such file. Raises what `ask` raises otherwise."""
    try:
        return ask()
    except Unavailable as error:
        if error.code == "missing_file":
            return None
        raise


def ask_again(ask: Callable[[], T | None]) -> T | None:
    """The answer for a file that exists and was just missing; None once it was missing for a moment. Some stores give a new file to one reader earlier than
    to another."""
    found, until_s = None, time.monotonic() + _HIDDEN_S_MAX
    while found is None and time.monotonic() < until_s:
        time.sleep(_HIDDEN_POLL_S)
        found = ask()
    return found
