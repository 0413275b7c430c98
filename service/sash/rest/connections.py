"""Connections of the HTTP port: how many there may be, how long a head may be, and how slow a client.

    connection ─▶ head ─▶ body ─▶ answer ─▶ idle
                   │       │       └ nothing read for a minute, or the body still not whole in time: closed
                   │       └ stalled, or slower than 16 KiB/s: 408; 64 KiB of it that are no content: 400
                   └ longer than 64 KiB: 431; not whole in time: 408

uvicorn has a limit for none of these but idle connections. It keeps trailers, and it reads the body of a request that
is already answered for as long as the client sends. After a head with `Upgrade`, it takes the body for the next
request. Slow clients are looked for once a second, so that others pay for no timers. A client is not slow while the
service itself does not read.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from http import HTTPStatus
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sash.access.tls import CERTIFIED, names_in
from sash.metrics import Metrics
from sash.rest.ahead import HEAD_BYTES_MAX, PART_BYTES, Ahead
from sash.rest.guards import NO_PAGE_LINES
from sash.rest.joined import Joined
from sash.rest.quick import BYTES_MAX, UNUSUAL, Quick, failing
from sash.rest.refusals import monitors_only, raw
from sash.rest.whole import offer
from sash_wire import traces

__all__ = ["HEAD_BYTES_MAX", "Connection", "Connections"]

BYTES_PER_S_MIN = 16_384
UNREAD_S = 60.0
"""For so long a client may read nothing of an answer."""

SPARE = 64
SPARE_PER_ADDRESS = 16
SPARE_S = 5.0
"""Connections beyond the limits, which are answered on health and metrics only, and for how long they may be idle."""


class Connections:
    """All connections of one server.

    Args:
        most: how many there may be.
        most_per_address: how many of them may come from one address.
        timeout_s: how long a head, or a part of a body, may take.
        metrics: counts refusals.
    """

    def __init__(self, most: int, most_per_address: int, timeout_s: float, metrics: Metrics) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._open: set[Connection] = set()
        self._by_address: dict[str, int] = {}
        self.quick: Quick | None = None
        """Answers small requests; None: all take the long way."""
        self.now_s = 0.0
        """When it was looked for slow clients last: a clock that costs nothing, and is a second late at most."""

    def protocol(self, **given: Any) -> Connection:
        """Make the protocol of one connection; the arguments are uvicorn's."""
        return Connection(self, **given)

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of answers wait for clients to read them."""
        return sum(each.transport.get_write_buffer_size() for each in self._open)

    def admit(self, connection: Connection) -> str | None:
        """Count a connection; return why it is beyond the limits, None where it is not."""
        self._open.add(connection)
        count = self._by_address[connection.address] = self._by_address.get(connection.address, 0) + 1
        if count > self._most_per_address:
            connection.closed_at_once = count > self._most_per_address + SPARE_PER_ADDRESS
            return f"SASH_MAX_CONNECTIONS_PER_ADDRESS: {self._most_per_address}"
        if len(self._open) > self._most:
            connection.closed_at_once = len(self._open) > self._most + SPARE
            return f"SASH_MAX_CONNECTIONS: {self._most}"
        return None

    def remove(self, connection: Connection) -> None:
        """Count a connection no more."""
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def refused(self, status: HTTPStatus) -> None:
        """Count a refusal."""
        self._metrics.count_rejected("rest", str(int(status)))

    def sweep(self, now_s: float) -> None:
        """Close the connections of slow clients; to be called about once a second."""
        self.now_s = now_s
        for connection in list(self._open):
            connection.look(now_s, self._timeout_s)


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's, with limits."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._limits = connections
        self.address = ""
        self.closed_at_once = False
        self._spare = False
        self._certified: list[str] = []
        """The names in the client's certificate."""
        self._head_bytes: int | None = None
        """Of the head that is being received, at most; None where none is."""
        self._shared_bytes = 0
        """So many of them arrived together with the end of the request before."""
        self._ended = False
        """Whether a request ended in what arrives now."""
        self._too_long = self._large = self._upgrade = False
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
        self._since_s = self._heard_s = self._looked_s = connections.now_s
        self._received = 0
        self._waiting = b""  # arrived, and not received yet
        self._ahead = Ahead()
        self._unsent, self._unsent_since_s = 0, 0.0

    # ---------------------------------------------------------------- life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
        self.address = self.client[0] if self.client else ""
        if self.scheme == "https":
            self._certified = names_in(transport.get_extra_info("ssl_object").getpeercert() or {})
        limit = self._limits.admit(self)
        if limit is None:
            return
        self._spare = True
        if self.closed_at_once:
            self._limits.refused(HTTPStatus.SERVICE_UNAVAILABLE)
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, f"there are too many connections ({limit})")
        else:
            self.app = monitors_only(self.app, limit, self._limits.refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.remove(self)
        self._waiting = b""
        super().connection_lost(exc)

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

    def _receive(self, data: bytes) -> None:
        if self._upgrade:
            return
        self._heard_s = self._limits.now_s
        self._received += len(data)
        self._large = len(data) + (self._head_bytes or 0) > HEAD_BYTES_MAX
        self._has_content = self._ended = False
        super().data_received(data)
        if self._held and not self.transport.is_closing():
            self._release()  # the rest of it has not arrived
        is_framing = self._in_body and not (self._has_content or self._ended)
        self._framing_bytes = self._framing_bytes + len(data) if is_framing else 0
        if self._framing_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._limits.refused(HTTPStatus.BAD_REQUEST)
            self._end(HTTPStatus.BAD_REQUEST, "the body has trailers or extensions of chunks that are too long")
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._ended:
                self._shared_bytes = len(data)
            if self._head_bytes - self._shared_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._head_too_long()

    def on_message_begin(self) -> None:
        self._head_bytes, self._shared_bytes, self._since_s = 0, 0, self._heard_s
        self._usual, self._host, self._held = True, None, False
        super().on_message_begin()
        if self._certified:
            self.scope[CERTIFIED] = self._certified  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is None:
            return  # it is a trailer, which nobody reads
        name = name.lower()
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
        if self._waiting and not self.transport.is_closing():
            self.flow.pause_reading()
            self.loop.call_soon(self._receive_waiting)

    def on_headers_complete(self) -> None:
        self._head_bytes, self._since_s, self._received = None, self._heard_s, 0
        self._in_body = True
        if self._large:  # a long head, or one that arrived together with bodies or other requests
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > HEAD_BYTES_MAX:
                self._too_long = True
                raise ValueError("the head is too long")  # uvicorn then calls `send_400_response`
        self._held = self._may_be_quick()
        if self._held:
            self._held_body = b""
        else:
            self._begin()

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

    def send_400_response(self, msg: str) -> None:
        if self._too_long:
            self._head_too_long()
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def _head_too_long(self) -> None:
        self._limits.refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head may have {HEAD_BYTES_MAX // 1024} KiB")

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
        self._limits.refused(HTTPStatus.REQUEST_TIMEOUT)
        self._end(HTTPStatus.REQUEST_TIMEOUT, detail)

    def _end(self, status: HTTPStatus, detail: str) -> None:
        """Answer the request that is under way, if no answer has begun, and close."""
        cycle = self.cycle
        if cycle is None or not cycle.response_started or (cycle.response_complete and not self._in_body):
            self.transport.write(raw(status, detail))
        self.transport.close()
