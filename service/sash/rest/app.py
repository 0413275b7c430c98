"""The REST edge of one plane: the declared routes, and behind them the documentation.

server ──▶ Router ──▶ a declared route ──▶ Plane
              └─────▶ /docs, /openapi.json, the page
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from sash.plane import Plane
from sash.rest.call import Collect, Edge
from sash.rest.documentation import documentation_app
from sash.rest.router import Admit, Router
from sash.rest.routes import ROUTES
from sash.runtime.metrics import Metrics
from sash.settings import Settings

__all__ = ["RestApp", "create_app"]


class RestApp:
    """The app; made by `create_app`."""

    def __init__(self, router: Router, documentation: Starlette, closing: asyncio.Event) -> None:
        self._router = router
        self._documentation = documentation
        self.closing = closing
        """Ends all watches when it is set."""

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes beside the declared ones; more may be added."""
        return self._documentation.router.routes

    @property
    def router(self) -> Router:
        """The declared routes."""
        return self._router

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
    collected: Collect | None = None,
) -> RestApp:
    """Make the app.

    Args:
        plane: the operations, called on the event loop that serves the app, and on no other.
        settings: limits.
        registry: the metrics that ``/metrics`` shows.
        metrics: counts the requests that end in an error.
        not_ready: returns why ``/readyz`` asks for no requests; None if it asks for them.
        collected: returns the metrics that ``/metrics`` shows, if they are of more than this process.
        admit: raises if the caller lacks a right on a window. It is called before the body is read.
    """
    closing = asyncio.Event()
    edge = Edge(plane, settings, registry, not_ready, closing, collected)
    documentation = documentation_app(metrics)
    router = Router(ROUTES, edge, documentation, metrics, admit)
    return RestApp(router, documentation, closing)
