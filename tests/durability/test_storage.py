"""Storage against the same windows in memory: restarts, crashes, tiers that fail, tiny caches, retries."""

import asyncio
import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.images import checkpoints, image
from sash.durability.records.commands import (
    BulkEvict,
    BulkInsert,
    Commit,
    EvictRange,
    Insert,
    Retract,
    StageBatch,
    Update,
)
from sash_engine.errors import DataLoss, SashError
from sash_engine.windows.batches.batch import Batch, Origin, untimed
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.stored import AGGREGATES, KEYS, batch, running, same, spec

EXACT = 4096
SKETCHES = {
    "users": {"function": "distinct_count"},
    "median": {"function": "quantile", "q": 0.5, "k": EXACT},  # a sketch of more entries flips coins
    "frequent": {"function": "frequent_items", "limit": 2},
}

SLIDES = [{}, {"max_age": 9}, {"max_count": 7}, {"when": "total.n > 12"}, {"max_gap": 3}, {"max_age": 9, "every": 4}]

times = st.integers(0, 40)
entries = st.tuples(st.sampled_from(KEYS), times)
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=25)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), times), min_size=20, max_size=60)),
    st.tuples(st.just("batch"), st.lists(st.lists(entries, max_size=9), max_size=3)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), times)),
    st.tuples(st.just("evict range"), st.tuples(st.sampled_from([*KEYS, None]), times, st.integers(0, 12))),
    st.tuples(st.sampled_from(["retract", "update"]), st.lists(st.tuples(entries, st.integers(0, 20)), max_size=20)),
    st.tuples(st.sampled_from(["find retract", "find update"]), st.lists(st.tuples(entries, st.integers(0, 20)))),
    st.tuples(st.just("together"), st.lists(entries, min_size=2, max_size=6)),
    st.tuples(st.just("tidy"), st.integers(0, 3)),
    st.sampled_from([("restart", None), ("crash", None), ("check", None)]),
)


async def read_on(server):
    """Read the window all the time, whatever is done to it."""
    while True:
        with contextlib.suppress(SashError):
            window = server.storage.find("w")
            window.query(None, [4], None, ALL_KEYS)
            window.range_query(5, 20, "a")
            window.series(0, 40, 4, 9, "b")
        await asyncio.sleep(0)


async def follow(history, slide, options, watched=False):
    server, storage = await running(**options)
    reader = asyncio.create_task(read_on(server)) if watched else None
    document = spec(slide=slide, idle_expiry="10s", aggregates=AGGREGATES | SKETCHES, identity="value")
    await storage.create(document)
    model = Window(document, clock=server.clock)
    value = sequence = number = 0
    for step, what in history:
        if step == "insert":
            key, time = what
            sequence += 1
            for attempt in range(2):
                write = Insert(time, {"value": value}, key)
                result = await storage.write("w", write, Origin("p", sequence))
                assert result.already_applied == (attempt > 0)
            model.insert(time, {"value": value}, key)
            value += 1
        elif step == "bulk":
            await storage.write("w", BulkInsert(batch(what, value)))
            model.bulk_insert(batch(what, value))
            value += len(what)
        elif step == "batch":
            stages, pairs = [], []
            for part in what:
                staged = await storage.write("w", StageBatch(batch(part, value + len(pairs)), "q", number))
                stages.append(staged.stage)
                pairs += part
            await storage.write("w", StageBatch(batch([("a", 1)], 0), "q", number))  # of a task that was retried
            if number % 3 == 1:
                storage = await server.crash()
            for attempt in range(2):
                result = await storage.write("w", Commit("q", number, stages))
                assert result.already_applied == (attempt > 0)
            model.bulk_insert(batch(pairs, value))
            number, value = number + 1, value + len(pairs)
        elif step == "evict":
            key, time = what
            await storage.write("w", BulkEvict(time, key))
            model.bulk_evict(time, key)
        elif step == "evict range":
            key, start, width = what
            await storage.write("w", EvictRange(start, start + width, key))
            model.evict_range(start, start + width, key)
        elif "retract" in step or "update" in step:
            rows = batch([pair for pair, _ in what], 0)
            rows.columns["value"][:] = [max(value - age, 0) for _, age in what]
            if "find" in step:
                rows = replace(rows, times=untimed(len(what)))
            sequence += 1
            for attempt in range(2):
                write = Retract(rows) if "retract" in step else Update(rows)
                result = await storage.write("w", write, Origin("p", sequence))
                assert result.already_applied == (attempt > 0)
            getattr(model, step.removeprefix("find "))(rows)
        elif step == "together":
            writes = [storage.write("w", BulkInsert(batch([pair], value + i))) for i, pair in enumerate(what)]
            await asyncio.gather(*writes)
            for i, pair in enumerate(what):
                model.bulk_insert(batch([pair], value + i))
            value += len(what)
        elif step == "tidy":
            server.clock.advance(what * 5 * 10**9)
            await storage.store.windows["w"].writable.wait()  # or it would be tidied a second later
            storage.tidy()
            await server.settled()  # nobody was answered: a crash now might undo it for a second
            model.tidy()
        elif step == "restart":
            storage = await server.restart()
        elif step == "crash":
            storage = await server.crash()
        else:
            same(storage.find("w"), model)
    same(storage.find("w"), model)
    storage = await server.restart()
    same(storage.find("w"), model)
    await storage.delete("w")
    await storage.stop(5)
    assert not server.left, "nothing of a deleted window is left"
    if reader is not None:
        reader.cancel()


