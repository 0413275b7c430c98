"""A write that is applied before the tier fails may be applied, and its writer is told so."""

import asyncio
import errno
import os

import lmdb
import pytest

from sash.durability import write_path
from sash.durability.catalogue import Catalogue
from sash.durability.images import capacity as capacity_module
from sash.durability.records.commands import AddAggregates, BulkEvict, Commit, Insert, StageBatch
from sash.durability.storage import Storage
from sash.tiers.lmdb import LmdbTier
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, Unavailable
from sash_engine.windows.batches.batch import Origin
from tests.support.failing import FAILURES, entries, exported, insert, parts_of, rows
from tests.support.stored import batch, running, spec
from tests.support.waiting import until

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

    def full(size, reserve=0.0):
        raise OutOfRoom("as told", field="data", limit="the disk")

    server.tier.check_room = full
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
    storage.store.session.tier.close()  # as the end of its process
    await storage.store.session.journal.stop(0.001)
    storage = await started()
    assert entries(storage) == [1, 2]
