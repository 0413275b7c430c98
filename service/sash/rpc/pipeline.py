"""Runs the writes of one stream: starts them in order, several at a time, and answers them in order.

    requests   1  2  3  4  5                     started one after the other, without waiting for the tier
                \\  \\  \\  \\
    in flight    [2][3][4]                       each waits until the tier has it; many share one commit
                 /
    answers    1                                 in order; the first error ends the stream

A write starts when the one before it is applied in memory, which the plane does before it first waits. So a refused
write ends the stream, and no write after it is applied. If the tier fails, writes after the failed one may be applied.
Their producer finds out when it sends them again with the same sequence numbers.

When the service closes, it starts no more writes, answers those that it has started, and ends the stream with
`Unavailable`. An idle stream ends at once. So does one of questions (`until_closed`), which are answered one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from sash.calls import going, start

Q = TypeVar("Q")
R = TypeVar("R")

IN_FLIGHT_MAX = 64


async def in_order(
    requests: AsyncIterable[Q],
    write: Callable[[Q], Coroutine[Any, Any, R]],
    closing: asyncio.Event,
    in_flight_max: int = IN_FLIGHT_MAX,
) -> AsyncIterator[R]:
    """Yield the answer to each request, in order.

    Args:
        requests: read up to `in_flight_max` beyond the last one that was answered.
        write: makes the coroutine of one write. Closing this generator does not cancel writes that run.
        closing: set when the service closes.
    """
    begun: asyncio.Queue[asyncio.Task[R] | Exception | None] = asyncio.Queue()
    room = asyncio.Semaphore(in_flight_max)

    async def begin() -> None:
        end: Exception | None = None
        try:
            async for request in requests:
                await room.acquire()
                task = start(write(request))
                begun.put_nowait(task)
                await asyncio.sleep(0)  # its first step, up to its wait for the tier
                if task.done() and (task.cancelled() or task.exception() is not None):
                    return
        except asyncio.CancelledError:
            # Wherever this was cancelled: a request that was read and is not in the queue has not started.
            end = going()
        except Exception as error:
            end = error
        begun.put_nowait(end)

    async def close() -> None:
        await closing.wait()
        reading.cancel()

    reading, watching = asyncio.create_task(begin()), asyncio.create_task(close())
    try:
        while (next_ := await begun.get()) is not None:
            if isinstance(next_, Exception):
                raise next_
            yield await asyncio.shield(next_)
            room.release()
    finally:
        reading.cancel()
        watching.cancel()


async def until_closed(requests: AsyncIterator[Q], closing: asyncio.Event) -> AsyncGenerator[Q, None]:
    """Yield requests; the service's close ends them, also while none comes.

    They are read in the task of the caller, which is cancelled only while it waits for one.

    Args:
        closing: set when the service closes.

    Raises:
        Unavailable: the service closes.
    """
    waiting: asyncio.Timeout | None = None

    async def close() -> None:
        await closing.wait()
        if waiting is not None:
            waiting.reschedule(asyncio.get_running_loop().time())

    watching = asyncio.create_task(close())
    try:
        while not closing.is_set():
            async with asyncio.timeout(None) as waiting:
                request = await anext(requests, None)
            waiting = None
            if request is None:
                return
            yield request
        raise going()
    except TimeoutError:
        if not closing.is_set():
            raise
        raise going() from None
    finally:
        watching.cancel()
