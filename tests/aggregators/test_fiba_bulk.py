"""Bulk FiBA: every small history of bulk operations, random large ones, combine counts, and the free list."""

from __future__ import annotations

from functools import partial
from itertools import combinations_with_replacement, product
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators.btree_shape import Node
from sash_engine.aggregators.bulk_fiba import BulkFiBA
from sash_engine.monoids import Collect, Sum
from tests.support.aggregator_lockstep import BULK, SINGLE, WITNESSES, AggregatorLockstep, Counted, follow, histories

ARITIES = pytest.mark.parametrize("min_arity", [2, 4, 8])


def bulk_tree(min_arity):
    return partial(BulkFiBA, min_arity=min_arity)


# -------------------------------------------------------------------- histories


@ARITIES
@given(history=histories(*SINGLE, *BULK, *BULK), witness=st.sampled_from(sorted(WITNESSES)))
def test_random_histories(min_arity, history, witness):
    follow(AggregatorLockstep(bulk_tree(min_arity), WITNESSES[witness]()), history)


RUNS = st.builds(
    lambda start, stride, count: range(start, start + stride * count, stride),
    st.integers(-500, 500),
    st.integers(1, 7),
    st.integers(1, 400),
)


@ARITIES
@given(runs=st.lists(RUNS, min_size=1, max_size=4), cuts=st.lists(st.integers(-500, 1000), min_size=4, max_size=4))
def test_random_histories_of_tall_trees(min_arity, runs, cuts):
    pair = AggregatorLockstep(bulk_tree(min_arity))
    for times, cut in zip(runs, cuts, strict=False):
        pair.bulk_insert(times)
        pair.bulk_evict(cut)


# Bulks by what they are to the times that are there. Each mixes two or more of: before the oldest, after the
# youngest, between, already there, repeated inside the bulk.


def before_and_after(times):
    first, last = (times[0], times[-1]) if times else (0, 0)
    return [last + 1, first - 1, last + 2, first - 2, first - 1, last + 1]


def present_and_new(times):
    return [time + shift for time in times for shift in (0, 1)]


def present_only(times):
    return times + times[::-2]


def repeated_and_new(times):
    first, last = (times[0], times[-1]) if times else (0, 0)
    middle = (first + last) // 2
    return [middle, middle + 1, middle] * 3 + [last + 3] * 2 + [first - 3] * 2


def run_after(times):
    last = times[-1] if times else 0
    return [last + 2 * i for i in range(17)]


def run_before(times):
    first = times[0] if times else 0
    return [first - 2 * i for i in range(17)]


def everywhere(times):
    first, last = (times[0], times[-1]) if times else (0, 0)
    return list(range(first - 5, last + 6))


INSERTS = [
    before_and_after,
    present_and_new,
    present_only,
    repeated_and_new,
    run_after,
    run_before,
    everywhere,
]
EVICTS = ["first", "quarter", "half", "all but one", "all", "before", "between"]


