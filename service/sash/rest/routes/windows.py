"""Routes that create, show, change, copy and delete windows."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from sash.calls import each, shielded, unbroken
from sash.rest import documents, examples
from sash.rest.answers import json_bytes, window_document
from sash.rest.bodies import JSON, OCTETS, YAML
from sash.rest.call import Call
from sash.rest.connection import Whole
from sash.rest.documents import Window
from sash.rest.models import ABSENT, Parameters
from sash.rest.route import STORED, Route, content, needs, told
from sash.rest.routes.common import FILE, NO_VALUES, Name, Timed, begun, streamed
from sash.topology import Topology
from sash_engine.windows.spec.text import MAX_SPEC_BYTES
from sash_engine.windows.spec.window import WindowSpec

ROUTER = APIRouter(route_class=Route, tags=["windows"])


@ROUTER.post(
    "/v1/windows",
    summary="Create a window",
    status_code=201,
    response_model=Window,
    response_description="Created",
    responses=told(
        {200: {"model": Window, "description": "It exists with the same spec"}},
        {409: "It exists with another spec", 429: "There are as many windows as allowed"},
    ),
    openapi_extra=needs(
        "admin", {JSON: content(WindowSpec, examples.SPEC), YAML: content(WindowSpec, examples.SPEC_YAML)}
    ),
)
async def create_window(call: Call) -> Whole:
    document = await (call.json(bytes_max=MAX_SPEC_BYTES) if call.kind == JSON else call.yaml(MAX_SPEC_BYTES))
    spec = WindowSpec.parse(document)
    window, created = await unbroken(call.plane.create(spec))
    status = HTTPStatus.CREATED if created else HTTPStatus.OK
    return Whole(status, b"application/json", json_bytes(window_document(window)), b"\n")


@ROUTER.get(
    "/v1/windows",
    summary="List all windows",
    response_model=documents.Windows,
    response_description="All windows, by name",
    openapi_extra=needs("read"),
)
async def list_windows(call: Call) -> dict[str, Any]:
    return {"windows": [window_document(window) for window in await call.plane.windows()]}


@ROUTER.get(
    "/v1/topology",
    summary="Show which processes serve the windows",
    response_model=documents.Topology,
    response_description="The processes, and the shards of each",
    openapi_extra=needs("read"),
)
async def get_topology(call: Call) -> dict[str, Any]:
    return _topology(await call.plane.topology())


def _topology(found: Topology) -> dict[str, Any]:
    processes = []
    for one in found.processes:
        sizes = [
            {"shard": shard, "entries": entries, "pending_bytes": pending}
            for shard, (entries, pending) in sorted(one.sizes.items())
        ]
        processes.append(asdict(one) | {"shards": list(one.shards), "sizes": sizes})
    return {"shards": found.shards, "processes": processes}


@ROUTER.post(
    "/v1/topology/move",
    summary="Have a process take a shard, where processes share them by leases",
    response_model=documents.Topology,
    response_description="The process has it",
    responses=told({422: "The processes share no shards by leases"}),
    openapi_extra=needs("admin"),
)
async def move_shard(call: Call, move: documents.Move) -> dict[str, Any]:
    return _topology(await unbroken(call.plane.move(move.shard, move.process)))


class Import(Parameters):
    name: str = Field(ABSENT, json_schema_extra=documents.NAMED)
    """Another name for the window."""


# Ahead of `/v1/windows/{name}`: a window may have the name.
@ROUTER.post(
    "/v1/windows/import",
    summary="Create a window from an exported file, of any size",
    status_code=201,
    response_model=Window,
    response_description="Created",
    responses=told({409: "There is a window of that name", 429: "There are as many windows as allowed"}),
    openapi_extra=needs("admin", FILE),
)
async def import_window(call: Call, asked: Annotated[Import, Query()]) -> dict[str, Any]:
    """The service reads the body part by part, so the limit on the size of a body does not apply."""
    return window_document(await shielded(call.plane.restore(call.stream(), asked.name)))


@ROUTER.get(
    "/v1/windows/{name}",
    summary="Show a window",
    response_model=Window,
    response_description="The window",
    openapi_extra=needs("read"),
)
async def get_window(call: Call, name: Name, asked: Annotated[Timed, Query()]) -> dict[str, Any]:
    unit = await asked.iso_unit(call, name)
    return window_document(await call.plane.window(name), unit)


@ROUTER.delete(
    "/v1/windows/{name}",
    summary="Delete a window",
    response_model=documents.Removed,
    response_description="Deleted; `entries` is how many entries it had",
    openapi_extra=needs("admin"),
)
async def delete_window(call: Call, name: Name) -> dict[str, Any]:
    return {"entries": await unbroken(call.plane.delete(name))}


@ROUTER.post(
    "/v1/windows/{name}/aggregates",
    summary="Add aggregates, computed from the entries that are there",
    response_model=Window,
    response_description="The window as it is now",
    responses=told({409: "An aggregate of that name has another definition"}, NO_VALUES),
    openapi_extra=needs("admin", {JSON: content(documents.Aggregates)}),
)
async def add_aggregates(call: Call, name: Name) -> dict[str, Any]:
    aggregates = await call.json(bytes_max=MAX_SPEC_BYTES)
    return window_document(await unbroken(call.plane.add_aggregates(name, aggregates)))


@ROUTER.get(
    "/v1/windows/{name}/export",
    summary="Export a window with all its state, as one file",
    response_class=StreamingResponse,
    response_description="The window as it is now, as an attachment NAME.sash",
    responses=told({200: {"content": FILE}}, STORED),
    openapi_extra=needs("read"),
)
async def export_window(call: Call, name: Name) -> Response:
    # This raises where there is no such window, so the name below needs no quoting.
    parts = await begun(each(await call.plane.export(name)))
    headers = {"content-disposition": f'attachment; filename="{name}.sash"'}
    return streamed(parts, OCTETS, headers)
