"""Clients that send slowly, never end, go away or send everything at once: no other client is refused for them, and nothing of them stays."""

import contextlib
import errno
import gc
import json
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest

from infra.processes import wait_until
from serving.protocols import grpc_api, grpc_listener, listener
from serving.protocols.http_api import ClientWatch
from serving.settings import ServeSection
from tests import plain_http
from tests.serving.calls.test_refusal import open_overloaded
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import Front, connect, open_front
from tests.serving.protocols.test_grpc_port import frame
from tests.serving.protocols.test_hostile import METHOD, infer_message

REQUESTS_MAX = 2
BODY = b'{"user_id": 1, "item_ids": [%d], "deadline_ms": 20000}'


@dataclass
class HoldingEngine(FakeEngine):
    """No work ever begins."""

    held: list["Future[Any]"] = field(default_factory=list)

    def _future(self, make: Any) -> "Future[Any]":
        self.held.append(Future())
        return self.held[-1]


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with open_front(FakeEngine(), settings=ServeSection(port=0, requests_max=REQUESTS_MAX)) as opened:
        yield opened


def send(front: Front, first: bytes) -> socket.socket:
    """A connection to the HTTP port on which this was sent."""
    opened = connect(front.http)
    opened.sendall(first)
    return opened


def wait_for(front: Front, requests: float) -> None:
    """Until so many requests have come in on both ports, answered or not."""
    end_s = time.monotonic() + 20
    while front.seen() < requests and time.monotonic() < end_s:
        time.sleep(0.001)
    assert front.seen() >= requests


def post(front: Front, item: int = 1) -> httpx.Response:
    return plain_http.post(front.url + "/v1/prerank", content=BODY % item, timeout=20)


def hang(channel: grpc.Channel, stop: threading.Event) -> Any:
    """A call whose message never comes."""

    def messages() -> Iterator[bytes]:
        stop.wait(60)
        yield from ()

    return channel.stream_unary(METHOD + "ModelInfer").future(messages())


