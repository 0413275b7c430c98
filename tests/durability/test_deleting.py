"""Windows, and what has left them, are deleted: all of it, from memory too, and nothing that somebody still reads."""

import gc
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.images import manifest
from sash.durability.images.manifest import Manifest, StoredImage
from sash.durability.records.commands import BulkInsert, Commit, Insert, StageBatch
from sash.durability.storage import Storage
from sash.tiers import open_tier
from sash_engine.clock import ManualClock
from sash_engine.errors import Unavailable
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.window import WindowSpec
from tests.support.damage import SMALL
from tests.support.stored import batch, running, spec
from tests.support.waiting import until


def insert(time):
    return Insert(time, {"value": 1}, "k00")


def entries(storage):
    return sum(answer.entries for answer in storage.find("w").query(None, [], None, ALL_KEYS))


@given(st.sets(st.integers(1, 300)), st.integers(2, 6))
def test_ranges_cover_all_numbers_and_leave_the_widest_gaps_out(numbers, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "_RANGES_MAX", most)
        found = manifest.ranges_of(np.array(sorted(numbers, key=lambda n: n % 7), np.int64))
    covered = [number for first, stop in found for number in range(first, stop)]
    assert numbers <= set(covered)
    assert covered == sorted(set(covered))
    assert len(found) <= most
    ordered = sorted(numbers)
    gaps = sorted((b - a for a, b in itertools.pairwise(ordered)), reverse=True)
    assert len(covered) == (ordered[-1] - ordered[0] + 1 - sum(gap - 1 for gap in gaps[: most - 1]) if ordered else 0)


async def test_deleting_an_old_window_does_not_try_every_number_that_its_blocks_had():
    server, storage = await running(
        spec(keyed=False, slide={"max_count": 50}, aggregates=SMALL), checkpoint_bytes=2000, store_entries=8
    )
    for start in range(0, 5000, 50):
        await storage.write("w", BulkInsert(Batch(np.arange(start, start + 50), {"value": np.arange(50)})))
    await server.settled()
    storage = await server.restart()
    assert storage.store.windows["w"].manifest.next_block > 1000
    deleted = []
    commit = server.tier.commit
    server.tier.commit = lambda puts, deletes=(): (deleted.extend(deletes), commit(puts, deletes))
    await storage.delete("w")
    await server.settled()
    assert len(deleted) < 100
    assert not {key for key in server.left if not key.startswith(b"journal/")}


async def test_an_export_that_stands_still_keeps_nothing_from_being_deleted_for_ever():
    server, storage = await running(
        spec(slide={"max_count": 10}, aggregates=SMALL), checkpoint_bytes=1500, store_entries=4, cache_bytes=0
    )
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(50)], 0)))
    export = storage.export("w")
    next(export)
    for start in range(50, 500, 50):
        await storage.write("w", BulkInsert(batch([("a", time) for time in range(start, start + 50)], 0)))
        await server.settled()
    many = len(server.left)
    server.clock.advance(299 * 10**9)
    storage.tidy()
    await server.settled()
    assert len(server.left) >= many, "it has time"
    server.clock.advance(2 * 10**9)
    storage.tidy()
    await server.settled()
    assert len(server.left) < many / 2
    with pytest.raises(Unavailable, match="begin again"):
        next(export)
    assert list(storage.export("w"))


async def test_an_export_that_goes_on_keeps_what_it_needs_and_nothing_of_other_windows():
    server, storage = await running(checkpoint_bytes=1500, store_entries=4, cache_bytes=0)
    for name in ("w", "v"):
        await storage.create(spec(name=name, slide={"max_count": 20}, aggregates=SMALL))
        await storage.write(name, BulkInsert(batch([("a", time) for time in range(20)], 0)))
    await server.settled()
    parts = list(storage.export("w"))
    export = storage.export("w")
    assert next(export) == parts[0]
    for start, part in zip(range(50, 500, 50), parts[1:], strict=False):
        for name in ("w", "v"):
            await storage.write(name, BulkInsert(batch([("a", time) for time in range(start, start + 50)], 0)))
        server.clock.advance(200 * 10**9)
        storage.tidy()
        await server.spilled()
        held, free = (sum(key.startswith(b"block/%08x/" % number) for key in server.left) for number in (1, 2))
        assert next(export) == part
    assert free < held / 2
    assert list(export) == []


async def test_what_was_written_before_blocks_were_told_by_ranges_is_read_and_deleted():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=500, store_entries=4)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await storage.stop()
    key = values.pointer_key(1)
    pointer = values.unseal("pointer", server.store.values[key], key)
    del pointer["blocks"]
    store = values.store_of(server.store.values[key])
    server.store.values[key] = values.seal("pointer", pointer, key, store)
    storage = await server.start()
    assert entries(storage) == 100
    await storage.delete("w")
    await storage.stop()
    assert not server.left
    assert manifest.Remains.of(manifest.Remains().document() | {"blocks": 7}).blocks == [(1, 7)]


