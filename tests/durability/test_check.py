"""Looking through a damaged store, and salvage: what is damaged is named, and what does not depend on it is saved."""

import asyncio
import random
from dataclasses import replace

import pytest

from sash.durability import formats as values
from sash.durability.check.check import check
from sash.durability.journal.roots import End, Group
from sash.durability.records import commands as records
from sash.durability.records.columns import columns_from
from sash.durability.records.commands import BulkInsert, Commit, Insert
from sash_engine import monoids
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.batches.batch import Origin
from tests.support.damage import SMALL, flipped, stored_of_all_kinds
from tests.support.profile import THOROUGH
from tests.support.salvaged import Salvaged, View, listed
from tests.support.stored import StorageServer, batch, running, same, spec


async def entries_of(stored):
    """By window, all entries that a server finds in a store."""
    server = StorageServer()
    server.store.values = dict(stored)
    storage = await server.start()
    found = {info.spec.name: listed(storage, info.spec.name) for info in storage.all()}
    await server.die()
    return found


@pytest.fixture(scope="module")
def whole():
    """A store, its models, and its entries by window."""

    async def made():
        server, models = await stored_of_all_kinds(StorageServer(checkpoint_bytes=10**6, store_entries=4, block=16))
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
            old = next(window for window in found.windows if window.name == name).partial
            [token] = old.window.ledger.parts
            assert (await storage.write(name, Commit("q", 1, [token]))).inserted == 1
            assert (await storage.write(name, Commit("q", 0, []))).already_applied


async def test_what_was_salvaged_goes_on_with_its_producers():
    server, storage = await running(spec(durability="interval"), checkpoint_bytes=10**6, store_entries=4)
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
    return left | replace(end, group=number - 1, record=after).puts(values.store_of(stored[values.meta_key()]))


HOWS = ["damaged", "missing", "misplaced"]


@pytest.mark.parametrize("how", HOWS)
async def test_each_value_that_is_damaged_is_named_and_all_else_salvaged(whole, how):
    """Each block in one of the ways, all else in each."""
    stored, _, entries = whole
    for number, key in enumerate(sorted(stored)):
        if key.startswith(b"block/") and HOWS[number % len(HOWS)] != how:
            continue
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
        assert lost.partial is None
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
    return [] if isinstance(payload, bytes) else columns_from(payload)[1].tolist()


async def test_of_many_damaged_values_none_leads_to_a_wrong_entry(whole):
    """Any of them at once, of both windows and of what all windows need."""
    stored, _, entries = whole
    keys = sorted(stored)
    for seed in range(300 if THOROUGH else 30):
        chance = random.Random(seed)
        changed = dict(stored)
        for key in chance.sample(keys, chance.randint(2, 8)):
            how = chance.choice(["flipped", "gone", "other"])
            if how == "gone":
                changed.pop(key)
            else:
                changed[key] = flipped(stored[key], -1) if how == "flipped" else stored[chance.choice(keys)]
        async with Salvaged(changed) as salvaged:
            assert not salvaged.found.whole
            for info in salvaged.storage.all():
                name = info.spec.name
                rows = listed(salvaged.storage, name)
                [window] = [each for each in salvaged.found.windows if each.name == name]
                assert window.partial is not None
                before = {row for row in all_rows(stored, window.number) if row[0] == "a"}
                assert set(rows) <= set(entries[name]) | before, seed
                lacking = len(set(entries[name]) - set(rows))
                # What a group had that cannot be read nobody knows.
                assert window.problem or lacking <= window.left_out, (seed, "what is left behind is counted")


def all_rows(stored, number):
    """The entries of key "a" in all blocks of a window; some were evicted by a later write."""
    found = set()
    for key, value in stored.items():
        name = values.name_of(key)
        if (name.kind, name.window) == ("block", number):
            payload = values.unseal("block", value, key)
            if not isinstance(payload, bytes):
                times, rows = columns_from(payload)
                found |= {("a", time, row) for time, row in zip(times.tolist(), rows.tolist(), strict=True)}
    return found


