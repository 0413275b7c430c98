"""The gRPC edge: `sash.v1.Windows`, health and reflection on one asyncio server.

    client ──▶ grpc.aio ──▶ handler ──▶ Operations ──▶ Plane
                              ├─ an exception becomes a google.rpc.Status, here and nowhere else
                              └─ a write whose client has gone is waited for by nobody, and goes on

Every method runs on the event loop, and only writes wait, for the tier; so the plane needs no lock and REST shares the
loop. The threaded server was the other candidate (measured once: the server's µs of CPU per call, asyncio on uvloop
against threads, two shared cores): Insert one at a time 465 and 411, 16 in flight 375 and 249, BulkInsert of 16,384
entries one at a time 934 and 1,107, four in flight 881 and 940. Threads are cheaper where many single inserts press,
dearer in bulk, and every open stream would hold one of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from sash.access.access import Access
from sash.access.tls import Certificates
from sash.admission import Admission, Lease
from sash.calls import unbroken
from sash.context import CallContext, serving
from sash.limits.memory import MemoryBudget
from sash.limits.open_calls import OpenCalls, address_of_peer
from sash.limits.places import Places
from sash.limits.receiving import Receiving, Slot
from sash.limits.refusals import WAITING_MAX, Refusals
from sash.plane import Plane
from sash.rpc.access import AccessInterceptor, note_peer, server_credentials
from sash.rpc.errors import end_with_error, status_of
from sash.rpc.methods import SERVICE, Method, methods
from sash.rpc.monitors import HEALTH, Health, Reflection
from sash.rpc.operations import Operations
from sash.rpc.parsing import LONG_BYTES, parsed
from sash.rpc.parts import PROTO, Parts
from sash.rpc.unacknowledged import Unacknowledged
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.steps import Steps
from sash_wire import traces

_REFUSING_S = 0.1
"""So long new calls are refused before the server stops: of 36 clients that called all the time 29 were cancelled
without it."""

_MESSAGE_SHARE = 64
_PLACES_MIN = 16
"""A message may take a 64th of the memory, and 16 are received at a time where memory is small: a quarter of it."""

_OPEN, _REFUSED = 2, 1000
"""An address may have twice as many calls open as calls in progress: the others wait for their messages. So many more
of one connection may be on their way to their refusals."""

_STREAMS_MAX = 128
"""So many calls a connection may have; further ones wait at the client. gRPC hands calls over in the order in which
they came, whoever makes them, and each takes a quarter of a millisecond: four connections of 2,800 calls held others up
for 1.2 to 2.6 s of the loop's time, and of 128 for 0.15 s."""

_PENDING_MIN, _PENDING_MAX = 1000, 100_000
_PENDING_SHARE = 8
_PENDING_BYTES = 32_768
"""A call that waits to be taken up takes 20 KB, and 31 KB when it is, with the first bytes of its message. Those that
wait take an eighth of the memory together, and so do those that are open; those that wait to be refused half of that.
`Unacknowledged` is for calls that take more. Fewer are no way out: of 4,800 calls that 16 clients made at once, 3,394
were cancelled at 512, and none at 4096.
"""

_HEALTH_SHARE = 4
"""A fourth as many calls of health may be open, beside those: they live for a second."""

_HANDSHAKE_MS = 5_000
"""For so long the handshake of a connection may take. gRPC's two minutes let one client that says nothing take all."""

_SETTINGS_MS = 5_000
"""For so long a client may take to acknowledge the settings of its connection. gRPC limits the size of headers to
16 KiB only from then on, and to 16 MiB before. Its own limit of the time is a minute."""

_UNTAKEN_S = 10
"""For so long a call may wait to be taken up by the event loop; then it is cancelled. gRPC hands calls over one after
the other, whether their clients are still there or not: to a busy loop 45 a second, and 4,000 to a free one, which are
done with a burst of thousands by then. With an hour, 200 attackers had 3,000 waiting within a minute, with 400 MiB."""

_LOOKAHEAD_MIN, _LOOKAHEAD_MAX = 320 * 1024, 4 * 2**20
_LOOKAHEAD_SHARE = 4096
"""So much of a message may arrive before anybody asks for it: a bulk of 16,384 entries, and more where there is more
memory. gRPC lets it grow to megabytes on a fast connection. 12 clients that cancelled 8 bulks of 2 MB at a time, again
and again, took 540 MiB."""

