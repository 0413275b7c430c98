"""Writes of one stream: begun in order of arrival, several at a time, answered in order.

    requests   1  2  3  4  5                     begun one after the other, without waiting for the tier
                \\  \\  \\  \\
    in flight    [2][3][4]                       each waits until the tier has it; many share one commit
                 /
    answers    1                                 in order; the first error is the last thing that is said

A write is begun only when the one before it has been applied in memory, which the plane does before it first waits:
so what is refused there ends the stream with nothing after it applied. Where it is the tier that fails, writes behind
the failed one may have been applied; their producer finds out by sending them again with the same sequence.

When the service closes, nothing more is begun, what was begun is answered, and `Unavailable` is the last thing that is
said: a stream on which nothing happens ends at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from sash.calls import going, start

__all__ = ["IN_FLIGHT_MAX", "in_order"]

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
        requests: read no further than `in_flight_max` beyond the last one that was answered.
        write: makes the coroutine of one write. Closing this generator leaves those that run alone.
        closing: is set when the service is about to end.
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
                await asyncio.sleep(0)  # its first step, up to where it waits for the tier
                if task.done() and (task.cancelled() or task.exception() is not None):
                    return
        except asyncio.CancelledError:
            # At whatever await: a request that was read and is not in the queue was not begun.
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
