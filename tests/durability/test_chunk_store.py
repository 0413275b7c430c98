"""`KvsAMTA` and `KvsLogMTA` with the middle of their levels in each tier, beside the fold of a list."""

import numpy as np
import pytest

from sash.durability.images.chunk_store import ChunkStore
from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.aggregators.kvs_mta import KvsAMTA, KvsLogMTA
from sash_engine.errors import DataLoss, Unavailable
from sash_engine.monoids import Collect, CountMin, Sum
from sash_engine.monoids.laws import close
from tests.support.tiers import Faulty


@pytest.fixture
def tier(place):
    tier = place.open()
    tier.acquire()
    return tier


def fold(monoid, entries):
    return monoid.lower(monoid.reduce([np.array([value for _, value in entries], np.int64)]))


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
@pytest.mark.parametrize("monoid", [Collect("int64"), Sum("int64"), CountMin("int64", error=0.3)], ids=repr)
def test_it_slides_as_a_list_does(tier, window, monoid):
    store = ChunkStore(tier, monoid, "w")
    sliding, entries, random = window(monoid, store=store, chunk=2), [], np.random.default_rng(2)
    for time in range(1500):
        value = int(random.integers(0, 50))
        sliding.insert(time, value)
        entries.append((time, value))
        if time > 900:
            sliding.evict()
            entries.pop(0)
        if time in (300, 1200):
            through = entries[len(entries) // 2][0]
            assert sliding.bulk_evict(through) == len(entries) // 2 + 1
            entries = entries[len(entries) // 2 + 1 :]
        if time % 100 == 0:
            assert close(fold(monoid, entries), sliding.query(), 0.0)
    start, end = entries[10][0], entries[-10][0]
    assert close(fold(monoid, entries[10:-9]), sliding.range_query(start, end), 0.0)
    assert len(store) > sliding.local
    assert sliding.bulk_evict(1500) == len(entries)
    assert len(store) == 0


def test_windows_on_one_tier_do_not_mix(tier):
    windows = [KvsAMTA(Sum("int64"), store=ChunkStore(tier, Sum("int64"), name), chunk=2) for name in ("a", "b")]
    for time in range(700):
        for factor, window in enumerate(windows, 1):
            window.insert(time, factor)
    for factor, window in enumerate(windows, 1):
        assert window.range_query(100, 399) == 300 * factor


@pytest.mark.parametrize("window", [KvsLogMTA, KvsAMTA])
def test_a_window_stays_whole_while_its_tier_is_away(window):
    tier = Faulty(MemoryTier(MemoryStore()))
    tier.acquire()
    store = ChunkStore(tier, Sum("int64"), "w")
    sliding = window(Sum("int64"), store=store, chunk=2)
    for time in range(3000):
        tier.unreachable = 1000 <= time < 2000
        sliding.insert(time, time)
        if time >= 800 and not tier.unreachable:
            sliding.evict()
    assert sliding.query() == sum(range(1200, 3000))
    assert 3 < tier.commits < 40
    tier.fail_before = 1
    with pytest.raises(Unavailable):
        store.flush()
    store.flush()
    assert sliding.range_query(1500, 2500) == sum(range(1500, 2501))


def test_a_chunk_that_is_lost_is_named():
    tier = MemoryTier(MemoryStore())
    tier.acquire()
    store = ChunkStore(tier, Sum("int64"), "w")
    with pytest.raises(DataLoss, match="mta/w/3/7"):
        store.get_many([(3, 7)])
