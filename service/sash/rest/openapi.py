"""What OpenAPI says of each route: the routes read raw bodies, so none of it can be derived from signatures."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sash.calls import INTERVAL_MS, INTERVAL_MS_MAX, INTERVAL_MS_MIN
from sash.rest.bodies import ARROW, JSON, OCTETS, YAML
from sash.rest.problems import MEDIA_TYPE
from sash_engine.windows.spec import WindowSpec

__all__ = ["describe", "document"]

DESCRIPTION = """Named sliding windows: push entries, ask for the aggregates of any trailing window at once.

Time is an int64 in ticks of the window's unit. Ranges include both ends, unless `end_exclusive` is true.
A lookback `l` as of `t` covers `t - l < time <= t`. Where JSON has no number, answers (and float64 values in requests)
have the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, and bytes are base64. Every error is a problem document (RFC
9457) that names the field, and the limit where one was passed. Any call is answered with 503 where too many are in
progress.

A write is answered when it is as durable as the answer's `durability` says: `sync`, the tier has it; `interval`, the
tier has it a moment later; `memory`, no tier ever has it. A write with a `producer` and a `sequence` (1, 2, 3, … for
each producer and window) is applied once, however often it is sent. The same number with other data is refused, and so
is an `epoch` lower than the producer's last one.
"""

SPEC_EXAMPLE: dict[str, Any] = {
    "name": "departure_delay",
    "time_unit": "us",
    "keyed": True,
    "fields": {"delay": "float64", "carrier": "string"},
    "aggregates": {
        "flights": {"function": "count"},
        "mean": {"function": "mean", "field": "delay"},
        "worst": {"function": "arg_max", "field": "delay", "returns": "carrier"},
    },
    "slide": {"max_age": "6h", "max_count": 1000000},
}
YAML_EXAMPLE = """name: latency
aggregates:
  requests: {function: count}
  mean: {function: mean}
