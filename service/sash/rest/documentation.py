"""The OpenAPI document and Swagger UI.

The files of Swagger UI come from the package `fastapi_offline`, so that the page loads nothing from other servers.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as PlainRoute
from starlette.staticfiles import StaticFiles

from sash.rest import documents
from sash.rest.answers import json_bytes
from sash.rest.bodies import JSON
from sash.rest.route import Route
from sash_engine.windows.spec.window import WindowSpec

_TEXT = """Named sliding windows: push entries, ask for the aggregates of any trailing window at once.

Time is an int64 in ticks of the window's unit. Ranges include both ends, unless `end_exclusive` is true.
A lookback `l` as of `t` covers `t - l < time <= t`. Where JSON has no number, answers (and float64 values in requests)
have the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, and bytes are base64. Every error is a problem document (RFC
9457) that names the field, and the limit if one was passed. Any request is answered with 503 if too many are in
progress, and with 421 if its `Host` is not allowed (`SASH_ALLOWED_HOSTS`). A write from a web page of another origin is
answered with 403 unless `SASH_CORS_ORIGINS` allows the origin.

A write is answered when it is as durable as the answer's `durability` says: `sync`, the tier has it; `interval`, the
tier has it a moment later; `memory`, no tier ever has it. A write with a `producer` and a `sequence` (1, 2, 3, … for
each producer and window) is applied once, however often it is sent. The same number with other data is refused, and so
is an `epoch` lower than the producer's last one.
"""
DESCRIPTION = "\n\n".join(" ".join(paragraph.split()) for paragraph in _TEXT.split("\n\n"))
"""A line for each paragraph: Markdown takes a line that begins with a number and a bracket for an item of a list."""


_FILES = "/static-offline-docs"
SCHEMAS: dict[str, type] = {
    name: found
    for name, found in vars(documents).items()
    if isinstance(found, type) and found.__module__ == documents.__name__ and name.isalpha()
}
"""The models of `documents`, by name."""


def completed(document: dict[str, Any], routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document that FastAPI made, with all schemas, and without what does not hold.

    FastAPI does not know the models that routes only refer to, leaves nulls out of examples, and adds its own error of
    parameters to every route.
    """
    for route in routes:
        if route.include_in_schema and 422 not in route.responses:
            document["paths"][route.path][route.method.lower()]["responses"].pop("422", None)
    _, schemas = models_json_schema(
        [(model, "validation") for model in (WindowSpec, *SCHEMAS.values())],
        ref_template="#/components/schemas/{model}",
    )
    document["components"] = {
        "schemas": dict(sorted(schemas["$defs"].items())),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return {name: each if name == "info" else _tidy(each) for name, each in document.items()}


def _tidy(item: Any) -> Any:
    """Return a part of the document without the titles that pydantic makes of names, and without defaults that are no
    value of their type. Bounds are integers, and a description that is one paragraph is one line.
    """
    if isinstance(item, list):
        return [_tidy(each) for each in item]
    if not isinstance(item, dict):
        return item
    made = {
        name: _tidy(each)
        for name, each in item.items()
        if (name != "title" or not isinstance(each, str)) and (name != "default" or each is not None)
    }
    for name, each in made.items():
        if name in ("minimum", "maximum") and isinstance(each, float):
            made[name] = int(each)
        elif name == "description" and isinstance(each, str) and "\n\n" not in each:
            made[name] = each.replace("\n", " ")
    return made


def documentation(openapi: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """Return the routes of the documentation.

    Args:
        openapi: makes the document.
    """
    page = bytes(
        get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Sash: the REST API",
            swagger_js_url=f"{_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{_FILES}/swagger-ui.css",
            swagger_favicon_url=f"{_FILES}/favicon.png",
            swagger_ui_parameters={"showExtensions": True},
        ).body
    )
    # Of scripts written into a page, only that of this page may run.
    (script,) = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    policy = (
        "default-src 'self'; "
        f"script-src 'self' 'sha256-{b64encode(sha256(script).digest()).decode()}'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    written = cache(lambda: json_bytes(openapi()))

    async def docs(request: Request) -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": policy})

    async def document(request: Request) -> Response:
        return Response(written(), media_type=JSON)

    return [
        PlainRoute("/docs", docs),
        PlainRoute("/openapi.json", document),
        Mount(_FILES, StaticFiles(packages=[("fastapi_offline", "static")])),
    ]
