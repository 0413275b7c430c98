"""The engine as a library: its public names, its own example, and batches made of plain lists."""

import doctest
import subprocess
import sys

import numpy as np
import pytest

import sash_engine
from sash_engine import Batch, ManualClock, Window, WindowSpec
from tests.support.refused import refused

FIELDS = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
DOCUMENT = {
    "name": "w",
    "keyed": True,
    "fields": FIELDS,
    "aggregates": {name: {"function": "collect", "field": name} for name in FIELDS},
}
SPEC = WindowSpec.parse(DOCUMENT)


def test_the_example():
    failed, ran = doctest.testmod(sash_engine)
    assert (failed, ran) == (0, 9)


def test_public_names():
    names = "ALL_KEYS Answer Batch Clock Counts Forest Layout ManualClock Monoid PartialBatch SashError Series Window"
    assert sash_engine.__all__ == [*names.split(), "WindowInfo", "WindowSpec", "WriteResult", "compiled"]
    assert all(hasattr(sash_engine, name) for name in sash_engine.__all__)


def test_the_engine_brings_no_server():
    done = subprocess.run(
        [sys.executable, "-c", "from sash_engine import Window; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(done.stdout.split())
    assert "sash_engine.windows.window" in imported
    assert not imported & {"sash", "grpc", "fastapi", "uvicorn", "lmdb", "redis", "msgpack", "google.protobuf"}


def test_a_batch_of_lists_is_one_of_arrays():
    window = Window(SPEC)
    columns = {"f": [1, 2], "i": [3, 4], "s": ["x", ""], "b": [True, False]}
    assert window.bulk_insert(Batch.of(SPEC, [7, 5], columns, keys=["a", "a"])).inserted == 2
    (answer,) = window.query("a")
    assert answer.aggregates == {"f": [2.0, 1.0], "i": [4, 3], "s": ["", "x"], "b": [False, True]}
    assert [type(value) for value in answer.aggregates["f"]] == [float, float]


def test_a_batch_copies_what_it_is_given():
    times, values = np.array([1, 2]), np.array([1.0, 2.0])
    spec = WindowSpec.parse({"name": "w", "aggregates": {"all": {"function": "collect"}}})
    window = Window(spec)
    window.bulk_insert(Batch.of(spec, times, {"value": values}))
    times[:], values[:] = 0, 0
    assert window.query()[0].aggregates == {"all": [1.0, 2.0]}
    assert window.bulk_insert(Batch.of(spec, [], {"value": np.empty(0)})).inserted == 0


@pytest.mark.parametrize(
    ("times", "column", "field"),
    [
        ([1.5], {"f": [1.0]}, "time"),
        (["1"], {"f": [1.0]}, "time"),
        ([1], {"f": ["x"]}, "f"),
        ([1], {"i": [1.5]}, "i"),
        ([1], {"s": [1]}, "s"),
        ([1], {"b": [1]}, "b"),
        ([1], {"other": [1]}, "other"),
        ([1], {"f": [1.0, 2.0]}, "f"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(times, column, field):
    columns = {"f": [1.0], "i": [1], "s": ["x"], "b": [True]} | column
    assert refused(Window(SPEC).bulk_insert, Batch.of(SPEC, times, columns, keys=["a"])).field == field


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"slide": {"max_age": "1h", "clock": "wall"}}, "slide.clock"),
        ({"order": {"ahead": "1h"}}, "order.ahead"),
        ({"idle_expiry": "1h"}, "idle_expiry"),
    ],
)
def test_wall_time_needs_a_clock(part, field):
    spec = WindowSpec.parse(DOCUMENT | part)
    assert refused(Window, spec, match="pass a clock").field == field
    assert Window(spec, clock=ManualClock()).info().entries == 0
