"""Answers as server-sent events: the current ones at once, then again whenever they have changed.

    data: {"answers": […]}              as a query's document
    event: problem                      the window is gone, say; then the stream ends
    data: {"detail": …, "field": …}
    :                                   a comment every 15 seconds, so that nobody on the way takes it for dead

The service looks every so often instead of being told by every write, so that a write costs the same however many
are watching, and a burst of writes is one event.

Source: the format is the WHATWG's HTML standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import orjson

from sash.errors import SashError
from sash.rest.answers import answer_document
from sash.windows.answers import Answer

__all__ = ["INTERVAL_MS", "INTERVAL_MS_MAX", "INTERVAL_MS_MIN", "MEDIA_TYPE", "events"]

MEDIA_TYPE = "text/event-stream"
INTERVAL_MS, INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1000, 50, 3_600_000
_SIGN_OF_LIFE_S = 15.0
# How soon a stream ends when the service shuts down.
_NAP_S = 0.25


async def events(
    ask: Callable[[], Sequence[Answer]], interval_ms: int, is_open: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield events until `is_open` says no, or `ask` refuses.

    Args:
        ask: gets the answers; called every `interval_ms`.
        interval_ms: milliseconds between two looks.
        is_open: whether to go on; asked several times a second.
    """
    loop = asyncio.get_running_loop()
    shown, said_at = b"", loop.time()
    while is_open():
        looked_at = loop.time()
        try:
            found = orjson.dumps({"answers": [answer_document(answer) for answer in ask()]})
        except SashError as error:
            yield b"event: problem\n" + _data(orjson.dumps({"detail": error.message, "field": error.field}))
            return
        if found != shown:
            shown, said_at = found, looked_at
            yield _data(found)
        elif looked_at - said_at >= _SIGN_OF_LIFE_S:
            said_at = looked_at
            yield b":\n\n"
        while is_open() and (left_s := looked_at + interval_ms / 1000 - loop.time()) > 0:
            await asyncio.sleep(min(left_s, _NAP_S))


def _data(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
