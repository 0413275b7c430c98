"""The documents of REST: bodies whose members do not depend on a window's spec, and answers.

Bodies of entries (`Entry`, `Columns`) are only described here: `columns` reads them, typed by the window's spec.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, WithJsonSchema

from sash.calls import origin_of
from sash.rest import examples
from sash.rest.bodies import JSON
from sash.rest.models import (
    ABSENT,
    INT64,
    Answered,
    Described,
    Document,
    Instant,
    Int64,
    NullableInstant,
    NullableText,
    Time,
    shown,
)
from sash.rest.scalars import text
from sash_engine.windows.batches import batch
from sash_engine.windows.spec.policies import AggregateSpec
from sash_engine.windows.spec.window import WindowSpec


def reference(model: type) -> dict[str, str]:
    """Return what stands for a model's schema in the OpenAPI document."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


NAMED: dict[str, Any] = {"pattern": "^[A-Za-z_][A-Za-z0-9_.-]{0,127}$"}
"""The limits of a window's name, in words of JSON Schema; the operation checks them."""
WRITER: dict[str, Any] = {"minLength": 1, "maxLength": 200}
"""Those of the name of a producer or a query."""

_VALUE: dict[str, Any] = {
    "description": "A value of the field's type; null only for a field that the spec names in `nullable`.",
    "type": ["number", "string", "boolean", "null"],
}
_VALUES: dict[str, Any] = {"type": "array", "items": _VALUE}
_TIME: list[Any] = [INT64, {"type": "string"}]
_TEXTS = {"type": "array", "items": {"type": "string"}}
Value = Annotated[Any, WithJsonSchema(_VALUE)]
Key = Annotated[
    Any,
    BeforeValidator(lambda value: value if type(value) is dict else text(value, "key")),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}),
]
Durability: TypeAlias = Literal["sync", "interval", "memory"]
Partials: TypeAlias = dict[str, dict[str, list[Any]]]


# ---------------------------------------------------------------- bodies


class Origin(Described):
    """The sender of a write."""

    producer: str = Field(ABSENT, json_schema_extra=WRITER)
    """With `sequence`: the write is applied once. 1 to 200 bytes."""
    sequence: Int64 = Field(ABSENT, json_schema_extra={"minimum": 1})
    """1, 2, 3, … for each producer, epoch and window."""
    epoch: Int64 = Field(ABSENT, json_schema_extra={"minimum": 0, "default": 0})
    """A higher one takes the producer's name over; a lower one is refused."""
    after: Int64 = Field(ABSENT, json_schema_extra={"minimum": 0})
    """Where numbers have gaps, as offsets of a log do: the number of the write before this one, 0 if there is none. The
    numbers then go on under a higher epoch, and stand for their data."""

    def origin(self) -> batch.Origin | None:
        """Return who sends the write; None where it does not say so."""
        return origin_of(self.producer, self.sequence, self.epoch, self.after)


class Eviction(Document, Origin):
    """Either `time`, or `start` and `end`."""

    model_config = shown({"time": 17})

    time: Time = ABSENT
    """Entries with this time and older leave."""
    start: Time = ABSENT
    """With `end`: entries with start <= time <= end leave."""
    end: Time = ABSENT
    end_exclusive: bool = False
    """start <= time < end"""
    reset_mark: bool = False
    """With a range: keys whose newest time ever is in it go on from their newest entry that is left."""
    key: Key = None
    """The key; where keys have parts also an object of these, by name."""


class Punctuation(Document):
    model_config = shown({"time": 17})

    time: Time
    """Entries up to it are final."""


class Commit(Document):
    """The parts of a batch, in the order in which they are applied. Without parts, the batch is empty."""

    model_config = shown({"query": "delays", "batch": 0, "stages": []})

    query: str = Field(json_schema_extra=WRITER)
    batch: Int64 = Field(json_schema_extra={"minimum": 0})
    stages: Annotated[list[str], Field(fail_fast=True)]


class Move(Document):
    model_config = shown({"shard": 3, "process": 1})

    bytes_max: ClassVar[int | None] = 1024

    shard: Int64 = Field(json_schema_extra={"minimum": 0, "maximum": 4095})
    process: Int64 = Field(json_schema_extra={"minimum": 0, "maximum": 2**31 - 1})


