"""An index store in an S3-compatible object store: `s3://bucket/prefix`, with the client obstore (the extra `s3`).

    s3://BUCKET/PREFIX?endpoint=URL&region=NAME&cache_dir=FOLDER&cache_gib=NUMBER

Everything behind the question mark may be left out. Credentials, and endpoint and region where the URL does not name them, come from the usual
environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION, or the machine's role.

Invariants, beyond those of an index store:
- An exclusive create is a PUT with If-None-Match that carries a number of its writer. If its answer is lost, or takes longer than `_ASK_EVERY_S`, the store
  is asked whose file it has. Each decision about a version is such a create, and would otherwise wait for the PUT's time limit.
- An object is visible only when its upload is complete; one above `PUT_BYTES_MAX` is uploaded in parts. What a killed upload leaves is invisible, and costs
  storage until the bucket's lifecycle rule for incomplete multipart uploads removes it.
- A request is tried again for some seconds, then it is Unavailable: no caller waits permanently for a store that is away. One whose data is small, as all of
  the control log is, has `_ANSWER_S_MAX` seconds; a transfer of what may be large has `_TRANSFER_S_MAX`.
Source: S3 API, conditional writes and multipart upload.
"""

import contextlib
import hashlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from infra.files import is_disk_full
from infra.folders import user_cache_dir
from infra.index.file_cache import FileCache
from infra.index.store_path import ask_again, check_store_path, if_there
from infra.scratch import ScratchFolders, disk_errors
from schemas.errors import Corrupted, Misconfigured, Unavailable
from schemas.index.manifest import PartFile, describe_repair
from schemas.index.retention import StoreFile
from schemas.limits import MANIFEST_BYTES_MAX, MIB

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
except ImportError as error:
    raise Misconfigured(
        "s3_not_installed", "an index store s3://... needs the client obstore; run `pip install 'aif[s3]'` (in a clone: `uv sync`)"
    ) from error

if TYPE_CHECKING:
    from obstore.store import S3Store as Objects

PUT_BYTES_MAX = 64 * MIB  # held in memory during one PUT; the largest SST file that parts are made of
_UPLOAD_PART_BYTES = 16 * MIB  # S3 takes 10,000 parts: files up to 160 GB
_UPLOADS_AT_ONCE = 4
_STREAM_BYTES = 4 * MIB
_CACHE_GIB = 20.0
_WRITER = "aif-writer"  # metadata of an object: whose exclusive create it was
_RETRIES, _RETRY_S_MAX = 4, 10
_ANSWER_S_MAX, _TRANSFER_S_MAX = 15, 300
_ASK_EVERY_S = 3.0
_SMALL_BYTES_MAX = MIB
_FULL_RETRY_S = 5.0
_CUT, _CUT_RETRIES = "kind: Interrupted", 3  # how obstore's errors name an answer that ends in the middle
# What stores say when they have no room: MinIO and others with 507, Ceph's quota with 403. No class of obstore's has these, and a list that is refused
# has none either.
_FULL = ("507 Insufficient Storage", "StorageFull", "QuotaExceeded", "no space left")
_REFUSED = ("401 Unauthorized", "403 Forbidden")
_TOOK = re.compile(r" in [0-9.]+[nµm]?s\b")  # differs every time; without it the same error has the same text, and is logged once
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOW_TO = "s3://BUCKET/PREFIX?endpoint=URL&region=NAME&cache_dir=FOLDER&cache_gib=NUMBER"

_log = logging.getLogger("aif.store")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class S3Address:
    """What a URL says. Where `endpoint` or `region` is empty, the environment decides."""

    bucket: str
    prefix: str
    cache_dir: Path
    cache_bytes: int
    endpoint: str = ""
    region: str = ""


