"""Routes for monitors: metrics and health."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from sash.rest.call import Call
from sash.rest.declare import RouteGroup, answer
from sash.rest.problems import of_status

__all__ = ["SERVICE"]

SERVICE = RouteGroup("service", "Health and metrics.")

_TEXT = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}


@SERVICE.route(
    "GET",
    "/metrics",
    "Metrics, as Prometheus reads them",
    right="read",
    answers={200: {"description": "All metrics", "content": _TEXT}},
    head=True,
)
async def metrics(call: Call) -> Response:
    encode, content_type = choose_encoder(call.header(b"accept"))
    return Response(encode(await call.edge.metrics()), headers={"content-type": content_type})


@SERVICE.route(
    "GET",
    "/healthz",
    "Is the process alive?",
    right=None,
    answers={200: answer("It is alive", "Status")},
    head=True,
)
def healthz(call: Call) -> dict[str, Any]:
    return {"status": "alive"}


@SERVICE.route(
    "GET",
    "/readyz",
    "Is the service ready for requests?",
    right=None,
    answers={200: answer("It is ready", "Status")},
    errors=({503: "It is not ready; `detail` says why: it is starting or shutting down, or its tier is away"},),
    head=True,
)
def readyz(call: Call) -> dict[str, Any] | Response:
    reason = call.edge.not_ready()
    return {"status": "ready"} if reason is None else of_status(HTTPStatus.SERVICE_UNAVAILABLE, reason)
