"""Storage where things fail, come at the wrong moment, or are damaged: nothing is lost, doubled, made up or left."""

import asyncio
import contextlib
import errno
import itertools
import os
import traceback

import lmdb
import numpy as np
import pytest

from sash.durability import capacity as capacity_module
from sash.durability import formats as values
from sash.durability import journal as journal_module
from sash.durability import storage as storage_module
from sash.durability.catalogue import Catalogue
from sash.durability.records import AddAggregates, BulkEvict, BulkInsert, Insert
from sash.durability.storage import Storage
from sash.tiers.lmdb import LmdbTier
from sash_engine.clock import ManualClock
from sash_engine.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRoom,
    ResourceExhausted,
    SashError,
    Unavailable,
)
from sash_engine.windows import ledger as ledger_module
from sash_engine.windows.batch import Batch, Origin
from sash_engine.windows.ledger import FORGET_AFTER_NS
from sash_engine.windows.window import Window
from tests.support.damage import SMALL, flipped, look, stored_of_all_kinds
from tests.support.stored import Server, batch, same, spec
from tests.support.virtual_time import in_virtual_time, passes
from tests.support.waiting import surely, turns, until

BUSY = {"checkpoint_bytes": 1500, "store_entries": 4}
THOROUGH = os.environ.get("SASH_PROFILE") == "soak"
QUIET = {"checkpoint_bytes": 10**6, "store_entries": 4, "cache_bytes": 0}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Try again at once what failed."""
    monkeypatch.setattr(journal_module, "_RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(storage_module, "_RETRY_S", 0.01)


async def parts_of(parts):
    for part in parts:
        yield part


def insert(time, value=None, key="a"):
    return Insert(time, {"value": time if value is None else value}, key)


def rows(start, stop, key="a"):
    return BulkInsert(batch([(key, time) for time in range(start, stop)], start))


def entries(storage, name="w", key="a"):
    return storage.find(name).query(key, [], None)[0].aggregates["all"]


# ---------------------------------------------------------------- every commit of a busy history fails once


class Busy:
    """A fixed history of everything, whose every step is repeated until it is acknowledged."""

    def __init__(self):
        self.server = Server(**BUSY)
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
        operation.apply(self.models[name], 0)

    async def batch(self, name, number):
        pairs = [("c", 5), ("a", 44), ("c", 6)]
        staged = await self.step(lambda storage: storage.stage(name, batch(pairs, 100), "q", number))
        await self.step(lambda storage: storage.stage(name, batch(pairs, 0), "q", number))  # nobody names it
        await self.step(lambda storage: storage.commit(name, "q", number, [staged.stage]))
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


@pytest.mark.parametrize("fault", ["before", "after", "dead before", "dead after"])
@pytest.mark.timeout(600)
async def test_whichever_commit_fails_everything_acknowledged_is_there_once(fault):
    """The n-th commit of the history, for every n; every third in short runs, which ones differs by fault."""
    stride = 1 if THOROUGH else 3
    for n in itertools.count(1 + len(fault) % stride, stride):
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


# ---------------------------------------------------------------- durable means durable


async def test_a_retry_while_the_first_is_on_its_way_waits_for_the_same_commit():
    server = Server()
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
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    server.tier.open_gate.clear()
    committed = asyncio.create_task(storage.commit("w", "q", 0, [staged.stage]))
    await until(lambda: storage.find("w").ledger.committed("q", 0))
    again = asyncio.create_task(storage.commit("w", "q", 0, [staged.stage]))
    await turns()
    assert not again.done()
    server.tier.open_gate.set()
    assert (await committed).inserted == 1
    assert (await again).already_applied
    await storage.stop()


async def test_a_window_whose_creation_was_not_answered_is_created_by_the_next_try():
    server = Server()
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
    server = Server()
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
    server = Server()
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
    server = Server()
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
    server = Server()
    storage = await server.start()
    long = 10**30
    parts = {"fields": {"value": "float64"}, "aggregates": {"max": {"function": "max"}}}
    await storage.create(spec(**parts))
    result = await asyncio.wait_for(storage.write("w", Insert(1, {"value": long}, "a")), 5)
    assert result.inserted == 1
    await storage.write("w", AddAggregates({"h": {"function": "histogram", "bounds": [0, long]}}))
    for again in (server.crash, server.restart):
        storage = await again()
        assert storage.find("w").query("a", [], None)[0].aggregates["h"]["counts"] == [0, 0, 1]
    await storage.stop()


async def test_the_same_error_is_never_raised_twice():
    """It would keep the frames of all that it was raised to, and with them what they wrote."""
    server = Server()
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


# ---------------------------------------------------------------- what fails after it was applied


FAILURES = {
    "away": lambda: Unavailable("as told", retry_after_s=7.0),
    "full": lambda: OutOfRoom("as told", field="data", limit="the disk"),
    "lost": lambda: DataLoss("as told", field="data"),
    "taken": lambda: FailedPrecondition("as told", limit="one"),
}


WRITES = {
    "insert": lambda storage: storage.write("w", insert(1)),
    "insert and ask": lambda storage: storage.write("w", Insert(1, {"value": 1}, "a", True)),
    "bulk insert": lambda storage: storage.write("w", rows(0, 10), Origin("p", 1)),
    "evict": lambda storage: storage.write("w", BulkEvict(3)),
    "add": lambda storage: storage.write("w", AddAggregates({"least": {"function": "min"}})),
    "stage": lambda storage: storage.stage("w", batch([("a", 6)], 7), "q", 1),
    "commit": lambda storage: storage.commit("w", "q", 0, list(storage.find("w").ledger.parts)),
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
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    await storage.create(spec(name="old"))
    await storage.write("w", rows(3, 5))
    await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    await server.settled()
    before = state(storage)
    server.tier.error = FAILURES[failure]
    server.tier.fail_before = 10**9
    told = server.tier.error()
    with pytest.raises(Unavailable, match=r"may be applied.*as told") as unsure:
        await WRITES[what](storage)
    assert (unsure.value.field, unsure.value.limit) == (told.field, told.limit)
    assert unsure.value.retry_after_s == (told.retry_after_s or storage_module._RETRY_S)
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
    await storage.stop()


@pytest.mark.parametrize("what", WRITES)
async def test_whether_there_is_room_is_asked_before_anything_is_applied(what, monkeypatch):
    monkeypatch.setattr(capacity_module, "_LOOK_S", 0.0)
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    await storage.create(spec(name="old"))
    await storage.write("w", rows(3, 5))
    await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    before = state(storage)

    def full(size, reserve=0.0):
        raise OutOfRoom("as told", field="data", limit="the disk")

    server.tier.check_room = full
    with pytest.raises(OutOfRoom, match=r"^as told$"):
        await WRITES[what](storage)
    assert state(storage) == before
    storage = await server.crash()
    assert state(storage) == before
    await storage.stop()


@pytest.mark.parametrize("failure", ["away", "full"])
async def test_a_write_that_may_be_applied_is_never_refused_when_it_is_sent_again(failure):
    """A refusal would say that it is not there, and its producer would give its number to another write."""
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    calls = (
        lambda: storage.commit("w", "q", 0, [staged.stage]),
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
    await storage.stop()


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_import_that_fails_before_it_is_there_is_refused_and_after_that_it_may_be_there(failure):
    parts = await exported()
    server = Server()
    storage = await server.start()
    await server.settled()
    server.tier.error = FAILURES[failure]
    if failure in ("away", "full"):
        server.tier.fail_before = 1
        with pytest.raises(type(FAILURES[failure]()), match=r"^as told$"):
            await storage.restore(parts_of(parts), None)
        assert storage.all() == []
        await until(lambda: storage.problem is None)
    arrived = storage._listing.arrived

    def arrives(stored):
        server.tier.fail_before = 10**9
        return arrived(stored)

    storage._listing.arrived = arrives
    with pytest.raises(Unavailable, match=r"may be applied.*as told"):
        await storage.restore(parts_of(parts), None)
    assert entries(storage) == list(range(200))
    await server.die()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
async def test_an_error_of_the_disk_after_a_write_was_applied(tmp_path, monkeypatch, code):
    """Of a real directory: the reason is told, and the write is there once when the disk works again."""

    class DiskFails(lmdb.Error):
        def __init__(self):
            super().__init__(os.strerror(code))
            self.code = code

    def fails(self, puts, deletes):
        raise DiskFails

    clock = ManualClock()

    async def started():
        storage = Storage(Catalogue(clock=clock), clock, LmdbTier(tmp_path))
        await storage.start()
        return storage

    storage = await started()
    await storage.create(spec())
    await storage.write("w", insert(1))
    with monkeypatch.context() as patch:
        patch.setattr(LmdbTier, "_change", fails)
        full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "is full" if full else os.strerror(code)
        with pytest.raises(Unavailable, match=rf"may be applied.*{reason}") as unsure:
            await storage.write("w", insert(2), Origin("p", 1))
        assert unsure.value.limit == ("the disk" if full else None)
        assert entries(storage) == [1, 2]
        with pytest.raises(OutOfRoom if full else Unavailable, match=reason) as refused:
            await storage.write("w", insert(3), Origin("p", 2))
        assert "may be applied" not in refused.value.message
        with pytest.raises(Unavailable, match="may be applied"):
            await storage.write("w", insert(2), Origin("p", 1))
        assert entries(storage) == [1, 2]
        assert reason in storage.problem
    await until(lambda: storage.problem is None)
    assert (await storage.write("w", insert(2), Origin("p", 1))).already_applied
    storage._session.tier.close()  # as the end of its process
    await storage._session.journal.stop(0.001)
    storage = await started()
    assert entries(storage) == [1, 2]
    await storage.stop()


# ---------------------------------------------------------------- windows that come and go meanwhile


async def failing():
    """A server, and its storage, whose window of 100 entries met a tier that failed in the middle of a write."""
    server = Server(**QUIET)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", rows(0, 100))
    await server.settled()
    storage.trim()
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))  # cuts a block that is not in memory
    return server, storage


async def test_a_window_that_is_deleted_while_it_recovers_stays_deleted():
    server, storage = await failing()
    deleted = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    assert await deleted == 100
    new, _ = await storage.create(spec())
    await storage.write("w", insert(5, 55))
    await until(lambda: not storage._tasks)
    assert storage.find("w") is new
    assert entries(storage) == [55]
    storage = await server.crash()
    assert entries(storage) == [55]
    await storage.stop()


async def test_a_window_recovers_while_others_are_written_to_without_pause():
    server = Server(**QUIET)
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name))
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
    await surely(lambda: asyncio.wait_for(storage.write("w", BulkEvict(17)), 5))
    stop = True
    await asyncio.gather(*writers)
    assert entries(storage) == list(range(18, 100))
    await storage.stop()


async def test_two_commits_of_a_batch_and_a_checkpoint_between_them_are_no_loss():
    """The parts that the second one is still reading are needed by nobody else any more."""
    server = Server(checkpoint_bytes=1, store_entries=4)
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    await server.settled()
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.commit("w", "q", 0, [staged.stage]))
    await until(server.tier.reading.is_set)
    server.tier.hold_reads = None
    quick = await storage.commit("w", "q", 0, [staged.stage])
    for time in range(10, 20):
        await storage.write("w", insert(time))
        await server.settled()
    server.tier.read_gate.set()
    assert quick.inserted == 1
    assert (await slow).already_applied
    await server.settled()
    assert not [key for key in server.left if key.startswith(b"staged/")], "then they go"
    await storage.stop()


async def test_a_window_that_is_deleted_while_its_parts_are_read_is_not_found():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    server.tier.hold_reads = b"staged/"
    slow = asyncio.create_task(storage.commit("w", "q", 0, [staged.stage]))
    await until(server.tier.reading.is_set)
    await storage.delete("w")
    server.tier.read_gate.set()
    with pytest.raises(NotFound):
        await slow
    await server.settled()
    assert not server.left
    await storage.stop()


@pytest.mark.parametrize("options", [QUIET, {"checkpoint_bytes": 1, "store_entries": 4}])
async def test_a_window_that_is_deleted_while_it_is_stored_leaves_nothing(options):
    server = Server(**options)
    storage = await server.start()
    await storage.create(spec())
    await server.settled()
    server.tier.open_gate.clear()
    first = asyncio.create_task(storage.write("w", insert(0)))
    await until(server.tier.arrived.is_set)
    write = asyncio.create_task(storage.write("w", rows(0, 100)))
    await asyncio.sleep(0)
    delete = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    server.tier.open_gate.set()
    await asyncio.wait_for(asyncio.gather(first, write, delete), 5)
    await server.settled()
    assert storage.problem is None
    assert not server.left
    await storage.stop()


async def test_what_was_deleted_while_an_export_held_it_goes_though_the_service_dies():
    server = Server(**BUSY)
    storage = await server.start()
    await storage.create(spec(slide={"max_count": 10}))
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
    await storage.stop()


# ---------------------------------------------------------------- imports


async def exported():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", rows(0, 200), Origin("p", 1))
    parts = list(storage.export("w"))
    await storage.stop()
    return parts


async def halting(parts, gate, halted):
    """Parts of an import, the last of which comes when the gate opens; `halted` are those that wait there."""
    for part in parts[:-1]:
        yield part
    halted.append(parts)
    await gate.wait()
    yield parts[-1]


async def test_of_two_imports_of_one_name_one_takes_place_and_leaves_nothing_of_the_other():
    parts = await exported()
    server = Server()
    storage = await server.start()
    gate, halted = asyncio.Event(), []
    imports = [asyncio.create_task(storage.restore(halting(parts, gate, halted), None)) for _ in range(2)]
    await until(lambda: len(halted) == 2)
    gate.set()
    found = await asyncio.gather(*imports, return_exceptions=True)
    assert sorted(type(result).__name__ for result in found) == ["AlreadyExists", "Window"]
    assert (await storage.write("w", rows(0, 200), Origin("p", 1))).already_applied
    storage = await server.crash()
    assert entries(storage) == list(range(200))
    await storage.delete("w")
    await server.settled()
    assert not server.left
    await storage.stop()


@pytest.mark.parametrize("end", ["crash", "cancel", "stop"])
async def test_an_import_that_ends_half_way_leaves_nothing(end):
    parts = await exported()
    server = Server()
    storage = await server.start()
    task = asyncio.create_task(storage.restore(halting(parts, asyncio.Event(), []), None))
    await until(lambda: any(key.startswith(b"block/") for key in server.left))
    if end == "stop":
        storage = await server.restart()
    elif end == "crash":
        storage = await server.crash()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await server.settled()
    assert not server.left
    await storage.create(spec())
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]
    await storage.stop()


async def test_an_import_that_the_tier_does_not_take_is_refused_and_can_be_repeated():
    parts = await exported()
    server = Server()
    storage = await server.start()
    await server.settled()
    server.tier.fail_before = 1
    with pytest.raises(Unavailable):
        await storage.restore(parts_of(parts), None)
    await surely(lambda: storage.restore(parts_of(parts), None))
    storage = await server.crash()
    assert entries(storage) == list(range(200))
    await storage.stop()


# ---------------------------------------------------------------- the end of a service


async def test_a_service_that_stops_tells_those_that_still_wait():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    server.tier.open_gate.clear()
    write = asyncio.create_task(storage.write("w", insert(1)))
    await until(server.tier.arrived.is_set)
    stop = asyncio.create_task(storage.stop(0.05))
    await until(storage._session.journal._task.done)
    server.tier.open_gate.set()
    await stop
    with pytest.raises(Unavailable):
        await asyncio.wait_for(write, 1)
    with pytest.raises(Unavailable, match="shuts down"):
        await storage.write("w", insert(2))
    with pytest.raises(Unavailable, match="shuts down"):
        await storage.create(spec(name="v"))


async def test_a_service_can_stop_while_a_window_is_in_doubt():
    server, storage = await failing()
    storage = await asyncio.wait_for(server.restart(), 5)
    assert entries(storage) == list(range(100)), "the write that failed did not take place"
    await storage.stop()


async def test_a_service_that_could_not_start_writes_nothing():
    server = Server(**QUIET)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", rows(0, 100))
    await server.die()
    last = values.last_group_key()
    server.store.values[last] = flipped(server.store.values[last], -1)
    before = dict(server.store.values)
    for _ in range(2):
        with pytest.raises(DataLoss, match=rf"{last.decode()}.*sash check --salvage"):
            await server.start()
        await asyncio.wait_for(server.storage.stop(), 1)
        assert server.store.values == before
        assert server.store.owner is None, "another may try"


# ---------------------------------------------------------------- the background


async def test_where_blocks_cannot_be_stored_the_write_that_led_there_is_none_the_worse():
    """To store a block to which entries were added, what is in the tier must be read first."""
    server = Server(checkpoint_bytes=10**6, store_entries=30, cache_bytes=0)
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
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
    await storage.stop()


async def test_a_window_that_cannot_be_tidied_keeps_no_other_from_it():
    server = Server(**QUIET)
    storage = await server.start()
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
    await storage.stop()


@pytest.mark.parametrize("damaged", [True, False])
async def test_an_insert_whose_answer_cannot_be_given_is_taken_and_nobody_else_is_the_worse(damaged):
    server = Server(**QUIET)
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
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
    await storage.stop()


async def test_an_insert_that_asks_for_what_is_no_answer_changes_nothing():
    server = Server(**QUIET)
    storage = await server.start()
    await storage.create(spec())
    for asking in (Insert(1, {"value": 1}, "a", True, ["x"]), Insert(1, {"value": 1}, "a", False, [5])):
        with pytest.raises(InvalidArgument):
            await storage.write("w", asking)
    assert not storage.find("w").info().entries
    await storage.stop()


async def test_a_refused_write_forgets_no_producer(monkeypatch):
    """What it changed would be in no record: a recovery would not know of it."""
    monkeypatch.setattr(ledger_module, "MAX_WRITERS", 3)
    server = Server(checkpoint_bytes=10**9)
    storage = await server.start()
    await storage.create(spec(order={"out_of_order": "reject"}))
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
    await storage.stop()


async def test_a_record_of_a_producer_beyond_the_bound_is_applied_again(monkeypatch):
    """It was taken when there was room; the bound may be another one now."""
    server = Server(checkpoint_bytes=10**9)
    storage = await server.start()
    await storage.create(spec())
    for name in "xyz":
        await storage.write("w", insert(1), Origin(name, 1))
        staged = await storage.stage("w", batch([("a", 2)], 2), name, 0)
        await storage.commit("w", name, 0, [staged.stage])
    monkeypatch.setattr(ledger_module, "MAX_WRITERS", 1)
    storage = await server.crash()
    assert entries(storage) == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ResourceExhausted):
        await storage.commit("w", "new", 0, [])
    await storage.stop()


def test_a_window_with_a_damaged_block_is_not_recovered_all_the_time():
    """At once after the first write that met it, and then 2, 4, … and at last 60 seconds after each."""

    async def main():
        server = Server(**QUIET)
        storage = await server.start()
        await storage.create(spec(aggregates=SMALL))
        await storage.write("w", rows(0, 100))
        storage = await server.restart()
        damaged = values.block_key(1, 5)
        server.store.values[damaged] = flipped(server.store.values[damaged], -1)
        for pause_s in (0, 2, 4, 8, 16, 32, 60, 60):
            with pytest.raises(DataLoss, match="block 5"):
                await storage.write("w", BulkEvict(17))
            failing = storage._stored["w"]
            if pause_s:
                await passes(pause_s - 0.1)
                assert storage._stored["w"] is failing
                with pytest.raises(DataLoss, match="block 5"):
                    storage.find("w")
            await passes(0.2)
            assert storage._stored["w"] is not failing
            assert storage.find("w").query("a", [], None)[0].entries == 100
        await storage.stop()

    in_virtual_time(main())


# ---------------------------------------------------------------- damage


async def test_a_flipped_bit_anywhere_is_named_and_never_an_answer():
    server, models = await stored_of_all_kinds()
    stored = dict(server.store.values)
    assert await look(server, models) == {}
    kinds = set()
    for number, (key, value) in enumerate(sorted(stored.items())):
        kinds.add(key.split(b"/")[0])
        places = (0, 4, 5, 16, 24, len(value) // 2, -1)  # magic, format, kind, checksum, and what there is
        for at in places if THOROUGH else {places[number % 7], places[number % 3 - 3]}:
            server.store.values = stored | {key: flipped(value, at)}
            await self_explaining(server, models, key)
    assert kinds == {b"meta", b"journal", b"pointer", b"image", b"block", b"staged"}


async def test_a_missing_value_is_named_and_never_an_answer():
    """As of a Redis that evicts what it likes."""
    server, models = await stored_of_all_kinds()
    stored = dict(server.store.values)
    for key in stored:
        server.store.values = {other: value for other, value in stored.items() if other != key}
        await self_explaining(server, models, key)


async def self_explaining(server, models, key):
    """What is damaged harms at most its own window, or all of them by name where all need it."""
    before = dict(server.store.values)
    kind, *numbers = key.decode().split("/")
    if key in (values.meta_key(), values.journal_key(), values.last_group_key()):
        with pytest.raises(DataLoss, match=f"'{key.decode()}'.*sash check --salvage"):
            await look(server, models)
        assert server.store.values == before, "nothing was changed"
        return
    errors = await look(server, models)
    if kind == "journal":
        assert errors
        assert all(f"'{key.decode()}'" in error.message for error in errors.values())
        return
    name = ["w", "v"][int(numbers[0], 16) - 1]
    assert set(errors) <= {name}
    if kind in ("image", "pointer"):
        assert name in errors[name].message
        assert kind in errors[name].message
    elif errors:
        assert kind in errors[name].message.replace("staged/", "staged")
        assert name in errors[name].message or key.decode() in errors[name].message


async def test_a_block_that_the_journal_needs_harms_only_its_window():
    server, models = await stored_of_all_kinds()
    [damaged] = [key for key in server.store.values if key == values.block_key(1, 2)]
    server.store.values[damaged] = flipped(server.store.values[damaged], -1)
    server.store.owner = None
    storage = await server.start()
    with pytest.raises(DataLoss, match=r"block 2 of window 'w'.*backup.*delete"):
        storage.find("w")
    with pytest.raises(DataLoss):
        await storage.write("w", insert(99))
    with pytest.raises(DataLoss):
        await storage.create(storage._stored["w"].window.spec)
    same(storage.find("v"), models["v"][0])
    await storage.stop()


async def test_beside_a_damaged_window_the_journal_is_cut_and_what_the_window_needs_is_kept():
    server, models = await stored_of_all_kinds()
    damaged = values.image_key(1, 1, 0)
    whole = server.store.values[damaged]
    server.store.values[damaged] = flipped(whole, -1)
    server.options |= BUSY
    server.store.owner = None
    storage = await server.start()
    sizes = []
    for start in range(100, 1100, 10):
        write = rows(start, start + 10, "b")
        await storage.write("v", write)
        models["v"][0].bulk_insert(write.batch)
        await server.settled()
        sizes.append(storage.status().journal_groups)
    assert max(sizes) < 50, "it does not grow with what is written"
    for again in (server.restart, server.crash):
        storage = await again()
        same(storage.find("v"), models["v"][0])
        with pytest.raises(DataLoss, match="image of window 'w'"):
            storage.find("w")
    await storage.stop()
    server.store.values[damaged] = whole
    storage = await server.start()
    for name, (model, _) in models.items():
        same(storage.find(name), model)
    for start in range(2000, 2100, 10):
        await storage.write("w", rows(start, start + 10, "b"))
        await storage.write("v", rows(start, start + 10, "b"))
    await server.settled()
    storage = await server.crash()
    assert storage.status().journal_groups < 20
    assert storage.find("w").query("b", [], None)[0].entries == 101
    await storage.stop()


@pytest.mark.parametrize("kind", [b"image/00000001", b"pointer/00000001"])
async def test_a_damaged_window_can_be_deleted_with_all_it_has(kind):
    server, _ = await stored_of_all_kinds()
    for key in [key for key in server.store.values if key.startswith(kind)]:
        server.store.values[key] = flipped(server.store.values[key], -1)
    server.store.owner = None
    storage = await server.start()
    await storage.delete("w")
    await storage.delete("v")
    await server.settled()
    left = {key for key in server.left if key.startswith(b"block") or not kind.startswith(b"pointer")}
    assert not left, "but for an image of which only a damaged pointer tells how long it is"
    await storage.create(spec())
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]
    await storage.stop()


async def test_a_record_that_cannot_be_applied_takes_down_its_window_alone(monkeypatch):
    server = Server(**QUIET)
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name))
        await storage.write(name, insert(1))
    await storage.write("w", AddAggregates({"least": {"function": "min"}}))
    await server.die()
    monkeypatch.setattr(AddAggregates, "apply", lambda self, window, now_ns: 1 / 0)
    storage = await server.start()
    with pytest.raises(DataLoss, match=r"record \d+ of the journal.*division by zero"):
        storage.find("w")
    assert entries(storage, "v") == [1]
    await storage.stop()


async def test_a_tier_of_another_owner_is_never_written_again():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
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
    await asyncio.wait_for(storage.stop(0.1), 5)
    assert server.tier.commits == commits


async def test_rows_of_a_batch_that_nobody_can_write_change_nothing():
    """What cannot be a record must be refused before it is applied."""
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    with pytest.raises(SashError):
        await storage.write("w", BulkInsert(Batch(np.arange(3.0), {"value": np.arange(3)})))
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]
    await storage.stop()
