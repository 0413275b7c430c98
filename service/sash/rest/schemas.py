"""The documents of bodies and answers: their JSON Schemas, and examples of them."""

from __future__ import annotations

from typing import Any

from sash.rest.bodies import JSON
from sash.rest.members import BOOL, INT64, KEY, ORIGIN_MEMBERS, STRINGS, WRITER, Document, Member
from sash.rest.service_schemas import MISSING, SERVICE_SCHEMAS

__all__ = [
    "AGGREGATES_EXAMPLE",
    "ANSWER_EXAMPLE",
    "COMMIT",
    "COUNT_EXAMPLE",
    "ENTRY_EXAMPLES",
    "EVICTION",
    "GROUP_EXAMPLE",
    "NAMED",
    "ORIGIN",
    "SCHEMAS",
    "SERIES_EXAMPLE",
    "SERIES_GROUPS_EXAMPLE",
    "SPEC_EXAMPLE",
    "YAML_EXAMPLE",
]

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
GROUP_EXAMPLE = {**ANSWER_EXAMPLE, "key": None, "lookback": None, "parts": {"carrier": "AA"}}
SERIES_GROUPS_EXAMPLE = {
    **{name: SERIES_EXAMPLE[name] for name in ("start", "end", "step", "width", "time")},
    "groups": [
        {
            "key": None,
            "parts": {"carrier": "AA"},
            **{name: SERIES_EXAMPLE[name] for name in ("entries", "aggregates")},
        }
    ],
}
AGGREGATES_EXAMPLE = {
    "p95": {"function": "quantile", "field": "delay", "q": 0.95},
    "longest": {"function": "max", "field": "delay"},
}

COUNT_EXAMPLE = {"inserted": 3, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "sync"}
ENTRY_EXAMPLES: dict[str, Any] = {
    "one field": {"value": {"time": 17, "value": 4}},
    "several fields, keyed": {
        "value": {"time": 1357041540000000, "key": "JFK", "fields": {"delay": 4.0, "carrier": "AA"}}
    },
    "with the answer after it": {"value": {"time": 18, "value": 5, "answer": True, "lookbacks": ["5m", "1h"]}},
    "applied once, however often it is sent": {
        "value": {"time": 19, "value": 6, "producer": "sensor-7", "sequence": 1}
    },
}

NAMED = {"pattern": "^[A-Za-z_][A-Za-z0-9_.-]{0,127}$"}
"""The limits of a window's name."""

EVICTION = Document(
    {
        "time": Member(INT64, about={"description": "Entries with this time and older leave."}),
        "start": Member(INT64, about={"description": "With `end`: entries with start <= time <= end leave."}),
        "end": Member(INT64),
        "end_exclusive": Member(BOOL, about={"default": False, "description": "start <= time < end"}),
        "key": Member(KEY),
        **ORIGIN_MEMBERS,
    },
    "Either `time`, or `start` and `end`.",
)
PUNCTUATION = Document({"time": Member(INT64, required=True, about={"description": "Entries up to it are final."})})
COMMIT = Document(
    {
        "query": Member(WRITER, required=True),
        "batch": Member(INT64, required=True, about={"minimum": 0}),
        "stages": Member(STRINGS, required=True),
    },
    "The parts of a batch, in the order in which they are applied. Without parts, the batch is empty.",
)
ORIGIN = {name: each.schema for name, each in ORIGIN_MEMBERS.items()}

_OPTIONAL_INT64 = {"type": ["integer", "null"], "format": "int64"}
_VALUE = {
    "description": "A value of the field's type; null only for a field that the spec names in `nullable`.",
    "type": ["number", "string", "boolean", "null"],
}
_COUNTS = dict.fromkeys(("inserted", "late", "evicted", "duplicates", "ahead"), INT64.schema)
_CHANGED = dict.fromkeys(("retracted", "corrected"), INT64.schema)
_GIVEN = {
    "durability": {"type": "string", "enum": ["sync", "interval", "memory"]},
    "already_applied": {
        "type": "boolean",
        "description": "The write is a retry and changed nothing. Absent unless true.",
    },
}
_PARTS_OF_KEY = {"type": "object", "additionalProperties": {"type": "string"}}
_MORE = {
    "next": {"type": "string", "description": "Where to go on (`position`); absent where there is no more."},
    **MISSING,
}
_PARTS = {**_PARTS_OF_KEY, "description": "The parts of the key by name, or those of the group."}
_PARTIALS = {
    "description": "By aggregate and part: columns, as the page Partials of the documentation lists them. Parts that "
    "are not numbers are a column `blob` in base64.",
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
}

