"""Files that are either complete or not there, also after a power cut.

Invariants (I5): a visible file never changes. A writer makes a temporary file in the same folder and fsyncs it; it puts it in place by rename or link, and
fsyncs the folder. An exclusive create is a link, never O_EXCL followed by a write: a writer that dies between the two would leave
a visible, incomplete file permanently (protocol B1).
Source: LevelDB db/filename.cc (SetCurrentFile) for the order of the steps.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_CHUNK_BYTES = 1 << 20
# A name that begins so is unfinished work: readers of a folder skip it, and the owner of the folder may remove it when it is old.
TEMPORARY_PREFIX = ".tmp-"


def write_file_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing an existing file in one step; it is on disk when this returns."""
    temporary = _write_temporary(path.parent, data)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def put_exclusive(path: Path, data: bytes, staging: Path) -> bool:
    """Create `path` with `data` if no such file exists. True: the file is ours and on disk. False: another writer was faster, and nothing has changed.
    `staging`: a folder of the same file system, for the temporary file."""
    temporary = _write_temporary(staging, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)
    return True


def append_whole(path: Path, data: bytes) -> None:
    """Append `data` to a file completely or not at all, next to other processes that do; makes its folder. Raises OSError, which names the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size, left = os.fstat(file.fileno()).st_size, memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


def _write_temporary(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=folder)
    try:
        with naming(folder), os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes it private; a store is read by other users' processes
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the block that names no file, as that of a full disk, names `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed because there is no room: on the disk, or in the user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def fsync(path: Path) -> None:
    """Make a file durable, or the names in a folder (a rename or link is lost by a power cut until then)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make every file and every name below `folder` durable, the deepest first."""
    for parent, _, names in os.walk(folder, topdown=False, onerror=_raise):
        for name in names:
            fsync(Path(parent, name))
        fsync(Path(parent))


def _raise(error: OSError) -> None:
    """Without it os.walk leaves a folder that cannot be read out in silence."""
    raise error


@contextlib.contextmanager
def staging_folder(path: Path, purpose: str) -> Iterator[Path]:
    """A new, empty folder next to `path`, to be renamed or taken from. It is removed at the end, and one that a killed process left at the beginning."""
    staging = path.with_name(f"{TEMPORARY_PREFIX}{purpose}-{path.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock of an open file without waiting; whether it was free. The kernel frees it when the last copy of the descriptor is closed."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same bytes as `source`: a hard link where the file system allows it, else a synced copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        shutil.copyfile(source, target)
        fsync(target)


def sha256_of_file(path: Path, rest: Callable[[], None] = lambda: None) -> str:
    """Lower-case hex sha256 of the file's bytes, read in pieces; `rest` is called after each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            rest()
    return digest.hexdigest()
