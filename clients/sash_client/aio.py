"""The client for asyncio: the same calls, arguments, answers and errors as `sash_client.Client`, awaited.

    from sash_client.aio import AsyncClient

    async with AsyncClient("127.0.0.1:7070") as sash:
        window = sash.window("departure_delay")
        await window.bulk_insert(times, {"delay": delays, "carrier": carriers}, keys=airports)
        hour, six_hours = await window.query(key="JFK", lookbacks=["1h", "6h"])
        async for answers in window.watch(key="JFK", lookbacks=["1h"]):
            ...

Requests and answers are made by the same code (`handle`, `writes`, `questions`); this module awaits the calls.
Cancelling a task cancels its call; a write that was under way may have been applied. Retries are those of `Client`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, ParamSpec, Self, TypeVar

import grpc

from sash_client import changes, handle, questions, writes
from sash_client.aio_producer import AsyncProducer
from sash_client.answers import Answer, Bulk, Topology, WindowInfo, WriteResult
from sash_client.awaiting import AwaitingConnection
from sash_client.calls import Patience
from sash_client.errors import SashClientError, Unavailable
from sash_client.files import chunks, open_to_read, replacing
from sash_client.handle import Handle
from sash_client.plans import AskStream, Plan
from sash_client.results import AsyncAnswers, AsyncEntries
from sash_client.windows import created, deleted, listed, moved, topology
from sash_client.wire import from_info, new_name
from sash_client.writes import BulkStream
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["AsyncClient", "AsyncWindow"]

P = ParamSpec("P")
R = TypeVar("R")


class AsyncClient(AwaitingConnection):
    """An asynchronous client; close it, or use it as a context manager.

    It belongs to the running event loop, whose tasks may share it. Arguments are those of `Client`.

    Raises:
        RuntimeError: no event loop is running.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, and end calls in progress; closing twice does nothing."""
        self._is_closed = True
        if self._http is not None:
            await self._http.close()
        for channel in self._channels():
            await channel.close()

    async def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the service accepts connections; as `Client.wait_until_ready`."""
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(wait_s):
                if self._http is None:
                    await self._channel.channel_ready()
                else:
                    await self._wait_for_connect()
        except TimeoutError:
            raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None

    async def create_window(self, spec: Mapping[str, Any] | str) -> AsyncWindow:
        """Create a window; as `Client.create_window`."""
        made = await self._perform(created(spec))
        return AsyncWindow(self, made.name, made)

    async def list_windows(self) -> list[WindowInfo]:
        """Show all windows."""
        return await self._perform(listed())

    async def topology(self) -> Topology:
        """Show which processes serve the windows, and which shards each has."""
        return await self._perform(topology())

    async def move_shard(self, shard: int, process: int) -> Topology:
        """Have a process take a shard, where processes share them by leases; returns when it has it.

        Raises:
            InvalidArgument: there is no such shard or process.
            Unavailable: the process does not have it in time.
            Unsupported: shards stay where they are.
        """
        return await self._perform(moved(shard, process))

    async def delete_window(self, name: str) -> int:
        """Delete a window and its entries; return how many it had. Raises NotFound."""
        return await self._perform(deleted(name))

    def window(self, name: str) -> AsyncWindow:
        """Return a handle on a window. No call is made: a name that does not exist shows at the first use."""
        return AsyncWindow(self, name)

    async def export_window(self, name: str, file: str | os.PathLike[str] | BinaryIO) -> int:
        """Write a window as one file, in a thread; return its bytes. As `Client.export_window`."""
        size = 0
        async with _threaded(replacing(file)) as out:
            parts = self._stream("ExportWindow", pb.ExportWindowRequest(window=name), Patience(self.timeout_s))
            async with aclosing(parts):
                async for chunk in parts:
                    await asyncio.to_thread(out.write, chunk.data)
                    size += len(chunk.data)
        return size

    async def import_window(self, file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> WindowInfo:
        """Create a window from what `export_window` wrote, read in a thread; as `Client.import_window`."""
        async with _threaded(open_to_read(file)) as source:
            call = self._started("ImportWindow")
            try:
                parts, first = chunks(source), new_name(name)
                with suppress(asyncio.InvalidStateError):  # the call has ended already: its status says why
                    while (data := await asyncio.to_thread(next, parts, None)) is not None:
                        async with self._patient():
                            await call.write(pb.WindowChunk(data=data, name=first))
                        first = ""
                    await call.done_writing()
                async with self._patient():
                    return from_info(await call)
            finally:
                call.cancel()

    def _opened(self, target: str, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
        asyncio.get_running_loop()  # else gRPC would take another loop
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self._credentials, options=options)


def _performed(
    plan: Callable[Concatenate[Handle, P], Plan[R]],
) -> Callable[Concatenate[AsyncWindow, P], Coroutine[Any, Any, R]]:
    """Return the method that performs an operation."""

    @wraps(plan)
    async def method(self: AsyncWindow, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._client._perform(plan(self, *args, **kwargs))

    return method


def _streamed(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[R]]],
) -> Callable[Concatenate[AsyncWindow, P], AsyncGenerator[R, None]]:
    """Return the method that performs an operation whose answer is a stream."""

    @wraps(plan)
    async def method(self: AsyncWindow, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        client = self._client
        ask = await client._perform(plan(self, *args, **kwargs))
        patience = Patience(None if ask.waits else client.timeout_s)
        async with aclosing(client._stream(ask.method, ask.request, patience)) as messages:
            async for message in messages:
                yield ask.read(message)

    return method


def _answered(
    plan: Callable[Concatenate[Handle, P], Plan[list[Answer]]],
) -> Callable[Concatenate[AsyncWindow, P], Coroutine[Any, Any, AsyncAnswers]]:
    """Return the method for an operation that answers with a list of answers."""

    @wraps(plan)
    async def method(self: AsyncWindow, /, *args: P.args, **kwargs: P.kwargs) -> AsyncAnswers:
        return AsyncAnswers(await self._client._perform(plan(self, *args, **kwargs)), self._spec)

    return method


def _watched(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[list[Answer]]]],
) -> Callable[Concatenate[AsyncWindow, P], AsyncIterator[AsyncAnswers]]:
    """Return the method for an operation whose answer is a stream of lists of answers."""
    streamed = _streamed(plan)

    @wraps(plan)
    async def method(self: AsyncWindow, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[AsyncAnswers]:
        async with aclosing(streamed(self, *args, **kwargs)) as lists:
            async for answers in lists:
                yield AsyncAnswers(answers, self._spec)

    return method


def _read(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[Bulk]]],
) -> Callable[Concatenate[AsyncWindow, P], AsyncEntries]:
    """Return the method for an operation whose answer is a stream of entries."""
    streamed = _streamed(plan)

    @wraps(plan)
    def method(self: AsyncWindow, /, *args: P.args, **kwargs: P.kwargs) -> AsyncEntries:
        return AsyncEntries(streamed(self, *args, **kwargs), self._spec)

    return method


