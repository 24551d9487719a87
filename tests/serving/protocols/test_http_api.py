"""Every way in which a request can be wrong, against the real HTTP server: status, code, and a message that names the value."""

import gzip
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from schemas.errors import Incompatible, Misconfigured, Unavailable
from schemas.limits import BODY_BYTES_MAX, CANDIDATES_MAX
from serving.protocols.listener import Listener
from serving.settings import ServeSection
from tests.plain_http import get, post, request
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, connect, open_front

WAIT_S = 60.0
PRERANK, RANK, USER = "/v1/prerank", "/v1/rank", "/v1/user"
MILLION = b'{"user_id":1,"item_ids":[' + b"123456," * 999_999 + b"123456]}"
LARGER = MILLION.replace(b",", b",  ")


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with open_front(FakeEngine()) as opened:
        yield opened


def body(**fields: object) -> bytes:
    return json.dumps({"user_id": 1, "item_ids": [1, 2, 3], **fields}).encode()


# (what, route, body, status, code, what the message must name)
HOSTILE = [
    ("not JSON", PRERANK, b"<xml/>", 400, "not_json", "line 1 column 1"),
    ("empty", PRERANK, b"", 400, "not_json", "EOF"),
    ("cut short", PRERANK, body()[:-3], 400, "not_json", "EOF"),
    ("bad UTF-8", PRERANK, b'{"user_id":"\xff\xfe","item_ids":[1]}', 400, "not_json", "unicode"),
    ("lone surrogate", PRERANK, b'{"user_id":"\\ud800","item_ids":[1]}', 400, "not_json", "hex escape"),
    ("a number of 5,000 digits", PRERANK, b'{"user_id":' + b"9" * 5000 + b',"item_ids":[1]}', 400, "not_json", "number out of range"),
    ("nested too deep", PRERANK, b"[" * 100_000, 400, "json_too_deep", "100000 levels"),
    (
        "nested too deep in a field",
        RANK,
        body(context={"a": 1})[:-2] + b',"b":' + b"[" * 20 + b"]" * 20 + b"}}",
        400,
        "json_too_deep",
        "22",
    ),
    ("a list", PRERANK, b"[]", 422, "bad_request", "object"),
    ("NaN", PRERANK, b'{"user_id":1,"item_ids":[1],"context":{"hour":NaN}}', 422, "bad_request", "context.hour"),
    ("infinity", PRERANK, b'{"user_id":1,"item_ids":[1],"context":{"hour":1e999}}', 422, "bad_request", "inf"),
    ("no user", PRERANK, b'{"item_ids":[1]}', 422, "bad_request", "user_id"),
    ("user id null", PRERANK, body(user_id=None), 422, "bad_request", "user_id"),
    ("user id a list", PRERANK, body(user_id=[1]), 422, "bad_request", "user_id"),
    ("user id true", PRERANK, body(user_id=True), 422, "bad_request", "True"),
    (
        "user id a fraction",
        PRERANK,
        body(user_id=1.5),
        422,
        "bad_request",
        "user_id: expected an integer of 64 bits",
    ),
    ("user id text in an int64 catalogue", PRERANK, body(user_id="anna"), 422, "bad_id", "anna"),
    ("item id text in an int64 catalogue", PRERANK, body(item_ids=[1, "x9"]), 422, "bad_id", "x9"),
    ("item id beyond int64", PRERANK, body(item_ids=[1 << 63]), 422, "bad_request", "9223372036854775808"),
    ("item id text beyond int64", PRERANK, body(item_ids=[str(1 << 63)]), 422, "bad_id", "int64"),
    ("no candidates", PRERANK, body(item_ids=[]), 422, "bad_request", "item_ids"),
    ("candidates an object", PRERANK, body(item_ids={"a": 1}), 422, "bad_request", "item_ids"),
    ("unknown field", PRERANK, body(top_n=5), 422, "bad_request", "top_n"),
    ("top_k 0", PRERANK, body(top_k=0), 422, "bad_request", "top_k"),
    ("top_k a text", PRERANK, body(top_k="10"), 422, "bad_request", "top_k"),
    ("deadline 0", PRERANK, body(deadline_ms=0), 422, "bad_request", "deadline_ms"),
    ("history of another kind", PRERANK, body(behaviours=[{"item_id": "x9"}]), 422, "bad_id", "x9"),
    ("unknown consistency", RANK, body(consistency="eventual"), 422, "bad_request", 'consistency: expected "latest", "pinned" or {'),
    ("pinned to nothing", RANK, body(consistency="pinned"), 422, "no_version_token", "version_token"),
    ("a text that is not a token", RANK, body(version_token="latest"), 422, "bad_version_token", "latest"),
    (
        "a shard that is not there",
        RANK,
        body(consistency={"topic": "new-items", "partition": 9, "offset": 0}),
        422,
        "no_such_partition",
        "9",
    ),
    (
        "an offset beyond int64",
        RANK,
        body(consistency={"topic": "new-items", "partition": 0, "offset": 1 << 63}),
        422,
        "bad_request",
        "0 to 2^63 - 1",
    ),
    ("call 1 with candidates", USER, body(), 422, "bad_request", "item_ids"),
    ("20,001 candidates", PRERANK, body(item_ids=list(range(20_001))), 422, "too_many_candidates", "20001"),
    (
        "more than the hard bound",
        PRERANK,
        body(item_ids=list(range(CANDIDATES_MAX + 1))),
        422,
        "too_many_candidates",
        str(CANDIDATES_MAX + 1),
    ),
    ("10^6 candidates within the body's bound", PRERANK, MILLION, 413, "json_too_large", "1000002 values"),
    ("10^5 candidates of which none is an id", PRERANK, body(item_ids=[1.5] * 100_000), 422, "bad_request", "item_ids.0: expected"),
    ("10^6 candidates in a larger body", PRERANK, LARGER, 413, "body_too_large", str(len(LARGER))),
]


