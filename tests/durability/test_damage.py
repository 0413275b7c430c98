"""Groups of the journal, blocks and images that are damaged or missing: windows that need nothing of them go on.

group      1      2     3       4      5           6        7     8      9     10
records    busy   idle  covered busy   covered     late     busy  late   busy  busy, late
                                       + image
"""

import asyncio
import itertools

import pytest

from sash.durability import formats as values
from sash.durability.journal.roots import Group
from sash.durability.records.commands import AddAggregates, BulkEvict, BulkInsert
from sash_engine.errors import DataLoss
from sash_engine.windows.window import Window
from tests.support.damage import SMALL, flipped, stored_of_all_kinds
from tests.support.failing import BUSY, QUIET, entries, insert, rows
from tests.support.stored import StorageServer, batch, running, same, spec
from tests.support.waiting import until

NAMES = ("busy", "idle", "covered", "late")


class Journal:
    """A server that died with a journal, and what its windows must answer."""

    def __init__(self):
        self.server = StorageServer(checkpoint_bytes=10**9, store_entries=10**9)
        self.models = {}
        self.time = 0

    async def create(self, name):
        document = spec(name=name, aggregates=SMALL)
        await self.server.storage.create(document)
        self.models[name] = Window(document, clock=self.server.clock)

    async def write(self, *names):
        """To each window one bulk, all in one group."""
        self.time += 3
        pairs = [(key, self.time + i) for i, key in enumerate("aabbc")]
        operations = [BulkInsert(batch(pairs, self.time)) for _ in names]
        storage = self.server.storage
        await asyncio.gather(*[storage.write(name, each) for name, each in zip(names, operations, strict=True)])
        for name, operation in zip(names, operations, strict=True):
            self.models[name].bulk_insert(operation.batch)

    async def checkpoint(self, *names):
        for name in names:
            await self.server.storage.store.checkpoints.take(self.server.storage.store.windows[name])
        await self.server.settled()

    async def made(self):
        await self.server.start()
        for name in NAMES[:3]:
            await self.create(name)
        for name in ("busy", "idle", "covered", "busy", "covered"):
            await self.write(name)
        await self.checkpoint("covered")
        await self.create("late")
        for names in (["late"], ["busy"], ["late"], ["busy"], ["busy", "late"]):
            await self.write(*names)
        await self.server.die()
        self.stored = dict(self.server.store.values)
        self.groups = [
            Group.of(number, self.stored[values.group_key(number)], bound=True)
            for number in range(1, 100)
            if values.group_key(number) in self.stored
        ]
        self.numbers = {stored.name: stored.number for stored in self.server.storage.store.windows.values()}
        self.through = {name: self.server.storage.store.windows[name].through for name in NAMES}
        return self

    def lost(self, damaged):
        """The windows that must not be served with these groups damaged, from what all groups say."""
        found = set()
        for name, number in self.numbers.items():
            needed = [group for group in self.groups if group.last.get(number, 0) > self.through[name]]
            for group in damaged:
                after = [later for later in self.groups if later not in damaged and later.number > group.number]
                end = after[0].after if after else self.groups[-1].records[-1][0]
                if end > self.through[name] and (group in needed or not any(each in after for each in needed)):
                    found.add(name)
        return found

    async def start(self, values_):
        self.server.store.values = dict(values_)
        return await self.server.start()

    def check(self, lost, damaged):
        storage = self.server.storage
        assert {info.spec.name for info in storage.all() if info.problem} == lost
        for name, model in self.models.items():
            if name in lost:
                keys = "|".join(values.group_key(group.number).decode() for group in damaged)
                with pytest.raises(DataLoss, match=rf"'{name}' is not served: .*({keys})"):
                    storage.find(name)
            else:
                same(storage.find(name), model)


def damage(stored, groups, how):
    changed = dict(stored)
    for group in groups:
        key = values.group_key(group.number)
        if how == "damaged":
            changed[key] = flipped(changed[key], -1)
        else:
            del changed[key]
    return changed