def step(pair, action):
    times = pair.times
    if callable(action):
        pair.bulk_insert(action(times))
    elif times:
        places = {
            "first": times[0],
            "quarter": times[len(times) // 4],
            "half": times[len(times) // 2],
            "all but one": times[-2] if len(times) > 1 else times[0],
            "all": times[-1],
            "before": times[0] - 1,
            "between": times[len(times) // 3] + 1,
        }
        pair.bulk_evict(places[action])


@ARITIES
def test_every_short_history_of_bulks(min_arity):
    for length in (1, 2, 3):
        for actions in product([*INSERTS, *EVICTS], repeat=length):
            pair = AggregatorLockstep(bulk_tree(min_arity))
            pair.checked = False  # what comes before the last action was the last of a shorter history
            for action in (run_after, *actions[:-1]):
                step(pair, action)
            pair.checked = True
            step(pair, actions[-1])


@ARITIES
@pytest.mark.parametrize("insert", INSERTS)
def test_every_bulk_after_an_eviction_to_empty(min_arity, insert):
    for again in INSERTS:
        pair = AggregatorLockstep(bulk_tree(min_arity))
        for action in (everywhere, run_after, "all", insert, again, "all", insert, "half", again):
            step(pair, action)


@ARITIES
@pytest.mark.parametrize("size", [0, 1, 3, 4, 8])
def test_every_bulk_of_up_to_three_times(min_arity, size):
    """Trees of even times; every bulk over the times there, between, before and after, with repeats."""
    candidates = range(-1, 2 * size + 1)
    for width in range(1, 4):
        for bulk in combinations_with_replacement(candidates, width):
            pair = AggregatorLockstep(bulk_tree(min_arity))
            for time in range(0, 2 * size, 2):
                pair.window.insert(time, time)
                pair.oracle.insert(time, time)
            pair.bulk_insert(bulk[1:] + bulk[:1])


@ARITIES
@pytest.mark.parametrize("build", ["bulk", "single"])
@pytest.mark.parametrize("size", [1, 2, 7, 20, 45, 100])
def test_every_bulk_eviction(min_arity, build, size):
    for time in range(-1, size + 1):
        pair = AggregatorLockstep(bulk_tree(min_arity))
        if build == "bulk":
            pair.bulk_insert(range(size))
        else:
            for each in range(size):
                pair.window.insert(each, each)
                pair.oracle.insert(each, each)
        pair.bulk_evict(time)
        pair.bulk_evict(time + size // 3)
        pair.bulk_insert([time, time + 1, size // 2])


@ARITIES
def test_an_empty_bulk_and_a_lazy_one(min_arity):
    tree = BulkFiBA(Collect("int64"), min_arity=min_arity)
    tree.bulk_insert([])
    assert (len(tree), tree.query(), tree.bulk_evict(10)) == (0, [], 0)
    tree.bulk_insert((time, time) for time in (3, 1, 2))
    assert tree.query() == [1, 2, 3]


# -------------------------------------------------------------------- cost


@ARITIES
def test_bulk_eviction_costs_the_logarithm_of_what_it_evicts(min_arity):
    """The costs for m = 1, 4, …, 4^5 out of 2^13 entries; they grow by at most a level's work per 4 x."""
    level = 6 * min_arity * 2 / log2(min_arity)
    for size in (2**11, 2**13):
        for power in range(6):
            counted = Counted(bulk_tree(min_arity))
            counted.window.bulk_insert((time, 1) for time in range(size))
            costs = []
            for _ in range(min(20, size // 4**power // 2)):
                costs.append(counted.combines("bulk_evict", counted.window.oldest + 4**power - 1))
                assert len(counted.window) == size - 4**power * len(costs)
            assert sum(costs) / len(costs) < 4 * min_arity + level * power


@ARITIES
def test_bulk_insertion_costs_less_per_entry_the_larger_it_is(min_arity):
    """m sorted entries, in runs at distance d: O(m log(d / m)) combines, so about one per entry in the end."""
    per_entry = []
    for bulk in (1, 16, 256, 4096):
        counted = Counted(bulk_tree(min_arity))
        counted.window.bulk_insert((4 * time, 1) for time in range(2**13))
        start = 4 * (2**13 - bulk // 2)
        pairs = [(start + 4 * i + 1, 1) for i in range(bulk)]
        per_entry.append(counted.combines("bulk_insert", pairs) / bulk)
    assert per_entry == sorted(per_entry, reverse=True)
    assert per_entry[-1] < 2.5


@ARITIES
def test_scattered_bulk_insertion_costs_the_logarithm_of_the_gap(min_arity):
    size = 2**14
    for bulk in (2**4, 2**8, 2**12):
        counted = Counted(bulk_tree(min_arity))
        counted.window.bulk_insert((4 * time, 1) for time in range(size))
        pairs = [(4 * i * (size // bulk) + 1, 1) for i in range(bulk)]
        cost = counted.combines("bulk_insert", pairs) / bulk
        assert cost < 6 * min_arity + 4 * min_arity * log2(size / bulk) / log2(min_arity)


# -------------------------------------------------------------------- the free list


@ARITIES
def test_evicted_nodes_are_used_again(min_arity, monkeypatch):
    made = 0
    original = Node.__init__

    def counting(self, height):
        nonlocal made
        made += 1
        original(self, height)

    monkeypatch.setattr(Node, "__init__", counting)
    tree = BulkFiBA(Sum("int64"), min_arity=min_arity)
    tree.bulk_insert((time, 1) for time in range(2000))
    after_build = made
    for start in range(2000, 20_000, 1000):
        tree.bulk_evict(start - 1001)
        tree.bulk_insert((time, 1) for time in range(start, start + 1000))
        tree.check_invariants()
    assert made <= after_build * 1.2
    assert tree.query() == len(tree) == 2000


def test_an_eviction_puts_whole_subtrees_on_the_free_list():
    """Evicting half of 2^14 entries frees thousands of nodes, but puts only a few per level on the list."""
    tree = BulkFiBA(Sum("int64"), min_arity=4)
    tree.bulk_insert((time, 1) for time in range(2**14))
    assert tree.bulk_evict(2**13) == 2**13 + 1
    assert 0 < len(tree._free) < 8 * 10
    tree.check_invariants()


BREAKS = {
    "size": lambda tree: setattr(tree._root.children[1], "size", 1),
    "free list": lambda tree: tree._free.append(tree._root.children[0]),
    "finger": lambda tree: setattr(tree, "_right_finger", tree._left_finger),
}


@pytest.mark.parametrize("invariant", BREAKS)
def test_check_invariants_names_what_is_broken(invariant):
    tree = BulkFiBA(Sum("int64"), min_arity=2)
    tree.bulk_insert((time, time) for time in range(100))
    BREAKS[invariant](tree)
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        tree.check_invariants()
