"""The OpenAPI document, made from the declarations of the routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sash.rest.declare import RouteGroup
from sash.rest.schemas import SCHEMAS
from sash_engine.version import version
from sash_engine.windows.spec import WindowSpec

__all__ = ["document"]

DESCRIPTION = """Named sliding windows: push entries, ask for the aggregates of any trailing window at once.

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


def document(groups: Iterable[RouteGroup]) -> dict[str, Any]:
    """Return the OpenAPI document of some routes."""
    tags: list[dict[str, str]] = []
    paths: dict[str, dict[str, Any]] = {}
    for group in groups:
        tags.append({"name": group.tag, "description": group.description})
        for route in group.routes:
            paths.setdefault(route.path, {})[route.method.lower()] = route.document()
    spec = WindowSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**SCHEMAS, **spec.pop("$defs", {}), "WindowSpec": spec}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sash", "description": DESCRIPTION, "version": version()},
        "paths": paths,
        "tags": tags,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
