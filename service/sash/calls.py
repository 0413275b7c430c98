"""What both edges need around a call of the plane: writes that outlive their caller, who sent them, and watching.

    caller ──▶ edge ──▶ unbroken ──▶ plane.insert …      the caller hangs up: the edge's part ends, the write goes on
    caller ◀── edge ◀── changes ◀── plane.query …        again and again; only what differs from the last is passed on

Edges may not import each other, so what must be the same on both is here. It knows neither HTTP nor gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from sash.errors import InvalidArgument
from sash.windows.batch import Origin

__all__ = [
    "INTERVAL_MS",
    "INTERVAL_MS_MAX",
    "INTERVAL_MS_MIN",
    "changes",
    "check_interval",
    "origin_of",
    "start",
    "unbroken",
]

R = TypeVar("R")

INTERVAL_MS, INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1000, 50, 3_600_000
QUIET_S = 15.0
"""After so long without a change, `changes` yields a sign of life."""
# How soon a watcher is let go when the service shuts down.
_NAP_S = 0.25

_running: set[asyncio.Task[Any]] = set()
"""An event loop keeps only weak references: without this one a write whose caller has gone could vanish half-way."""


def origin_of(producer: str | None, sequence: int | None) -> Origin | None:
    """Who sends a write, where it says so; what names and numbers there may be, the window checks.

    Raises:
        InvalidArgument: one of the two without the other.
    """
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        missing, given = ("producer", "sequence") if producer is None else ("sequence", "producer")
        raise InvalidArgument(f"{missing} is missing: a write that has a {given} needs both", field=missing)
    return Origin(producer, sequence)


def start(write: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Run a write to its end, whether or not anybody waits for it."""
    task = asyncio.create_task(write)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


async def unbroken(write: Coroutine[Any, Any, R]) -> R:
    """Wait for a write that goes on when whoever waits is cancelled: it is never half applied.

    It costs 10 µs a call, of the hundreds that an edge takes.
    """
    return await asyncio.shield(start(write))


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # A refusal that nobody is left to hear is counted by the plane, and is no fault of the service's.
        task.exception()


def check_interval(interval_ms: int, field: str) -> None:
    """Raise `InvalidArgument` for an interval that nobody may watch at."""
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        limit = f"{INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} ms"
        raise InvalidArgument(f"{field} {interval_ms} is out of range", field=field, limit=limit)


async def changes(
    look: Callable[[], bytes], interval_ms: int, is_open: Callable[[], bool]
) -> AsyncIterator[bytes | None]:
    """Yield what `look` finds: at once, and again whenever it has changed; None after `QUIET_S` without a change.

    The service looks every so often instead of being told by every write, so that a write costs the same however
    many are watching, and a burst of writes is one change. Bytes are compared, as a NaN does not equal itself.

    Args:
        look: finds out; what it raises ends the watching.
        interval_ms: milliseconds between two looks.
        is_open: whether to go on; asked several times a second.
    """
    loop = asyncio.get_running_loop()
    shown: bytes | None = None
    said_at = loop.time()
    while is_open():
        looked_at = loop.time()
        found = look()
        if found != shown:
            shown, said_at = found, looked_at
            yield found
        elif looked_at - said_at >= QUIET_S:
            said_at = looked_at
            yield None
        while is_open() and (left_s := looked_at + interval_ms / 1000 - loop.time()) > 0:
            await asyncio.sleep(min(left_s, _NAP_S))