@pytest.mark.parametrize(("route", "raw", "status", "code", "named"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_wrong_body_is_refused_with_its_reason(front: Front, route: str, raw: bytes, status: int, code: str, named: str) -> None:
    answer = post(front.url + route, content=raw)
    error = answer.json()
    assert (answer.status_code, error["code"]) == (status, code), error
    assert named in error["message"], error
    assert post(front.url + PRERANK, content=body()).status_code == 200, "the server must stay"


def test_a_body_without_a_declared_length_is_cut_at_the_same_bound(front: Front) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65_536 + 20):
            yield b" " * 65_536

    answer = post(front.url + PRERANK, content=chunks())
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/", 404, "no_such_route", None),
        ("POST", "/v1/rankk", 404, "no_such_route", None),
        ("GET", "/v1/../etc/passwd", 404, "no_such_route", None),
        ("GET", PRERANK, 405, "method_not_allowed", "POST"),
        ("DELETE", "/metrics", 405, "method_not_allowed", "GET, HEAD"),
        ("POST", "/v2/health/ready", 405, "method_not_allowed", "GET, HEAD"),
    ],
)
def test_other_routes_and_methods_are_named(front: Front, method: str, path: str, status: int, code: str, allow: str | None) -> None:
    answer = request(method, front.url + path)
    assert (answer.status_code, answer.json()["code"], answer.headers.get("allow")) == (status, code, allow)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v1/status", "/v2/models/prerank"])
