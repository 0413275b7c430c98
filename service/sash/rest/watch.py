"""Answers as server-sent events: the current ones at once, then again whenever they have changed.

    data: {"answers": […]}              as a query's document
    event: problem                      the window is gone, say; then the stream ends
    data: {"detail": …, "reason": …, "field": …}
    :                                   a comment every 15 seconds, so that nobody on the way takes it for dead

Source: the format is the WHATWG's HTML standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson

from sash.calls import changes
from sash.rest.problems import kind_of
from sash_engine.errors import SashError

__all__ = ["MEDIA_TYPE", "events"]

MEDIA_TYPE = "text/event-stream"


async def events(
    look: Callable[[], Awaitable[bytes]], interval_ms: int, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield events until the service closes, or `look` refuses; see `sash.calls.changes`.

    Args:
        look: gets the answers, as JSON.
        interval_ms: milliseconds between two looks.
        closing: is set when the service is about to end.
    """
    try:
        async for found in changes(look, interval_ms, closing):
            yield b":\n\n" if found is None else _data(found)
    except SashError as error:
        document = {"detail": error.message, "reason": kind_of(error).reason(), "field": error.field}
        yield b"event: problem\n" + _data(orjson.dumps(document))


def _data(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
