"""The gRPC port: grpc.aio in our event loop, next to the HTTP one. Its health service and its reflection.

A refused token ends a call before its message is read. Bounds (I8): a message is dropped by the library beyond BODY_BYTES_MAX, also when it arrives
packed; headers beyond its own 16 KiB. A connection that does not speak HTTP/2, has no call, or does not read is closed after `idle_s`. Silent ones would take
the files that the process may open, and with them the HTTP port. A client's library connects again by itself. A client that closes its sending side gets no
answer, as over HTTP: the library ends the connection.
The port is open before a version is live (protocol C4). A client may spread its calls over servers by itself. Then its library should ask the health service
(`healthCheckConfig` in the service config), so that a rolling restart costs it no call.

`GrpcServer` is the library's asyncio server without one fault, by which any client can end the port. The library decodes the method name of a call inside the
loop that accepts calls, before any interceptor. A name that is not UTF-8 raises there. That ends the loop, and with it the port and every running call.
The loop decodes only names that no handler is registered for. So every method here is registered, and `_Calls` answers the calls of all other methods
itself: they never reach that loop. It overrides `_request_call` of the library's compiled class, which is not public. `pyproject.toml` pins the library's
version, and tests/serving/protocols/test_grpc_port.py fails if an upgrade changes this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc
from grpc.aio._server import Server
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from schemas.errors import Misconfigured, RejectedInput
from schemas.limits import BODY_BYTES_MAX
from serving.protocols.front import Front
from serving.protocols.grpc_api import SERVICE, GrpcApi, report_error
from serving.protocols.inference_messages import POOL
from serving.protocols.listener import Tls
from serving.protocols.open_inference import NOT_HERE
from serving.protocols.ports import bind_port, bracketed, connections_max
from serving.time_slices import new_threads_take_short_slices

_LOOK_S = 1.0  # between two looks at whether the port is still there
_KEEPALIVE_MS = 30_000  # between two looks at whether a connection still reads
# Open at once, most of which have sent no message yet. The library refuses more: RESOURCE_EXHAUSTED. One connection may hold all of them, because a call
# beyond a connection's own bound would end without a status, and clients do not retry that.
_CALLS_MAX = 4_096
_HEALTH = f"/{health.SERVICE_NAME}/"
_LIBRARY_LOGGER = "grpc._cython.cygrpc"
_ANYBODYS_LINES = (
    "ExecuteBatchError raised in core",  # an answer without a taker
    "Invalid encoding on ",  # a header that is no UTF-8
    "Unexpected [DecodeError] raised by servicer method",  # a message to the health service or to reflection that is no protobuf
)
_OPTIONS = (
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", BODY_BYTES_MAX),
    ("grpc.max_concurrent_streams", _CALLS_MAX),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.so_reuseport", 0),  # two servers must not share a port in silence
)

logger: structlog.stdlib.BoundLogger = structlog.get_logger("serving.grpc")


class GrpcServer(Server):
    """`grpc.aio.server` with registered methods only. Create it inside the event loop."""

    def __init__(
        self,
        options: Sequence[tuple[str, Any]],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        calls_max: int,
        other: grpc.RpcMethodHandler,
    ) -> None:
        """`calls_max`: open calls of registered methods; the library refuses more. `other`: answers the calls of every method that is not registered."""
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), interceptors, options, calls_max)
        self._server.answer_others_with(other, tuple(interceptors))


class _Calls(cygrpc.AioServer):
    def answer_others_with(self, handler: grpc.RpcMethodHandler, interceptors: tuple[grpc.aio.ServerInterceptor, ...]) -> None:
        self._others = cygrpc._MethodResolver([_Always(handler)], {}), interceptors
        self._answering = set[asyncio.Task[None]]()

    async def _request_call(self) -> None:
        """Answers calls of unregistered methods until the server stops; the library's version returns the next one."""
        loop = asyncio.get_running_loop()
        while True:
            call = await super()._request_call()
            answer = cygrpc._handle_rpc("", *self._others, call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, call, loop, ""))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)


class _Always(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.RpcMethodHandler) -> None:
        self._handler = handler

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        return self._handler


class GrpcListener:
    """A gRPC server; `address` is where ("host:port")."""

    def __init__(self, api: GrpcApi, front: Front, host: str, port: int, tls: Tls | None = None, idle_s: float = 10.0) -> None:
        """Binds; nothing is answered before `open`. Raises Misconfigured (`port_taken`, `address_unusable`)."""
        self._api, self._front, self._idle_s = api, front, idle_s
        self._health = health.aio.HealthServicer()
        self._host = host
        self._server = self._create()
        self._port = _bind(self._server, host, port, tls)
        self.address = f"{bracketed(host)}:{self._port}"
        self._ready: bool | None = None
        self._watch: asyncio.Task[None] | None = None
        self.lost = False  # whether the port stopped accepting connections

    async def open(self) -> None:
        """From now on calls are answered."""
        logging.getLogger(_LIBRARY_LOGGER).addFilter(is_worth_a_line)
        await self.show_ready(False)
        with new_threads_take_short_slices():
            await self._server.start()
        self._watch = asyncio.create_task(self._watch_port())

    async def show_ready(self, ready: bool) -> None:
        """What the health service answers from now on."""
        if ready is self._ready:
            return
        self._ready = ready
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def close(self, grace_s: float) -> None:
        """Take no more calls, let running calls finish within `grace_s`, and end."""
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _watch_port(self) -> None:
        """Notes when the port no longer accepts connections: readiness and the metric `grpc_port_open` show it."""
        while not self.lost:
            await asyncio.sleep(_LOOK_S)
            self.lost = not await self._is_open()
        logger.error("grpc_port_lost", address=self.address)

    async def _is_open(self) -> bool:
        """Whether the port accepts connections. A slow one does."""
        try:
            async with asyncio.timeout(_LOOK_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            return False
        except OSError:  # slow, or no file is left for a look
            return True
        writer.close()
        return True

    def _create(self) -> GrpcServer:
        interceptors = [] if self._front.access.open else [_TokenCheck(self._front)]
        handlers = self._api.handlers()
        other = RejectedInput("no_such_method", f"there is no such method; {SERVICE} has {', '.join(handlers)}; {NOT_HERE}")
        server = GrpcServer((*_OPTIONS, *_bounds(int(self._idle_s * 1000))), interceptors, _CALLS_MAX, _refusing(self._front, other))
        server.add_registered_method_handlers(SERVICE, {**handlers, **self._api.stream_handler()})
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server, POOL)
        return server


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
                self._front.access.check([value for name, value in handler_call_details.invocation_metadata if name == "authorization"])
            except RejectedInput as error:
                return _refusing(self._front, error)
        return await continuation(handler_call_details)


def _refusing(front: Front, error: RejectedInput) -> grpc.RpcMethodHandler:
    """Answers with the error, counted and logged as every other answer, under one name: a client may call any, and each would be a new label."""

    async def refuse(requests: Any, context: Any) -> None:
        status = report_error(context, error, "other")
        front.record("grpc other", status, 0.0, ranked=False)
        front.log("gRPC", "other", status, 0.0, 0)

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
    with bind_port(host, port, "--grpc-port") as bound:  # names the fault of an address, and finds a free port
        chosen = int(bound.getsockname()[1])
    try:
        if tls is None:
            return server.add_insecure_port(f"{bracketed(host)}:{chosen}")
        credentials = grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())])
        return server.add_secure_port(f"{bracketed(host)}:{chosen}", credentials)
    except RuntimeError as error:
        raise Misconfigured("port_taken", f"gRPC cannot listen on {host} port {chosen}: {error}; give another with --grpc-port") from error
