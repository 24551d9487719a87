"""A fuzzer on both ports, with the real engine behind them: whatever comes is answered, never with a 500, and the server keeps serving.

Valid bodies with flipped, cut, doubled and swapped bytes, on every route; heads of requests with the same faults; connections that say nothing.
"""

import contextlib
import functools
import gc
import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from infra.processes import wait_until
from schemas.errors import RejectedInput
from schemas.limits import BODY_BYTES_MAX, CANDIDATES_MAX
from serving.calls.carried_state import CarriedStates
from serving.core.infer_body import encode_infer_request
from serving.core.tensors import Tensor, encode_raw
from serving.protocols.inference_messages import pb
from serving.settings import ServeSection
from tests import plain_http
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version, running_engine
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, connect, open_front

INFER = "/v2/models/prerank/infer"
METHOD = "/inference.GRPCInferenceService/"
TENSORS = [
    Tensor("user_id", "INT64", (1,), np.array([1])),
    Tensor("item_ids", "INT64", (4,), np.array([1, 2, 3, 10**12])),
    Tensor("request_id", "BYTES", (1,), [b"r-1"]),
    Tensor("top_k", "INT64", (1,), np.array([3])),
]


def describe(tensors: list[Tensor]) -> list[dict[str, Any]]:
    return [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors]


FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    carried = CarriedStates(SecretStr("a key of the tests"), "index", 600)
    with running_engine(make_version(SPECS["full"], 40)) as engine, open_front(engine, carried=carried) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=front.url, timeout=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def channel(front: Front) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(front.grpc, options=[("grpc.max_send_message_length", -1)]) as opened:
        yield opened


def binary_body() -> tuple[bytes, dict[str, str]]:
    body, length = encode_infer_request({"parameters": {"context.hour": 3}}, TENSORS)
    return body, {"inference-header-content-length": str(length)}


def infer_message(*more: Tensor) -> bytes:
    inputs, raw = describe([*TENSORS, *more]), [encode_raw(one) for one in (*TENSORS, *more)]
    message: Any = pb.ModelInferRequest(model_name="prerank", inputs=inputs, raw_input_contents=raw)
    message.parameters["context.hour"].int64_param = 3
    message.outputs.add(name="scores")
    return bytes(message.SerializeToString())


