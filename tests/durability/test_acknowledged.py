"""What was acknowledged is there once, whichever commit fails; and what may be applied is said to be so."""

import asyncio
import itertools
import traceback

import numpy as np
import pytest

from sash.durability import write_path
from sash.durability.images import capacity as capacity_module
from sash.durability.records.commands import AddAggregates, BulkEvict, BulkInsert, Commit, Insert, StageBatch, Write
from sash_engine.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound, OutOfRoom, SashError, Unavailable
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.failing import BUSY, FAILURES, entries, exported, insert, parts_of, rows
from tests.support.profile import THOROUGH
from tests.support.stored import StorageServer, batch, running, same, spec
from tests.support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("impatient")


WRITES = {
    "insert": lambda storage: storage.write("w", insert(1)),
    "insert and ask": lambda storage: storage.write("w", Insert(1, {"value": 1}, "a", True)),
    "bulk insert": lambda storage: storage.write("w", rows(0, 10), Origin("p", 1)),
    "evict": lambda storage: storage.write("w", BulkEvict(3)),
    "add": lambda storage: storage.write("w", AddAggregates({"least": {"function": "min"}})),
    "stage": lambda storage: storage.write("w", StageBatch(batch([("a", 6)], 7), "q", 1)),
    "commit": lambda storage: storage.write("w", Commit("q", 0, list(storage.find("w").ledger.parts))),
    "create": lambda storage: storage.create(spec(name="new")),
    "delete": lambda storage: storage.delete("old"),
}


def state(storage):
    """All that the writes change."""
    window = storage.find("w")
    names = [info.spec.name for info in storage.all()]
    return names, list(window.spec.aggregates), entries(storage), window.ledger.document()


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("what", WRITES)
async def test_what_fails_after_it_was_applied_is_unavailable_and_says_that_it_may_be_applied(what, failure):
    server, storage = await running(spec(), spec(name="old"))
    await storage.write("w", rows(3, 5))
    await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    await server.settled()
    before = state(storage)
    server.tier.error = FAILURES[failure]
    server.tier.fail_before = 10**9
    told = server.tier.error()
    with pytest.raises(Unavailable, match=r"may be applied.*as told") as unsure:
        await WRITES[what](storage)
    assert (unsure.value.field, unsure.value.limit) == (told.field, told.limit)
    assert unsure.value.retry_after_s == (told.retry_after_s or write_path._RETRY_S)
    after = state(storage)
    assert after != before, "it is applied"

    for call in (
        lambda: storage.write("w", insert(99), Origin("other", 1)),
        lambda: storage.write("w", BulkEvict(99)),
        lambda: storage.create(spec(name="other")),
        lambda: storage.delete("w"),
    ):
        with pytest.raises(type(told), match=r"^as told$"):
            await call()
        assert state(storage) == after, "what comes later is refused, and changes nothing"

    server.tier.fail_before = 0
    if not isinstance(told, DataLoss | FailedPrecondition):
        await until(lambda: storage.problem is None)
        await server.settled()
    storage = await server.crash()
    assert state(storage) == (before if isinstance(told, DataLoss | FailedPrecondition) else after)


@pytest.mark.parametrize("what", WRITES)
async def test_whether_there_is_room_is_asked_before_anything_is_applied(what, monkeypatch):
    monkeypatch.setattr(capacity_module, "_LOOK_S", 0.0)
    server, storage = await running(spec(), spec(name="old"))
    await storage.write("w", rows(3, 5))
    await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    before = state(storage)

    server.tier.full = True
    with pytest.raises(OutOfRoom, match=r"^as told$"):
        await WRITES[what](storage)
    assert state(storage) == before
    storage = await server.crash()
    assert state(storage) == before


@pytest.mark.parametrize("failure", ["away", "full"])
async def test_a_write_that_may_be_applied_is_never_refused_when_it_is_sent_again(failure):
    """A refusal would say that it is not there, and its producer would give its number to another write."""
    server, storage = await running(spec())
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    calls = (
        lambda: storage.write("w", Commit("q", 0, [staged.stage])),
        lambda: storage.write("w", insert(9), Origin("p", 1)),
        lambda: storage.create(spec(name="new")),
    )
    server.tier.error = FAILURES[failure]
    server.tier.open_gate.clear()
    begun = [asyncio.create_task(calls[0]())]
    await until(lambda: storage.find("w").ledger.committed("q", 0))
    begun += [asyncio.create_task(call()) for call in calls[1:]]
    await until(lambda: "new" in server.catalogue and entries(storage) == [7, 9])
    server.tier.fail_before = 10**9
    server.tier.open_gate.set()
    for task in begun:
        with pytest.raises(Unavailable, match="may be applied"):
            await task
    for call in calls:
        with pytest.raises(Unavailable, match="may be applied"):
            await call()
    server.tier.fail_before = 0
    await until(lambda: storage.problem is None)
    assert (await calls[0]()).already_applied
    assert (await calls[1]()).already_applied
    assert not (await calls[2]())[1]
    storage = await server.crash()
    assert entries(storage) == [7, 9]


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_import_that_fails_before_it_is_there_is_refused_and_after_that_it_may_be_there(failure):
    parts = await exported()
    server, storage = await running()
    await server.settled()
    server.tier.error = FAILURES[failure]
    if failure in ("away", "full"):
        server.tier.fail_before = 1
        with pytest.raises(type(FAILURES[failure]()), match=r"^as told$"):
            await storage.restore(parts_of(parts), None)
        assert storage.all() == []
        await until(lambda: storage.problem is None)
    arrived = storage.store.listing.arrived

    def arrives(stored):
        server.tier.fail_before = 10**9
        return arrived(stored)

    storage.store.listing.arrived = arrives
    with pytest.raises(Unavailable, match=r"may be applied.*as told"):
        await storage.restore(parts_of(parts), None)
    assert entries(storage) == list(range(200))


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