_LARGE_BYTES = 65_536

Context = grpc.aio.ServicerContext[Any, Any]


class RpcServer:
    """Serves a plane over gRPC.

    Args:
        plane: the operations, called on the running event loop only.
        settings: host, port and limits.
        metrics: counts the calls that end in an error.
        memory: bounds how long messages may be, and how many are received at a time.
        access: who may call.
        certificates: for TLS; without it where None.
        shared: other processes of this service listen on the port, too, and this one also on a port of its own.
        routed: a call may say in its metadata (`sash-shard`) that it is for one shard of this process.
        others: methods of other services than `sash.v1.Windows`.

    Create it inside a running event loop.
    """

    def __init__(
        self,
        plane: Plane,
        settings: Settings,
        metrics: Metrics,
        memory: MemoryBudget,
        access: Access,
        certificates: Certificates | None = None,
        shared: bool = False,
        routed: bool = False,
        others: Sequence[Method] = (),
    ) -> None:
        message_bytes_max = min(settings.max_body_bytes, memory.limit_bytes // _MESSAGE_SHARE)
        lookahead = min(max(memory.limit_bytes // _LOOKAHEAD_SHARE, _LOOKAHEAD_MIN), _LOOKAHEAD_MAX)
        pending = min(max(memory.limit_bytes // _PENDING_SHARE // _PENDING_BYTES, _PENDING_MIN), _PENDING_MAX)
        refusals = Refusals(min(WAITING_MAX, pending // 2))
        self._closing = asyncio.Event()
        places = Places(settings.max_concurrent_calls, settings.calls_per_address)
        admission = Admission(access, memory, plane.turns, places, self._closing)
        guard = Unacknowledged(lambda: (self.port, self.own_port), self._closing, metrics)
        self._server = grpc.aio.server(
            interceptors=[AccessInterceptor(admission, metrics, refusals, guard)] if admission.asks_who_calls else (),
            options=[
                ("grpc.max_receive_message_length", message_bytes_max),
                # An answer may be larger than any request: collect over a whole window.
                ("grpc.max_send_message_length", -1),
                # A client that vanished without a word would hold its streams open for hours.
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.ping_timeout_ms", 20_000),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", lookahead),
                # Clients look after the connection, too; by default a ping more often than every five minutes is abuse.
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                # With it a second service on the same port would start and take half of the calls.
                ("grpc.so_reuseport", int(shared)),
                # Connections need no token, and would use up the files that HTTP, the tier and new tokens need.
                ("grpc.max_allowed_incoming_connections", settings.max_connections),
                # Until its handshake is complete, gRPC knows nothing of a connection but that it is there.
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.http2.settings_timeout", _SETTINGS_MS),
                # Calls beyond the limit of an address are refused with a reason. Far beyond, they wait at the client.
                ("grpc.max_concurrent_streams", min(_OPEN * settings.calls_per_address + _REFUSED, _STREAMS_MAX)),
                # A client opens another connection when it has something to say again.
                ("grpc.max_connection_idle_ms", 300_000),
                ("grpc.server_max_unrequested_time_in_server", _UNTAKEN_S),
                ("grpc.server.max_pending_requests", pending),
                ("grpc.server.max_pending_requests_hard_limit", pending),
            ],
        )
        services = dict.fromkeys(each.service for each in others)
        names = (SERVICE, *services, HEALTH, reflection.SERVICE_NAME)
        beside = Places(settings.max_concurrent_calls, settings.calls_per_address)
        self._health = Health(
            ("", SERVICE), beside, _open_calls(settings, pending // _HEALTH_SHARE), self._closing, metrics
        )
        operations = Operations(plane, settings.max_entries_per_write, self._closing)
        limits = _Limits(
            admission,
            Receiving(max(_PLACES_MIN, memory.most("bodies") // message_bytes_max), settings.body_timeout_s),
            _open_calls(settings, pending),
            operations.parsed,
            routed,
        )
        self._server.add_generic_rpc_handlers(
            [guard, _Handlers([*methods(operations).values(), *others], metrics, limits), self._health]
        )
        reflecting = Reflection(names, beside, memory, self._closing, metrics)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflecting, self._server)
        self._settings = settings
        self._credentials = None if certificates is None else server_credentials(certificates)
        self._shared = shared
        self.port = 0
        """The port it listens on, once started."""
        self.own_port = 0
        """The port that only this process listens on, if `port` is shared."""

    async def start(self) -> None:
        """Listen, and report to be serving.

        Raises:
            InvalidArgument: the address cannot be listened on.
        """
        host, port = self._settings.host, self._settings.grpc_port
        try:
            self.port = self._listen(host, port)
            if self._shared:
                self.own_port = self._listen(host, 0)
        except RuntimeError:
            await self._server.stop(None)
            raise InvalidArgument(f"cannot listen on {host}, port {port} for gRPC", field="grpc_port") from None
        await self._server.start()
        self.set_ready(True)

    def _listen(self, host: str, port: int) -> int:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._credentials)

    def set_ready(self, ready: bool) -> None:
        """Report to be serving or not to be, and serve either way."""
        self._health.set(ready)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, end streams that could go on for ever, give others `grace_s` seconds to finish, close."""
        self._closing.set()
        # gRPC cancels a call that it has received and not handed over when it stops: let there be none, by refusing
        # them in a way that tells clients to try again.
        await asyncio.sleep(_REFUSING_S)
        await self._server.stop(grace_s)


def _open_calls(settings: Settings, all_max: int) -> OpenCalls:
    return OpenCalls(all_max, _OPEN * settings.calls_per_address, settings.max_connections_per_address)


class _Handlers(grpc.ServiceRpcHandler):
    """Says how each call is handled, before its message is read.

    To gRPC all requests are streams, so that a message is asked for when there is a place for it. A call of one message
    and one answer is handed over as what it is while half of the places are free: that takes a fifth less.
    """

    def __init__(self, served: Iterable[Method], metrics: Metrics, limits: _Limits) -> None:
        self._receiving = limits.receiving
        self._unary: dict[str, _Guarded] = {}
        self._streams: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for method in served:
            guarded = (_Guarded if traces.tracer is None else _Traced)(method, metrics, limits)
            handler: grpc.RpcMethodHandler[Any, Any]
            if method.streams_responses:
                handler = grpc.stream_stream_rpc_method_handler(guarded.stream, response_serializer=_serialize)
            else:
                handler = grpc.stream_unary_rpc_method_handler(guarded.unary, response_serializer=_serialize)
                if not method.streams_requests:
                    self._unary[method.path] = guarded
            self._streams[method.path] = handler

    def service_name(self) -> str:
        return SERVICE

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        guarded = self._unary.get(path)
        if guarded is not None and (slot := self._receiving.slot()) is not None:
            return _UnaryCall(guarded, slot)
        return self._streams.get(path)


class _UnaryCall(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """A call whose message gRPC receives by itself. It has a place until the message is there, or the call is over."""

    request_streaming = response_streaming = False
    request_deserializer = None
    unary_stream = stream_unary = stream_stream = None

    def __init__(self, guarded: _Guarded, slot: Slot) -> None:
        self.unary_unary: Any = partial(guarded.unary, slot=slot)

    @staticmethod
    def response_serializer(message: Message | bytes) -> bytes:
        return _serialize(message)


def _shard_of(context: Context) -> int | None:
    """The one shard that a call says it is for."""
    for name, value in context.invocation_metadata() or ():
        if name == "sash-shard":
            if not isinstance(value, str) or not re.fullmatch("[0-9]{1,4}", value):
                raise InvalidArgument("sash-shard is the number of a shard", field="sash-shard")
            return int(value)
    return None


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


@dataclass(frozen=True, slots=True)
class _Limits:
    """What all methods share."""

    admission: Admission
    receiving: Receiving
    open_calls: OpenCalls
    parsed: Callable[[Steps[Message]], Coroutine[Any, Any, Message]]
    routed: bool


class _Guarded:
    """A method as gRPC calls it: bytes are parsed before it, and what it raises ends the call with a status."""

    def __init__(self, method: Method, metrics: Metrics, limits: _Limits) -> None:
        self._method = method
        self._metrics = metrics
        self._limits = limits

    async def unary(self, data: Any, context: Context, slot: Slot | None = None) -> Any:
        """Answer one message; `slot`: what it held until it was there."""
        if slot is not None:
            slot.end()
        note_peer(context)
        lease = None
        try:
            with self._limits.open_calls.call(context.peer()):
                lease = self._lease(context)
                request = await self._request(data, lease, context)
                with lease:
                    turns, method = self._limits.admission.turns, self._method
                    if method.reads_only:
                        return await turns.metered(lease.name, self._called(request))
                    return await turns.metered(lease.name, unbroken(method.call(request)), reads=False)
        except Exception as error:
            return await self._refuse(error, context)
        finally:
            _close(lease, context)

    async def stream(self, stream: Any, context: Context) -> AsyncGenerator[Any, None]:
        answered = 0
        note_peer(context)
        lease = None
        try:
            with self._limits.open_calls.call(context.peer()):
                lease = self._lease(context)
                request = await self._request(stream, lease, context)
                with lease:
                    async with aclosing(self._method.call(request)) as responses:
                        async for response in responses:
                            yield response
                            answered += 1
        except Exception as error:
            await self._refuse(error, context, answered if self._method.streams_requests else None)
        finally:
            _close(lease, context)

    async def _called(self, request: Any) -> Any:
        response = await self._method.call(request)
        return await response.written(PROTO) if isinstance(response, Parts) else response

    def _lease(self, context: Context) -> Lease:
        return Lease(self._limits.admission, address_of_peer(context.peer()))

    async def _request(self, data: bytes | AsyncIterator[bytes], lease: Lease, context: Context) -> Any:
        """What the method takes: its message, or an iterator of its messages."""
        if self._limits.routed:
            serving().shard = _shard_of(context)
        if isinstance(data, bytes):
            return await self._parsed(data, lease)
        lease.check()
        if self._method.streams_requests:
            return self._requests(data, lease)
        message = await self._limits.receiving.message(lease.name, context.read)
        if message is grpc.aio.EOF:
            raise InvalidArgument(f"{self._method.name} takes one message, not none", field="request")
        return await self._parsed(message, lease)

    async def _parsed(self, data: bytes, lease: Lease) -> Message:
        """Parse a message when it is its caller's turn."""
        size, reads = len(data), self._method.reads_only
        if self._method.bytes_max is not None and size > self._method.bytes_max:
            raise TooLarge(
                f"the message has {size} bytes; {self._method.bytes_max} are allowed",
                field="request",
                limit=f"{self._method.bytes_max} bytes",
            )
        if lease.must_wait(size, self._method.parsed * size if size > _LARGE_BYTES else 0, reads):
            await lease.turn(size, reads)
        # Parsed here and not by gRPC, which would answer bytes that are no message with INTERNAL.
        try:
            if len(data) <= LONG_BYTES:
                return self._method.request.FromString(data)
            return await self._limits.parsed(parsed(self._method.request, data))
        except DecodeError:
            raise InvalidArgument(f"the request is no message of {self._method.name}", field="request") from None

    async def _requests(self, stream: AsyncIterator[bytes], lease: Lease) -> AsyncIterator[Message]:
        async for data in stream:
            with lease.memory.apart():
                yield await self._parsed(data, lease)

    async def _refuse(self, error: Exception, context: Context, applied: int | None = None) -> None:
        await end_with_error(context, error, self._method.name, self._metrics, applied)


def _close(lease: Lease | None, context: Context) -> None:
    """Give back what a call has; memory for a large answer when the call has ended, and not while it is sent."""
    if lease is None:
        return
    if not lease.memory.held or serving().is_going_on:
        lease.close()
        return
    task = asyncio.current_task()
    assert task is not None
    # gRPC's own callbacks know their call, and it knows them: both would stay until the collector looks.
    task.add_done_callback(lambda _: lease.close())


class _Traced(_Guarded):
    """A method whose calls have spans."""

    async def unary(self, data: Any, context: Context, slot: Slot | None = None) -> Any:
        with self._span(context):
            return await super().unary(data, context, slot)

    async def stream(self, stream: Any, context: Context) -> AsyncGenerator[Any, None]:
        with self._span(context):
            async with aclosing(super().stream(stream, context)) as responses:
                async for response in responses:
                    yield response

    async def _refuse(self, error: Exception, context: Context, applied: int | None = None) -> None:
        traces.fail(status_of(error, self._method.name, applied).code.name)
        await super()._refuse(error, context, applied)

    def _span(self, context: Context) -> AbstractContextManager[Any]:
        call = CallContext(context.invocation_metadata)
        attributes = {"rpc.system": "grpc", "rpc.method": self._method.name}
        return traces.serving(self._method.path[1:], call.trace(), attributes)
