"""One connection of the HTTP port: a protocol of asyncio over the parser httptools, and its limits.

    receiving   IDLE ──▶ HEAD ──▶ BODY ──▶ IDLE …              DEAF: what still arrives is dropped
                          │        ├ of a request that is refused by its head: dropped, part by part, in turns
                          │        └ stalled, or slower than 16 KiB/s: 408; 64 KiB of it that are no content: 400
                          └ longer than 64 KiB: 431; not whole in time: 408; neither HTTP/1.0 nor HTTP/1.1: 505
    exchanges   [is answered] [waits] …                        what follows is parsed when one of them is answered
                 └ nothing read for a minute: closed

    pipelined   [waits for the tier] [waits for the tier] [its answer is made] [begins] …      up to 64: one commit

What arrives is parsed in small parts, and the rest of a body of known length in one: 256 KiB may have 10,000 requests,
and each that waits takes kilobytes. A small request that has arrived whole is answered while it is parsed, if its app
says that the answer may begin without a task. All others have a task from their heads on. It runs the same coroutine.

A request begins when the one before it is answered; or when that one is applied, and waits only for the tier, or for
the answers before its own. So requests are applied and answered in their order, and those that one client sends without
waiting share a commit, as those of many clients do.

A refusal of what arrives is sent behind the answers to the requests before it. Slow clients are looked for once a
second, so that others pay for no timers. A client is not slow while the service itself does not read.

    exchange    parser ──▶ body, part by part ──▶ receive() ──▶ app ──▶ answer(), or send() ──▶ written, joined

An app of ASGI sends the head of an answer and its body one by one. Each would be a system call, a packet, and with TLS
an encrypted record: a small answer took 20 to 60 µs more, and its client woke up twice. So what is written in one
iteration of the event loop is one write. All answers have the headers by which browsers do not frame them, run them or
guess their types.

Source: the specification of ASGI, 2.3; W3C's Content Security Policy Level 3.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from sash.access.tls import CERTIFIED, names_in
from sash.calls import resumed
from sash.limits.connections import SPARE_S, Connections, Place
from sash.limits.memory import Reservation, mine
from sash.limits.turns import Turns
from sash.rest.problems import of_status
from sash.runtime.metrics import Metrics

HEAD_BYTES_MAX = 65_536
PART_BYTES = 4096
"""So much is parsed in one go of what is not the body of one request."""

BYTES_PER_S_MIN = 16_384
UNREAD_S = 60.0
"""For so long a client may read nothing of an answer."""

PIPELINED_MAX = 64
"""So many requests of one connection are begun and not answered."""

SMALL_BYTES = 65_536
"""Larger bodies need memory that is set aside: their requests have a task. So much of a body is held for an app."""

JOINED_BYTES_MAX = 65_536
"""Writes are joined up to this size. What is larger is not copied, and pauses its writer when the client is slow."""

ANSWER_BYTES = 1 << 18
"""So much of an answer is written in one go. TLS takes 1 ms for a megabyte, and plain connections keep what they do not
send at once."""

DROPPED_S = 0.001
"""What it takes to read what has arrived of a body that nobody wants, about: half a megabyte with TLS."""

ANSWERS = "sash.exchange"
"""In the scope of a request: its `Exchange`."""

LIMIT = "sash.limit"
"""In the scope of a request: the limit that its connection is beyond."""

FORWARDED = "sash.forwarded"
"""In the scope of a request: whether a proxy says where it comes from."""

_WATCHES = "/watch", "/Watch"
"""How the paths of calls end whose answers have no end."""

_INVALID = HTTPStatus.BAD_REQUEST, "this is no valid HTTP/1.1"
_HEAD_TOO_LONG = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head may have {HEAD_BYTES_MAX // 1024} KiB"
_OTHER_VERSION = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 and HTTP/1.0 are spoken here"
_FRAMING = HTTPStatus.BAD_REQUEST, "the body has trailers or extensions of chunks that are too long"
_PROXY = b"x-forwarded-for", b"x-forwarded-proto"

_STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}
_POLICY = b"content-security-policy"
_HEADERS = b"x-content-type-options: nosniff\r\nx-frame-options: DENY\r\nreferrer-policy: no-referrer\r\n"
_NO_PAGE = _HEADERS + _POLICY + b": default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
"""Of answers that are no pages: nothing in them may be loaded or run."""

_NO_LENGTH = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_FRAGMENT = ord("#")
_BREAKS = re.compile(rb"[\r\n\0]")
_DISCONNECT: Message = {"type": "http.disconnect"}
_log = logging.getLogger("sash")


@dataclass(eq=False)
class Port:
    """What all connections of one server share.

    Attributes:
        app: answers their requests.
        forwarded: the same, for requests of which a proxy says where they come from.
        at_once: whether the answer to a request may begin without a task.
        places: how many connections there may be.
        turns: of all that the loop does.
        timeout_s: how long a head, or a part of a body, may take.
        idle_s: how long a connection may be idle.
        metrics: counts refusals.
        open: connections.
        tasks: those that answer.
        now_s: when it was looked for slow clients last: a clock that costs nothing, and is a second late at most.
        date: the line of answers with the date.
    """

    app: ASGIApp
    forwarded: ASGIApp
    at_once: Callable[[dict[str, Any]], bool]
    places: Connections
    turns: Turns
    timeout_s: float
    idle_s: float
    metrics: Metrics
    open: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    now_s: float = 0.0
    date: bytes = b""

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of answers wait for clients to read them."""
        return sum(each.unsent_bytes() for each in self.open)

    def refused(self, status: HTTPStatus) -> None:
        """Count a refusal."""
        self.metrics.count_rejected("rest", str(int(status)))

    def sweep(self, now_s: float) -> None:
        """Close the connections of slow clients; to be called about once a second."""
        self.now_s = now_s
        for connection in list(self.open):
            connection.look(now_s)


