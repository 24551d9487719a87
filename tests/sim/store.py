"""The index store in memory: what infra/index/store.py promises, and the points at which its user may die or be overtaken.

Here: files and their times; parts are kept as objects (boundary.py says why). Not here: the contents of files.
"""

from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import Corrupted, Unavailable
from schemas.index.retention import StoreFile
from tests.sim.disk import FindFault

PART_FILE = "000001.sst"
Point = Callable[[str], None]


class MemoryStore:
    """An index store. `point(what)` is called around every change; `now_ms` is the store's own clock."""

    url = "memory"

    def __init__(
        self,
        point: Point,
        now_ms: Callable[[], int],
        find_fault: FindFault = lambda: None,
        loses_answer: Callable[[], bool] = lambda: False,
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.modified: dict[str, int] = {}
        self._paths: dict[str, set[str]] = {}  # by the first part of a path
        self.parts: dict[str, list[Any]] = {}  # directory of a part or snapshot -> what its files hold
        self._point, self._now_ms, self._find_fault, self._loses_answer = point, now_ms, find_fault, loses_answer

    def put_exclusive(self, path: str, data: bytes) -> bool:
        """Of several writers one gets True; a process may die before, or after without knowing. A bucket's answer may be lost: to the request, and to the
        question whose file it is."""
        self._point(path)
        self._fail(path)
        lost, is_first = self._loses_answer(), path not in self.files
        if is_first:
            self.place(path, data)
        if lost:
            raise Unavailable("store_unreachable", path)
        if is_first:
            self._point(path)
        return is_first

    def _fail(self, path: str) -> None:
        """A disk that fails: nothing is there, because a file is put in place last."""
        if self._find_fault() is not None:
            raise Unavailable("disk_full", path)

    def put_bytes(self, path: str, data: bytes) -> None:
        if not self.put_exclusive(path, data) and self.files[path] != data:
            raise Corrupted("file_exists", f"{path} exists with other bytes; a visible file never changes")

    def place(self, path: str, data: bytes) -> None:
        """The effect alone."""
        self.files[path] = data
        self._paths.setdefault(path.partition("/")[0], set()).add(path)
        self.modified[path] = self._now_ms()

    def get(self, path: str, bytes_max: int = 1 << 30) -> bytes:
        data = self.files.get(path)
        if data is None:
            raise Unavailable("missing_file", path)
        if len(data) > bytes_max:
            raise Corrupted("file_too_large", f"{path} has more than {bytes_max} bytes")
        return data

    def put_part(self, directory: str, content: "list[Any]") -> None:
        """A part, as one file."""
        self._fail(directory)
        self.parts[directory] = content
        self.place(f"{directory}/{PART_FILE}", b"")

    def exists(self, path: str) -> bool:
        return path in self.files

    def list(self, prefix: str = "", after: str = "") -> list[str]:
        top, below, _ = prefix.partition("/")
        paths = self._paths.get(top, ()) if below else self.files
        return sorted([path for path in paths if path.startswith(prefix) and path > after])

    def list_files(self, prefix: str = "") -> Sequence[StoreFile]:
        return [StoreFile(path, self.modified[path], len(self.files[path])) for path in self.list(prefix)]

    def stat(self, path: str) -> StoreFile:
        data = self.get(path)
        return StoreFile(path, self.modified[path], len(data))

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        self._paths.get(path.partition("/")[0], set()).discard(path)
        self.modified.pop(path, None)
        self.parts.pop(path.removesuffix(f"/{PART_FILE}"), None)

    def read_part(self, directory: str) -> "list[Any]":
        """What a part holds; nothing for a part without rows."""
        if directory and directory not in self.parts:
            raise Unavailable("missing_file", directory)
        return self.parts[directory] if directory else []
