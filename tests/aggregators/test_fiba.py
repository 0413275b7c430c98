"""FiBA's fingers and spines, and what they save. Correctness over histories: test_btree.py and test_fiba_bulk.py."""

from __future__ import annotations

from functools import partial
from math import log2

import pytest

from sash_engine.aggregators.fiba import FiBA
from sash_engine.monoids import Collect, Sum
from tests.support.aggregator_lockstep import Counted

STEP = 2**20  # between the times of entries, so that there is room for others


def window_of(size, min_arity):
    counted = Counted(partial(FiBA, min_arity=min_arity))
    for time in range(size):
        counted.window.insert(time * STEP, 1)
    return counted


def insert_cost(counted, distance, rounds=300):
    """Average combines of an insert `distance` entries before the youngest, while the window slides."""
    total = 0
    for _ in range(rounds):
        youngest = counted.window.youngest
        counted.window.insert(youngest + STEP, 1)
        counted.window.evict()
        time = youngest + STEP - distance * STEP + 1
        total += counted.combines("insert", time, 1)
        counted.window.evict(time)
    return total / rounds


@pytest.mark.parametrize("min_arity", [2, 4, 8])
def test_in_order_cost_does_not_depend_on_the_size(min_arity):
    costs = []
    for size in (2**6, 2**9, 2**13):
        counted = window_of(size, min_arity)
        youngest = counted.window.youngest
        inserts = [counted.combines("insert", youngest + (i + 1) * STEP, 1) for i in range(1000)]
        evicts = [counted.combines("evict") for _ in range(1000 if size > 1000 else 30)]
        costs.append((sum(inserts) / len(inserts), sum(evicts) / len(evicts)))
    for insert, evict in costs:
        assert insert < 8
        assert evict < 2.5 * min_arity + 2
    assert abs(costs[1][0] - costs[2][0]) < 0.1 * costs[2][0]


@pytest.mark.parametrize("min_arity", [2, 4, 8])
def test_most_appends_take_one_combine(min_arity):
    counted = window_of(1000, min_arity)
    youngest = counted.window.youngest
    costs = [counted.combines("insert", youngest + i, 1) for i in range(1, 1001)]
    assert costs.count(1) >= 1000 * (min_arity - 2) // min_arity
    # An equal time redoes the finger, so that the entry's partial is old ∘ new, and grouped as everywhere else.
    assert counted.combines("insert", counted.window.youngest, 1) <= 2 * min_arity + 1


@pytest.mark.parametrize("min_arity", [2, 4, 8])
def test_cost_grows_with_the_logarithm_of_the_distance_not_of_the_size(min_arity):
    small, large = window_of(2**12, min_arity), window_of(2**15, min_arity)
    height = 4 * min_arity / log2(min_arity)  # combines on a level, per doubling of the distance
    for distance in (1, 2, 8, 32, 128):
        in_small, in_large = insert_cost(small, distance), insert_cost(large, distance)
        assert in_large < 6 * min_arity + height * log2(distance)
        assert in_large < in_small + 4 * min_arity  # one level, at most: where the distance falls in it differs
    assert insert_cost(large, 4000) > insert_cost(large, 1) + min_arity * 2


@pytest.mark.parametrize("min_arity", [2, 4, 8])
def test_the_oldest_end_is_as_cheap(min_arity):
    """An insert before the oldest entry climbs from the left finger."""
    counted = window_of(2**13, min_arity)
    costs = [counted.combines("insert", -time, 1) for time in range(1, 500)]
    assert sum(costs) / len(costs) < 4 * min_arity + 4
    height = 4 * min_arity / log2(min_arity)
    for distance in (1, 10, 100, 1000):
        costs = [counted.combines("evict", time * STEP) for time in range(distance, distance + 9)]
        assert sum(costs) / len(costs) < 6 * min_arity + height * log2(distance + 500)


def test_query_takes_two_combines():
    counted = window_of(5000, 4)
    assert counted.combines("query") == 2


@pytest.mark.parametrize("min_arity", [2, 4, 8])
def test_a_range_near_the_youngest_entry_costs_the_logarithm_of_its_distance(min_arity):
    counted = window_of(2**14, min_arity)
    youngest = counted.window.youngest
    near = counted.combines("range_query", youngest - 50 * STEP, youngest - 20 * STEP)
    far = counted.combines("range_query", 10 * STEP, youngest - 10 * STEP)
    assert near < 4 * min_arity * log2(50) + 8
    assert near < far
    assert far < 8 * min_arity * 14 / log2(min_arity)


def test_the_drawing_of_the_module():
    """Appending touches the right finger only; a change in the middle leaves the root and the left spine alone."""
    tree = FiBA(Collect("int64"), min_arity=2)
    for time in range(1, 15):
        tree.insert(time, time)
    root, left = tree._root, tree._left_finger.total
    before = root.total
    tree.insert(15, 15)
    tree.insert(13, 99)
    tree.check_invariants()
    assert tree._root is root
    assert root.total is before
    assert tree._left_finger.total is left


BREAKS = {
    "finger": lambda tree: setattr(tree, "_left_finger", tree._root),
    "spine": lambda tree: setattr(tree._root.children[0], "left", False),
    "partial": lambda tree: setattr(tree._right_finger, "total", -1),
}


@pytest.mark.parametrize("invariant", BREAKS)
def test_check_invariants_names_what_is_broken(invariant):
    tree = FiBA(Sum("int64"), min_arity=2)
    for time in range(100):
        tree.insert(time, time)
    BREAKS[invariant](tree)
    with pytest.raises(AssertionError, match=f"^({invariant}|partial): "):
        tree.check_invariants()