USER = {"user_id": 1, "features": {"age": 1.0, "city": "rome"}, "behaviours": [{"item_id": 2, "kind": "click", "time_ms": 5}]}
RANK = {"user_id": 1, "item_ids": [1, 2, 3], "top_k": 2, "context": {"hour": 3}, "consistency": "latest", "deadline_ms": 5000}
JSON_INFER = {
    "id": "a",
    "inputs": [{**one, "data": ["r-1"] if one["datatype"] == "BYTES" else [1] * one["shape"][0]} for one in describe(TENSORS)],
    "outputs": [{"name": "scores", "parameters": {"binary_data": True}}],
}
BODIES: list[tuple[str, bytes, dict[str, str]]] = [
    ("/v1/user", json.dumps(USER).encode(), {}),
    ("/v1/rank", json.dumps(RANK).encode(), {}),
    ("/v1/prerank", json.dumps({**USER, **RANK}).encode(), {}),
    (INFER, json.dumps(JSON_INFER).encode(), {}),
    (INFER, *binary_body()),
    (INFER, gzip.compress(binary_body()[0]), {**binary_body()[1], "content-encoding": "gzip"}),
]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes with one to four faults: a flipped bit, a cut end, a piece doubled or left out, a byte that means something."""
    raw = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(raw) - 1)))
        fault = draw(st.integers(0, 4))
        if fault == 0 and raw:
            raw[place] ^= 1 << draw(st.integers(0, 7))
        elif fault == 1:
            del raw[place:]
        elif fault == 2:
            raw[place:place] = raw[place : place + draw(st.integers(1, 40))]
        elif fault == 3:
            del raw[place : place + draw(st.integers(1, 8))]
        else:
            raw[place : place + 1] = draw(
                st.sampled_from([b'"', b"{", b"[", b"-", b"\0", b"\xff", b"9" * 30, b"null", b"1e999", b"\\ud800"])
            )
    return bytes(raw)


def check_answer(answer: httpx.Response) -> None:
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    if answer.status_code != 200:
        error = answer.json()
        assert error["code"] and error["message"], error
        assert answer.request.url.path.startswith("/v1") or error["error"].startswith(error["code"])


@pytest.mark.parametrize(("route", "whole", "headers"), BODIES, ids=["user", "rank", "prerank", "infer-json", "infer-binary", "infer-gzip"])
def test_a_damaged_body_is_answered(client: httpx.Client, route: str, whole: bytes, headers: dict[str, str]) -> None:
    assert client.post(route, content=whole, headers=headers).status_code == 200, "the body is valid before it is damaged"

    @FUZZ
    @given(damaged(whole))
    def fuzz(raw: bytes) -> None:
        check_answer(client.post(route, content=raw, headers=headers))

    fuzz()
    assert client.post(route, content=whole, headers=headers).status_code == 200


@FUZZ
@given(
    st.one_of(st.integers(-5, 500).map(str), st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12).map(str.strip))
)
@example("9" * 400)
def test_any_header_length_is_answered(client: httpx.Client, length: str) -> None:
    check_answer(client.post(INFER, content=binary_body()[0], headers=[(b"inference-header-content-length", length.encode("latin-1"))]))


@functools.cache  # three seconds
def make_bomb() -> bytes:
    return gzip.compress(bytes(20 * BODY_BYTES_MAX))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip", "x" * 200])
def test_a_packed_body_that_is_none_or_far_too_large_is_refused(client: httpx.Client, encoding: str) -> None:
    bomb = make_bomb()
    assert len(bomb) < BODY_BYTES_MAX // 10
    for raw, allowed in ((b"not packed", (415,)), (bomb, (413, 415)), (bomb[:-4], (413, 415)), (b"", (415,))):
        answer = client.post(INFER, content=raw, headers={"content-encoding": encoding})
        assert answer.status_code in allowed, answer.text
        check_answer(answer)
    if encoding == "gzip":
        assert client.post(INFER, content=bomb, headers={"content-encoding": "gzip"}).status_code == 413


PATHS = st.sampled_from(
    ["/v1/user", "/v1/rank", "/v1/status", "/metrics", "/v2", "/v2/health/ready", "/v2/models/stats", "/v2/models/prerank", INFER]
)


@FUZZ
@given(st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]), PATHS, st.data())
def test_any_method_on_any_path_is_answered(client: httpx.Client, method: str, path: str, data: st.DataObject) -> None:
    tail = data.draw(
        st.sampled_from(["", "/", "/versions/1", "/versions/-1/infer", "/versions/1/infer", "/%ff", "/..", "?a=b", "/" + "a" * 3000])
    )
    answer = client.request(method, path + tail)
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200 and method != "HEAD":
        assert answer.json()["code"] and answer.json()["message"]


def exchange(front: Front, sent: bytes, half_close: bool = False) -> bytes:
    """The first bytes that come back for raw bytes, after which the client may close its side."""
    with connect(front.http) as raw:
        raw.sendall(sent)
        if half_close:
            raw.shutdown(socket.SHUT_WR)
        try:
            return raw.recv(65_536)
        except ConnectionResetError:
            return b""


HEAD = (
    b"POST %s HTTP/1.1\r\nhost: a\r\ninference-header-content-length: 20\r\nx-aif-deadline-ms: 500\r\ncontent-length: 40\r\n\r\n"
    % INFER.encode()
)


@FUZZ
@given(damaged(HEAD + b"{}" * 20))
@example(b"POST /v1/user HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n{}")
@example(b"POST /v1/user HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999999999999\r\n\r\n{}")
@example(b"POST /v1/user HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
@example(b"GET /v2 HTTP/1.1\r\nhost: a\r\nauthorization: \xff\xfe\r\n\r\n")
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
@example(b"\x16\x03\x01\x00\xa5\x01\x00" * 40 + b"\r\n\r\n")
def test_a_damaged_request_is_answered_or_its_connection_closed(front: Front, sent: bytes) -> None:
    answer = exchange(front, sent, half_close=True)
    assert answer == b"" or (answer.startswith(b"HTTP/1.") and b" 500 " not in answer.partition(b"\r\n")[0]), answer


def test_too_many_headers_are_refused_and_a_gigantic_one_too(front: Front) -> None:
    for count in (65, 99, 5_000):
        answer = exchange(front, b"GET /v2 HTTP/1.1\r\nhost: a\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(count)) + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431"), answer
    assert exchange(front, b"GET /v2 HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 300_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /v1/status?%s HTTP/1.1\r\nhost: a\r\n\r\n" % (b"a" * 20_000), b"414", "uri_too_long"),
        (b"GET /v2 HTTP/1.1\r\nhost: a\r\nx: %s\r\n\r\n" % (b"a" * 40_000), b"431", "headers_too_large"),
        (b"GET /v2 HTTP/1.1\r\nhost: a\r\n%s\r\n" % (b"x: 1\r\n" * 80), b"431", "too_many_headers"),
    ],
)
def test_a_head_that_is_too_large_is_refused_with_a_reason(front: Front, head: bytes, status: bytes, code: str) -> None:
    answer = exchange(front, head)
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == code


@pytest.mark.parametrize(
    "end", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx\r\n0\r\n\r\n", b"%x\r\n%s\r\n-1\r\n" % (35, b'{"user_id": 1, "item_ids": [1, 2]} ')]
)
def test_a_malformed_chunk_is_named_as_such(front: Front, end: bytes) -> None:
    """Also behind a body that is complete without it."""
    answer = exchange(front, b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + end)
    assert answer.startswith(b"HTTP/1.1 400") and b'"body_cut"' in answer and b"malformed chunk" in answer, answer


def test_after_a_request_with_two_lengths_the_connection_is_closed(front: Front) -> None:
    body = b'{"user_id": 1, "item_ids": [1, 2]}'
    head = b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    with connect(front.http) as raw:
        raw.sendall(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) + b"GET /v2 HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = b""
        while part := raw.recv(65_536):
            answer += part
    assert answer.count(b"HTTP/1.1 ") == 1 and b"connection: close" in answer


def open_connections(port: int) -> int:
    """Of a port of this machine, as the system counts them."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def test_connections_that_say_nothing_or_never_read_do_not_shut_out_the_others() -> None:
    with open_front(FakeEngine(), settings=ServeSection(port=0, idle_s=0.5)) as front, contextlib.ExitStack() as silent:
        for address in [front.http] * 300 + [front.grpc] * 50:
            silent.enter_context(connect(address))
        unread = silent.enter_context(connect(front.http))
        unread.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                unread.send(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
        assert plain_http.get(front.url + "/v2/health/live", timeout=60).status_code == 200
        for port in (int(address.rpartition(":")[2]) for address in (front.http, front.grpc)):
            wait_until(lambda port=port: open_connections(port) == 0, 30, f"silent connections to port {port} to be closed")  # type: ignore[misc]


def ask(channel: grpc.Channel, method: str, raw: bytes, **options: Any) -> grpc.StatusCode:
    """The status of one call; a refusal must say why."""
    call = channel.unary_unary(METHOD + method).future(raw, timeout=60, **options)
    code = call.code()
    assert code is grpc.StatusCode.OK or call.details() or code is grpc.StatusCode.RESOURCE_EXHAUSTED, call
    return code


ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # a parameter `timeout` of a microsecond is one
    grpc.StatusCode.FAILED_PRECONDITION,
}


