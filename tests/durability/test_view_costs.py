"""What views cost: they are refused where there is no memory for them, and their entries are counted in steps."""

import asyncio
import gc
import itertools
import tracemalloc

import numpy as np
import pytest

from sash.durability.images.footprint import held_bytes, view_footprint
from sash.durability.records.commands import AddAggregates, BulkInsert, Retract
from sash.limits.memory import MemoryBudget
from sash.runtime import slices
from sash_engine.errors import OutOfRoom, TooLarge
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.derived import views
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.nulls import mark_of
from tests.durability.test_views import SHORT, SOURCE, SUMS, bulk
from tests.support.stored import running


def filled(n=400):
    """A bulk of one large key and of many small ones."""
    keys = ["large|y"] * (n // 2) + [f"small{i}|y" for i in range(n // 2)]
    values = np.arange(n)
    columns = {"v": values, "w": Coded.of([f"u{value % 7}" for value in values])}
    return Batch(np.full(n, 50), columns, Coded.of(keys))


QUANTILES = {f"p{i}": {"function": "quantile", "field": "v", "q": i / 10, "k": 200 + i} for i in range(1, 9)}


@pytest.mark.parametrize("wider", [False, True])
async def test_a_view_for_which_there_is_no_memory_is_refused_and_changes_nothing(wider):
    budget = MemoryBudget(100_000_000, {"staged": (10**6, "")}, used=lambda: 0, monotonic_s=itertools.count().__next__)
    server, storage = await running(SOURCE, memory=budget)
    await storage.write("requests", BulkInsert(filled()))
    document = {**SHORT.document(), "aggregates": SHORT.document()["aggregates"] | ({} if wider else QUANTILES)}
    if wider:
        await storage.create(SHORT)
    slots = storage.find("requests").layout.keys

    async def add():
        if wider:
            await storage.write("short", AddAggregates(QUANTILES))
        else:
            await storage.create(WindowSpec.parse(document))

    budget.limit_bytes = budget._full_bytes = budget._roomy_bytes = 4_000_000
    with pytest.raises((OutOfRoom, TooLarge), match="of memory"):
        await add()
    assert storage.find("requests").layout.keys == slots
    assert ("short" in server.catalogue) is wider
    budget.limit_bytes = budget._full_bytes = budget._roomy_bytes = 10**11
    await add()
    (answer,) = storage.find("short").reader.query(Query("large|y"))
    assert answer.entries == 200
    assert QUANTILES.keys() <= answer.aggregates.keys()


async def test_a_view_with_aggregates_that_are_there_needs_little():
    _, storage = await running(SOURCE)
    await storage.write("requests", BulkInsert(filled()))
    source = storage.find("requests")
    same, sketches, listed = (
        view_footprint(source, completed(WindowSpec.parse({"name": "x", "of": "requests", "aggregates": each}), SOURCE))
        for each in (SUMS, QUANTILES, {"all": SHORT.document()["aggregates"]["all"]})
    )
    assert same <= 60 * 201
    assert sketches - same > 8 * 4_000 * 200 // source.block  # eight sketches of each block
    assert listed - same > 200 * 8


async def test_the_entries_of_a_view_are_counted_in_steps(monkeypatch):
    """With the same outcome as at once, and other calls between two steps."""
    monkeypatch.setattr(views, "_KEYS", 1)
    monkeypatch.setattr(slices, "_SLICE_S", 0.0)
    _, storage = await running(SOURCE)
    whole = WindowSpec.parse({"name": "whole", "of": "requests", "aggregates": SUMS})
    await storage.create(SHORT)
    await storage.create(whole)
    random = np.random.default_rng(5)
    for step in range(3):
        await storage.write("requests", BulkInsert(bulk(random, step)))
    await storage.write("requests", Retract(Batch(np.array([1]), {"v": np.array([-1])}, Coded.of(["x|y"]))))
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going_on = asyncio.create_task(others())
    assert await storage.described("requests") == storage.info(storage.find("requests"))
    for name in ("short", "whole"):
        before = turns
        assert await storage.described(name) == storage.info(storage.find(name))
        assert turns - before >= len(storage.find(name).keys)
    expected = [storage.info(storage.find(name)) for name in ("requests", "short", "whole")]
    assert await storage.all_described() == expected
    going_on.cancel()
    entries = [len(batch.times) for batch in storage.find("short").reader.entries(EntriesQuery(keys=ALL_KEYS))]
    assert expected[1].entries == sum(entries)
    assert expected[2].counts == expected[0].counts
    assert not storage.is_view("requests")


async def test_a_view_that_goes_while_others_are_described_is_left_out(monkeypatch):
    monkeypatch.setattr(views, "_KEYS", 1)
    monkeypatch.setattr(slices, "_SLICE_S", 0.0)
    _, storage = await running(SOURCE, SHORT)
    await storage.write("requests", BulkInsert(bulk(np.random.default_rng(5), 0)))
    described = asyncio.create_task(storage.all_described())
    await asyncio.sleep(0)
    await storage.delete("short")
    assert [info.spec.name for info in await described] in (["requests"], ["requests", "short"])
    assert [info.spec.name for info in await storage.all_described()] == ["requests"]


KINDS = [
    {"keyed": False},
    {"keyed": True},
    {"keyed": True, "aggregates": {"p": {"function": "quantile", "q": 0.5}, "m": {"function": "max"}}},
    {"keyed": True, "granularity": "1s", "aggregates": {"d": {"function": "distinct_count"}}},
    {"keys": ["a", "b"], "rollups": [["a"]]},
    {"keyed": True, "fields": {"value": "float64", "name": "string"}, "nullable": ["value"]},
]
SIZES = [(1, 10_000), (1000, 3), (100, 100)]
"""Keys, and entries of each."""


@pytest.mark.parametrize(
    ("more", "keys", "each"),
    [
        pytest.param(more, *size, marks=pytest.mark.soak if (kind + place) % 2 else ())
        for kind, more in enumerate(KINDS)
        for place, size in enumerate(SIZES)
    ],
)
def test_what_a_window_has_is_estimated_from_above(more, keys, each):
    document = {"name": "w", "time_unit": "ms", "aggregates": {"s": {"function": "sum", "field": "value"}}} | more
    spec = WindowSpec.parse(document)

    def batch():
        rows = np.repeat(np.arange(each), keys) * 10
        names = [f"key{i}" + "|x" * ("keys" in more) for i in range(keys)] * each
        columns = {"value": np.arange(len(rows), dtype=float)}
        if "nullable" in more:
            columns |= {mark_of("value"): np.zeros(len(rows), bool), "name": Coded.of([f"n{i}" for i in rows])}
        return Batch(rows, columns, Coded.of(names) if spec.keyed else None)

    gc.collect()
    tracemalloc.start()
    try:
        window = Window(spec)
        finished(window.bulk_insert_steps(batch()))  # the window may keep columns as they are
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= held_bytes(window), "from above"
    if "granularity" not in more:  # how many panes there are is not counted
        assert held_bytes(window) <= 20 * taken, "and not from the sky"
