"""The gRPC edge: `sash.v1.Windows`, health and reflection on one asyncio server.

    client ──▶ grpc.aio ──▶ handler ──▶ Operations ──▶ Plane
                              └─ an exception becomes a google.rpc.Status, here and nowhere else

Every method runs to its end on the event loop, so the plane needs no lock and REST shares the loop. The threaded
server was the other candidate (`bench/edges.py`, server's CPU µs per call, asyncio on uvloop against threads, two
shared cores): Insert one at a time 465 and 411, 16 in flight 375 and 249, BulkInsert of 16,384 entries one at a time
934 and 1,107, four in flight 881 and 940. Threads are cheaper where many single inserts press, dearer in bulk, and
every open stream would hold one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sash.errors import InvalidArgument
from sash.metrics import Metrics
from sash.plane import Plane
from sash.rpc.errors import status_of
from sash.rpc.operations import Operations
from sash.settings import Settings
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["SERVICE", "RpcServer", "methods"]

SERVICE = "sash.v1.Windows"

Method = Callable[[Any], Message]


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
        operations = Operations(plane, settings.max_entries_per_write)
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
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Report to be not serving, and go on serving."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let those in progress finish for `grace_s` seconds, close."""
        await self._server.stop(grace_s)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


def methods(operations: Operations) -> Mapping[str, tuple[Method, type[Message]]]:
    """Every method of the service by name: the function, and the class of its request."""
    service = pb.DESCRIPTOR.services_by_name["Windows"]
    return {
        method.name: (getattr(operations, method.name), GetMessageClass(method.input_type))
        for method in service.methods
    }


def _handlers(operations: Operations, metrics: Metrics) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    return {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(name, method, request.FromString, metrics), response_serializer=_serialize
        )
        for name, (method, request) in methods(operations).items()
    }


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _guarded(
    name: str, method: Method, parse: Callable[[bytes], Any], metrics: Metrics
) -> Callable[[Any, Any], Awaitable[Message]]:
    async def handler(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        try:
            # Parsed here and not by gRPC, which would answer bytes that are no message with INTERNAL.
            try:
                request = parse(data)
            except DecodeError:
                raise InvalidArgument(f"the request is no message of {name}", field="request") from None
            return method(request)
        except Exception as error:
            status = status_of(error, name)
            metrics.count_rejected("grpc", status.code.name)
            return await context.abort(status.code, status.details, status.trailing_metadata)

    return handler
