"""What only the store in a bucket has: its URL, lost answers, a server that goes away, upload in parts, the cache; and a whole version through it."""

import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.index import s3_store
from infra.index.control_log import ControlLog
from infra.index.file_cache import FileCache
from infra.index.removal import read_store_content
from infra.index.s3_store import S3Store, decode_s3_url, open_s3_store
from infra.index.store import IndexStore, check_exclusive_create, open_index_store
from infra.index.verify import verify_version
from infra.settings import InfraSettings, load_settings
from infra.tools import doctor
from schemas.errors import Incompatible, Misconfigured, Unavailable
from schemas.index.manifest import Manifest, PartFile, encode_manifest, manifest_path
from serving.versions.loader import Loader, Source
from tests.infra.index_fixture import publish_version
from tests.infra.object_server import Line, ObjectServer, object_server

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture
def bucket(server: ObjectServer) -> str:
    return server.new_bucket()


def url_of(bucket: str, endpoint: str, tmp_path: Path, **options: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return f"s3://{bucket}/p?endpoint={endpoint}&cache_dir={tmp_path / 'cache'}{more}"


# --- the URL ------------------------------------------------------------------------------------------------------------------


def test_a_url_names_bucket_prefix_and_what_differs_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = decode_s3_url(f"s3://company-index/prod/a?cache_dir={tmp_path}&cache_gib=0.5&region=eu-west-1&endpoint=http://h:1")
    assert (address.bucket, address.prefix, address.cache_dir, address.cache_bytes) == ("company-index", "prod/a", tmp_path, 512 * MIB)
    assert (address.region, s3_store.endpoint_of(address)) == ("eu-west-1", "http://h:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h:2")
    assert s3_store.endpoint_of(decode_s3_url("s3://abc")) == "http://h:2"


@pytest.mark.parametrize(
    "url", ["s3://", "s3://ab", "s3://UPPER/x", "s3://abc/../x", "s3://abc/x?secret=1", "s3://abc?cache_gib=much", "s3://abc?cache_gib=-1"]
)
def test_a_url_that_is_none_is_misconfigured_and_says_how_one_looks(url: str) -> None:
    with pytest.raises(Misconfigured, match="s3://BUCKET/PREFIX"):
        open_index_store(url)


def test_a_bucket_that_does_not_exist_is_no_empty_index(server: ObjectServer, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="does not exist"):
        open_index_store(url_of("no-such-bucket", server.endpoint, tmp_path))


def test_config_show_and_doctor_know_a_bucket_and_tell_no_secret(
    server: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIF_INDEX__STORE", url_of(bucket, server.endpoint, tmp_path))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    shown = CliRunner().invoke(build_app(), ["config", "show", "--json"]).stdout
    rows = {row["name"]: row for row in json.loads(shown)["settings"]}
    assert rows["AWS_REGION"]["value"] == "us-east-1" and rows["AWS_SECRET_ACCESS_KEY"]["value"] == "(set)" and "do-not-tell" not in shown
    settings = load_settings(InfraSettings)
    assert [check(settings).state for check in (doctor.check_store, doctor.check_clock, doctor.check_disk)] == ["ok"] * 3
    assert open_index_store(settings.index.store).list() == []


# --- a network that fails ---------------------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_known_to_be_ours_or_somebody_elses(server: ObjectServer, bucket: str, tmp_path: Path) -> None:
    store = open_index_store(url_of(bucket, server.endpoint, tmp_path))
    store.put_exclusive("control/000000000", b"other")
    for lost in (1, 2):
        with Line(server) as line:
            cut = open_index_store(url_of(bucket, line.endpoint, tmp_path))
            line.lose(lost)
            assert cut.put_exclusive(f"control/00000000{lost}", b"mine"), f"{lost} answers were lost"
            line.lose(lost)
            assert not cut.put_exclusive("control/000000000", b"mine")
    assert [store.get(path) for path in store.list()] == [b"other", b"mine", b"mine"]


def test_a_create_whose_answers_are_swallowed_is_known_to_have_happened_long_before_other_requests_are_given_up(
    server: ObjectServer, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each decision about a version is such a create: at 15 s each, a version stood still for a minute after 30 s without answers."""
    with Line(server) as line:
        store = open_index_store(url_of(bucket, line.endpoint, tmp_path))
        line.swallows = True
        began_s = time.monotonic()
        assert store.put_exclusive("control/000000000", b"mine")
        assert time.monotonic() - began_s < s3_store._ANSWER_S_MAX, "the time limit of a request"
        assert "store_answer_lost path=control/000000000" in caplog.text
        line.swallows = False
        assert not store.put_exclusive("control/000000000", b"mine")
        assert store.get("control/000000000") == b"mine"


def test_a_server_that_dies_is_unavailable_with_the_next_step_and_may_come_back(tmp_path: Path) -> None:
    with object_server(tmp_path) as own:
        bucket = own.new_bucket()
        store = open_index_store(url_of(bucket, own.endpoint, tmp_path))
        store.put_exclusive("control/000000000", b"1")
        own.stop()
        absent = PartFile("x", 1, "0" * 64)
        for ask in (
            lambda: store.get("control/000000000"),
            lambda: store.put_exclusive("control/000000001", b""),
            lambda: store.list("control/"),
            lambda: store.exists("control/000000000"),
            lambda: store.fetch("a", absent, tmp_path / "x"),
            lambda: ControlLog(store).refresh(),
            lambda: open_index_store(store.url),
        ):
            with pytest.raises(Unavailable, match=r"store_unreachable.*AWS_ENDPOINT_URL"):
                ask()
        own.start()  # with nothing in it: that the bucket is gone is not taken for an empty log either
        with pytest.raises(Unavailable, match="bucket_missing"):
            ControlLog(store).refresh()


class Refusing(BaseHTTPRequestHandler):
    """Answers whatever is written or listed with one status and the error code of the store; has nothing."""

    answer: tuple[int, str] = 0, ""

    def do_PUT(self) -> None:
        body = f"<Error><Code>{self.answer[1]}</Code></Error>".encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.answer[0])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("status", "said", "code", "hint"),
    [
        (507, "XMinioStorageFull", "store_full", "free space"),
        (403, "QuotaExceeded", "store_full", "raise the quota"),
        (403, "InvalidAccessKeyId", "store_refused", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_full_store_and_wrong_credentials_are_named_and_the_same_error_has_the_same_text(
    status: int, said: str, code: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr(s3_store, "_RETRIES", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Refusing,), {"answer": (status, said)})) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        url = f"s3://bucket/index?region=us-east-1&endpoint=http://127.0.0.1:{refusing.server_port}&cache_dir={tmp_path}"
        objects = s3_store._open_objects(s3_store.decode_s3_url(url), 30.0)
        store = s3_store.S3Store(url, objects, objects, FileCache(tmp_path, 1 << 20))
        texts = set()
        for ask in (
            lambda: store.put_exclusive("control/1", b"x"),
            lambda: store.put_exclusive("control/1", b"x"),
            lambda: store.list("control/"),
        ):
            with pytest.raises(Unavailable, match=hint) as raised:
                ask()
            assert raised.value.code == code
            texts.add(str(raised.value))
        refusing.shutdown()
    assert len(texts) == 2, texts


def test_a_store_that_ignores_the_condition_of_a_create_is_refused(
    server: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_s3_store(url_of(bucket, server.endpoint, tmp_path))
    check_exclusive_create(store)
    monkeypatch.setattr(S3Store, "put_exclusive", lambda *_: True)
    with pytest.raises(Incompatible, match="no_exclusive_create"):
        check_exclusive_create(store)


# --- large files and the cache ----------------------------------------------------------------------------------------------------


def test_a_large_file_goes_up_in_parts_and_comes_back_whole(
    server: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "PUT_BYTES_MAX", MIB)
    monkeypatch.setattr(s3_store, "_UPLOAD_PART_BYTES", 5 * MIB)
    store = open_index_store(url_of(bucket, server.endpoint, tmp_path))
    local, data = tmp_path / "local", os.urandom(5 * MIB + 12_345)
    local.write_bytes(data)
    store.put_file("snapshots/00000/a/files/x.sst", local)
    with pytest.raises(Exception, match="file_exists"):
        store.put_file("snapshots/00000/a/files/x.sst", local)
    store.fetch("snapshots/00000/a/files", PartFile("x.sst", len(data), hashlib.sha256(data).hexdigest()), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


def test_a_whole_version_goes_through_a_bucket_and_is_loaded_by_a_server(
    server: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(bucket, server.endpoint, tmp_path)
    store = open_index_store(url)
    manifest = publish_version(store)
    state = ControlLog(open_index_store(url)).refresh()
    assert state.current is not None and state.current.version == manifest.version
    assert verify_version(store, state.current).faults == ()
    _check_loaded(store, manifest)
    content = read_store_content(store, state)
    assert (manifest.version, 0) in content.manifests and all(file.size_bytes for file in content.files)
    monkeypatch.setenv("AIF_INDEX__STORE", url)
    listed = CliRunner().invoke(build_app(), ["index", "verify", str(manifest.version), "--json"])
    assert listed.exit_code == 0, listed.output
    _damage(store, manifest)
    faults = verify_version(store, state.current).faults
    assert len(faults) == 1 and "sha256" in faults[0], "the store itself is verified, not the copies of this machine"


def _check_loaded(store: IndexStore, manifest: Manifest) -> None:
    """The loader process reads it through the same URL, and checks every digest. One shard: both of this version have the same ids."""
    one = dataclasses.replace(manifest, revision=1, seals=manifest.seals[:1])
    raw = encode_manifest(one)
    store.put_exclusive(manifest_path(one.version, one.revision), raw)
    loader = Loader(arena_bytes=8 * MIB)
    try:
        assert loader.load(Source(store.url, one, hashlib.sha256(raw).hexdigest()), 0).rows == one.seals[0].rows
    finally:
        loader.close()


def _damage(store: object, manifest: Manifest) -> None:
    """A byte of a table file is another one, as no writer of ours could make it."""
    assert isinstance(store, S3Store)
    part = manifest.seals[0].full
    path = f"{part.directory}/{next(f.name for f in part.files if f.name.endswith('.sst'))}"
    data = bytearray(store.get(path))
    data[len(data) // 2] ^= 1
    s3_store.obstore.put(store._objects, path, bytes(data))
