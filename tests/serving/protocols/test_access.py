"""Who may ask: the token on both ports, TLS on both ports, and no server open to the network by accident."""

import contextlib
import http.client
import logging
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import SecretStr
from structlog.testing import capture_logs
from tritonclient.utils import InferenceServerException

from infra.processes import wait_until
from schemas.errors import Misconfigured, RejectedInput, Unavailable
from serving.client import Client, client_of
from serving.protocols.front import Access, check_exposure
from serving.protocols.grpc_api import SERVICE
from serving.protocols.listener import Tls, read_tls
from serving.settings import ServeSection
from tests import plain_http
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, open_front

TOKEN = "a-token-of-enough-letters"
BEARER = {"authorization": f"Bearer {TOKEN}"}
REFUSED = ("UNAUTHENTICATED", "UNIMPLEMENTED")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Front]:
    with open_front(FakeEngine(), settings=ServeSection(port=0, deadline_ms=5_000, token=SecretStr(TOKEN))) as opened:
        yield opened


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    asked = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*asked, *named, "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: there is nothing here to make a certificate with")
    tls = read_tls(folder / "cert.pem", folder / "key.pem")
    assert tls is not None
    return tls


def inputs(module: Any) -> list[Any]:
    made = [module.InferInput("user_id", [1], "INT64"), module.InferInput("item_ids", [3], "INT64")]
    made[0].set_data_from_numpy(np.array([1]))
    made[1].set_data_from_numpy(np.array([1, 2, 3]))
    return made


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"])
def test_a_request_without_the_token_is_refused_and_a_probe_is_not(guarded: Front, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.encode()}
    for method, path in (("POST", "/v1/rank"), ("GET", "/v1/status"), ("GET", "/metrics"), ("GET", "/v2/models/prerank"), ("GET", "/none")):
        answer = plain_http.request(method, guarded.url + path, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path
        assert answer.headers["www-authenticate"] == "Bearer" and TOKEN not in answer.text
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert plain_http.get(guarded.url + path, headers=headers, timeout=60).status_code == 200


def test_two_authorization_headers_are_refused_on_both_ports(guarded: Front) -> None:
    both = [("authorization", BEARER["authorization"]), ("authorization", "Bearer another-token-of-letters")]
    for pair in (both, both[::-1], [both[0]] * 2):
        answer = httpx.get(guarded.url + "/v1/status", headers=pair, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized") and "2 authorization headers" in answer.text
        with grpc.insecure_channel(guarded.grpc) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive").future(b"", timeout=60, metadata=pair)
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED and "2 authorization headers" in call.details()


@pytest.mark.parametrize("size", [20, 600_000])
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/v1/rank", {}, 401),
        ("POST", "/v1/rankk", BEARER, 404),
        ("PUT", "/v1/rank", BEARER, 405),
        ("POST", "/v1/rank", {f"x-{number}": "" for number in range(80)}, 431),
    ],
)
def test_a_connection_goes_on_after_a_request_that_was_refused_by_its_head(
    guarded: Front, method: str, path: str, headers: dict[str, str], status: int, size: int
) -> None:
    with contextlib.closing(http.client.HTTPConnection(guarded.http, timeout=60)) as connection:
        connection.connect()
        connection.auto_open = 0  # a lost connection is not opened again
        for _ in range(3):
            connection.request(method, path, b"x" * size, headers)
            refused = connection.getresponse()
            assert (refused.status, refused.read()[:1]) == (status, b"{")
            connection.request("GET", "/v1/status", headers=BEARER)
            answered = connection.getresponse()
            assert answered.status == 200 and answered.read()


def test_the_token_opens_every_client(guarded: Front) -> None:
    with Client(guarded.url, token=TOKEN) as client:
        assert len(client.rank(1, [1, 2, 3]).items) == 3
    with Client(guarded.url) as client, pytest.raises(RejectedInput, match="unauthorized"):
        client.rank(1, [1, 2, 3])
    for module, address in ((triton_http, guarded.http), (triton_grpc, guarded.grpc)):
        with module.InferenceServerClient(address) as client:
            assert client.infer("prerank", inputs(module), headers=dict(BEARER)).as_numpy("item_ids").shape == (3,)
            with pytest.raises(InferenceServerException, match="unauthorized"):
                client.infer("prerank", inputs(module))
            with pytest.raises(InferenceServerException, match="unauthorized"):
                client.infer("prerank", inputs(module), headers={"authorization": "Bearer wrong"})


