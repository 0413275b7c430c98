"""Routes that put entries into a window, and evict the oldest."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from sash.calls import unbroken
from sash.durability.records.commands import (
    Admit,
    BulkInsert,
    Commit,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
    eviction_of,
)
from sash.rest import columns, documents, examples
from sash.rest.answers import admission_document, change_document, eviction_document, staged_document, write_document
from sash.rest.bodies import ARROW, CSV, JSON, LINES, NDJSON
from sash.rest.call import Call
from sash.rest.large_json import LongList
from sash.rest.lines import LineError, LineReader, Lines
from sash.rest.models import Int64, Parameters
from sash.rest.ndjson import NdjsonReader
from sash.rest.problems import of_error
from sash.rest.route import Problems, Route, content, needs, told
from sash.rest.routes.common import BINARY, NO_VALUES, NUMBERED, Name, arrow_imported
from sash_engine.errors import SashError
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.batch import Batch as Rows
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.writing.changes import named

ROUTER = APIRouter(route_class=Route, tags=["writes"])

_REJECTED: Problems = {
    409: "The window's order policy rejects it: late, out of order, too far ahead, or of a time that is there"
}
_COLUMNS = {JSON: content(documents.Columns, {"time": [17, 18, 19], "value": [4, 5.5, "NaN"]}), ARROW: BINARY}
_NAMES = {
    JSON: content(documents.Named, {"time": [17, 18], "order_id": ["order 4711", "order 4712"]}),
    ARROW: BINARY,
}
_LINES = {
    NDJSON: {"schema": {"type": "string", "description": 'A line: `{"time": 17, "value": 4}`'}},
    CSV: {"schema": {"type": "string", "description": "The first line: `time,value`. Each other line: `17,4`"}},
}
_WRITTEN = "How many entries were inserted, late, duplicates, too far ahead and evicted"
_NO_IDENTITY: Problems = {422: "The window has no identity"}


class Beside(Parameters, documents.Origin):
    not_with = JSON


@ROUTER.post(
    "/v1/windows/{name}/insert",
    summary="Insert one entry, and answer a query if asked to",
    response_model=documents.Written,
    response_description="Whether it was inserted, late, a duplicate or too far ahead, and how many were evicted",
    responses=told(_REJECTED, NUMBERED),
    openapi_extra=needs(
        "write", {JSON: {"schema": documents.reference(documents.Entry), "examples": examples.ENTRIES}}
    ),
)
async def insert(call: Call, name: Name) -> dict[str, Any]:
    spec = await call.plane.look_up(name)  # before the body is read: the window may be unknown
    document = await call.json()
    asked, lookbacks = columns.taken_question(document, spec)
    origin = columns.taken_origin(document, spec)
    time, fields, key = columns.entry_of(document, spec, call.plane.now_ns)
    write = call.plane.write(name, Insert(time, fields, key, asked, lookbacks), origin)
    return write_document(await unbroken(write), asked)


@ROUTER.post(
    "/v1/windows/{name}/bulk-insert",
    summary="Insert many entries",
    response_model=documents.Written,
    response_description=_WRITTEN,
    responses=told(_REJECTED, NUMBERED),
    openapi_extra=needs("write", {**_COLUMNS, **_LINES}),
)
async def bulk_insert(call: Call, name: Name, beside: Annotated[Beside, Query()]) -> dict[str, Any] | Response:
    """Columns are applied whole or not at all.

    Lines are entries: objects (NDJSON), or rows below a line with the names of the columns (CSV). The service reads
    them as they arrive, so the limits of a body and of a write do not apply, and applies them in parts of about 16,384
    entries. An error ends the body. It names the line, and `applied` says how many entries stay applied. With a
    producer and a sequence, the whole body is one write with one number: it is applied whole or not at all, and the
    limits apply. These are parameters only if the body is not JSON: a JSON body has them as members.
    """
    spec = await call.plane.look_up(name)  # before the body is read: it may be long, and the window unknown
    if call.kind in LINES:
        lines = Lines(call.plane, name, await _reader(call, spec), call.entries_max)
        return await _lines(call, name, lines, beside.origin())
    batch, origin = await _rows(call, spec, beside)
    return write_document(await unbroken(call.plane.write(name, BulkInsert(batch), origin)))


@ROUTER.post(
    "/v1/windows/{name}/admit",
    summary="Insert the entries that keep all limits, and say which these are",
    response_model=documents.Admitted,
    response_description="Which entries went in; and of those that did not, when they would",
    responses=told(_REJECTED, NUMBERED, {422: "The window cannot decide so: limits are for windows that keep entries"}),
    openapi_extra=needs("write", {JSON: {"schema": documents.reference(documents.Admit), "examples": examples.ADMIT}}),
)
async def admit(call: Call, name: Name) -> dict[str, Any]:
    """Entries are decided in order of time, then as they are sent, in one step: nothing is written in between, and an
    entry that went in counts for the others. A `time` that is a list makes it columns of entries, as of bulk-insert.
    """
    spec = await call.plane.look_up(name, "admit")
    document = await call.json(columns=True)
    origin, limits = columns.taken_origin(document, spec), columns.taken_limits(document, spec)
    if type(document.get("time")) in (list, LongList):
        batch = await call.plane.in_slices(columns.batch_steps(document, spec, call.entries_max, call.plane.now_ns))
    else:
        batch = Rows.of_row(spec, *columns.entry_of(document, spec, call.plane.now_ns))
    return admission_document(await unbroken(call.plane.write(name, Admit(batch, limits), origin)))


async def _lines(call: Call, name: str, lines: Lines, origin: Origin | None) -> dict[str, Any] | Response:
    try:
        if origin is not None:
            return write_document(await lines.apply_whole(await call.body(), origin))
        return write_document(await lines.apply(call.stream()))
    except SashError as error:
        more: dict[str, Any] = {"line": error.line} if isinstance(error, LineError) else {}
        if origin is None:
            counts = write_document(lines.result) if lines.applied_entries else {}
            more["applied"] = {"entries": lines.applied_entries, **counts}
        return of_error(error, "POST", name, more)


@ROUTER.post(
    "/v1/windows/{name}/bulk-evict",
    summary="Remove every entry with time <= the given one, or of a range of time, of one key or of all",
    response_model=documents.Removed,
    response_description="How many were removed",
    responses=told(NUMBERED, NO_VALUES),
    openapi_extra=needs("write"),
)
async def bulk_evict(call: Call, name: Name, given: documents.Eviction) -> dict[str, Any]:
    origin, key = given.origin(), given.key
    if type(key) is dict:
        key = columns.key_of({"key": key}, await call.plane.look_up(name, "bulk_evict"))
    evict = eviction_of(given.time, key, given.start, given.end, given.end_exclusive, given.reset_mark)
    write = call.plane.write(name, evict, origin)
    return eviction_document(await unbroken(write))


@ROUTER.post(
    "/v1/windows/{name}/retract",
    summary="Remove single entries, in a window with an identity",
    response_model=documents.Changed,
    response_description="How many were removed, and how many were not there",
    responses=told(NUMBERED, _NO_IDENTITY),
    openapi_extra=needs("write", _NAMES),
)
async def retract(call: Call, name: Name, beside: Annotated[Beside, Query()]) -> dict[str, Any]:
    """The only column beside time and key is the identity. Entries that are not there are counted as `missing`.

    Without `time`, the newest entry of the key that has the identity leaves. The service reads the entries of the key
    from the newest on to find it. Parameters are those of bulk-insert.
    """
    spec = named(await call.plane.look_up(name, "retract"))
    batch, origin = await _rows(call, spec, beside, True)
    return change_document(await unbroken(call.plane.write(name, Retract(batch), origin)))


@ROUTER.post(
    "/v1/windows/{name}/update",
    summary="Give single entries other values, in a window with an identity",
    response_model=documents.Changed,
    response_description="How many were corrected, and how many were not there",
    responses=told(NUMBERED, _NO_IDENTITY),
    openapi_extra=needs("write", _NAMES),
)
async def update(call: Call, name: Name, beside: Annotated[Beside, Query()]) -> dict[str, Any]:
    """Columns and parameters are those of bulk-insert. Time, key and identity name an entry, which stays in its place.

    Without `time`, the newest entry of the key that has the identity is corrected, as in a retraction.
    """
    spec = await call.plane.look_up(name, "update")
    named(spec)
    batch, origin = await _rows(call, spec, beside, True)
    return change_document(await unbroken(call.plane.write(name, Update(batch), origin)))


async def _rows(
    call: Call, spec: WindowSpec, beside: Beside | None = None, names: bool = False
) -> tuple[AnyBatch, Origin | None]:
    """Return the columns of a body and who sends them.

    Args:
        beside: what the parameters say of who sends them; None: nobody needs to know.
        names: whether the rows name entries: `time` may be missing then.
    """
    if call.kind == JSON:
        document = await call.json(columns=True)
        origin = None if beside is None else columns.taken_origin(document, spec)
        steps = columns.batch_steps(document, spec, call.entries_max, call.plane.now_ns, names)
        return await call.plane.in_slices(steps), origin
    origin, arrow = None if beside is None else beside.origin(), await arrow_imported()
    return await call.read(lambda body: arrow.batch_of(body, spec, call.entries_max, names)), origin


@ROUTER.post(
    "/v1/windows/{name}/punctuate",
    summary="Say that entries up to a time are final, in a window with slide.until",
    response_model=documents.Removed,
    response_description="How many entries left",
    responses=told({422: "The window does not wait for punctuation"}),
    openapi_extra=needs("write"),
)
async def punctuate(call: Call, name: Name, given: documents.Punctuation) -> dict[str, Any]:
    """Entries with time <= `time` are final, and later ones of such a time are late. An older time changes nothing."""
    return eviction_document(await unbroken(call.plane.write(name, Punctuate(given.time))))


class Batch(Parameters):
    query: str = Field(examples=["delays"], json_schema_extra=documents.WRITER)
    """The query that the batch belongs to: 1 to 200 bytes."""
    batch: Int64 = Field(examples=[0], json_schema_extra={"minimum": 0})
    """The batch's number."""


