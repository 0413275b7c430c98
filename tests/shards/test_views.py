"""Views over several shards: on each shard they show what their window has there."""

import asyncio

import numpy as np
import pytest

from sash.access.access import Access
from sash.access.caller import Caller
from sash.access.rights import Right
from sash.access.tokens import Tokens
from sash.context import CALL, CallContext
from sash.durability.records.commands import BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, NotFound, PermissionDenied, Unsupported
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query
from sash_engine.windows.spec.window import WindowSpec
from tests.support.sharded import in_process

SUMS = {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}}
SOURCE = WindowSpec.parse(
    {
        "name": "requests",
        "time_unit": "s",
        "keys": ["a", "b"],
        "fields": {"v": "int64"},
        "aggregates": SUMS,
        "slide": {"max_age": "1h"},
    }
)
VIEW = WindowSpec.parse(
    {
        "name": "recent",
        "of": "requests",
        "slide": {"max_age": "1m"},
        "aggregates": {**SUMS, "low": {"function": "min", "field": "v"}},
    }
)


def bulk(n=400):
    random = np.random.default_rng(4)
    keys = [f"k{i}|{j}" for i, j in zip(random.integers(0, 20, n), random.integers(0, 2, n), strict=True)]
    return Batch.of(SOURCE, random.integers(0, 200, n), {"v": random.integers(-9, 9, n)}, keys)


@pytest.mark.parametrize("shards", [1, 5])
async def test_a_view_is_made_widened_and_deleted_on_all_shards(shards):
    plane = in_process(shards, ManualClock())
    await plane.create(SOURCE)
    info, created = await plane.create(VIEW)
    assert (created, info.spec.fields) == (True, SOURCE.fields)
    await plane.write("requests", BulkInsert(bulk()))
    assert (await plane.create(VIEW))[1] is False
    with pytest.raises(Unsupported, match="is a view of 'requests'"):
        await plane.write("recent", BulkInsert(bulk()))
    with pytest.raises(FailedPrecondition, match="has a view, which shows its entries"):
        await plane.delete("requests")
    await plane.add_aggregates("recent", {"high": {"function": "max", "field": "v"}})
    (answer,) = await plane.ask("recent", Query(keys=ALL_KEYS, combine=True))
    assert answer.aggregates["high"] == 8
    await plane.delete("recent")
    await plane.delete("requests")
    with pytest.raises(NotFound):
        await plane.create(VIEW)


async def test_a_shard_that_was_away_gets_views_after_their_windows():
    """The window's name comes behind the view's in the alphabet."""
    plane = in_process(3, ManualClock())
    await plane.create(SOURCE)
    await plane.create(VIEW)
    there = plane.deployment.lifecycle._shards.hosted[2].local
    await there.delete("recent")
    await there.delete("requests")
    await plane.deployment.lifecycle.reconcile_one(2)
    assert sorted(info.spec.name for info in await there.windows()) == ["recent", "requests"]
    for shard in (0, 1):
        await plane.deployment.lifecycle._shards.hosted[shard].local.delete("recent")
        await plane.deployment.lifecycle._shards.hosted[shard].local.delete("requests")
    await plane.deployment.lifecycle.reconcile_one(2)
    assert await there.windows() == []


async def test_a_shard_with_an_older_view_of_the_same_name_gets_the_new_one():
    plane = in_process(2, ManualClock())
    await plane.create(SOURCE)
    await plane.create(VIEW)
    other = WindowSpec.parse({**VIEW.document(), "slide": {"max_age": "5m"}})
    home, there = (plane.deployment.lifecycle._shards.hosted[shard].local for shard in (0, 1))
    await home.delete("recent")
    await home.create(other)
    await plane.deployment.lifecycle.reconcile_one(1)
    assert (await there.window("recent")).spec.slide.max_age == "5m"


@pytest.mark.parametrize("shards", [1, 4])
async def test_nobody_reads_a_hidden_window_through_a_view_of_it(shards, tmp_path):
    path = tmp_path / "tokens"
    path.write_text("tokens: []")
    plane = in_process(shards, ManualClock())
    await plane.create(SOURCE)
    plane._access = Access(ManualClock(), [Tokens(path, ManualClock())])
    for windows in (["recent"], ["rec*", "other"]):
        CALL.set(CallContext(caller=Caller("owner", Right.ADMIN, windows)))
        with pytest.raises(PermissionDenied, match="requests"):
            await plane.create(VIEW)
    CALL.set(CallContext(caller=Caller("root", Right.ADMIN, ["re*"])))
    await plane.create(VIEW)
    CALL.set(CallContext(caller=Caller("reader", Right.READ, ["recent"])))
    assert await plane.ask("recent", Query(keys=ALL_KEYS)) is not None
    with pytest.raises(PermissionDenied):
        await plane.ask("requests", Query(keys=ALL_KEYS))


async def test_views_whose_names_cross_are_refused_and_wait_for_nobody():
    """Each names the other one as its window. Both want both names, and another creation has one of them."""
    plane = in_process(4, ManualClock())
    first, second = (WindowSpec.parse({"name": a, "of": b, "aggregates": SUMS}) for a, b in ("ab", "ba"))
    locks = plane.deployment.lifecycle._locks
    async with locks["a"], asyncio.timeout(60), locks["b"]:
        creating = [asyncio.create_task(plane.create(spec)) for spec in (first, second)]
        while sum(len(lock._waiters or ()) for lock in locks.values()) < 2:
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*creating, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotFound, NotFound]
    await plane.create(WindowSpec.parse({**SOURCE.document(), "name": "a"}))


async def test_cascades_need_a_service_of_one_shard():
    """Their keys would be on other shards than those of the window that feeds them, and in other commits."""
    fed = {"name": "fed", "from": {"window": "requests", "granularity": "2s"}, "slide": {}}
    spec = WindowSpec.parse({**SOURCE.document(), **fed})
    plane = in_process(3, ManualClock())
    await plane.create(SOURCE)
    with pytest.raises(Unsupported, match="different shards") as refused:
        await plane.create(spec)
    assert (refused.value.field, [info.spec.name for info in await plane.windows()]) == ("from", ["requests"])
    plane = in_process(1, ManualClock())
    await plane.create(SOURCE)
    await plane.create(spec)
    await plane.write("requests", BulkInsert(Batch.of(SOURCE, [1, 2], {"v": [1, 2]}, ["k|x", "l|x"])))
    assert [answer.entries for answer in await plane.ask("fed", Query(selection=Grouped(by=["b"])))] == [2]
