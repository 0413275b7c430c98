"""Rollups of a stored window are there after restarts and crashes on each tier, and hold what the keys hold."""

import numpy as np
import pytest

from sash.durability.images.export import export
from sash.durability.records.commands import AddAggregates, BulkEvict, BulkInsert, EvictRange, Insert
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Grouped, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.labels import join
from tests.support.exports import imported
from tests.support.stored import running, spec, write_both
from tests.support.tiers import kinds
from tests.support.viewed import SUMS
from tests.windows.test_rollups import ask

VALUES = (("JFK", "LGA", "a|b"), ("AA", "", "B6"), tuple(f"g{i}" for i in range(9)))
AGGREGATES = {**SUMS, "values": {"function": "distinct_count", "field": "v"}}
PARTS = {"keys": ["airport", "carrier", "gate"], "fields": {"v": "int64"}, "slide": {"max_age": 60}}
PLAIN = spec(aggregates=AGGREGATES, **PARTS)
SPEC = spec(aggregates=AGGREGATES, rollups=[["carrier"], ["airport", "carrier"], []], **PARTS)


def bulk(random, step, n=120):
    names = [join([random.choice(values) for values in VALUES]) for _ in range(n)]
    if step % 3 == 1:
        names[: n // 2] = [names[0]] * (n // 2)  # one key has a forest
    times = 25 * step + random.integers(-70, 25, n)
    return Batch(times, {"v": random.integers(-50, 50, n)}, Coded.of(names))


def check_invariants(window):
    window.check_invariants(lambda monoid, a, b: monoid.lower(a) == monoid.lower(b))


def compare(window, plain):
    """The answers are those of a window without rollups, and the rollups have what they should have."""
    for by in (["carrier"], ["carrier", "airport"], ["airport"], []):
        for question in (
            Query(selection=Grouped(by=by)),
            Query(lookbacks=[20, 60], selection=Grouped(by=by)),
            RangeQuery(150, 200, selection=Grouped(by=by)),
            SeriesQuery(100, 250, 30, selection=Grouped(by=by)),
        ):
            assert ask(window, question) == ask(plain, question), question
    check_invariants(window)


@pytest.mark.parametrize("place", kinds("redis"), indirect=True)
async def test_rollups_survive_restarts_and_crashes_on_each_tier(place):
    random = np.random.default_rng(7)
    server, storage = await running(SPEC, place=place, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    plain = Window(PLAIN, block=4, clock=ManualClock())
    for step in range(10):
        batch = bulk(random, step)
        await write_both(storage, "w", [plain], BulkInsert(batch))
        if step == 4:
            await write_both(storage, "w", [plain], AddAggregates({"top": {"function": "max", "field": "v"}}))
        if step == 5:
            key = batch.keys.dictionary[0]
            more = BulkEvict(90, None), BulkEvict(10**6, key), EvictRange(100, 110, None), Insert(130, {"v": 9}, key)
            await write_both(storage, "w", [plain], *more)
        await server.spilled()
        if step % 3 == 2:
            storage = await (server.restart() if step % 2 else server.crash())
        compare(storage.find("w"), plain)


@pytest.mark.parametrize("granularity", [None, 10])
@pytest.mark.parametrize("slide", [{"max_age": 60}, {"max_age": 60, "until": "punctuation"}, {}])
def test_an_import_makes_the_rollups_of_the_export(granularity, slide):
    document = {**SPEC.document(), "slide": slide} | ({} if granularity is None else {"granularity": granularity})
    window = Window(WindowSpec.parse(document), block=4, clock=ManualClock())
    random = np.random.default_rng(3)
    for step in range(4):
        window.bulk_insert(bulk(random, step))
    if "until" in slide:
        window.punctuate(40)
    window.bulk_evict(2**62, window.keys.names()[0])
    found = imported(b"".join(export(window)))
    compare(found, window)
    for each in (found, window):
        each.bulk_insert(bulk(np.random.default_rng(4), 5))
    compare(found, window)
