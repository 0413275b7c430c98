"""The client for asyncio: the same calls, arguments, answers and errors as `sash_client.Client`, awaited.

    from sash_client.aio import AsyncClient

    async with AsyncClient("127.0.0.1:7070") as sash:
        window = sash.window("departure_delay")
        await window.bulk_insert(times, {"delay": delays, "carrier": carriers}, keys=airports)
        hour, six_hours = await window.query(key="JFK", lookbacks=["1h", "6h"])
        async for answers in window.watch(key="JFK", lookbacks=["1h"]):
            ...

Requests and answers are made by the same code (`operations`); this module awaits the calls.
Cancelling a task cancels its call; a write that was under way may have been applied. Retries are those of `Client`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from threading import Thread
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self, TypeVar, Unpack, cast

import grpc

from sash_client.answers import WindowInfo, WriteResult
from sash_client.calls.connect import AsyncCalls
from sash_client.calls.connection import Connection
from sash_client.calls.plans import CONNECT_PAUSE_S, READS, Ask, AskStream, Plan, Restarts, Together
from sash_client.calls.streams import Patience, stood_still
from sash_client.calls.targets import Endpoint
from sash_client.data.bulks import Bulk, Rows
from sash_client.data.tables import AsyncAnswers, AsyncEntries
from sash_client.data.times import TimeLike
from sash_client.data.wire import from_info, new_name
from sash_client.errors import FailedPrecondition, SashClientError, Unavailable, from_rpc
from sash_client.files import chunks, open_to_read, replacing
from sash_client.windows import handle
from sash_client.windows.handle import Handle
from sash_client.windows.keys import Key
from sash_client.windows.operations import Awaits, Calls, Operations
from sash_client.windows.producer import Producer
from sash_client.windows.writes import BulkStream
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import traces

R = TypeVar("R")


class AsyncClient(Connection, Calls, Awaits):
    """An asynchronous client; close it, or use it as a context manager.

    It belongs to the event loop of its first call, whose tasks may share it. It may be made before that loop runs.
    Arguments are those of `Client`.
    """

    _opens_at_once = False

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
                    self._open_channel()
                    await self._channel.channel_ready()
                else:
                    await self._wait_for_connect()
        except TimeoutError:
            raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None

    async def create_window(self, spec: Mapping[str, Any] | str) -> AsyncWindow:
        """Create a window; as `Client.create_window`."""
        made = await self._perform(handle.created(spec))
        return AsyncWindow(self, made.name, made)

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

    # ---------------------------------------------------------------- calls

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> AsyncCalls:
        return AsyncCalls(endpoint, context, name)

    async def _perform(self, plan: Plan[R]) -> R:
        """Make the calls of a plan, one after the other; return what it returns."""
        if self._owners is not None:
            plan = self._owners.routed(plan)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Ask):
                    try:
                        shard = step.owner if step.alone else None
                        answer = await self._call(step.method, step.request, step.timeout_s, step.target, shard)
                    except SashClientError as error:
                        step = plan.throw(error)
                    else:
                        step = plan.send(answer)
                elif isinstance(step, Together):
                    step = plan.send(await self._perform_together(step.plans))
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(plan)
        except StopIteration as end:
            done: R = end.value
            return done

    async def _perform_together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Perform plans, each in a task; return what each returned, or the error that it raised."""

        async def perform(plan: Plan[Any]) -> Any:
            try:
                return await self._perform(plan)
            except SashClientError as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(perform(plan)) for plan in plans]
        return [call.result() for call in calls]

    async def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None,
        target: str | None = None,
        shard: int | None = None,
    ) -> Any:
        """Make a call; `target` and `shard` as of `_started`."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if self._http is not None and target is None:
            return await self._over_connect(method, request, timeout_s)
        async with self._mapped():
            return await self._started(method, request, timeout=timeout_s, target=target, shard=shard)

    async def _over_connect(self, method: str, request: Any, timeout_s: float) -> Any:
        """Make a call over Connect, and a read again as `Restarts` allows."""
        said = self._said()
        with nullcontext(said) if traces.tracer is None else traces.calling(method, self.target, said) as metadata:
            if method not in READS:
                return await self._http.call(method, request, timeout_s, metadata)
            restarts = Restarts(self)
            while True:
                try:
                    return await self._http.call(method, request, restarts.left_s, metadata)
                except SashClientError as error:
                    pause_s = restarts.pause_s(error)
                await asyncio.sleep(pause_s)

    async def _streamed(self, plan: Plan[AskStream[R]]) -> AsyncGenerator[R, None]:
        """Perform a plan whose answer is a stream; yield what it reads."""
        ask = await self._perform(plan)
        patience = Patience(None if ask.waits else self.timeout_s)
        async with aclosing(self._stream(ask.method, ask.request, patience)) as messages:
            async for message in messages:
                yield ask.read(message)

    async def _stream(self, method: str, request: Any, patience: Patience) -> AsyncGenerator[Any, None]:
        """Make a read that answers with a stream, and retry it as `Restarts` allows; yield its messages."""
        restarts = Restarts(self)
        while True:
            try:
                async with aclosing(self._received(self._started(method, request), patience)) as messages:
                    async for message in messages:
                        restarts.messages += 1
                        yield message
                return
            except SashClientError as error:
                pause_s = restarts.pause_s(error)
            await asyncio.sleep(pause_s)

    async def _received(self, call: Any, patience: Patience) -> AsyncGenerator[Any, None]:
        """Yield the messages of a call; cancel it when the caller stops, or when one takes too long."""
        look_s = None if patience.timeout_s is None else patience.timeout_s / 4
        try:
            while True:
                patience.wait()
                reading = asyncio.ensure_future(call.read())
                try:
                    while not (await asyncio.wait({reading}, timeout=look_s))[0]:
                        if patience.is_over:
                            raise stood_still(patience.timeout_s)
                    async with self._mapped():
                        message = reading.result()
                finally:
                    reading.cancel()
                patience.rest()
                if message is grpc.aio.EOF:
                    return
                yield message
        finally:
            call.cancel()

    @asynccontextmanager
    async def _mapped(self) -> AsyncIterator[None]:
        """Raise what gRPC does as a `SashClientError`."""
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        except asyncio.CancelledError:
            # Closing cancels the calls, which is not to look as if somebody had cancelled the task.
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise Unavailable("the client is closed") from None
            raise

    @asynccontextmanager
    async def _patient(self) -> AsyncIterator[None]:
        """As `_mapped`, of one step of a stream, which may take `timeout_s`."""
        try:
            async with asyncio.timeout(self.timeout_s), self._mapped():
                yield
        except TimeoutError:
            raise stood_still(self.timeout_s) from None

    async def _wait_for_connect(self) -> None:
        """Wait for the HTTP port, without end."""
        while True:
            self._said()
            with suppress(Unavailable):
                await self._http.connect()
                return
            await asyncio.sleep(CONNECT_PAUSE_S)


class AsyncWindow(Operations, Awaits):
    """A handle on one named window; get it from `AsyncClient.window` or `AsyncClient.create_window`.

    Methods are those of `Window`, awaited, or iterated over with `async for`. Its spec is in what `describe` returns.
    """

    _client: AsyncClient
    _answers, _entries = AsyncAnswers, AsyncEntries

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


class AsyncProducer:
    """Sends entries to one window, each exactly once; get it from `AsyncWindow.producer`. Tasks may share it.

        async with window.producer("loader-7") as producer:
            await producer.insert(time, 1.5, key="JFK")

    It belongs to the event loop of its client. Arguments, errors and what an error's `unapplied` means are those of
    `Producer`. If a task is cancelled while `insert` or `bulk_insert` waits for room, its entries may be taken.

    Args:
        window: of an `AsyncClient`.
        name, options: as of `Producer`.
    """

    _made: ClassVar[Callable[..., Any]] = Producer

    def __init__(self, window: AsyncWindow, name: str, **options: Any) -> None:
        self._window, self._name, self._options = window, name, options
        self._making = asyncio.Lock()
        self._inner: Any = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._producer()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inner is not None:
            await _in_thread(lambda: self._inner.__exit__(kind, error, trace))

    @property
    def acknowledged(self) -> Any:
        """The last number that the service has answered; of a direct producer, by shard."""
        return self._options.get("start") if self._inner is None else self._inner.acknowledged

    @property
    def result(self) -> WriteResult:
        """The outcome of all entries that were answered so far."""
        return WriteResult() if self._inner is None else cast("WriteResult", self._inner.result)

    async def insert(
        self,
        time: TimeLike,
        value: float | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        key: Key | None = None,
    ) -> None:
        """Take one entry, to be sent soon; as `Producer.insert`."""
        at: Producer = (await self._producer())._at(key)
        if not at._inserted(time, value, fields, key, waits=False):
            await _in_thread(lambda: at.insert(time, value, fields=fields, key=key))

    async def bulk_insert(self, times: Any, columns: Any = None, **rows: Unpack[Rows]) -> None:
        """Take n entries, or a data frame, in a thread; as `Producer.bulk_insert`."""
        inner = await self._producer()
        await _in_thread(lambda: inner.bulk_insert(times, columns, **rows))

    async def flush(self, timeout_s: float | None = None) -> WriteResult:
        """Send all entries taken so far and wait for the answers; return `result`. Raises as `Producer.flush`."""
        inner = await self._producer()
        return cast("WriteResult", await _in_thread(lambda: inner.flush(timeout_s)))

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; closing twice does nothing. Raises as `Producer.close`."""
        self._closed = True
        if self._inner is not None:
            await _in_thread(lambda: self._inner.close(timeout_s))

    async def _producer(self) -> Any:
        """The producer, made at the first use: it asks for the window's spec."""
        if self._inner is None:
            async with self._making:
                if self._closed:
                    raise FailedPrecondition(f"producer {self._name!r} is closed")
                if self._inner is None:
                    client = _OnLoop(self._window._client)
                    handle = Handle(client, self._window.name, self._window._message)
                    made = type(self)._made
                    self._inner = await _in_thread(lambda: made(handle, self._name, **self._options))
        return self._inner