async def test_a_lost_window_that_cannot_be_deleted_now_is_there_still():
    server, storage = await running(spec(aggregates=SMALL))
    await storage.write("w", insert(1))
    await storage.stop()
    server.store.values[values.pointer_key(1)] = b"nonsense"
    storage = await server.start()
    server.tier.fail_reads = 1  # what there is of it has to be looked for
    with pytest.raises(Unavailable):
        await storage.delete("w")
    assert [info.spec.name for info in storage.all()] == ["w"]
    assert await storage.delete("w") == 0
    storage = await server.crash()
    assert storage.all() == []


POINTER = {
    "image": 3,
    "parts": 5,
    "bytes": 700,
    "bound": (7, 2),
    "next_block": 40,
    "staged": (2, 4),
    "through": 99,
    "blocks": [(1, 4), (20, 40)],
    "sum": b"12345678",
}
FORMAT_1 = {name: POINTER[name] for name in ("image", "parts", "bytes", "next_block", "staged", "through")}


def test_what_a_pointer_says_is_read_as_it_was_written():
    image = StoredImage.of(POINTER)
    assert image.document((7, 2)) == POINTER
    assert list(image.document((7, 2))) == list(POINTER), "in the same order"
    assert StoredImage.of(values.unpack(values.pack(POINTER))) == image


def test_a_pointer_of_format_1_names_all_blocks_and_has_no_checksum():
    image = StoredImage.of(FORMAT_1)
    assert (image.blocks, image.checksum) == ([(1, 40)], None)


def test_values_that_may_be_of_format_1_are_those_before_the_bounds():
    manifest = Manifest(1)
    assert manifest.block_is_bound(1)
    assert manifest.part_is_bound(1)
    manifest.read(POINTER)
    assert [manifest.block_is_bound(number) for number in (1, 6, 7)] == [False, False, True]
    assert [manifest.part_is_bound(number) for number in (1, 2)] == [False, True]
    manifest.read(FORMAT_1)
    assert not manifest.block_is_bound(10**6)
    assert not manifest.part_is_bound(10**6)


@pytest.mark.parametrize("what", [b"image/", b"block/"])
async def test_what_a_crash_leaves_behind_the_image_is_deleted_by_the_next_checkpoint(what):
    """The process ends when the blocks and the image are stored, and before the pointer is."""
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9, store_entries=10**9)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.settled()
    commit = server.tier.commit

    def dies_before_the_pointer(puts, deletes=()):
        server.tier.unreachable = server.tier.unreachable or values.pointer_key(1) in puts
        commit(puts, deletes)

    server.tier.commit = dies_before_the_pointer
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await until(lambda: server.tier.unreachable)
    await server.die()
    left = {key for key in server.left if key.startswith(what)}
    assert left
    storage = await server.start()
    before = storage.store.windows["w"].manifest.image
    assert before.version == 0
    await storage.store.checkpoints.take(storage.store.windows["w"])
    await server.settled()
    assert not left & server.left
    assert storage.store.windows["w"].manifest.image.version > before.version
    storage = await server.restart()
    assert storage.find("w").query("a", [], None)[0].entries == 100


async def test_garbage_of_an_image_that_was_refused_is_deleted_with_the_next_one():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9, store_entries=10**9)
    staged = await storage.write("w", StageBatch(batch([("a", 1)], 1), "q", 0))
    await storage.write("w", Commit("q", 0, [staged.stage]))
    await server.settled()
    stored = storage.store.windows["w"]
    server.tier.full = True
    storage.store.checkpoints.begin(stored)
    await server.settled()
    assert stored.backoff.waiting
    assert values.staged_key(1, 1) in server.left, "a recovery needs it, as there is no image"
    server.tier.full = False
    stored.backoff.reset()
    storage.store.checkpoints.begin(stored)
    await server.settled()
    assert values.staged_key(1, 1) not in server.left


COUNT = {"n": {"function": "count"}, "p": {"function": "quantile", "q": 0.5}}
KINDS = {
    "keyed": {},
    "unkeyed": {"keyed": False},
    "panes": {"granularity": "1s"},
    "when": {"slide": {"when": "old.n > 9"}},
    "memory": {"durability": "memory"},
}


@pytest.mark.parametrize("stored", [False, True])
async def test_deleted_windows_are_freed(tmp_path, stored):
    clock = ManualClock()
    storage = Storage(Catalogue(clock=clock), clock, open_tier(str(tmp_path), "sash") if stored else None)
    await storage.start()
    parts = []
    for name, more in KINDS.items():
        spec = WindowSpec.parse({"name": name, "keyed": True, "aggregates": COUNT} | more)
        window, _ = await storage.create(spec)
        batch = Batch.of(spec, range(3000), {"value": [1.5] * 3000}, ["a", "b", "c"] * 1000 if spec.keyed else None)
        await storage.write(name, BulkInsert(batch))
        storage.find(name).reader.query(Query(keys=ALL_KEYS) if spec.keyed else Query())
        parts += [weakref.ref(each) for each in (window, window.reader, window.keys, window.keys._pages)]
        del window
    gc.collect()
    gc.disable()
    try:
        for name in KINDS:
            await storage.delete(name)
        await until(lambda: not any(part() for part in parts))
    finally:
        gc.enable()
        await storage.stop()
