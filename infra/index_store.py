"""The index store: immutable files under one URL, today a folder (FORMAT.md section 1).

Here: the interface and the folder. Not here: what the files mean (schemas/index), parts (infra/index_parts.py), the log (infra/control_log.py).
Invariants: a visible file is complete, on disk, and never changes (I5). A path never leaves the root and never goes through a symbolic
link (I10): paths come from manifests, and a manifest is a file that somebody wrote. Names that begin with `.tmp-` are unfinished work.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from infra.files import TEMPORARY_PREFIX, fsync_folder, link_or_copy, put_exclusive
from schemas.errors import Corrupted, Misconfigured, Unavailable
from schemas.limits import MANIFEST_BYTES_MAX

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_DEPTH_MAX = 8
_SCRATCH_PREFIX = f"{TEMPORARY_PREFIX}scratch-"
SCRATCH_AGE_S_MIN = 3_600.0


class IndexStore(Protocol):
    """Immutable files by relative path. Every method raises Corrupted (`bad_store_path`) for a path that is not a plain path inside."""

    url: str

    def put_exclusive(self, path: str, data: bytes) -> bool:
        """Create a file. False: it exists already and is unchanged; of several writers exactly one gets True."""
        ...

    def put_bytes(self, path: str, data: bytes) -> None:
        """Create a file with a name that nobody else writes; the same bytes again are fine. Corrupted (`file_exists`) for other bytes."""
        ...

    def put_file(self, path: str, local_path: Path) -> None:
        """Create a file from a local one that nobody writes again (a link where possible)."""
        ...

    def get(self, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        """The bytes of a file. Raises Unavailable (`missing_file`), Corrupted (`file_too_large`)."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the file is there."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Paths of all files that begin with `prefix`, sorted."""
        ...

    def size_bytes(self, path: str) -> int:
        """Size of a file. Raises Unavailable (`missing_file`)."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was put, by the store's own clock (B10, B12). Raises Unavailable (`missing_file`)."""
        ...

    def local_path(self, path: str) -> Path:
        """A local file with the file's bytes, to be read only."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone."""
        ...

    def scratch(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """A private, empty folder near the store (so that `put_file` and readers can link), removed afterwards."""
        ...

    def remove_dead_scratch(self, age_s_min: float = SCRATCH_AGE_S_MIN) -> int:
        """Remove what killed processes left of their `scratch` folders; how many. One that a living process holds is never touched."""
        ...


def open_index_store(url: str) -> IndexStore:
    """The store at `url`: a folder, as a path or `file:///path`; made if missing. Misconfigured for anything else."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise Misconfigured("index_store_url", f"index store {url!r} is not a folder; give a path or file:///path")
    folder = Path(unquote(parts.path) if parts.scheme else url).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FolderStore(folder.resolve(strict=True))
    except OSError as error:
        raise Misconfigured("index_store_url", f"index store {url!r} cannot be used: {error}") from error


class FolderStore:
    """An index store in a local or shared folder. `root` is absolute and without links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def put_exclusive(self, path: str, data: bytes) -> bool:
        """See IndexStore."""
        target = self._place(path)
        with _disk_errors(path):
            return put_exclusive(target, data)

    def put_bytes(self, path: str, data: bytes) -> None:
        """See IndexStore. The same bytes again count as put now: whoever put them relies on the file for the grace period of removal."""
        if self.put_exclusive(path, data):
            return
        if self.get(path, max(len(data), 1)) != data:
            raise Corrupted("file_exists", f"{path} exists in {self.root} with other bytes; a visible file never changes")
        with _disk_errors(path):
            os.utime(self.local_path(path))

    def put_file(self, path: str, local_path: Path) -> None:
        """See IndexStore. The source is synced first; it is linked under a temporary name and then put in place without replacing.

        A link has the time of its source, which may be days old: it is set to now, because the store says when a file was *put*.
        """
        target = self._place(path)
        with _disk_errors(path):
            descriptor = os.open(local_path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=target.parent) as folder:
                staged = Path(folder, target.name)
                link_or_copy(local_path, staged)
                os.utime(staged)
                try:
                    os.link(staged, target)
                except FileExistsError as error:
                    raise Corrupted("file_exists", f"{path} exists in {self.root}; a visible file never changes") from error
            fsync_folder(target.parent)

    def get(self, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        """See IndexStore."""
        with self._missing(path), os.fdopen(os.open(self.local_path(path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise Corrupted("file_too_large", f"{path} in {self.root} has more than {bytes_max} bytes")
        return data

    def exists(self, path: str) -> bool:
        """See IndexStore."""
        return self.local_path(path).is_file()

    def list(self, prefix: str = "") -> list[str]:
        """See IndexStore."""
        start = self.local_path(prefix.rpartition("/")[0]) if "/" in prefix else self.root
        found: list[str] = []
        for parent, folders, names in os.walk(start, followlinks=False):
            folders[:] = [f for f in folders if not f.startswith(TEMPORARY_PREFIX)]
            inside = Path(parent).relative_to(self.root)
            found += [(inside / name).as_posix() for name in names if not name.startswith(TEMPORARY_PREFIX)]
        return sorted(path for path in found if path.startswith(prefix))

    def size_bytes(self, path: str) -> int:
        """See IndexStore."""
        with self._missing(path):
            return self.local_path(path).stat().st_size

    def modified_ms(self, path: str) -> int:
        """See IndexStore."""
        with self._missing(path):
            return self.local_path(path).stat().st_mtime_ns // 1_000_000

    def local_path(self, path: str) -> Path:
        """See IndexStore: the file itself."""
        _check_path(path)
        at = self.root
        for segment in path.split("/"):
            at = at / segment
            if at.is_symlink():
                raise Corrupted("bad_store_path", f"{path!r} goes through the symbolic link {at}; the index store never follows links")
        return at

    def remove(self, path: str) -> None:
        """See IndexStore. Folders that become empty are removed too."""
        target = self.local_path(path)
        target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty, or somebody was faster
                return

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """See IndexStore."""
        with _disk_errors(name):
            folder = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH_PREFIX}{name}-", dir=self.root))
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # the kernel frees it with the process, so it tells the living from the dead
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)

    def remove_dead_scratch(self, age_s_min: float = SCRATCH_AGE_S_MIN) -> int:
        """See IndexStore. The age keeps apart from a folder that another machine's process holds where locks are not shared."""
        removed = 0
        for folder in self.root.glob(f"{_SCRATCH_PREFIX}*"):
            with contextlib.suppress(OSError):  # it ended by itself in the meantime, or it is held
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if time.time() - os.fstat(descriptor).st_mtime >= age_s_min:
                        shutil.rmtree(folder)
                        removed += 1
                finally:
                    os.close(descriptor)
        return removed

    def _place(self, path: str) -> Path:
        """Where to put a file; its folder exists afterwards."""
        target = self.local_path(path)
        with _disk_errors(path):
            _make_folder(target.parent)
        return target

    @contextlib.contextmanager
    def _missing(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Unavailable("missing_file", f"{path} is not in the index store {self.root}; read the control log again") from error
        except OSError as error:
            raise Unavailable("store_unreadable", f"{path} in {self.root} cannot be read: {error}") from error


def _check_path(path: str) -> None:
    """A plain relative path: no empty, hidden or dotted segment, nothing that a file system reads in another way."""
    segments = path.split("/")
    if len(segments) > _DEPTH_MAX or not all(_SEGMENT.fullmatch(s) for s in segments):
        raise Corrupted("bad_store_path", f"{path[:200]!r} is not a plain path inside the index store; the file that names it is not ours")


def _make_folder(folder: Path) -> None:
    """`folder` and its parents, each name durable."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


@contextlib.contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = "disk_full" if error.errno in (28, 122) else "store_unwritable"
        raise Unavailable(code, f"{path} cannot be put into the index store: {error}", 5.0) from error
