"""Routes that ask for aggregates, entries and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

from starlette.responses import Response, StreamingResponse

from sash.calls import INTERVAL_MS, INTERVAL_MS_MAX, INTERVAL_MS_MIN, QUIET_S, check_interval, each, key_names
from sash.limits.memory import apart
from sash.missing import allowing
from sash.rest import arrow
from sash.rest.answers import answer_document, bulk_document, json_bytes
from sash.rest.bodies import ARROW, JSON
from sash.rest.call import Call
from sash.rest.declare import Problems, RouteGroup, answer, either, reference
from sash.rest.long import answers_json, series_groups_json, series_json
from sash.rest.parameters import Parameter
from sash.rest.routes.common import BINARY, INVALID, NO_VALUES, STORED, UNKNOWN, Name, begun, streamed
from sash.rest.routes.grouping import (
    Aggregates,
    By,
    HavingTexts,
    Limit,
    N,
    Order,
    Position,
    TopBy,
    WhereTexts,
    grouping,
    where_of,
)
from sash.rest.schemas import ANSWER_EXAMPLE, GROUP_EXAMPLE, SERIES_EXAMPLE, SERIES_GROUPS_EXAMPLE
from sash.rest.watch import MEDIA_TYPE as EVENTS
from sash.rest.watch import events
from sash.rest.whole import Whole
from sash_engine.errors import InvalidArgument
from sash_engine.windows.answers import Page
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    KeyList,
    KeysQuery,
    Query,
    RangeQuery,
    SeriesQuery,
)
from sash_engine.windows.spec import WindowSpec, parse_duration

__all__ = ["READS"]

READS = RouteGroup("reads", "Ask for aggregates.")

_NO_ANSWER: Problems = {
    422: "An aggregate depends on the order of entries, so it has no answer over several keys together. Or the "
    "window's algorithm answers for the whole window only"
}

_Keys = Annotated[
    Sequence[str],
    Parameter("The key. A keyed window needs this or `all_keys`. May be repeated.", example=["JFK"]),
]
_AllKeys = Annotated[bool, Parameter("Every key that has entries, instead of `key`.")]
_Combine = Annotated[bool, Parameter("One answer over the entries of all the keys, instead of one for each.")]
_Lookbacks = Annotated[
    Sequence[str],
    Parameter("A duration (5m, 1h30m) or ticks. Without it, the whole window. May be repeated.", example=["1h"]),
]
_AsOf = Annotated[
    int | None,
    Parameter(
        "End of the lookbacks: as_of - L < time <= as_of. Without it a lookback is now - L < time. Now "
        "is the key's high-water mark, the newest time ever inserted into it; with `combine` that of all the keys "
        "asked for; or wall time, if that is the window's clock."
    ),
]
_Partials = Annotated[bool, Parameter("Answer with partials, too.")]
_Partial = Annotated[
    str, Parameter("Answer also if some shards are away; `missing_shards` says which.", limits={"enum": ["allow"]})
]
_EndExclusive = Annotated[bool, Parameter("Take start <= time < end, so that ranges that meet share no entry.")]
_START, _END = 1357040000000000, 1357041800000000


@READS.route(
    "GET",
    "/v1/windows/{name}/query",
    "The current answer, over everything or over one or more lookbacks",
    right="read",
    answers={200: answer("One answer per key and lookback", "Answers", {"answers": [ANSWER_EXAMPLE]})},
    errors=(INVALID, UNKNOWN, _NO_ANSWER, STORED),
    quick=True,
)
async def query(
    call: Call,
    name: Name,
    key: _Keys = (),
    all_keys: _AllKeys = False,
    combine: _Combine = False,
    lookback: _Lookbacks = (),
    as_of: _AsOf = None,
    partials: _Partials = False,
    where: WhereTexts = (),
    by: By = (),
    top: TopBy = None,
    n: N = 10,
    order: Order = "desc",
    having: HavingTexts = (),
    limit: Limit = None,
    position: Position = "",
    aggregate: Aggregates = (),
    partial: _Partial = "",
) -> bytes:
    how = grouping(where, by, top, n, order, having, limit, position, aggregate)
    with allowing(partial) as missing:
        found = await _answers(call, name, _question(key, all_keys, combine, lookback, as_of, partials, how))
    return _told(found, missing)


@READS.route(
    "GET",
    "/v1/windows/{name}/range",
    "The answer over start <= time <= end (or < end), of one key or over the entries of several",
    right="read",
    answers={
        200: either(
            "The answer; or an answer for each group",
            {"Answer": {**ANSWER_EXAMPLE, "lookback": None}, "Groups": {"groups": [GROUP_EXAMPLE], "next": "B6"}},
        )
    },
    errors=(INVALID, UNKNOWN, _NO_ANSWER, STORED),
    quick=True,
)
async def range_query(
    call: Call,
    name: Name,
    start: Annotated[int, Parameter(example=_START)],
    end: Annotated[int, Parameter(example=_END)],
    end_exclusive: _EndExclusive = False,
    key: _Keys = (),
    all_keys: _AllKeys = False,
    partials: _Partials = False,
    where: WhereTexts = (),
    by: By = (),
    top: TopBy = None,
    n: N = 10,
    order: Order = "desc",
    having: HavingTexts = (),
    limit: Limit = None,
    position: Position = "",
    aggregate: Aggregates = (),
    partial: _Partial = "",
) -> dict[str, Any] | bytes:
    how = grouping(where, by, top, n, order, having, limit, position, aggregate)
    one, several = _keys(key, all_keys)
    question = RangeQuery(start, end, one, several, partials, end_exclusive, selection=how)
    spec = await call.plane.look_up(name) if partials else None
    with allowing(partial) as missing:
        answer = await call.plane.ask(name, question)
    if isinstance(answer, Page):
        return _told(await answers_json(answer, spec, call.plane.in_slices, "groups"), missing)
    found = answer_document(answer, spec)
    return {**found, "missing_shards": sorted(missing)} if missing else found


@READS.route(
    "GET",
    "/v1/windows/{name}/series",
    "Answers over many buckets at once, which may overlap: the points of a chart",
    right="read",
    answers={
        200: {
            "description": "The answers, column by column; or those of each group. As Arrow: columns time, entries "
            "and aggregates.NAME, and with groups one for each name of `by`, before them.",
            "content": {
                **either("", {"Series": SERIES_EXAMPLE, "SeriesGroups": SERIES_GROUPS_EXAMPLE})["content"],
                ARROW: BINARY,
            },
        }
    },
    errors=(INVALID, UNKNOWN, _NO_ANSWER, STORED),
)
async def series(
    call: Call,
    name: Name,
    start: Annotated[int, Parameter("Where the first bucket starts.", example=_START)],
    end: Annotated[int, Parameter("Every bucket starts before it.", example=_END)],
    step: Annotated[
        str | None,
        Parameter("From one bucket's start to the next: a duration (1s, 15m) or ticks. Or give `gap`.", example="15m"),
    ] = None,
    gap: Annotated[
        str | None,
        Parameter("In the place of `step`: buckets are sessions of one key, which end where no entry follows so soon."),
    ] = None,
    width: Annotated[
        str | None,
        Parameter("The length of a bucket; by default `step`. Buckets longer than `step` overlap.", example="1h"),
    ] = None,
    key: _Keys = (),
    all_keys: _AllKeys = False,
    where: WhereTexts = (),
    by: By = (),
    top: TopBy = None,
    n: N = 10,
    order: Order = "desc",
    having: HavingTexts = (),
    limit: Limit = None,
    position: Position = "",
    aggregate: Aggregates = (),
    partial: _Partial = "",
) -> bytes | Whole:
    how = grouping(where, by, top, n, order, having, limit, position, aggregate)
    one, several = _keys(key, all_keys)
    question = SeriesQuery(start, end, step or "", width, one, several, gap=gap, selection=how)
    with allowing(partial) as missing:
        found = await call.plane.ask(name, question)
    if isinstance(found, Page):
        if call.prefers(ARROW):
            return Whole(200, ARROW.encode(), arrow.stream_of_groups(found, question.selection.by or ()))
        ticks = parse_duration(step or gap or "", (await call.plane.look_up(name)).time_unit, "step")
        return _told(await series_groups_json(found, start, end, ticks, call.plane.in_slices), missing)
    if call.prefers(ARROW):
        return Whole(200, ARROW.encode(), arrow.stream_of(found))
    ticks = parse_duration(step or gap or "", (await call.plane.look_up(name)).time_unit, "step")
    return _told(await series_json(found, start, end, ticks, call.plane.in_slices), missing)


def _told(document: bytes, missing: set[int]) -> bytes:
    """A JSON document, and the shards that it lacks."""
    return document if not missing else document[:-1] + b',"missing_shards":' + json_bytes(sorted(missing)) + b"}"


@READS.route(
    "GET",
    "/v1/windows/{name}/watch",
    "The current answers as server-sent events: at once, and whenever they have changed",
    right="read",
    answers={
        200: {
            "description": "Events with the document that a query answers. An event `problem` ends the stream.",
            "content": {EVENTS: {"itemSchema": {"$ref": "#/components/schemas/Event"}}},
        }
    },
    errors=(INVALID, UNKNOWN, _NO_ANSWER, STORED),
)
async def watch(
    call: Call,
    name: Name,
    key: _Keys = (),
    all_keys: _AllKeys = False,
    combine: _Combine = False,
    lookback: _Lookbacks = (),
    as_of: _AsOf = None,
    partials: _Partials = False,
    interval: Annotated[
        int,
        Parameter(
            "Milliseconds between two evaluations.", limits={"minimum": INTERVAL_MS_MIN, "maximum": INTERVAL_MS_MAX}
        ),
    ] = INTERVAL_MS,
    where: WhereTexts = (),
    by: By = (),
    top: TopBy = None,
    n: N = 10,
    order: Order = "desc",
    having: HavingTexts = (),
    limit: Limit = None,
    position: Position = "",
    aggregate: Aggregates = (),
) -> Response:
    how = grouping(where, by, top, n, order, having, limit, position, aggregate)
    question = _question(key, all_keys, combine, lookback, as_of, partials, how)
    check_interval(interval, "interval")

    async def look() -> bytes:
        return await _answers(call, name, question)

    await apart(look())  # refuses a wrong question before the stream begins
    chosen = (tuple(where), tuple(by), top, n, order, tuple(having), limit, position, tuple(aggregate))
    asked = ("json", name, tuple(key), all_keys, combine, tuple(lookback), as_of, partials, interval, chosen)
    may = partial(call.plane.check_may, name, "query")
    changes = call.plane.watches.changes(asked, look, interval, call.edge.closing, QUIET_S, may)
    return StreamingResponse(events(changes), headers={"cache-control": "no-store"}, media_type=EVENTS)


@READS.route(
    "GET",
    "/v1/windows/{name}/keys",
    "The keys that have entries, page by page, in the order of their first entries",
    right="read",
    answers={200: answer("Some of the keys", "Keys", {"keys": ["JFK", "JAX"], "next": 2})},
    errors=(INVALID, UNKNOWN),
)
async def keys(
    call: Call,
    name: Name,
    prefix: Annotated[str | None, Parameter("Only keys with this prefix.", example="J")] = None,
    limit: Annotated[int, Parameter("The largest number of keys to answer.", limits={"minimum": 1})] = 1000,
    position: Annotated[int, Parameter("Where to go on: `next` of the previous answer.", limits={"minimum": 0})] = 0,
    where: WhereTexts = (),
) -> dict[str, Any]:
    found, next_ = await key_names(call.plane, name, KeysQuery(prefix or "", limit, position, where_of(where)))
    return {"keys": found} | ({} if next_ is None else {"next": next_})


@READS.route(
    "GET",
    "/v1/windows/{name}/entries",
    "The entries, by key and time, as bulks that bulk-insert takes",
    right="read",
    answers={
        200: {
            "description": "The entries. As Arrow: a record batch for each bulk.",
            "content": {
                JSON: reference("Bulks", {"bulks": [{"time": [17, 18], "fields": {"value": [4.0, 5.5]}}]}),
                ARROW: BINARY,
            },
        }
    },
    errors=(INVALID, UNKNOWN, NO_VALUES, STORED),
)
async def entries(
    call: Call,
    name: Name,
    start: Annotated[int | None, Parameter(example=_START)] = None,
    end: Annotated[int | None, Parameter(example=_END)] = None,
    end_exclusive: _EndExclusive = False,
    key: _Keys = (),
    all_keys: _AllKeys = False,
    where: WhereTexts = (),
) -> Response:
    one, several = _keys(key, all_keys)
    question = EntriesQuery(start, end, one, several, end_exclusive, where_of(where))
    bulks = await begun(each(await call.plane.ask(name, question)))
    spec = await call.plane.look_up(name)
    if call.prefers(ARROW):
        return streamed(arrow.stream_of_bulks(bulks, spec), ARROW)
    return streamed(_json_bulks(bulks, spec), JSON)


def _question(
    key: Sequence[str],
    all_keys: bool,
    combine: bool,
    lookback: Sequence[str],
    as_of: int | None,
    partials: bool,
    how: Grouped,
) -> Query:
    # With `combine`, one key is a list of one.
    one, several = (None, key) if combine and key and not all_keys else _keys(key, all_keys)
    return Query(one, lookback, as_of, several, combine, partials, selection=how)


def _keys(key: Sequence[str], all_keys: bool) -> tuple[str | None, KeyList]:
    """Return the one key, and the several keys, that are asked for: at most one of the two is there."""
    if all_keys:
        if key:
            raise InvalidArgument("give either key or all_keys", field="all_keys")
        return None, ALL_KEYS
    return (key[0] if key else None, ()) if len(key) < 2 else (None, key)


async def _answers(call: Call, name: str, question: Query) -> bytes:
    """The document of a query's answers."""
    found = await call.plane.ask(name, question)
    spec = await call.plane.look_up(name) if question.partials else None
    return await answers_json(found, spec, call.plane.in_slices)


async def _json_bulks(bulks: AsyncIterator[AnyBatch], spec: WindowSpec) -> AsyncIterator[bytes]:
    """Yield one document, bulk by bulk: ``{"bulks": [{"time": […], …}, …]}``."""
    before = b'{"bulks":['
    async for bulk in bulks:
        yield before + json_bytes(bulk_document(bulk, spec))
        before = b","
    yield b"]}" if before == b"," else before + b"]}"
