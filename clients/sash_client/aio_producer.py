"""A producer for asyncio: that of the blocking client, whose calls are made on the event loop.

    await insert ── there is room ──▶ Producer ──▶ its thread ── BulkInsert ──▶ event loop ──▶ service
                 └─ there is none ──▶ a thread that waits for room

Numbers, bulks, retries and errors are those of `Producer`. No coroutine blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from sash_client.answers import WriteResult
from sash_client.blocking import BlockingConnection, BlockingHandle
from sash_client.errors import FailedPrecondition, SashClientError, Unavailable
from sash_client.keys import Key
from sash_client.plans import Plan
from sash_client.producer import Producer
from sash_client.times import TimeLike

if TYPE_CHECKING:
    from sash_client.aio import AsyncWindow
    from sash_client.awaiting import AwaitingConnection

__all__ = ["AsyncProducer"]

R = TypeVar("R")


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

    async def bulk_insert(
        self,
        times: Any,
        columns: Any = None,
        *,
        keys: Any = None,
        partials: Mapping[str, Any] | None = None,
        entries: Any = None,
        time: str | None = None,
        key: str | None = None,
    ) -> None:
        """Take n entries, or a data frame, in a thread; as `Producer.bulk_insert`."""
        inner = await self._producer()
        rows = {"keys": keys, "partials": partials, "entries": entries, "time": time, "key": key}
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
                    client = cast("BlockingConnection", _OnLoop(self._window._client))
                    handle = BlockingHandle(client, self._window.name, self._window._message)
                    made = type(self)._made
                    self._inner = await _in_thread(lambda: made(handle, self._name, **self._options))
        return self._inner


class _OnLoop:
    """What a producer needs of its client. It is called in threads, and makes calls on the event loop."""

    def __init__(self, client: AwaitingConnection) -> None:
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