@pytest.mark.parametrize("document", [{}, {"granularity": 2}, {"slide": {"max_age": 70}}, {"slide": {"max_count": 40}}])
async def test_windows_of_all_kinds_are_salvaged_without_their_damaged_blocks(document):
    """The blocks of a key, one after the other, and a stored partial; the first block may be evicted in part."""
    server, storage = await running(spec(**document), checkpoint_bytes=10**6, store_entries=4, block=12)
    for start in range(0, 150, 50):
        await storage.write("w", BulkInsert(batch([("a", time) for time in range(start, start + 50)], start)))
    storage = await server.restart()
    await storage.write("w", Insert(151, {"value": 151}, "a"))
    total = storage.find("w").query("a", [], None)[0].entries
    await server.die()
    stored = dict(server.store.values)
    kinds = set()
    for key in [key for key in stored if key.startswith(b"block/")]:
        payload = values.unseal("block", stored[key], key)
        async with Salvaged(stored | {key: flipped(stored[key], -1)}) as salvaged:
            [window] = salvaged.found.windows
            [damage] = salvaged.found.damages
            assert (damage.key, damage.window) == (key, "w")
            assert window.problem is None
            [answer] = salvaged.storage.find("w").query("a", [], None)
            if isinstance(payload, bytes):
                kinds.add("partial")
                assert answer.entries == total == salvaged.entries["w"]
                assert window.left_out == 0
            elif damage.entries is None:
                kinds.add("evicted")
                assert answer.entries == total
            else:
                kinds.add("block")
                assert window.left_out == damage.entries > 0
                gone = total - answer.entries
                assert gone == salvaged.found.windows[0].left_out or 0 < gone <= damage.entries
                info = salvaged.storage.find("w").info()
                assert info.entries == answer.entries
                if not document.get("granularity"):
                    lost = set(columns_from(payload)[1].tolist())
                    assert not lost & {row[2] for row in listed(salvaged.storage, "w")}
    assert {"partial", "block"} <= kinds


async def test_where_nothing_is_left_of_a_key_it_is_there_without_entries():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**6, store_entries=4, block=16)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(80)], 0)))
    await storage.write("w", BulkInsert(batch([("b", time) for time in range(5)], 0)))
    await storage.stop()
    left = {key: value for key, value in server.store.values.items() if not key.startswith(b"block/")}
    async with Salvaged(left) as salvaged:
        assert [(damage.window, damage.entries) for damage in salvaged.found.damages] == [("w", 16)] * 5
        assert all("is missing" in damage.problem for damage in salvaged.found.damages)
        assert salvaged.found.windows[0].left_out == 80
        window = salvaged.storage.find("w")
        assert window.key_names("", 10)[0] == ["b"], "keys without entries are not listed"
        assert window.query("a", [], None)[0].entries == 0
        await salvaged.storage.write("w", Insert(80, {"value": 80}, "a"))
        assert listed(salvaged.storage, "w") == [("a", 80, 80), *[("b", time, time) for time in range(5)]]


async def test_what_all_windows_need_is_said_to_be_out_of_date(whole):
    stored, _, entries = whole
    last = values.last_group_key()
    end = End.of(values.unseal("last", stored[last], last))
    for change in ({"group": end.group - 1}, {"listing": end.listing + 1}, {"listing": end.listing - 1}):
        async with Salvaged(
            stored | replace(end, **change).puts(values.store_of(stored[values.meta_key()]))
        ) as salvaged:
            [problem] = salvaged.found.problems
            assert "is out of date" in problem
            assert not salvaged.found.damages
            names = [info.spec.name for info in salvaged.storage.all()]
            assert {name: listed(salvaged.storage, name) for name in names} == entries


async def test_without_the_values_that_all_windows_need_images_and_journal_tell_of_them(whole):
    stored, _, entries = whole
    roots = values.meta_key(), values.journal_key(), values.last_group_key()
    async with Salvaged({key: value for key, value in stored.items() if key not in roots}) as salvaged:
        assert salvaged.found.problems == ["values 'meta', 'journal' and 'journal/last' are missing"]
        assert {name: listed(salvaged.storage, name) for name in entries} == entries


