"""Calls from one process to the shards of another, over gRPC.

    Calls      a stream of calls and one of answers; a message has as many as there are: [[number, shard, operation,
               arguments, request], …] and [[number, answer or error], …]. Calls begin in the order in which they were
               made.
    Read       one call ──▶ the parts of a long answer
    Restore    the parts of a file ──▶ one answer

A call is for a shard that the other process has, and is never forwarded again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from sash.context import CALL, HEADER
from sash.shard import Parts
from sash.shards.codec import pack, unpack
from sash_engine.errors import SashError, Unavailable
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.questions import EntriesQuery, Question
from sash_wire import traces

SERVICE = "sash.shards.v1.Peers"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Each side asks whether the other is there. On a busy machine the questions arrive close together: they are no
    # abuse. With the defaults, a process ended the connections of others (GOAWAY, too_many_pings).
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_RETRY_S = 0.5
_TOGETHER_BYTES = 1 << 20
"""A message has no more calls once it has so many bytes."""

_CHANGES = frozenset({"write", "create", "delete", "add_aggregates"})
"""After a lost connection nobody knows whether these took place."""


class Peer:
    """Another process; it connects with the first call, and again after a failure.

    Args:
        address: where it listens: `unix:/run/…` or `host:port`.
        called: what to call it in errors.
        metadata: sent with each stream.
        credentials: for TLS; without it where None.
        name: that its certificate must be for; None: its address.
    """

    def __init__(
        self,
        address: str,
        called: str,
        metadata: Sequence[tuple[str, str]] = (),
        credentials: grpc.ChannelCredentials | None = None,
        name: str | None = None,
    ) -> None:
        self._called = called
        self._metadata = tuple(metadata)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            named = [] if name is None else [("grpc.ssl_target_name_override", name)]
            self._channel = grpc.aio.secure_channel(address, credentials, [*OPTIONS, *named])
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._unsent: list[tuple[int, bytes]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def call(self, shard: int | None, operation: str, *args: Any) -> Any:
        """Make a call to a shard, or to the deployment; return its answer.

        Raises:
            Unavailable: the process cannot be reached. The message says if the call may have taken place.
            SashError: what the operation raises.
        """
        number = next(self._numbers)
        data = pack([number, shard, operation, list(args), _said()])
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (operation, answer)
        self._unsent.append((number, data))
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._converse())
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def read(self, shard: int | None, operation: str, *args: Any) -> AsyncIterator[Any]:
        """Make a call whose answer is long; return its parts when the other process has begun with them."""
        method: Any = self._channel.unary_stream(f"/{SERVICE}/Read")
        stream = method(pack([shard, operation, list(args)]), metadata=self._metadata)
        parts = self._parts(stream)
        await anext(parts)
        return parts

    async def _parts(self, stream: Any) -> AsyncIterator[Any]:
        try:
            async for data in stream:
                part = unpack(data)
                if isinstance(part, SashError):
                    raise part
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._away(error, False) from None
        finally:
            stream.cancel()

    async def restore(self, shard: int | None, parts: AsyncIterator[bytes], *args: Any) -> Any:
        """Send a file, and what `restore` gets beside it; return what becomes of it."""
        stream: Any = self._channel.stream_unary(f"/{SERVICE}/Restore")(metadata=self._metadata)
        try:
            await stream.write(pack([shard, *args]))
            async for part in parts:
                await stream.write(part)
            await stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it has refused the file already: the answer says why
        except BaseException:
            stream.cancel()
            raise
        try:
            answer = unpack(await stream)
        except grpc.aio.AioRpcError as error:
            raise self._away(error, True) from None
        if isinstance(answer, SashError):
            raise answer
        return answer

    async def close(self) -> None:
        """End the connection; calls that wait fail."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._channel.close()

    async def _converse(self) -> None:
        """Send calls and take answers until the connection is lost."""
        stream: Any = self._channel.stream_stream(f"/{SERVICE}/Calls")(metadata=self._metadata)
        sent: set[int] = set()
        sending = asyncio.create_task(self._send(stream, sent))
        reason: Exception | None = None
        try:
            async for data in stream:
                for number, answer in map(unpack, unpack(data)):
                    sent.discard(number)
                    _, waiting = self._waiting.get(number, (None, None))
                    if waiting is None or waiting.done():
                        continue  # the caller has gone
                    if isinstance(answer, SashError):
                        waiting.set_exception(answer)
                    else:
                        waiting.set_result(answer)
        except Exception as error:
            reason = error
        finally:
            sending.cancel()
            stream.cancel()
            self._unsent.clear()
            for number, (operation, waiting) in list(self._waiting.items()):
                if not waiting.done():
                    waiting.set_exception(self._away(reason, number in sent and operation in _CHANGES))

    async def _send(self, stream: Any, sent: set[int]) -> None:
        try:
            await stream.wait_for_connection()
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._unsent:
                    some, size = 0, 0
                    while some < len(self._unsent) and size < _TOGETHER_BYTES:
                        size += len(self._unsent[some][1])
                        some += 1
                    calls, self._unsent = self._unsent[:some], self._unsent[some:]
                    sent.update(number for number, _ in calls)
                    await stream.write(pack([data for _, data in calls]))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            stream.cancel()

    def _away(self, error: Exception | None, perhaps: bool) -> Unavailable:
        why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error or "it has ended the connection"
        told = "; the call may have taken place" if perhaps else ""
        return Unavailable(
            f"{self._called} cannot be reached ({why}){told}", retry_after_s=_RETRY_S, unchanged=not perhaps
        )


def _said() -> dict[str, str]:
    """Return what the other process is told of the request: its id, and the trace that it belongs to."""
    call = CALL.get()
    return dict(traces.carried()) | ({} if call is None else {HEADER: call.id})


class RemoteShard:
    """The windows of a shard of another process: each operation is passed on by its name. It is a `Shard`.

    Args:
        shard: whose operations these are; None: those of the deployment, as `Lifecycle` has them.
    """

    def __init__(self, peer: Peer, shard: int | None) -> None:
        self._peer = peer
        self._shard = shard

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._peer.call, self._shard, operation)

    async def ask(self, name: str, question: Question[Any]) -> Any:
        call = self._peer.read if isinstance(question, EntriesQuery) else self._peer.call
        return await call(self._shard, "ask", name, question)

    async def export(self, name: str) -> Parts[bytes]:
        return await self._peer.read(self._shard, "export", name)

    async def restore(self, parts: AsyncIterator[bytes], *args: Any) -> WindowInfo:
        return await self._peer.restore(self._shard, parts, *args)  # type: ignore[no-any-return]
