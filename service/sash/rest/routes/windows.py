"""Routes that create, show, change, copy and delete windows."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from starlette.responses import Response

from sash.calls import each, shielded, unbroken
from sash.rest.answers import json_response, window_document
from sash.rest.bodies import JSON, OCTETS, YAML
from sash.rest.call import Call
from sash.rest.declare import Body, RouteGroup, answer, reference
from sash.rest.parameters import Parameter
from sash.rest.routes.common import FILE, INVALID, NO_VALUES, STORED, STORING, UNKNOWN, Name, begun, streamed
from sash.rest.schemas import AGGREGATES_EXAMPLE, NAMED, SPEC_EXAMPLE, YAML_EXAMPLE
from sash.topology import Topology
from sash_engine.errors import InvalidArgument
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.spec_text import MAX_SPEC_BYTES

__all__ = ["WINDOWS"]

WINDOWS = RouteGroup("windows", "Create, show and delete windows.")


@WINDOWS.route(
    "POST",
    "/v1/windows",
    "Create a window",
    right="admin",
    body=Body(
        {JSON: reference("WindowSpec", SPEC_EXAMPLE), YAML: reference("WindowSpec", YAML_EXAMPLE)},
        also={"application/x-yaml": YAML, "text/yaml": YAML},
        bytes_max=MAX_SPEC_BYTES,
    ),
    answers={201: answer("Created", "Window"), 200: answer("It exists with the same spec", "Window")},
    errors=(INVALID, {409: "It exists with another spec", 429: "There are as many windows as allowed"}, STORING),
)
async def create_window(call: Call) -> Response:
    document = await (call.json() if call.kind == JSON else call.yaml())
    spec = WindowSpec.parse(document)
    window, created = await unbroken(call.plane.create(spec))
    return json_response(window_document(window), HTTPStatus.CREATED if created else HTTPStatus.OK)


@WINDOWS.route(
    "GET",
    "/v1/windows",
    "List all windows",
    right="read",
    answers={200: answer("All windows, by name", "Windows")},
)
async def list_windows(call: Call) -> dict[str, Any]:
    return {"windows": [window_document(window) for window in await call.plane.windows()]}


@WINDOWS.route(
    "GET",
    "/v1/topology",
    "Show which processes serve the windows",
    right="read",
    answers={200: answer("The processes, and the shards of each", "Topology")},
)
async def get_topology(call: Call) -> dict[str, Any]:
    return _topology(await call.plane.topology())


def _topology(found: Topology) -> dict[str, Any]:
    processes = [
        {
            "number": one.number,
            "up": one.up,
            "grpc_port": one.grpc_port,
            "shards": list(one.shards),
            "address": one.address,
            "sizes": [
                {"shard": shard, "entries": entries, "pending_bytes": pending}
                for shard, (entries, pending) in sorted(one.sizes.items())
            ],
        }
        for one in found.processes
    ]
    return {"shards": found.shards, "processes": processes}


@WINDOWS.route(
    "POST",
    "/v1/topology/move",
    "Have a process take a shard, where processes share them by leases",
    right="admin",
    body=Body({JSON: reference("Move", {"shard": 3, "process": 1})}, bytes_max=1024),
    answers={200: answer("The process has it", "Topology")},
    errors=(INVALID, STORING, {422: "The processes share no shards by leases"}),
)
async def move_shard(call: Call) -> dict[str, Any]:
    body = await call.json()
    shard, process = (_number(body, name) for name in ("shard", "process"))
    return _topology(await unbroken(call.plane.move(shard, process)))


def _number(body: Any, name: str) -> int:
    value = body.get(name) if isinstance(body, dict) else None
    if type(value) is not int:
        raise InvalidArgument(f"{name} must be a number", field=name)
    return value


@WINDOWS.route(
    "GET",
    "/v1/windows/{name}",
    "Show a window",
    right="read",
    answers={200: answer("The window", "Window")},
    errors=(UNKNOWN,),
)
async def get_window(call: Call, name: Name) -> dict[str, Any]:
    return window_document(await call.plane.window(name))


@WINDOWS.route(
    "DELETE",
    "/v1/windows/{name}",
    "Delete a window",
    right="admin",
    answers={200: answer("Deleted; `entries` is how many entries it had", "Removed", {"entries": 42})},
    errors=(UNKNOWN, STORING),
)
async def delete_window(call: Call, name: Name) -> dict[str, Any]:
    return {"entries": await unbroken(call.plane.delete(name))}


@WINDOWS.route(
    "POST",
    "/v1/windows/{name}/aggregates",
    "Add aggregates, computed from the entries that are there",
    right="admin",
    body=Body({JSON: reference("Aggregates", AGGREGATES_EXAMPLE)}, bytes_max=MAX_SPEC_BYTES),
    answers={200: answer("The window as it is now", "Window")},
    errors=(
        INVALID,
        UNKNOWN,
        {409: "An aggregate of that name has another definition"},
        NO_VALUES,
        STORING,
    ),
)
async def add_aggregates(call: Call, name: Name) -> dict[str, Any]:
    aggregates = await call.json()
    return window_document(await unbroken(call.plane.add_aggregates(name, aggregates)))


@WINDOWS.route(
    "GET",
    "/v1/windows/{name}/export",
    "Export a window with all its state, as one file",
    right="read",
    answers={200: {"description": "The window as it is now, as an attachment NAME.sash", "content": FILE}},
    errors=(UNKNOWN, NO_VALUES, STORED),
)
async def export_window(call: Call, name: Name) -> Response:
    # This raises where there is no such window, so the name below needs no quoting.
    parts = await begun(each(await call.plane.export(name)))
    headers = {"content-disposition": f'attachment; filename="{name}.sash"'}
    return streamed(parts, OCTETS, headers)


@WINDOWS.route(
    "POST",
    "/v1/windows/import",
    "Create a window from an exported file, of any size",
    right="admin",
    body=Body(FILE),
    answers={201: answer("Created", "Window")},
    errors=(
        INVALID,
        {409: "There is a window of that name", 429: "There are as many windows as allowed"},
        STORING,
    ),
)
async def import_window(
    call: Call, name: Annotated[str | None, Parameter("Another name for the window.", limits=NAMED)] = None
) -> dict[str, Any]:
    """The service reads the body part by part, so the limit on the size of a body does not apply."""
    return window_document(await shielded(call.plane.restore(call.stream(), name)))