class _OnLoop:
    """What a producer needs of its client. It is called in threads, and makes calls on the event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()
        self.timeout_s = client.timeout_s
        self.bulk_entries_max, self.bulk_bytes_max = client.bulk_entries_max, client.bulk_bytes_max
        self._owners = client._owners

    @property
    def _is_closed(self) -> bool:
        return self._client._is_closed or self._loop.is_closed()

    def _check_process(self) -> None:
        self._client._check_process()

    def _perform(self, plan: Plan[R]) -> R:
        return cast("R", self._awaited(lambda: self._client._perform(plan)))

    def _call(self, method: str, request: Any) -> Any:
        return self._awaited(lambda: self._client._call(method, request, None))

    def _awaited(self, call: Callable[[], Any]) -> Any:
        """Await a call on the event loop, and return its outcome."""

        async def outcome() -> Any:
            try:
                return await call()
            except SashClientError as error:
                return error

        coroutine = outcome()
        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise _ended() from None
        try:
            found = running.result()
        except CancelledError:
            raise _ended() from None
        if isinstance(found, SashClientError):
            raise found
        return found


def _ended() -> Unavailable:
    return Unavailable("the event loop of the client has ended")


async def _in_thread(call: Callable[[], R]) -> R:
    """Make a call that may block, in a thread that nobody waits for at the end of the event loop or of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(result: R | None, error: BaseException | None) -> None:
        if done.done():  # the task was cancelled
            return
        if error is None:
            done.set_result(cast("R", result))
        else:
            done.set_exception(error)

    def run() -> None:
        result: R | None = None
        failed: BaseException | None = None
        try:
            result = call()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failed)

    Thread(target=run, name="sash producer call", daemon=True).start()
    return await done