@pytest.mark.parametrize("token", ["", TOKEN + "\n", "two words", "ä" * 30])
def test_a_token_that_no_header_can_carry_is_refused_by_the_client_without_showing_it(token: str) -> None:
    """It was shown as part of the error of a server that does not answer."""
    with pytest.raises(Misconfigured, match="bad_token") as caught:
        Client("http://127.0.0.1:9", token=token)
    assert not token or token not in str(caught.value)


def test_a_refused_call_is_counted_and_logged_on_both_ports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serving.access")
    settings = ServeSection(port=0, token=SecretStr(TOKEN), access_log=True)
    with capture_logs() as lines, open_front(FakeEngine(), settings=settings) as front:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            plain_http.post(front.url + "/v1/rank", headers=headers, timeout=60)
            with triton_grpc.InferenceServerClient(front.grpc) as client, pytest.raises(InferenceServerException):
                client.infer("prerank", inputs(triton_grpc), headers=headers)
        with triton_grpc.InferenceServerClient(front.grpc) as client, pytest.raises(InferenceServerException, match="no_such_method"):
            client.get_model_config("prerank", headers=dict(BEARER))
        wait_until(lambda: len(lines) == 5, 20, "five lines")  # an answer is counted, and then logged, when it is on its way
        requests = front.metrics.counter("requests")
        counted = {at: requests.labels(*at)._value.get() for at in (("/v1/rank", "401"), *[("grpc other", s) for s in REFUSED])}
    assert counted == {("/v1/rank", "401"): 2, ("grpc other", "UNAUTHENTICATED"): 2, ("grpc other", "UNIMPLEMENTED"): 1}
    assert sorted(str(one["status"]) for one in lines) == ["401", "401", "UNAUTHENTICATED", "UNAUTHENTICATED", "UNIMPLEMENTED"]
    assert TOKEN not in str(lines)


def test_grpc_guards_its_reflection_and_answers_its_health(guarded: Front) -> None:
    with grpc.insecure_channel(guarded.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError, match="unauthorized"):
            list(reflection.ServerReflectionInfo(iter([asked])))
        [answer] = reflection.ServerReflectionInfo(iter([asked]), metadata=tuple(BEARER.items()))
        assert SERVICE in [one.name for one in answer.list_services_response.service]


def test_reflection_describes_the_service_and_health_follows_readiness() -> None:
    with open_front(FakeEngine()) as front, grpc.insecure_channel(front.grpc) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        for symbol in (SERVICE, "inference.ModelInferRequest", "grpc.health.v1.Health"):
            [answer] = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)]))
            assert symbol.rpartition(".")[2].encode() in answer.file_descriptor_response.file_descriptor_proto[0]
        health, status = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckResponse
        front.show_ready(False)
        wait_until(lambda: health.Check(health_pb2.HealthCheckRequest()).status == status.NOT_SERVING, 10, "the health to follow")


def test_both_ports_speak_tls_with_a_certificate(certificate: Tls) -> None:
    settings = ServeSection(port=0, deadline_ms=5_000, token=SecretStr(TOKEN), tls_cert=certificate.cert, tls_key=certificate.key)
    with open_front(FakeEngine(), settings=settings, tls=certificate) as front:
        assert front.url.startswith("https://127.0.0.1:")
        with client_of(settings, front.url) as client:
            assert client.ready() and len(client.rank(1, [1, 2, 3]).items) == 3
        with Client(front.url, token=TOKEN) as stranger:
            assert not stranger.ready(), "no authority vouches for this certificate"
            with pytest.raises(Misconfigured, match="AIF_SERVE__TLS_CERT"):
                stranger.rank(1, [1, 2, 3])
        with (
            Client(front.url.replace("https", "http"), token=TOKEN) as plain_text,
            pytest.raises(Unavailable, match="with TLS \\(https"),
        ):
            plain_text.rank(1, [1, 2, 3])
        context = ssl.create_default_context(cafile=certificate.cert)
        with triton_http.InferenceServerClient(front.http, ssl=True, ssl_context_factory=lambda: context) as stock:
            assert stock.infer("prerank", inputs(triton_http), headers=dict(BEARER)).as_numpy("scores").shape == (3,)
        with triton_grpc.InferenceServerClient(front.grpc, ssl=True, root_certificates=str(certificate.cert)) as stock:
            assert stock.infer("prerank", inputs(triton_grpc), headers=dict(BEARER)).as_numpy("scores").shape == (3,)
        with triton_grpc.InferenceServerClient(front.grpc) as plain, pytest.raises(InferenceServerException):
            plain.infer("prerank", inputs(triton_grpc), headers=dict(BEARER), client_timeout=5)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.test"])
