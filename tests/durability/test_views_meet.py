"""Views that are created, changed and deleted while others do the same: names are taken once, and nothing is lost."""

import asyncio

import numpy as np
import pytest

from sash.durability.catalogue import Catalogue
from sash.durability.images.export import export
from sash.durability.records.commands import AddAggregates, BulkInsert
from sash.durability.storage import Storage
from sash_engine.clock import ManualClock
from sash_engine.errors import NotFound, Unavailable
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.derived.views import View
from sash_engine.windows.questions import Query
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.failing import parts_of

SUMS = {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}}
COMMON = {"time_unit": "none", "keyed": True, "fields": {"v": "int64"}, "aggregates": SUMS}
HIGH, LOW = {"high": {"function": "max", "field": "v"}}, {"low": {"function": "min", "field": "v"}}
VIEW = WindowSpec.parse({"name": "view", "of": "one", "aggregates": HIGH})


class Ticking(ManualClock):
    """Each look takes a second, so each slice is one step."""

    def monotonic_s(self):
        self.advance(10**9)
        return super().monotonic_s()


class Busy:
    """Two windows, of which the first one has keys enough that a view of it takes several turns."""

    def __init__(self, max_windows=1000):
        clock = Ticking()
        self.catalogue = Catalogue(max_windows, clock=clock)
        self.storage = Storage(self.catalogue, clock, block=4)

    async def __aenter__(self):
        for name in ("one", "two"):
            await self.storage.create(WindowSpec.parse({"name": name, **COMMON}))
        window, n = self.catalogue.window("one"), 1000
        batch = Batch.of(window.spec, np.arange(n), {"v": np.arange(n)}, [f"k{i % 5}" for i in range(n)])
        await self.storage.write("one", BulkInsert(batch))
        return self

    async def __aexit__(self, *_):
        for window in self.catalogue.all():
            if not isinstance(window, View):
                shown = [view.spec.name for view in window.views]
                assert shown == [view.spec.name for view in self.catalogue.all() if view.spec.of == window.spec.name]
                window.check_invariants()

    async def under_way(self, awaitable):
        """Begin something, and return when it has the window for itself."""
        task = asyncio.create_task(awaitable)
        lock = self.storage.store.lock("one")
        while not lock.held_exclusively:
            await asyncio.sleep(0)
        return task


@pytest.fixture
async def busy(request):
    """With room for as many windows as the test says."""
    async with Busy(getattr(request, "param", 1000)) as busy:
        yield busy


@pytest.mark.parametrize("other", ["window", "view", "cascade", "import"])
async def test_a_name_is_taken_while_its_view_is_computed(busy, other):
    documents = {
        "window": COMMON,
        "view": {"of": "two", "aggregates": SUMS},
        "cascade": {**COMMON, "from": {"window": "two", "granularity": 2}},
    }
    found = list(export(Window(WindowSpec.parse({"name": "view", **COMMON}))))
    creating = await busy.under_way(busy.storage.create(VIEW))
    if other == "import":
        second = busy.storage.restore(parts_of(found), None)
    else:
        second = busy.storage.create(WindowSpec.parse({"name": "view", **documents[other]}))
    with pytest.raises(Unavailable, match="a view 'view' is being created") as refused:
        await second
    assert refused.value.retry_after_s > 0
    assert not creating.done()
    assert (await creating)[1] is True
    assert busy.storage.find("view").reader.query(Query("k4"))[0].aggregates == {"high": 999}


async def test_the_same_view_twice_is_one(busy):
    creating = await busy.under_way(busy.storage.create(VIEW))
    assert (await busy.storage.create(VIEW))[1] is False
    assert (await creating)[1] is True


@pytest.mark.parametrize("busy", [3], indirect=True)
async def test_a_view_counts_as_a_window_while_it_is_computed(busy):
    creating = await busy.under_way(busy.storage.create(VIEW))
    with pytest.raises(Exception, match="there are 3 windows already"):
        await busy.storage.create(WindowSpec.parse({"name": "three", **COMMON}))
    await creating


async def test_a_view_is_there_although_its_creator_has_gone(busy):
    creating = await busy.under_way(busy.storage.create(VIEW))
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert busy.storage.find("view").reader.query(Query("k4"))[0].aggregates == {"high": 999}
    await busy.storage.delete("view")
    await busy.storage.delete("one")


async def test_a_window_that_is_deleted_meanwhile_gets_no_view(busy):
    creating = await busy.under_way(busy.storage.create(VIEW))
    await busy.storage.delete("one")
    with pytest.raises(NotFound):
        await creating
    assert [window.spec.name for window in busy.catalogue.all()] == ["two"]
    await busy.storage.create(WindowSpec.parse({"name": "view", **COMMON}))


async def test_a_view_has_the_fields_of_the_window_that_is_there_when_it_is_made(busy):
    creating = await busy.under_way(busy.storage.create(VIEW))
    second = WindowSpec.parse({"name": "second", "of": "one", "aggregates": {"n": SUMS["n"]}})
    waiting = asyncio.create_task(busy.storage.create(second))
    await asyncio.sleep(0)
    await busy.storage.delete("one")
    await busy.storage.create(WindowSpec.parse({"name": "one", **COMMON, "fields": {"v": "int64", "w": "string"}}))
    await asyncio.gather(creating, waiting, return_exceptions=True)
    assert list(busy.storage.find("second").spec.fields) == ["v", "w"]


async def test_aggregates_that_are_added_at_once_are_all_there(busy):
    await busy.storage.create(WindowSpec.parse({"name": "view", "of": "one", "aggregates": SUMS}))
    adding = await busy.under_way(busy.storage.write("view", AddAggregates(HIGH)))
    await asyncio.gather(adding, busy.storage.write("view", AddAggregates(LOW)))
    assert busy.storage.find("view").reader.query(Query("k4"))[0].aggregates == {
        "n": 200,
        "sum": 100300,
        "high": 999,
        "low": 4,
    }


async def test_aggregates_for_a_view_that_is_deleted_before_they_are_added(busy):
    await busy.storage.create(WindowSpec.parse({"name": "view", "of": "one", "aggregates": SUMS}))
    adding = await busy.under_way(busy.storage.write("view", AddAggregates(HIGH)))
    deleting = asyncio.create_task(busy.storage.delete("view"))
    await asyncio.sleep(0)
    late = asyncio.create_task(busy.storage.write("view", AddAggregates(LOW)))
    await asyncio.gather(adding, deleting)
    with pytest.raises(NotFound):
        await late


async def test_a_view_that_is_deleted_twice_and_made_again_elsewhere(busy):
    await busy.storage.create(WindowSpec.parse({"name": "view", "of": "one", "aggregates": SUMS}))
    adding = await busy.under_way(busy.storage.write("view", AddAggregates(HIGH)))

    async def replaced():
        await busy.storage.delete("view")
        await busy.storage.create(WindowSpec.parse({"name": "view", "of": "two", "aggregates": SUMS}))

    replacing = asyncio.create_task(replaced())
    await asyncio.sleep(0)
    deleting = asyncio.create_task(busy.storage.delete("view"))
    await asyncio.gather(adding, replacing, deleting)
