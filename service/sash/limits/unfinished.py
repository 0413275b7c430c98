"""Writes that go on when whoever waited for them has gone: what they take is theirs until they are over.

    call    place, memory ── write ── cancelled ╴╴╴╴╴╴╴╴╴╴╴╴╴╴╴ place, memory given back
    write                    └────────────────────────────────── over

Else a caller who sends bulks and calls them off has as many under way as it likes, and nobody counts their memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

__all__ = ["goes_on", "is_going_on", "when_over"]

_write: ContextVar[asyncio.Future[Any] | None] = ContextVar("write", default=None)


def goes_on(write: asyncio.Future[Any]) -> None:
    """Note that a write of this call goes on when the call ends."""
    _write.set(write)


def is_going_on() -> bool:
    """Whether a write of this call goes on."""
    write = _write.get()
    return write is not None and not write.done()


def when_over(end: Callable[[], None]) -> None:
    """Call something at the end of a call: now, or when the call's write is over."""
    write = _write.get()
    if write is None or write.done():
        end()
    else:
        write.add_done_callback(lambda _: end())