slide: {max_age: 1d}
"""
ANSWER_EXAMPLE = {
    "key": "JFK",
    "lookback": "1h",
    "start": 1357037940000001,
    "end": 1357041540000000,
    "entries": 2,
    "aggregates": {"flights": 2, "mean": 12.5, "worst": "AA"},
}
SERIES_EXAMPLE = {
    "key": "JFK",
    "start": 1357040000000000,
    "end": 1357041800000000,
    "step": 900000000,
    "width": 3600000000,
    "time": [1357040000000000, 1357040900000000],
    "entries": [2, 0],
    "aggregates": {"flights": [2, 0], "mean": [12.5, None], "worst": ["AA", None]},
}
AGGREGATES_EXAMPLE = {
    "p95": {"function": "quantile", "field": "delay", "q": 0.95},
    "longest": {"function": "max", "field": "delay"},
}

_NAMED = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]{0,127}$"}
_WRITER = {"type": "string", "minLength": 1, "maxLength": 200}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "example": "departure_delay"}
_KEY = {
    "name": "key",
    "in": "query",
    "description": "The key; where the window is keyed, this or `all_keys` is required. Several may be given.",
    "schema": {"type": "array", "items": {"type": "string"}},
    "style": "form",
    "explode": True,
    "example": ["JFK"],
}
_ALL_KEYS = {
    "name": "all_keys",
    "in": "query",
    "description": "Every key that has entries, instead of `key`.",
    "schema": {"type": "boolean", "default": False},
}
_INT64 = {"type": "integer", "format": "int64"}
_OPTIONAL_INT64 = {"type": ["integer", "null"], "format": "int64"}
_VALUE = {"description": "A value of the field's type.", "type": ["number", "string", "boolean"]}
_COUNTS = {"inserted": _INT64, "late": _INT64, "evicted": _INT64, "duplicates": _INT64, "ahead": _INT64}
_GIVEN = {
    "durability": {"type": "string", "enum": ["sync", "interval", "memory"]},
    "already_applied": {"type": "boolean", "description": "A retry, which changed nothing; only where it is true."},
}
_COUNT_EXAMPLE = {"inserted": 3, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "sync"}
_ORIGIN = {
    "producer": {**_WRITER, "description": "With `sequence`: the write is applied once. 1 to 200 bytes."},
    "sequence": {**_INT64, "minimum": 1, "description": "1, 2, 3, … for each producer, epoch and window."},
    "epoch": {
        **_INT64,
        "minimum": 0,
        "default": 0,
        "description": "A higher one takes the producer's name over; a lower one is refused.",
    },
}
_PARTIALS = {
    "description": "By aggregate and part: columns, as the page Partials of the documentation lists them. Parts that "
    "are not numbers are a column `blob` in base64.",
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
}

SCHEMAS: dict[str, Any] = {
    "Problem": {
        "description": "An error, as RFC 9457 has it.",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "reason": {
                "type": "string",
                "description": "Which error it is, for programs: the reason that gRPC's ErrorInfo has.",
                "example": "OUT_OF_ROOM",
            },
            "field": {"type": "string", "description": "Path of the offending field."},
            "limit": {"type": "string", "description": "The bound that was passed."},
        },
    },
    "Window": {
        "type": "object",
        "required": [
            *("spec", "entries", "keys", "oldest", "newest", "high_water_mark"),
            *("counts", "durability", "problem"),
        ],
        "properties": {
            "spec": {"$ref": "#/components/schemas/WindowSpec"},
            "entries": _INT64,
            "keys": {**_INT64, "description": "How many keys have entries."},
            "oldest": {
                **_OPTIONAL_INT64,
                "description": "The oldest entry's time; null where empty, and where keyed.",
            },
            "newest": {
                **_OPTIONAL_INT64,
                "description": "The newest entry's time, over all keys; null where empty.",
            },
            "high_water_mark": {
                **_OPTIONAL_INT64,
                "description": "The newest time that was ever inserted. It stays when entries leave; null before.",
            },
            "counts": {"$ref": "#/components/schemas/Counts"},
            "durability": _GIVEN["durability"],
            "problem": {
                "type": ["string", "null"],
                "description": "Why the window answers nothing at the moment: it is being recovered, or cannot be.",
            },
        },
    },
    "Windows": {
        "type": "object",
        "required": ["windows"],
        "properties": {"windows": {"type": "array", "items": {"$ref": "#/components/schemas/Window"}}},
    },
    "Counts": {
        "description": "What became of entries. `duplicates` are of a time that was there, where a window keeps one: "
        "they were not kept, or took the other's place. `ahead` are too far ahead of wall time (`order.ahead`).",
        "type": "object",
        "required": list(_COUNTS),
        "properties": _COUNTS,
    },
    "Written": {
        "description": "What became of a write's entries; `answers` where they were asked for.",
        "type": "object",
        "required": [*_COUNTS, "durability"],
        "properties": {
            **_COUNTS,
            **_GIVEN,
            "answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}},
        },
    },
    "Removed": {
        "description": "How many entries were removed.",
        "type": "object",
        "properties": {"evicted": _INT64, "entries": _INT64, **_GIVEN},
    },
    "Staged": {
        "description": "A part of a batch that is kept; `stage` names it in the commit.",
        "type": "object",
        "required": ["stage", "entries", "durability"],
        "properties": {"stage": {"type": "string"}, "entries": _INT64, "durability": _GIVEN["durability"]},
    },
    "Commit": {
        "description": "The parts that make a batch, in the order in which they are applied; none: an empty batch.",
        "type": "object",
        "required": ["query", "batch", "stages"],
        "properties": {
            "query": _WRITER,
            "batch": {**_INT64, "minimum": 0},
            "stages": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
    },
    "Bulks": {
        "description": "Entries, by key and time, as bulks that bulk-insert takes.",
        "type": "object",
        "required": ["bulks"],
        "properties": {"bulks": {"type": "array", "items": {"$ref": "#/components/schemas/Columns"}}},
    },
    "Entry": {
        "description": "One entry. `value` is the only field of a window that has one; `fields` names every field.",
        "type": "object",
        "required": ["time"],
        "properties": {
            "time": _INT64,
            "key": {"type": "string"},
            "value": _VALUE,
            "fields": {"type": "object", "additionalProperties": _VALUE},
            "answer": {"type": "boolean", "default": False, "description": "Answer as a query does, afterwards."},
            "lookbacks": {
                "type": "array",
                "items": {"type": ["string", "integer"]},
                "description": "With `answer`: the lookbacks of that query.",
            },
            **_ORIGIN,
        },
    },
    "Columns": {
        "description": "Entries as columns of one length: `time`, `key` where keyed, and each field by its name, "
        "beside them or in `fields`. A window with a granularity takes `partials` of every aggregate, and `entries`, "
        "instead.",
        "type": "object",
        "required": ["time"],
        "properties": {
            "time": {"type": "array", "items": _INT64},
            "key": {"type": "array", "items": {"type": "string"}},
            "fields": {"type": "object", "additionalProperties": {"type": "array", "items": _VALUE}},
            "partials": _PARTIALS,
            "entries": {
                "type": "array",
                "items": _INT64,
                "description": "With `partials`: how many entries each row stands for.",
            },
            **_ORIGIN,
        },
        "additionalProperties": {"type": "array", "items": _VALUE},
    },
    "Eviction": {
        "type": "object",
        "required": ["time"],
        "properties": {"time": _INT64, "key": {"type": "string"}, **_ORIGIN},
        "additionalProperties": False,
    },
    "Answer": {
        "description": "The aggregates of the entries with start <= time <= end.",
        "type": "object",
        "required": ["key", "lookback", "start", "end", "entries", "aggregates"],
        "properties": {
            "key": {"type": ["string", "null"]},
            "lookback": {"type": ["string", "null"]},
            "start": _OPTIONAL_INT64,
            "end": _OPTIONAL_INT64,
            "entries": _INT64,
            "aggregates": {"type": "object", "additionalProperties": True},
            "partials": {**_PARTIALS, "description": "Where asked for: columns of one row, as bulk-insert takes them."},
        },
    },
    "Answers": {
        "type": "object",
        "required": ["answers"],
        "properties": {"answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}},
    },
    "Event": {
        "description": "A server-sent event: answers, or the `problem` that ends the stream.",
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string", "enum": ["message", "problem"]},
            "data": {
                "type": "string",
                "contentMediaType": JSON,
                "contentSchema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/Answers"},
                        {
                            "type": "object",
                            "required": ["detail", "field"],
                            "properties": {"detail": {"type": "string"}, "field": {"type": ["string", "null"]}},
                        },
                    ]
                },
            },
        },
    },
    "Series": {
        "description": "Answers over buckets: the i-th has the entries with time[i] <= t < time[i] + width. `step` and "
        "`width` are ticks. Every list has one item per bucket, null where there is no answer.",
        "type": "object",
        "required": ["key", "start", "end", "step", "width", "time", "entries", "aggregates"],
        "properties": {
            "key": {"type": ["string", "null"]},
            **dict.fromkeys(("start", "end", "step", "width"), _INT64),
            "time": {"type": "array", "items": _INT64},
            "entries": {"type": "array", "items": _INT64},
            "aggregates": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
        },
    },
    "Keys": {
        "type": "object",
        "required": ["keys"],
        "properties": {
            "keys": {"type": "array", "items": {"type": "string"}},
            "next": {**_INT64, "description": "Where to go on (`position`); absent where there are no more."},
        },
    },
    "Aggregates": {
        "description": "Aggregates by name, as in a spec.",
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/AggregateSpec"},
    },
    "Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
}


def describe(operation: str) -> dict[str, Any]:
    """The keyword arguments of a route that document it."""
    return dict(_OPERATIONS[operation])


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app whose routes were made with `describe`."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes, tags=_TAGS)
    for operations in made["paths"].values():
        for each in operations.values():
            # As they were written: what FastAPI makes of them has lost every null in an example.
            responses = _OPERATIONS[each["operationId"]]["responses"]
            each["responses"] = {str(status): response for status, response in responses.items()}
    spec = WindowSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**SCHEMAS, **spec.pop("$defs", {}), "WindowSpec": spec}
    made.setdefault("components", {})["schemas"] = dict(sorted(schemas.items()))
    return made


_TAGS = [
    {"name": "windows", "description": "Create, show and delete windows."},
    {"name": "writes", "description": "Put entries into a window, and remove the oldest."},
    {"name": "reads", "description": "Ask for aggregates."},
    {"name": "service", "description": "Health and metrics."},
]


def _ref(name: str, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    return content if example is None else {**content, "example": example}


def _json(description: str, name: str, example: Any = None) -> dict[str, Any]:
    return {"description": description, "content": {JSON: _ref(name, example)}}


def _operation(
    tag: str,
    summary: str,
    success: dict[int | str, dict[str, Any]],
    problems: dict[int, str],
    *,
    parameters: list[dict[str, Any]] | None = None,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    if body is not None:
        problems = {
            **problems,
            413: "The body, or the number of entries in it, is too large",
            415: "The Content-Type is not taken here",
        }
    problems = _any_of(
        problems, {503: "As many requests as allowed are in progress; Retry-After says when to try again"}
    )
    responses = dict(success)
    for status, description in sorted(problems.items()):
        responses[status] = {"description": description, "content": {MEDIA_TYPE: _ref("Problem")}}
    extra: dict[str, Any] = {}
    if parameters:
        extra["parameters"] = parameters
    if body is not None:
        extra["requestBody"] = {"required": True, "content": body}
    return {"tags": [tag], "summary": summary, "responses": responses, "openapi_extra": extra}


def _any_of(*groups: dict[int, str]) -> dict[int, str]:
    """What may go wrong, by status: `There is no window. Or the tier is full`."""
    merged: dict[int, str] = {}
    for group in groups:
        for status, text in group.items():
            merged[status] = f"{merged[status]}. Or {text[0].lower()}{text[1:]}" if status in merged else text
    return merged


_INVALID = {400: "The request is wrong; `field` says where"}
_UNKNOWN = {404: "There is no such window"}
_NO_ANSWER = {
    422: "An aggregate depends on the order of entries, so it has no answer over several keys together. Or the "
    "window's algorithm answers for the whole window only"
}
_NUMBERED = {
    409: "Writes of its producer are missing before it. Or the producer has used the number for other data. Or a "
    "higher epoch has taken the producer's name over"
}
_CONFLICT = _any_of(
    {409: "The window's order policy rejects it: late, out of order, too far ahead, or of a time that is there"},
    _NUMBERED,
)
_STORED = {
    409: "Another server has taken the tier over",
    500: "A stored value that this needs is damaged or lost",
    503: "The tier cannot be reached, or has not confirmed a write, which may be applied then: `detail` says so. "
    "Retry-After says when to try again",
}
_STORING = {**_STORED, 507: "The tier is full; evicting entries or deleting windows makes room"}
_NO_VALUES = {422: "The window's algorithm keeps no values"}
_WRITTEN = _json("What became of the entries", "Written", _COUNT_EXAMPLE)
_BULK = {
    JSON: _ref("Columns", {"time": [17, 18, 19], "value": [4, 5.5, "NaN"]}),
    ARROW: {"schema": {"type": "string", "format": "binary"}},
}
_FILE = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
_PARTIALS_TOO = {
    "name": "partials",
    "in": "query",
    "description": "Answer with partials, too.",
    "schema": {"type": "boolean", "default": False},
}
_START = {"name": "start", "in": "query", "required": True, "schema": _INT64, "example": 1357040000000000}
_END = {"name": "end", "in": "query", "required": True, "schema": _INT64, "example": 1357041800000000}
_END_EXCLUSIVE = {
    "name": "end_exclusive",
    "in": "query",
    "description": "Take start <= time < end, so that ranges that meet share no entry.",
    "schema": {"type": "boolean", "default": False},
}
_TEXT = {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}}
_QUESTION: list[dict[str, Any]] = [
    _NAME,
    _KEY,
    _ALL_KEYS,
    {
        "name": "combine",
        "in": "query",
        "description": "One answer over the entries of all the keys, instead of one for each.",
        "schema": {"type": "boolean", "default": False},
    },
    {
        "name": "lookback",
        "in": "query",
        "description": "A duration (5m, 1h30m) or ticks; none: everything. Repeatable.",
        "schema": {"type": "array", "items": {"type": "string"}},
        "style": "form",
        "explode": True,
        "example": ["1h"],
    },
    {
        "name": "as_of",
        "in": "query",
        "description": "End of the lookbacks: as_of - L < time <= as_of. Without it a lookback is now - L < time. Now "
        "is the key's high-water mark, the newest time ever inserted into it; with `combine` that of all the keys "
        "asked for; or wall time, if that is the window's clock.",
        "schema": _INT64,
    },
    _PARTIALS_TOO,
]

_OPERATIONS: dict[str, dict[str, Any]] = {
    "create_window": _operation(
        "windows",
        "Create a window",
        {
            201: _json("Created", "Window"),
            200: _json("It exists already, with this very spec", "Window"),
        },
        _any_of(_INVALID, {409: "It exists with another spec", 429: "There are as many windows as allowed"}, _STORING),
        body={JSON: _ref("WindowSpec", SPEC_EXAMPLE), YAML: _ref("WindowSpec", YAML_EXAMPLE)},
    ),
    "list_windows": _operation("windows", "List all windows", {200: _json("All windows, by name", "Windows")}, {}),
    "get_window": _operation(
        "windows", "Show a window", {200: _json("The window", "Window")}, _UNKNOWN, parameters=[_NAME]
    ),
    "delete_window": _operation(
        "windows",
        "Delete a window",
        {200: _json("Deleted; how many entries it had", "Removed", {"entries": 42})},
        _any_of(_UNKNOWN, _STORING),
        parameters=[_NAME],
    ),
    "insert": _operation(
        "writes",
        "Insert one entry, and answer where asked to",
        {
            200: _json(
                "What became of the entry",
                "Written",
                {**_COUNT_EXAMPLE, "inserted": 1, "answers": [ANSWER_EXAMPLE]},
            )
        },
        _any_of(_INVALID, _UNKNOWN, _CONFLICT, _STORING),
        parameters=[_NAME],
        body={
            JSON: {
                **_ref("Entry"),
                "examples": {
                    "one field": {"value": {"time": 17, "value": 4}},
                    "several fields, keyed": {
                        "value": {"time": 1357041540000000, "key": "JFK", "fields": {"delay": 4.0, "carrier": "AA"}}
                    },
                    "with the answer after it": {
                        "value": {"time": 18, "value": 5, "answer": True, "lookbacks": ["5m", "1h"]}
                    },
                    "applied once, however often it is sent": {
                        "value": {"time": 19, "value": 6, "producer": "sensor-7", "sequence": 1}
                    },
                },
            }
        },
    ),
    "bulk_insert": _operation(
        "writes",
        "Insert many entries, whole or not at all",
        {200: _WRITTEN},
        _any_of(_INVALID, _UNKNOWN, _CONFLICT, _STORING),
        parameters=[
            _NAME,
            *(
                {
                    "name": name,
                    "in": "query",
                    "description": "With an Arrow body; in JSON it is a member.",
                    "schema": kind,
                }
                for name, kind in _ORIGIN.items()
            ),
        ],
        body=_BULK,
    ),
    "bulk_evict": _operation(
        "writes",
        "Remove every entry with time <= the given one, of one key or of all",
        {200: _json("How many were removed", "Removed", {"evicted": 3, "durability": "sync"})},
        _any_of(_INVALID, _UNKNOWN, _NUMBERED, _STORING),
        parameters=[_NAME],
        body={JSON: _ref("Eviction", {"time": 17})},
    ),
    "stage": _operation(
        "writes",
        "Keep a part of a batch, invisible, until the batch is committed or the part expires",
        {200: _json("It is kept", "Staged", {"stage": "7f2c9a0b61d4e385", "entries": 3, "durability": "sync"})},
        _any_of(_INVALID, _UNKNOWN, {409: "The batch is committed already", 429: "Too many parts are kept"}, _STORING),
        parameters=[
            _NAME,
            {
                "name": "query",
                "in": "query",
                "required": True,
                "description": "Whose batch it is: 1 to 200 bytes.",
                "schema": _WRITER,
                "example": "delays",
            },
            {
                "name": "batch",
                "in": "query",
                "required": True,
                "description": "The batch's number.",
                "schema": {**_INT64, "minimum": 0},
                "example": 0,
            },
        ],
        body=_BULK,
    ),
    "commit": _operation(
        "writes",
        "Apply staged parts as one write, once: the second time it changes nothing",
        {200: _WRITTEN},
        _any_of(
            _INVALID,
            _UNKNOWN,
            {409: "A part is not there, or the window's order policy rejects an entry"},
            _STORING,
        ),
        parameters=[_NAME],
        body={JSON: _ref("Commit", {"query": "delays", "batch": 0, "stages": []})},
    ),
    "query": _operation(
        "reads",
        "The current answer, over everything or over one or more lookbacks",
        {200: _json("One answer per key and lookback", "Answers", {"answers": [ANSWER_EXAMPLE]})},
        _any_of(_INVALID, _UNKNOWN, _NO_ANSWER, _STORED),
        parameters=_QUESTION,
    ),
    "range_query": _operation(
        "reads",
        "The answer over start <= time <= end (or < end), of one key or over the entries of several",
        {200: _json("The answer", "Answer", {**ANSWER_EXAMPLE, "lookback": None})},
        _any_of(_INVALID, _UNKNOWN, _NO_ANSWER, _STORED),
        parameters=[_NAME, _START, _END, _END_EXCLUSIVE, _KEY, _ALL_KEYS, _PARTIALS_TOO],
    ),
    "entries": _operation(
        "reads",
        "The entries themselves, by key and time, as bulks that could be inserted again",
        {
            200: {
                "description": "The entries. As Arrow: a record batch for each bulk.",
                "content": {
                    JSON: _ref("Bulks", {"bulks": [{"time": [17, 18], "fields": {"value": [4.0, 5.5]}}]}),
                    ARROW: {"schema": {"type": "string", "format": "binary"}},
                },
            }
        },
        _any_of(_INVALID, _UNKNOWN, _NO_VALUES, _STORED),
        parameters=[
            *(_NAME, {**_START, "required": False}, {**_END, "required": False}, _END_EXCLUSIVE),
            *(_KEY, _ALL_KEYS),
        ],
    ),
    "series": _operation(
        "reads",
        "Answers over many buckets at once, which may overlap: the points of a chart",
        {
            200: {
                "description": "The answers, column by column. As Arrow: columns time, entries and aggregates.NAME.",
                "content": {
                    JSON: _ref("Series", SERIES_EXAMPLE),
                    ARROW: {"schema": {"type": "string", "format": "binary"}},
                },
            }
        },
        _any_of(_INVALID, _UNKNOWN, _NO_ANSWER, _STORED),
        parameters=[
            _NAME,
            {**_START, "description": "Where the first bucket starts."},
            {**_END, "description": "Every bucket starts before it."},
            {
                "name": "step",
                "in": "query",
                "required": True,
                "description": "From one bucket's start to the next: a duration (1s, 15m) or ticks.",
                "schema": {"type": "string"},
                "example": "15m",
            },
            {
                "name": "width",
                "in": "query",
                "description": "How long a bucket is; `step` where missing. Larger than `step`: they overlap.",
                "schema": {"type": "string"},
                "example": "1h",
            },
            _KEY,
            _ALL_KEYS,
        ],
    ),
    "watch": _operation(
        "reads",
        "The current answers as server-sent events: at once, and again whenever they have changed",
        {
            200: {
                "description": "Events whose data is the document that a query answers; `problem`, where it ends.",
                "content": {"text/event-stream": {"itemSchema": {"$ref": "#/components/schemas/Event"}}},
            }
        },
        _any_of(_INVALID, _UNKNOWN, _NO_ANSWER, _STORED),
        parameters=[
            *_QUESTION,
            {
                "name": "interval",
                "in": "query",
                "description": "Milliseconds between two looks.",
                "schema": {**_INT64, "default": INTERVAL_MS, "minimum": INTERVAL_MS_MIN, "maximum": INTERVAL_MS_MAX},
            },
        ],
    ),
    "keys": _operation(
        "reads",
        "The keys that have entries, page by page, in the order of their first entries",
        {200: _json("Some of the keys", "Keys", {"keys": ["JFK", "JAX"], "next": 2})},
        {**_INVALID, **_UNKNOWN},
        parameters=[
            _NAME,
            {
                "name": "prefix",
                "in": "query",
                "description": "Only keys that start so.",
                "schema": {"type": "string"},
                "example": "J",
            },
            {
                "name": "limit",
                "in": "query",
                "description": "As many at most.",
                "schema": {**_INT64, "default": 1000, "minimum": 1},
            },
            {
                "name": "position",
                "in": "query",
                "description": "Where to go on: `next` of the answer before.",
                "schema": {**_INT64, "default": 0, "minimum": 0},
            },
        ],
    ),
    "add_aggregates": _operation(
        "windows",
        "Add aggregates, computed from the entries that are there",
        {200: _json("The window as it is now", "Window")},
        _any_of(
            _INVALID,
            _UNKNOWN,
            {409: "There is an aggregate of that name with another definition"},
            _NO_VALUES,
            _STORING,
        ),
        parameters=[_NAME],
        body={JSON: _ref("Aggregates", AGGREGATES_EXAMPLE)},
    ),
    "export_window": _operation(
        "windows",
        "A window with all it knows, as one file",
        {200: {"description": "The window as it is now, as an attachment NAME.sash", "content": _FILE}},
        _any_of(_UNKNOWN, _NO_VALUES, _STORED),
        parameters=[_NAME],
    ),
    "import_window": _operation(
        "windows",
        "Create a window from an exported file, of any size",
        {201: _json("Created", "Window")},
        _any_of(
            _INVALID,
            {409: "There is a window of that name", 429: "There are as many windows as allowed"},
            _STORING,
        ),
        parameters=[
            {
                "name": "name",
                "in": "query",
                "description": "Another name for the window.",
                "schema": _NAMED,
            }
        ],
        body=_FILE,
    ),
    "metrics": _operation(
        "service", "Metrics, as Prometheus reads them", {200: {"description": "All metrics", **_TEXT}}, {}
    ),
    "healthz": _operation("service", "Is the process alive?", {200: _json("It is", "Status")}, {}),
    "readyz": _operation(
        "service",
        "Does it want to be sent requests?",
        {200: _json("It does", "Status")},
        {503: "It does not; `detail` says why: it is starting, or shutting down, or its tier is away"},
    ),
}