@ROUTER.post(
    "/v1/windows/{name}/stage",
    summary="Stage a part of a batch: it is invisible until the batch is committed, or it expires",
    response_model=documents.Staged,
    response_description="The part is staged",
    responses=told({409: "The batch is committed already", 429: "Too many parts are staged"}),
    openapi_extra=needs("write", _COLUMNS),
)
async def stage(call: Call, name: Name, part: Annotated[Batch, Query()]) -> dict[str, Any]:
    batch, _ = await _rows(call, await call.plane.look_up(name))
    return staged_document(await unbroken(call.plane.write(name, StageBatch(batch, part.query, part.batch))))


async def _reader(call: Call, spec: WindowSpec) -> LineReader:
    if call.kind == NDJSON:
        return NdjsonReader(spec, call.plane.now_ns)
    await arrow_imported()
    from sash.rest.csv_bodies import CsvReader

    return CsvReader(spec, call.plane.now_ns)


@ROUTER.post(
    "/v1/windows/{name}/commit",
    summary="Apply staged parts as one write, once: the second time it changes nothing",
    response_model=documents.Written,
    response_description=_WRITTEN,
    responses=told({409: "A part is not staged, or the window's order policy rejects an entry"}),
    openapi_extra=needs("write"),
)
async def commit(call: Call, name: Name, given: documents.Commit) -> dict[str, Any]:
    write = call.plane.write(name, Commit(given.query, given.batch, given.stages))
    return write_document(await unbroken(write))
