"""Images of forests whose blocks are in a tier."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.monoids import Collect, Count, Max
from tests.support.cold_model import ColdLockstep, Tier
from tests.support.cooled import AGGREGATES, FIELDS, Cooled, forest_of
from tests.support.forest_model import commuting_layout, histories

# -------------------------------------------------------------------- images


@pytest.mark.parametrize("entries", [0, 1, 3, 4, 5, 41])
@pytest.mark.parametrize("evicted", [0, 1, 3, 6])
def test_an_image_is_the_forest_at_any_fill(entries, evicted):
    tier = Tier()
    cold = Cold(tier.load, Cache(0))
    aggregates = {"all": (Collect("string"), ["name"]), "newest": (Max("int64"), ["time"])}
    forest = forest_of(aggregates, cold, name="string")
    for i in range(entries):
        forest.insert(i // 2, (f"n{i}",))
    forest.evict(evicted)
    cold.landed([(block, tier.store(block)) for block in forest.pending_blocks()])
    image = forest.dump()
    answers = forest.query()
    copies = [Forest.restore(forest._layout, Cold(tier.load, Cache(0)), image) for _ in range(2)]
    forest.bulk_insert(np.array([0, 1, 99]), [np.array(["x", "y", "z"], object)])
    for copy in copies:
        assert (copy.query(), len(copy), image.entries) == (answers, max(entries - evicted, 0), len(copy))
        copy.bulk_insert(np.array([0, 1, 99]), [np.array(["x", "y", "z"], object)])
        assert copy.query() == forest.query()
        assert (copy.oldest, copy.newest) == (forest.oldest, forest.newest)
        copy.check_invariants()


@given(steps=histories(length=12), more=histories(bulk=5, between=st.tuples(st.just("evict"), st.just(1))))
def test_a_restored_forest_seals_and_grows_as_the_dumped_one(steps, more):
    """Replayed writes meet the same blocks as they did: what is dumped later is the same, but for the ids."""
    one = ColdLockstep(commuting_layout(16), 0)
    one.run(steps, check_every=100)
    one.dump()
    other = ColdLockstep(one.layout, 0)
    other.forest = Forest.restore(one.layout, Cold(one.tier.load, one.cache), one._saved[0])
    other.entries, other.arrivals, other.now = one.entries[:], one.arrivals, one.now
    found = []
    for lockstep in (one, other):
        lockstep.run(more, check_every=100)
        for block in lockstep.forest.pending_blocks():
            one.tier.store(block)
        image = lockstep.forest.dump()
        rows = [column.tolist() for column in (image.first, image.last, image.counts, *image.tail)]
        found.append((image.head, image.skip, image.newest, image.room, rows))
    assert found[0] == found[1]


def test_floats_round_as_they_did():
    """Blocks are paired as before, whatever was evicted before: range queries agree to the last bit."""
    cooled = Cooled(0)
    random = np.random.default_rng(5)
    cooled.forest.bulk_insert(np.arange(5000), [random.normal(size=5000) * 1e9])
    cooled.forest.evict(1234)
    cooled.cool()
    copy = Forest.restore(cooled.forest._layout, cooled.cold, cooled.forest.dump())
    for start, end in random.integers(1200, 5000, (50, 2)).tolist():
        assert copy.range_query(start, end) == cooled.forest.range_query(start, end)


def test_entries_that_are_only_counted():
    cooled = Cooled(100, aggregates={"n": (Count(), ["time"])})
    cooled.forest.insert(15, (1.0,))
    cooled.forest.evict(3)
    cooled.cool()
    copy = Forest.restore(cooled.forest._layout, cooled.cold, cooled.forest.dump())
    assert (copy.query(), copy.range_query(10, 19)) == ([98], (11, [11]))


def test_a_dump_needs_all_blocks_stored():
    forest = forest_of(AGGREGATES, Cold(Tier().load, Cache(0)))
    forest.bulk_insert(np.arange(10), [np.ones(10)])
    with pytest.raises(AssertionError, match="10 entries are in blocks that are not stored"):
        forest.dump()
    assert Forest(Layout(FIELDS, AGGREGATES)).pending_blocks() == []
