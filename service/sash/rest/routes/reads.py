"""Routes that ask for aggregates, entries and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property, partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from sash.calls import (
    INTERVAL_MS,
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    QUIET_S,
    allowing,
    check_interval,
    each,
    joined,
    key_names,
)
from sash.limits.memory import apart
from sash.rest import columns, documents
from sash.rest.answers import (
    answer_document,
    answers_json,
    bulk_document,
    json_bytes,
    pairs_steps,
    series_groups_steps,
    series_steps,
)
from sash.rest.bodies import ARROW, JSON
from sash.rest.call import Call
from sash.rest.connection import Whole
from sash.rest.models import ABSENT, Int64, Texts, Time
from sash.rest.route import STORED, Problems, Route, content, needs, told
from sash.rest.routes.common import BINARY, NO_VALUES, Name, Timed, arrow_imported, begun, streamed
from sash.rest.routes.grouping import Conditions, Grouping, Partial, Selecting
from sash.rest.watch import MEDIA_TYPE as EVENTS
from sash.rest.watch import events
from sash_engine.steps import Steps
from sash_engine.windows.answers import Page
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.questions import AnswersAt, EntriesQuery, KeysQuery, RangeQuery, SeriesQuery
from sash_engine.windows.questions import Query as Question
from sash_engine.windows.spec.window import WindowSpec, parse_duration

ROUTER = APIRouter(route_class=Route, tags=["reads"])

_NO_ANSWER: Problems = {
    422: "An aggregate depends on the order of entries, so it has no answer over several keys together"
}

_START, _END = 1357040000000000, 1357041800000000


class Trailing(Grouping):
    """What a query asks."""

    combine: bool = False
    """One answer over the entries of all the keys, instead of one for each."""
    lookback: Texts = Field((), examples=[["1h"]])
    """A duration (5m, 1h30m) or ticks. Without it, the whole window. May be repeated."""
    as_of: Time = ABSENT
    """End of the lookbacks: as_of - L < time <= as_of. Without it a lookback is now - L < time. Now is the key's
    high-water mark, the newest time ever inserted into it; with `combine` that of all the keys asked for; or wall time,
    if that is the window's clock."""
    known_at: Int64 = Field(ABSENT, json_schema_extra={"minimum": 0})
    """With `as_of` and one key, of windows with `known`: only what had been applied at the arrival of this number, as
    `known_at` of an answer says."""
    partials: bool = False
    """Answer with partials, too."""

    @cached_property
    def question(self) -> Question:
        """The question."""
        # With `combine`, one key is a list of one.
        one, several = (None, self.key) if self.combine and self.key and not self.all_keys else self.keys()
        return Question(
            one,
            self.lookback,
            self.as_of,
            several,
            self.combine,
            self.partials,
            selection=self.selection(),
            known_at=self.known_at,
        )


class Querying(Trailing, Partial, Timed):
    pass


class Watching(Trailing, Timed):
    interval: Int64 = Field(INTERVAL_MS, json_schema_extra={"minimum": INTERVAL_MS_MIN, "maximum": INTERVAL_MS_MAX})
    """Milliseconds between two evaluations."""


class Ranging(Partial, Timed):
    start: Time = Field(examples=[_START])
    end: Time = Field(examples=[_END])
    end_exclusive: bool = False
    """Take start <= time < end, so that ranges that meet share no entry."""
    partials: bool = False
    """Answer with partials, too."""


class Bucketing(Partial, Timed):
    start: Time = Field(examples=[_START])
    """Where the first bucket starts."""
    end: Time = Field(examples=[_END])
    """Every bucket starts before it."""
    step: str = Field(ABSENT, examples=["15m"])
    """From one bucket's start to the next: a duration (1s, 15m) or ticks. Or give `gap`."""
    gap: str = ABSENT
    """In the place of `step`: buckets are sessions of one key, which end where no entry follows so soon."""
    width: str = Field(ABSENT, examples=["1h"])
    """The length of a bucket; by default `step`. Buckets longer than `step` overlap."""


class Listing(Conditions):
    prefix: str = Field("", examples=["J"])
    """Only keys with this prefix."""
    limit: Int64 = Field(1000, json_schema_extra={"minimum": 1})
    """The largest number of keys to answer."""
    position: Int64 = Field(0, json_schema_extra={"minimum": 0})
    """Where to go on: `next` of the previous answer."""


class Pairing(Conditions):
    lookback: Texts = Field((), examples=[["1h"]])
    """A duration (5m, 1h30m) or ticks: time - L < t <= time. Without it, everything up to the time. May be repeated."""
    aggregate: Texts = ()
    """The name of an aggregate: only those that are named are computed and answered. May be repeated."""
    partial: str = Field("", json_schema_extra={"enum": ["allow"]})
    """Answer also if some shards are away: their pairs have null; `missing_shards` says which."""