@FUZZ
@given(damaged(infer_message()))
@example(b"")
@example(b"\xff" * 50)
def test_a_damaged_message_is_answered(channel: grpc.Channel, raw: bytes) -> None:
    assert ask(channel, "ModelInfer", raw) in ALLOWED


@FUZZ
@given(
    st.sampled_from(["ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelStatistics"]),
    st.binary(max_size=40),
)
def test_any_bytes_to_any_other_method_are_answered(channel: grpc.Channel, method: str, raw: bytes) -> None:
    assert ask(channel, method, raw) in ALLOWED


def test_a_message_beyond_the_bound_is_refused_packed_or_not(channel: grpc.Channel, client: httpx.Client) -> None:
    too_many = {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert {ask(channel, "ModelInfer", bytes(BODY_BYTES_MAX + 1))} == too_many
    assert {ask(channel, "ModelInfer", bytes(20 * BODY_BYTES_MAX), compression=grpc.Compression.Gzip)} == too_many
    assert {ask(channel, "ModelInfer", b"", metadata=[("x", "a" * 100_000)])} == too_many
    assert ask(channel, "ModelInfer", infer_message()) is grpc.StatusCode.OK


def test_a_refused_call_leaves_nothing_for_the_collector(channel: grpc.Channel) -> None:
    """Of each such call its message, of up to 8 MiB, would wait for the collector in a cycle of error, frames and call."""

    def left() -> list[Exception]:
        return [one for one in gc.get_objects() if isinstance(one, RejectedInput | grpc.aio.AbortError)]

    gc.collect()
    before = len(left())
    gc.disable()
    try:
        for method, raw in (("ModelInfer", b"\xff" * 1_000), ("ModelInfer", b""), ("ModelMetadata", b"\xff"), ("Strange", b"")) * 3:
            assert ask(channel, method, raw) is not grpc.StatusCode.OK
        wait_until(lambda: len(left()) <= before, 10, "the errors to be gone")
    finally:
        gc.enable()


def test_a_call_with_more_than_anybody_needs_is_refused_before_it_is_looped_over(channel: grpc.Channel) -> None:
    many: Any = pb.ModelInferRequest.FromString(infer_message())
    for place in range(1_000):
        many.parameters[f"context.a{place}"].int64_param = 1
    wide: Any = pb.ModelInferRequest(model_name="prerank")
    wide.inputs.add(name="item_ids", datatype="INT64", shape=[CANDIDATES_MAX + 1]).contents.int64_contents.extend(
        [1] * (CANDIDATES_MAX + 1)
    )
    for message, named in ((many, "has 1001 parameters"), (wide, f"expected at most {CANDIDATES_MAX}")):
        call = channel.unary_unary(METHOD + "ModelInfer").future(message.SerializeToString(), timeout=60)
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT and named in call.details()


def test_bytes_that_are_not_grpc_leave_the_port_up(front: Front, channel: grpc.Channel) -> None:
    rng = np.random.default_rng(3)
    for start in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"):
        with connect(front.grpc) as raw:
            raw.sendall(start + rng.bytes(2_000))
    assert ask(channel, "ModelInfer", infer_message()) is grpc.StatusCode.OK


def test_clients_that_go_away_leave_no_request_in_work(front: Front, client: httpx.Client) -> None:
    for _ in range(20):
        with connect(front.http) as raw:
            raw.sendall(b"POST /v1/prerank HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n{")
    wait_until(lambda: client.get("/v2/health/live").status_code == 200 and front.in_work() == 0, 20, "no request in work")


@pytest.fixture(scope="module")
def carried(client: httpx.Client) -> str:
    """A valid state of user 1, as call 1 gave it out."""
    return str(client.post("/v1/user", json={**USER, "carry_state": True}).json()["user_state"])


def test_a_damaged_user_state_is_refused_by_name_on_every_route(client: httpx.Client, channel: grpc.Channel, carried: str) -> None:
    def post(state: str) -> list[httpx.Response]:
        inputs = [*JSON_INFER["inputs"], {"name": "user_state", "datatype": "BYTES", "shape": [1], "data": [state]}]  # type: ignore[misc]
        bodies = {"/v1/rank": {**RANK, "user_state": state}, INFER: {"inputs": inputs}}
        return [client.post(path, json=body) for path, body in bodies.items()]

    def send(state: bytes) -> grpc.StatusCode:
        return ask(channel, "ModelInfer", infer_message(Tensor("user_state", "BYTES", (1,), [state])))

    assert [answer.status_code for answer in post(carried)] == [200, 200] and post(carried)[0].json()["rung"] == "carried"
    assert send(carried.encode()) is grpc.StatusCode.OK

    @settings(FUZZ, max_examples=60)
    @given(damaged(carried.encode()))
    @example(b"")
    @example(b"AAAA")
    @example(carried.encode() + b"AAAA")
    def fuzz(raw: bytes) -> None:
        if raw == carried.encode():
            return
        for answer in post(raw.decode(errors="replace")):
            check_answer(answer)
            assert raw == b"" or answer.json()["code"] in ("bad_user_state", "bad_request"), answer.text
        assert send(raw) in ALLOWED

    fuzz()
