"""One request of HTTP and its answer: what an app of ASGI receives, and sends.

    parser ──▶ body, part by part ──▶ receive() ──▶ app ──▶ send(), or answer_whole() ──▶ connection

An answer of a few bytes passes as one piece, head and body at once. All answers have the headers by which browsers do
not frame them, run them or guess their types.

Source: the specification of ASGI, 2.3; W3C's Content Security Policy Level 3.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from sash.limits.memory import Reservation, mine
from sash_engine.steps import spans_of
from sash_wire import traces

ANSWERS = "sash.exchange"
"""In the scope of a request: its `Exchange`."""

PART_BYTES = 1 << 18
"""So much of an answer is written in one go. TLS takes 1 ms for a megabyte, and plain connections keep what they do not
send at once."""

STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}

_POLICY = b"content-security-policy"
_HEADERS = b"x-content-type-options: nosniff\r\nx-frame-options: DENY\r\nreferrer-policy: no-referrer\r\n"
_NO_PAGE = _HEADERS + _POLICY + b": default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
"""Of answers that are no pages: nothing in them may be loaded or run."""

_NO_LENGTH = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_BREAKS = re.compile(rb"[\r\n\0]")
_GONE: Message = {"type": "http.disconnect"}
_log = logging.getLogger("sash")


class Whole:
    """A successful answer.

    Args:
        status: of HTTP.
        kind: the media type.
        body: all of it.
        end: what follows it, so that a long body need not be copied.
    """

    __slots__ = ("body", "end", "kind", "status")

    def __init__(self, status: int, kind: bytes, body: bytes, end: bytes = b"") -> None:
        self.status, self.kind, self.body, self.end = status, kind, body, end


class Answers(Protocol):
    """A connection, as an exchange sees it."""

    write_paused: bool

    date: bytes
    """The line that says when an answer was made."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Writes some bytes soon, many of them at once."""

    @property
    def write_now(self) -> Callable[[bytes, bytes], None]:
        """Writes an answer that is whole."""

    async def drained(self) -> None:
        """Wait until the client has read most of what was written."""

    def read_on(self) -> None:
        """Receive more, which somebody waits for."""

    def answered(self, exchange: Exchange) -> None:
        """Note that an answer is complete."""

    def is_next(self, exchange: Exchange) -> bool:
        """Whether all requests before this one are answered."""

    def go_on(self, exchange: Exchange) -> None:
        """Note that the request behind this one may begin."""

    @property
    def break_off(self) -> Callable[[], None]:
        """Closes the connection: an answer cannot be completed."""

    @property
    def is_closing(self) -> Callable[[], bool]:
        """Tells whether nothing can be sent any more."""

    @property
    def unsent_bytes(self) -> Callable[[], int]:
        """Tells how many bytes wait for the client to read them."""


