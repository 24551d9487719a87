"""The index store: immutable files under one URL, a folder or a bucket of an object store (FORMAT.md section 1).

Invariants: a visible file is complete, durable, and never changes (I5). A path never leaves the root and never goes through a symbolic link (I10), because
paths come from manifests, and anybody may have written a manifest. Names that begin with `.tmp-` are unfinished work.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from infra.clock import Clock
from infra.files import TEMPORARY_PREFIX, fsync, is_disk_full, link_or_copy, put_exclusive, sha256_of_file
from infra.index.file_cache import bad_part_file
from infra.index.store_path import check_store_path, if_there
from infra.scratch import ScratchFolders, disk_errors
from schemas.errors import Corrupted, Incompatible, Misconfigured, Unavailable
from schemas.index.manifest import PartFile, describe_repair
from schemas.index.retention import StoreFile
from schemas.limits import MANIFEST_BYTES_MAX

_READS_AT_ONCE = 16  # an object store answers one read in 10 to 80 ms
_READ_AHEAD = 256  # files in memory that the caller has not taken yet


class IndexStore(Protocol):
    """Immutable files by relative path. Every method raises Corrupted (`bad_store_path`) for a path that is not plain. It raises Unavailable if the store or
    the disk does not answer; then the call may be repeated.

        url         opens the same store in another process
        local_root  the folder of this machine that has its files, or copies of them
        scratch     private folders in `local_root`, so that `put_file` and `fetch` can link
    """

    url: str
    local_root: Path
    scratch: ScratchFolders

    def put_exclusive(self, path: str, data: bytes) -> bool:
        """Create a file. Returns False if it exists already, unchanged; of several writers exactly one gets True."""

    def put_bytes(self, path: str, data: bytes) -> None:
        """Create a file with a name that no other process writes. The same bytes may be put again; other bytes are Corrupted (`file_exists`)."""

    def put_file(self, path: str, local_path: Path) -> None:
        """Create a file from a local one that no process writes any more (a link where possible)."""

    def get(self, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        """The bytes of a file. Raises Unavailable (`missing_file`), Corrupted (`file_too_large`, `not_a_file`)."""

    def exists(self, path: str) -> bool:
        """Whether the file is there."""

    def list(self, prefix: str = "", after: str = "") -> list[str]:
        """Paths of all files that begin with `prefix` and sort after `after`, sorted."""

    def list_files(self, prefix: str = "") -> Sequence[StoreFile]:
        """The same with their sizes and the times at which they were put."""

    def stat(self, path: str) -> StoreFile:
        """Size of a file, and when it was put by the store's own clock (B10, B12). Raises Unavailable (`missing_file`)."""

    def sha256(self, path: str) -> str:
        """sha256 of the bytes that the store has now. Raises Unavailable (`missing_file`)."""

    def fetch(self, directory: str, file: PartFile, into: Path, *, verify: bool = True, link: bool = True) -> None:
        """Make `into`, which does not exist, a local file with the bytes of `file` of `directory`. It may be a link and must only be read; with `link=False`
        it is a copy that may be written. With `verify=False` the sha256 is not checked, because the caller has just done so.

        Raises Corrupted (`bad_part_file`) if size or sha256 differ from those of `file`, Unavailable (`missing_file`, `disk_full`).
        """

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""


def open_index_store(url: str, rest: Callable[[], None] = lambda: None) -> IndexStore:
    """The store at `url`, for a process that writes: a folder, as a path or `file:///path`, made if missing; or `s3://bucket/prefix` (s3_store.py).

    rest  is called after each piece of a file that is hashed, for a process that gives way to others

    Raises Misconfigured (`index_store_url`) for any other URL, Unavailable where an object store does not answer.
    """
    folder = _folder_of(url)
    if folder is None:
        return _open_bucket(url, rest, look=True)
    with _usable(url):
        folder.mkdir(parents=True, exist_ok=True)
        return FolderStore(folder.resolve(strict=True), rest)


def find_index_store(url: str, rest: Callable[[], None] = lambda: None, *, look: bool = True) -> IndexStore:
    """The store at `url`, for a process that reads: as `open_index_store`, but a missing folder is Unavailable (`index_store_missing`).

    look  whether the store is asked now; otherwise the first list of its files raises the error
    """
    folder = _folder_of(url)
    if folder is None:
        return _open_bucket(url, rest, look=look)
    with _usable(url):
        store = FolderStore(folder.resolve(), rest)
        if store.root.is_file():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, expected a folder")
    if look:
        store.look()
    return store


