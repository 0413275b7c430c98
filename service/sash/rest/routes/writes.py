"""Routes that put entries into a window, and evict the oldest."""

from __future__ import annotations

from typing import Annotated, Any

from sash.calls import origin_of, unbroken
from sash.rest import arrow, columns
from sash.rest.answers import eviction_document, staged_document, write_document
from sash.rest.bodies import ARROW, JSON
from sash.rest.call import Call
from sash.rest.declare import Body, Problems, RouteGroup, answer, reference
from sash.rest.members import WRITER
from sash.rest.parameters import Parameter
from sash.rest.routes.common import BINARY, INVALID, NUMBERED, STORING, UNKNOWN, Name
from sash.rest.schemas import ANSWER_EXAMPLE, COMMIT, COUNT_EXAMPLE, ENTRY_EXAMPLES, EVICTION, ORIGIN
from sash_engine.windows.batch import AnyBatch

__all__ = ["WRITES"]

WRITES = RouteGroup("writes", "Put entries into a window, and remove the oldest.")

_CONFLICTS: tuple[Problems, ...] = (
    {409: "The window's order policy rejects it: late, out of order, too far ahead, or of a time that is there"},
    NUMBERED,
)
_BULK = Body({JSON: reference("Columns", {"time": [17, 18, 19], "value": [4, 5.5, "NaN"]}), ARROW: BINARY})
_WRITTEN = answer(
    "How many entries were inserted, late, duplicates, too far ahead and evicted", "Written", COUNT_EXAMPLE
)


def _with_arrow(name: str) -> Parameter:
    return Parameter(
        "Of a write with an Arrow body. A JSON body has it as a member.", limits=ORIGIN[name], only_with=ARROW
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
)
async def insert(call: Call, name: Name) -> dict[str, Any]:
    spec = call.plane.spec(name)  # before the body is read: the window may be unknown
    document = await call.json()
    asked, lookbacks = columns.taken_question(document, spec)
    origin = columns.taken_origin(document, spec)
    time, fields, key = columns.entry_of(document, spec)
    write = call.plane.insert(name, time, fields, key, asked, lookbacks, origin=origin)
    return write_document(await unbroken(write), asked)


@WRITES.route(
    "POST",
    "/v1/windows/{name}/bulk-insert",
    "Insert many entries, whole or not at all",
    right="write",
    body=_BULK,
    answers={200: _WRITTEN},
    errors=(INVALID, UNKNOWN, *_CONFLICTS, STORING),
)
async def bulk_insert(
    call: Call,
    name: Name,
    producer: Annotated[str | None, _with_arrow("producer")] = None,
    sequence: Annotated[int | None, _with_arrow("sequence")] = None,
    epoch: Annotated[int | None, _with_arrow("epoch")] = None,
) -> dict[str, Any]:
    spec = call.plane.spec(name)  # before the body is read: it may be long, and the window unknown
    entries_max = call.edge.settings.max_entries_per_write
    if call.kind == JSON:
        document = await call.json()
        origin = columns.taken_origin(document, spec)
        batch = columns.batch_of(document, spec, entries_max)
    else:
        origin = origin_of(producer, sequence, epoch)
        batch = arrow.batch_of(await call.body(), spec, entries_max)
    return write_document(await unbroken(call.plane.bulk_insert(name, batch, origin=origin)))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/bulk-evict",
    "Remove every entry with time <= the given one, of one key or of all",
    right="write",
    body=Body({JSON: reference("Eviction", {"time": 17})}),
    answers={200: answer("How many were removed", "Removed", {"evicted": 3, "durability": "sync"})},
    errors=(INVALID, UNKNOWN, NUMBERED, STORING),
)
async def bulk_evict(call: Call, name: Name) -> dict[str, Any]:
    given = EVICTION.read(await call.json())
    origin = origin_of(given.get("producer"), given.get("sequence"), given.get("epoch"))
    write = call.plane.bulk_evict(name, given["time"], given.get("key"), origin=origin)
    return eviction_document(await unbroken(write))


@WRITES.route(
    "POST",
    "/v1/windows/{name}/stage",
    "Stage a part of a batch: it is invisible until the batch is committed, or it expires",
    right="write",
    body=_BULK,
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
    return staged_document(await unbroken(call.plane.stage(name, await _part(call, name), query, batch)))


async def _part(call: Call, name: str) -> AnyBatch:
    spec = call.plane.spec(name)
    entries_max = call.edge.settings.max_entries_per_write
    if call.kind == JSON:
        return columns.batch_of(await call.json(), spec, entries_max)
    return arrow.batch_of(await call.body(), spec, entries_max)


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
    write = call.plane.commit(name, given["query"], given["batch"], given["stages"])
    return write_document(await unbroken(write))
