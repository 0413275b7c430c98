"""Windows of integers whose list of values is the witness of order, and bulks for them."""

import numpy as np

from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window


def functions(**each):
    """The aggregates of a spec: `n="count"`, `sum="sum v"` of a field; or as a spec has them."""
    return {name: _aggregate(*of.split()) if isinstance(of, str) else of for name, of in each.items()}


def _aggregate(function, field=None):
    return {"function": function} | ({"field": field} if field else {})


SECOND = 10**9
BASE = {
    "name": "w",
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": functions(n="count", all="collect", sum="sum", last="last", max="max"),
}


def window(block=3, clock=None, max_keys=10_000, **parts):
    return Window(WindowSpec.parse(BASE | parts), max_keys, block, clock=clock)


def keyed(block=4, clock=None, **parts):
    return window(block, clock, **{"keyed": True} | parts)


def bulk(pairs, keys=None):
    """Of (time, value)."""
    times, values = zip(*pairs, strict=True) if pairs else ((), ())
    coded = None if keys is None else Coded.of(keys)
    return Batch(np.array(times, np.int64), {"value": np.array(values, np.int64)}, coded)


def batch(pairs, first_value):
    """Of (key, time), with values that count up."""
    return bulk([(time, first_value + i) for i, (_, time) in enumerate(pairs)], [key for key, _ in pairs])


def content(w, key=None):
    (answer,) = w.query(key, [], None)
    assert answer.entries == answer.aggregates["n"] == len(answer.aggregates["all"])
    return answer.aggregates["all"]
