"""Sash's engine: sliding-window aggregates in process, without a server.

    Window          the entries of a window by key, and its answers          windows/
    Forest          one key's entries as column blocks, with a tree over them        forest/
    aggregators     the algorithms of the literature, tuple at a time        aggregators/
    Monoid          what an aggregate is: lift, combine, lower               monoids/

A window is a plain data structure. It has no threads, reads no clock and does no I/O. Whoever uses it from several
threads locks it. A spec is the document that the service takes; one that goes by wall time needs a clock.

>>> from sash_engine import Batch, Window, WindowSpec
>>> spec = WindowSpec.parse({
...     "name": "delays", "time_unit": "s", "keyed": True,
...     "fields": {"delay": "float64", "carrier": "string"},
...     "aggregates": {
...         "flights": {"function": "count"},
...         "mean": {"function": "mean", "field": "delay"},
...         "worst": {"function": "arg_max", "field": "delay", "returns": "carrier"},
...     },
...     "slide": {"max_age": "1h"},
... })
>>> window = Window(spec)
>>> window.insert(60, {"delay": 5.0, "carrier": "AA"}, key="JFK").inserted
1
>>> columns = {"delay": [7, 30, 2], "carrier": ["UA", "DL", "AA"]}
>>> window.bulk_insert(Batch.of(spec, [120, 30, 90], columns, keys=["JFK", "JFK", "LGA"])).inserted
3
>>> (minute, all_of_it) = window.query("JFK", ["1m"]) + window.query("JFK")
>>> minute.aggregates, all_of_it.aggregates
({'flights': 1, 'mean': 7.0, 'worst': 'UA'}, {'flights': 3, 'mean': 14.0, 'worst': 'DL'})
>>> window.series(0, 180, step="1m", width="2m", key="JFK").aggregates["flights"].tolist()
[2, 2, 1]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sash_engine.clock import Clock, ManualClock
    from sash_engine.errors import SashError
    from sash_engine.forest import Forest, Layout
    from sash_engine.monoids import Monoid
    from sash_engine.version import compiled
    from sash_engine.windows.answers import Answer, Counts, Series, WindowInfo, WriteResult
    from sash_engine.windows.batches.batch import Batch, PartialBatch
    from sash_engine.windows.questions import ALL_KEYS
    from sash_engine.windows.spec.window import WindowSpec
    from sash_engine.windows.window import Window

__all__ = [
    "ALL_KEYS",
    "Answer",
    "Batch",
    "Clock",
    "Counts",
    "Forest",
    "Layout",
    "ManualClock",
    "Monoid",
    "PartialBatch",
    "SashError",
    "Series",
    "Window",
    "WindowInfo",
    "WindowSpec",
    "WriteResult",
    "compiled",
]

_HOMES = {
    **dict.fromkeys(("Clock", "ManualClock"), "clock"),
    **dict.fromkeys(("Forest", "Layout"), "forest"),
    **dict.fromkeys(("Answer", "Counts", "Series", "WindowInfo", "WriteResult"), "windows.answers"),
    "ALL_KEYS": "windows.questions",
    **dict.fromkeys(("Batch", "PartialBatch"), "windows.batches.batch"),
    "Monoid": "monoids",
    "SashError": "errors",
    "Window": "windows.window",
    "WindowSpec": "windows.spec.window",
    "compiled": "version",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: a worker of Spark needs a part of the engine, and starts often."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
