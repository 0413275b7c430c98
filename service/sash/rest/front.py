"""What stands before every app of the HTTP port: a limit on requests in progress, and memory for their bodies.

uvicorn ──▶ Front ──▶ Connect, or REST
              ├─ health and metrics pass, however busy the service is
              ├─ a request of REST has a place while it is worked on, and none while its body is on its way
              └─ a large body is read when there is memory for it and for what is parsed from it
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sash.limits.caller import caller, caller_of
from sash.limits.memory import MemoryBudget, Reservation
from sash.limits.places import Places
from sash.metrics import Metrics
from sash.rest.bodies import ARROW, OCTETS
from sash.rest.problems import of_error
from sash_engine.errors import Unavailable

__all__ = ["ALWAYS", "Front"]

ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are answered however busy the service is."""

SMALL_BYTES = 65_536
"""Bodies up to this size need no memory set aside: evictions and deletes go on when memory is nearly used up."""

_COPIES = 2
"""A body's parts are joined, so it is in memory twice for a moment."""

_OBJECT_BYTES = 64
_CONTAINER_BYTES = 128
"""What parsed JSON takes: 32 to 62 bytes for a number or a short text, 67 for [], 189 for {"a":1}; measured on a
million of each. Each but the first of a list has a comma before it."""


class Front:
    """Passes requests on to an app.

    Args:
        app: what answers.
        places: how many requests may be in progress.
        body_bytes_max: the largest body; the app refuses a larger one without reading it.
        memory: where bodies are reserved.
        metrics: counts refusals.
        ungated: prefixes of paths whose app limits its own calls.
    """

    def __init__(
        self,
        app: ASGIApp,
        places: Places,
        body_bytes_max: int,
        memory: MemoryBudget,
        metrics: Metrics,
        ungated: Collection[str] = (),
    ) -> None:
        self._app = app
        self._places = places
        self._bytes_max = body_bytes_max
        self._memory = memory
        self._metrics = metrics
        self._ungated = tuple(ungated)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        if scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        caller.set(client[0] if client else "")
        gated = not scope["path"].startswith(self._ungated)
        if gated:
            try:
                self.enter()
            except Unavailable as error:
                self._metrics.count_rejected("rest", str(int(HTTPStatus.SERVICE_UNAVAILABLE)))
                await of_error(error, scope["method"], scope["path"])(scope, receive, send)
                return
        body = _Body.of(scope, receive, self if gated else None, self._bytes_max)
        try:
            if body is None:
                await self._app(scope, receive, send)
            else:
                with self._memory.reservation("bodies") as body.reserved:
                    await self._app(scope, body, send)
        finally:
            if gated and (body is None or body.placed):
                self.leave()

    def enter(self) -> None:
        """Take a place; raises Unavailable where there is none."""
        self._places.enter(caller_of())

    def leave(self) -> None:
        """Give the place back."""
        self._places.leave(caller_of())


class _Body:
    """The body of one request, as the app receives it."""

    __slots__ = ("_announced", "_begun", "_front", "_json", "_read", "_receive", "_whole", "placed", "reserved")

    reserved: Reservation

    def __init__(self, receive: Receive, front: Front | None, announced: int, json: bool) -> None:
        self._receive = receive
        self._front = front
        self._announced = announced
        self._json = json
        self._read = 0
        self._begun = self._whole = False
        self.placed = True

    @classmethod
    def of(cls, scope: Scope, receive: Receive, front: Front | None, bytes_max: int) -> _Body | None:
        """The body; None where there is none to be reserved: it is empty, small, too large, or read as a stream."""
        announced, chunked, kind = 0, False, b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                announced = int(value)
            elif name == b"transfer-encoding":
                chunked = True
            elif name == b"content-type":
                kind = value.lower()
        if not (announced or chunked) or announced > bytes_max or kind.startswith(OCTETS.encode()):
            return None
        binary = kind.startswith(ARROW.encode()) or b"proto" in kind
        return cls(receive, front, announced, json=not binary)

    async def __call__(self) -> Message:
        """The next part of the body, or that the caller has gone."""
        if self._whole:
            return await self._receive()
        if not self._begun:
            self._begun = True
            if self._announced > SMALL_BYTES:
                self.reserved.take(_COPIES * self._announced, self._announced)
        if self._front is None:
            message = await self._receive()
        else:
            self._front.leave()
            self.placed = False
            message = await self._receive()
            self._front.enter()
            self.placed = True
        part = message.get("body", b"")
        self._whole = not message.get("more_body", False)
        self._read += len(part)
        if self._read > SMALL_BYTES:
            self._reserve(part)
        return message

    def _reserve(self, part: bytes) -> None:
        more = 0
        if self._json:
            more = _OBJECT_BYTES * part.count(b",") + _CONTAINER_BYTES * (part.count(b"[") + part.count(b"{"))
        if self._announced > SMALL_BYTES:
            self.reserved.arrived(len(part))
            self.reserved.take(more)
        else:
            self.reserved.take(more + len(part), len(part))
