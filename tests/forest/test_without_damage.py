"""A forest that is restored without what is damaged of it: what is left answers as if it had come alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.monoids import Collect, CollectDistinct, Count, Max, Sum
from tests.support.cold_model import Tier

LARGE = {"all": (Collect(), ["value"]), "distinct": (CollectDistinct("int64"), ["value"]), "max": (Max(), ["value"])}
SMALL = {"n": (Count(), []), "sum": (Sum(), ["value"])}


class Stored:
    """A forest of rows, all sealed blocks of which are in a tier, and its image."""

    def __init__(self, aggregates, rows, evicted, block=4):
        self.layout = Layout({"value": "int64"}, aggregates, block=block)
        self.tier = Tier()
        self.cold = Cold(self.tier.load, Cache(0))
        self.forest = Forest(self.layout, self.cold)
        for first in range(0, rows, 7):
            times = np.arange(first, min(first + 7, rows))
            self.forest.bulk_insert(times // 2, [times])
        self.forest.evict(evicted)
        blocks = self.forest.pending_blocks()
        for each in blocks:
            self.tier.store(each)
        self.cold.landed([(each, each.stored) for each in blocks])
        self.cold.cache.trim()
        self.image = self.forest.dump()

    def without(self, gone):
        """The forest without what was stored under some ids, and the rows that are left."""
        self.tier.damaged = set(gone)
        image, lacks, refolded = self.image.only(set(self.image.numbers) - set(gone))
        forest = Forest.restore(self.layout, self.cold, image)
        forest.refold(refolded)
        return forest, lacks

    def rows(self, lacks):
        """The rows of the blocks that are not lacking, and of the tail, without the evicted ones."""
        found, skip = [], self.image.skip
        for number, lacking in zip(self.image.ids.tolist(), lacks.tolist(), strict=True):
            if not lacking:
                found += self.tier.blocks[number][1][skip:].tolist()
            skip = 0
        return found + self.image.tail[1][skip:].tolist()


def check(forest, layout, rows):
    """It answers as one that was given these rows."""
    model = Forest(layout)
    model.bulk_insert(np.array(rows, np.int64) // 2, [np.array(rows, np.int64)])
    for _ in range(2):
        forest.check_invariants()
        assert len(forest) == len(rows)
        assert (forest.oldest, forest.newest) == (model.oldest, model.newest)
        assert forest.query() == model.query()
        for start in range(-1, 40, 3):
            assert forest.range_query(start, start + 5) == model.range_query(start, start + 5)
        assert forest.columns()[1].tolist() == model.columns()[1].tolist()
        newer = np.arange(100, 110)
        for each in (forest, model):
            each.bulk_insert(newer, [newer])
            each.evict(3)
        rows = [*rows, *newer.tolist()][3:]


@pytest.mark.parametrize("aggregates", [LARGE, SMALL], ids=["large", "small"])
@given(st.integers(0, 70), st.integers(0, 40), st.data())
def test_what_is_left_answers_as_if_it_had_come_alone(aggregates, rows, evicted, data):
    stored = Stored(aggregates, rows, min(evicted, rows))
    numbers = stored.image.numbers
    gone = data.draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    forest, lacks = stored.without(gone)
    assert lacks.tolist() == [number in gone for number in stored.image.ids.tolist()]
    check(forest, stored.layout, stored.rows(lacks))


def test_nothing_is_loaded_or_changed_where_nothing_is_lacking():
    stored = Stored(LARGE, 60, 5)
    stored.tier.calls.clear()
    image, lacks, refolded = stored.image.only(set(stored.image.numbers))
    assert image is stored.image
    assert not lacks.any()
    assert refolded == []
    stored.without([])
    assert stored.tier.calls == []


def test_only_blocks_whose_partials_are_damaged_are_read():
    stored = Stored(LARGE, 60, 0)
    blocks = len(stored.image.ids)
    partial = stored.image.nodes[1][blocks - 2]
    stored.tier.calls.clear()
    stored.without([partial])
    assert stored.tier.calls == [[stored.image.ids[blocks - 2]]]
    stored.tier.calls.clear()
    stored.without([stored.image.nodes[0][-1]])  # of a level above: it follows from the blocks' own
    assert stored.tier.calls == []


def test_without_all_its_blocks_a_forest_has_its_tail():
    for rows, evicted in ((66, 2), (64, 0), (66, 65)):
        stored = Stored(SMALL, rows, evicted)
        forest, lacks = stored.without(stored.image.ids.tolist())
        assert lacks.all()
        check(forest, stored.layout, stored.rows(lacks))
