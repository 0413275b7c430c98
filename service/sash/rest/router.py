"""Serves declared routes as an ASGI app: finds the route, calls its handler, sends what the handler returns.

    server ──▶ Front ──▶ route ──▶ handler ──▶ Plane
                           │          └─ an exception becomes a problem document
                           └─ no such path: the fallback, which has the documentation and page

There is no framework between the server and a handler: on one core a framework's request, response and routing cost
more than the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from http import HTTPStatus
from typing import Any, cast

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sash.rest.answers import json_bytes
from sash.rest.call import Call, Edge, Gone
from sash.rest.declare import Right, Route
from sash.rest.problems import of_error, of_status
from sash.rest.whole import Whole, answer_whole
from sash.runtime.metrics import Metrics
from sash_engine.errors import NotFound
from sash_wire import traces

__all__ = ["Admit", "Router", "wrong_method"]

Admit = Callable[[Right, str | None], None]
"""Raises if the caller lacks a right on a window; None: the route names no window."""

_Methods = dict[str, Route]
_JSON = b"application/json"


class Router:
    """Declared routes, ahead of a fallback app.

    Args:
        routes: the declarations.
        edge: the objects that the handlers share.
        fallback: gets the requests of all other paths.
        metrics: counts the requests that end in an error.
        admit: is asked before the body is read.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        edge: Edge,
        fallback: ASGIApp,
        metrics: Metrics,
        admit: Admit | None = None,
    ) -> None:
        self._edge = edge
        self._fallback = fallback
        self._metrics = metrics
        self._admit = admit
        self._plain: dict[str, _Methods] = {}
        # A path with a name, as what stands before the name and what stands after it.
        self._named: dict[str, dict[str, _Methods]] = {}
        for route in routes:
            before, name, after = route.path.partition("{name}")
            methods = self._named.setdefault(before, {}) if name else self._plain
            methods.setdefault(after if name else before, {}).update(
                dict.fromkeys(("GET", "HEAD") if route.head else (route.method,), route)
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        methods, name = self._found(scope["path"], scope["method"])
        if methods is None:
            await self._fallback(scope, receive, send)
        elif (route := methods.get(scope["method"])) is None:
            await self._refuse(wrong_method(scope, methods), scope, receive, send)
        else:
            await self._serve(route, name, scope, receive, send)

    def _found(self, path: str, method: str) -> tuple[Mapping[str, Route] | None, str | None]:
        """Return the methods of a path, and the name in it."""
        plain = self._plain.get(path)
        if plain is not None and method in plain:
            return plain, None
        for before, ends in self._named.items():
            if path.startswith(before):
                name, slash, after = path[len(before) :].partition("/")
                methods = ends.get(slash + after)
                # `/v1/windows/import` may be a window's path as well, for the methods that it does not have itself.
                if name and methods is not None and (plain is None or method in methods):
                    return methods, name
        return plain, None

    def begin(self, scope: Scope, body: bytes) -> Coroutine[Any, Any, Any] | None:
        """Return what answers a small request on a route that is quick; see `quick.Edge`."""
        methods, name = self._found(scope["path"], scope["method"])
        route = None if methods is None else methods.get(scope["method"])
        if (
            route is None
            or not route.quick
            or route.method != scope["method"]
            or len(body) > self._edge.settings.max_body_bytes
        ):
            return None
        return self._answered(route, name, scope, _never, body)

    async def finish(self, answer: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer."""
        if type(answer) is Whole:
            await answer_whole(scope, send, answer)
        elif answer is None:
            return
        elif answer.status_code >= HTTPStatus.BAD_REQUEST:
            await self._refuse(answer, scope, receive, send)
        else:
            await answer(scope, receive, send)

    async def _serve(self, route: Route, name: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if traces.tracer is not None:
            traces.rename(f"{scope['method']} {route.path}")
        await self.finish(await self._answered(route, name, scope, receive), scope, receive, send)

    async def _answered(
        self, route: Route, name: str | None, scope: Scope, receive: Receive, body: bytes | None = None
    ) -> Whole | Response | None:
        """Call the handler of a route; return its answer. None: the caller has gone.

        Args:
            body: all of it, where it is there already.
        """
        try:
            if self._admit is not None and route.right is not None:
                self._admit(route.right, name)
            call = Call(self._edge, scope, receive, route.body, body)
            given = route.parse(scope["query_string"], call.kind)
            answer = route.handler(call, **given) if name is None else route.handler(call, name, **given)
            if route.awaited:
                answer = await answer
            if type(answer) is dict:
                answer = json_bytes(answer)
            if type(answer) is bytes:
                return Whole(route.status, _JSON, answer)
        except Gone:
            return None
        except Exception as error:
            if name is not None and isinstance(error, NotFound) and (plain := self._plain.get(scope["path"])):
                answer = wrong_method(scope, plain)  # a window may be called `import`, but none is
            else:
                answer = of_error(error, scope["method"], scope["path"])
        return cast("Response", answer)

    async def _refuse(self, refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.count_rejected("rest", str(int(refusal.status_code)))
        await refusal(scope, receive, send)


async def _never() -> Message:
    raise AssertionError("the body is there already")


def wrong_method(scope: Scope, methods: Iterable[str]) -> Response:
    """Return the problem document of a path that does not take a method."""
    taken = ", ".join(sorted(methods))
    detail = f"{scope['path'][:200]} takes {taken}, not {scope['method']}"
    return of_status(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": taken})
