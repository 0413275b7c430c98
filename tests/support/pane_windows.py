"""Windows of panes, and bulks for them."""

import numpy as np
from hypothesis import settings

from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

SECOND = 10**9
FEW = settings.default.max_examples // 10
BASE = {
    "name": "w",
    "time_unit": "none",
    "granularity": 10,
    "fields": {"value": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "all": {"function": "collect"},
        "sum": {"function": "sum"},
        "when": {"function": "arg_max"},
    },
}


def window(clock=None, block=3, **parts):
    return Window(WindowSpec.parse(BASE | parts), block=block, clock=clock)


def bulk(pairs, keys=None):
    times, values = zip(*pairs, strict=True)
    coded = None if keys is None else Coded.of(keys)
    return Batch(np.array(times, np.int64), {"value": np.array(values, np.int64)}, coded)


def content(w, key=None):
    (answer,) = w.query(key, [], None)
    assert answer.entries == answer.aggregates["n"] == len(answer.aggregates["all"])
    return answer.aggregates["all"]
