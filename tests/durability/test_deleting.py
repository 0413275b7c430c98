"""Windows, and what has left them, are deleted: all of it, and nothing that somebody still reads."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.images import manifest
from sash.durability.records.commands import BulkInsert, Insert
from sash_engine.errors import Unavailable
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.window import ALL_KEYS
from tests.support.stored import batch, running, spec

SMALL = {"n": {"function": "count"}, "sum": {"function": "sum"}}


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
        await server.settled()
        storage.trim()
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
