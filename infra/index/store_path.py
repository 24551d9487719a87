"""Which paths inside an index store are allowed, in a folder and in a bucket.

Here: the check of one path. Not here: links in a folder (store.py). Invariant (I10): a path comes from a manifest, which anybody may have written, so it
is checked at every use.
"""

import re

from schemas.errors import Corrupted

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_DEPTH_MAX = 8


def check_store_path(path: str) -> None:
    """Raises Corrupted (`bad_store_path`) unless the path is plain and relative: without empty, hidden or dotted segments, and without anything that a
    file system could read in another way."""
    segments = path.split("/")
    if len(segments) > _DEPTH_MAX or not all(_SEGMENT.fullmatch(s) for s in segments):
        raise Corrupted("bad_store_path", f"{path[:200]!r} is not a plain path inside the index store; the file that names it is not ours")
