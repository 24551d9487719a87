"""Local copies of the files of an index store in a bucket, because RocksDB reads parts from local paths (protocol B14).

Invariants:
- A file has the bytes that its name says: they are hashed while they come in, synced, and put in place by rename. If its bytes do not match later, it is
  dropped and fetched again.
- Any number of processes may use one folder: a file is fetched by one of them, and the others that want it wait. Who takes a file gets a link or copy of
  its own, so removing the file here takes nothing away from anybody.
- The folder holds at most `bytes_max`; the files that were unused for longest are removed first. A larger file is fetched without being kept.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.files import TEMPORARY_PREFIX, fsync, link_or_copy, sha256_of_file
from schemas.errors import Corrupted
from schemas.index.manifest import PartFile, describe_repair

Fetch = Callable[[Path], str]  # makes a synced file and returns its sha256

_LOCKS = "locks"
_TRIES = 3
_DEAD_AGE_S_MIN = 3_600.0  # a temporary file without a write for so long


class FileCache:
    """See the module. `root` is made if it is missing."""

    def __init__(self, root: Path, bytes_max: int) -> None:
        self.root, self.bytes_max = root, bytes_max
        (root / _LOCKS).mkdir(parents=True, exist_ok=True)

    def take(self, file: PartFile, into: Path, fetch: Fetch, *, verify: bool, link: bool, rest: Callable[[], None] = lambda: None) -> None:
        """Make `into` a file with these bytes: a link to the one here, or (`link` false) a copy that the taker may write.

        `verify`: the bytes here are hashed again, with a `rest` after each piece. Raises what `fetch` raises, Corrupted (`bad_part_file`) when it brings
        other bytes.
        """
        if file.size_bytes > self.bytes_max:
            _check_fetched(file, into, fetch(into))
            return
        held, place = self._place(file), link_or_copy if link else shutil.copyfile
        with self._lock(file.sha256[:2]):  # of 256: two files seldom wait for each other
            for _ in range(_TRIES):
                if not _is_whole(held, file, verify, rest):
                    self._bring(file, held, fetch)
                with contextlib.suppress(FileNotFoundError):  # another process made room at this moment
                    os.utime(held)
                    place(held, into)
                    return
        _check_fetched(file, into, fetch(into))

    def _place(self, file: PartFile) -> Path:
        return self.root / file.sha256[:2] / file.sha256

    def _bring(self, file: PartFile, held: Path, fetch: Fetch) -> None:
        """Fetches the file and puts it in place. Under the lock no other process writes the temporary file; an existing one was left by a killed process."""
        held.unlink(missing_ok=True)
        self.make_room(file.size_bytes)
        held.parent.mkdir(exist_ok=True)
        temporary = held.with_name(f"{TEMPORARY_PREFIX}{held.name}")
        try:
            _check_fetched(file, temporary, fetch(temporary))
            temporary.rename(held)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync(held.parent)

    def make_room(self, size_bytes: int) -> int:
        """Remove what killed processes have left, and the files unused for longest until so much more fits. Returns how many."""
        removed = 0
        with self._lock("room"):
            files = sorted(self._files(), key=lambda found: found[1])
            total = sum(size for _, _, size in files)
            for path, used_s, size in files:
                is_dead = path.name.startswith(TEMPORARY_PREFIX) and used_s < time.time() - _DEAD_AGE_S_MIN
                if is_dead or (total + size_bytes > self.bytes_max and not path.name.startswith(TEMPORARY_PREFIX)):
                    path.unlink(missing_ok=True)
                    total, removed = total - size, removed + 1
        return removed

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """(path, last use, size) of every file, unfinished ones too."""
        for path in self.root.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield path, status.st_mtime, status.st_size

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Holds a lock against other processes and threads. The kernel frees it with the process; lock files stay, so that all lock the same one."""
        descriptor = os.open(self.root / _LOCKS / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _is_whole(held: Path, file: PartFile, verify: bool, rest: Callable[[], None]) -> bool:
    try:
        return held.stat().st_size == file.size_bytes and (not verify or sha256_of_file(held, rest) == file.sha256)
    except FileNotFoundError:
        return False


def _check_fetched(file: PartFile, path: Path, sha256: str) -> None:
    size = path.stat().st_size
    if (size, sha256) != (file.size_bytes, file.sha256):
        path.unlink()
        raise bad_part_file(file.name, file, size, sha256)


def bad_part_file(path: str, file: PartFile, size_bytes: int, sha256: str) -> Corrupted:
    """The error for a file of the store whose bytes are not those that its manifest names."""
    found = f"{size_bytes} bytes" if size_bytes != file.size_bytes else f"sha256 {sha256}"
    wanted = file.size_bytes if size_bytes != file.size_bytes else file.sha256
    return Corrupted("bad_part_file", f"{path} has {found}, its manifest says {wanted}; {describe_repair(path if '/' in path else '')}")
