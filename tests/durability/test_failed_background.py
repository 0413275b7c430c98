"""Work that nobody waits for, or a part of a write, fails: nobody else is affected."""

import pytest

from sash.durability import formats as values
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from sash_engine.windows.batches import ledger as ledger_module
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.batches.ledger import FORGET_AFTER_NS
from tests.support.damage import SMALL, flipped
from tests.support.failing import QUIET, entries, insert, rows
from tests.support.stored import batch, running, spec
from tests.support.virtual_time import in_virtual_time, passes

pytestmark = pytest.mark.usefixtures("impatient")


async def test_where_blocks_cannot_be_stored_the_write_that_led_there_is_none_the_worse():
    """To store a block to which entries were added, what is in the tier must be read first."""
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**6, store_entries=30, cache_bytes=0)
    await storage.write("w", rows(0, 400))
    await server.settled()
    storage.trim()
    server.tier.fail_reads = 10**6
    late = BulkInsert(batch([("a", time) for time in range(0, 390, 5)], 1000))
    result = await storage.write("w", late, Origin("p", 1))
    assert result.inserted == 78
    reads = server.tier.fail_reads
    for sequence in (2, 3, 4):
        await storage.write("w", insert(500 + sequence), Origin("p", sequence))
    assert server.tier.fail_reads == reads, "it is not tried with every write"
    server.tier.fail_reads = 0
    storage.tidy()
    await storage.write("w", insert(600), Origin("p", 5))
    assert storage.find("w").cold.dirty_entries < 30
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].entries == 400 + 78 + 4


async def test_a_window_that_cannot_be_tidied_keeps_no_other_from_it():
    server, storage = await running(**QUIET)
    for name in ("a", "b"):
        slide = {"max_age": "20s", "clock": "wall"}
        await storage.create(spec(name=name, slide=slide, time_unit="s", aggregates=SMALL))
        await storage.write(name, rows(0, 100))
    await server.settled()
    storage.trim()
    server.clock.advance(30 * 10**9)
    damaged = values.block_key(1, 3)  # of times 8 to 11, in whose middle the window begins now
    server.store.values[damaged] = flipped(server.store.values[damaged], -1)
    storage.tidy()
    with pytest.raises(DataLoss, match="block 3 of window 'a'"):
        storage.find("a")
    assert storage.find("b").query("a", [], None)[0].entries == 89


@pytest.mark.parametrize("damaged", [True, False])
async def test_an_insert_whose_answer_cannot_be_given_is_taken_and_nobody_else_is_the_worse(damaged):
    server, storage = await running(spec(aggregates=SMALL), **QUIET)
    await storage.write("w", rows(0, 100))
    await server.settled()
    storage.trim()
    key = values.block_key(1, 5)
    whole = server.store.values[key]
    if damaged:
        server.store.values[key] = flipped(whole, -1)
    else:
        server.tier.fail_reads = 1
    asking = Insert(100, {"value": 100}, "a", True, [82])  # from time 19 on: in the middle of block 5
    kind = DataLoss if damaged else Unavailable
    with pytest.raises(kind, match=r"the entry is taken \(1 inserted.* sync\).*answer") as told:
        await storage.write("w", asking, Origin("p", 1))
    assert told.value.retry_after_s is None
    assert storage.find("w").query("a", [], None)[0].entries == 101
    assert (await storage.write("w", asking, Origin("p", 1))).already_applied
    server.store.values[key] = whole
    result = await storage.write("w", Insert(101, {"value": 101}, "a", True, [82]), Origin("p", 2))
    assert [answer.entries for answer in result.answers] == [82]
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].entries == 102


async def test_an_insert_that_asks_for_what_is_no_answer_changes_nothing():
    _, storage = await running(spec(), **QUIET)
    for asking in (Insert(1, {"value": 1}, "a", True, ["x"]), Insert(1, {"value": 1}, "a", False, [5])):
        with pytest.raises(InvalidArgument):
            await storage.write("w", asking)
    assert not storage.find("w").info().entries


async def test_a_refused_write_forgets_no_producer(monkeypatch):
    """What it changed would be in no record: a recovery would not know of it."""
    monkeypatch.setattr(ledger_module, "MAX_WRITERS", 3)
    server, storage = await running(spec(order={"out_of_order": "reject"}), checkpoint_bytes=10**9)
    for name in "xyz":
        await storage.write("w", insert(1), Origin(name, 1))
    with pytest.raises(ResourceExhausted):
        await storage.write("w", insert(2), Origin("q", 1))
    server.clock.advance(FORGET_AFTER_NS + 5 * 10**9)
    with pytest.raises(InvalidArgument):
        await storage.write("w", insert(2, "no number"), Origin("q", 1))
    assert (await storage.write("w", insert(1), Origin("x", 1))).already_applied
    server.clock.advance(-10 * 10**9)
    assert (await storage.write("w", insert(2), Origin("q", 1))).inserted == 1
    with pytest.raises(FailedPrecondition, match="the next one is 1"):
        await storage.write("w", insert(3), Origin("x", 2))
    storage = await server.crash()
    assert entries(storage) == [1, 1, 1, 2]
    assert (await storage.write("w", insert(2), Origin("q", 1))).already_applied
    with pytest.raises(FailedPrecondition, match="the next one is 1"):
        await storage.write("w", insert(3), Origin("x", 2))


async def test_a_record_of_a_producer_beyond_the_bound_is_applied_again(monkeypatch):
    """It was taken when there was room; the bound may be another one now."""
    server, storage = await running(spec(), checkpoint_bytes=10**9)
    for name in "xyz":
        await storage.write("w", insert(1), Origin(name, 1))
        staged = await storage.write("w", StageBatch(batch([("a", 2)], 2), name, 0))
        await storage.write("w", Commit(name, 0, [staged.stage]))
    monkeypatch.setattr(ledger_module, "MAX_WRITERS", 1)
    storage = await server.crash()
    assert entries(storage) == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ResourceExhausted):
        await storage.write("w", Commit("new", 0, []))


def test_a_window_with_a_damaged_block_is_not_recovered_all_the_time():
    """At once after the first write that met it, and then 2, 4, … and at last 60 seconds after each."""

    async def main():
        server, storage = await running(spec(aggregates=SMALL), **QUIET)
        await storage.write("w", rows(0, 100))
        storage = await server.restart()
        damaged = values.block_key(1, 5)
        server.store.values[damaged] = flipped(server.store.values[damaged], -1)
        for pause_s in (0, 2, 4, 8, 16, 32, 60, 60):
            with pytest.raises(DataLoss, match="block 5"):
                await storage.write("w", BulkEvict(17))
            recovering = storage.store.windows["w"]
            if pause_s:
                await passes(pause_s - 0.1)
                assert storage.store.windows["w"] is recovering
                with pytest.raises(DataLoss, match="block 5"):
                    storage.find("w")
            await passes(0.2)
            assert storage.store.windows["w"] is not recovering
            assert storage.find("w").query("a", [], None)[0].entries == 100
        await storage.stop()

    in_virtual_time(main())
