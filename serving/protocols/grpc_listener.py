"""The gRPC port: grpc.aio in our event loop, beside the HTTP one. Its health service and its reflection.

Here: address, TLS, token, bounds and life of the server. Not here: the methods (grpc_api.py).
A refused token ends a call before its message is read. Bounds (I8): a message is dropped by the library beyond BODY_BYTES_MAX, also when it arrives
packed; headers beyond its own 16 KiB. A connection that does not speak HTTP/2, has no call, or does not read is closed after `idle_s`: silent ones would
take the files that the process may open, and with them the HTTP port. A client's library connects anew by itself. A client that closes its sending side
gets no answer, as over HTTP: the library ends the connection.
The port is open before a version is live (protocol C4). A client that spreads its calls over servers by itself should have its library ask the health
service (`healthCheckConfig` in the service config): then restarts one after another cost it no call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from schemas.errors import Misconfigured, RejectedInput
from schemas.limits import BODY_BYTES_MAX
from serving.protocols.front import Front
from serving.protocols.grpc_api import SERVICE, GrpcApi, report_error
from serving.protocols.listener import Tls
from serving.protocols.messages import POOL
from serving.protocols.open_inference import NOT_HERE
from serving.protocols.ports import bind_port, bracketed, connections_max
from serving.short_turns import new_threads_take_short_turns

_STREAMS_MAX = 64  # requests at once on one connection
_LOOK_S = 1.0  # between two looks at whether the port is still there
_LOST_MAX = 1_000  # some 30 KB each
_KEEPALIVE_MS = 30_000  # between two looks at whether a connection still reads
_CALLS_MAX = 4_096  # open at once, most of which have sent nothing yet; one more gets the library's answer
_HEALTH = f"/{health.SERVICE_NAME}/"
_LIBRARY_LOGGER = "grpc._cython.cygrpc"
_ANYBODYS_LINES = (
    "ExecuteBatchError raised in core",  # an answer that nobody took
    "Invalid encoding on ",  # a header that is no UTF-8
    "Unexpected [DecodeError] raised by servicer method",  # a message to the health service or to reflection that is no protobuf
)
_OPTIONS = (
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", BODY_BYTES_MAX),
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.so_reuseport", 0),  # two servers must not share a port in silence
)

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.grpc")


class GrpcListener:
    """A gRPC server; `address` is where ("host:port")."""

    def __init__(self, api: GrpcApi, front: Front, host: str, port: int, tls: Tls | None = None, idle_s: float = 10.0) -> None:
        """Binds; nothing is answered before `open`. Raises Misconfigured (`port_taken`, `address_unusable`)."""
        self._api, self._front, self._tls, self._idle_s = api, front, tls, idle_s
        self._health = health.aio.HealthServicer()
        self._host = host
        self._server, self._port = self._bind(port)
        self.address = f"{bracketed(host)}:{self._port}"
        self._ready: bool | None = None
        self._watch: asyncio.Task[None] | None = None
        self._lost: list[grpc.aio.Server] = []  # what the library gave up

    async def open(self) -> None:
        """From now on calls are answered."""
        logging.getLogger(_LIBRARY_LOGGER).addFilter(is_worth_a_line)
        await self.show_ready(False)
        await self._start()
        self._watch = asyncio.create_task(self._keep_open())

    async def show_ready(self, ready: bool) -> None:
        """What the health service answers from now on."""
        if ready is self._ready:
            return
        self._ready = ready
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def close(self, grace_s: float) -> None:
        """Takes no more calls, lets what is in work finish within `grace_s`, and ends."""
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _start(self) -> None:
        with new_threads_take_short_turns():
            await self._server.start()

    async def _keep_open(self) -> None:
        """Opens the port anew where the library gave it up: a method's name that is no UTF-8 ends grpc.aio's loop, and with it the port and every call.

        The port itself is asked, because `wait_for_termination` does not always end then. What is left of the library's server stays in memory: C code
        still holds parts of it, and freeing them was seen to end the process. So this is done `_LOST_MAX` times at most; HTTP goes on afterwards.
        """
        while len(self._lost) < _LOST_MAX:
            await asyncio.sleep(_LOOK_S)
            if await self._is_open():
                continue
            try:
                server, _ = self._bind(self._port)
            except Misconfigured as error:  # still in the hands of the lost server, or of somebody else: the next look tries again
                logger.error("grpc_port_lost", address=self.address, error=str(error))
                continue
            logger.error("grpc_port_reopened", address=self.address, lost=len(self._lost) + 1)
            self._lost.append(self._server)
            self._server = server
            await self._start()
        logger.error("grpc_port_given_up", address=self.address, lost=len(self._lost))

    async def _is_open(self) -> bool:
        """Whether the port takes connections; one that is only slow does."""
        try:
            async with asyncio.timeout(_LOOK_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except TimeoutError:
            return True
        except OSError:
            return False
        writer.close()
        return True

    def _bind(self, port: int) -> tuple[grpc.aio.Server, int]:
        """A server that has not started, on `port` or on any free one (0)."""
        server = grpc.aio.server(
            interceptors=[] if self._front.access.open else [_TokenCheck(self._front)],
            options=(*_OPTIONS, *_bounds(int(self._idle_s * 1000))),
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        handlers = dict(self._api.handlers())
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers | self._api.stream_handler()),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server, POOL)
        server.add_generic_rpc_handlers((_OtherMethods(self._front, f"{SERVICE} has {', '.join(handlers)}; {NOT_HERE}"),))  # asked last
        return server, _bind(server, self._host, port, self._tls)


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line of the library is logged. It writes a stack trace at level error for each of these faults of clients, as many as clients like."""
    return not record.getMessage().startswith(_ANYBODYS_LINES)


