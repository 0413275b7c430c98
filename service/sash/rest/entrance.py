"""Admits the requests of the HTTP port, and passes them on to the edges: Connect, PromQL, REST and the page.

connection ──▶ Entrance ──▶ host, origin ──▶ Admission: identity, quota, memory, turn, place ──▶ edge
                  ├─ health and metrics need no place and no turn, however busy the service is
                  ├─ a body has no place while it is on its way: a small one is read before there is one
                  └─ a large body is read when there is memory for it and for what is parsed from it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from sash.access.tls import CERTIFIED
from sash.admission import Admission, Lease
from sash.context import CALL, CallContext
from sash.rest.bodies import ARROW, LINES, OCTETS, Gone, parsed_bytes, parts_of
from sash.rest.connection import ANSWERS, FORWARDED, LIMIT, SMALL_BYTES, Exchange
from sash.rest.guards import Guard
from sash.rest.lines import PART_BYTES
from sash.rest.problems import of_error
from sash.runtime.metrics import Metrics
from sash_engine.errors import SashError, Unavailable
from sash_wire import traces

ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are answered however busy the service is."""

BODY = "sash.body"
"""In the scope of a request: its body, where it is small and has arrived whole."""

_MOUNT = "sash.mount"
"""In the scope of a request: the `Mount` of its path, once it was looked for."""

_STREAMED = OCTETS.encode()
_COLUMNS = ARROW.encode()
_LINES = tuple(kind.encode() for kind in LINES)

_IN_PARTS_BYTES = 2 * PART_BYTES
"""What a body of lines takes that is applied in parts: a part, as lines and as columns."""

_COPIES = 2
"""A body's parts are joined, so it is in memory twice for a moment."""