def decode_s3_url(url: str) -> S3Address:
    """Raises Misconfigured (`index_store_url`)."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = parts.path.strip("/")
    unknown = options.keys() - {"endpoint", "region", "cache_dir", "cache_gib"}
    if not _BUCKET.fullmatch(parts.netloc) or parts.fragment or unknown:
        raise _bad_url(url, f"unknown options {sorted(unknown)}" if unknown else "no bucket, or not a bucket's name")
    try:
        if prefix:
            check_store_path(prefix)
        cache_gib = float(options.get("cache_gib", _CACHE_GIB))
    except (Corrupted, ValueError) as error:
        raise _bad_url(url, str(error)) from error
    if not 0 <= cache_gib < 1e6:
        raise _bad_url(url, f"cache_gib is {cache_gib}")
    cache_dir = Path(options["cache_dir"]).expanduser() if options.get("cache_dir") else user_cache_dir() / "index-store"
    return S3Address(parts.netloc, prefix, cache_dir, int(cache_gib * 1024 * MIB), options.get("endpoint", ""), options.get("region", ""))


def _bad_url(url: str, why: str) -> Misconfigured:
    return Misconfigured("index_store_url", f"index store {url!r}: {why}; give {_HOW_TO}")


def open_s3_store(url: str, rest: Callable[[], None] = lambda: None, *, look: bool = True) -> "S3Store":
    """The store at `url`, whose bucket exists, if we `look`. Raises Misconfigured (`index_store_url`), Unavailable (`store_unreachable`, `store_refused`)."""
    address = decode_s3_url(url)
    try:
        address.cache_dir.mkdir(parents=True, exist_ok=True)
        cache = FileCache(address.cache_dir.resolve(strict=True), address.cache_bytes)
    except OSError as error:
        if is_disk_full(error):
            raise Unavailable("disk_full", f"no room for the cache {address.cache_dir} of {url}: {error}; free disk space", 5.0) from error
        raise _bad_url(url, f"its cache folder cannot be used: {error}") from error
    store = S3Store(url, _open_objects(address, _ANSWER_S_MAX), _open_objects(address, _TRANSFER_S_MAX), cache, endpoint_of(address), rest)
    if not look:
        return store
    try:
        store.look()
    except Unavailable as error:
        if error.code == "bucket_missing":
            raise _bad_url(url, f"the bucket {address.bucket} does not exist there: create it or name another") from error
        raise
    return store


def endpoint_of(address: S3Address) -> str:
    """Where requests go; empty: Amazon's own."""
    named = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return address.endpoint or next(filter(None, named), "")


def _open_objects(address: S3Address, request_s_max: float) -> "Objects":
    from obstore.store import S3Store as Objects

    given: dict[str, Any] = {"endpoint": endpoint_of(address), "region": address.region}
    return Objects(
        address.bucket,
        prefix=address.prefix or None,
        client_options={"allow_http": endpoint_of(address).startswith("http://"), "timeout": timedelta(seconds=request_s_max)},
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_S_MAX),
            "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
        },
        **{name: value for name, value in given.items() if value},
    )