class Aggregates(RootModel[dict[str, AggregateSpec]]):
    """Aggregates by name, as in a spec."""

    model_config = shown(examples.AGGREGATES)


class Entry(Origin):
    """One entry. `value` is the only field of a window that has one; `fields` names every field."""

    time: Time
    """Ticks of the window; or ISO 8601, `now` or `now-1h`, by the clock of the service. With a sequence, give the same
    time again when you send an entry again."""
    key: Key = None
    """The key; where keys have parts also an object of these, by name."""
    value: Value = None
    fields: dict[str, Value] = ABSENT
    answer: bool = False
    """Answer as a query does, after the write."""
    lookbacks: list[Annotated[str | int, WithJsonSchema({"type": ["string", "integer"]})]] = ABSENT
    """With `answer`: the lookbacks of that query."""


class _Columns(Origin):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": _VALUES})

    key: Annotated[Any, WithJsonSchema({"anyOf": [_TEXTS, {"type": "object", "additionalProperties": _TEXTS}]})] = None
    """The keys; where keys have parts also a list for each part, by name."""
    fields: dict[str, Annotated[Any, WithJsonSchema(_VALUES)]] = ABSENT
    partials: Partials = ABSENT
    """By aggregate and part: columns, as the page Partials of the documentation lists them. Parts that are not numbers
    are a column `blob` in base64."""
    entries: list[Int64] = ABSENT
    """With `partials`: how many entries each row stands for."""


class Columns(_Columns):
    """Entries as columns of one length: `time`, `key` where keyed, and each field by its name, beside them or in
    `fields`. Where keys have parts, each part may be a column in place of `key`. A window with a granularity takes
    `partials` of every aggregate, and `entries`, instead.
    """

    time: list[Time]


class Limit(Described):
    """A condition that must hold with a row for it to go in, in every trailing lookback that has the row and ends with
    it or with a later entry. No answer, and NaN, never do."""

    aggregate: str
    """The name of an aggregate that answers a number, or `entries`."""
    lookback: Annotated[str | int, WithJsonSchema({"type": ["string", "integer"]})]
    op: Literal["<=", "<", ">=", ">"] = "<="
    value: Annotated[float, WithJsonSchema({"type": ["number", "string"]})]
    by: list[str] = ABSENT
    """Names of parts of keys: over all keys that agree with the row's key in these; none: over all keys. Left out: over
    the row's own key."""


class Admit(Origin):
    """One entry, or entries as columns of one length, and limits. The entries are as of insert, or of bulk-insert."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"anyOf": [_VALUE, _VALUES]}})

    limits: list[Limit]
    """1 to 16."""
    time: Annotated[Any, WithJsonSchema({"anyOf": [*_TIME, {"type": "array", "items": {"anyOf": _TIME}}]})]
    key: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, {"type": "object"}]}),
    ] = None
    fields: dict[str, Annotated[Any, WithJsonSchema({"anyOf": [_VALUE, _VALUES]})]] = ABSENT


class Named(_Columns):
    """The columns that name entries, of one length: `time`, `key` where keyed, and the identity; for an update, every
    field. Without `time`, the newest entry of the key with the identity is meant.
    """

    time: list[Time] = ABSENT


# ---------------------------------------------------------------- answers


class Applied(Answered):
    entries: Int64


class Problem(Answered):
    """An error, in the form of RFC 9457."""

    type: Annotated[str, WithJsonSchema({"type": "string", "format": "uri"})]
    title: str
    status: int
    detail: str
    reason: str = Field(ABSENT, examples=["OUT_OF_ROOM"])
    """The kind of error, for programs: the reason of gRPC's ErrorInfo."""
    field: str = ABSENT
    """Path of the field that is wrong."""
    limit: str = ABSENT
    """The limit that was passed."""
    unchanged: bool = ABSENT
    """Of `UNAVAILABLE`: nothing was changed, so any call may be made again."""
    request_id: str = ABSENT
    """The id of the request, as the service's log has it: what `X-Request-Id` said, or a new one. The header
    `X-Request-Id` of the answer has it, too."""
    line: int = ABSENT
    """Of a body of lines: the number of the first line that is wrong, from 1 on."""
    applied: Applied = ABSENT
    """Of a body of lines: the first `entries` entries of it are applied, with this result."""


