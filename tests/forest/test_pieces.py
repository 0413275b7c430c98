"""The pieces of a forest against its rows: they cover all entries in order, and are short at the new end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Collect
from tests.support.forest_model import Bag

STEPS = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 50)),
    st.tuples(st.just("bulk"), st.lists(st.integers(0, 50), max_size=40)),
    st.tuples(st.just("newer"), st.integers(1, 60)),
    st.tuples(st.just("evict"), st.integers(0, 30)),
    st.tuples(st.just("through"), st.integers(0, 50)),
    st.tuples(st.just("between"), st.integers(0, 60)),
    st.tuples(st.just("scattered"), st.integers(1, 30)),
)


def check(forest, block, monoid):
    counts, partials = forest.pieces(0)
    values, at, newer = forest.columns()[1], 0, 0
    for count, partial in zip(counts, partials, strict=True):
        assert partial == monoid.reduce([values[at : at + count]]), "it folds the next so many entries"
        at += count
    for count in reversed(counts):
        # Blocks have up to twice as many entries as they should.
        assert 1 <= count <= max(2 * newer / 5 + 1, 2 * block), f"{count} of {newer} newer ones: {counts}"
        if newer < block:
            assert count <= newer / 5 + 1, "a block's worth of the newest entries is cut at rows"
        newer += count
    assert newer == len(forest)


@pytest.mark.parametrize("block", [1, 2, 3, 8])
@pytest.mark.parametrize("monoid", [Collect("int64"), Bag("int64")], ids=["in order", "commutative"])
@given(st.lists(STEPS, max_size=12))
def test_pieces_are_the_entries(block, monoid, steps):
    forest, value, newest = Forest(Layout({"v": "int64"}, {"all": (monoid, ["v"])}, block)), 0, 50
    for step, what in steps:
        if step == "insert":
            forest.insert(what, (value,))
            value += 1
        elif step == "evict":
            forest.evict(what)
        elif step == "through":
            forest.bulk_evict(what)
        elif step == "between":
            forest.evict_between(what, what + 7)
        elif step == "scattered":  # deferred, where the aggregate commutes
            times = np.sort(np.arange(what) * 37 % (newest + 1))
            forest.bulk_insert(times, [np.arange(value, value + what)])
            value += what
        else:
            times = sorted(what) if step == "bulk" else list(range(newest, newest + what))
            newest = max([newest, *times])
            forest.bulk_insert(np.array(times, np.int64), [np.arange(value, value + len(times))])
            value += len(times)
        check(forest, block, monoid)
    forest.check_invariants()


def test_a_large_window_has_few_pieces():
    forest = Forest(Layout({"v": "float64"}, {}, 16, [(Collect(), ["v"])]))
    for first in range(0, 100_000, 1000):
        forest.bulk_insert(np.arange(first, first + 1000), [np.arange(1000.0)])
    counts, _ = forest.pieces(forest._layout.hidden[0])
    assert sum(counts) == 100_000
    assert len(counts) < 10 * np.log2(100_000)
