"""Serves the OpenAPI document and Swagger UI, and the routes that are added, such as the page.

The files of Swagger UI come from the package `fastapi_offline`, so that the page loads nothing from other servers.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sash.rest.answers import json_bytes
from sash.rest.bodies import JSON
from sash.rest.openapi import document
from sash.rest.problems import of_status
from sash.rest.router import wrong_method
from sash.rest.routes import GROUPS
from sash.runtime.metrics import Metrics

__all__ = ["documentation_app"]

_FILES = "/static-offline-docs"
_SCRIPT = """SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#swagger-ui", layout: "BaseLayout", deepLinking: true, showExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});"""
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sash: the REST API</title>
<link rel="stylesheet" href="{_FILES}/swagger-ui.css">
<link rel="icon" href="{_FILES}/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{_FILES}/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</body>
</html>
"""
# Of scripts written into a page, only the one above may run.
_POLICY = (
    "default-src 'self'; "
    f"script-src 'self' 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def documentation_app(metrics: Metrics) -> Starlette:
    """Make the app.

    Args:
        metrics: counts the requests of unknown paths and methods.
    """
    app = Starlette(
        routes=[
            Route("/docs", _docs),
            Route("/openapi.json", _openapi),
            Mount(_FILES, StaticFiles(packages=[("fastapi_offline", "static")])),
        ],
        exception_handlers={HTTPException: _HttpErrors(metrics)},
    )
    app.router.redirect_slashes = False
    return app


async def _docs(request: Request) -> Response:
    return Response(_PAGE, media_type="text/html", headers={"content-security-policy": _POLICY})


async def _openapi(request: Request) -> Response:
    return Response(_document(), media_type=JSON)


@cache
def _document() -> bytes:
    return json_bytes(document(GROUPS))


class _HttpErrors:
    """Makes problem documents for unknown paths and methods."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._metrics.count_rejected("rest", str(error.status_code))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return wrong_method(request.scope, (error.headers or {})["Allow"].split(", "))
        if error.status_code == HTTPStatus.NOT_FOUND:
            path = request.url.path[:200]
            return of_status(error.status_code, f"there is nothing at {path}; /docs shows what there is")
        return of_status(error.status_code, error.detail, error.headers)