@pytest.mark.parametrize("head", [b"content-length: 5000\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n5\r\n{"], ids=["length", "chunked"])
def test_whoever_sends_a_body_slowly_takes_no_place_of_those_who_do_not(front: Front, head: bytes) -> None:
    before = front.seen()
    with contextlib.ExitStack() as slow:
        for _ in range(4 * REQUESTS_MAX):
            slow.enter_context(send(front, b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\n" + head))
        wait_for(front, before + 4 * REQUESTS_MAX)
        assert post(front).status_code == 200
        assert front.in_work() == 0


def test_a_grpc_call_without_a_message_takes_no_place_and_ends(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    before, stop = front.seen(), threading.Event()
    with grpc.insecure_channel(front.grpc) as slow, grpc.insecure_channel(front.grpc) as channel:
        calls = [hang(slow, stop) for _ in range(4 * REQUESTS_MAX)]
        wait_for(front, before + 4 * REQUESTS_MAX)
        assert channel.unary_unary(METHOD + "ModelInfer")(infer_message(), timeout=20)
        for call in calls:
            call.cancel()
        with monkeypatch.context() as hurry:
            hurry.setattr(grpc_api, "_MESSAGE_S_MAX", 0.05)
            late = hang(slow, stop)
            assert late.code() is grpc.StatusCode.INVALID_ARGUMENT and "body_too_slow" in late.details()
        stop.set()
        empty = hang(slow, stop)
        assert empty.code() is grpc.StatusCode.INVALID_ARGUMENT and "no message" in empty.details()


def test_of_too_many_slow_grpc_messages_the_oldest_is_given_up(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps the part of each that has come, up to 8 MiB. A thousand calls that stop before their last byte would take 8 GB for ten seconds."""
    before, stop = front.seen(), threading.Event()
    monkeypatch.setattr(grpc_api, "_SLOW_MAX", 2)
    monkeypatch.setattr(grpc_api, "_SLOW_S", 0.01)
    monkeypatch.setattr(grpc_api, "_MESSAGE_S_MAX", 120)  # longer than `hang` hangs: nothing but the bound ends the two
    with grpc.insecure_channel(front.grpc) as channel:
        calls = []
        for count in range(1, 5):
            calls.append(hang(channel, stop))
            wait_for(front, before + count)
        assert [call.code() for call in calls[:2]] == [grpc.StatusCode.INVALID_ARGUMENT] * 2
        assert all("body_too_slow" in call.details() for call in calls[:2]) and not any(call.done() for call in calls[2:])
        stop.set()
        assert all("no message" in call.details() for call in calls[2:])


def test_a_grpc_call_that_is_one_too_many_is_refused_before_its_message() -> None:
    stop = threading.Event()
    with open_overloaded() as front, grpc.insecure_channel(front.grpc) as channel:
        assert hang(channel, stop).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stop.set()


def test_calls_that_are_reset_leave_nothing_in_work(front: Front) -> None:
    with grpc.insecure_channel(front.grpc) as channel:
        call = channel.unary_unary(METHOD + "ModelInfer")
        for _ in range(50):
            call.future(infer_message()).cancel()
        end_s = time.monotonic() + 20
        while front.in_work() and time.monotonic() < end_s:
            time.sleep(0.001)
        assert front.in_work() == 0 and call(infer_message(), timeout=20)


def leave_http(front: Front, asked: Callable[[], None]) -> None:
    body = b'{"user_id": 1, "item_ids": [3]}'
    with send(front, b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body):
        asked()


def leave_grpc(front: Front, asked: Callable[[], None]) -> None:
    with grpc.insecure_channel(front.grpc) as channel:
        call = channel.unary_unary(METHOD + "ModelInfer").future(infer_message())
        asked()
        call.cancel()


@pytest.mark.parametrize(("leave", "counted"), [(leave_http, ("/v1/prerank", "499")), (leave_grpc, ("grpc ModelInfer", "CANCELLED"))])
def test_what_a_client_asked_for_that_goes_away_is_not_computed_and_counted(
    leave: Callable[[Front, Callable[[], None]], None], counted: tuple[str, str]
) -> None:
    engine = HoldingEngine()
    with open_front(engine, settings=ServeSection(port=0, deadline_ms=60_000)) as front:
        leave(front, lambda: wait_until(lambda: len(engine.held) == 1, 20, "the work to be in the engine's queue"))
        wait_until(engine.held[0].cancelled, 20, "the work to be given up")
        wait_until(lambda: front.in_work() == 0, 20, "nothing to be in work")
        wait_until(lambda: front.metrics.counter("requests").labels(*counted)._value.get() == 1, 20, "it to be counted")


def call_without_reading() -> bytes:
    """An inference over gRPC, with a header that is no text, by a client that grants no byte of room for its answer."""
    path, message = METHOD.encode() + b"ModelInfer", infer_message()
    fields = b"\x83\x86\x04%c%s\x01\x01a" % (len(path), path)  # POST, http, path, authority
    for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"x-a", b"\xff")):
        fields += b"\x00%c%s%c%s" % (len(name), name, len(value), value)
    settings = struct.pack(">HI", 4, 0)  # initial window size
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(1, 4, 1, fields) + frame(0, 1, 1, body)


def test_a_client_that_sends_no_text_and_leaves_without_reading_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, judge = list[bool](), grpc_listener.is_worth_a_line
    monkeypatch.setattr(logging.getLogger("grpc._cython.cygrpc"), "filters", [])  # those of listeners that were opened before
    monkeypatch.setattr(grpc_listener, "is_worth_a_line", lambda record: judged.append(judge(record)) or judged[-1])
    with open_front(FakeEngine()) as front:
        with connect(front.grpc) as connection:
            connection.sendall(call_without_reading())
            answered = front.metrics.counter("requests").labels("grpc ModelInfer", "OK")._value
            wait_until(lambda: answered.get() == 1, 20, "the answer to be on its way")
        with grpc.insecure_channel(front.grpc) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff", timeout=20)
        wait_until(
            lambda: len(judged) >= 3, 20, "the library to log the header, the answer without a taker, and the bytes that are no message"
        )
        assert not any(judged) and not caplog.records
        with grpc.insecure_channel(front.grpc) as channel:
            assert channel.unary_unary(METHOD + "ModelInfer")(infer_message(), timeout=20)


def test_a_new_client_gets_the_place_of_the_longest_idle_and_of_none_that_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited until one was closed for `idle_s`. A look for which no descriptor is left is not the last one."""
    close, looks = listener.close_longest_idle, list[int]()

    def close_unless_first(port: int, places: int, wanted: int) -> int:
        looks.append(wanted)
        if len(looks) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return close(port, places, wanted)

    monkeypatch.setattr(listener, "connections_max", lambda: 8)
    monkeypatch.setattr(listener, "close_longest_idle", close_unless_first)
    asked = b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\nx-aif-deadline-ms: %d\r\ncontent-length: 28\r\n\r\n" + b'{"user_id":1,"item_ids":[3]}'
    with open_front(HoldingEngine(), settings=ServeSection(port=0, idle_s=60)) as front, contextlib.ExitStack() as opened:
        at_work, idle = (opened.enter_context(send(front, asked % deadline_ms)) for deadline_ms in (60_000, 50))
        assert idle.recv(1 << 10).startswith(b"HTTP/1.1 504")
        for _ in range(12):
            opened.enter_context(connect(front.http))
        assert plain_http.get(front.url + "/v2/health/live", timeout=20).status_code == 200
        assert idle.recv(1) == b""
        at_work.setblocking(False)
        with pytest.raises(BlockingIOError):
            at_work.recv(1)


def watches_in_memory() -> int:
    gc.collect()
    return sum(type(one) is ClientWatch for one in gc.get_objects())


def test_a_client_that_was_asked_for_and_stayed_leaves_nothing_in_memory() -> None:
    with open_front(HoldingEngine()) as front:
        late = b'{"user_id": 1, "item_ids": [3], "deadline_ms": 50}'
        assert plain_http.post(front.url + "/v1/prerank", content=late, timeout=20).status_code == 504
        wait_until(lambda: front.in_work() == 0, 20, "nothing to be in work")
        wait_until(lambda: not watches_in_memory(), 20, "the request's watch to be gone")


def test_requests_that_come_all_at_once_on_one_connection_are_answered_in_their_order(front: Front) -> None:
    bodies = [BODY % item for item in range(20)]
    heads = [b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) for body in bodies]
    raw = b""
    with send(front, b"".join(head + body for head, body in zip(heads, bodies, strict=True))) as connection:
        while raw.count(b'"took_ms"') < len(bodies):
            raw += connection.recv(1 << 20)
    assert re.findall(rb'"items":\[{"item_id":(\d+)', raw) == [b"%d" % item for item in range(20)]


def test_a_client_of_http_1_0_is_answered_and_its_connection_closed_unless_it_asks_to_keep_it(front: Front) -> None:
    for keep, ends in ((b"", True), (b"connection: keep-alive\r\n", False)):
        request = b"POST /v1/prerank HTTP/1.0\r\n%scontent-length: %d\r\n\r\n" % (keep, len(BODY % 3)) + BODY % 3
        with send(front, request) as connection:
            raw = b""
            while b'"took_ms"' not in raw:
                raw += connection.recv(65_536)
            assert raw.startswith(b"HTTP/1.0 200") and json.loads(raw.partition(b"\r\n\r\n")[2])["items"]
            if ends:
                assert connection.recv(1) == b""
            else:
                connection.sendall(request)
                assert connection.recv(65_536).startswith(b"HTTP/1.0 200")


def test_a_chunk_of_no_size_ends_its_own_connection_only(front: Front) -> None:
    for chunk in (b"zz\r\n", b"-1\r\n{}\r\n", b"f" * 20 + b"\r\n", b"2;" + b"a" * 100_000 + b"\r\n"):
        with send(front, b"POST /v1/prerank HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunk) as connection:
            answer = connection.recv(65_536)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer
    assert post(front).status_code == 200