def test_an_address_beyond_loopback_needs_a_token_or_an_explicit_word(host: str) -> None:
    with pytest.raises(Misconfigured, match="AIF_SERVE__TOKEN"):
        check_exposure(host, None, allow_open=False)
    check_exposure(host, None, allow_open=True)
    check_exposure(host, SecretStr(TOKEN), allow_open=False)
    for local in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        check_exposure(local, None, allow_open=False)


def test_a_weak_token_and_half_a_certificate_are_refused_without_showing_them(certificate: Tls, tmp_path: Path) -> None:
    for weak in ("", "short", "ä" * 30, TOKEN + "\n", "two words " + TOKEN):
        with pytest.raises(Misconfigured) as caught:
            check_exposure("127.0.0.1", SecretStr(weak), allow_open=False)
        assert caught.value.code == "bad_token" and (not weak or weak not in caught.value.message)
    assert TOKEN not in repr(ServeSection(token=SecretStr(TOKEN))) + ServeSection(token=SecretStr(TOKEN)).model_dump_json()
    for cert, key in (
        (certificate.cert, None),
        (None, certificate.key),
        (certificate.key, certificate.cert),
        (tmp_path / "no", certificate.key),
    ):
        with pytest.raises(Misconfigured, match="tls_"):
            read_tls(cert, key)
    assert read_tls(None, None) is None


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for_on_the_terminal(certificate: Tls, tmp_path: Path) -> None:
    locked = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", str(certificate.key), "-out", "locked.pem"]
    subprocess.run(locked, cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(Misconfigured, match=r"tls_unusable.*the key has a passphrase"):
        read_tls(certificate.cert, tmp_path / "locked.pem")


def test_without_a_token_everybody_is_let_in() -> None:
    Access(None).check([])
    assert Access(None).open and not Access(SecretStr(TOKEN)).open


def test_a_ranking_is_a_frame_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        def __init__(self, rows: list[dict[str, Any]], columns: list[str] | None) -> None:
            self.rows, self.columns, self.attrs = rows, columns, {}

    with open_front(FakeEngine(rows=1 << 60)) as front, Client(front.url) as client:
        monkeypatch.setitem(__import__("sys").modules, "pandas", None)
        with pytest.raises(Misconfigured, match="pandas"):
            client.rank_frame(1, [1, 2, 3])
        monkeypatch.setitem(__import__("sys").modules, "pandas", SimpleNamespace(DataFrame=Frame))
        frame: Any = client.rank_frame(np.int64(1), np.array([1, 2, 1 << 60]), top_k=2)
        assert client.rank(1, list(np.array([1, 2]))).candidates == 2 and client.user(np.int64(1)).cold_user
        assert [set(row) for row in frame.rows] == [{"item_id", "score", "probability"}] * 2
        assert frame.attrs["version_token"] == str(front.engine.current) and frame.attrs["unknown_items"] == [str(1 << 60)]
        assert client.rank_frame(1, [-1]).columns == ["item_id", "score"]  # type: ignore[comparison-overlap]
        for given in ([3, 1 << 55], ["3", str(1 << 55)]):
            frame = client.rank_frame(1, given)
            assert {row["item_id"] for row in frame.rows} == set(given), "as they were given, though those beyond 2**53 travel as text"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8100", "http://", "http://host:port", "http://[::1", "ftp://host:1", "http://host:81000", "http://" + "a" * 64]
)
def test_what_is_no_address_of_a_server_is_said(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"bad_url: .* is no address of a server; give http://HOST:PORT"):
        Client(url)
