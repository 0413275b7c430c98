"""Answers small requests while they are read, without a task and without the layers of ASGI between.

    connection ──▶ whole request, small, nothing unusual ──▶ Quick ──▶ edge's coroutine, one step ──▶ answer, written
                                                     │                       └─▶ it waits: a task goes on with it
                                                     └─▶ no: server ──▶ Guard ──▶ HttpAccess ──▶ Front ──▶ edge

Quick does what the layers do for a call that none of them refuses. It decides that before anything has changed. So all
others take the long way as if nothing had happened: those that are refused, and those that say something that most
requests do not say. The edges run the same code on both ways. A call that waits for its turn, or for the tier, has a
task from then on.

The task, uvicorn's request and answer, and the layers took as long as the insert between them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from sash.access.caller import name_or
from sash.access.http import HttpAccess
from sash.calls import resumed
from sash.limits.caller import caller
from sash.limits.memory import MemoryBudget, Reservation
from sash.limits.places import Places
from sash.limits.turns import Turns
from sash.requests import REQUEST, of_scope
from sash.rest.guards import NO_PAGE_LINES, Guard, guarded
from sash.rest.problems import of_error
from sash.rest.whole import STATUS_LINES, Whole, answer_whole, head_of, until_read
from sash_engine.errors import SashError, Unavailable

__all__ = ["BYTES_MAX", "UNUSUAL", "Edge", "Lane", "Quick", "failing"]

BYTES_MAX = 65_536
"""Larger bodies need memory that is set aside."""

UNUSUAL = frozenset(
    (
        *(b"content-encoding", b"expect", b"origin", b"transfer-encoding", b"upgrade"),
        *(b"x-forwarded-for", b"x-forwarded-proto"),
    )
)
"""Headers of requests that take the long way."""

Write = Callable[[bytes, bytes], None]
Serve = Callable[[ASGIApp, Context], None]


class Edge(Protocol):
    """What answers the requests under some paths."""

    def begin(self, scope: Scope, body: bytes) -> Coroutine[Any, Any, Any] | None:
        """Return what answers a request; None where it must take the long way. Its first step needs no task."""

    async def finish(self, answer: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer that `begin` has led to."""


@dataclass(frozen=True)
class Lane:
    """The layers ahead of one edge.

    Attributes:
        prefix: of its paths.
        access: who may call.
        memory: where large answers are reserved.
        places: how many requests may be in progress; None: the edge limits its own calls.
    """

    prefix: str
    edge: Edge
    access: HttpAccess
    memory: MemoryBudget
    places: Places | None = None


