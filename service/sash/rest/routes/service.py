"""Routes for monitors: metrics and health."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from sash.rest.call import Call
from sash.rest.documents import Status
from sash.rest.problems import of_status
from sash.rest.route import Route, needs, told

ROUTER = APIRouter(route_class=Route, tags=["service"])

_TEXT = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}


@ROUTER.get(
    "/metrics",
    summary="Metrics, as Prometheus reads them",
    response_class=Response,
    response_description="All metrics",
    responses={200: {"content": _TEXT}},
    openapi_extra=needs("read"),
)
@ROUTER.head("/metrics", openapi_extra=needs("read"), include_in_schema=False)
async def metrics(call: Call) -> Response:
    encode, content_type = choose_encoder(call.header(b"accept"))
    return Response(encode(await call.edge.metrics()), headers={"content-type": content_type})


@ROUTER.get("/healthz", summary="Is the process alive?", response_model=Status, response_description="It is alive")
@ROUTER.head("/healthz", include_in_schema=False)
def healthz(call: Call) -> dict[str, Any]:
    return {"status": "alive"}


@ROUTER.get(
    "/readyz",
    summary="Is the service ready for requests?",
    response_model=Status,
    response_description="It is ready",
    responses=told({503: "It is not ready; `detail` says why: it is starting or shutting down, or its tier is away"}),
)
@ROUTER.head("/readyz", include_in_schema=False)
def readyz(call: Call) -> dict[str, Any] | Response:
    reason = call.edge.not_ready()
    return {"status": "ready"} if reason is None else of_status(HTTPStatus.SERVICE_UNAVAILABLE, reason)