class Counts(Answered):
    """Numbers of entries. `duplicates` have the time of an entry that was there, in a window that keeps one for each
    time: they were dropped, or took its place. `ahead` are too far ahead of wall time (`order.ahead`). `retracted` and
    `corrected` are there for a window with an identity.
    """

    inserted: Int64
    late: Int64
    evicted: Int64
    duplicates: Int64
    ahead: Int64
    retracted: Int64 = ABSENT
    corrected: Int64 = ABSENT


class Window(Answered):
    spec: WindowSpec
    entries: Int64
    keys: Int64
    """How many keys have entries."""
    oldest: NullableInstant
    """Time of the oldest entry; null if the window is empty or keyed."""
    newest: NullableInstant
    """Time of the newest entry of all keys; null if the window is empty."""
    high_water_mark: NullableInstant
    """The newest time that was ever inserted, even if its entry has left; null if none was."""
    punctuated: NullableInstant = ABSENT
    """Entries of this time and older are final. Only of a window with `slide.until`."""
    evicted_through: Instant = ABSENT
    """No newer entry was evicted by the slide policy. Missing if none was."""
    counts: Counts
    durability: Durability
    problem: NullableText
    """The reason why the window does not answer now: it is being recovered, or cannot be."""


class Windows(Answered):
    windows: list[Window]


class Shard(Answered):
    shard: int
    entries: int
    pending_bytes: int
    """Bytes of writes that wait for a commit."""


class Process(Answered):
    number: int
    up: bool
    grpc_port: int
    """The port that only this process listens on; 0 if there is none, or it is not known."""
    shards: list[int]
    address: str = ABSENT
    """Host and port of gRPC for clients on any machine, if it is not that of the service."""
    sizes: list[Shard] = ABSENT


class Topology(Answered):
    """The processes of a service."""

    shards: int
    processes: list[Process]


class Status(Answered):
    status: str


class _Given(Answered):
    durability: Durability
    already_applied: bool = ABSENT
    """The write is a retry and changed nothing. Absent unless true."""


class Removed(_Given):
    """How many entries were removed."""

    model_config = shown({"evicted": 3, "durability": "sync"}, {"entries": 42})

    evicted: Int64 = ABSENT
    entries: Int64 = ABSENT
    durability: Durability = ABSENT


class Changed(_Given):
    """How many entries were retracted or corrected, how many were not there, and how many the slide policy evicted."""

    model_config = shown({"retracted": 2, "corrected": 0, "missing": 1, "evicted": 0, "durability": "sync"})

    retracted: Int64
    corrected: Int64
    missing: Int64
    evicted: Int64


class Staged(Answered):
    """A staged part of a batch. The commit names it by `stage`."""

    model_config = shown({"stage": "7f2c9a0b61d4e385", "entries": 3, "durability": "sync"})

    stage: str
    entries: Int64
    durability: Durability


class _Partial(Answered):
    missing_shards: list[int] = ABSENT
    """With `partial`: the shards that are away, whose part it lacks; absent if there is none."""


class _Page(_Partial):
    next: str = ABSENT
    """Where to go on (`position`); absent where there is no more."""


class Answer(_Partial):
    """The aggregates of the entries with start <= time <= end."""

    model_config = shown(examples.ANSWER)

    key: NullableText
    lookback: NullableText
    start: NullableInstant
    end: NullableInstant
    entries: Int64
    aggregates: dict[str, Any]
    partials: Partials = ABSENT
    """If asked for: columns of one row, as bulk-insert takes them."""
    parts: dict[str, str] = ABSENT
    """The parts of the key by name, or those of the group."""
    known_at: Int64 = ABSENT
    """Of a window with `known`: the number of the last arrival that the answer knows."""


class Answers(_Page):
    model_config = shown({"answers": [examples.ANSWER]})

    answers: list[Answer]


class Groups(_Page):
    """An answer for each group of keys."""

    model_config = shown({"groups": [examples.GROUP], "next": "B6"})

    groups: list[Answer]


class Written(_Given):
    """How many entries a write inserted, evicted and left out; `answers` if they were asked for."""

    model_config = shown(examples.COUNTS, {**examples.COUNTS, "answers": [examples.ANSWER]})

    inserted: Int64
    late: Int64
    evicted: Int64
    duplicates: Int64
    ahead: Int64
    history: Int64 = ABSENT
    """How many of the inserted ones were too old for the slide: they are only in the window's history."""
    answers: list[Answer] = ABSENT


