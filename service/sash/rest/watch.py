"""Answers as server-sent events: the current ones at once, then again whenever they have changed.

    data: {"answers": […]}              as a query's document
    event: problem                      the window is gone, say; then the stream ends
    data: {"detail": …, "reason": …, "field": …, "request_id": …}
    :                                   a comment every 15 seconds, so that nobody on the way takes it for dead

Source: the format is the WHATWG's HTML standard, "Server-sent events".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import orjson

from sash.context import request_id
from sash.rest.problems import kind_of
from sash_engine.errors import SashError

MEDIA_TYPE = "text/event-stream"


async def events(changes: AsyncGenerator[bytes | None, None]) -> AsyncIterator[bytes]:
    """Yield events until there are no more changes, or the question is refused.

    Args:
        changes: answers as JSON, or None as a sign of life; see `sash.limits.watches.Watches.changes`.
    """
    try:
        async with aclosing(changes):
            async for found in changes:
                yield b":\n\n" if found is None else _data(found)
    except SashError as error:
        document = {"detail": error.message, "reason": kind_of(error).reason(), "field": error.field}
        document["request_id"] = request_id()
        yield b"event: problem\n" + _data(orjson.dumps(document))


def _data(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