App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Refuse = Callable[[Scope, Receive, Send, SashError], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One edge, under a prefix of paths.

    Attributes:
        prefix: of its paths.
        app: the edge.
        refuse: answers a refused request in the form of the edge.
        admission: lets its calls in.
        at_once: whether the answer to a request may begin without a task.
        is_open: whether a path needs no token.
        of_every_window: a path that shows something of every window, so that the caller must see them all.
    """

    prefix: str
    app: App
    refuse: Refuse
    admission: Admission
    at_once: Callable[[Any], bool] = lambda _: False
    is_open: Callable[[str], bool] = lambda _: False
    of_every_window: str = ""


class Entrance:
    """Passes requests on to the edges.

    Args:
        mounts: the edges. The first one whose prefix fits is taken; the last one is for all paths.
        guard: says which hosts and origins are allowed.
        body_bytes_max: the largest body; an edge refuses a larger one without reading it.
        metrics: counts refusals.
        at_once: whether answers may begin without a task; calls of other processes need one from the beginning.
    """

    def __init__(
        self, mounts: Sequence[Mount], guard: Guard, body_bytes_max: int, metrics: Metrics, at_once: bool = True
    ) -> None:
        self._at_once = at_once
        self._mounts = mounts
        self._guard = guard
        self._bytes_max = body_bytes_max
        self._metrics = metrics

    def at_once(self, scope: Scope) -> bool:
        """Whether the answer to a small request may begin without a task: the edge says so, and nothing else is on."""
        if not self._at_once or traces.tracer is not None or scope[FORWARDED] or scope[LIMIT] is not None:
            return False
        return self._mount(scope).at_once(scope)

    def _mount(self, scope: Scope) -> Mount:
        path = scope["path"]
        for mount in self._mounts:
            if path.startswith(mount.prefix):
                break
        scope[_MOUNT] = mount
        return mount

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        exchange: Exchange = scope[ANSWERS]
        # Never that of the request before.
        CALL.set(CallContext(lambda: scope["headers"], lambda: _address(scope), applied=exchange.let_follow))
        path = scope["path"]
        if (limit := scope.get(LIMIT)) is not None and path not in ALWAYS:
            error = Unavailable("there are too many connections", limit=limit, retry_after_s=1.0)
            exchange.keeps = False
            await self._answer(of_error(error, scope["method"], path), scope, receive, send)
            return
        refusal, exchange.more = self._guard.checked(scope)
        if refusal is not None:
            await self._answer(refusal, scope, receive, send)
            return
        mount = scope.get(_MOUNT) or self._mount(scope)
        admission = mount.admission
        if admission.asks_who_calls and not mount.is_open(path):
            what = f"{scope['method']} {path}"
            try:
                credentials = [value for name, value in scope["headers"] if name == b"authorization"]
                await admission.identify(credentials, scope[CERTIFIED])
                if path == mount.of_every_window:
                    admission.require_every_window(what)
            except SashError as error:
                admission.refused(what, error)
                await mount.refuse(scope, receive, send, error)
                return
        if path in ALWAYS:
            await mount.app(scope, receive, send)
            return
        client, reads = scope["client"], scope["method"] == "GET"
        lease = Lease(admission, client[0] if client else "")
        try:
            try:
                body = None if reads else exchange.small_body(SMALL_BYTES)
                if body is not None:
                    scope[BODY] = body
                if reads or body is not None:
                    size = 0 if body is None else len(body)
                    if lease.must_wait(size, 0, reads):
                        await lease.turn(size, reads)
                else:
                    receive = await self._body(lease, scope, receive)
                lease.enter()
                exchange.has_place = True
            except Unavailable as error:
                await mount.refuse(scope, receive, send, error)
                return
            except Gone:
                return
            await admission.turns.metered(lease.name, mount.app(scope, receive, send), reads)
            if lease.memory.held:
                lease.worked()
                await exchange.until_read(lease.memory)
        finally:
            lease.close()

    async def _answer(self, answer: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            self._metrics.count_rejected("rest", str(answer.status_code))
        await answer(scope, receive, send)

    async def _body(self, lease: Lease, scope: Scope, receive: Receive) -> Receive:
        """What brings a body that has not arrived yet. A small one is read now, when the request has no place yet."""
        announced, chunked, kind = 0, False, b""
        for header, value in scope["headers"]:
            if header == b"content-length":
                announced = int(value)
            elif header == b"transfer-encoding":
                chunked = True
            elif header == b"content-type":
                kind = value.lower()
        if lease.must_wait(announced):
            await lease.turn(announced)
        if announced > SMALL_BYTES or chunked:
            in_parts = kind.startswith(_LINES) and not scope["query_string"]  # a number would be there
            if kind.startswith(_STREAMED) or (announced > self._bytes_max and not in_parts):
                return receive
            is_json = not (kind.startswith((_COLUMNS, *_LINES)) or b"proto" in kind)
            return _Body(receive, lease, announced, is_json, in_parts)
        lease.check()
        body = scope[BODY] = b"".join([part async for part in parts_of(receive)])
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def once() -> Message:
            return pending.pop() if pending else await receive()

        return once


class _Body:
    """The body of one request, as an edge receives it: with memory, and without a place while it is on its way."""

    __slots__ = ("_announced", "_begun", "_in_parts", "_json", "_lease", "_read", "_receive", "_whole")

    def __init__(self, receive: Receive, lease: Lease, announced: int, json: bool, in_parts: bool) -> None:
        self._receive = receive
        self._lease = lease
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
                self._lease.memory.take(_IN_PARTS_BYTES)
            elif self._announced > SMALL_BYTES:
                self._lease.memory.take(_COPIES * self._announced, self._announced)
        self._lease.leave()
        message = await self._receive()
        self._lease.enter()
        part = message.get("body", b"")
        self._whole = not message.get("more_body", False)
        self._read += len(part)
        if self._read > SMALL_BYTES and not self._in_parts:
            self._reserve(part)
        return message

    def _reserve(self, part: bytes) -> None:
        more = parsed_bytes(part) if self._json else 0
        reserved = self._lease.memory
        if self._announced > SMALL_BYTES:
            reserved.arrived(len(part))
            reserved.take(more)
        else:
            reserved.take(more + len(part), len(part))


def _address(scope: Scope) -> str:
    client = scope.get("client")
    if client is None:
        return "-"
    host, port = client[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
