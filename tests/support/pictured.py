"""Windows to look at: departures with all kinds of answers, and names that are no good markup."""

from __future__ import annotations

import math
import random
from typing import Any

END_MS = 1_795_000_000_000
"""The newest entry."""
HOSTILE = """<img src=x onerror="alert('x')">'"&amp;</td>"""

GROUPED = {
    "flights": {"function": "count"},
    "mean": {"function": "mean", "field": "delay"},
    "tail": {"function": "quantile", "field": "delay", "q": [0.5, 0.9, 0.99]},
    "spread": {"function": "histogram", "field": "delay", "bounds": [-10, -5, 0, 5, 10, 20, 40, 80]},
    "causes": {"function": "frequent_items", "field": "cause"},
}
KINDS = {
    **GROUPED,
    "m4": {"function": "m4", "field": "delay"},
    "worst": {"function": "largest", "field": "delay", "n": 3},
    "reasons": {"function": "collect_distinct", "field": "cause"},
    "run": {"function": "longest_increasing_run", "field": "delay"},
    "trend": {"function": "linear_regression", "field": "delay", "features": ["distance"]},
    "planes": {"function": "theta_sketch", "field": "cause"},
    "text": {"function": "join", "field": "cause"},
}


def departures(name: str, aggregates: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A spec of departures by airport and carrier."""
    fields = {"delay": "float64", "distance": "float64", "cause": "string"}
    spec = {"name": name, "time_unit": "ms", "keys": ["airport", "carrier"], "fields": fields, "aggregates": aggregates}
    return {**spec, "slide": {"max_age": "6h"}, **more}


def made(count: int = 4000, end_ms: int = END_MS) -> dict[str, Any]:
    """Entries of six hours, the same each time."""
    rng = random.Random(7)
    rows = range(count)

    def delay(i: int) -> float:
        rare = 45.0 if rng.random() < 0.02 else 0.0
        return round(rng.gauss(7, 8) + 14 * math.sin(i * 9 / count) + rare, 1)

    return {
        "time": [end_ms - 6 * 3_600_000 * (count - 1 - i) // count for i in rows],
        "key": {
            "airport": [rng.choice(["JFK", "LGA", "EWR"]) for _ in rows],
            "carrier": [rng.choice(["AA", "B6", "DL", "UA"]) for _ in rows],
        },
        "delay": [delay(i) for i in rows],
        "distance": [float(rng.randrange(200, 2500)) for _ in rows],
        "cause": [rng.choice(["none", "none", "none", "weather", "late aircraft", "crew"]) for _ in rows],
    }
