"""An acknowledged write is durable; a retry waits for the same commit."""

import asyncio
import traceback

import numpy as np
import pytest

from sash.durability.records.commands import AddAggregates, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import NotFound, SashError, Unavailable
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec.window import WindowSpec
from tests.support.failing import entries, insert
from tests.support.stored import batch, running, spec
from tests.support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("impatient")

COUNT = {"aggregates": {"n": {"function": "count"}}}
VIEW = WindowSpec.parse({"name": "view", "of": "w", **COUNT})
CASCADE = spec(name="cascade", **COUNT, **{"from": {"window": "w", "granularity": 5}})
TWICE = {
    "write": (lambda storage, stage: storage.write("w", insert(1), Origin("p", 1)), "already_applied"),
    "commit": (lambda storage, stage: storage.write("w", Commit("q", 0, [stage])), "already_applied"),
    "window": (lambda storage, stage: storage.create(spec(name="new")), "created"),
    "view": (lambda storage, stage: storage.create(VIEW), "created"),
    "cascade": (lambda storage, stage: storage.create(CASCADE), "created"),
    "delete": (lambda storage, stage: storage.delete("w"), "deleted"),
}


@pytest.mark.parametrize("what", TWICE)
async def test_a_call_that_is_made_again_waits_for_the_commit_of_the_first(what):
    server, storage = await running(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    await server.settled()
    server.tier.open_gate.clear()
    call, outcome = TWICE[what]
    calls = []
    for _ in range(2):
        calls.append(asyncio.create_task(call(storage, staged.stage)))
        await asyncio.to_thread(server.tier.arrived.wait)
        await turns()
    assert not any(each.done() for each in calls), "it is not durable yet"
    server.tier.open_gate.set()
    first, again = await asyncio.gather(*calls, return_exceptions=True)
    if outcome == "already_applied":
        assert (first.inserted, first.already_applied, again.already_applied) == (1, False, True)
    elif outcome == "created":
        assert (first[1], again[1]) == (True, False)
    else:
        assert (first, type(again)) == (0, NotFound)
    before = {info.spec.name: info.counts for info in storage.all()}
    storage = await server.crash()
    assert {info.spec.name: info.counts for info in storage.all()} == before


async def test_a_writer_that_gives_up_waiting_leaves_its_write_whole():
    server, storage = await running(spec())
    server.tier.open_gate.clear()
    writes = [asyncio.create_task(storage.write("w", insert(time), Origin("p", time))) for time in (1, 2, 3)]
    await until(server.tier.arrived.is_set)
    writes[1].cancel()
    await asyncio.sleep(0)
    server.tier.open_gate.set()
    await asyncio.gather(writes[0], writes[2])
    assert (await storage.write("w", insert(2), Origin("p", 2))).already_applied
    assert entries(await server.crash()) == [1, 2, 3]


async def test_numbers_of_any_length_are_journalled():
    """They fit into no 64 bits, but a float64 may be written as one, and a spec may have one."""
    long = 10**30
    parts = {"fields": {"value": "float64"}, "aggregates": {"max": {"function": "max"}}}
    server, storage = await running(spec(**parts))
    result = await asyncio.wait_for(storage.write("w", Insert(1, {"value": long}, "a")), 60)
    assert result.inserted == 1
    await storage.write("w", AddAggregates({"h": {"function": "histogram", "bounds": [0, long]}}))
    for again in (server.crash, server.restart):
        storage = await again()
        assert storage.find("w").query("a", [], None)[0].aggregates["h"]["counts"] == [0, 0, 1]


async def test_the_same_error_is_never_raised_twice():
    """It would keep the frames of all that it was raised to, and with them what they wrote."""
    server, storage = await running(spec())
    server.tier.unreachable = True
    depths, errors = set(), set()
    with pytest.raises(Unavailable):
        await storage.write("w", insert(0))
    for time in range(1, 20):
        with pytest.raises(Unavailable) as refused:
            await storage.write("w", insert(time))
        depths.add(len(traceback.extract_tb(refused.value.__traceback__)))
        errors.add(refused.value)
    assert len(errors) == 19
    assert len(depths) == 1


async def test_rows_of_a_batch_that_nobody_can_write_change_nothing():
    """What cannot be a record must be refused before it is applied."""
    server, storage = await running(spec())
    with pytest.raises(SashError):
        await storage.write("w", BulkInsert(Batch(np.arange(3.0), {"value": np.arange(3)})))
    await storage.write("w", insert(1))
    assert entries(await server.crash()) == [1]
