"""The gRPC port: grpc.aio in our event loop, beside the HTTP one. Its health service and its reflection.

Here: address, TLS, token, bounds and life of the server. Not here: the methods (grpc_api.py).
A refused token ends a call before its message is read. Bounds (I8): a message is dropped by the library beyond BODY_BYTES_MAX, also when it arrives
packed; headers beyond its own 16 KiB. A connection that does not speak HTTP/2, has no call, or does not read is closed after `idle_s`: silent ones would
take the files that the process may open, and with them the HTTP port. A client's library connects anew by itself.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from schemas.errors import Misconfigured, RejectedInput
from schemas.limits import BODY_BYTES_MAX
from serving.access import Access
from serving.front import Front
from serving.grpc_api import SERVICE, GrpcApi, abort
from serving.listener import Tls
from serving.open_inference import NOT_HERE
from serving.ports import bind_port, bracketed, connections_max
from serving.proto.pool import POOL
from serving.short_turns import new_threads_take_short_turns

_STREAMS_MAX = 64  # requests at once on one connection
_KEEPALIVE_MS = 30_000  # between two looks at whether a connection still reads
_CALLS_MAX = 4_096  # open at once, most of which have sent nothing yet; one more gets the library's answer
_HEALTH = f"/{health.SERVICE_NAME}/"
_OPTIONS = (
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", BODY_BYTES_MAX),
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.so_reuseport", 0),  # two servers must not share a port in silence
)


class GrpcListener:
    """A gRPC server; `address` is where ("host:port")."""

    def __init__(self, api: GrpcApi, front: Front, host: str, port: int, tls: Tls | None = None, idle_s: float = 10.0) -> None:
        """Binds; nothing is answered before `open`. Raises Misconfigured (`port_taken`, `address_unusable`)."""
        self._server = grpc.aio.server(
            interceptors=[] if front.access.open else [_TokenCheck(front.access)],
            options=(*_OPTIONS, *_bounds(int(idle_s * 1000))),
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict(api.handlers())),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server, POOL)
        self._server.add_generic_rpc_handlers((_OtherMethods(f"{SERVICE} has {', '.join(api.handlers())}; {NOT_HERE}"),))  # asked last
        self.address = f"{bracketed(host)}:{_bind(self._server, host, port, tls)}"
        self._ready: bool | None = None

    async def open(self) -> None:
        """From now on calls are answered."""
        await self.show_ready(False)
        with new_threads_take_short_turns():
            await self._server.start()

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
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


class _TokenCheck(grpc.aio.ServerInterceptor):
    """Ends every call without the token, but those of the health service."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        if not handler_call_details.method.startswith(_HEALTH):
            try:
                self._access.check(dict(handler_call_details.invocation_metadata).get("authorization"))
            except RejectedInput as error:
                return _refusing(error, handler_call_details.method)
        return await continuation(handler_call_details)


class _OtherMethods(grpc.GenericRpcHandler):
    """Refuses whatever method no other handler has."""

    def __init__(self, there: str) -> None:
        self._there = there

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        return _refusing(RejectedInput("no_such_method", f"{method[:80]}: there is no such method; {self._there}"), method)


def _refusing(error: RejectedInput, method: str) -> grpc.RpcMethodHandler:
    async def refuse(requests: Any, context: Any) -> None:
        await abort(context, error, method)

    return grpc.stream_unary_rpc_method_handler(refuse)


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
