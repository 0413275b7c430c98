"""Connections of the HTTP port: how many there may be, how long a head may be, and how slow a client.

    accepted ─▶ TLS ─▶ head ─▶ body ─▶ answer ─▶ idle
                 │      │       │       └ nothing read for a minute, or the body still not whole in time: closed
                 │      │       └ stalled, or slower than 16 KiB/s: 408; 64 KiB of it that are no content: 400
                 │      └ longer than 64 KiB: 431; not whole in time: 408; neither HTTP/1.0 nor HTTP/1.1: 505
                 └ not complete in time, or the oldest one where there is no room for another: closed

uvicorn has a limit for none of these but idle connections. It keeps trailers, and it reads the body of a request that
is already answered for as long as the client sends. After a head with `Upgrade`, it takes the body for the next
request. Where requests wait for each other, it answers the one that is wrong first, and tells the one in progress not
that its client has gone. Slow clients are looked for once a second, so that others pay for no timers. A client is not
slow while the service itself does not read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from contextvars import Context, copy_context
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from sash.access.tls import CERTIFIED, names_in
from sash.calls import resumed
from sash.rest.ahead import HEAD_BYTES_MAX, PART_BYTES, Ahead
from sash.rest.guards import NO_PAGE_LINES
from sash.rest.joined import Joined
from sash.rest.quick import BYTES_MAX, UNUSUAL, Quick, failing
from sash.rest.refusals import monitors_only, raw
from sash.rest.whole import offer
from sash.runtime.metrics import Metrics
from sash_wire import traces

__all__ = ["HEAD_BYTES_MAX", "Connection", "Connections"]

BYTES_PER_S_MIN = 16_384
UNREAD_S = 60.0
"""For so long a client may read nothing of an answer."""

SPARE = 64
SPARE_PER_ADDRESS = 16
SPARE_S = 5.0
"""Connections beyond the limits, which are answered on health and metrics only, and for how long they may be idle.
`sash.limits.files` has the files for them."""

HANDSHAKE_S = 10.0
"""For so long a TLS handshake may take. It takes two ways to the client and back."""

_WATCHES = "/watch", "/Watch"
"""How the paths of calls end whose answers have no end."""

_HEAD_TOO_LONG = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head may have {HEAD_BYTES_MAX // 1024} KiB"
_OTHER_VERSION = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 and HTTP/1.0 are spoken here"


@dataclass(slots=True, eq=False)
class Place:
    """One of the connections that there may be.

    Attributes:
        address: of the client.
        limit: the limit that it is beyond: it is for monitors only. None: it is within the limits.
    """

    address: str
    limit: str | None


class Connections:
    """All connections of one server.

    Args:
        most: how many there may be.
        most_per_address: how many of them may come from one address.
        timeout_s: how long a head, or a part of a body, may take.
        metrics: counts refusals.
        tls: the context for TLS; without it where None.
    """

    def __init__(
        self,
        most: int,
        most_per_address: int,
        timeout_s: float,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._tls = tls
        self._open: set[Connection] = set()
        self._handshakes: dict[str, dict[Handshake, None]] = {}
        """Those that are not complete, by address; the oldest comes first."""
        self._count = 0
        self._by_address: dict[str, int] = {}
        self._spare: dict[str, int] = {}
        """Connections beyond the limits, by address."""
        self.quick: Quick | None = None
        """Answers small requests; None: all take the long way."""
        self.now_s = 0.0
        """When it was looked for slow clients last: a clock that costs nothing, and is a second late at most."""

    def protocol(self, **given: Any) -> asyncio.Protocol:
        """Make the protocol of one connection; the arguments are uvicorn's."""
        connection = Connection(self, **given)
        return connection if self._tls is None else Handshake(self, connection, self._tls)

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of answers wait for clients to read them."""
        return sum(each.transport.get_write_buffer_size() for each in self._open)

    def admit(self, address: str) -> Place | None:
        """Count a connection. None: there is no place for it, not even one for monitors."""
        limit = self.limit(address)
        if limit is not None and self._make_room(address):
            limit = self.limit(address)
        if limit is not None:
            spare = self._spare.get(address, 0)
            if spare >= SPARE_PER_ADDRESS or sum(self._spare.values()) >= SPARE:
                return None
            self._spare[address] = spare + 1
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        return Place(address, limit)

    def leave(self, place: Place) -> None:
        """Count a connection no more."""
        self._count -= 1
        _one_less(self._by_address, place.address)
        if place.limit is not None:
            _one_less(self._spare, place.address)

    def limit(self, address: str) -> str | None:
        """The limit that one more connection of an address would be beyond."""
        if self._by_address.get(address, 0) >= self._most_per_address:
            return f"SASH_MAX_CONNECTIONS_PER_ADDRESS: {self._most_per_address}"
        return f"SASH_MAX_CONNECTIONS: {self._most}" if self._count >= self._most else None

    def _make_room(self, address: str) -> bool:
        """Close the oldest connection whose handshake is not complete: it costs a client nothing to begin many.

        Where the address has its share, it is one of its own, else one of the address that has most of them.
        """
        if self._by_address.get(address, 0) < self._most_per_address:
            address = max(self._handshakes, key=lambda each: len(self._handshakes[each]), default="")
        oldest = next(iter(self._handshakes.get(address, ())), None)
        if oldest is not None:
            oldest.end()
        return oldest is not None

    def shaking(self, handshake: Handshake, address: str) -> None:
        """Note a connection whose handshake begins."""
        self._handshakes.setdefault(address, {})[handshake] = None

    def shaken(self, handshake: Handshake, address: str) -> None:
        """Note that a handshake is over."""
        of_address = self._handshakes[address]
        del of_address[handshake]
        if not of_address:
            del self._handshakes[address]

    def opened(self, connection: Connection) -> None:
        """Look after a connection from now on."""
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Look after a connection no more."""
        self._open.discard(connection)

    def refused(self, status: HTTPStatus) -> None:
        """Count a refusal."""
        self._metrics.count_rejected("rest", str(int(status)))

    def sweep(self, now_s: float) -> None:
        """Close the connections of slow clients; to be called about once a second."""
        self.now_s = now_s
        for connection in list(self._open):
            connection.look(now_s, self._timeout_s)

    def end_handshakes(self) -> None:
        """Close all connections whose handshakes are not complete, because the service ends."""
        for of_address in list(self._handshakes.values()):
            for handshake in list(of_address):
                handshake.end()


