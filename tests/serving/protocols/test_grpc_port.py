"""The gRPC port outlives whatever a client sends: a method name that is not UTF-8 ends the library's own server."""

import asyncio
import contextlib
import os
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from infra.metrics import Metrics
from infra.processes import wait_until
from serving.protocols.front import Front
from serving.protocols.grpc_api import SERVICE, GrpcApi
from serving.protocols.grpc_listener import GrpcListener
from serving.protocols.inference_messages import pb
from serving.settings import ServeSection
from tests.serving.fake_engine import FakeEngine
from tests.serving.front import connect, open_front

SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"
TOKEN = "t" * 20
BEARER = (("authorization", f"Bearer {TOKEN}"),)
OPEN, GUARDED = ServeSection(port=0), ServeSection(port=0, token=SecretStr(TOKEN))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def call_method(address: str, path: bytes) -> bytes:
    """The bytes that come back for a call without a message, until its status or the end of the connection."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"a", b"content-type": b"application/grpc"}
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in (fields | {b"te": b"trailers"}).items()
    )
    answer = b""
    with connect(address) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 5, 1, headers))
        with contextlib.suppress(ConnectionError):
            while b"grpc-status" not in answer and (part := raw.recv(65_536)):
                answer += part
    return answer


@pytest.mark.parametrize("settings", [OPEN, GUARDED], ids=["open", "with a token"])
def test_no_method_name_takes_the_port_from_other_clients(settings: ServeSection) -> None:
    """The same connection, and a call that was running, go on."""
    with open_front(FakeEngine(), settings=settings) as front, grpc.insecure_channel(front.grpc) as channel:
        states = list[grpc.ChannelConnectivity]()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        channel.subscribe(states.append)
        for path in (b"/\xff", b"\xff", b"/inference.GRPCInferenceService/\xc3\x28", b"/", b"/a/b/c", b"/\x00") * 5:
            answer = call_method(front.grpc, path)
            refused = b"unauthorized" if settings is GUARDED else b"no_such_method"
            assert refused in answer or b"\xff" not in path, (path, answer)
        front.show_ready(False)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING, "a running call goes on"
        assert channel.unary_unary(SERVER_LIVE)(b"", timeout=20, metadata=BEARER)
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states


def test_many_calls_at_once_on_one_channel_are_answered_or_refused_with_a_time_to_come_back() -> None:
    """The first calls leave before the client knows the server's bound, so a bound below the server's own would end them without a status."""
    settings = ServeSection(port=0, requests_max=200)
    message = pb.ModelInferRequest(model_name="prerank")
    message.inputs.add(name="user_id", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    message.inputs.add(name="item_ids", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    with open_front(FakeEngine(stuck=True), settings=settings) as front, grpc.insecure_channel(front.grpc) as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        calls = [infer.future(message.SerializeToString(), timeout=60) for _ in range(600)]
        wait_until(lambda: sum(call.done() for call in calls) == 400, 30, "200 calls to wait and the others to be refused")
        for call in filter(lambda call: call.done(), calls):
            trailers = dict(call.trailing_metadata())
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and trailers["retry-after-ms"] == trailers["grpc-retry-pushback-ms"]


def close_listening_socket(port: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                copy.shutdown(socket.SHUT_RDWR)


def test_a_lost_port_is_noticed() -> None:
    async def lose() -> None:
        front = Front(lambda: (True, ""), ServeSection(port=0), Metrics())
        listener = GrpcListener(GrpcApi(front), front, "127.0.0.1", 0)
        await listener.open()
        try:
            assert not listener.lost
            close_listening_socket(int(listener.address.rpartition(":")[2]))
            async with asyncio.timeout(20):
                while not listener.lost:  # noqa: ASYNC110 # readiness looks at it in the same way
                    await asyncio.sleep(0.05)
        finally:
            await listener.close(0.0)

    asyncio.run(lose())