def _folder_of(url: str) -> Path | None:
    """The folder that `url` names; None: a bucket. Raises Misconfigured (`index_store_url`)."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return None
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise Misconfigured(
            "index_store_url", f"index store {url!r} is neither a folder nor a bucket; give a path, file:///path, or s3://bucket/prefix"
        )
    return Path(unquote(parts.path) if parts.scheme else url).expanduser()


def _open_bucket(url: str, rest: Callable[[], None], look: bool) -> IndexStore:
    from infra.index.s3_store import open_s3_store  # its client is an extra

    return open_s3_store(url, rest, look=look)


@contextlib.contextmanager
def _usable(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise Unavailable("disk_full", f"no room to make the index store {url!r}: {error}; free disk space", 5.0) from error
        raise Misconfigured("index_store_url", f"index store {url!r} cannot be used: {error}") from error


def read_if_there(store: IndexStore, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes | None:
    """The bytes of a file; None where there is no such file. Raises what `IndexStore.get` raises otherwise."""
    return if_there(lambda: store.get(path, bytes_max))


def read_many(store: IndexStore, paths: Sequence[str], bytes_max: int = MANIFEST_BYTES_MAX) -> Iterator[bytes | None]:
    """Read several files at once and give what `read_if_there` returns for each, in the order of `paths`. Raises the first error in this order."""
    read = partial(read_if_there, store, bytes_max=bytes_max)
    with ThreadPoolExecutor(_READS_AT_ONCE, "store-read") as threads:
        for first in range(0, len(paths), _READ_AHEAD):
            yield from threads.map(read, paths[first : first + _READ_AHEAD])


def check_exclusive_create(store: IndexStore) -> None:
    """Check that of two creates of one file the second is refused. The control log depends on it, and some S3-compatible stores ignore the condition.

    Raises Incompatible (`no_exclusive_create`). The file that it makes is removed again.
    """
    path = f"probes/{secrets.token_hex(8)}"
    try:
        if not store.put_exclusive(path, b"1") or store.put_exclusive(path, b"2"):
            message = "accepts two creates of one file (If-None-Match is ignored): two writers would overwrite each other's decisions"
            raise Incompatible("no_exclusive_create", f"the index store {store.url} {message}; use a store that honours it")
    finally:
        store.remove(path)


def fetch_store_time_ms(store: IndexStore) -> int:
    """What time it is for the store: that of a file put just now, which is removed again. Raises what the store raises."""
    path = f"probes/{secrets.token_hex(8)}"
    store.put_exclusive(path, b"")
    try:
        return store.stat(path).put_ms
    finally:
        store.remove(path)


class StoreClock:
    """A Clock to compare with the times of files: grace periods, ages of revisions and of snapshots (B10, B12). A worker whose own clock is a day
    ahead would remove files that were put just now.

    The store is asked once, and time continues from there by the monotonic clock. Until it has answered once, `now_ms` raises what the store raises.
    """

    def __init__(self, store: IndexStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._asked: tuple[int, float] | None = None  # the store's time, and the monotonic time then

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, by the store."""
        if self._asked is None:
            self._asked = fetch_store_time_ms(self._store), self._clock.monotonic()
        asked_ms, asked_at = self._asked
        return asked_ms + int((self._clock.monotonic() - asked_at) * 1000)

    def monotonic(self) -> float:
        """Seconds, by this machine."""
        return self._clock.monotonic()


