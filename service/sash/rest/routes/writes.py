"""Routes that put entries into a window, and evict the oldest."""

from __future__ import annotations

from typing import Annotated, Any

from starlette.responses import Response

from sash.calls import origin_of, unbroken
from sash.durability.records import (
    BulkInsert,
    Commit,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
    eviction_of,
)
from sash.rest import arrow, columns
from sash.rest.answers import change_document, eviction_document, staged_document, write_document
from sash.rest.bodies import ARROW, CSV, JSON, LINES, NDJSON
from sash.rest.call import Call
from sash.rest.declare import Body, Problems, RouteGroup, answer, reference
from sash.rest.lines import LineError, Lines
from sash.rest.members import WRITER
from sash.rest.ndjson import NdjsonReader
from sash.rest.parameters import Parameter
from sash.rest.problems import of_error
from sash.rest.routes.common import BINARY, INVALID, NO_VALUES, NUMBERED, STORING, UNKNOWN, Name
from sash.rest.schemas import (
    ANSWER_EXAMPLE,
    COMMIT,
    COUNT_EXAMPLE,
    ENTRY_EXAMPLES,
    EVICTION,
    ORIGIN,
    PUNCTUATION,
    SCHEMAS,
)
from sash.rest.separated import CsvReader
from sash_engine.errors import SashError
from sash_engine.windows.batch import AnyBatch, Origin
from sash_engine.windows.changes import named
from sash_engine.windows.spec import WindowSpec

__all__ = ["WRITES"]

WRITES = RouteGroup("writes", "Put entries into a window, and remove the oldest.")

_CONFLICTS: tuple[Problems, ...] = (
    {409: "The window's order policy rejects it: late, out of order, too far ahead, or of a time that is there"},
    NUMBERED,
)
_COLUMNS = {JSON: reference("Columns", {"time": [17, 18, 19], "value": [4, 5.5, "NaN"]}), ARROW: BINARY}
_NAMES = {
    JSON: {
        "schema": {
            **SCHEMAS["Columns"],
            "description": "The columns that name entries, of one length: `time`, `key` where keyed, and the identity; "
            "for an update, every field. Without `time`, the newest entry of the key with the identity is meant.",
            "required": [],
        },
        "example": {"time": [17, 18], "order_id": ["order 4711", "order 4712"]},
    },
    ARROW: BINARY,
}
_LINES = {
    NDJSON: {"schema": {"type": "string", "description": 'A line: `{"time": 17, "value": 4}`'}},
    CSV: {"schema": {"type": "string", "description": "The first line: `time,value`. Each other line: `17,4`"}},
}
_WRITTEN = answer(
    "How many entries were inserted, late, duplicates, too far ahead and evicted", "Written", COUNT_EXAMPLE
)

_NO_IDENTITY: Problems = {422: "The window has no identity"}
_CHANGED = {"retracted": 2, "corrected": 0, "missing": 1, "evicted": 0, "durability": "sync"}


def _beside(name: str) -> Parameter:
    return Parameter(
        "Of a write whose body is not JSON. A JSON body has it as a member.",
        limits=ORIGIN[name],
        only_with=(ARROW, *LINES),
    )


@WRITES.route(
    "POST",
    "/v1/windows/{name}/insert",
    "Insert one entry, and answer a query if asked to",
    right="write",
    body=Body({JSON: {**reference("Entry"), "examples": ENTRY_EXAMPLES}}),
    answers={
        200: answer(
            "Whether the entry was inserted, late, a duplicate or too far ahead, and how many were evicted",
            "Written",
            {**COUNT_EXAMPLE, "inserted": 1, "answers": [ANSWER_EXAMPLE]},
        )
    },
    errors=(INVALID, UNKNOWN, *_CONFLICTS, STORING),
    quick=True,
)
async def insert(call: Call, name: Name) -> dict[str, Any]:
    spec = await call.plane.look_up(name)  # before the body is read: the window may be unknown
    document = await call.json()
    asked, lookbacks = columns.taken_question(document, spec)
    origin = columns.taken_origin(document, spec)
    time, fields, key = columns.entry_of(document, spec)
    write = call.plane.write(name, Insert(time, fields, key, asked, lookbacks), origin)
    return write_document(await unbroken(write), asked)


