"""Writes that are too large, and aggregates that are not installed."""

import numpy as np
import pytest

import sash_engine.monoids
from sash.durability.records.commands import AddAggregates, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import AlreadyExists, FailedPrecondition, TooLarge
from sash_engine.monoids import Sum
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec import aggregates as spec_module
from tests.support.stored import batch, running, spec


async def test_a_write_that_is_no_value_of_a_tier_is_refused_and_changes_nothing():
    server, storage = await running(
        spec(keyed=False, aggregates={"n": {"function": "count"}}),
        spec(name="texts", fields={"value": "string"}, aggregates={"n": {"function": "count"}}),
    )
    n = 17 * 2**18
    large = Batch(np.zeros(n, np.int64), {"value": np.zeros(n, np.int64)})
    for refused in (
        lambda: storage.write("w", BulkInsert(large), Origin("p", 1)),
        lambda: storage.write("w", StageBatch(large, "q", 0)),
        lambda: storage.write("texts", Insert(1, {"value": "x" * 2**26}, "a")),
        lambda: storage.write("texts", Insert(1, {"value": "ß" * 2**25}, "a")),
    ):
        with pytest.raises(TooLarge, match="in parts") as error:
            await refused()
        assert (error.value.field, error.value.limit) == ("time", "63 MiB")
    assert (await storage.write("w", Insert(1, {"value": 1}, None), Origin("p", 1))).inserted == 1
    storage = await server.crash()
    assert storage.find("w").query(None, [], None)[0].entries == 1


async def test_where_nothing_is_kept_a_write_may_have_any_size():
    _, storage = await running(
        spec(durability="memory", fields={"value": "string"}, aggregates={"n": {"function": "count"}})
    )
    assert (await storage.write("w", Insert(1, {"value": "x" * 2**26}, "a"))).inserted == 1


class Mine(Sum):
    """An aggregate of another package."""

    function = "mine"


@pytest.fixture
def installed(monkeypatch):
    """Installs the package; what it returns removes it, or installs it again."""

    def switch(there):
        known = sash_engine.monoids.catalogue() | ({"mine": Mine} if there else {})
        monkeypatch.setattr(spec_module, "catalogue", lambda: known)

    switch(True)
    return switch


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize(("added", "when"), [(False, None), (True, None), (False, "total.own > 10000")])
async def test_a_window_whose_aggregate_is_not_installed_is_kept_as_it_is(installed, end, added, when):
    """A predicate is of what there is from the beginning."""
    server, storage = await running(checkpoint_bytes=500, store_entries=4)
    own = {"own": {"function": "mine"}}
    one = {"n": {"function": "count"}}
    document = spec(aggregates=one if added else one | own, slide={"when": when} if when else {})
    await storage.create(document)
    await storage.create(spec(name="v", aggregates=one))
    for start in range(0, 60, 20):
        await storage.write("w", BulkInsert(batch([("a", start + i) for i in range(20)], start)))
        await server.settled()
    if added:
        await storage.write("w", AddAggregates(own))
    await storage.write("w", Insert(70, {"value": 100}, "a"))
    expected = sum(range(60)) + 100
    assert storage.find("w").query("a", [], None)[0].aggregates["own"] == expected

    installed(False)
    storage = await (server.restart() if end == "stop" else server.crash())
    mine = {key: value for key, value in server.store.values.items() if b"/00000001" in key}
    for refused in (
        lambda: storage.write("w", Insert(71, {"value": 1}, "a")),
        lambda: storage.write("w", StageBatch(batch([("a", 1)], 0), "q", 0)),
        lambda: storage.write("w", Commit("q", 0, [])),
    ):
        with pytest.raises(FailedPrecondition, match=r"mine.*install"):
            await refused()
    with pytest.raises(FailedPrecondition, match=r"mine.*install"):
        storage.find("w")
    with pytest.raises(AlreadyExists):
        await storage.create(spec(slide={"max_count": 3}))
    v, w = storage.all()
    assert (v.problem, "mine" in w.problem, w.spec.name) == (None, True, "w")
    for time in range(50):
        await storage.write("v", Insert(time, {"value": 1}, "a"))
        storage.tidy()
    await storage.create(spec(name="u"))
    assert storage.status().damaged == 0

    storage = await server.crash()
    with pytest.raises(FailedPrecondition, match="mine"):
        storage.find("w")
    await storage.stop()
    assert {key: server.store.values.get(key) for key in mine} == mine, "nothing of it was changed"
    installed(True)
    storage = await server.start()
    assert storage.find("w").query("a", [], None)[0].aggregates["own"] == expected
    assert [info.problem for info in storage.all()] == [None] * 3
    installed(False)
    storage = await server.crash()
    await storage.delete("w")
    await storage.delete("v")
    await storage.delete("u")
    await storage.stop()
    assert not server.left