class FolderStore:
    """An index store in a local or shared folder. `root` is absolute and without links."""

    def __init__(self, root: Path, rest: Callable[[], None] = lambda: None) -> None:
        self.root = self.local_root = root
        self.url, self._rest = str(root), rest
        self.scratch = ScratchFolders(root)

    def put_exclusive(self, path: str, data: bytes) -> bool:
        target = self._place(path)
        with disk_errors(path), self.scratch.open("put") as folder:
            return put_exclusive(target, data, folder)

    def put_bytes(self, path: str, data: bytes) -> None:
        """Bytes that are put again count as put now, because their writer relies on the file for the grace period of removal."""
        if self.put_exclusive(path, data):
            return
        if self.stat(path).size_bytes != len(data) or self.get(path, len(data)) != data:
            raise Corrupted("file_exists", f"{path} exists in {self.root} with other bytes; a visible file never changes")
        with disk_errors(path):
            os.utime(self.local_path(path))

    def put_file(self, path: str, local_path: Path) -> None:
        """The source is synced first; it is linked or copied into a scratch folder, and then put in place without replacing.

        A link has the time of its source, which may be days old: it is set to now, because the store says when a file was *put*.
        """
        target = self._place(path)
        with disk_errors(path), self.scratch.open("put") as folder:
            fsync(local_path)
            staged = folder / target.name
            link_or_copy(local_path, staged)
            os.utime(staged)
            try:
                os.link(staged, target)
            except FileExistsError as error:
                raise Corrupted("file_exists", f"{path} exists in {self.root}; a visible file never changes") from error
            fsync(target.parent)

    def get(self, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        with self._errors(path), os.fdopen(os.open(self._plain_file(path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise Corrupted(
                "file_too_large",
                f"{path} in {self.root} has more than {bytes_max} bytes, expected no more; restore it from a copy of the store",
            )
        return data

    def exists(self, path: str) -> bool:
        with self._errors(path):
            return self.local_path(path).is_file()

    def look(self) -> None:
        """Raises Unavailable (`index_store_missing`) where the folder does not exist."""
        if not self.root.is_dir():
            hint = "start one, or name the worker's store with AIF_INDEX__STORE or --store"
            raise Unavailable(
                "index_store_missing", f"there is no index store at {self.root}, and a worker makes it when it begins an index; {hint}"
            )

    def list(self, prefix: str = "", after: str = "") -> list[str]:
        self.look()
        start = self.local_path(prefix.rpartition("/")[0]) if "/" in prefix else self.root
        found: list[str] = []
        with self._errors(prefix):
            for parent, folders, names in os.walk(start, onerror=_raise_unless_gone):
                folders[:] = [f for f in folders if not f.startswith(TEMPORARY_PREFIX)]
                inside = Path(parent).relative_to(self.root)
                found += [(inside / name).as_posix() for name in names if not name.startswith(TEMPORARY_PREFIX)]
        return sorted(path for path in found if path.startswith(prefix) and path > after)

    def list_files(self, prefix: str = "") -> Sequence[StoreFile]:
        """Files that another process removes at the same moment are left out."""
        found = []
        for path in self.list(prefix):
            with self._errors(path), contextlib.suppress(FileNotFoundError):
                found.append(_store_file(path, self.root / path))
        return found

    def stat(self, path: str) -> StoreFile:
        with self._errors(path):
            return _store_file(path, self.local_path(path))

    def sha256(self, path: str) -> str:
        with self._errors(path):
            return sha256_of_file(self._plain_file(path), self._rest)

    def fetch(self, directory: str, file: PartFile, into: Path, *, verify: bool = True, link: bool = True) -> None:
        path = f"{directory}/{file.name}"
        size = self.stat(path).size_bytes
        sha256 = self.sha256(path) if verify and size == file.size_bytes else ""
        if size != file.size_bytes or (verify and sha256 != file.sha256):
            raise bad_part_file(path, file, size, sha256)
        with self._errors(path):
            (link_or_copy if link else shutil.copyfile)(self.local_path(path), into)

    def local_path(self, path: str) -> Path:
        """Where a file is. Raises Corrupted (`bad_store_path`)."""
        check_store_path(path)
        at = self.root
        for segment in path.split("/"):
            at = at / segment
            if at.is_symlink():
                raise Corrupted("bad_store_path", f"{path!r} goes through the symbolic link {at}; the index store never follows links")
        return at

    def _plain_file(self, path: str) -> Path:
        """Where a file is that can be read to its end. Raises Corrupted (`not_a_file`): a pipe would block its reader permanently."""
        at = self.local_path(path)
        if not stat.S_ISREG(at.stat().st_mode):
            message = f"{path} in {self.root} is a folder, pipe or device, expected a file; remove it, and restore the file from a copy of the store"
            raise Corrupted("not_a_file", message)
        return at

    def remove(self, path: str) -> None:
        """Folders that become empty are removed too."""
        target = self.local_path(path)
        with disk_errors(path):
            target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty, or another process was faster
                return

    def _place(self, path: str) -> Path:
        """Where to put a file. Makes its folder."""
        target = self.local_path(path)
        with disk_errors(path):
            _make_folder(target.parent)
        return target

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """The one place where errors of reading become ours."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Unavailable("missing_file", f"{path} is not in the index store {self.root}; {describe_repair(path)}") from error
        except OSError as error:
            if is_disk_full(error):
                raise Unavailable("disk_full", f"{path} of {self.root} cannot be copied: {error}; free disk space", 5.0) from error
            raise Unavailable(
                "store_unreadable", f"{path} in {self.root} cannot be read: {error}; look at its permissions and the disk"
            ) from error


def _store_file(path: str, place: Path) -> StoreFile:
    status = place.stat()
    return StoreFile(path, status.st_mtime_ns // 1_000_000, status.st_size)


def _raise_unless_gone(error: OSError) -> None:
    """For os.walk, which otherwise leaves out a folder that it cannot read. Retention would then remove the files that the manifests in it name."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _make_folder(folder: Path) -> None:
    """Makes `folder` and its parents; each name is durable."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync(folder.parent)