class _Gone(asyncio.Transport):
    """Stands for a transport that is not there yet, or is closed: one for TLS takes a quarter of a megabyte."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        pass

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


_GONE = _Gone()


class Receiving(Enum):
    """What a connection receives."""

    IDLE = "nothing: no request has begun"
    HEAD = "the head of a request"
    BODY = "the body of the newest exchange"
    DEAF = "nothing yet, or nothing any more: what arrives is dropped"


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        port: what it shares with the others.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self.date = port.date
        """The line of answers with the date."""
        self._loop = asyncio.get_running_loop()
        self._parser: Any = None
        self._transport: asyncio.Transport = _GONE
        self._joined = bytearray()
        """What is written at the end of this iteration of the loop."""
        self._place: Place | None = None
        self._base: dict[str, Any] = {}
        """What the scopes of all requests have."""
        self._tls = False
        self._receiving = Receiving.DEAF
        self._exchanges: deque[Exchange] = deque()
        """Those that are not answered. The first one is being answered."""
        self._newest: Exchange | None = None
        """The one whose body arrives, or arrived last."""
        self._waiting = b""
        """What has arrived, and is not parsed yet."""
        self._is_parsing = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._asks_to_continue = self._is_forwarded = False
        self._head_bytes = self._body_bytes = self._body_left = self._framing_bytes = 0
        """Of the head; of the body; of a body of known length that are to come; since there was content."""
        self._has_content = False
        self._refusal = _INVALID
        """Of what the parser does not read on."""
        self._last = b""
        """What is sent behind the answers to all requests, before the connection is closed."""
        self._no_more = False
        """Whether the client sends no more."""
        self._since_s = self._heard_s = self._looked_s = port.now_s
        self._unsent, self._unsent_since_s = 0, 0.0
        self._read_paused = self.write_paused = False
        self._readable = asyncio.Event()

    # ---------------------------------------------------------------- life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        address = peer[0] if peer else ""
        place = self._port.places.admit(address)
        if place is not None:
            self.begin(transport, place)
            return
        self._port.refused(HTTPStatus.SERVICE_UNAVAILABLE)
        detail = f"there are too many connections ({self._port.places.limit(address)})"
        transport.write(_raw(HTTPStatus.SERVICE_UNAVAILABLE, detail, self.date))
        transport.close()

    def begin(self, transport: asyncio.Transport, place: Place) -> None:
        """Serve a connection, which is encrypted now where it is to be."""
        self._place = place
        self._parser = httptools.HttpRequestParser(self)
        # Else the parser takes what follows a request with `Connection: close` for a part of it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._receiving = Receiving.IDLE  # a handshake that gave way may have read something already
        self._port.places.begun(place, self._give_way)
        self._transport = transport
        self._port.open.add(self)
        secured = transport.get_extra_info("ssl_object")
        self._tls = secured is not None
        self._base = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if self._tls else "http",
            "root_path": "",
            CERTIFIED: names_in(secured.getpeercert() or {}) if secured is not None else [],
            LIMIT: place.limit,
        }

    def connection_lost(self, exc: Exception | None) -> None:
        if self._place is None:
            return  # it has not begun
        self._port.open.discard(self)
        self._port.places.leave(self._place)
        self._waiting, self._receiving = b"", Receiving.DEAF
        for exchange in self._exchanges:
            exchange.leave()
        self._exchanges.clear()
        self._newest = self._parser = None  # the collector of garbage, which would find the circles, does not look
        self.resume_writing()
        self.break_off()
        self._transport = _GONE  # a write of this connection may go on, and knows it

    def eof_received(self) -> bool:
        """Answer what has arrived, although the client sends no more. TLS closes, whatever this returns."""
        if self._tls or not self._exchanges or self._exchanges[0].scope["path"].endswith(_WATCHES):
            return False  # the answer of a watch ends when the client goes
        if self._receiving is Receiving.BODY:
            if self._newest is not self._exchanges[-1] or len(self._exchanges) == 1:
                return False
            self._exchanges.pop().leave()  # it has not begun
            self._receiving = Receiving.IDLE
        self._no_more = True
        return True

    def shutdown(self) -> None:
        """End the connection when its answers are complete, because the service ends."""
        if self._exchanges:
            self._exchanges[-1].keeps = False
        elif self._tls and not self.unsent_bytes():
            self._transport.abort()  # an idle client need not read, and TLS would wait for its word
        else:
            self.break_off()

    # ---------------------------------------------------------------- receiving

    def data_received(self, data: bytes) -> None:
        if self._receiving is Receiving.DEAF:
            return
        self._waiting = self._waiting + data if self._waiting else data
        self._parse()
        if self._receiving is Receiving.BODY and cast("Exchange", self._newest).done:
            self._drop_in_turns()

    def _parse(self) -> None:
        """Parse what has arrived, until a request waits for the one before it."""
        data, at, size = self._waiting, 0, len(self._waiting)
        self._is_parsing = True
        while at < size and self._may_parse() and self._receiving is not Receiving.DEAF and not self.is_closing():
            known = self._body_left if self._receiving is Receiving.BODY else 0
            end = min(at + max(known, PART_BYTES), size)
            part = data if end - at == size else data[at:end]
            at = end
            before, self._has_content = self._receiving, False
            self._heard_s = self._port.now_s
            self._body_bytes += len(part)
            try:
                self._parser.feed_data(part)
            except httptools.HttpParserUpgrade:
                # The parser ends here. Where a proxy sees a body, it must not see another request.
                self._receiving = Receiving.DEAF
            except httptools.HttpParserError:
                self._refuse(*self._refusal)
            else:
                if self._receiving is not Receiving.IDLE:
                    self._check_sizes(before, len(part))
        self._is_parsing = False
        self._waiting = b"" if self._receiving is Receiving.DEAF else data[at:]
        self._settle()

    def _may_parse(self) -> bool:
        """Whether there is room for what follows: one request may wait for the one before it."""
        exchanges = self._exchanges
        if len(exchanges) < 2:
            return True
        if len(exchanges) > PIPELINED_MAX:
            return False
        last = exchanges[-2] if self._receiving is Receiving.BODY else exchanges[-1]
        return last.may_be_followed

    def _check_sizes(self, before: Receiving, size: int) -> None:
        """Begin a request whose body has not arrived whole; refuse a head, and what frames a body, that is too long.

        Args:
            before: what was received before the last part.
            size: of the part.
        """
        if self._receiving is Receiving.BODY:
            if self._exchanges and not self._exchanges[0].begun:
                self._begin(self._exchanges[0], in_task=True)
            self._framing_bytes = 0 if self._has_content else self._framing_bytes + size
            if self._framing_bytes > HEAD_BYTES_MAX:
                self._refuse(*_FRAMING)
        elif self._receiving is Receiving.HEAD and before is Receiving.HEAD:
            self._head_bytes += size
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(*_HEAD_TOO_LONG)

    def _settle(self) -> None:
        """Pause or read on, and close where nothing can follow."""
        if self._exchanges or self._read_paused or self._waiting or self._last or self._no_more:
            self._pause_or_read()
            self._end_when_answered()

    def _pause_or_read(self) -> None:
        """Receive no more while what has arrived cannot be taken."""
        newest = self._newest
        is_full = newest is not None and newest.unread > SMALL_BYTES
        pause = bool(self._waiting or self._last or is_full or not self._may_parse())
        if pause != self._read_paused and not self.is_closing():
            self._read_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _drop_in_turns(self) -> None:
        """Receive more of a body that nobody wants when it is the client's turn."""
        if self._read_paused or self.is_closing():
            return
        assert self._place is not None
        turn = self._port.turns.goes_on(self._place.address, DROPPED_S)
        if turn is not None:
            self._read_paused = True
            self._transport.pause_reading()
            turn.add_done_callback(lambda _: self.read_on())

    def read_on(self) -> None:
        """Receive more, which somebody waits for: a part of a body, or that the client goes."""
        if self._read_paused and not (self._last or self.is_closing()):
            self._read_paused = False
            self._transport.resume_reading()

    # What is raised in the methods that the parser calls ends the connection with `_refusal`.

    def on_message_begin(self) -> None:
        self._receiving, self._since_s, self._head_bytes = Receiving.HEAD, self._heard_s, 0
        self._url, self._headers, self._body_left = b"", [], 0
        self._asks_to_continue = self._is_forwarded = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._receiving is Receiving.BODY:
            return  # it is a trailer, which nobody reads
        name, value = name.lower(), value.rstrip(b" \t")  # the parser leaves it in front only
        if name == b"content-length":
            self._body_left = int(value)
        elif name == b"expect":
            self._asks_to_continue = value.lower() == b"100-continue"
        elif name in _PROXY:
            self._is_forwarded = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        url, headers, parser = self._url, self._headers, self._parser
        # A head that came in one part is short enough.
        if self._head_bytes and len(url) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES_MAX:
            self._refusal = _HEAD_TOO_LONG
            raise ValueError("the head is too long")
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refusal = _OTHER_VERSION
            raise ValueError("another version of HTTP")
        raw_path, _, query = url.partition(b"?")
        if _FRAGMENT in url or not url.startswith(b"/"):
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path, parsed.query or b""
        path = raw_path.decode("ascii")
        scope = {
            **self._base,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            FORWARDED: self._is_forwarded,
        }
        keeps = version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        self._newest = Exchange(self, scope, keeps, self._asks_to_continue)
        self._exchanges.append(self._newest)
        self._receiving, self._since_s, self._body_bytes, self._framing_bytes = Receiving.BODY, self._heard_s, 0, 0

    def on_body(self, body: bytes) -> None:
        assert self._newest is not None
        self._has_content = True
        self._body_left -= len(body)
        self._newest.feed(body)

    def on_message_complete(self) -> None:
        assert self._newest is not None
        self._receiving = Receiving.IDLE
        exchange = self._newest
        exchange.complete()
        before = self._exchanges[-2] if len(self._exchanges) > 1 else None
        if not exchange.begun and (before is None or (before.begun and before.may_be_followed)):
            self._begin(exchange)

    # ---------------------------------------------------------------- answering

    def _begin_next(self) -> None:
        """Begin the requests that have arrived and wait for nothing before them."""
        may = True
        for exchange in list(self._exchanges):
            if not exchange.begun:
                if not (may and exchange.whole):
                    return
                self._begin(exchange)
            may = exchange.may_be_followed

    def is_next(self, exchange: Exchange) -> bool:
        """Whether all requests before this one are answered."""
        return not self._exchanges or self._exchanges[0] is exchange

    def go_on(self, exchange: Exchange) -> None:
        """Note that the request behind this one may begin."""
        if not self._is_parsing:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.is_closing() or self._is_parsing:
            return
        self._begin_next()
        if self._waiting:
            self._parse()
        else:
            self._settle()

    def _begin(self, exchange: Exchange, in_task: bool = False) -> None:
        """Have a request answered: now, as far as that needs no task. One that has not arrived whole needs it."""
        exchange.begun, context, port = True, None, self._port
        if in_task or not self._may_begin_at_once(exchange):
            work = exchange.run(port.forwarded if exchange.scope[FORWARDED] else port.app)
        else:
            begun, context = exchange.run(port.app), copy_context()
            try:
                work = resumed(begun, context.run(begun.send, None))
            except StopIteration:
                return
        exchange.task = self._loop.create_task(work, context=context)
        port.tasks.add(exchange.task)
        exchange.task.add_done_callback(port.tasks.discard)

    def _may_begin_at_once(self, exchange: Exchange) -> bool:
        return not self.write_paused and exchange.unread <= SMALL_BYTES and self._port.at_once(exchange.scope)

    def answered(self, exchange: Exchange) -> None:
        """Go on behind an answer that is complete."""
        if not self._exchanges or self._exchanges[0] is not exchange:
            return
        self._exchanges.popleft()
        self._since_s = self._port.now_s
        if not exchange.keeps:
            self.break_off()
        if self.is_closing():
            return
        if self._exchanges:
            following = self._exchanges[0]
            if following.begun:
                following.be_next()
            else:
                self._begin(following, in_task=True)  # at once, 64 of them would be frames of one another
        if self._waiting and not self._is_parsing:
            self._loop.call_soon(self._parse)
        elif not self._is_parsing:
            self._settle()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._readable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._readable.set()

    async def drained(self) -> None:
        """Wait until the client has read most of what was written."""
        await self._readable.wait()

    # ---------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Write some bytes at the end of this iteration of the loop; many of them at once."""
        if len(self._joined) + len(data) > JOINED_BYTES_MAX:
            self._flush()
            self._send(data)
            return
        if not self._joined:
            self._loop.call_soon(self._flush)
        self._joined += data

    def write_now(self, head: bytes, body: bytes) -> None:
        """Write an answer that is whole."""
        if self._joined:
            self._flush()
        if len(body) <= JOINED_BYTES_MAX:
            self._send(head + body)
        else:
            self._send(head)
            self._send(body)

    def _flush(self) -> None:
        if self._joined:
            joined, self._joined = self._joined, bytearray()
            self._send(joined)

    def _send(self, data: bytes | bytearray) -> None:
        if not self._transport.is_closing():  # uvloop raises for a closed one
            self._transport.write(data)

    def break_off(self) -> None:
        """Close the connection behind what has been written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def unsent_bytes(self) -> int:
        """How many bytes wait for the client to read them."""
        return self._transport.get_write_buffer_size() + len(self._joined)

    # ---------------------------------------------------------------- refusals and ends

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Refuse what is being received, behind the answers to the requests before it, and close."""
        if self._receiving is Receiving.DEAF or self.is_closing():
            return
        arriving = self._newest if self._receiving is Receiving.BODY else None
        current = self._exchanges[0] if self._exchanges else None
        self._waiting, self._receiving = b"", Receiving.DEAF
        self._port.refused(status)
        answer = _raw(status, detail, self.date)
        if arriving is not None and (arriving.done or arriving is current):
            if not arriving.status:
                self.write(answer)
            self.break_off()
        elif current is None:
            self.write(answer)
            self.break_off()
        else:
            if arriving is not None:
                self._exchanges.pop().leave()  # it has not begun
            self._last = answer
            self._pause_or_read()

    def _end_when_answered(self) -> None:
        """Close once all requests are answered, where nothing can follow."""
        nothing_follows = self._last or (self._no_more and not self._waiting)
        if nothing_follows and not (self._exchanges or self.is_closing()):
            self.write(self._last)
            self.break_off()

    def _give_way(self) -> bool:
        """Close the connection at once where no request is under way; return whether that is so."""
        is_idle = not (self._exchanges or self._receiving is Receiving.BODY or self.unsent_bytes())
        if is_idle or self.is_closing():
            self._transport.abort()
            return True
        return False

    # ---------------------------------------------------------------- slow clients

    def look(self, now_s: float) -> None:
        """Close the connection if its client is too slow."""
        assert self._place is not None
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        self.date = self._port.date
        unsent = self.unsent_bytes()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since_s = unsent, now_s
        elif now_s - self._unsent_since_s > UNREAD_S:
            self._transport.abort()  # also where it is to be closed once all has been sent
            return
        if self.is_closing():
            return
        if self._receiving is Receiving.DEAF or self._no_more:
            return
        timeout_s, is_spare = self._port.timeout_s, self._place.limit is not None
        if self._read_paused:
            self._since_s += passed_s
            self._heard_s = now_s
        elif self._receiving is Receiving.HEAD:
            if now_s - self._since_s > (SPARE_S if is_spare else timeout_s):
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the head did not arrive in time")
        elif self._receiving is Receiving.IDLE:
            idle_s = now_s - max(self._heard_s, self._since_s)
            if not self._exchanges and idle_s > (SPARE_S if is_spare else self._port.idle_s):
                self.break_off()
        elif cast("Exchange", self._newest).done:
            if now_s - self._since_s > timeout_s:
                self.break_off()  # it was refused by its head, and its body does not end
        elif now_s - max(self._heard_s, self._since_s) > timeout_s:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no part of the body arrived for {timeout_s:g} s")
        elif now_s - self._since_s > timeout_s + self._body_bytes / BYTES_PER_S_MIN:
            slow = f"the body arrives at less than {BYTES_PER_S_MIN // 1024} KiB a second"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, slow)


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

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request, as an app of ASGI."""
        exchange: Exchange | None = scope.get(ANSWERS)
        if exchange is not None:
            return exchange.answer(self)
        response = Response(self.body + self.end, self.status, {"content-type": self.kind.decode()})
        return response(scope, receive, send)


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
        status: of the answer; 0 where it has not begun.
        done: whether the answer is complete.
        gone: whether the client has gone.
        more: further headers of the answer, as lines.
        task: that answers it; None where nothing has waited.
        has_place: whether the request is one of the calls in progress.
        may_be_followed: whether the next request of the connection may begin: what this one changes is applied, or its
            answer is made, and it waits for the tier, or for the answers before it.
    """

    __slots__ = (
        *("_asks", "_chunked", "_connection", "_left", "_news", "_parts", "_taken", "_turn", "begun", "done", "gone"),
        *("has_place", "keeps", "may_be_followed", "more", "scope", "status", "task", "unread", "whole"),
    )

    def __init__(self, connection: Connection, scope: dict[str, Any], keeps: bool, asks_to_continue: bool) -> None:
        self._connection = connection
        self.scope = scope
        self.keeps = keeps
        self._asks = asks_to_continue
        self._parts: list[bytes] = []
        self._news: asyncio.Event | None = None
        self._chunked, self._left = False, 0
        self._taken = self.whole = self.begun = self.done = self.gone = False
        self.has_place = self.may_be_followed = False
        self.unread = self.status = 0
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

    def small_body(self, bytes_max: int) -> bytes | None:
        """All of the body, if it has arrived and has no more than some bytes; `receive` brings it all the same."""
        if not self.whole or self.unread > bytes_max or self._taken:
            return None
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

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
        return _DISCONNECT

    # ---------------------------------------------------------------- the requests before and behind it

    def let_follow(self) -> None:
        """Let the next request of the connection begin."""
        if self.keeps and not self.may_be_followed:
            self.may_be_followed = True
            self._connection.go_on(self)

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
        if self.status:
            self._connection.break_off()
        else:
            self.keeps = False
            body = b"Internal Server Error"
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})

    async def send(self, message: Any) -> None:
        """Send the head of the answer, or a part of its body."""
        await self._may_answer()
        if self.gone:
            return
        if not self.status:
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
            self._connection.write(body)
        if not more:
            self._end()

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status, self._asks = status, False
        lines, kept, length = [_STATUS_LINES[status], self._connection.date], _NO_PAGE, None
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

    async def answer(self, answer: Whole) -> None:
        """Answer in one piece, or in large ones, as the client reads them."""
        connection, body, end = self._connection, answer.body, answer.end
        if connection.write_paused or not connection.is_next(self):
            await self._may_answer()
        if self.gone:
            return
        assert not self.status
        self.status, self._asks = answer.status, False
        close = b"\r\n\r\n" if self.keeps else b"\r\nconnection: close\r\n\r\n"
        status, date, size = _STATUS_LINES[answer.status], connection.date, len(body) + len(end)
        lines = b"%b%b%b%bcontent-type: %b\r\ncontent-length: %d%b"
        head = lines % (status, date, _NO_PAGE, self.more, answer.kind, size, close)
        if self.scope["method"] == "HEAD":
            connection.write_now(head, b"")
        elif len(body) <= ANSWER_BYTES:
            connection.write_now(head, body + end)
        else:
            connection.write_now(head, body[:ANSWER_BYTES])
            if (reserved := mine()) is not None:
                reserved.keep(len(body))
            for a in range(ANSWER_BYTES, len(body), ANSWER_BYTES):
                await (connection.drained() if connection.write_paused else asyncio.sleep(0))
                if self.gone:
                    return
                connection.write(body[a : a + ANSWER_BYTES])
            connection.write(end)
        self._end()

    async def _may_answer(self) -> None:
        """Wait until the answers before it are complete, and the client has read most of them."""
        if not self._connection.is_next(self) and not self.gone:
            self._turn = asyncio.get_running_loop().create_future()
            if self.has_place:  # of those without one, nobody bounds how many there are
                self.let_follow()
            await self._turn
        if self._connection.write_paused and not self.gone:
            await self._connection.drained()

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


def _raw(status: HTTPStatus, detail: str, date: bytes) -> bytes:
    """A problem document as the bytes of an answer, to requests that no app sees."""
    headers = {"connection": "close"} | ({"retry-after": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else {})
    # The head may not have arrived, so the id is always a new one: no call is served in an empty context.
    problem = Context().run(of_status, status, detail, headers)
    lines = [b"%b: %b\r\n" % header for header in problem.raw_headers]
    return b"".join([_STATUS_LINES[status], date, *lines, b"\r\n", problem.body])