FAULTS = ["before", "after", "dead before", "dead after"]


class Busy:
    """A fixed history of everything, whose every step is repeated until it is acknowledged."""

    def __init__(self):
        self.server = StorageServer(**BUSY)
        self.models = {}
        self.sequences = {}
        self.revivals = 0

    async def run(self):
        await self.server.start()
        for step in range(2):
            await self.create("w", slide={"max_count": 30})
            await self.create("v")
            await self.write("w", insert(1 + step, 7))
            await self.write("w", rows(2, 40))
            await self.batch("w", step)
            await self.write("v", BulkInsert(batch([("b", 9), ("a", 3), ("c", 4)] * 5, 0)))
            await self.write("v", BulkEvict(3, None))
            await self.export("v", f"x{step}")
            await self.write("w", rows(20, 50, "b"))
            await self.write("v", insert(11))
            await self.step(self.quiet)
            if step == 0:
                await self.delete("v")
                await self.restart()
            await self.check()

    async def step(self, call, *fine):
        """What it returns; None where a repetition says that it took place."""
        for attempt in itertools.count():
            try:
                return await call(self.server.storage)
            except Unavailable:
                if self.server.tier.unreachable:
                    self.revivals += 1
                    await self.server.crash()
                else:
                    await asyncio.sleep(0.002)
            except fine:
                if not attempt:
                    raise
                break
        return None

    async def create(self, name, **parts):
        document = spec(name=name, **parts)
        await self.step(lambda storage: storage.create(document))
        self.models.setdefault(name, Window(document, clock=self.server.clock))

    async def write(self, name, operation):
        self.sequences[name] = sequence = self.sequences.get(name, 0) + 1
        await self.step(lambda storage: storage.write(name, operation, Origin("p", sequence)))
        Write(operation, 0).apply(self.models[name])

    async def batch(self, name, number):
        pairs = [("c", 5), ("a", 44), ("c", 6)]
        staged = await self.step(lambda storage: storage.write(name, StageBatch(batch(pairs, 100), "q", number)))
        await self.step(
            lambda storage: storage.write(name, StageBatch(batch(pairs, 0), "q", number))
        )  # nobody names it
        await self.step(lambda storage: storage.write(name, Commit("q", number, [staged.stage])))
        self.models[name].bulk_insert(batch(pairs, 100))

    async def export(self, name, other):
        await self.step(lambda storage: storage.restore(parts_of(list(storage.export(name))), other), AlreadyExists)
        self.models[other] = Window(spec(name=other), clock=self.server.clock)
        self.models[other].bulk_insert(batch([("b", 9), ("a", 3), ("c", 4)] * 5, 0))
        self.models[other].bulk_evict(3, None)

    async def delete(self, name):
        await self.step(lambda storage: storage.delete(name), NotFound)
        del self.models[name]
        self.sequences.pop(name, None)

    async def quiet(self, storage):
        storage.tidy()
        await self.server.settled()

    async def restart(self):
        await self.server.storage.stop(5)
        self.server.store.owner = None  # of one that died while it stopped
        await self.server.start()

    async def check(self):
        storage = self.server.storage
        assert {window.spec.name for window in self.server.catalogue.all()} == set(self.models)
        for name, model in self.models.items():
            same(storage.find(name), model)

    async def end(self):
        """Restart once more, look, and delete everything."""
        await self.server.crash()
        await self.check()
        for name in list(self.models):
            await self.delete(name)
        await self.server.settled()
        left = sorted(key for key in self.server.left if not key.startswith(b"journal/"))
        await self.server.storage.stop(5)
        assert not left, "nothing of deleted windows is left"


async def test_the_busy_history_does_everything():
    busy = Busy()
    await busy.run()
    assert busy.server.storage.status().checkpoints
    assert busy.server.tier.attempts > 30
    await busy.end()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(1800)
async def test_whichever_commit_fails_everything_acknowledged_is_there_once(fault):
    """The n-th commit of the history, for every n; in short runs each commit fails in one of the ways."""
    first, stride = (0, 1) if THOROUGH else (FAULTS.index(fault), len(FAULTS))
    for n in itertools.count(1 + first, stride):
        busy = Busy()
        busy.server.fault_at, busy.server.fault = n, fault
        try:
            await busy.run()
            commits = busy.server.tier.attempts
            await busy.end()
        except BaseException:
            print(f"commit {n} fails {fault}")
            raise
        if commits < n:
            break
    assert n > 30