async def test_the_journal_is_as_drawn():
    journal = await Journal().made()
    windows = {number: name for name, number in journal.numbers.items()}
    drawn = [[windows[window] for _, window, _ in group.records] for group in journal.groups]
    alone = ("busy", "idle", "covered", "busy", "covered", "late", "busy", "late", "busy")
    assert drawn == [*([name] for name in alone), ["busy", "late"]]
    assert journal.lost([]) == set()
    assert journal.lost(journal.groups[:1]) == {"busy"}
    assert journal.lost(journal.groups[2:3]) == {"idle"}, "nobody knows whether it had a record there"
    assert journal.lost(journal.groups[5:6]) == {"idle", "covered", "late"}
    assert journal.lost(journal.groups[-1:]) == set(NAMES)
    await (await journal.start(journal.stored)).stop()


@pytest.mark.parametrize("how", ["damaged", "missing"])
async def test_windows_that_need_nothing_of_damaged_groups_are_served(how):
    """Every group, and every two of them."""
    journal = await Journal().made()
    for some in itertools.chain.from_iterable(itertools.combinations(journal.groups, n) for n in (0, 1, 2)):
        await journal.start(damage(journal.stored, some, how))
        journal.check(journal.lost(some), some)
        assert journal.server.storage.status().damaged >= len(some)
        await journal.server.die()


@pytest.mark.parametrize("number", range(1, 11))
async def test_beside_lost_windows_the_others_go_on_through_restarts(number):
    """They are written to, checkpointed, and the journal is cut; then what is damaged is put right."""
    journal = await Journal().made()
    models = dict(journal.models)
    damaged = journal.groups[number - 1 : number]
    lost = journal.lost(damaged)
    served = [name for name in NAMES if name not in lost]
    storage = await journal.start(damage(journal.stored, damaged, "damaged"))
    key = values.group_key(number)
    for turn in range(3):
        await journal.create(f"new {turn}".replace(" ", "-"))
        for _ in range(2):
            await journal.write(*served, *[name for name in journal.models if name.startswith("new")])
        journal.check(lost, damaged)
        if turn == 1:
            await journal.checkpoint(*served)
            storage.trim()
            storage.store.checkpoints.trim()
            await journal.server.settled()
        storage = await (journal.server.restart() if turn == 2 else journal.server.crash())
        journal.check(lost, damaged)
    assert (key in journal.server.store.values) == bool(lost), "it is there for as long as a lost window may need it"
    await storage.stop()
    if lost:
        journal.server.store.values[key] = journal.stored[key]
        storage = await journal.server.start()
        journal.check(set(), [])
        assert journal.models.keys() > models.keys()
        for name in lost:
            await journal.write(name)
        storage = await journal.server.restart()
        journal.check(set(), [])
        await storage.stop()
    assert not [each for each in journal.server.left if each.startswith(b"journal/0")]


async def test_a_lost_window_can_be_deleted_with_the_groups_that_it_needs():
    journal = await Journal().made()
    damaged = journal.groups[3:4]
    storage = await journal.start(damage(journal.stored, damaged, "damaged"))
    for name in journal.lost(damaged):
        await storage.delete(name)
        del journal.models[name]
    storage = await journal.server.restart()
    journal.check(set(), [])
    await storage.stop()
    assert not [each for each in journal.server.left if each.startswith(b"journal/0")]


async def test_a_window_that_failed_is_recovered_beside_a_damaged_group(impatient):
    journal = await Journal().made()
    damaged = journal.groups[3:4]
    journal.server.options |= {"store_entries": 4, "cache_bytes": 0}
    storage = await journal.start(damage(journal.stored, damaged, "damaged"))
    assert "late" not in journal.lost(damaged)
    for _ in range(30):
        await journal.write("late")
    await journal.server.settled()
    storage.trim()
    journal.server.tier.fail_reads = 1
    with pytest.raises(Exception, match="fails as told"):
        await storage.write("late", BulkEvict(60))
    await until(lambda: storage.store.windows["late"].failure is None)
    same(storage.find("late"), journal.models["late"])


pytestmark = pytest.mark.usefixtures("impatient")


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
        await storage.create(storage.store.windows["w"].window.spec)
    same(storage.find("v"), models["v"][0])


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


async def test_a_record_that_cannot_be_applied_takes_down_its_window_alone(monkeypatch):
    server, storage = await running(**QUIET)
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
