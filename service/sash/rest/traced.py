"""Serves requests of the HTTP port in spans of OpenTelemetry, ahead of everything else, where traces are on."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from sash.context import CallContext, request_id
from sash.rest.connection import ANSWERS
from sash.rest.entrance import ALWAYS
from sash_wire import traces

_PATH_MAX = 200


def traced(app: ASGIApp) -> ASGIApp:
    """Return an app that serves each request in a span; `app` itself if traces are off.

    Requests for health and metrics have no span. What finds the route renames the span.
    """
    if traces.tracer is None:
        return app

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS:
            await app(scope, receive, send)
            return
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"][:_PATH_MAX]}
        with traces.serving(scope["method"], CallContext(lambda: scope["headers"]).trace(), attributes) as span:
            await app(scope, receive, send)
            status = scope[ANSWERS].status
            span.set_attribute("http.response.status_code", status)
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                traces.fail(str(status))
            span.set_attribute("sash.request_id", request_id())

    return answer
