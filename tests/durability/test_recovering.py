"""A window that failed is recovered beside the loop, from a journal that is not cut meanwhile."""

import asyncio
import threading

import pytest

from sash.durability import formats as values
from sash.durability.images.stored_window import State
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash_engine.errors import DataLoss, NotFound, Unavailable
from sash_engine.windows.window import ALL_KEYS
from tests.support.stored import batch, running, spec
from tests.support.waiting import turns, until

SMALL = {"n": {"function": "count"}, "sum": {"function": "sum"}}


def insert(time):
    return Insert(time, {"value": 1}, "k00")


def entries(storage):
    return sum(answer.entries for answer in storage.find("w").query(None, [], None, ALL_KEYS))


async def failing():
    """A server of two windows, one of which has failed in the middle of a write; reads of its pointer wait."""
    server, storage = await running(
        *[spec(name=name, aggregates=SMALL) for name in ("w", "v")],
        cache_bytes=0,
        checkpoint_bytes=10**6,
        store_entries=4,
    )
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await storage.store.windows["w"].writable.wait()
    await server.settled()
    storage.trim()
    server.tier.fail_reads, server.tier.hold_reads = 1, b"pointer/"
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))  # cuts a block that is not in memory
    await until(server.tier.reading.is_set)
    return server, storage


async def test_a_window_is_recovered_beside_the_loop():
    server, storage = await failing()
    before = storage.store.windows["w"]
    for time in range(30):
        await asyncio.wait_for(storage.write("v", insert(time)), 60)
    [about] = [info.problem for info in storage.all() if info.spec.name == "w"]
    assert "is being recovered" in about
    server.tier.read_gate.set()
    await until(lambda: storage.store.windows["w"].failure is None)
    assert [info.problem for info in storage.all()] == [None, None]
    after = storage.store.windows["w"]
    assert (before.state, after.state) == (State.DELETED, State.SERVING)
    assert after.admission is before.admission, "writers that wait go on in the order in which they came"
    await storage.write("w", BulkEvict(17))
    storage = await server.crash()
    assert entries(storage) == 82


async def test_the_journal_is_not_cut_while_a_window_reads_it():
    server, storage = await failing()
    groups = storage.status().journal_groups
    for time in range(30):
        await storage.write("v", insert(time))
    storage.store.checkpoints.begin(storage.store.windows["v"])
    await storage.store.windows["v"].writable.wait()
    await server.settled()
    assert storage.status().journal_groups == groups + 30
    server.tier.read_gate.set()
    await until(lambda: storage.store.windows["w"].failure is None)
    await storage.write("v", insert(40))
    storage.store.checkpoints.begin(storage.store.windows["v"])
    await storage.store.windows["v"].writable.wait()
    await server.settled()
    assert storage.status().journal_groups == 0


async def test_a_service_can_stop_and_a_window_can_go_while_it_is_recovered():
    server, storage = await failing()
    deleted = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    server.tier.read_gate.set()
    assert await deleted == 100
    storage = await asyncio.wait_for(server.restart(), 60)
    with pytest.raises(NotFound):
        storage.find("w")
    server.tier.hold_reads = None


async def test_a_damaged_window_says_so_in_the_list():
    server, storage = await running()
    for name in ("w", "v"):
        await storage.create(spec(name=name))
        await storage.write(name, insert(1))
    await storage.stop()
    server.store.values[values.pointer_key(1)] = b"nonsense"
    storage = await server.start()
    v, w = storage.all()
    assert v.problem is None
    with pytest.raises(DataLoss) as why:
        storage.find("w")
    assert w.problem == why.value.message


async def test_a_window_that_fails_while_its_image_is_written_is_recovered_from_that_image():
    """A recovery that did not wait would go on from the image before it, whose values are being deleted."""
    server, storage = await running(spec(aggregates=SMALL), cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.settled()
    storage.trim()
    arrived, released = threading.Event(), threading.Event()
    commit = server.tier.commit

    def holds_the_pointer(puts, deletes=()):
        if values.pointer_key(1) in puts:
            arrived.set()
            assert released.wait(120)
        commit(puts, deletes)

    server.tier.commit = holds_the_pointer
    server.tier.open_gate.clear()
    failed = storage.store.windows["w"]
    await storage.store.checkpoints.take(failed)
    await until(server.tier.arrived.is_set)
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))
    assert failed.checkpointing
    server.tier.open_gate.set()
    await until(arrived.is_set)
    await turns(1000)
    assert storage.store.windows["w"] is failed
    released.set()
    await until(lambda: storage.store.windows["w"] is not failed)
    await server.settled()
    pointer = storage.store.session.read("pointer", values.pointer_key(1))
    assert storage.store.windows["w"].manifest.image.version == pointer["image"] == 1
    assert entries(storage) == 100
