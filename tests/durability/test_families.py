"""Windows that are stored together: each value of a store is damaged or lost in turn. What is then listed and answered,
what a check finds, and what is salvaged, of each window."""

import asyncio
from collections import Counter

import pytest

from sash.durability import formats as values
from sash.durability.check.check import check
from sash.durability.journal.roots import Meta
from sash.durability.records.commands import BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, DataLoss
from sash_engine.windows.spec.window import WindowSpec
from tests.support.damage import flipped
from tests.support.families import FAMILY, FED, ROOT_OF, VIEWS, answers, bulk, owners, stored_family
from tests.support.profile import THOROUGH
from tests.support.salvaged import Salvaged, View
from tests.support.stored import ALWAYS, StorageServer

NAMES = {1: "requests", 2: "other"}
WITH = {root: [name for name in FAMILY if ROOT_OF[name] == root and name != root] for root in NAMES.values()}
PLAIN = {"time_unit": "none", "aggregates": {"n": {"function": "count"}}}


@pytest.fixture(scope="module")
def whole():
    """A store, and what its windows answer."""

    async def made():
        server = await stored_family()
        stored = dict(server.store.values)
        storage = await server.start()
        found = {name: answers(storage, name) for name in FAMILY}
        await server.die()
        return stored, found

    return asyncio.run(made())


def changed(stored, key, how):
    if how == "missing":
        return {each: value for each, value in stored.items() if each != key}
    return stored | {key: flipped(stored[key], -1)}


def each_value(stored, most=2):
    """Values, damaged or missing in turn: of each kind of one window some, at most so many."""
    blocks, taken = blocks_of(stored), Counter()
    for number, key in enumerate(sorted(stored)):
        name = values.name_of(key)
        kind = name.kind, name.window
        if name.kind == "block":
            owner, rollup, entries = blocks.get((name.window, name.number), (None, None, 0))
            kind = owner, str(rollup), entries > 0
        taken[kind] += 1
        if taken[kind] <= most or THOROUGH:
            yield key, ("damaged", "missing")[number % 2]


def blocks_of(stored):
    """By window and block: whose it is, the parts of its rollup, and how many entries it has."""
    return {(root, block): owner for root in NAMES for block, owner in owners(stored, root).items()}


async def on(stored):
    """A server on some values."""
    server = StorageServer(checkpoint_bytes=10**7, store_entries=10**6, block=16)
    server.store.values = dict(stored)
    await server.start()
    return server


def asked(storage):
    """By window, what it answers; None where it answers DataLoss instead."""
    found = {}
    for name in FAMILY:
        try:
            found[name] = answers(storage, name)
        except DataLoss:
            found[name] = None
    return found


async def test_no_window_vanishes_and_none_answers_what_is_wrong(whole):
    stored, expected = whole
    lost_roots = set()
    for key, how in each_value(stored):
        if key in ALWAYS:
            continue
        server = await on(changed(stored, key, how))
        storage = server.storage
        listed = {info.spec.name: info for info in storage.all()}
        assert listed.keys() == FAMILY.keys(), key
        assert {info.spec.name for info in await storage.all_described()} == FAMILY.keys()
        for name, found in asked(storage).items():
            assert found in (None, expected[name]), (key, how, name)
        lost = {name for name, info in listed.items() if info.problem is not None}
        for root, derived in WITH.items():
            if root not in lost:
                assert not lost & set(derived), key
                continue
            lost_roots.add((root, values.name_of(key).kind))
            assert set(derived) <= lost
            for name in derived:
                assert f"window {name!r} is stored with {root!r}: " in listed[name].problem
                assert listed[name].spec == FAMILY[name]
                with pytest.raises(DataLoss, match=f"{name}.*{root}"):
                    storage.find(name)
                with pytest.raises(DataLoss):
                    await storage.create(FAMILY[name])
                with pytest.raises(AlreadyExists):
                    await storage.create(WindowSpec.parse({**PLAIN, "name": name}))
                with pytest.raises(DataLoss):
                    await storage.delete(name)
        if lost:  # what is put back is served again, whatever was tried meanwhile
            await server.settled()
            await server.die()
            server.store.values[key] = stored[key]
            storage = await server.start()
            assert asked(storage) == expected, key
        await server.die()
    needed = ("pointer", "head", "image", "journal", "part")
    assert lost_roots - {("requests", "block")} == {(root, kind) for root in WITH for kind in needed}