class Quick:
    """Answers the small requests of one server.

    Args:
        guard: knows the hosts that requests may name.
        turns: who goes first when the service is busy.
        lanes: the edges.
    """

    def __init__(self, guard: Guard, turns: Turns, lanes: Sequence[Lane]) -> None:
        self._guard = guard
        self._turns = turns
        self._lanes = lanes
        self._heads: dict[bytes, bytes] = {}
        self._defaults: object = None

    def answer(
        self,
        scope: Scope,
        host: bytes,
        body: bytes,
        defaults: Sequence[tuple[bytes, bytes]],
        write: Write,
        serve: Serve,
    ) -> bool:
        """Answer a request.

        Args:
            scope: of the request.
            host: the only one that it names.
            body: all of it.
            defaults: headers that every answer has.
            write: sends the head and the body of an answer.
            serve: has an app answer the request as a task, in a context: what has begun in one goes on in it.

        Returns:
            False: the request takes the long way.
        """
        path = scope["path"]
        for lane in self._lanes:
            if path.startswith(lane.prefix):
                break
        else:
            return False
        if not self._guard.knows(host):
            return False
        work = lane.edge.begin(scope, body)
        if work is None:
            return False
        # Context variables of this request end with it.
        context = copy_context()

        def serve_here(app: ASGIApp) -> None:
            serve(app, context)

        return context.run(self._answer, lane, work, scope, body, defaults, write, serve_here)

    def _answer(
        self,
        lane: Lane,
        work: Coroutine[Any, Any, Any],
        scope: Scope,
        body: bytes,
        defaults: Sequence[tuple[bytes, bytes]],
        write: Write,
        serve: Callable[[ASGIApp], None],
    ) -> bool:
        REQUEST.set(of_scope(scope))
        client, reads, turns, places = scope["client"], scope["method"] == "GET", self._turns, lane.places
        name = client[0] if client else ""
        if not lane.access.recognises(scope):
            work.close()
            return False
        name = name_or(name)
        caller.set(name)
        reserved = lane.memory.reservation(name)
        if not (places is None or places.has_room(name)):
            work.close()
            return False
        try:
            lane.access.charge()
        except SashError:
            work.close()
            return False
        if turns.pays(name, len(body), reads):
            serve(_released(reserved, self._in_turn(lane, work, name, len(body), reads)))
            return True
        began_s = perf_counter() if reads else 0.0
        try:
            waits_for = work.send(None)
        except StopIteration as end:
            answer = end.value
            if reads:
                turns.asked(name, perf_counter() - began_s)
            if type(answer) is Whole and not reserved.held:
                write(self._head(answer, defaults), answer.body)
            else:
                serve(_released(reserved, self._finishing(lane, answer)))
            return True
        rest: Coroutine[Any, Any, Any] = cast("Any", resumed(work, waits_for))
        if reads:
            rest = turns.metered(name, rest, perf_counter() - began_s)
        if places is not None:
            places.enter(name)  # nobody had a turn since there was one
        serve(_released(reserved, self._going_on(lane, rest, name)))
        return True

    def _head(self, answer: Whole, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The head of an answer. All but the length changes once a second, with the date."""
        if defaults is not self._defaults:
            self._defaults, self._heads = defaults, {}
        head = self._heads.get(answer.kind)
        if head is None:
            head = self._heads[answer.kind] = head_of(defaults, NO_PAGE_LINES, answer.kind)
        return STATUS_LINES[answer.status] + head + b"%d\r\n\r\n" % len(answer.body)

    def _in_turn(self, lane: Lane, work: Coroutine[Any, Any, Any], name: str, size: int, reads: bool) -> ASGIApp:
        """An app that answers when it is the turn of a call."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await self._turns.turn(name, size, reads)
                if lane.places is not None:
                    lane.places.check(name)
            except Unavailable as error:
                work.close()
                answer: Any = of_error(error, scope["method"], scope["path"])
                await self._finishing(lane, answer)(scope, receive, send)
            except BaseException:
                work.close()
                raise
            else:
                rest = self._turns.metered(name, work) if reads else work
                if lane.places is not None:
                    lane.places.enter(name)
                await self._going_on(lane, rest, name)(scope, receive, send)

        return app

    def _going_on(self, lane: Lane, rest: Coroutine[Any, Any, Any], name: str) -> ASGIApp:
        """An app that waits for an answer that has begun."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                answer = await rest
            finally:
                if lane.places is not None:
                    lane.places.leave(name)
            await self._finishing(lane, answer)(scope, receive, send)

        return app

    def _finishing(self, lane: Lane, answer: Any) -> ASGIApp:
        """An app that sends an answer: an error, or one that is not whole."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if type(answer) is Whole:
                await answer_whole(scope, send, answer)
            else:
                await lane.edge.finish(answer, scope, receive, guarded(send))

        return app


def _released(reserved: Reservation, app: ASGIApp) -> ASGIApp:
    """The same app; what its request has reserved is given back when the answer was read."""

    async def released(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
            await until_read(scope, reserved)
        finally:
            reserved.release()

    return released


def failing(error: Exception) -> ASGIApp:
    """An app that fails: uvicorn logs the error, and answers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return app
