"""Health and reflection: for monitors and tools, beside the methods.

    Check   message ──▶ status
    Watch   message ──▶ a place ──▶ status, and again whenever it has changed
               └ received in one of a few places, for a second

Health needs no token, so it may cost little. `grpc_health` has a servicer of its own. It holds a lock while it writes
to a watcher, so one that reads nothing keeps all others waiting, and whoever sets a status. And it gives gRPC the whole
message at once, which may be as long as a bulk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from sash.context import serving
from sash.limits.memory import MemoryBudget
from sash.limits.open_calls import OpenCalls, address_of_peer
from sash.limits.places import Places
from sash.limits.receiving import Receiving
from sash.rpc.access import note_peer
from sash.rpc.errors import end_with_error
from sash.runtime.metrics import Metrics
from sash_engine.errors import InvalidArgument, NotFound

HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_RECEIVED = 8
_RECEIVED_S = 1.0
"""So many messages are received at a time, each for so long: they have a few bytes."""

_REFLECTED_BYTES = 65_536
"""A stream of reflection takes 31 KB, and what it has written of a description of 10 KB until that is read."""

Context = grpc.aio.ServicerContext[Any, Any]
Status = health_pb2.HealthCheckResponse


class Health(grpc.ServiceRpcHandler):
    """Health, as grpc.health.v1 defines it.

    Args:
        names: of the services; "" is the server.
        places: for watchers.
        open_calls: of health, by address.
        closing: is set when the server closes, which ends all watching.
        metrics: counts refusals.
    """

    def __init__(
        self,
        names: Sequence[str],
        places: Places,
        open_calls: OpenCalls,
        closing: asyncio.Event,
        metrics: Metrics,
    ) -> None:
        self._statuses: dict[str, Any] = dict.fromkeys(names, Status.NOT_SERVING)
        self._places = places
        self._open_calls = open_calls
        self._closing = closing
        self._metrics = metrics
        self._receiving = Receiving(_RECEIVED, _RECEIVED_S)
        self._changed = asyncio.get_running_loop().create_future()
        write = Status.SerializeToString
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            f"/{HEALTH}/Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=write),
            f"/{HEALTH}/Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=write),
        }

    def service_name(self) -> str:
        return HEALTH

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method)

    def set(self, ready: bool) -> None:
        """Set the status of all services."""
        self._statuses = dict.fromkeys(self._statuses, Status.SERVING if ready else Status.NOT_SERVING)
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def _check(self, _: Any, context: Context) -> Any:
        try:
            with self._open_calls.call(context.peer()):
                name = await self._asked(context)
            if name not in self._statuses:
                raise NotFound(f"there is no service {name[:80]!r}", field="service")
            return Status(status=self._statuses[name])
        except Exception as error:
            await end_with_error(context, error, "health", self._metrics)

    async def _watch(self, _: Any, context: Context) -> None:
        try:
            with self._open_calls.call(context.peer()):
                name = await self._asked(context)
            address = address_of_peer(context.peer())
            self._places.enter(address)
            try:
                await _while_open(lambda: self._changes(name, context), context, self._closing)
            finally:
                self._places.leave(address)
        except Exception as error:
            await end_with_error(context, error, "health", self._metrics)

    async def _asked(self, context: Context) -> str:
        """The name of the service that a call asks about."""
        note_peer(context)
        data: Any = await self._receiving.message(address_of_peer(context.peer()), context.read)
        try:
            if data is not grpc.aio.EOF:
                return str(health_pb2.HealthCheckRequest.FromString(data).service)
        except DecodeError:
            pass
        raise InvalidArgument("the request is no message of HealthCheckRequest", field="request")

    async def _changes(self, name: str, context: Context) -> None:
        told = None
        while True:
            changed, status = self._changed, self._statuses.get(name, Status.SERVICE_UNKNOWN)
            if status != told:
                told = status
                await context.write(Status(status=status))
            await asyncio.wait((changed,))


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Reflection with limits. Its streams end when the server closes, or they would hold it for all of the grace.

    Args:
        names: of the services.
        places: for streams.
        memory: has what a stream takes for the description that it writes.
        closing: is set when the server closes.
        metrics: counts refusals.
    """

    def __init__(
        self,
        names: Sequence[str],
        places: Places,
        memory: MemoryBudget,
        closing: asyncio.Event,
        metrics: Metrics,
    ) -> None:
        super().__init__(names)
        self._places = places
        self._memory = memory
        self._closing = closing
        self._metrics = metrics

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> None:
        responses = super().ServerReflectionInfo(request_iterator, context)

        async def answer() -> None:
            async for response in responses:
                await context.write(response)

        known = serving().caller
        caller = address_of_peer(context.peer()) if known is None else known.name
        reserved = self._memory.reservation(caller)
        try:
            self._places.check(caller)
            reserved.take(_REFLECTED_BYTES)
            self._places.enter(caller)
        except Exception as error:
            await end_with_error(context, error, "reflection", self._metrics)
        try:
            await _while_open(answer, context, self._closing)
        finally:
            self._places.leave(caller)
            reserved.release()


async def _while_open(
    stream: Callable[[], Coroutine[Any, Any, None]], context: Context, closing: asyncio.Event
) -> None:
    """Serve a stream until it ends, or the service closes, or the client goes, which cancels this."""
    # gRPC sends the head with the first message and notes it when that is sent. If the first message is cut short, gRPC
    # sends the head again with the status, which fails, and the call stays open.
    await context.send_initial_metadata(())
    serving, closed = asyncio.create_task(stream()), asyncio.create_task(closing.wait())
    try:
        await asyncio.wait((serving, closed), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        closed.cancel()
