"""The REST edge of one plane: the declared routes, and behind them FastAPI, which serves the documentation.

server ──▶ Router ──▶ a declared route ──▶ Plane
              └─────▶ FastAPI: /docs, /openapi.json, the page
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from http import HTTPStatus

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from sash.metrics import Metrics
from sash.plane import Plane
from sash.rest import openapi
from sash.rest.call import Edge
from sash.rest.problems import of_status
from sash.rest.router import Admit, Router, wrong_method
from sash.rest.routes import GROUPS, ROUTES
from sash.settings import Settings
from sash.version import version

__all__ = ["RestApp", "create_app"]


class RestApp:
    """The app; made by `create_app`."""

    def __init__(self, router: Router, documentation: FastAPI, closing: asyncio.Event) -> None:
        self._router = router
        self._documentation = documentation
        self.closing = closing
        """Ends all watches when it is set."""

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes beside the declared ones; more may be added."""
        return self._documentation.router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        await self._router(scope, receive, send)


def create_app(
    plane: Plane,
    settings: Settings,
    registry: CollectorRegistry,
    metrics: Metrics,
    not_ready: Callable[[], str | None] = lambda: None,
    admit: Admit | None = None,
) -> RestApp:
    """Make the app.

    Args:
        plane: the operations, called on the event loop that serves the app, and on no other.
        settings: limits.
        registry: what ``/metrics`` shows.
        metrics: counts the requests that end in an error.
        not_ready: returns why ``/readyz`` asks for no requests; None if it asks for them.
        admit: raises where the caller lacks a right on a window. It is called before the body is read.
    """
    documentation = FastAPIOffline(
        docs_url="/docs", redoc_url=None, title="Sash", version=version(), redirect_slashes=False
    )
    documentation.openapi = cache(lambda: openapi.document(GROUPS))  # type: ignore[method-assign]
    documentation.add_exception_handler(HTTPException, _HttpErrors(metrics))
    closing = asyncio.Event()
    edge = Edge(plane, settings, registry, not_ready, closing)
    router = Router(ROUTES, edge, documentation, metrics, settings.max_concurrent_calls, admit)
    return RestApp(router, documentation, closing)


class _HttpErrors:
    """Makes problem documents for paths that no declared route has."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._metrics.count_rejected("rest", str(error.status_code))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return wrong_method(request.scope, _methods_of(request))
        if error.status_code == HTTPStatus.NOT_FOUND:
            path = request.url.path[:200]
            return of_status(error.status_code, f"there is nothing at {path}; /docs shows what there is")
        return of_status(error.status_code, error.detail, error.headers)


def _methods_of(request: Request) -> set[str]:
    """Return all methods that the path takes; the framework names those of the first route only."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
