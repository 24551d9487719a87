"""The pinned jars: what is missing, what is damaged, what a repository may not send."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.broker import jars as jars_module
from infra.broker.jars import Jar, decode_jars_lock, fetch_jars, missing_jars, pinned_jars
from schemas.errors import Corrupted, Unavailable


class _Repository(http.server.ThreadingHTTPServer):
    """A Maven repository on loopback that sends `data` for every jar."""

    data = b"a jar"
    requests = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Repository

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.data)))
        self.end_headers()
        self.wfile.write(self.server.data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def repository() -> Iterator[_Repository]:
    server = _Repository(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def two_pinned(monkeypatch: pytest.MonkeyPatch) -> list[Jar]:
    pinned = [Jar(f"org.example:{name}:1", hashlib.sha256(b"a jar").hexdigest()) for name in ("one", "two")]
    monkeypatch.setattr(jars_module, "pinned_jars", lambda: pinned)
    return pinned


def test_the_lock_pins_46_jars_each_once_by_a_sha256() -> None:
    jars = pinned_jars()
    assert len(jars) == len({jar.file_name for jar in jars}) == 46
    assert all(len(jar.sha256) == 64 and int(jar.sha256, 16) for jar in jars)
    assert "org.apache.kafka:kafka_2.13:4.3.1" in {jar.coordinate for jar in jars}


def test_comments_and_empty_lines_of_the_lock_are_skipped() -> None:
    assert decode_jars_lock("# why\n\ng:a:1 sha256:ab\n") == [Jar("g:a:1", "ab")]


def test_a_damaged_jar_counts_as_missing(tmp_path: Path, two_pinned: list[Jar]) -> None:
    (tmp_path / "one-1.jar").write_bytes(b"a jar")
    (tmp_path / "two-1.jar").write_bytes(b"a jbr")
    assert missing_jars(two_pinned, tmp_path) == two_pinned[1:]


def test_two_processes_at_once_download_each_jar_once(tmp_path: Path, repository: _Repository, two_pinned: list[Jar]) -> None:
    url = f"http://127.0.0.1:{repository.server_port}"
    threads = [threading.Thread(target=fetch_jars, args=(tmp_path, url)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repository.requests == 2
    assert missing_jars(two_pinned, tmp_path) == []


def test_other_bytes_than_pinned_are_refused_and_not_kept(tmp_path: Path, repository: _Repository, two_pinned: list[Jar]) -> None:
    repository.data = b"not the jar"
    with pytest.raises(Corrupted, match="sha256"):
        fetch_jars(tmp_path, f"http://127.0.0.1:{repository.server_port}")
    assert missing_jars(two_pinned, tmp_path) == two_pinned
    assert not list(tmp_path.glob("*.jar"))


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, two_pinned: list[Jar]) -> None:
    with pytest.raises(Unavailable, match="AIF_KAFKA__BOOTSTRAP_SERVERS"):
        fetch_jars(tmp_path, "http://127.0.0.1:9")
