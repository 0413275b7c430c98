"""Windows that are recovered, deleted, exported and stored at the same time; the journal is not cut meanwhile."""

import asyncio
import contextlib
import threading

import pytest

from sash.durability import formats as values
from sash.durability.images.stored_window import State
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import DataLoss, NotFound, Unavailable
from sash_engine.windows.window import ALL_KEYS
from tests.support.damage import SMALL
from tests.support.failing import BUSY, QUIET, insert, rows
from tests.support.stored import batch, running, spec
from tests.support.waiting import turns, until


def count_of(storage):
    return sum(answer.entries for answer in storage.find("w").query(None, [], None, ALL_KEYS))


async def reading():
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
    await server.spilled()
    server.tier.fail_reads, server.tier.hold_reads = 1, b"pointer/"
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))  # cuts a block that is not in memory
    await until(server.tier.reading.is_set)
    return server, storage


async def test_a_window_is_recovered_beside_the_loop():
    server, storage = await reading()
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
    assert count_of(storage) == 82


async def test_the_journal_is_not_cut_while_a_window_reads_it():
    server, storage = await reading()
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


async def test_a_window_that_is_deleted_while_it_is_recovered_stays_deleted():
    server, storage = await reading()
    deleted = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    server.tier.read_gate.set()
    assert await deleted == 100
    new, _ = await storage.create(spec(aggregates=SMALL))
    await storage.write("w", insert(5))
    await until(lambda: not storage.store.recoverer.running)
    assert storage.find("w") is new
    for again in (server.crash, server.restart):
        storage = await asyncio.wait_for(again(), 60)
        assert count_of(storage) == 1


async def test_a_window_that_fails_while_its_image_is_written_is_recovered_from_that_image():
    """A recovery that did not wait would go on from the image before it, whose values are being deleted."""
    server, storage = await running(spec(aggregates=SMALL), cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.spilled()
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
    assert count_of(storage) == 100


pytestmark = pytest.mark.usefixtures("impatient")


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


@pytest.mark.parametrize(("replaced", "error"), [(False, NotFound), (True, Unavailable)])
async def test_a_commit_whose_window_goes_while_its_parts_are_read_is_refused(replaced, error):
    """If there is another window of that name, the batch may be sent again."""
    server, storage = await running(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.write("w", Commit("q", 0, [staged.stage])))
    await until(server.tier.reading.is_set)
    await storage.delete("w")
    if replaced:
        await storage.create(spec())
    server.tier.read_gate.set()
    with pytest.raises(error, match="replaced meanwhile" if replaced else "no window 'w'"):
        await slow
    await server.settled()
    assert replaced or not server.left


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


WHOLE = {"checkpoint_bytes": 10**9, "store_entries": 10**9}
"""Everything stays in the journal."""


async def journal_of(groups):
    """A server that died with so many groups of one entry each; the keys of the groups."""
    server, storage = await running(spec(keyed=False, aggregates=SMALL), **WHOLE)
    for time in range(groups):
        await storage.write("w", Insert(time, {"value": time}))
    await server.die()
    keys = [values.group_key(number) for number in range(1, groups + 1)]
    assert server.store.values.keys() >= set(keys)
    return server, keys


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (0, 4), (5, 6), (5, 9), (1, 19), (19, 20), (16, 20), (0, 20)],
    ids=lambda number: str(number),
)
async def test_groups_that_are_missing_are_a_loss_wherever_they_were(start, stop):
    server, keys = await journal_of(20)
    for key in keys[start:stop]:
        del server.store.values[key]
    before = dict(server.store.values)
    for _ in range(2):
        storage = await server.start()
        with pytest.raises(DataLoss, match=rf"'w' is not served: .*'{keys[start].decode()}' is missing.*backup"):
            storage.find("w")
        await storage.stop()
        assert server.store.values == before


async def test_a_journal_that_is_cut_while_a_failed_window_is_recovered_loses_nothing(impatient):
    """The first groups are deleted after the recovery looked where the journal begins, and before it reads them."""
    server, storage = await running(
        *[spec(name=name, aggregates=SMALL) for name in ("v", "w")],
        cache_bytes=0,
        checkpoint_bytes=10**9,
        store_entries=4,
    )
    for time in range(8):
        await storage.write("v", Insert(time, {"value": time}, "a"))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.spilled()

    tier = server.tier
    commit, get_many = tier.commit, tier.get_many
    looked, cut = threading.Event(), threading.Event()

    def held_commit(puts, deletes=()):
        cuts = any(key.startswith(b"journal/") for key in deletes)
        assert not cuts or looked.wait(120), "nobody recovers"
        commit(puts, deletes)
        if cuts:
            cut.set()

    def watched_get_many(keys):
        journal = any(key.startswith(b"journal") for key in keys)
        found = None if journal and keys[0] != values.journal_key() else get_many(keys)
        if journal:
            looked.set()
            assert cut.wait(120), "nobody cuts the journal"
        return get_many(keys) if found is None else found

    tier.commit, tier.get_many = held_commit, watched_get_many
    tier.open_gate.clear()
    tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))
    assert await asyncio.to_thread(tier.arrived.wait, 10), "the recovery waits for what was pending"
    storage.store.windows["v"].manifest.start_after(storage.store.session.journal.last)  # as if it had an image
    storage.store.checkpoints.trim()
    tier.open_gate.set()
    assert await asyncio.to_thread(cut.wait, 10)
    await until(lambda: storage.store.windows["w"].failure is None)
    assert storage.find("w").query("a", [], None)[0].entries == 100
