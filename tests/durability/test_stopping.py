"""A service that stops while writers wait, that could not start, or whose tier another server has taken."""

import asyncio

import numpy as np
import pytest

from sash.durability import formats as values
from sash_engine.errors import DataLoss, FailedPrecondition, Unavailable
from sash_engine.windows.batches.batch import Origin
from tests.support.damage import flipped
from tests.support.failing import QUIET, entries, failing, insert, rows
from tests.support.stored import running, spec
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_service_that_stops_tells_those_that_still_wait():
    server, storage = await running(spec())
    server.tier.open_gate.clear()
    write = asyncio.create_task(storage.write("w", insert(1)))
    await until(server.tier.arrived.is_set)
    stop = asyncio.create_task(storage.stop(0.05))
    await until(lambda: storage.store.session.journal.ended)
    server.tier.open_gate.set()
    await stop
    with pytest.raises(Unavailable):
        await asyncio.wait_for(write, 60)
    with pytest.raises(Unavailable, match="shuts down"):
        await storage.write("w", insert(2))
    with pytest.raises(Unavailable, match="shuts down"):
        await storage.create(spec(name="v"))


async def test_a_service_can_stop_while_a_window_recovers():
    server, storage = await failing()
    storage = await asyncio.wait_for(server.restart(), 60)
    assert entries(storage) == list(range(100)), "the write that failed did not take place"


async def test_a_service_that_could_not_start_writes_nothing():
    server, storage = await running(spec(), **QUIET)
    await storage.write("w", rows(0, 100))
    await server.die()
    last = values.last_group_key()
    server.store.values[last] = flipped(server.store.values[last], -1)
    before = dict(server.store.values)
    for _ in range(2):
        with pytest.raises(DataLoss, match=rf"{last.decode()}.*sash admin check --salvage"):
            await server.start()
        await asyncio.wait_for(server.storage.stop(), 60)
        assert server.store.values == before
        assert server.store.owner is None, "another may try"


async def test_a_tier_of_another_owner_is_never_written_again():
    server, storage = await running(spec())
    server.tier.fail_before, server.tier.error = 1, lambda: FailedPrecondition("another server has it")
    with pytest.raises(Unavailable, match=r"may be applied.*another server"):
        await storage.write("w", insert(1), Origin("p", 1))
    commits = server.tier.commits
    for _ in range(3):
        with pytest.raises(FailedPrecondition, match="another server"):
            await storage.write("w", insert(1), Origin("p", 1))
        with pytest.raises(FailedPrecondition, match="another server"):
            await storage.delete("w")
        storage.tidy()
    assert storage.problem == "another server has it"
    assert np.array_equal(entries(storage), [1]), "what is in memory is still answered"
    await asyncio.wait_for(storage.stop(0.1), 60)
    assert server.tier.commits == commits