@WRITES.route(
    "POST",
    "/v1/windows/{name}/bulk-insert",
    "Insert many entries",
    right="write",
    body=Body({**_COLUMNS, **_LINES}),
    answers={200: _WRITTEN},
    errors=(INVALID, UNKNOWN, *_CONFLICTS, STORING),
)
async def bulk_insert(
    call: Call,
    name: Name,
    producer: Annotated[str | None, _beside("producer")] = None,
    sequence: Annotated[int | None, _beside("sequence")] = None,
    epoch: Annotated[int | None, _beside("epoch")] = None,
) -> dict[str, Any] | Response:
    """Columns are applied whole or not at all.

    Lines are entries: objects (NDJSON), or rows below a line with the names of the columns (CSV). The service reads
    them as they arrive, so the limits of a body and of a write do not apply, and applies them in parts of about 16,384
    entries. An error ends the body. It names the line, and `applied` says how many entries stay applied. With a
    producer and a sequence, the whole body is one write with one number: it is applied whole or not at all, and the
    limits apply.
    """
    spec = await call.plane.look_up(name)  # before the body is read: it may be long, and the window unknown
    entries_max = call.edge.settings.max_entries_per_write
    if call.kind in LINES:
        reader = NdjsonReader(spec) if call.kind == NDJSON else CsvReader(spec)
        lines = Lines(call.plane, name, reader, entries_max)
        return await _lines(call, name, lines, origin_of(producer, sequence, epoch))
    batch, origin = await _numbered(call, spec, (producer, sequence, epoch))
    return write_document(await unbroken(call.plane.write(name, BulkInsert(batch), origin)))


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


@WRITES.route(
    "POST",
    "/v1/windows/{name}/bulk-evict",
    "Remove every entry with time <= the given one, or of a range of time, of one key or of all",
    right="write",
    body=Body({JSON: reference("Eviction", {"time": 17})}),
    answers={200: answer("How many were removed", "Removed", {"evicted": 3, "durability": "sync"})},
    errors=(INVALID, UNKNOWN, NUMBERED, NO_VALUES, STORING),
)
async def bulk_evict(call: Call, name: Name) -> dict[str, Any]:
    given = EVICTION.read(await call.json())
    origin = origin_of(given.get("producer"), given.get("sequence"), given.get("epoch"))
    time, start, end = given.get("time"), given.get("start"), given.get("end")
    key, exclusive = given.get("key"), given.get("end_exclusive", False)
    if type(key) is dict:
        key = columns.key_of(given, await call.plane.look_up(name, "bulk_evict"))
    write = call.plane.write(name, eviction_of(time, key, start, end, exclusive), origin)
    return eviction_document(await unbroken(write))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/retract",
    "Remove single entries, in a window with an identity",
    right="write",
    body=Body(_NAMES),
    answers={200: answer("How many were removed, and how many were not there", "Changed", _CHANGED)},
    errors=(INVALID, UNKNOWN, NUMBERED, _NO_IDENTITY, STORING),
)
async def retract(
    call: Call,
    name: Name,
    producer: Annotated[str | None, _beside("producer")] = None,
    sequence: Annotated[int | None, _beside("sequence")] = None,
    epoch: Annotated[int | None, _beside("epoch")] = None,
) -> dict[str, Any]:
    """The only column beside time and key is the identity. Entries that are not there are counted as `missing`.

    Without `time`, the newest entry of the key that has the identity leaves. The service reads the entries of the key
    from the newest on to find it.
    """
    spec = named(await call.plane.look_up(name, "retract"))
    batch, origin = await _numbered(call, spec, (producer, sequence, epoch), True)
    return change_document(await unbroken(call.plane.write(name, Retract(batch), origin)))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/update",
    "Give single entries other values, in a window with an identity",
    right="write",
    body=Body(_NAMES),
    answers={200: answer("How many were corrected, and how many were not there", "Changed", _CHANGED)},
    errors=(INVALID, UNKNOWN, NUMBERED, _NO_IDENTITY, STORING),
)
async def update(
    call: Call,
    name: Name,
    producer: Annotated[str | None, _beside("producer")] = None,
    sequence: Annotated[int | None, _beside("sequence")] = None,
    epoch: Annotated[int | None, _beside("epoch")] = None,
) -> dict[str, Any]:
    """Columns are those of bulk-insert. Time, key and identity name an entry, which stays in its place.

    Without `time`, the newest entry of the key that has the identity is corrected, as in a retraction.
    """
    spec = await call.plane.look_up(name, "update")
    named(spec)
    batch, origin = await _numbered(call, spec, (producer, sequence, epoch), True)
    return change_document(await unbroken(call.plane.write(name, Update(batch), origin)))