class Exporting(Selecting, Timed):
    start: Time = Field(ABSENT, examples=[_START])
    end: Time = Field(ABSENT, examples=[_END])
    end_exclusive: bool = False
    """Take start <= time < end, so that ranges that meet share no entry."""
    limit: Int64 = Field(ABSENT, json_schema_extra={"minimum": 1})
    """At most so many entries."""
    reverse: bool = False
    """In the other order: the newest of a key first. With `limit`, the newest."""
    known: str = Field("", json_schema_extra={"enum": ["kept", "removed"]})
    """Of one key of a window with `known`, as JSON. `kept`: each entry has `arrival!`, the number of its arrival.
    `removed`: instead of the entries, what was retracted or corrected. `arrival!` and `removed!` say from when to when
    it counted, and `placed!` is the number of its first version."""


@ROUTER.get(
    "/v1/windows/{name}/query",
    summary="The current answer, over everything or over one or more lookbacks",
    response_model=documents.Answers,
    response_description="One answer per key and lookback",
    responses=told(_NO_ANSWER, STORED),
    openapi_extra=needs("read"),
)
async def query(call: Call, name: Name, asked: Annotated[Querying, Query()]) -> bytes:
    question = asked.question
    unit = await asked.iso_unit(call, name)
    with allowing(asked.partial) as missing:
        found = await call.plane.ask(name, question)
    spec = await call.plane.look_up(name) if question.partials else None
    return _told(await answers_json(found, spec, call.plane.in_slices, unit=unit), missing)


@ROUTER.get(
    "/v1/windows/{name}/range",
    summary="The answer over start <= time <= end (or < end), of one key or over the entries of several",
    response_model=documents.Answer | documents.Groups,
    response_description="The answer; or an answer for each group",
    responses=told(_NO_ANSWER, STORED),
    openapi_extra=needs("read"),
)
async def range_query(call: Call, name: Name, asked: Annotated[Ranging, Query()]) -> dict[str, Any] | bytes:
    how, (one, several) = asked.selection(), asked.keys()
    question = RangeQuery(asked.start, asked.end, one, several, asked.partials, asked.end_exclusive, selection=how)
    spec = await call.plane.look_up(name) if asked.partials else None
    unit = await asked.iso_unit(call, name)
    with allowing(asked.partial) as missing:
        answer = await call.plane.ask(name, question)
    if isinstance(answer, Page):
        return _told(await answers_json(answer, spec, call.plane.in_slices, "groups", unit), missing)
    found = answer_document(answer, spec, unit)
    return {**found, "missing_shards": sorted(missing)} if missing else found


@ROUTER.get(
    "/v1/windows/{name}/series",
    summary="Answers over many buckets at once, which may overlap: the points of a chart",
    response_model=documents.Series | documents.SeriesGroups,
    response_description="The answers, column by column; or those of each group. As Arrow: columns time, entries and "
    "aggregates.NAME, and with groups one for each name of `by`, before them.",
    responses=told({200: {"content": {ARROW: BINARY}}}, _NO_ANSWER, STORED),
    openapi_extra=needs("read"),
)
async def series(call: Call, name: Name, asked: Annotated[Bucketing, Query()]) -> bytes | Whole:
    how, (one, several) = asked.selection(), asked.keys()
    start, end, step = asked.start, asked.end, asked.step or ""
    question = SeriesQuery(start, end, step, asked.width, one, several, gap=asked.gap, selection=how)
    unit = await asked.iso_unit(call, name)
    with allowing(asked.partial) as missing:
        found = await call.plane.ask(name, question)
    if call.prefers(ARROW):
        arrow = await arrow_imported()
        return Whole(200, ARROW.encode(), arrow.stream_of(found, how.by or ()))
    ticks = parse_duration(step or asked.gap or "", (await call.plane.look_up(name)).time_unit, "step")
    if isinstance(found, Page):
        return await _written(call, series_groups_steps(found, start, end, ticks, unit), missing)
    return await _written(call, series_steps(found, start, end, ticks, unit), missing)


async def _written(call: Call, steps: Steps[list[bytes]], missing: set[int]) -> bytes:
    """A JSON document that is made in steps, and the shards that it lacks."""
    return _told(await joined(await call.plane.in_slices(steps)), missing)


def _told(document: bytes, missing: set[int]) -> bytes:
    """A JSON document, and the shards that it lacks."""
    return document if not missing else document[:-1] + b',"missing_shards":' + json_bytes(sorted(missing)) + b"}"


