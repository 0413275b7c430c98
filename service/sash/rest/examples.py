"""Examples of specs, bodies and answers that the documentation shows."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
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
SPEC_YAML = """name: latency
aggregates:
  requests: {function: count}
  mean: {function: mean}
slide: {max_age: 1d}
"""
ANSWER = {
    "key": "JFK",
    "lookback": "1h",
    "start": 1357037940000001,
    "end": 1357041540000000,
    "entries": 2,
    "aggregates": {"flights": 2, "mean": 12.5, "worst": "AA"},
}
SERIES = {
    "key": "JFK",
    "start": 1357040000000000,
    "end": 1357041800000000,
    "step": 900000000,
    "width": 3600000000,
    "time": [1357040000000000, 1357040900000000],
    "entries": [2, 0],
    "aggregates": {"flights": [2, 0], "mean": [12.5, None], "worst": ["AA", None]},
}
GROUP = {**ANSWER, "key": None, "lookback": None, "parts": {"carrier": "AA"}}
SERIES_GROUPS = {
    **{name: SERIES[name] for name in ("start", "end", "step", "width", "time")},
    "groups": [
        {
            "key": None,
            "parts": {"carrier": "AA"},
            **{name: SERIES[name] for name in ("entries", "aggregates")},
        }
    ],
}
AGGREGATES = {
    "p95": {"function": "quantile", "field": "delay", "q": 0.95},
    "longest": {"function": "max", "field": "delay"},
}

COUNTS = {"inserted": 3, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "sync"}
ADMITTED = {
    "admitted": [False],
    "retry_after": [23],
    "limits": [{"answers": [100], "remaining": [0], "holds": [False]}],
    "refused": 1,
    **dict.fromkeys(("inserted", "late", "evicted", "ahead"), 0),
    "durability": "sync",
}
ADMIT: dict[str, Any] = {
    "one entry": {
        "value": {"time": 17, "value": 4, "limits": [{"aggregate": "requests", "lookback": "1m", "value": 100}]}
    },
    "columns": {
        "value": {
            "time": [17, 18],
            "value": [4, 5],
            "limits": [{"aggregate": "requests", "lookback": "1m", "op": "<", "value": 100}],
        }
    },
}
ENTRIES: dict[str, Any] = {
    "one field": {"value": {"time": 17, "value": 4}},
    "several fields, keyed": {
        "value": {"time": 1357041540000000, "key": "JFK", "fields": {"delay": 4.0, "carrier": "AA"}}
    },
    "with the answer after it": {"value": {"time": 18, "value": 5, "answer": True, "lookbacks": ["5m", "1h"]}},
    "applied once, however often it is sent": {
        "value": {"time": 19, "value": 6, "producer": "sensor-7", "sequence": 1}
    },
}