async def test_a_lost_window_is_deleted_with_all_that_is_stored_with_it(whole):
    stored, _ = whole
    for key in (values.pointer_key(1), values.image_key(1, 1, 1), newest_group(stored)):
        server = await on(changed(stored, key, "damaged"))
        storage = server.storage
        await storage.delete("requests")
        assert [info.spec.name for info in storage.all()] == ["other"]
        await storage.create(WindowSpec.parse({**PLAIN, "name": "minutes"}))
        storage = await server.crash()
        served = {info.spec.name: info.spec.source for info in storage.all()}
        assert served == {"minutes": None, "other": None}
        await server.die()


def newest_group(stored):
    return max(key for key in stored if values.name_of(key).kind == "journal")


async def test_a_check_names_the_window_that_lacks_something(whole):
    stored, expected = whole
    found = check(View(stored), ManualClock())
    assert found.whole
    assert {each.name: (each.of, each.is_view, each.entries) for each in found.windows[0].derived} == {
        name: (spec.of or spec.source.window, spec.of is not None, expected[name]["counted"][0])
        for name, spec in FAMILY.items()
        if name in WITH["requests"]
    }
    blocks, kinds = blocks_of(stored), set()
    for key, how in each_value(stored):
        found = check(View(changed(stored, key, how)), ManualClock())
        windows = {each.name: each for each in found.windows}
        name = values.name_of(key)
        told = [damage for damage in found.damages if damage.key == key]
        if name.kind != "meta":
            derived = [each.name for window in found.windows for each in window.derived]
            assert {*windows, *derived} == FAMILY.keys(), (key, "all windows are named")
        if name.kind == "block" and (name.window, name.number) in blocks:
            owner, rollup, entries = blocks[name.window, name.number]
            [damage] = told
            expected_entries = entries if entries and rollup is None else None
            assert (damage.window, damage.rollup, damage.entries) == (owner, rollup, expected_entries), key
            kinds.add((owner, rollup is not None, entries > 0))
            lacks = {each.name: each.left_out for each in windows.values()}
            lacks |= {each.name: each.left_out for window in windows.values() for each in window.derived}
            assert {each: left for each, left in lacks.items() if left} == (
                {owner: entries} if expected_entries else {}
            ), key
        elif name.kind == "part":
            [damage] = told
            assert (damage.window, damage.entries) == (NAMES[name.window], 6 if name.number == 1 else 3)
            fed = [each.left_out for each in windows["requests"].derived if each.name in FED]
            assert fed == [6 * (name.window == 1 and name.number == 1)] * 2
        elif name.kind in ("pointer", "head", "image") and name.window is not None:
            root = NAMES[name.window]
            assert windows[root].partial is None
            assert [each.name for each in windows[root].derived] == WITH[root]
            assert all(each.entries is None for each in windows[root].derived)
    assert {kind for kind in kinds if kind[2]} == {
        *(("requests", False, True), ("requests", True, True), ("other", False, True)),
        *(("minutes", False, True), ("minutes", True, True), ("hours", False, True)),
    }
    assert any(not has_entries for _, _, has_entries in kinds), "a partial"


async def test_missing_groups_are_said_to_have_had_writes(whole):
    """Their entries nobody knows, but not that there were none."""
    stored, _ = whole
    groups = sorted(key for key in stored if values.name_of(key).kind == "journal")
    assert len(groups) > 4
    for first in range(len(groups)):
        gone = set(groups[first:])
        found = check(View({key: value for key, value in stored.items() if key not in gone}), ManualClock())
        for window in found.windows:
            assert window.problem is not None
            assert window.unread > 0
            assert (window.writes, window.entries) == (0, 0)
    found = check(View(changed(stored, groups[1], "missing")), ManualClock())
    assert all(window.unread > 0 and window.writes > 0 for window in found.windows if window.problem)
    assert any(window.problem for window in found.windows)