def test_a_probe_with_head_gets_the_head_of_the_answer_to_get(front: Front, path: str) -> None:
    with httpx.Client(base_url=front.url, timeout=WAIT_S) as client:
        whole, head, after = client.get(path), client.head(path), client.get(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", whole.headers["content-length"])
    assert after.content == whole.content, "the connection goes on"


@pytest.mark.parametrize(
    "value", ["0", "-5", "soon", "1.5", "60001", "9" * 40, "", "0000000010000000", "000000001" + "0" * 5_000, b"5\xff"]
)
def test_a_deadline_header_that_is_no_number_of_milliseconds_is_refused(front: Front, value: str | bytes) -> None:
    answer = post(front.url + PRERANK, content=body(), headers={"x-aif-deadline-ms": value})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_deadline")


def test_past_the_deadline_the_answer_is_504() -> None:
    with open_front(FakeEngine(stuck=True)) as front:
        answer = post(front.url + PRERANK, content=body(deadline_ms=30))
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_passed")
        assert "30 ms" in answer.json()["message"]
        answer = post(front.url + USER, content=b'{"user_id":1}', headers={"x-aif-deadline-ms": "20"})
        assert answer.status_code == 504 and "20 ms" in answer.json()["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unavailable("overloaded", "256 requests wait", 0.05), 429, "overloaded"),
        (Unavailable("no_version", "nothing is live yet", 2.0), 503, "no_version"),
        (Incompatible("version_gone", "version 3 is not resident"), 409, "version_gone"),
        (ZeroDivisionError("secret"), 500, "internal"),
    ],
)
def test_an_error_of_the_engine_has_its_status(error: Exception, status: int, code: str) -> None:
    with open_front(FakeEngine(error=error)) as front:
        answer = post(front.url + USER, content=b'{"user_id":1}')
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        assert "secret" not in answer.text
        assert get(front.url + "/v2/health/live").status_code == 200


def test_more_requests_than_the_bound_are_refused_at_once() -> None:
    with (
        open_front(FakeEngine(stuck=True), settings=ServeSection(port=0, requests_max=1)) as front,
        httpx.Client(base_url=front.url, timeout=WAIT_S) as client,
        connect(front.http) as waiting,  # for an answer that never comes
    ):
        whole = body(deadline_ms=60_000)
        waiting.sendall(b"POST /v1/prerank HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(whole) + whole)
        statuses = {client.post(PRERANK, content=body(deadline_ms=50)).status_code for _ in range(50)}
        assert 429 in statuses


def test_without_an_index_the_server_is_alive_and_says_what_is_missing() -> None:
    with open_front(FakeEngine(), index=False) as front:
        front.ready = (False, "no version is live yet")
        assert get(front.url + "/v2/health/live").status_code == 200
        ready = get(front.url + "/v2/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"ready": False, "reason": "no version is live yet"})
        answer = post(front.url + PRERANK, content=body())
        assert (answer.status_code, answer.json()["code"]) == (503, "no_index") and "aif worker" in answer.json()["message"]


def test_the_metrics_page_counts_what_was_answered() -> None:
    with open_front(FakeEngine()) as front:
        for raw in (body(item_ids=[1, 2, 2, 5000]), body(item_ids=[1]), b"no"):
            post(front.url + PRERANK, content=raw)
        page = get(front.url + "/metrics").text
        assert 'aif_requests_total{route="/v1/prerank",status="200"} 2.0' in page
        assert 'aif_requests_total{route="/v1/prerank",status="400"} 1.0' in page
        assert "aif_candidates_total 4.0" in page and "aif_candidates_unknown_total 1.0" in page
        assert 'aif_answers_degraded_total{reason="unknown_items"} 1.0' in page
        assert 'aif_request_seconds_count{route="/v1/prerank"} 3.0' in page


def test_a_port_that_somebody_uses_is_refused_with_the_next_step() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Misconfigured, match="--port"):
            Listener(None, "127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("encoding", ["gzip", "GZip", "x-gzip", "identity", "Identity"])
def test_the_names_of_encodings_have_no_case_and_identity_is_none(front: Front, encoding: str) -> None:
    packed = gzip.compress(body()) if "gzip" in encoding.lower() else body()
    answer = post(front.url + PRERANK, content=packed, headers={"content-encoding": encoding})
    assert answer.status_code == 200, answer.text
