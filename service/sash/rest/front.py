"""Stands before each app of the HTTP port: a limit on requests in progress, and memory for their bodies.

HttpAccess ──▶ Front ──▶ Connect, or REST
              ├─ health and metrics pass, however busy the service is
              ├─ a request of REST has a place while it is worked on, and none while its body is on its way
              └─ a large body is read when there is memory for it and for what is parsed from it
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sash.access.caller import name_or
from sash.limits.caller import caller, caller_of
from sash.limits.memory import MemoryBudget, Reservation
from sash.limits.places import Places
from sash.limits.turns import Turns
from sash.limits.unfinished import when_over
from sash.rest.bodies import ARROW, LINES, OCTETS, parsed_bytes
from sash.rest.lines import PART_BYTES
from sash.rest.problems import of_error
from sash.rest.whole import until_read
from sash.runtime.metrics import Metrics
from sash_engine.errors import Unavailable

__all__ = ["ALWAYS", "Front"]

ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are answered however busy the service is."""

SMALL_BYTES = 65_536
"""Bodies up to this size need no memory set aside: evictions and deletes go on when memory is nearly used up."""

_STREAMED = OCTETS.encode()
_COLUMNS = ARROW.encode()
_LINES = tuple(kind.encode() for kind in LINES)

_IN_PARTS_BYTES = 2 * PART_BYTES
"""What a body of lines takes that is applied in parts: a part, as lines and as columns."""

_COPIES = 2
"""A body's parts are joined, so it is in memory twice for a moment."""


class Front:
    """Passes requests on to an app.

    Args:
        body_bytes_max: the largest body; the app refuses a larger one without reading it.
        memory: where bodies are reserved.
        turns: who goes first when the service is busy.
        metrics: counts refusals.
        app: what answers.
        places: how many requests may be in progress; None: the app limits its own calls.
    """

    def __init__(
        self,
        body_bytes_max: int,
        memory: MemoryBudget,
        turns: Turns,
        metrics: Metrics,
        app: ASGIApp,
        places: Places | None = None,
    ) -> None:
        self._app = app
        self.places = places
        self._bytes_max = body_bytes_max
        self.memory = memory
        self.turns = turns
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        if scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        client = scope["client"]
        name = name_or(client[0] if client else "")
        caller.set(name)
        reserved = self.memory.reservation(name)
        try:
            await self._admitted(name, reserved, scope, receive, send)
            await until_read(scope, reserved)
        finally:
            when_over(reserved.release)

    async def _admitted(self, name: str, reserved: Reservation, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request when it is its turn."""
        places = self.places
        body: Receive | _Body = receive
        try:
            if scope["method"] != "GET":
                body = await self._body(reserved, scope, receive)
            elif self.turns.pays(name, reads=True):
                await self.turns.turn(name, reads=True)
            if places is not None:
                places.enter(name)
        except Unavailable as error:
            self._metrics.count_rejected("rest", str(int(HTTPStatus.SERVICE_UNAVAILABLE)))
            await of_error(error, scope["method"], scope["path"])(scope, receive, send)
            return
        except ClientDisconnect:
            return
        if isinstance(body, _Body):
            body.placed = places is not None
            try:
                await self._app(scope, body, send)
            finally:
                body.end()
            return
        try:
            if scope["method"] == "GET":
                await self.turns.metered(name, self._read(scope, body, send))
            else:
                await self._app(scope, body, send)
        finally:
            if places is not None:
                when_over(lambda: places.leave(name))

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _body(self, reserved: Reservation, scope: Scope, receive: Receive) -> Receive | _Body:
        """What brings the body. A small one is read now, when the request has no place yet."""
        announced, chunked, kind = 0, False, b""
        for header, value in scope["headers"]:
            if header == b"content-length":
                announced = int(value)
            elif header == b"transfer-encoding":
                chunked = True
            elif header == b"content-type":
                kind = value.lower()
        if self.turns.pays(caller_of(), announced):
            await self.turns.turn(caller_of(), announced)
        if announced > SMALL_BYTES or chunked:
            in_parts = kind.startswith(_LINES) and not scope["query_string"]  # a number would be there
            if kind.startswith(_STREAMED) or (announced > self._bytes_max and not in_parts):
                return receive
            is_json = not (kind.startswith((_COLUMNS, *_LINES)) or b"proto" in kind)
            return _Body(receive, self, reserved, announced, is_json, in_parts)
        if self.places is not None:
            self.places.check(caller_of())
        message = await receive()
        parts = [message.get("body", b"")]
        while message.get("more_body", False):
            message = await receive()
            parts.append(message.get("body", b""))
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pending = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def once() -> Message:
            return pending.pop() if pending else await receive()

        return once


class _Body:
    """The body of one request, as the app receives it."""

    __slots__ = (
        *("_announced", "_begun", "_caller", "_front", "_in_parts", "_json"),
        *("placed", "_read", "_receive", "_reserved", "_whole"),
    )

    def __init__(
        self, receive: Receive, front: Front, reserved: Reservation, announced: int, json: bool, in_parts: bool
    ) -> None:
        self._receive = receive
        self._reserved = reserved
        self._front = front
        self._caller = caller_of()
        self.placed = False
        self._announced = announced
        self._json = json
        self._in_parts = in_parts
        self._read = 0
        self._begun = self._whole = False

    async def __call__(self) -> Message:
        """The next part of the body, or that the caller has gone."""
        if self._whole:
            return await self._receive()
        if not self._begun:
            self._begun = True
            if self._in_parts:
                self._reserved.take(_IN_PARTS_BYTES)
            elif self._announced > SMALL_BYTES:
                self._reserved.take(_COPIES * self._announced, self._announced)
        places = self._front.places
        if places is not None:
            places.leave(self._caller)
            self.placed = False
            message = await self._receive()
            places.enter(self._caller)
            self.placed = True
        else:
            message = await self._receive()
        part = message.get("body", b"")
        self._whole = not message.get("more_body", False)
        self._read += len(part)
        if self._read > SMALL_BYTES and not self._in_parts:
            self._reserve(part)
        return message

    def end(self) -> None:
        """Give the request's place back."""
        if self.placed and self._front.places is not None:
            self._front.places.leave(self._caller)

    def _reserve(self, part: bytes) -> None:
        more = 0
        if self._json:
            more = parsed_bytes(part)
        reserved = self._reserved
        if self._announced > SMALL_BYTES:
            reserved.arrived(len(part))
            reserved.take(more)
        else:
            reserved.take(more + len(part), len(part))