class AsyncWindow(Handle):
    """A handle on one named window; get it from `AsyncClient.window` or `AsyncClient.create_window`.

    Methods are those of `Window`, awaited, or iterated over with `async for`. Its spec is in what `describe` returns.
    """

    _client: AsyncClient

    describe = _performed(handle.describe)
    add_aggregates = _performed(handle.add_aggregates)
    keys = _performed(handle.keys)

    insert = _performed(writes.insert)
    bulk_insert = _performed(writes.bulk_insert)
    bulk_evict = _performed(writes.bulk_evict)
    retract = _performed(changes.retract)
    update = _performed(changes.update)
    punctuate = _performed(changes.punctuate)
    stage = _performed(writes.stage)
    commit = _performed(writes.commit)

    query = _answered(questions.query)
    range_query = _performed(questions.range_query)
    range_groups = _answered(questions.range_groups)
    series = _performed(questions.series)
    series_groups = _performed(questions.series_groups)
    watch = _watched(questions.watch)
    entries = _read(questions.entries)

    def producer(self, name: str, **options: Any) -> AsyncProducer:
        """Return a producer of this window; as `Window.producer`, see `AsyncProducer`."""
        return AsyncProducer(self, name, **options)

    async def insert_stream(
        self,
        bulks: Iterable[Bulk] | AsyncIterable[Bulk],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int = 0,
    ) -> AsyncIterator[WriteResult]:
        """Insert bulk after bulk over one call, without waiting for answers in between; as `Window.insert_stream`.

        Args:
            bulks: any number of them, taken as the service takes them; there may be any time between two.
            producer, sequence, epoch: as in `bulk_insert`.
        """
        client = self._client
        spec = await self._spec()
        stream = BulkStream(self, spec, producer, sequence, epoch, client.timeout_s)
        call = client._started("InsertStream")
        feeding = asyncio.create_task(_fed(call, bulks, stream))
        try:
            async with aclosing(client._received(call, stream.patience)) as answers:
                async for answer in answers:
                    if (done := stream.answered(answer)) is not None:
                        yield done
            await feeding  # raises the error of a bulk that cannot be sent
        except SashClientError as error:
            raise stream.failed(error) from None
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _spec(self) -> pb.WindowSpec:
        return await self._client._perform(handle.known(self))


async def _fed(call: Any, bulks: Iterable[Bulk] | AsyncIterable[Bulk], stream: BulkStream) -> None:
    """Write the messages of bulks; end with the stream, whose reader says why it ended."""
    try:
        async for bulk in _each(bulks):
            for message in stream.messages(bulk):
                await call.write(message)
    except (grpc.RpcError, asyncio.InvalidStateError):
        return
    finally:
        await call.done_writing()


async def _each(bulks: Iterable[Bulk] | AsyncIterable[Bulk]) -> AsyncIterator[Bulk]:
    if isinstance(bulks, AsyncIterable):
        async for bulk in bulks:
            yield bulk
    else:
        for bulk in bulks:
            yield bulk


@asynccontextmanager
async def _threaded(manager: AbstractContextManager[R]) -> AsyncIterator[R]:
    """Enter and leave a context in a thread: it opens, syncs and renames files."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)
