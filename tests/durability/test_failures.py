"""A service that stops while writers wait or that cannot start, and work in the background that fails."""

import asyncio

import numpy as np
import pytest

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.durability.storage import Storage
from sash.tiers.memory import MemoryTier
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted, SashError, Unavailable
from sash_engine.windows.batches import ledger as ledger_module
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.batches.ledger import FORGET_AFTER_NS
from tests.support.damage import SMALL, flipped
from tests.support.failing import QUIET, entries, failing, insert, rows
from tests.support.stored import ALWAYS, batch, running, spec
from tests.support.tiers import Faulty
from tests.support.virtual_time import passes, virtual
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
    whole = dict(server.store.values)
    for root in ALWAYS:
        before = whole | {root: flipped(whole[root], -1)}
        server.store.values = dict(before)
        for _ in range(2):
            with pytest.raises(DataLoss, match=rf"'{root.decode()}'.*sash admin check --salvage"):
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


class Stumbling(Faulty):
    """A tier whose every call fails so many times before it succeeds."""

    def __init__(self, store, times, error=Unavailable):
        super().__init__(MemoryTier(store))
        self.times = self.left = times
        self.kind = error

    def _stumble(self):
        if self.left:
            self.left -= 1
            raise self.kind("as told")
        self.left = self.times

    def acquire(self):
        self._stumble()
        super().acquire()

    def get_many(self, keys):
        self._stumble()
        return super().get_many(keys)


async def start_on(tier):
    """A storage that starts on a tier, and how long it paused each time."""
    clock, pauses_s = ManualClock(), []

    def sleep(seconds):
        pauses_s.append(seconds)
        clock.advance(round(seconds * 1e9))

    storage = Storage(Catalogue(clock=clock), clock, tier, sleep=sleep)
    try:
        await storage.start()
    except SashError as error:
        return error, pauses_s
    return storage, pauses_s


async def stored():
    server, storage = await running(spec(), checkpoint_bytes=10**9)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(20)], 0)))
    await server.settled()
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await server.settled()
    await storage.write("w", Insert(20, {"value": 20}, "a"))
    await server.die()
    return server.store


async def test_a_start_tries_a_tier_again_that_fails_for_a_moment():
    tier = Stumbling(await stored(), 6)
    storage, pauses_s = await start_on(tier)
    assert storage.find("w").query("a", [], None)[0].entries == 21
    assert pauses_s[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], "to become the server"
    assert pauses_s == pauses_s[:6] * (len(pauses_s) // 6)
    assert len(pauses_s) > 5 * 6, "each read is tried for as long as it takes"
    before = len(pauses_s)
    tier.times = tier.left = 0
    tier.fail_reads = 1
    with pytest.raises(Unavailable):
        storage.store.session.read("meta", values.meta_key())
    assert len(pauses_s) == before, "once it runs, it fails at once"


@pytest.mark.parametrize("reads", [0, 1, 3])
async def test_a_start_on_a_tier_that_stays_away_ends_after_30_seconds_and_changes_nothing(reads):
    store = await stored()
    before = dict(store.values)
    tier = Stumbling(store, 10**6)
    stumble = tier._stumble

    def later():
        if reads <= len(tier.reads):
            stumble()

    if reads:
        tier._stumble = later
    error, pauses_s = await start_on(tier)
    assert isinstance(error, Unavailable)
    assert sum(pauses_s) == pytest.approx(30.0)
    assert len(pauses_s) == 19
    assert store.values == before
    assert store.owner is None, "another may start"


@pytest.mark.parametrize("kind", [FailedPrecondition, DataLoss])
async def test_a_start_does_not_wait_for_what_does_not_pass(kind):
    error, pauses_s = await start_on(Stumbling(await stored(), 1, kind))
    assert isinstance(error, kind)
    assert not pauses_s


async def test_where_blocks_cannot_be_stored_the_write_that_led_there_is_none_the_worse():
    """To store a block to which entries were added, what is in the tier must be read first."""
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**6, store_entries=30, cache_bytes=0)
    await storage.write("w", rows(0, 400))
    await server.spilled()
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
    await server.spilled()
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
    await server.spilled()
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


@virtual
async def test_a_window_with_a_damaged_block_is_not_recovered_all_the_time():
    """At once after the first write that met it, and then 2, 4, … and at last 60 seconds after each."""
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