async def test_what_is_salvaged_is_as_it_was_but_for_what_is_lost(whole):
    stored, expected = whole
    blocks = blocks_of(stored)
    for key, how in each_value(stored, 1):
        name = values.name_of(key)
        if NAMES.get(name.window) == "other" and not THOROUGH:
            continue  # it is a window alone
        async with Salvaged(changed(stored, key, how)) as salvaged:
            storage = salvaged.storage
            there = {info.spec.name: info.spec for info in storage.all()}
            lost = name.window if name.kind in ("pointer", "head", "image") else None
            gone = set() if lost is None else {NAMES[lost], *WITH[NAMES[lost]]}
            assert there == {each: spec for each, spec in FAMILY.items() if each not in gone}, key
            lacking = set()
            if name.kind == "block":
                owner, rollup, entries = blocks.get((name.window, name.number), (None, None, 0))
                if entries and rollup is None:
                    lacking = {owner, *(each for each in VIEWS if FAMILY[each].of == owner)}
            elif name.kind == "part" and name.number == 1:
                lacking = {NAMES[name.window], *WITH[NAMES[name.window]]}
            elif name.kind == "journal" and key not in ALWAYS:
                problems = {each.name for each in salvaged.found.windows if each.problem}
                lacking = {each for each in FAMILY if ROOT_OF[each] in problems}
            for each in there:
                if each not in lacking:
                    assert answers(storage, each) == expected[each], (key, each)
            for root in {ROOT_OF[each] for each in there}:
                before = {each: storage.find(each).counts.inserted for each in there if ROOT_OF[each] == root}
                await storage.write(root, BulkInsert(bulk(20)))
                after = {each: storage.find(each).counts.inserted for each in before}
                assert after == {each: count + 80 for each, count in before.items()}, "what it feeds is fed again"
                storage.find(root).check_invariants(lambda monoid, a, b: monoid.lower(a) == monoid.lower(b))


async def test_a_store_of_an_earlier_version_lists_what_is_stored_together_from_its_first_start(whole):
    stored, expected = whole
    key = values.meta_key()
    meta = values.unseal("meta", stored[key], key)
    assert [document["name"] for document in meta.pop("derived")[1]] == WITH["requests"]
    earlier = stored | {key: values.seal("meta", meta, key, values.store_of(stored[key]))}
    assert Meta.of(meta).derived is None
    found = check(View(changed(earlier, values.image_key(1, 1, 0), "damaged")), ManualClock())
    assert {each.name for each in found.windows[0].derived} == set(WITH["requests"])
    server = await on(earlier)
    assert asked(server.storage) == expected
    await server.settled()
    await server.die()
    again = Meta.of(values.unseal("meta", server.store.values[key], key))
    assert [document["name"] for document in again.derived_of(1)] == WITH["requests"]


async def test_what_came_and_went_behind_a_gap_is_listed_as_it_was_last(whole):
    """The journal has it, and the window is lost before that: `meta` knows."""
    stored, _ = whole
    server = await on(stored)
    await server.storage.delete("short")
    await server.storage.create(WindowSpec.parse({**FAMILY["recent"].document(), "name": "later"}))
    await server.storage.delete("hours")
    await server.die()
    damaged = min(key for key in server.store.values if values.name_of(key).kind == "journal")
    left = changed(server.store.values, damaged, "damaged")
    again = await on(left)
    listed = {info.spec.name: info.problem for info in again.storage.all()}
    assert listed.keys() == {"requests", "minutes", "recent", "later", "other"}
    assert all(listed[name] for name in ("requests", "minutes", "recent", "later"))
    await again.die()
    async with Salvaged(left) as salvaged:
        derived = {each.name: each.entries is not None for each in salvaged.found.windows[0].derived}
        assert derived == {"minutes": True, "recent": True, "later": False}
        names = {info.spec.name for info in salvaged.storage.all()}
        assert names == {"requests", "minutes", "recent", "other"}