def _one_less(counts: dict[str, int], address: str) -> None:
    counts[address] -= 1
    if not counts[address]:
        del counts[address]


class Handshake(asyncio.Protocol):
    """A connection from when it is accepted until its TLS handshake is complete.

    asyncio says of a connection only when the handshake is complete, and waits a minute for it. A client that says
    nothing would take a file for so long, and be counted nowhere.
    """

    def __init__(self, connections: Connections, connection: Connection, context: ssl.SSLContext) -> None:
        self._limits = connections
        self._connection = connection
        self._context = context
        self._place: Place | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = get_remote_addr(transport)
        place = self._limits.admit(peer[0] if peer else "")
        if place is None:
            self._limits.refused(HTTPStatus.SERVICE_UNAVAILABLE)
            transport.abort()
            return
        self._place = place
        self._limits.shaking(self, place.address)
        loop = asyncio.get_running_loop()
        securing: Any = loop.start_tls(
            transport,
            self._connection,
            self._context,
            server_side=True,
            ssl_handshake_timeout=SPARE_S if place.limit is not None else HANDSHAKE_S,
        )
        # The first step now: behind this, the transport begins to read, and what it reads is of the handshake.
        waits_for = securing.send(None)
        self._task = loop.create_task(self._complete(resumed(securing, waits_for)))

    async def _complete(self, securing: Awaitable[asyncio.Transport | None]) -> None:
        try:
            transport = await securing
        except OSError:  # a client that speaks no TLS, or has no certificate, or has gone
            transport = None
        place, self._place = self._place, None
        if place is None:
            return
        self._limits.shaken(self, place.address)
        if transport is None or transport.is_closing():
            self._limits.leave(place)
        else:
            self._connection.begin(transport, place)

    def end(self) -> None:
        """Close the connection."""
        place, self._place = self._place, None
        assert place is not None
        self._limits.shaken(self, place.address)
        self._limits.leave(place)
        self._transport.abort()


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's, with limits."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._limits = connections
        self._place: Place | None = None
        self._spare = False
        self._certified: list[str] = []
        """The names in the client's certificate."""
        self._head_bytes: int | None = None
        """Of the head that is being received, at most; None where none is."""
        self._shared_bytes = 0
        """So many of them arrived together with the end of the request before."""
        self._ended = False
        """Whether a request ended in what arrives now."""
        self._large = self._upgrade = False
        self._in_body = self._has_content = False
        self._held = False
        """Whether a request is to be answered by `quick`. It has not begun for uvicorn."""
        self._held_body = b""
        self._context: Context | None = None
        """In which the request begins that is released now; None: its own."""
        self._usual = True
        self._host: bytes | None = None
        self._framing_bytes = 0
        """Of a body, since the last part of its content: trailers, and the extensions of chunks."""
        self._current: RequestResponseCycle | None = None
        """The request that is answered now, or was last. `cycle` is the one that has begun to arrive last."""
        self._refusal = (HTTPStatus.BAD_REQUEST, "this is no valid HTTP/1.1")
        """Of what the parser does not read on."""
        self._last = b""
        """What is sent behind the answers to all requests, before the connection is closed."""
        self._no_more = False
        """Whether the client sends no more."""
        self._since_s = self._heard_s = self._looked_s = connections.now_s
        self._received = 0
        self._waiting = b""  # arrived, and not received yet
        self._ahead = Ahead()
        self._unsent, self._unsent_since_s = 0, 0.0

    # ---------------------------------------------------------------- life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        place = self._limits.admit(peer[0] if peer else "")
        if place is not None:
            self.begin(transport, place)
            return
        super().connection_made(transport)
        self._limits.refused(HTTPStatus.SERVICE_UNAVAILABLE)
        detail = f"there are too many connections ({self._limits.limit(peer[0] if peer else '')})"
        transport.write(raw(HTTPStatus.SERVICE_UNAVAILABLE, detail, self.server_state.default_headers))
        transport.close()

    def begin(self, transport: asyncio.Transport, place: Place) -> None:
        """Serve a connection, which is encrypted now where it is to be."""
        super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
        self._place = place
        self._limits.opened(self)
        if self.scheme == "https":
            self._certified = names_in(transport.get_extra_info("ssl_object").getpeercert() or {})
        if place.limit is not None:
            self._spare = True
            self.app = monitors_only(self.app, place.limit, self._limits.refused)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is None:
            return  # its handshake failed: it has not begun
        if self._place is not None:
            self._limits.closed(self)
            self._limits.leave(self._place)
        self._waiting = b""
        self.pipeline.clear()
        current = self._current
        if current is not None and not current.response_complete:
            current.disconnected = True
            current.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what has arrived, although the client sends no more. TLS closes, whatever this returns."""
        current = self._current
        if self.scheme == "https" or current is None or current.response_complete:
            return False
        if current.scope["path"].endswith(_WATCHES):
            return False  # its answer ends when the client goes
        if self._in_body:
            if self.cycle is current:
                return False
            self._drop_newest()
        self._no_more = True
        return True

    def shutdown(self) -> None:
        """End the connection when its answer is complete, because the service ends."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.scheme == "https" and not self.transport.get_write_buffer_size():
            self.transport.abort()  # an idle client need not read, and TLS would wait for its word
        else:
            super().shutdown()

    # ---------------------------------------------------------------- receiving

    def data_received(self, data: bytes) -> None:
        begins = self._head_bytes is None and not self._in_body
        if self._last:
            return
        if self._waiting:
            self._waiting += data
            self.flow.pause_reading()
        elif self._ahead.has_many(data, begins):
            self._waiting = data
            self._receive_waiting()
        else:
            self._receive(data)
            if begins and self._in_body:
                self._ahead.expect(data)

    def _receive_waiting(self) -> None:
        """Receive what has arrived, until a request waits for the one before it."""
        while self._waiting and not (self.pipeline or self.transport.is_closing()):
            part, self._waiting = self._waiting[:PART_BYTES], self._waiting[PART_BYTES:]
            self._receive(part)
        self._end_when_answered()

    def _receive(self, data: bytes) -> None:
        if self._upgrade:
            return
        self._heard_s = self._limits.now_s
        self._received += len(data)
        self._large = len(data) + (self._head_bytes or 0) > HEAD_BYTES_MAX
        self._has_content = self._ended = False
        super().data_received(data)
        if self._held and not self.transport.is_closing():
            try:
                self._release()  # the rest of it has not arrived
            except httptools.HttpParserError:
                self._in_body = False
                self.send_400_response("")
        is_framing = self._in_body and not (self._has_content or self._ended)
        self._framing_bytes = self._framing_bytes + len(data) if is_framing else 0
        if self._framing_bytes > HEAD_BYTES_MAX:
            self._refuse(HTTPStatus.BAD_REQUEST, "the body has trailers or extensions of chunks that are too long")
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._ended:
                self._shared_bytes = len(data)
            if self._head_bytes - self._shared_bytes > HEAD_BYTES_MAX:
                self._refuse(*_HEAD_TOO_LONG)

    def on_message_begin(self) -> None:
        self._head_bytes, self._shared_bytes, self._since_s = 0, 0, self._heard_s
        self._usual, self._host, self._held = True, None, False
        super().on_message_begin()
        self.scope[CERTIFIED] = self._certified  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is None:
            return  # it is a trailer, which nobody reads
        name, value = name.lower(), value.rstrip(b" \t")  # the parser leaves it in front only
        if name == b"host":
            self._usual = self._usual and self._host is None
            self._host = value
        elif name in UNUSUAL:
            self._usual = False
            if name == b"expect":
                super().on_header(name, value)
                return
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._has_content = True
        if not self._held:
            super().on_body(body)
            return
        self._held_body += body
        if len(self._held_body) > BYTES_MAX:
            self._release()

    def on_message_complete(self) -> None:
        self._in_body, self._ended = False, True
        if not self._held:
            super().on_message_complete()
        elif self._answered():
            self._held = False
            self._since_s = self._limits.now_s
        else:
            self._release()
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since_s = self._limits.now_s
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._waiting:
            self.flow.pause_reading()
            self.loop.call_soon(self._receive_waiting)
        else:
            self._end_when_answered()

    def on_headers_complete(self) -> None:
        self._head_bytes, self._since_s, self._received = None, self._heard_s, 0
        # What is raised here has uvicorn call `send_400_response`.
        if self._large:  # a long head, or one that arrived together with bodies or other requests
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > HEAD_BYTES_MAX:
                self._refusal = _HEAD_TOO_LONG
                raise ValueError("the head is too long")
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            self._refusal = _OTHER_VERSION
            raise ValueError("another version of HTTP")
        self._held = self._may_be_quick()
        if self._held:
            self._held_body = b""
        else:
            self._begin()
        self._in_body = True

    def _may_be_quick(self) -> bool:
        parser, cycle = self.parser, self.cycle
        return (
            self._usual
            and self._limits.quick is not None
            and (cycle is None or cycle.response_complete)
            and traces.tracer is None
            and not (self._spare or self.flow.write_paused)
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and parser.get_http_version() == "1.1"
        )

    def _answered(self) -> bool:
        """Have the request answered by `quick`; False where it takes the long way."""
        url = self.url
        path, _, query = url.partition(b"?")
        if b"%" in path or b"#" in url or not (path.startswith(b"/") and url.isascii()) or self._host is None:
            return False
        scope: Any = self.scope
        scope["method"], scope["path"], scope["query_string"] = self.parser.get_method().decode(), path.decode(), query
        assert self._limits.quick is not None
        defaults = self.server_state.default_headers
        write: Any = self.transport
        try:
            return self._limits.quick.answer(scope, self._host, self._held_body, defaults, write.write_now, self._serve)
        except Exception as error:
            self._serve(failing(error), copy_context())
            return True

    def _serve(self, app: ASGIApp, context: Context) -> None:
        """Have an app answer the request that is held, by a task in a context."""
        usual = self.app
        self.app, self._context = cast("Any", app), context
        try:
            self._release()
        finally:
            self.app, self._context = usual, None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        if self._context is None:
            super()._start_asgi_task(cycle, app)
            return
        task = self.loop.create_task(cycle.run_asgi(app), context=self._context)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _release(self) -> None:
        """Have uvicorn begin with the request that is held."""
        self._held = False
        self._begin()
        if self._held_body:
            super().on_body(self._held_body)
            self._held_body = b""

    def _begin(self) -> None:
        super().on_headers_complete()
        if traces.tracer is None and self.scope["method"] != "HEAD":
            offer(self.scope, self.cycle, NO_PAGE_LINES)
        if self.parser.should_upgrade():
            # The parser ends here. Where a proxy sees a body, it must not see another request.
            self._upgrade, self.cycle.keep_alive = True, False

    # ---------------------------------------------------------------- refusals and ends

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Refuse what is being received, behind the answers to the requests before it, and close."""
        if self._last or self.transport.is_closing():
            return
        self._limits.refused(status)
        answer = raw(status, detail, self.server_state.default_headers)
        current, self._waiting = self._current, b""
        if current is None or current.response_complete or (self._in_body and self.cycle is current):
            if current is None or not (self._in_body and current.response_started):
                self.transport.write(answer)
            self.transport.close()
            return
        if self._in_body:
            self._drop_newest()
        self._last = answer
        self.flow.pause_reading()

    def _drop_newest(self) -> None:
        """Forget the request whose body is being received; it has not begun."""
        self.pipeline.popleft()
        self._in_body = False

    def _end_when_answered(self) -> None:
        """Close once all requests are answered, where nothing can follow."""
        is_answered = self._current is None or self._current.response_complete
        if is_answered and (self._last or (self._no_more and not self._waiting)) and not self.transport.is_closing():
            self.transport.write(self._last)
            self.transport.close()

    # ---------------------------------------------------------------- slow clients

    def look(self, now_s: float, timeout_s: float) -> None:
        """Close the connection if its client is too slow."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if self.transport.is_closing():
            return
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since_s = unsent, now_s
        elif now_s - self._unsent_since_s > UNREAD_S:
            self.transport.abort()
            return
        if self._last or self._no_more:
            return
        if self._head_bytes is not None:
            if self.flow.read_paused:
                self._since_s += passed_s
            elif now_s - self._since_s > (SPARE_S if self._spare else timeout_s):
                self._too_slow("the head did not arrive in time")
        elif self.cycle is None:
            if now_s - self._since_s > (SPARE_S if self._spare else self.timeout_keep_alive):
                self.transport.close()
        elif self.cycle.response_complete:
            if self._in_body and now_s - self._since_s > timeout_s:
                self.transport.close()  # it was refused by its head, and its body does not end
            elif now_s - max(self._heard_s, self._since_s) > (SPARE_S if self._spare else self.timeout_keep_alive):
                self.transport.close()  # uvicorn's timer ends with the first byte behind the answer
        elif self.cycle.more_body:
            if self.flow.read_paused:
                self._since_s += passed_s
                self._heard_s = now_s
            elif now_s - max(self._heard_s, self._since_s) > timeout_s:
                self._too_slow(f"no part of the body arrived for {timeout_s:g} s")
            elif now_s - self._since_s > timeout_s + self._received / BYTES_PER_S_MIN:
                self._too_slow(f"the body arrives at less than {BYTES_PER_S_MIN // 1024} KiB a second")

    def _too_slow(self, detail: str) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, detail)
