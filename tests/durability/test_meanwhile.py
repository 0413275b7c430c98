"""Windows that are deleted, recovered, exported and stored at the same time."""

import asyncio
import contextlib
import itertools

import pytest

from sash.durability.records.commands import BulkEvict, Commit, StageBatch
from sash_engine.errors import NotFound, Unavailable
from tests.support.failing import BUSY, QUIET, entries, failing, insert, rows
from tests.support.stored import batch, running, spec
from tests.support.waiting import surely, until

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_window_that_is_deleted_while_it_recovers_stays_deleted():
    server, storage = await failing()
    deleted = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    assert await deleted == 100
    new, _ = await storage.create(spec())
    await storage.write("w", insert(5, 55))
    await until(lambda: not storage.store.recoverer.running)
    assert storage.find("w") is new
    assert entries(storage) == [55]
    storage = await server.crash()
    assert entries(storage) == [55]


async def test_a_window_recovers_while_others_are_written_to_without_pause():
    server, storage = await running(*[spec(name=name) for name in ("w", "v")], **QUIET)
    await storage.write("w", rows(0, 100))
    await server.settled()
    storage.trim()
    stop = False

    async def load(number):
        for time in itertools.count():
            if stop:
                return
            await storage.write("v", insert(time, number))

    writers = [asyncio.create_task(load(number)) for number in range(4)]
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))
    with pytest.raises(Unavailable, match="recovered"):
        storage.find("w")
    await surely(lambda: asyncio.wait_for(storage.write("w", BulkEvict(17)), 60))
    stop = True
    await asyncio.gather(*writers)
    assert entries(storage) == list(range(18, 100))


async def test_two_commits_of_a_batch_and_a_checkpoint_between_them_are_no_loss():
    """The parts that the second one is still reading are needed by nobody else any more."""
    server, storage = await running(spec(), checkpoint_bytes=1, store_entries=4)
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    await server.settled()
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await until(server.tier.reading.is_set)
    server.tier.hold_reads = None
    quick = await storage.write("w", Commit("q", 0, [staged.stage]))
    for time in range(10, 20):
        await storage.write("w", insert(time))
        await server.settled()
    server.tier.read_gate.set()
    assert quick.inserted == 1
    assert (await slow).already_applied
    await server.settled()
    assert not [key for key in server.left if key.startswith(b"staged/")], "then they go"


async def test_a_window_that_is_deleted_while_its_parts_are_read_is_not_found():
    server, storage = await running(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await until(server.tier.reading.is_set)
    await storage.delete("w")
    server.tier.read_gate.set()
    with pytest.raises(NotFound):
        await slow
    await server.settled()
    assert not server.left


async def test_a_commit_whose_window_is_replaced_while_its_parts_are_read_may_be_sent_again():
    server, storage = await running(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await until(server.tier.reading.is_set)
    await storage.delete("w")
    await storage.create(spec())
    server.tier.read_gate.set()
    with pytest.raises(Unavailable, match="replaced meanwhile"):
        await slow


@pytest.mark.parametrize("options", [QUIET, {"checkpoint_bytes": 1, "store_entries": 4}])
async def test_a_window_that_is_deleted_while_it_is_stored_leaves_nothing(options):
    server, storage = await running(spec(), **options)
    await server.settled()
    server.tier.open_gate.clear()
    first = asyncio.create_task(storage.write("w", insert(0)))
    await until(server.tier.arrived.is_set)
    write = asyncio.create_task(storage.write("w", rows(0, 100)))
    await asyncio.sleep(0)
    delete = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    server.tier.open_gate.set()
    await asyncio.wait_for(asyncio.gather(first, write, delete), 60)
    await server.settled()
    assert storage.problem is None
    assert not server.left


async def test_what_was_deleted_while_an_export_held_it_goes_though_the_service_dies():
    server, storage = await running(spec(slide={"max_count": 10}), **BUSY)
    await storage.write("w", rows(0, 50))
    export = storage.export("w")
    next(export)
    for start in range(50, 500, 50):
        await storage.write("w", rows(start, start + 50))
        await server.settled()
    assert storage.status().checkpoints > 2
    many = len(server.left)
    storage = await server.crash()
    for start in range(500, 700, 50):
        await storage.write("w", rows(start, start + 50))
        await server.settled()
    assert len(server.left) < many / 2
    await storage.delete("w")
    await server.settled()
    assert not server.left


async def test_a_window_that_is_created_while_its_deletion_waits_is_deleted_from_the_tier_too():
    """The deletion finds no window, and waits for what is on its way; a window comes meanwhile."""
    server, storage = await running(spec(name="other"), **QUIET)
    server.tier.open_gate.clear()
    writing = asyncio.create_task(storage.write("other", insert(1)))
    await asyncio.sleep(0)
    deleting = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    creating = asyncio.create_task(storage.create(spec()))
    await asyncio.sleep(0)
    server.tier.open_gate.set()
    await asyncio.gather(writing, creating)
    with contextlib.suppress(NotFound):
        await deleting
    there = "w" in storage.catalogue
    storage = await server.crash()
    assert ("w" in storage.catalogue) == there
