"""The gRPC edge: `sash.v1.Windows`, health and reflection on one asyncio server.

    client ──▶ grpc.aio ──▶ handler ──▶ Operations ──▶ Plane
                              ├─ an exception becomes a google.rpc.Status, here and nowhere else
                              └─ a write whose client has gone is waited for by nobody, and goes on

Every method runs on the event loop, and only writes wait, for the tier; so the plane needs no lock and REST shares the
loop. The threaded server was the other candidate (`bench/edges.py`, server's CPU µs per call, asyncio on uvloop against
threads, two shared cores): Insert one at a time 465 and 411, 16 in flight 375 and 249, BulkInsert of 16,384 entries one
at a time 934 and 1,107, four in flight 881 and 940. Threads are cheaper where many single inserts press, dearer in
bulk, and every open stream would hold one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sash.calls import unbroken
from sash.errors import InvalidArgument
from sash.metrics import Metrics
from sash.plane import Plane
from sash.rpc.errors import status_of
from sash.rpc.operations import Operations
from sash.settings import Settings
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["SERVICE", "Method", "RpcServer", "methods"]

SERVICE = "sash.v1.Windows"

Context = grpc.aio.ServicerContext[Any, Any]


class RpcServer:
    """Serves a plane over gRPC.

    Args:
        plane: the operations, called on the running event loop only.
        settings: host, port and limits.
        metrics: counts the calls that end in an error.

    Create it inside a running event loop.
    """

    def __init__(self, plane: Plane, settings: Settings, metrics: Metrics) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                # An answer may be larger than any request: collect over a whole window.
                ("grpc.max_send_message_length", -1),
                # With it a second service on the same port would start and take half of the calls.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=settings.max_concurrent_calls,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._is_open = True
        operations = Operations(plane, settings.max_entries_per_write, lambda: self._is_open)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, _handlers(operations, metrics))]
        )
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._settings = settings
        self.port = 0
        """The port it listens on, once started."""

    async def start(self) -> None:
        """Listen, and report to be serving.

        Raises:
            InvalidArgument: the address cannot be listened on.
        """
        host, port = self._settings.host, self._settings.grpc_port
        try:
            self.port = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            await self._server.stop(None)
            raise InvalidArgument(f"cannot listen on {host}, port {port} for gRPC", field="grpc_port") from None
        await self._server.start()
        await self.set_ready(True)

    async def set_ready(self, ready: bool) -> None:
        """Report to be serving or not to be, and serve either way."""
        kinds = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, kinds.SERVING if ready else kinds.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let go of those who watch, let calls in progress finish for `grace_s` seconds, close."""
        self._is_open = False
        await self._server.stop(grace_s)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service.

    `call` takes a request or an iterator of them, and returns a response, a coroutine of one, or an iterator of them.
    """

    name: str
    call: Callable[[Any], Any]
    request: type[Message]
    streams_requests: bool
    streams_responses: bool


def methods(operations: Operations) -> Mapping[str, Method]:
    """Every method of the service by name."""
    return {
        method.name: Method(
            method.name,
            getattr(operations, method.name),
            GetMessageClass(method.input_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in pb.DESCRIPTOR.services_by_name["Windows"].methods
    }


def _handlers(operations: Operations, metrics: Metrics) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    handlers = {}
    for name, method in methods(operations).items():
        kind = ("stream" if method.streams_requests else "unary", "stream" if method.streams_responses else "unary")
        handler = getattr(grpc, f"{kind[0]}_{kind[1]}_rpc_method_handler")
        guarded = _Guarded(method, metrics)
        behaviour = guarded.stream if method.streams_responses else guarded.unary
        handlers[name] = handler(behaviour, response_serializer=_serialize)
    return handlers


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class _Guarded:
    """A method as gRPC calls it: bytes are parsed before it, and what it raises ends the call with a status."""

    def __init__(self, method: Method, metrics: Metrics) -> None:
        self._method = method
        self._metrics = metrics
        self._waits = inspect.iscoroutinefunction(method.call)

    async def unary(self, data: Any, context: Context) -> Any:
        try:
            request = self._requests(data) if self._method.streams_requests else self._parsed(data)
            return await unbroken(self._method.call(request)) if self._waits else self._method.call(request)
        except Exception as error:
            return await self._refuse(error, context)

    async def stream(self, data: Any, context: Context) -> AsyncGenerator[Any, None]:
        answered = 0
        try:
            request = self._requests(data) if self._method.streams_requests else self._parsed(data)
            async with aclosing(self._method.call(request)) as responses:
                async for response in responses:
                    yield response
                    answered += 1
        except Exception as error:
            await self._refuse(error, context, answered if self._method.streams_requests else None)

    def _parsed(self, data: bytes) -> Message:
        # Parsed here and not by gRPC, which would answer bytes that are no message with INTERNAL.
        try:
            return self._method.request.FromString(data)
        except DecodeError:
            raise InvalidArgument(f"the request is no message of {self._method.name}", field="request") from None

    async def _requests(self, stream: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        async for data in stream:
            yield self._parsed(data)

    async def _refuse(self, error: Exception, context: Context, applied: int | None = None) -> None:
        status = status_of(error, self._method.name, applied)
        self._metrics.count_rejected("grpc", status.code.name)
        await context.abort(status.code, status.details, status.trailing_metadata)