class S3Store:
    """See the module, and IndexStore. Thread-safe. `transfers`: the client for what may be large."""

    def __init__(
        self,
        url: str,
        objects: "Objects",
        transfers: "Objects",
        cache: FileCache,
        endpoint: str = "",
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.url, self.local_root, self._rest = url, cache.root, rest
        self._objects, self._transfers, self._cache, self._endpoint = objects, transfers, cache, endpoint or "Amazon S3"
        self.scratch = ScratchFolders(cache.root)

    # --- writing -------------------------------------------------------------------------------------------------------------

    def put_exclusive(self, path: str, data: bytes) -> bool:
        return self._create(path, data, len(data))

    def put_bytes(self, path: str, data: bytes) -> None:
        """Bytes that are put again are written again, so they count as put now."""
        if self._create(path, data, len(data)):
            return
        if self.stat(path).size_bytes != len(data) or self.get(path, len(data)) != data:
            raise self._exists(path)
        with self._errors(path):
            obstore.put(self._client(len(data)), path, data)

    def put_file(self, path: str, local_path: Path) -> None:
        """Above PUT_BYTES_MAX the check comes before the upload and not with it; that is enough for a name that no other process writes."""
        with disk_errors(path):
            size = local_path.stat().st_size
        if size > PUT_BYTES_MAX:
            if self.exists(path):
                raise self._exists(path)
            with self._errors(path):
                obstore.put(
                    self._transfers, path, local_path, use_multipart=True, chunk_size=_UPLOAD_PART_BYTES, max_concurrency=_UPLOADS_AT_ONCE
                )
        elif not self._create(path, local_path, size):
            raise self._exists(path)

    def _client(self, size_bytes: int) -> "Objects":
        return self._objects if size_bytes <= _SMALL_BYTES_MAX else self._transfers

    def _create(self, path: str, data: bytes | Path, size_bytes: int) -> bool:
        """A PUT that only one writer can win. If it fails in another way, it may still have happened, so the store is asked whose file it has."""
        check_store_path(path)
        writer, began_s = secrets.token_hex(8), time.monotonic()
        sent = _in_thread(lambda: self._put_new(path, data, size_bytes, writer))
        while wait([sent], _ASK_EVERY_S).not_done:
            with contextlib.suppress(Unavailable):
                if (found := self._writer_of(path)) is not None:
                    _log.warning("store_answer_lost path=%s after_s=%.1f: the store has the file", path, time.monotonic() - began_s)
                    return found == writer
        try:
            sent.result()
        except Unavailable as error:
            if error.code not in ("file_exists", "store_unreachable", "store_full"):
                raise
            found = self._writer_of(path)
            if found is None and error.code == "file_exists":
                found = ask_again(lambda: self._writer_of(path))
            if found is None:
                raise
            return found == writer
        return True

    def _put_new(self, path: str, data: bytes | Path, size_bytes: int, writer: str) -> None:
        with self._errors(path):
            obstore.put(self._client(size_bytes), path, data, mode="create", attributes={_WRITER: writer})

    def _writer_of(self, path: str) -> str | None:
        """Who created a file; None: it is not there."""

        def ask() -> str:
            with self._errors(path):
                return str(obstore.get(self._objects, path, options={"head": True}).attributes.get(_WRITER, ""))

        return if_there(ask)

    def _exists(self, path: str) -> Corrupted:
        return Corrupted("file_exists", f"{path} exists in {self.url} with other bytes; a visible file never changes")

    def remove(self, path: str) -> None:
        check_store_path(path)
        with self._errors(path), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._objects, path)

    # --- reading -------------------------------------------------------------------------------------------------------------

    def get(self, path: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        check_store_path(path)

        def ask() -> bytes:
            found = obstore.get(self._client(bytes_max), path)
            if found.meta["size"] > bytes_max:
                raise Corrupted(
                    "file_too_large",
                    f"{path} in {self.url} has {found.meta['size']} bytes, expected at most {bytes_max}; restore it from a copy of the store",
                )
            return bytes(found.bytes())

        return self._ask(path, ask)

    def exists(self, path: str) -> bool:
        return if_there(lambda: self.stat(path)) is not None

    def list(self, prefix: str = "", after: str = "") -> list[str]:
        return [file.path for file in self.list_files(prefix, after)]

    def list_files(self, prefix: str = "", after: str = "") -> Sequence[StoreFile]:
        """One request for 1,000 files; none for those up to `after`."""
        folder = prefix.rpartition("/")[0]
        if "/" in prefix:
            check_store_path(folder)

        def ask() -> Sequence[Any]:
            return [meta for page in obstore.list(self._objects, f"{folder}/" if folder else None, offset=after or None) for meta in page]

        found = self._ask(prefix, ask)
        return [_store_file(meta) for meta in sorted(found, key=lambda meta: meta["path"]) if meta["path"].startswith(prefix)]

    def look(self) -> None:
        """Asks for the first page of the control log. Raises Unavailable (`bucket_missing`, `store_unreachable`, `store_refused`, `store_full`)."""
        self._ask("control", lambda: next(iter(obstore.list(self._objects, "control/", chunk_size=1)), None))

    def stat(self, path: str) -> StoreFile:
        """The store has whole seconds."""
        check_store_path(path)
        with self._errors(path):
            return _store_file(obstore.head(self._objects, path))

    def sha256(self, path: str) -> str:
        """The object is read, not the copy in the cache."""
        digest = hashlib.sha256()
        for piece in self._stream(path):
            digest.update(piece)
        return digest.hexdigest()

    def fetch(self, directory: str, file: PartFile, into: Path, *, verify: bool = True, link: bool = True) -> None:
        """Through the cache, so a machine fetches a file once for all its processes."""
        path = f"{directory}/{file.name}"
        check_store_path(path)
        with disk_errors(path):
            self._cache.take(file, into, lambda target: self._download(path, target), verify=verify, link=link, rest=self._rest)

    def _download(self, path: str, target: Path) -> str:
        digest = hashlib.sha256()
        with target.open("wb") as file:
            for piece in self._stream(path):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _stream(self, path: str) -> Iterator[bytes]:
        check_store_path(path)
        with self._errors(path):
            for piece in obstore.get(self._transfers, path).stream(_STREAM_BYTES):
                yield bytes(piece)
                self._rest()

    def _ask(self, path: str, ask: Callable[[], T], retries: int = _CUT_RETRIES) -> T:
        """The answer, asked for again where the connection ended in its body. obstore retries only the bytes of a file, no list and no "not found"."""
        try:
            with self._errors(path):
                return ask()
        except Unavailable as error:
            if not retries or _CUT not in str(error.__cause__):
                raise
            return self._ask(path, ask, retries - 1)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """The one place where obstore's errors become ours."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._unavailable(path, error) from error
            raise Unavailable("missing_file", f"{path} is not in the index store {self.url}; {describe_repair(path)}") from error
        except AlreadyExistsError as error:
            hint = "the store says that it exists, and does not give it to a reader; look at other writers and at caches; the request is retried"
            raise Unavailable("file_exists", f"{path} of {self.url}: {hint}") from error
        except BaseError as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: Exception) -> Unavailable:
        """The errors that obstore gives no class of their own, distinguished by the store's answer."""
        text = str(error)
        if "NoSuchBucket" in text:
            return Unavailable("bucket_missing", f"the bucket of {self.url} does not exist at {self._endpoint}; create it")
        said = _TOOK.sub("", text.partition("\n")[0])[:400]  # without the long form, and without the time it took
        if any(sign in text for sign in _FULL):
            hint = "free space there or raise the quota; it is tried again"
            return Unavailable("store_full", f"{self._endpoint} has no room for {path} of {self.url}: {said}; {hint}", _FULL_RETRY_S)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or any(sign in text for sign in _REFUSED):
            hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their permissions in the bucket"
            return Unavailable("store_refused", f"{self._endpoint} refuses {path} of {self.url}: {said}; {hint}")
        hint = "check that it runs, and AWS_ENDPOINT_URL and AWS_REGION; the request is retried"
        return Unavailable("store_unreachable", f"{path} of {self.url}, at {self._endpoint}: {said}; {hint}")


def _in_thread(call: Callable[[], None]) -> "Future[None]":
    """Begins a call in a separate thread, for which the end of the process does not wait."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            call()
            future.set_result(None)
        except BaseException as error:  # raised in the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="store-create", daemon=True).start()
    return future


def _store_file(meta: Any) -> StoreFile:
    return StoreFile(meta["path"], int(meta["last_modified"].timestamp() * 1000), int(meta["size"]))
