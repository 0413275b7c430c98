"""Ids of blocks in a tier: each is given once, and released when its block is evicted."""

import contextlib
import sys
import tracemalloc

import numpy as np
import pytest

from sash_engine.errors import Unavailable
from sash_engine.forest import Cache, Cold, Forest, ForestImage, Layout
from sash_engine.monoids import Sum
from tests.support.cold_model import Tier
from tests.support.collector import no_collection
from tests.support.cooled import AGGREGATES, FIELDS, Cooled

# -------------------------------------------------------------------- ids


def test_an_edit_in_flight_releases_the_id_and_lands_as_nothing():
    cooled = Cooled(40)
    cooled.forest.insert(15, (1.0,))
    (block,) = cooled.forest.pending_blocks()
    number = cooled.tier.store(block)
    assert (block.stored, number, cooled.cold.dirty_entries) == (4, 4, 0)
    cooled.forest.insert(15, (2.0,))
    cooled.forest.insert(15, (3.0,))
    assert cooled.cold.released == [1, 4]
    cooled.cold.landed([(block, number)])
    assert len(cooled.cache) == 0, "nobody wants it any more"
    assert cooled.tier.blocks[4][0].tolist() == [10, 11, 12, 13, 14, 15, 15, 16, 17, 18, 19]
    cooled.tier.check()
    cooled.checked()


def test_what_is_in_flight_stays_in_memory():
    tier, cache = Tier(), Cache(0)
    cold = Cold(tier.load, cache)
    forest = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    forest.bulk_insert(np.arange(100), [np.ones(100)])
    assert cold.dirty_entries == 100
    flying = [(block, tier.store(block)) for block in forest.pending_blocks(6)]
    assert (len(flying), cold.dirty_entries, len(cold.dirty)) == (6, 40, 1)
    cache.trim()
    tier.down = True
    assert forest.range_query(5, 94)[0] == 90
    cold.landed(flying[:2])
    cache.trim()
    assert forest.range_query(25, 94)[0] == 70
    with pytest.raises(Unavailable):
        forest.range_query(5, 94)
    assert [len(owner.pending_blocks()) for owner in cold.dirty] == [4]


def test_an_id_is_given_once():
    cooled = Cooled(40)
    cooled.forest.insert(15, (1.0,))
    (block,) = cooled.forest.pending_blocks()
    block.stored = 17
    with pytest.raises(AssertionError, match="stored as 17 already"):
        block.stored = 18
    assert cooled.forest.pending_blocks() == [], "it has one"


def test_evicted_blocks_release_their_ids_bit_by_bit():
    cooled = Cooled()
    cooled.forest.range_query(5, 15)
    cooled.forest.evict(990)
    assert cooled.cold.released == []
    for i in range(1000, 1020):
        cooled.forest.insert(i, (1.0,))
    assert 0 < len(cooled.cold.released) < 20
    assert len(cooled.cache) == 0, "what is evicted is not cached"
    assert cooled.forest.sweep(5)
    cooled.cool()
    image = cooled.forest.dump()
    assert sorted(cooled.cold.take_released()) == list(range(99))
    assert image.ids.tolist() == [99, 100, 101]


def test_evicted_blocks_that_owe_a_look_release_what_they_would_have_looked_at():
    cooled = Cooled(100)
    cooled.forest.bulk_insert(np.array([5, 25, 95]), [np.zeros(3)])
    cooled.forest.evict(60)
    while cooled.forest.sweep():
        pass
    assert sorted(cooled.cold.released) == [0, 1, 2, 3, 4]
    cooled.forest.drop()
    assert sorted(cooled.cold.released) == list(range(10))
    assert cooled.loads == []
    cooled.cold.check_invariants()


@contextlib.contextmanager
def counted_calls():
    """The calls of functions, Python's and C's, that are made within."""
    calls = []

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            calls.append(event)

    before = sys.getprofile()
    with no_collection():
        sys.setprofile(note)
        try:
            yield calls
        finally:
            sys.setprofile(before)


def test_a_bulk_evict_does_not_wait_for_its_ids():
    """2^25 entries of which none is in memory: dropping 2^23 costs what dropping one costs, give or take a look-up."""
    k = 2**15
    first = np.arange(k) * 1024
    image = ForestImage(
        head=0,
        skip=0,
        newest=k * 1024 - 1,
        ids=np.arange(k),
        first=first,
        last=first + 1023,
        counts=np.full(k, 1024),
        partials=[(np.full(k, 1024.0),)],
        tail=[np.empty(0, np.int64), np.empty(0)],
        room=8,
    )
    cold = Cold(lambda numbers: pytest.fail(f"{numbers} were loaded"), Cache(0))
    tracemalloc.start()
    forest = Forest.restore(Layout(FIELDS, {"sum": (Sum(), ["value"])}), cold, image)
    assert forest.query() == [2.0**25]
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 160 * k, "bytes per block"
    for i in range(3):
        with counted_calls() as calls:
            assert (forest.evict(2**23) if i % 2 else forest.bulk_evict((i + 1) * 2**23 - 1)) == 2**23
        assert len(calls) < k // 32, "of the thousands of blocks, it looks at few"
        assert forest.query() == [2.0**23 * (3 - i)]
    assert cold.released == []
    assert len(forest.dump().ids) == k // 4
    assert cold.take_released() == list(range(k // 4 * 3))
