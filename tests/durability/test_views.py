"""Views of stored windows: with the window whose entries they show, after restarts and crashes on each tier."""

import asyncio
import gc
import itertools
import tracemalloc

import numpy as np
import pytest

from sash.durability.images.export import export
from sash.durability.images.footprint import held_bytes, view_footprint
from sash.durability.records.commands import (
    AddAggregates,
    BulkEvict,
    BulkInsert,
    Commit,
    EvictRange,
    Insert,
    Retract,
    StageBatch,
)
from sash.limits.memory import MemoryBudget
from sash.runtime import slices
from sash_engine.clock import ManualClock
from sash_engine.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRoom,
    TooLarge,
    Unsupported,
)
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.derived import views
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.nulls import mark_of
from tests.support.exports import imported
from tests.support.stored import running, write_both
from tests.support.tiers import kinds
from tests.support.twins import alike
from tests.support.viewed import SUMS, ask, names_in, questions_about, requests, some_requests, twin_spec

SOURCE = requests(slide={"max_age": 60})
SHORT = WindowSpec.parse(
    {
        "name": "short",
        "of": "requests",
        "slide": {"max_age": 12},
        "aggregates": {"all": {"function": "collect", "field": "v"}, "total": SUMS["sum"]},
    }
)
WIDE = WindowSpec.parse(
    {
        "name": "wide",
        "of": "requests",
        "slide": {"max_age": 40, "every": 10},
        "aggregates": {"often": {"function": "frequent_items", "field": "w"}, "n": SUMS["n"]},
    }
)
PANES = WindowSpec.parse({**SOURCE.document(), "name": "panes", "granularity": 5, "identity": None})


def twins(*views):
    """Windows that have the entries themselves, by name."""
    specs = [SOURCE, *(twin_spec(completed(view, SOURCE)) for view in views)]
    return {spec.name: Window(spec, block=4, clock=ManualClock()) for spec in specs}


def compare(storage, expected):
    for name, twin in expected.items():
        window = storage.find(name)
        for question in questions_about(twin.spec):
            if not getattr(question, "partials", False):  # sketches show how they came about
                assert ask(window, question) == ask(twin, question), (name, question)
        assert window.info().counts.present == twin.counts.present
    storage.find("requests").check_invariants(alike)