SCHEMAS: dict[str, Any] = {
    "Problem": {
        "description": "An error, in the form of RFC 9457.",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "reason": {
                "type": "string",
                "description": "The kind of error, for programs: the reason of gRPC's ErrorInfo.",
                "example": "OUT_OF_ROOM",
            },
            "field": {"type": "string", "description": "Path of the field that is wrong."},
            "limit": {"type": "string", "description": "The limit that was passed."},
            "unchanged": {
                "type": "boolean",
                "description": "Of `UNAVAILABLE`: nothing was changed, so any call may be made again.",
            },
            "request_id": {
                "type": "string",
                "description": "The id of the request, as the service's log has it: what `X-Request-Id` said, or a new "
                "one. The header `X-Request-Id` of the answer has it, too.",
            },
            "line": {
                "type": "integer",
                "description": "Of a body of lines: the number of the first line that is wrong, from 1 on.",
            },
            "applied": {
                "type": "object",
                "description": "Of a body of lines: the first `entries` entries of it are applied, with this result.",
                "required": ["entries"],
                "properties": {"entries": INT64.schema},
            },
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
            "entries": INT64.schema,
            "keys": {**INT64.schema, "description": "How many keys have entries."},
            "oldest": {
                **_OPTIONAL_INT64,
                "description": "Time of the oldest entry; null if the window is empty or keyed.",
            },
            "newest": {
                **_OPTIONAL_INT64,
                "description": "Time of the newest entry of all keys; null if the window is empty.",
            },
            "high_water_mark": {
                **_OPTIONAL_INT64,
                "description": "The newest time that was ever inserted, even if its entry has left; null if none was.",
            },
            "punctuated": {
                **_OPTIONAL_INT64,
                "description": "Entries of this time and older are final. Only of a window with `slide.until`.",
            },
            "evicted_through": {
                **INT64.schema,
                "description": "No newer entry was evicted by the slide policy. Missing if none was.",
            },
            "counts": {"$ref": "#/components/schemas/Counts"},
            "durability": _GIVEN["durability"],
            "problem": {
                "type": ["string", "null"],
                "description": "The reason why the window does not answer now: it is being recovered, or cannot be.",
            },
        },
    },
    **SERVICE_SCHEMAS,
    "Counts": {
        "description": "Numbers of entries. `duplicates` have the time of an entry that was there, in a window that "
        "keeps one for each time: they were dropped, or took its place. `ahead` are too far ahead of wall time "
        "(`order.ahead`). `retracted` and `corrected` are there for a window with an identity.",
        "type": "object",
        "required": list(_COUNTS),
        "properties": _COUNTS | _CHANGED,
    },
    "Written": {
        "description": "How many entries a write inserted, evicted and left out; `answers` if they were asked for.",
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
        "properties": {"evicted": INT64.schema, "entries": INT64.schema, **_GIVEN},
    },
    "Changed": {
        "description": "How many entries were retracted or corrected, how many were not there, and how many the slide "
        "policy evicted.",
        "type": "object",
        "required": [*_CHANGED, "missing", "evicted", "durability"],
        "properties": {**_CHANGED, "missing": INT64.schema, "evicted": INT64.schema, **_GIVEN},
    },
    "Staged": {
        "description": "A staged part of a batch. The commit names it by `stage`.",
        "type": "object",
        "required": ["stage", "entries", "durability"],
        "properties": {"stage": {"type": "string"}, "entries": INT64.schema, "durability": _GIVEN["durability"]},
    },
    "Commit": COMMIT.schema(),
    "Punctuation": PUNCTUATION.schema(),
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
            "time": INT64.schema,
            "key": KEY.schema,
            "value": _VALUE,
            "fields": {"type": "object", "additionalProperties": _VALUE},
            "answer": {"type": "boolean", "default": False, "description": "Answer as a query does, after the write."},
            "lookbacks": {
                "type": "array",
                "items": {"type": ["string", "integer"]},
                "description": "With `answer`: the lookbacks of that query.",
            },
            **ORIGIN,
        },
    },
    "Columns": {
        "description": "Entries as columns of one length: `time`, `key` where keyed, and each field by its name, "
        "beside them or in `fields`. Where keys have parts, each part may be a column in place of `key`. "
        "A window with a granularity takes `partials` of every aggregate, and `entries`, instead.",
        "type": "object",
        "required": ["time"],
        "properties": {
            "time": {"type": "array", "items": INT64.schema},
            "key": {
                "description": "The keys; where keys have parts also a list for each part, by name.",
                "anyOf": [STRINGS.schema, {"type": "object", "additionalProperties": STRINGS.schema}],
            },
            "fields": {"type": "object", "additionalProperties": {"type": "array", "items": _VALUE}},
            "partials": _PARTIALS,
            "entries": {
                "type": "array",
                "items": INT64.schema,
                "description": "With `partials`: how many entries each row stands for.",
            },
            **ORIGIN,
        },
        "additionalProperties": {"type": "array", "items": _VALUE},
    },
    "Eviction": EVICTION.schema(),
    "Answer": {
        "description": "The aggregates of the entries with start <= time <= end.",
        "type": "object",
        "required": ["key", "lookback", "start", "end", "entries", "aggregates"],
        "properties": {
            **{name: {"type": ["string", "null"]} for name in ("key", "lookback")},
            **dict.fromkeys(("start", "end"), _OPTIONAL_INT64),
            "entries": INT64.schema,
            "aggregates": {"type": "object", "additionalProperties": True},
            "partials": {**_PARTIALS, "description": "If asked for: columns of one row, as bulk-insert takes them."},
            "parts": _PARTS,
            **MISSING,
        },
    },
    "Answers": {
        "type": "object",
        "required": ["answers"],
        "properties": {"answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}, **_MORE},
    },
    "Groups": {
        "description": "An answer for each group of keys.",
        "type": "object",
        "required": ["groups"],
        "properties": {"groups": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}, **_MORE},
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
                            "properties": {
                                "detail": {"type": "string"},
                                "field": {"type": ["string", "null"]},
                                "request_id": {"type": "string"},
                            },
                        },
                    ]
                },
            },
        },
    },
    "Series": {
        "description": "Answers over buckets: the i-th has the entries with time[i] <= t < time[i] + width. `step` and "
        "`width` are ticks. Every list has one item per bucket, null where there is no answer. With a `gap`, a bucket "
        "is a session: it has the entries from time[i] through last[i], and `step` and `width` are the gap.",
        "type": "object",
        "required": ["key", "start", "end", "step", "width", "time", "entries", "aggregates"],
        "properties": {
            "key": {"type": ["string", "null"]},
            **dict.fromkeys(("start", "end", "step", "width"), INT64.schema),
            **{name: {"type": "array", "items": INT64.schema} for name in ("time", "last", "entries")},
            "aggregates": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
            "parts": _PARTS,
            **MISSING,
        },
    },
    "SeriesGroups": {
        "description": "A series for each group of keys, over the same buckets.",
        "type": "object",
        "required": ["start", "end", "step", "time", "groups"],
        "properties": {
            **dict.fromkeys(("start", "end", "step", "width"), INT64.schema),
            "time": {"type": "array", "items": INT64.schema},
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "parts", "entries", "aggregates"],
                    "properties": {
                        "key": {"type": ["string", "null"]},
                        "parts": _PARTS,
                        "entries": {"type": "array", "items": INT64.schema},
                        "aggregates": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
                    },
                },
            },
            **_MORE,
        },
    },
    "Keys": {
        "type": "object",
        "required": ["keys"],
        "properties": {
            "keys": {"type": "array", "items": {"type": "string"}},
            "next": {**INT64.schema, "description": "Where to go on (`position`); absent if there are no more keys."},
        },
    },
}