async def test_an_older_image_is_noticed_where_the_journal_was_cut():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9)
    older = {}
    for start in (0, 10):
        await storage.write("w", BulkInsert(batch([("a", start)], start)))
        storage = await server.restart()
        now = dict(server.store.values)
        older = older or {key: value for key, value in now.items() if key.startswith((b"pointer/", b"image/"))}
    await server.die()
    async with Salvaged(now | older) as salvaged:
        assert [window.problem for window in salvaged.found.windows] == [
            "the pointer to the image of window 'w' is out of date"
        ]


async def test_a_window_that_is_only_in_a_damaged_list_is_said_to_be_unknown():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9)
    await storage.write("w", Insert(1, {"value": 1}, "a"))
    await server.die()
    meta = values.meta_key()
    async with Salvaged(server.store.values | {meta: flipped(server.store.values[meta], -1)}) as salvaged:
        assert salvaged.found.problems == ["name and aggregates of window 1 are not known"]
        assert salvaged.found.windows == []
        assert not salvaged.storage.all()


async def test_a_window_that_is_being_deleted_is_not_salvaged():
    server, storage = await running(checkpoint_bytes=10**6, store_entries=4)
    for name in ("w", "v"):
        await storage.create(spec(name=name, aggregates=SMALL))
        await storage.write(name, BulkInsert(batch([("a", time) for time in range(100)], 0)))
    storage = await server.restart()
    with storage.store.session.pins.pin(1):
        await storage.delete("w")
        await server.die()
    assert values.pointer_key(1) in server.store.values
    last = values.last_group_key()
    for stored in (server.store.values, {key: value for key, value in server.store.values.items() if key != last}):
        async with Salvaged(stored) as salvaged:
            assert [window.name for window in salvaged.found.windows] == ["v"]
            assert len(listed(salvaged.storage, "v")) == 100


async def test_a_write_that_cannot_be_applied_leaves_the_window_behind(whole, monkeypatch):
    stored, *_ = whole
    monkeypatch.setattr(records.BulkEvict, "apply", lambda self, window, now_ns: 1 / 0)
    async with Salvaged(stored) as salvaged:
        assert not salvaged.storage.all()
        for window in salvaged.found.windows:
            assert "cannot be applied: division by zero" in window.problem
            assert (window.writes, window.entries) == (1, 0)
            assert window.stored >= 70


async def test_an_aggregate_that_is_not_installed_is_named(whole, monkeypatch):
    stored, _, entries = whole
    catalogue = dict(monoids.catalogue())
    del catalogue["collect_distinct"]
    monkeypatch.setattr(monoids, "catalogue", lambda: catalogue)
    monkeypatch.setattr("sash_engine.windows.spec.aggregates.catalogue", lambda: catalogue)
    async with Salvaged(stored) as salvaged:
        [lost] = [window for window in salvaged.found.windows if window.problem]
        assert "collect_distinct" in lost.problem
        assert (lost.name, lost.partial) == ("v", None)
        assert listed(salvaged.storage, "w") == entries["w"]


def test_what_is_none_of_ours_or_newer_is_said(whole, monkeypatch):
    stored, _, _ = whole
    found = check(View(stored | {b"mine": b"x", b"block/0": b"y"}), ManualClock())
    assert [damage.problem for damage in found.damages] == [
        "value 'block/0' is not one that Sash writes",
        "value 'mine' is not one that Sash writes",
    ]
    key = values.pointer_key(1)
    monkeypatch.setattr(values, "FORMAT", values.FORMAT + 1)
    newer = stored | {key: values.seal("pointer", 1, key)}
    monkeypatch.undo()
    with pytest.raises(FailedPrecondition, match="newer version"):
        check(View(newer), ManualClock())


def test_what_is_wrong_with_the_place_is_said(whole):
    view = View(whole[0])
    view.told = ["the place is odd"]
    found = check(view, ManualClock())
    assert found.problems == ["the place is odd"]
    assert not found.whole


def test_nothing_is_whole():
    found = check(View({}), ManualClock())
    assert found.whole
    assert found.windows == []