@ROUTER.post(
    "/v1/windows/{name}/answers-at",
    summary="The answers about many pairs of a key and a time: of each what a query as of that time answers",
    response_model=documents.AnswersAt,
    response_description="A row for each pair, in their order. As Arrow: columns entries and those of the aggregates; "
    "with lookbacks entries_1h, NAME_1h and so on.",
    responses=told({200: {"content": {ARROW: BINARY}}}, _NO_ANSWER, STORED),
    openapi_extra=needs(
        "read", {JSON: content(documents.Pairs, {"time": [17, 18], "key": ["JFK", "LGA"]}), ARROW: BINARY}
    ),
)
async def answers_at(call: Call, name: Name, asked: Annotated[Pairing, Query()]) -> bytes | Whole:
    """The body has the pairs as columns. It changes nothing; it is a POST because pairs are many."""
    spec = await call.plane.look_up(name, AnswersAt.name)
    if call.kind == JSON:
        times, keys, known_at = await call.plane.in_slices(
            columns.pairs_steps(await call.json(columns=True), spec, call.plane.now_ns)
        )
    else:
        arrow = await arrow_imported()
        times, keys, known_at = await call.read(lambda body: arrow.pairs_of(body, spec))
    question = AnswersAt(times, keys, asked.lookback, asked.conditions(), asked.aggregate, known_at)
    with allowing(asked.partial) as missing:
        found = await call.plane.ask(name, question)
    if call.prefers(ARROW):
        arrow = await arrow_imported()
        return Whole(200, ARROW.encode(), arrow.stream_of_pairs(found))
    return await _written(call, pairs_steps(found), missing)


@ROUTER.get(
    "/v1/windows/{name}/watch",
    summary="The current answers as server-sent events: at once, and whenever they have changed",
    response_class=StreamingResponse,
    response_description="Events with the document that a query answers. An event `problem` ends the stream.",
    responses=told(
        {200: {"content": {EVENTS: {"itemSchema": documents.reference(documents.Event)}}}}, _NO_ANSWER, STORED
    ),
    openapi_extra=needs("read"),
)
async def watch(call: Call, name: Name, asked: Annotated[Watching, Query()]) -> Response:
    question = asked.question
    check_interval(asked.interval, "interval")
    unit = await asked.iso_unit(call, name)

    async def look() -> bytes:
        found = await call.plane.ask(name, question)
        spec = await call.plane.look_up(name) if question.partials else None
        return await answers_json(found, spec, call.plane.in_slices, unit=unit)

    await apart(look())  # refuses a wrong question before the stream begins
    chosen = ("json", name, *asked.model_dump().values())
    may = partial(call.plane.check_may, name, "query")
    changes = call.plane.watches.changes(chosen, look, asked.interval, call.edge.closing, QUIET_S, may)
    return StreamingResponse(events(changes), headers={"cache-control": "no-store"}, media_type=EVENTS)


@ROUTER.get(
    "/v1/windows/{name}/keys",
    summary="The keys that have entries, page by page, in the order of their first entries",
    response_model=documents.Keys,
    response_description="Some of the keys",
    openapi_extra=needs("read"),
)
async def keys(call: Call, name: Name, asked: Annotated[Listing, Query()]) -> dict[str, Any]:
    question = KeysQuery(asked.prefix, asked.limit, asked.position, asked.conditions())
    found, next_ = await key_names(call.plane, name, question)
    return {"keys": found} | ({} if next_ is None else {"next": next_})


@ROUTER.get(
    "/v1/windows/{name}/entries",
    summary="The entries, by key and time, as bulks that bulk-insert takes",
    response_model=documents.Bulks,
    response_description="The entries. As Arrow: a record batch for each bulk.",
    responses=told({200: {"content": {ARROW: BINARY}}}, NO_VALUES, STORED),
    openapi_extra=needs("read"),
)
async def entries(call: Call, name: Name, asked: Annotated[Exporting, Query()]) -> Response:
    one, several = asked.keys()
    question = EntriesQuery(
        asked.start,
        asked.end,
        one,
        several,
        asked.end_exclusive,
        asked.conditions(),
        asked.limit,
        asked.reverse,
        asked.known,
    )
    unit = await asked.iso_unit(call, name)
    bulks = await begun(each(await call.plane.ask(name, question)))
    spec = await call.plane.look_up(name)
    if call.prefers(ARROW) and not asked.known:
        arrow = await arrow_imported()
        return streamed(arrow.stream_of_bulks(bulks, spec), ARROW)
    return streamed(_json_bulks(bulks, spec, unit), JSON)


async def _json_bulks(bulks: AsyncIterator[AnyBatch], spec: WindowSpec, unit: str | None) -> AsyncIterator[bytes]:
    """Yield one document, bulk by bulk: ``{"bulks": [{"time": […], …}, …]}``."""
    before = b'{"bulks":['
    async for bulk in bulks:
        yield before + json_bytes(bulk_document(bulk, spec, unit))
        before = b","
    yield b"]}\n" if before == b"," else before + b"]}\n"
