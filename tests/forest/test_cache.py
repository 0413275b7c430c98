"""The cache of blocks: what it evicts, what it counts, and windows that share it."""

import sys

import numpy as np

from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.monoids import Last
from tests.support.cold_model import Tier
from tests.support.cooled import AGGREGATES, FIELDS, Cooled, forest_of

# -------------------------------------------------------------------- the cache


def test_the_cache_forgets_what_was_not_used_for_longest():
    cooled = Cooled(budget=3 * 160)
    for start in (105, 205, 305):
        cooled.forest.range_query(start, start + 1)
    cooled.forest.range_query(105, 106)
    cooled.forest.range_query(405, 406)
    assert (cooled.cache.used_bytes, len(cooled.cache)) == (4 * 160, 4)
    cooled.cache.trim()
    assert (cooled.cache.used_bytes, len(cooled.cache)) == (3 * 160, 3)
    cooled.tier.calls.clear()
    for start in (105, 305, 405):
        cooled.forest.range_query(start, start + 1)
    assert cooled.loads == []
    cooled.forest.range_query(205, 206)
    assert cooled.loads == [[20]]


def test_hits_and_misses_are_blocks_that_were_at_hand_and_that_were_not():
    cooled = Cooled()
    assert (cooled.cache.hits, cooled.cache.misses) == (0, 0)
    cooled.forest.range_query(105, 905)
    assert cooled.cache.misses == 2
    hits = cooled.cache.hits
    cooled.forest.columns()
    assert cooled.cache.misses == 100
    assert cooled.cache.hits >= hits + 2


def test_windows_share_a_budget_and_no_blocks():
    one = Cooled(40, budget=2 * 160)
    tier = Tier()
    cold = Cold(tier.load, one.cache)
    other = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    other.bulk_insert(np.arange(40), [np.full(40, 2.0)])
    cold.landed([(block, tier.store(block)) for block in other.pending_blocks()])
    assert one.cache.used_bytes == 4 * 160
    one.forest.range_query(5, 6)
    one.cache.trim()
    assert one.cache.used_bytes == 2 * 160
    assert other.range_query(5, 6) == (2, [4.0, 2.0])
    assert one.forest.range_query(5, 6) == (2, [11.0, 6.0])
    other.drop()
    one.cache.check_invariants()
    one.cache.trim()
    assert one.loads == [[0]]


def test_a_window_that_is_gone_leaves_the_cache():
    one = Cooled(40)
    cold = Cold(one.tier.load, one.cache)
    other = Forest(Layout(FIELDS, AGGREGATES, 10), cold)
    other.bulk_insert(np.arange(100), [np.ones(100)])
    flying = [(block, one.tier.store(block)) for block in other.pending_blocks(8)]
    cold.landed(flying[:6])
    one.forest.range_query(5, 15)
    assert len(one.cache) == 8
    cold.forget()
    cold.landed(flying[6:])
    assert (len(one.cache), one.cache.used_bytes) == (2, 320)
    one.checked()


def test_strings_count_once_a_block():
    tier, cache = Tier(), Cache(10**6)
    cold = Cold(tier.load, cache)
    forest = forest_of({"newest": (Last("string"), ["name"])}, cold, name="string")
    names = np.array(["a" * 1000, "b" * 10, "a" * 1000, "b" * 10], object)
    forest.bulk_insert(np.arange(4), [names])
    (block,) = forest.pending_blocks()
    expected = 4 * 16 + sys.getsizeof("a" * 1000) + sys.getsizeof("b" * 10)
    assert block.nbytes == expected
    cold.landed([(block, tier.store(block))])
    assert cache.used_bytes == expected


def test_a_block_that_stays_does_not_keep_the_bulk_it_came_with():
    tier, cache = Tier(), Cache(10**6)
    cold = Cold(tier.load, cache)
    forest = forest_of(AGGREGATES, cold)
    forest.bulk_insert(np.arange(4000), [np.ones(4000)])
    cold.landed([(block, tier.store(block)) for block in forest.pending_blocks()])
    block = cold.block(500)
    assert [column.base for column in block.columns] == [None, None]
    assert forest.range_query(2001, 2002) == (2, [2.0, 1.0])
