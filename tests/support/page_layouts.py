"""The layout of one column that tests of keys and of pages share."""

from sash_engine.forest import Layout
from sash_engine.monoids import catalogue


def layout(kind="int64"):
    make = catalogue()
    chosen = ["collect", "sum"] if kind == "int64" else ["collect"]
    return Layout({"value": kind}, {name: (make[name](kind), ["value"]) for name in chosen}, block=4)
