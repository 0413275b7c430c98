"""What every edge needs around a call of the plane: writes that outlive their caller, and shards that an answer lacks.

    caller ──▶ edge ──▶ unbroken ──▶ plane.write …      the caller hangs up: the edge's part ends, the write goes on

Edges may not import each other, so what must be the same on all is here. It knows neither HTTP nor gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from dataclasses import replace
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from sash.context import serving
from sash.plane import Plane
from sash.shard import Parts
from sash_engine.errors import InvalidArgument, Unavailable
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import KeysQuery
from sash_wire import traces
from sash_wire.errors import raising

_JOINED_BYTES = 1 << 20
"""So many bytes are joined on the event loop: 0.7 ms. From there on, the interpreter lets the loop go on meanwhile."""

R = TypeVar("R")
T = TypeVar("T")

INTERVAL_MS, INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1000, 50, 3_600_000
QUIET_S = 15.0
"""After so long without a change, a watcher gets a sign of life."""

refusing = raising(InvalidArgument)
"""Decorates functions that read what a caller sent: what `sash_wire` refuses becomes an `InvalidArgument`."""

_running: set[asyncio.Task[Any]] = set()
"""An event loop keeps only weak references: without this one a write whose caller has gone could vanish half-way."""


class allowing:
    """Asks a question as the caller wants it, in a `with` block; its value is the shards that the answer lacks.

    Args:
        partial: `allow`, or empty.

    Raises:
        InvalidArgument: it is something else.
    """

    __slots__ = ("_call", "_partial")

    def __init__(self, partial: str) -> None:
        if partial not in ("", "allow"):
            raise InvalidArgument(f"partial is allow, or is not there, not {partial[:40]!r}", field="partial")
        self._partial = partial

    def __enter__(self) -> set[int]:
        missing = set[int]()
        self._call = serving()
        self._call.missing = missing if self._partial else None
        return missing

    def __exit__(self, *_: object) -> None:
        self._call.missing = None


def origin_of(
    producer: str | None, sequence: int | None, epoch: int | None = None, after: int | None = None
) -> Origin | None:
    """Return the producer and number of a write, None where it has none. The window checks which there may be.

    Raises:
        InvalidArgument: a producer without a sequence, or a sequence, an epoch or an `after` without a producer.
    """
    if producer is None and sequence is None and epoch is None and after is None:
        return None
    if producer is None or sequence is None:
        named = {"producer": producer, "sequence": sequence, "epoch": epoch, "after": after}
        given = [name for name, value in named.items() if value is not None]
        missing = "producer" if producer is None else "sequence"
        raise InvalidArgument(
            f"{missing} is missing: a write with {' and '.join(given)} needs a producer and a sequence", field=missing
        )
    return Origin(producer, sequence, epoch or 0, after=after)


async def key_names(plane: Plane, name: str, question: KeysQuery) -> tuple[list[str], int | None]:
    """List keys: as many as the question says where there are so many, and with turns for other calls."""
    found, next_ = await plane.ask(name, question)
    while next_ is not None and len(found) < question.limit:
        await asyncio.sleep(0)
        more, next_ = await plane.ask(name, replace(question, limit=question.limit - len(found), position=next_))
        found += more
    return found, next_


async def each(parts: Parts[T]) -> AsyncIterator[T]:
    """Iterate over the parts of a long answer, with turns for other calls."""
    if isinstance(parts, AsyncIterator):
        async for part in parts:
            yield part
        return
    for part in parts:
        yield part
        await asyncio.sleep(0)


def start(write: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Run a write to its end, whether or not anybody waits for it."""
    task = asyncio.create_task(write)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


async def unbroken(write: Coroutine[Any, Any, R]) -> R:
    """Wait for a write that goes on when whoever waits is cancelled: it is never half applied.

    A write that waits for nothing needs no task of its own, which takes a fifth of a small insert over REST (119 µs of
    processor time without, 146 with it). Traces keep what belongs to a task: with them it has one.
    """
    if traces.tracer is None:
        try:
            waits_for = write.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        write = resumed(write, waits_for)
    return await shielded(write)


async def shielded(work: Coroutine[Any, Any, R]) -> R:
    """As `unbroken`, of work that receives from the caller, with timeouts that belong to its task."""
    task = start(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        serving().goes_on(task)
        raise


async def resumed(work: Coroutine[Any, Any, R], waits_for: Any) -> R:
    """Go on with work that has begun to wait.

    An error knows the frames that it came through, and what is waited for may know the error. If a frame knew that, all
    of them would stay until the collector looks.
    """
    rest = _resumed(work, waits_for)  # a task of Python 3.12 and later takes no such coroutine
    del waits_for
    return await rest


@coroutine
def _resumed(work: Coroutine[Any, Any, R], waits_for: Any) -> Generator[Any, Any, R]:
    while True:
        try:
            answer = yield waits_for
        except BaseException as error:
            resume = partial(work.throw, error)
        else:
            resume = partial(work.send, answer)
        waits_for = None
        try:
            waits_for = resume()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            del resume


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # A refusal that nobody is left to hear is counted by the plane, and is no fault of the service's.
        task.exception()


def going(unchanged: bool = False) -> Unavailable:
    """The error of calls that the service refuses, and of streams that it ends, while it shuts down.

    Args:
        unchanged: whether it is the refusal of a call that has not begun.
    """
    return Unavailable("the service is shutting down", retry_after_s=1.0, unchanged=unchanged)


def check_interval(interval_ms: int, field: str) -> None:
    """Raise `InvalidArgument` for an interval that nobody may watch at."""
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        limit = f"{INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} ms"
        raise InvalidArgument(f"{field} {interval_ms} is out of range", field=field, limit=limit)


async def joined(parts: Sequence[bytes]) -> bytes:
    """Join the parts of a body, or of an answer: long ones beside the event loop.

    30 MB take 20 ms, most of it to clear the pages that the system gives.
    """
    if len(parts) == 1:
        return parts[0]
    if sum(map(len, parts)) < _JOINED_BYTES:
        return b"".join(parts)
    return await asyncio.to_thread(b"".join, parts)