async def _numbered(
    call: Call, spec: WindowSpec, beside: tuple[str | None, int | None, int | None], names: bool = False
) -> tuple[AnyBatch, Origin | None]:
    """Return the columns of a body and who sends them.

    Args:
        beside: what the parameters say of who sends them.
        names: whether the rows name entries: `time` may be missing then.
    """
    entries_max = call.edge.settings.max_entries_per_write
    if call.kind == JSON:
        document = await call.json(columns=True)
        origin = columns.taken_origin(document, spec)
        return await call.plane.in_slices(columns.batch_steps(document, spec, entries_max, names)), origin
    origin = origin_of(*beside)
    return await call.read(lambda body: arrow.batch_of(body, spec, entries_max, names)), origin


@WRITES.route(
    "POST",
    "/v1/windows/{name}/punctuate",
    "Say that entries up to a time are final, in a window with slide.until",
    right="write",
    body=Body({JSON: reference("Punctuation", {"time": 17})}),
    answers={200: answer("How many entries left", "Removed", {"evicted": 3, "durability": "sync"})},
    errors=(INVALID, UNKNOWN, {422: "The window does not wait for punctuation"}, STORING),
)
async def punctuate(call: Call, name: Name) -> dict[str, Any]:
    """Entries with time <= `time` are final, and later ones of such a time are late. An older time changes nothing."""
    given = PUNCTUATION.read(await call.json())
    return eviction_document(await unbroken(call.plane.write(name, Punctuate(given["time"]))))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/stage",
    "Stage a part of a batch: it is invisible until the batch is committed, or it expires",
    right="write",
    body=Body(_COLUMNS),
    answers={
        200: answer("The part is staged", "Staged", {"stage": "7f2c9a0b61d4e385", "entries": 3, "durability": "sync"})
    },
    errors=(INVALID, UNKNOWN, {409: "The batch is committed already", 429: "Too many parts are staged"}, STORING),
)
async def stage(
    call: Call,
    name: Name,
    query: Annotated[
        str, Parameter("The query that the batch belongs to: 1 to 200 bytes.", example="delays", limits=WRITER.schema)
    ],
    batch: Annotated[int, Parameter("The batch's number.", example=0, limits={"minimum": 0})],
) -> dict[str, Any]:
    return staged_document(await unbroken(call.plane.write(name, StageBatch(await _part(call, name), query, batch))))


async def _part(call: Call, name: str) -> AnyBatch:
    spec = await call.plane.look_up(name)
    entries_max = call.edge.settings.max_entries_per_write
    if call.kind == JSON:
        return await call.plane.in_slices(columns.batch_steps(await call.json(columns=True), spec, entries_max))
    return await call.read(lambda body: arrow.batch_of(body, spec, entries_max))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/commit",
    "Apply staged parts as one write, once: the second time it changes nothing",
    right="write",
    body=Body({JSON: reference("Commit", {"query": "delays", "batch": 0, "stages": []})}),
    answers={200: _WRITTEN},
    errors=(
        INVALID,
        UNKNOWN,
        {409: "A part is not staged, or the window's order policy rejects an entry"},
        STORING,
    ),
)
async def commit(call: Call, name: Name) -> dict[str, Any]:
    given = COMMIT.read(await call.json())
    write = call.plane.write(name, Commit(given["query"], given["batch"], given["stages"]))
    return write_document(await unbroken(write))