class LimitAnswers(Answered):
    """The answers of one limit about each row. Of the lookbacks that have the row, the answer is over the one that is
    nearest to the limit: with the row where it went in, and without it where it did not. Null: it was not decided, or
    there is no answer."""

    answers: list[Value]
    remaining: list[Value]
    """How far each answer is from the limit, at least 0."""
    holds: list[bool]
    """Whether the limit holds with the row."""


class Admitted(_Given):
    """The outcome for each row, and how many were inserted, refused, late, too far ahead and evicted. A retry is
    answered with `admitted` as it was decided, and without `retry_after` and `limits`."""

    model_config = shown(examples.ADMITTED)

    admitted: list[bool]
    retry_after: list[Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})]] = ABSENT
    """In how many ticks from its own time each refused row would go in, if nothing else came. Null: never; or it went
    in, or no limit refused it. Where that takes more than 1,024 changes, it would not go in before."""
    limits: list[LimitAnswers] = ABSENT
    """In the order of the request."""
    refused: Int64
    inserted: Int64
    late: Int64
    evicted: Int64
    ahead: Int64
    history: Int64 = ABSENT


class Bulks(Answered):
    """Entries, by key and time, as bulks that bulk-insert takes."""

    model_config = shown({"bulks": [{"time": [17, 18], "fields": {"value": [4.0, 5.5]}}]})

    bulks: list[Columns]


class _Wrong(Answered):
    detail: str
    field: NullableText
    request_id: str = ABSENT


class Event(Answered):
    """A server-sent event: answers, or the `problem` that ends the stream."""

    event: Literal["message", "problem"] = ABSENT
    data: Annotated[
        str,
        WithJsonSchema(
            {
                "type": "string",
                "contentMediaType": JSON,
                "contentSchema": {"anyOf": [reference(Answers), _Wrong.model_json_schema()]},
            }
        ),
    ]


class Series(_Partial):
    """Answers over buckets: the i-th has the entries with time[i] <= t < time[i] + width. `step` and `width` are ticks.
    Every list has one item per bucket, null where there is no answer. With a `gap`, a bucket is a session: it has the
    entries from time[i] through last[i], and `step` and `width` are the gap.
    """

    model_config = shown(examples.SERIES)

    key: NullableText
    start: Instant
    end: Instant
    step: Int64
    width: Int64
    time: list[Instant]
    last: list[Instant] = ABSENT
    entries: list[Int64]
    aggregates: dict[str, list[Any]]
    parts: dict[str, str] = ABSENT
    """The parts of the key by name, or those of the group."""


class GroupSeries(Answered):
    key: NullableText
    parts: dict[str, str]
    """The parts of the group by name."""
    entries: list[Int64]
    aggregates: dict[str, list[Any]]


class SeriesGroups(_Page):
    """A series for each group of keys, over the same buckets."""

    model_config = shown(examples.SERIES_GROUPS)

    start: Instant
    end: Instant
    step: Int64
    width: Int64 = ABSENT
    time: list[Instant]
    groups: list[GroupSeries]


class Pairs(Described):
    """Pairs of a key and a time: `key` is a list of keys, or an object with a list of values for each part."""

    time: list[Time]
    key: list[str] | dict[str, list[str]] = ABSENT
    known_at: list[Int64] = ABSENT
    """Of a window with `known`: what each answer knows, as `known_at` of a query."""


class PairAnswers(Answered):
    lookback: str = ABSENT
    """As it was asked for; absent: everything up to the time of each pair."""
    entries: list[Int64 | None]
    aggregates: dict[str, list[Any]]


class AnswersAt(_Partial):
    """Answers about pairs, for each lookback: every list has one item for each pair, null where there is no answer."""

    model_config = shown(
        {"answers": [{"lookback": "1h", "entries": [2, 0], "aggregates": {"sum": [4.5, 0.0], "max": [4.0, None]}}]}
    )

    answers: list[PairAnswers]


class Keys(Answered):
    model_config = shown({"keys": ["JFK", "JAX"], "next": 2})

    keys: list[str]
    next: Annotated[int, WithJsonSchema(INT64)] = ABSENT
    """Where to go on (`position`); absent if there are no more keys."""