class Exchange:
    """One request and its answer.

    Args:
        connection: that it came on.
        scope: of ASGI.
        keeps: whether the connection stays open behind the answer.
        asks_to_continue: whether the client waits for `100 Continue` before it sends the body.

    Attributes:
        whole: whether all of the body has arrived.
        unread: how many bytes of it the app has not taken yet.
        begun: whether an app has been called.
        started, done: whether the answer has begun, and is complete.
        gone: whether the client has gone.
        more: further headers of the answer, as lines.
        task: that answers it; None where nothing has waited.
        has_place: whether the request is one of the calls in progress.
        may_be_followed: whether the next request of the connection may begin: what this one changes is applied, or its
            answer is made, and it waits for the tier, or for the answers before it.
    """

    __slots__ = (
        *("_asks", "_chunked", "_connection", "_left", "_news", "_parts", "_taken", "_turn"),
        *(
            "begun",
            "done",
            "gone",
            "has_place",
            "keeps",
            "may_be_followed",
            "more",
            "scope",
            "started",
            "task",
            "unread",
            "whole",
        ),
    )

    def __init__(self, connection: Answers, scope: dict[str, Any], keeps: bool, asks_to_continue: bool) -> None:
        self._connection = connection
        self.scope = scope
        self.keeps = keeps
        self._asks = asks_to_continue
        self._parts: list[bytes] = []
        self._news: asyncio.Event | None = None
        self._chunked, self._left = False, 0
        self._taken = self.whole = self.begun = self.started = self.done = self.gone = False
        self.has_place = self.may_be_followed = False
        self.unread = 0
        self.more = b""
        self.task: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[None] | None = None
        scope[ANSWERS] = self

    # ---------------------------------------------------------------- the request

    def feed(self, part: bytes) -> None:
        """A part of the body has arrived."""
        if not self.done:
            self._parts.append(part)
            self.unread += len(part)
            if self._news is not None:
                self._news.set()

    def complete(self) -> None:
        """The whole body has arrived."""
        self.whole = True
        if self._news is not None:
            self._news.set()

    def leave(self) -> None:
        """The client has gone: nobody reads the answer, so nothing is done for it any more. A write goes on."""
        self.gone = True
        self._parts, self.unread = [], 0
        if not self.begun:
            self.scope.pop(ANSWERS, None)  # it is a circle
        if self.task is not None:
            self.task.cancel()
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        """The next part of the body; behind the last one, that the client has gone, or has its answer."""
        connection = self._connection
        if self._asks and connection.is_next(self) and not connection.is_closing():
            self._asks = False
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.gone or self.done):
            if self._parts or (self.whole and not self._taken):
                parts, self._parts, self.unread = self._parts, [], 0
                self._taken = self.whole
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                return {"type": "http.request", "body": body, "more_body": not self.whole}
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            connection.read_on()
            await self._news.wait()
        return _GONE

    # ---------------------------------------------------------------- the requests before and behind it

    def let_follow(self) -> None:
        """Let the next request of the connection begin."""
        if self.keeps and not self.may_be_followed:
            self.may_be_followed = True
            self._connection.go_on(self)

    async def _until_next(self) -> None:
        """Wait until the answers to the requests before it are complete."""
        if not self._connection.is_next(self) and not self.gone:
            self._turn = asyncio.get_running_loop().create_future()
            if self.has_place:  # of those without one, nobody bounds how many there are
                self.let_follow()
            await self._turn

    def be_next(self) -> None:
        """Note that the answers before it are complete."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    # ---------------------------------------------------------------- the answer

    async def run(self, app: ASGIApp) -> None:
        """Have an app answer."""
        try:
            await app(self.scope, self.receive, self.send)
            error = None if self.done or self.gone else RuntimeError("the answer is not complete")
        except BaseException as raised:
            error = None if self.gone and isinstance(raised, asyncio.CancelledError) else raised  # type: ignore[assignment]
        # The collector of garbage, which would find these circles, does not look. A task's call knows its exchange.
        del self.scope[ANSWERS]
        self.task = None
        if error is None:
            return
        _log.error("%s %s failed", self.scope["method"], self.scope["path"], exc_info=error)
        if self.started:
            self._connection.break_off()
        else:
            self.keeps = False
            body = b"Internal Server Error"
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})

    async def send(self, message: Any) -> None:
        """Send the head of the answer, or a part of its body."""
        connection = self._connection
        await self._until_next()
        if connection.write_paused and not self.gone:
            await connection.drained()
        if self.gone:
            return
        if not self.started:
            self._start(message["status"], message.get("headers", ()))
            return
        if self.done:
            raise RuntimeError("the answer is complete already")
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        else:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer is not as long as its Content-Length")
        if body:
            connection.write(body)
        if not more:
            self._end()

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.started, self._asks = True, False
        lines, kept, length = [STATUS_LINES[status], self._connection.date], _NO_PAGE, None
        for name, value in headers:
            if _BREAKS.search(value):
                raise RuntimeError(f"the header {name!r} has a line break")
            if name == b"connection":
                self.keeps = self.keeps and value != b"close"
                continue
            if name == b"content-length":
                length = int(value)
            elif name == _POLICY:
                kept = _HEADERS
            lines.append(b"%b: %b\r\n" % (name, value))
        lines += kept, self.more
        if not self.keeps:
            lines.append(b"connection: close\r\n")
        self._left = length or 0
        if length is None and self.scope["method"] != "HEAD" and status not in _NO_LENGTH:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._connection.write(b"".join(lines))

    def small_body(self, bytes_max: int) -> bytes | None:
        """All of the body, if it has arrived and has no more than some bytes; `receive` brings it all the same."""
        if not self.whole or self.unread > bytes_max or self._taken:
            return None
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def answer_now(self, answer: Whole) -> bool:
        """Answer in one piece; False where `answer_whole` must do it: it waits, or sends messages of ASGI."""
        if self._connection.write_paused or self.gone or len(answer.body) > PART_BYTES:
            return False
        if not self._connection.is_next(self):
            return False
        if traces.tracer is not None or self.scope["method"] == "HEAD":
            return False
        self._write_first(answer)
        self._end()
        return True

    async def answer(self, answer: Whole) -> None:
        """Answer in large pieces, as the client reads them."""
        connection, body = self._connection, answer.body
        await self._until_next()
        if connection.write_paused and not self.gone:
            await connection.drained()
        if self.gone:
            return
        self._write_first(answer)
        if len(body) > PART_BYTES and (reserved := mine()) is not None:
            reserved.keep(len(body))
        for a in range(PART_BYTES, len(body), PART_BYTES):
            await (connection.drained() if connection.write_paused else asyncio.sleep(0))
            if self.gone:
                return
            connection.write(body[a : a + PART_BYTES])
        if len(body) > PART_BYTES and answer.end:
            connection.write(answer.end)
        self._end()

    def _write_first(self, answer: Whole) -> None:
        assert not self.started
        connection, body = self._connection, answer.body
        self.started, self._asks = True, False
        end = b"\r\n\r\n" if self.keeps else b"\r\nconnection: close\r\n\r\n"
        status, date, size = STATUS_LINES[answer.status], connection.date, len(body) + len(answer.end)
        lines = b"%b%b%b%bcontent-type: %b\r\ncontent-length: %d%b"
        head = lines % (status, date, _NO_PAGE, self.more, answer.kind, size, end)
        connection.write_now(head, body + answer.end if len(body) <= PART_BYTES else body[:PART_BYTES])

    async def until_read(self, reserved: Reservation) -> None:
        """Wait until the client has read most of an answer that takes memory."""
        reserved.keep(self._connection.unsent_bytes())
        if self._connection.write_paused:
            await self._connection.drained()

    def _end(self) -> None:
        self.done = True
        self._parts, self.unread = [], 0
        if self._news is not None:
            self._news.set()
        self._connection.answered(self)


async def answer_whole(scope: Mapping[str, Any], send: Callable[[Any], Awaitable[None]], answer: Whole) -> None:
    """Answer a request: in one piece, unless spans are made of what is sent."""
    exchange: Exchange | None = scope.get(ANSWERS)
    if exchange is not None and exchange.answer_now(answer):
        return
    if exchange is not None and traces.tracer is None and scope["method"] != "HEAD":
        await exchange.answer(answer)
        return
    headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % (len(answer.body) + len(answer.end)))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for a, b in spans_of(len(answer.body), PART_BYTES):
        await send({"type": "http.response.body", "body": answer.body[a:b], "more_body": True})
    await send({"type": "http.response.body", "body": answer.end, "more_body": False})


async def until_read(scope: Mapping[str, Any], reserved: Reservation) -> None:
    """Wait until the client has read most of an answer that takes memory."""
    exchange = scope.get(ANSWERS)
    if reserved.held and exchange is not None:
        await exchange.until_read(reserved)
