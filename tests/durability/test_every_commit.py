"""Each commit of a busy history fails once: everything acknowledged is there, once."""

import asyncio
import itertools

import pytest

from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, StageBatch, Write
from sash_engine.errors import AlreadyExists, NotFound, Unavailable
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.window import Window
from tests.support.failing import BUSY, insert, parts_of, rows
from tests.support.profile import THOROUGH
from tests.support.stored import StorageServer, batch, same, spec

pytestmark = pytest.mark.usefixtures("impatient")
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