@pytest.mark.parametrize("place", kinds("redis"), indirect=True)
async def test_views_survive_restarts_and_crashes_on_each_tier(place):
    random = np.random.default_rng(11)
    server, storage = await running(SOURCE, place=place, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    assert (await storage.create(SHORT))[1] is True
    expected = twins(SHORT, WIDE)
    late = {"wide": expected.pop("wide")}
    for step in range(9):
        batch = some_requests(random, step)
        await write_both(storage, "requests", [*expected.values(), *late.values()], BulkInsert(batch))
        if step == 4:
            assert (await storage.create(WIDE))[1] is True, "its partials are those of what is there"
            expected |= late
            late = {}
            names = names_in(batch, 0, 9)
            more = BulkEvict(20, "x|y"), EvictRange(44, 47), Retract(names), Insert(50, {"v": 5, "w": "ü"}, "x|y")
            await write_both(storage, "requests", expected.values(), *more)
        if step == 6:
            await storage.write("wide", AddAggregates({"low": {"function": "min", "field": "v"}}))
            expected["wide"].add_aggregates({"low": {"function": "min", "field": "v"}})
        if step == 7:
            assert await storage.delete("short") == expected.pop("short").counts.present
        await server.spilled()
        if step % 2:
            storage = await (server.restart() if step % 4 == 1 else server.crash())
        compare(storage, expected)
    with pytest.raises(NotFound):
        storage.find("short")


async def test_a_view_is_not_written_to():
    _, storage = await running(SOURCE, SHORT)
    batch = some_requests(np.random.default_rng(3), 3)
    for write in (
        storage.write("short", BulkInsert(batch)),
        storage.write("short", Insert(1, {"v": 1, "w": ""}, "x|y")),
        storage.write("short", BulkEvict(1, None)),
        storage.write("short", StageBatch(batch, "q", 1)),
        storage.write("short", Commit("q", 1, ["a"])),
    ):
        with pytest.raises(Unsupported, match="is a view of 'requests'"):
            await write
    await storage.write("requests", BulkInsert(batch))
    assert storage.find("short").info().entries > 0
    async with storage.shared("short") as window:
        assert window is storage.find("short")
    storage.tidy()


async def test_the_same_view_again_and_another_one_of_its_name():
    server, storage = await running(SOURCE)
    view, _ = await storage.create(SHORT)
    assert await storage.create(SHORT) == (view, False)
    assert await storage.create(view.spec) == (view, False)
    assert view.spec.fields == SOURCE.fields
    for other in (
        WIDE.document() | {"name": "short"},
        twin_spec(view.spec).document(),
        SHORT.document() | {"name": "requests", "of": "short"},
    ):
        with pytest.raises((AlreadyExists, InvalidArgument)):
            await storage.create(WindowSpec.parse(other))
    with pytest.raises(AlreadyExists):
        await storage.write("short", AddAggregates({"total": {"function": "max", "field": "v"}}))
    storage = await server.crash()
    assert [info.spec for info in storage.all()] == [SOURCE, view.spec]


async def test_a_window_with_views_is_not_deleted():
    server, storage = await running(SOURCE, SHORT, WIDE)
    with pytest.raises(FailedPrecondition, match="has 2 views, which show its entries: delete what is of it first"):
        await storage.delete("requests")
    slots = len(storage.find("requests").layout.monoids)
    await storage.delete("wide")
    assert len(storage.find("requests").layout.monoids) < slots, "nobody else has its sketch"
    await storage.delete("short")
    storage = await server.restart()
    assert [info.spec.name for info in storage.all()] == ["requests"]
    await storage.delete("requests")


async def test_views_of_what_cannot_have_them():
    _, storage = await running()
    with pytest.raises(NotFound, match="of: there is no window 'requests'"):
        await storage.create(SHORT)
    await storage.create(SOURCE)
    await storage.create(SHORT)
    with pytest.raises(InvalidArgument, match="say of: requests"):
        await storage.create(WindowSpec.parse({**SHORT.document(), "name": "other", "of": "short"}))
    source = {"window": "short", "granularity": 5}
    document = {name: each for name, each in SOURCE.document().items() if name not in ("identity", "order")}
    with pytest.raises(FailedPrecondition, match="'short' is a view"):
        await storage.create(WindowSpec.parse({**document, "name": "cascade", "from": source}))


async def test_a_cascade_has_views_that_are_stored_with_its_source():
    server, storage = await running(
        WindowSpec.parse({**SOURCE.document(), "identity": None}), checkpoint_bytes=3000, store_entries=4
    )
    document = {name: each for name, each in SOURCE.document().items() if name not in ("identity", "order", "slide")}
    await storage.create(
        WindowSpec.parse({**document, "name": "minutes", "from": {"window": "requests", "granularity": 5}})
    )
    await storage.create(
        WindowSpec.parse({"name": "recent", "of": "minutes", "slide": {"max_age": 20}, "aggregates": SUMS})
    )
    with pytest.raises(InvalidArgument, match="'minutes' keeps panes, and has no such aggregate"):
        await storage.create(
            WindowSpec.parse({"name": "no", "of": "minutes", "aggregates": {"low": {"function": "min", "field": "v"}}})
        )
    await storage.write("requests", BulkInsert(some_requests(np.random.default_rng(5), 3)))
    question = Query(keys=ALL_KEYS, combine=True)
    expected = str(storage.find("recent").reader.query(question))
    for _ in range(2):
        storage = await server.crash()
        assert str(storage.find("recent").reader.query(question)) == expected
        with pytest.raises(FailedPrecondition, match="has a view, which shows its entries"):
            await storage.delete("minutes")
        await server.settled()
        storage = await server.restart()
    await storage.delete("recent")
    await storage.delete("minutes")


def test_an_export_of_a_view_is_a_window_of_its_own():
    window = Window(SOURCE, block=4)
    view = window.derive(completed(SHORT, SOURCE))
    window.bulk_insert(some_requests(np.random.default_rng(6), 3))
    found = imported(b"".join(export(view)))
    assert found.spec == twin_spec(view.spec)
    for question in (Query(keys=ALL_KEYS), Query(keys=ALL_KEYS, lookbacks=[5]), EntriesQuery(keys=ALL_KEYS)):
        assert ask(found, question) == ask(view, question)
    found.check_invariants()
    assert imported(b"".join(export(window))).counts.present == window.counts.present


def test_an_export_of_a_view_on_wall_time_is_of_one_moment():
    """Between its counts and its entries wall time goes on, and entries leave the view."""

    class Going(ManualClock):
        def now_ns(self):
            self.advance(10**9)
            return super().now_ns()

    document = {**SOURCE.document(), "time_unit": "s", "slide": {"max_age": 9000, "clock": "wall"}}
    window = Window(WindowSpec.parse(document), clock=Going(200 * 10**9))
    view = window.derive(completed(WindowSpec.parse({**SHORT.document(), "slide": {"max_age": 60}}), window.spec))
    n = 300
    window.bulk_insert(
        Batch.of(window.spec, range(n), {"v": range(n), "w": ["u"] * n}, [f"k{i % 9}|" for i in range(n)])
    )
    found = imported(b"".join(export(view)), clock=ManualClock(200 * 10**9))
    assert 0 < found.counts.present < n


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
        await storage.write("requests", BulkInsert(some_requests(random, step)))
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


async def test_a_view_that_goes_while_others_are_described_is_left_out(monkeypatch):
    monkeypatch.setattr(views, "_KEYS", 1)
    monkeypatch.setattr(slices, "_SLICE_S", 0.0)
    _, storage = await running(SOURCE, SHORT)
    await storage.write("requests", BulkInsert(some_requests(np.random.default_rng(5), 0)))
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
