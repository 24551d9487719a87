"""The library's asyncio server, without the fault by which any client can end its port.

grpc.aio decodes the method name of a call inside the loop that accepts calls, before any interceptor. A name that is not UTF-8 raises there, which ends
the loop, and with it the port and every running call. The loop decodes only names that no handler is registered for. So every method here is registered,
and `_Calls` answers the calls of all other methods itself: they never reach that loop.

It overrides `_request_call` of the library's compiled class, which is not public. `pyproject.toml` pins the library's version, and
tests/serving/protocols/test_grpc_port.py fails if an upgrade changes this.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio._server import Server


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
