"""The jars of the local broker: fetched once per user, checked at every use.

The client `maven-artifact` downloads missing jars; server.py runs them.
Invariants: every jar on a class path has the sha256 that jars.lock pins. A jar in the cache is complete or not there (temporary file, rename). Two
processes that start at once download once.
"""

import fcntl
import functools
import hashlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.files import TEMPORARY_PREFIX, sha256_of_file
from schemas.errors import Corrupted, Misconfigured, Unavailable

KAFKA_VERSION = "4.3.1"
_LOCK_FILE = Path(__file__).with_name("jars.lock")
_DOWNLOAD_THREADS = 8
_DOWNLOAD_TRIES = 3
_TIMEOUT_S = 30
_NEXT_STEP = (
    "connect to the network once, name a mirror in AIF_BROKER__MAVEN_URL, or use another broker through AIF_KAFKA__BOOTSTRAP_SERVERS"
)


@dataclass(frozen=True)
class Jar:
    """One line of jars.lock: `group:artifact:version` and the sha256 of its bytes (lower-case hex)."""

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        """`artifact-version.jar`"""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def decode_jars_lock(text: str) -> list[Jar]:
    """The jars a lock text names, in its order; lines that start with '#' are comments."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Jar(coordinate, checksum.removeprefix("sha256:")) for coordinate, checksum in lines]


def pinned_jars() -> list[Jar]:
    """The jars of jars.lock."""
    return decode_jars_lock(_LOCK_FILE.read_text())


def fetch_jars(cache: Path, maven_url: str = "") -> list[Path]:
    """The paths of all pinned jars below `cache`, downloaded where they are missing or damaged.

    `maven_url` is a mirror of the Maven repository; empty means the client's default. Unavailable without a network, Corrupted
    when the repository sends other bytes than were pinned.
    """
    cache.mkdir(parents=True, exist_ok=True)
    jars = pinned_jars()
    if missing_jars(jars, cache):
        with (cache / ".downloading").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here and then finds them all
            _download(missing_jars(jars, cache), cache, maven_url)
    return [cache / jar.file_name for jar in jars]


def missing_jars(jars: Sequence[Jar], cache: Path) -> list[Jar]:
    """Those of `jars` that are not in `cache` with the pinned bytes."""

    def good(jar: Jar) -> bool:
        path = cache / jar.file_name
        return path.exists() and sha256_of_file(path) == jar.sha256

    with ThreadPoolExecutor(2) as threads:  # hashing releases the GIL: 44 MB in about 0.05 s
        return [jar for jar, is_good in zip(jars, threads.map(good, jars), strict=True) if not is_good]


def _download(jars: Sequence[Jar], cache: Path, maven_url: str) -> None:
    client = _maven_client(maven_url)
    with ThreadPoolExecutor(_DOWNLOAD_THREADS) as threads:
        for _ in threads.map(functools.partial(_download_one, client, cache), jars):
            pass


def _maven_client(maven_url: str) -> Any:
    try:
        from maven_artifact.downloader import Downloader
    except ImportError as error:
        raise not_installed("maven-artifact") from error
    return Downloader(maven_url) if maven_url else Downloader()


def not_installed(package: str) -> Misconfigured:
    """The error for a package that only the local broker needs."""
    return Misconfigured(
        "broker_not_installed",
        f"the package {package} of the local broker is missing; run `pip install 'aif[broker]'` (in a clone: `uv sync`), or name another broker: "
        "AIF_KAFKA__BOOTSTRAP_SERVERS",
    )


def _download_one(client: Any, cache: Path, jar: Jar) -> None:
    data = _get(client, jar)
    found = hashlib.sha256(data).hexdigest()
    if found != jar.sha256:
        raise Corrupted(
            "kafka_jar_changed",
            f"the Maven repository sent {jar.coordinate} with sha256 {found}, jars.lock pins {jar.sha256}; "
            "nothing was kept. Use the real repository, or check the proxies in between",
        )
    with tempfile.NamedTemporaryFile(dir=cache, prefix=TEMPORARY_PREFIX, delete=False) as file:
        file.write(data)
    Path(file.name).replace(cache / jar.file_name)


def _get(client: Any, jar: Jar) -> bytes:
    from maven_artifact.artifact import Artifact

    for attempt in range(1, _DOWNLOAD_TRIES + 1):
        try:
            url = client.resolver.uri_for_artifact(Artifact.parse(jar.coordinate))
            return bytes(client.requestor.request(url, None, timeout=_TIMEOUT_S).content)
        except Exception as error:  # the client raises whatever its HTTP library does
            if attempt == _DOWNLOAD_TRIES:
                raise Unavailable(
                    "kafka_jars_unreachable", f"could not download {jar.coordinate} for the local broker ({error}); {_NEXT_STEP}"
                ) from error
    raise AssertionError("unreachable")
