"""An acknowledged write is durable; a retry waits for the same commit."""

import asyncio
import traceback

import numpy as np
import pytest

from sash.durability.records.commands import AddAggregates, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import NotFound, SashError, Unavailable
from sash_engine.windows.batches.batch import Batch, Origin
from tests.support.failing import entries, insert
from tests.support.stored import StorageServer, batch, spec
from tests.support.waiting import surely, turns, until

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_retry_while_the_first_is_on_its_way_waits_for_the_same_commit():
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    server.tier.open_gate.clear()
    first = asyncio.create_task(storage.write("w", insert(1), Origin("p", 1)))
    await until(server.tier.arrived.is_set)
    again = asyncio.create_task(storage.write("w", insert(1), Origin("p", 1)))
    await turns()
    assert not again.done(), "it is not durable yet"
    server.tier.open_gate.set()
    assert not (await first).already_applied
    assert (await again).already_applied
    await storage.stop()


async def test_a_batch_that_is_committed_again_waits_for_the_first_commit():
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    server.tier.open_gate.clear()
    committed = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await until(lambda: storage.find("w").ledger.committed("q", 0))
    again = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await turns()
    assert not again.done()
    server.tier.open_gate.set()
    assert (await committed).inserted == 1
    assert (await again).already_applied
    await storage.stop()


async def test_a_window_whose_creation_was_not_answered_is_created_by_the_next_try():
    server = StorageServer()
    storage = await server.start()
    server.tier.fail_before = 1
    with pytest.raises(Unavailable):
        await storage.create(spec())
    await surely(lambda: storage.create(spec()))
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]
    await storage.stop()


async def test_a_second_creation_waits_for_the_first_ones_commit():
    server = StorageServer()
    storage = await server.start()
    await server.settled()
    server.tier.open_gate.clear()
    first = asyncio.create_task(storage.create(spec()))
    await until(server.tier.arrived.is_set)
    second = asyncio.create_task(storage.create(spec()))
    await turns()
    assert not second.done()
    server.tier.open_gate.set()
    assert [(await task)[1] for task in (first, second)] == [True, False]
    await storage.stop()


async def test_a_second_deletion_waits_for_the_first_ones_commit():
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    await server.settled()
    server.tier.open_gate.clear()
    first = asyncio.create_task(storage.delete("w"))
    await until(server.tier.arrived.is_set)
    second = asyncio.create_task(storage.delete("w"))
    await turns()
    assert not second.done()
    server.tier.open_gate.set()
    assert await first == 0
    with pytest.raises(NotFound):
        await second
    await storage.stop()


async def test_a_writer_that_gives_up_waiting_leaves_its_write_whole():
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    server.tier.open_gate.clear()
    writes = [asyncio.create_task(storage.write("w", insert(time), Origin("p", time))) for time in (1, 2, 3)]
    await until(server.tier.arrived.is_set)
    writes[1].cancel()
    await asyncio.sleep(0)
    server.tier.open_gate.set()
    await asyncio.gather(writes[0], writes[2])
    assert (await storage.write("w", insert(2), Origin("p", 2))).already_applied
    storage = await server.crash()
    assert entries(storage) == [1, 2, 3]
    await storage.stop()


async def test_numbers_of_any_length_are_journalled():
    """They fit into no 64 bits, but a float64 may be written as one, and a spec may have one."""
    server = StorageServer()
    storage = await server.start()
    long = 10**30
    parts = {"fields": {"value": "float64"}, "aggregates": {"max": {"function": "max"}}}
    await storage.create(spec(**parts))
    result = await asyncio.wait_for(storage.write("w", Insert(1, {"value": long}, "a")), 60)
    assert result.inserted == 1
    await storage.write("w", AddAggregates({"h": {"function": "histogram", "bounds": [0, long]}}))
    for again in (server.crash, server.restart):
        storage = await again()
        assert storage.find("w").query("a", [], None)[0].aggregates["h"]["counts"] == [0, 0, 1]
    await storage.stop()


async def test_the_same_error_is_never_raised_twice():
    """It would keep the frames of all that it was raised to, and with them what they wrote."""
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
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
    await server.die()


async def test_rows_of_a_batch_that_nobody_can_write_change_nothing():
    """What cannot be a record must be refused before it is applied."""
    server = StorageServer()
    storage = await server.start()
    await storage.create(spec())
    with pytest.raises(SashError):
        await storage.write("w", BulkInsert(Batch(np.arange(3.0), {"value": np.arange(3)})))
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]
    await storage.stop()
