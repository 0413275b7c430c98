"""Looking through a damaged store, and salvage: what is damaged is named, and what does not depend on it is saved."""

import asyncio
import os
from dataclasses import replace

import pytest

from sash.clock import ManualClock
from sash.windows import values
from sash.windows.batch import Origin
from sash.windows.check import check
from sash.windows.records import Insert
from sash.windows.roots import End, Group
from sash.windows.salvage import salvage
from sash.windows.window import ALL_KEYS
from tests.support.damage import flipped, stored_of_all_kinds
from tests.support.stored import Server, same, spec

THOROUGH = os.environ.get("SASH_PROFILE") == "soak"


class View:
    """A view of values in this process."""

    name = "memory"

    def __init__(self, stored):
        self.stored = stored
        self.told = []

    def keys(self):
        return iter(list(self.stored))

    def get_many(self, keys):
        return [self.stored.get(key) for key in keys]

    def problems(self):
        return self.told

    def close(self):
        pass


class Salvaged:
    """What a check found in a store, and a server on what was salvaged from it."""

    def __init__(self, stored):
        self.stored = stored

    async def __aenter__(self):
        before = dict(self.stored)
        self.found = check(View(self.stored), ManualClock())
        self.server = Server()
        storage = await self.server.start()
        self.entries = {}
        for window in self.found.windows:
            if window.kept is not None:
                self.entries[window.name] = await salvage(window, storage)
        assert self.stored == before, "it was only read"
        await storage.stop()
        self.storage = await self.server.start()
        return self

    async def __aexit__(self, *_):
        assert {info.problem for info in self.storage.all()} <= {None}
        assert check(View(self.server.store.values), ManualClock()).whole
        await self.storage.stop()


def listed(storage, name):
    """All entries of a window: key, time, value."""
    found = []
    for bulk in storage.entries(name, None, None, None, ALL_KEYS):
        keys = [bulk.keys.dictionary[code] for code in bulk.keys.codes.tolist()]
        found += zip(keys, bulk.times.tolist(), bulk.columns["value"].tolist(), strict=True)
    return sorted(found)


async def entries_of(stored):
    """By window, all entries that a server finds in a store."""
    server = Server()
    server.store.values = dict(stored)
    storage = await server.start()
    found = {info.spec.name: listed(storage, info.spec.name) for info in storage.all()}
    await server.die()
    return found


@pytest.fixture(scope="module")
def whole():
    """A store, its models, and its entries by window."""

    async def made():
        server, models = await stored_of_all_kinds(Server(checkpoint_bytes=10**6, store_entries=4, block=16))
        return dict(server.store.values), models, await entries_of(server.store.values)

    return asyncio.run(made())


async def test_a_whole_store_is_whole_and_salvaged_as_it_is(whole):
    stored, models, entries = whole
    async with Salvaged(stored) as salvaged:
        found, storage = salvaged.found, salvaged.storage
        assert found.whole
        assert (found.values, found.size) == (len(stored), sum(map(len, stored.values())))
        assert salvaged.entries == {name: len(each) for name, each in entries.items()}
        for name, (model, _) in models.items():
            same(storage.find(name), model)
            assert listed(storage, name) == entries[name]
            # What was staged and not committed is there under its token.
            old = next(window for window in found.windows if window.name == name).kept
            [token] = old.window.ledger.parts
            assert (await storage.commit(name, "q", 1, [token])).inserted == 1
            assert (await storage.commit(name, "q", 0, [])).already_applied


async def test_what_was_salvaged_goes_on_with_its_producers():
    server = Server(checkpoint_bytes=10**6, store_entries=4)
    storage = await server.start()
    await storage.create(spec(durability="interval"))
    for number in range(1, 30):
        await storage.write("w", Insert(number, {"value": number}, "a"), Origin("p", number))
    await storage.stop()
    async with Salvaged(server.store.values) as salvaged:
        storage = salvaged.storage
        assert storage.find("w").spec.durability == "interval"
        assert (await storage.write("w", Insert(29, {"value": 29}, "a"), Origin("p", 29))).already_applied
        await storage.write("w", Insert(30, {"value": 30}, "a"), Origin("p", 30))
        assert listed(storage, "w") == [("a", n, n) for n in range(1, 31)]


def truncated(stored, number):
    """A store whose journal ends before a group."""
    names = {key: values.name_of(key) for key in stored}
    left = {key: stored[key] for key, name in names.items() if name.kind != "journal" or name.number < number}
    last = values.last_group_key()
    end = End.of(values.unseal("last", stored[last], last))
    after = Group.of(number, stored[values.group_key(number)], bound=True).after
    return left | replace(end, group=number - 1, record=after).puts()


@pytest.mark.parametrize("how", ["damaged", "missing", "misplaced"])
async def test_each_value_that_is_damaged_is_named_and_all_else_salvaged(whole, how):
    stored, _, entries = whole
    for key in stored:
        if how == "missing":
            changed = {other: value for other, value in stored.items() if other != key}
        elif how == "damaged":
            changed = stored | {key: flipped(stored[key], -1)}
        else:
            changed = stored | {key: next(value for other, value in stored.items() if other != key)}
        async with Salvaged(changed) as salvaged:
            await compare(salvaged, stored, entries, key, how)


async def compare(salvaged, stored, entries, key, how):
    found, storage = salvaged.found, salvaged.storage
    name = values.name_of(key)
    names = {window.number: window.name for window in found.windows}
    told = [damage for damage in found.damages if damage.key == key]
    there = {info.spec.name for info in storage.all()}
    expected = dict(entries)
    if name.kind in ("meta", "last") or key == values.journal_key():
        assert not found.whole
        assert told or found.problems == [f"value '{key.decode()}' is missing"]
    elif name.kind in ("pointer", "head", "image"):
        window = names[name.window]
        assert told or how == "missing"
        del expected[window]
        [lost] = [each for each in found.windows if each.name == window]
        assert lost.kept is None
        assert lost.problem
        assert lost.stored >= 70
        assert (lost.writes, lost.entries) == (5, 13)
    elif name.kind == "journal":
        assert [damage.problem for damage in told]
        at_group = await entries_of(truncated(stored, name.number))
        for window in found.windows:
            if window.problem is not None:
                expected[window.name] = at_group[window.name]
    else:
        window, lost = names[name.window], rows_of(stored[key], name)
        gone = [row for row in entries[window] if row[2] in lost] if name.kind == "block" else []
        if name.kind == "part":
            gone = [row for row in entries[window] if row[:2] == ("b", 30)] if name.number == 1 else []
        expected[window] = sorted(set(entries[window]) - set(gone))
        assert bool(told) or how == "missing"
        if gone:
            assert [(damage.window, damage.entries) for damage in told] == [(window, len(lost))]
            assert key.decode() in told[0].problem
    assert there == set(expected), key
    for window, rows in expected.items():
        assert listed(storage, window) == rows, key
        keys = {row[0] for row in rows}
        for each in keys:
            [answer] = storage.find(window).query(each, [], None)
            assert answer.entries == len([row for row in rows if row[0] == each])


def rows_of(value, name):
    """The values in a block; none in a partial."""
    if name.kind != "block":
        return [6]
    payload = values.unseal("block", value, "block")
    return [] if isinstance(payload, bytes) else values.columns_from(payload)[1].tolist()
