"""Reads a file that a message names, and refuses a file that a message must not name (I10).

Invariants: the scheme is `file` or the address is a plain absolute path, which is decoded once. The text of the path lies under an allowed folder, below
which no link is followed and only a regular file is read. No more bytes are read than were announced.
So a message cannot make the worker wait on a pipe, read a device, or leave the folder by `..` or a link.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from schemas.errors import RejectedInput

_HOW_TO = (
    "publish it with `aif publish checkpoint`, or give file:///path or /path inside a folder of the worker's AIF_BUILD__CHECKPOINT_ROOTS"
)


def decode_file_uri(uri: str) -> PurePosixPath:
    """The absolute path that an address names. Raises RejectedInput (`checkpoint_uri`)."""
    if uri.startswith("/"):
        path = uri
    else:
        try:
            parts = urlsplit(uri)
            path = unquote(parts.path, errors="strict") if "%" in parts.path else parts.path
        except ValueError as error:
            raise _bad_uri(uri, str(error)) from error
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise _bad_uri(uri, "only local files are read")
    pure = PurePosixPath(path)
    if not pure.is_absolute() or "\0" in path or ".." in pure.parts or path.startswith("//"):
        raise _bad_uri(uri, "its path must be absolute and plain")
    return pure


def read_allowed_file(uri: str, size_bytes: int, roots: Sequence[Path]) -> bytes:
    """The bytes of the file at `uri`, exactly `size_bytes` of them.

    Raises RejectedInput (`checkpoint_uri`, `checkpoint_outside_root`, `checkpoint_not_a_file`, `checkpoint_size`), OSError where the file
    cannot be read now.
    """
    root, inside = _place(uri, decode_file_uri(uri), roots)
    descriptor = _open_beneath(root, inside.parts, uri)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise RejectedInput("checkpoint_not_a_file", f"{uri} is not a regular file; {_HOW_TO}")
        if status.st_size != size_bytes:
            raise RejectedInput(
                "checkpoint_size", f"{uri} has {status.st_size} bytes, announced are {size_bytes}; announce a finished file"
            )
        data = file.read(size_bytes)
    if len(data) != size_bytes:
        raise RejectedInput("checkpoint_size", f"{uri} ended after {len(data)} of {size_bytes} bytes; announce a finished file")
    return data


def _place(uri: str, path: PurePosixPath, roots: Sequence[Path]) -> tuple[Path, PurePosixPath]:
    """The allowed folder that holds the path, and the path below it."""
    for root in roots:
        for named in (root.absolute(), root.resolve()):
            if path.is_relative_to(named) and path != PurePosixPath(named):
                return named, path.relative_to(named)
    raise RejectedInput("checkpoint_outside_root", f"{uri} is in none of the allowed folders {[str(r) for r in roots]}; {_HOW_TO}")


def _open_beneath(root: Path, parts: Sequence[str], uri: str) -> int:
    """A descriptor of the file, reached step by step so that no link in between can be swapped in."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            flags = os.O_RDONLY | os.O_NOFOLLOW | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            if stat.S_ISLNK(os.lstat(part, dir_fd=at).st_mode):
                raise RejectedInput(
                    "checkpoint_outside_root", f"{uri} goes through the symbolic link {part!r}, which is not followed; {_HOW_TO}"
                )
            below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
        return at
    except BaseException:
        os.close(at)
        raise


def _bad_uri(uri: str, why: str) -> RejectedInput:
    return RejectedInput("checkpoint_uri", f"{uri[:200]!r}: {why}; {_HOW_TO}")
