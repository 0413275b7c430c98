"""Answers of small calls in one piece: most of them are `200 OK`, a media type and a short body.

    app ──▶ answer_whole ──▶ head and body, made at once ──▶ transport      where the server has offered it
                  └────────▶ two messages of ASGI ──▶ Guard ──▶ uvicorn     else: traces, origins, HEAD

As messages of ASGI, an answer passes two coroutines of each layer, and uvicorn checks each of eight headers by regular
expressions. That is a fifth of what an insert takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sash.limits.memory import Reservation, mine
from sash.rest.joined import Joined
from sash_engine.steps import spans_of

__all__ = ["OFFER", "STATUS_LINES", "Whole", "answer_whole", "head_of", "offer", "until_read", "withdraw"]

OFFER = "sash.answer_whole"
"""In the scope of a request: what sends an answer in one piece."""

FLOW = "sash.flow"
"""In the scope of a request: uvicorn's flow control of its connection."""

STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


PART_BYTES = 1 << 18
"""So much of an answer is written in one go. TLS takes 1 ms for a megabyte, and plain connections keep what they do not
send at once."""


class Whole:
    """A successful answer.

    Args:
        status: of HTTP.
        kind: the media type.
        body: all of it.
    """

    __slots__ = ("body", "kind", "status")

    def __init__(self, status: int, kind: bytes, body: bytes) -> None:
        self.status, self.kind, self.body = status, kind, body


def head_of(defaults: Iterable[tuple[bytes, bytes]], headers: bytes, kind: bytes) -> bytes:
    """The head of an answer, between its status line and the number of bytes of its body.

    Args:
        defaults, headers: headers that every answer has, some as lines.
        kind: the media type.
    """
    lines = b"".join(b"%b: %b\r\n" % header for header in defaults)
    return b"%b%bcontent-type: %b\r\ncontent-length: " % (lines, headers, kind)


def offer(scope: Any, cycle: RequestResponseCycle, headers: bytes) -> None:
    """Let the app answer in one piece.

    Args:
        scope: of the request.
        cycle: uvicorn's, of the request.
        headers: what every answer has, as lines.
    """
    scope[OFFER] = partial(_answer, cycle, headers)
    scope[FLOW] = cycle.flow


async def until_read(scope: Any, reserved: Reservation) -> None:
    """Wait until the caller has read most of an answer that takes memory."""
    flow = scope.get(FLOW)
    if reserved.held and flow is not None:
        reserved.keep(flow._transport.get_write_buffer_size())
        if flow.write_paused:
            await flow.drain()


def withdraw(scope: Any) -> None:
    """Have answers pass the layers between, because they change them."""
    scope.pop(OFFER, None)


async def answer_whole(scope: Mapping[str, Any], send: Callable[[Any], Awaitable[None]], answer: Whole) -> None:
    """Answer a request."""
    whole = scope.get(OFFER)
    if whole is not None:
        await whole(answer)
        return
    headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for a, b in spans_of(len(answer.body), PART_BYTES):
        await send({"type": "http.response.body", "body": answer.body[a:b], "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(cycle: RequestResponseCycle, headers: bytes, answer: Whole) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    assert not cycle.response_started
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    head = STATUS_LINES[answer.status] + head_of(cycle.default_headers, headers, answer.kind)
    end = b"%d\r\n\r\n" if cycle.keep_alive else b"%d\r\nconnection: close\r\n\r\n"
    transport: Any = cycle.transport
    assert isinstance(transport, Joined)
    body = answer.body
    transport.write_now(head + end % len(body), body if len(body) <= PART_BYTES else body[:PART_BYTES])
    if len(body) > PART_BYTES:
        if (reserved := mine()) is not None:
            reserved.keep(len(body))
        for a in range(PART_BYTES, len(body), PART_BYTES):
            await (cycle.flow.drain() if cycle.flow.write_paused else asyncio.sleep(0))
            if cycle.disconnected:
                return
            transport.write(body[a : a + PART_BYTES])
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        transport.close()
    cycle.on_response()