class _TokenCheck(grpc.aio.ServerInterceptor):
    """Ends every call without the token, but those of the health service."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        if not handler_call_details.method.startswith(_HEALTH):
            try:
                self._front.access.check(dict(handler_call_details.invocation_metadata).get("authorization"))
            except RejectedInput as error:
                return _refusing(self._front, error, handler_call_details.method)
        return await continuation(handler_call_details)


class _OtherMethods(grpc.GenericRpcHandler):
    """Refuses whatever method no other handler has."""

    def __init__(self, front: Front, there: str) -> None:
        self._front, self._there = front, there

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        error = RejectedInput("no_such_method", f"{method[:80]}: there is no such method; {self._there}")
        return _refusing(self._front, error, method)


def _refusing(front: Front, error: RejectedInput, method: str) -> grpc.RpcMethodHandler:
    """Answers with the error, counted and logged as every other answer. One label for all methods: a client may name any, and each would be a new one."""

    async def refuse(requests: Any, context: Any) -> None:
        status = report_error(context, error, method)
        front.record("grpc other", status, 0.0, ranked=False)
        front.log("gRPC", method, status, 0.0, 0)

    # A handler of a unary answer sends an empty message before the error, which a stream's client takes for an answer.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _bounds(idle_ms: int) -> tuple[tuple[str, int], ...]:
    """How many connections, and how patient the server is with each."""
    return (
        ("grpc.max_allowed_incoming_connections", connections_max()),
        ("grpc.server_handshake_timeout_ms", idle_ms),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", idle_ms),
    )


def _bind(server: grpc.aio.Server, host: str, port: int, tls: Tls | None) -> int:
    with bind_port(host, port, "--grpc-port") as bound:  # says clearly what is wrong with an address, and finds a free port
        chosen = int(bound.getsockname()[1])
    try:
        if tls is None:
            return server.add_insecure_port(f"{bracketed(host)}:{chosen}")
        credentials = grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())])
        return server.add_secure_port(f"{bracketed(host)}:{chosen}", credentials)
    except RuntimeError as error:
        raise Misconfigured("port_taken", f"gRPC cannot listen on {host} port {chosen}: {error}; give another with --grpc-port") from error
