"""The augmented B-tree, and what the finger trees have from it: every small shape, and random histories."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators.base import Capability
from sash_engine.aggregators.btree import BTree
from sash_engine.aggregators.bulk_fiba import BulkFiBA
from sash_engine.aggregators.fiba import FiBA
from sash_engine.errors import FailedPrecondition, InvalidArgument
from sash_engine.monoids import Collect, Sum, Variance
from tests.support.aggregator_lockstep import SINGLE, WITNESSES, AggregatorLockstep, Counted, follow, histories

TREES = [
    pytest.param(partial(tree, min_arity=arity), id=f"{tree.algorithm}-{arity}")
    for tree in (BTree, FiBA, BulkFiBA)
    for arity in (2, 4, 8)
]


@pytest.mark.parametrize("make", TREES)
@given(history=histories(*SINGLE), witness=st.sampled_from(sorted(WITNESSES)))
def test_random_histories(make, history, witness):
    follow(AggregatorLockstep(make, WITNESSES[witness]()), history)


@pytest.mark.parametrize("tree", [BTree, FiBA])
def test_every_order_of_inserts(tree):
    """Six times, in all 720 orders: leaves split at every place, and the root grows."""
    for order in permutations(range(6)):
        pair = AggregatorLockstep(partial(tree, min_arity=2))
        pair.insert(*order)


@pytest.mark.parametrize("tree", [BTree, FiBA])
@pytest.mark.parametrize("build", [range(11), range(10, -1, -1), [5, 0, 10, 1, 9, 2, 8, 3, 7, 4, 6]])
def test_every_pair_of_evictions(tree, build):
    """Every two entries of a tree of three levels, wherever they are: in a leaf, on a spine, in the root."""
    for first, second in permutations(range(11), 2):
        pair = AggregatorLockstep(partial(tree, min_arity=2))
        for time in build:
            pair.window.insert(time, time)
            pair.oracle.insert(time, time)
        pair.evict(first)
        pair.evict(second)


@pytest.mark.parametrize("make", TREES)
def test_down_to_empty_and_up_again(make):
    for evictions in ([None] * 40, range(39, -1, -1), sorted(range(40), key=lambda time: time * 17 % 40)):
        pair = AggregatorLockstep(make)
        for _ in range(2):
            pair.insert(*range(40))
            for time in evictions:
                pair.evict(time)
            assert len(pair.window) == 0


@pytest.mark.parametrize("make", TREES)
def test_every_range(make):
    pair = AggregatorLockstep(make)
    pair.insert(*range(0, 60, 2))
    pair.insert(*range(0, 60, 4))
    for start in range(-1, 61):
        for end in range(-1, 61):
            assert pair.window.range_query(start, end) == pair.oracle.range_query(start, end)


@pytest.mark.parametrize("make", TREES)
def test_an_empty_tree_answers_and_refuses(make):
    tree = make(Collect("int64"))
    assert (tree.query(), tree.range_query(-5, 5)) == ([], [])
    assert (len(tree), tree.oldest, tree.youngest) == (0, None, None)
    for time in (None, 0):
        with pytest.raises(FailedPrecondition):
            tree.evict(time)


@pytest.mark.parametrize("make", TREES)
def test_a_call_that_raises_changes_nothing(make):
    class Picky(Sum):
        def lift(self, value):
            if value < 0:
                raise ValueError("negative")
            return value

    tree = make(Picky("int64"))
    tree.insert(1, 1)
    with pytest.raises(ValueError, match="negative"):
        tree.insert(2, -1)
    with pytest.raises(FailedPrecondition, match="time 7"):
        tree.evict(7)
    if isinstance(tree, BulkFiBA):
        with pytest.raises(ValueError, match="negative"):
            tree.bulk_insert([(1, 5), (3, -1)])
    tree.check_invariants()
    assert (tree.query(), len(tree)) == (1, 1)


@pytest.mark.parametrize("make", TREES)
def test_floats_are_grouped_alike_however_a_total_came_about(make):
    """An append that extends the finger's total must round as recomputing it does: `check_invariants` compares."""
    tree = make(Variance())
    for time in range(150):
        tree.insert(time - time % 4 // 3, 1 / (time + 3))
        if time % 3 == 0:
            tree.evict()
        tree.check_invariants()


def test_min_arity_below_two_is_refused():
    with pytest.raises(InvalidArgument, match="min_arity") as error:
        BTree(Sum(), min_arity=1)
    assert error.value.field == "min_arity"


def test_capabilities():
    anywhere = Capability.INSERT_ANYWHERE | Capability.EVICT_ANYWHERE
    assert BTree.capabilities == FiBA.capabilities == Capability.TIMED | anywhere | Capability.RANGE_QUERY
    assert BulkFiBA.capabilities == FiBA.capabilities | Capability.BULK_INSERT | Capability.BULK_EVICT


BREAKS = {
    "arity": lambda tree: tree._root.children[0].times.clear(),
    "order": lambda tree: tree._root.times.__setitem__(0, -100),
    "balance": lambda tree: setattr(tree._root.children[0], "height", 7),
    "parent": lambda tree: setattr(tree._root.children[-1], "parent", None),
    "partial": lambda tree: tree._root.children[1].partials.__setitem__(0, -1),
    "size": lambda tree: setattr(tree, "_size", 5),
}


@pytest.mark.parametrize("invariant", BREAKS)
@pytest.mark.parametrize("make", TREES)
def test_check_invariants_names_what_is_broken(make, invariant):
    tree = make(Sum("int64"))
    for time in range(200):
        tree.insert(time, time)
    tree.check_invariants()
    BREAKS[invariant](tree)
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        tree.check_invariants()


def test_every_operation_costs_the_logarithm_of_the_size():
    """The baseline: even in order, an insert redoes all nodes up to the root."""
    costs = []
    for size in (2**6, 2**9, 2**12):
        counted = Counted(partial(BTree, min_arity=2))
        for time in range(size):
            counted.window.insert(time, 1)
        costs.append(sum(counted.combines("insert", size + i, 1) + counted.combines("evict") for i in range(200)) / 200)
    assert costs[1] - costs[0] > 8
    assert costs[2] - costs[1] > 8
    assert costs[2] < 12 * 6
