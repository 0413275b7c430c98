"""The REST edge of one plane: an application of FastAPI with the declared routes, the documentation and the page.

server ──▶ RestApp ──▶ Route ──▶ handler ──▶ Plane
              └─────▶ /docs, /openapi.json, the page
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sash.plane import Plane
from sash.rest.call import Admit, Collect, Edge
from sash.rest.documentation import DESCRIPTION, completed, documentation
from sash.rest.models import Described
from sash.rest.problems import of_status
from sash.rest.route import Route, wrong_method
from sash.rest.routes import QUICK, ROUTES, TAGS
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.version import version

_WINDOWS = "/v1/windows/"
_ROUTE = "sash.route"
"""In the scope of a request: its route, where that is a hot one."""


class RestApp(FastAPI):
    """The app; made by `create_app`. More routes may be added to `router.routes`."""

    def __init__(self, edge: Edge, metrics: Metrics) -> None:
        super().__init__(
            title="Sash",
            description=DESCRIPTION,
            version=version(),
            openapi_tags=TAGS,
            separate_input_output_schemas=False,
            openapi_url=None,
            redirect_slashes=False,
        )
        self.edge = edge
        self.metrics = metrics
        self._routed = ExceptionMiddleware(self.router, handlers={HTTPException: self._http_error})
        self.router.routes += [*ROUTES, *documentation(self.openapi)]
        self._quick = {(route.method, route.path.removeprefix(_WINDOWS + "{name}/")): route for route in QUICK}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return what answers one request of HTTP.

        Routes answer their own errors, and the server all others; `traced` makes the spans. So there is nothing between
        the server and the router but what answers unknown paths.
        """
        scope["app"] = self
        if _ROUTE in scope or self.at_once(scope):
            route: Route = scope[_ROUTE]
            return route.handle(scope, receive, send)
        return self._routed(scope, receive, send)

    def at_once(self, scope: Scope) -> bool:
        """Whether the answer to a small request may begin without a task: its route is one of the few hot ones.

        FastAPI finds the others, which takes 20 µs.
        """
        path = scope["path"]
        name, _, after = path[len(_WINDOWS) :].partition("/")
        route = self._quick.get((scope["method"], after))
        if route is None or not name or not path.startswith(_WINDOWS):
            return False
        scope[_ROUTE], scope["path_params"] = route, {"name": name}
        return True

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            Described.describe()
            self.openapi_schema = completed(super().openapi(), ROUTES)
        return self.openapi_schema

    def methods(self, path: str) -> list[str]:
        """Return the methods that a path takes, as it is declared."""
        return [route.method for route in ROUTES if route.path == path]

    async def _http_error(self, request: Request, error: Exception) -> Response:
        """Return the problem document of an unknown path, or of a method that a page does not take."""
        assert isinstance(error, HTTPException)
        self.metrics.count_rejected("rest", str(error.status_code))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return wrong_method(request.scope, (error.headers or {})["Allow"].split(", "))
        if error.status_code == HTTPStatus.NOT_FOUND:
            path = request.url.path[:200]
            way = "PromQL is below /prometheus/api/v1, " if path.startswith("/api/v1") else ""
            return of_status(error.status_code, f"there is nothing at {path}; {way}/docs shows what there is")
        return of_status(error.status_code, error.detail, error.headers)


def create_app(
    plane: Plane,
    settings: Settings,
    registry: CollectorRegistry,
    metrics: Metrics,
    not_ready: Callable[[], str | None] = lambda: None,
    admit: Admit | None = None,
    collected: Collect | None = None,
) -> RestApp:
    """Make the app.

    Args:
        plane: the operations, called on the event loop that serves the app, and on no other.
        settings: limits.
        registry: the metrics that ``/metrics`` shows.
        metrics: counts the requests that end in an error.
        not_ready: returns why ``/readyz`` asks for no requests; None if it asks for them.
        admit: raises if the caller lacks a right on a window. It is called before the body is read.
        collected: returns the metrics that ``/metrics`` shows, if they are of more than this process.
    """
    return RestApp(Edge(plane, settings, registry, not_ready, asyncio.Event(), admit, collected), metrics)