@given(
    st.lists(steps, max_size=25),
    st.sampled_from(SLIDES),
    st.sampled_from([0, 64, 10**6]),
    st.sampled_from([4096, 300, 10**6]),
    st.sampled_from([1, 8, 10**6]),
)
def test_any_history_equals_the_window_in_memory(history, slide, cache, checkpoint, store):
    options = {"cache_bytes": cache, "checkpoint_bytes": checkpoint, "store_entries": store}
    asyncio.run(follow(history, slide, options))


@given(
    st.lists(steps, max_size=25),
    st.sampled_from(SLIDES),
    st.sampled_from([0, 10**6]),
    st.sampled_from([100, 1000]),
    st.sampled_from([1, 8, 10**6]),
)
def test_images_taken_bit_by_bit_while_others_read_change_nothing(history, slide, cache, checkpoint, store):
    options = {"cache_bytes": cache, "checkpoint_bytes": checkpoint, "store_entries": store}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "_TURN_S", -1.0)
        patch.setattr(image, "_KEYS", 1)
        patch.setattr(image, "_FORESTS", 1)
        asyncio.run(follow(history, slide, options, watched=True))


async def test_a_damaged_block_is_named_and_harms_only_what_needs_it():
    server, storage = await running(cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    await storage.create(spec(keyed=False, aggregates={"n": {"function": "count"}}))  # so only blocks are numbered
    rows = Batch(np.arange(100), {"value": np.arange(100)})
    await storage.write("w", BulkInsert(rows))
    await server.spilled()
    [key] = [values.block_key(1, 5)]
    server.store.values[key] = server.store.values[key][:-1] + b"?"
    window = storage.find("w")
    with pytest.raises(DataLoss, match="block 5 of window 'w'"):
        window.range_query(17, 40, None)
    assert window.range_query(30, 41, None).entries == 12
    assert window.query(None, [], None)[0].entries == 100
    assert storage.status().damaged == 1
    assert server.store.values[key].endswith(b"?"), "it is left as it is"


async def history(again, **options):
    """What every write evicted, and what was left; after some writes, the storage is started again."""
    random, time, out = np.random.default_rng(9), 0, []
    adaptive = {"aggregates": {"mean": {"function": "mean"}}, "slide": {"adaptive": {"every": 4}}}
    server, storage = await running(spec(keyed=False, fields={"value": "float64"}, **adaptive), **options)
    for step in range(60):
        mean = (step // 20) * 4.0
        values = random.normal(mean, 1, 12)
        result = await storage.write("w", BulkInsert(Batch(np.arange(time, time + 12), {"value": values})))
        single = await storage.write("w", Insert(time + 12, {"value": mean}))
        time += 13
        (answer,) = storage.find("w").query(None, [], None)
        out.append((result.evicted, single.evicted, answer.entries, round(answer.aggregates["mean"], 9)))
        if again and step % 3 == 2:
            storage = await (server.restart() if step % 2 else server.crash())
    return out


async def test_it_evicts_the_same_after_every_start(place):
    expected = await history(again=False)
    assert sum(bulk + single for bulk, single, *_ in expected) > 400, "it has found the changes"
    assert await history(again=True, place=place) == expected
