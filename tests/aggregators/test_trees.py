"""The augmented B-tree and the finger trees, single and bulk: small histories, random ones, and costs."""

from functools import partial
from itertools import combinations_with_replacement, permutations, product
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators.btree import BTree
from sash_engine.aggregators.btree_shape import Node
from sash_engine.aggregators.bulk_fiba import BulkFiBA
from sash_engine.aggregators.fiba import FiBA
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Collect, Sum
from tests.support.aggregator_lockstep import BULK, SINGLE, WITNESSES, AggregatorLockstep, Counted, follow, histories
from tests.support.profile import THOROUGH

LARGER = 4 if THOROUGH else 1
"""How many times larger trees are in `make soak`, where combines are counted."""

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
        pair.begin(build)
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


def test_min_arity_below_two_is_refused():
    with pytest.raises(InvalidArgument, match="min_arity") as error:
        BTree(Sum(), min_arity=1)
    assert error.value.field == "min_arity"


def test_every_operation_costs_the_logarithm_of_the_size():
    """The baseline: even in order, an insert redoes all nodes up to the root."""
    costs = []
    for size in (2**6, 2**9, 2**12):
        counted = Counted(partial(BTree, min_arity=2), range(size))
        costs.append(sum(counted.combines("insert", size + i, 1) + counted.combines("evict") for i in range(200)) / 200)
    assert costs[1] - costs[0] > 8
    assert costs[2] - costs[1] > 8
    assert costs[2] < 12 * 6


ARITIES = pytest.mark.parametrize("min_arity", [2, 4, 8])
STEP = 2**20  # between the times of entries, so that there is room for others


def window_of(size, min_arity):
    return Counted(partial(FiBA, min_arity=min_arity), range(0, size * STEP, STEP))


def insert_cost(counted, distance, rounds=300 if THOROUGH else 150):
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


@ARITIES
def test_in_order_cost_does_not_depend_on_the_size(min_arity):
    costs = []
    for size in (2**6, 2**9, 2**13 if THOROUGH else 2**12):
        counted = window_of(size, min_arity)
        youngest = counted.window.youngest
        inserts = [counted.combines("insert", youngest + (i + 1) * STEP, 1) for i in range(1000)]
        evicts = [counted.combines("evict") for _ in range(1000 if size > 1000 else 30)]
        costs.append((sum(inserts) / len(inserts), sum(evicts) / len(evicts)))
    for insert, evict in costs:
        assert insert < 8
        assert evict < 2.5 * min_arity + 2
    assert abs(costs[1][0] - costs[2][0]) < 0.1 * costs[2][0]


@ARITIES
def test_most_appends_take_one_combine(min_arity):
    counted = window_of(1000, min_arity)
    youngest = counted.window.youngest
    costs = [counted.combines("insert", youngest + i, 1) for i in range(1, 1001)]
    assert costs.count(1) >= 1000 * (min_arity - 2) // min_arity
    # An equal time redoes the finger, so that the entry's partial is old ∘ new, and grouped as everywhere else.
    assert counted.combines("insert", counted.window.youngest, 1) <= 2 * min_arity + 1


@ARITIES
def test_cost_grows_with_the_logarithm_of_the_distance_not_of_the_size(min_arity):
    small, large = window_of(LARGER * 2**10, min_arity), window_of(LARGER * 2**13, min_arity)
    height = 4 * min_arity / log2(min_arity)  # combines on a level, per doubling of the distance
    for distance in (1, 2, 8, 32, 128):
        in_small, in_large = insert_cost(small, distance), insert_cost(large, distance)
        assert in_large < 6 * min_arity + height * log2(distance)
        assert in_large < in_small + 4 * min_arity  # one level, at most: where the distance falls in it differs
    assert insert_cost(large, 4000) > insert_cost(large, 1) + min_arity * 2


@ARITIES
def test_the_oldest_end_is_as_cheap(min_arity):
    """An insert before the oldest entry climbs from the left finger."""
    counted = window_of(LARGER * 2**11, min_arity)
    costs = [counted.combines("insert", -time, 1) for time in range(1, 500)]
    assert sum(costs) / len(costs) < 4 * min_arity + 4
    height = 4 * min_arity / log2(min_arity)
    for distance in (1, 10, 100, 1000):
        costs = [counted.combines("evict", time * STEP) for time in range(distance, distance + 9)]
        assert sum(costs) / len(costs) < 6 * min_arity + height * log2(distance + 500)


def test_query_takes_two_combines():
    counted = window_of(5000, 4)
    assert counted.combines("query") == 2


@ARITIES
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


# -------------------------------------------------------------------- histories


@ARITIES
@given(history=histories(*SINGLE, *BULK, *BULK), witness=st.sampled_from(sorted(WITNESSES)))
def test_random_histories_of_bulks(min_arity, history, witness):
    follow(AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity), WITNESSES[witness]()), history)


RUNS = st.builds(
    lambda start, stride, count: range(start, start + stride * count, stride),
    st.integers(-500, 500),
    st.integers(1, 7),
    st.integers(1, 400),
)


@ARITIES
@given(runs=st.lists(RUNS, min_size=1, max_size=4), cuts=st.lists(st.integers(-500, 1000), min_size=4, max_size=4))
def test_random_histories_of_bulks_of_tall_trees(min_arity, runs, cuts):
    pair = AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity))
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


def do(pair, action):
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
    """Of three bulks where nodes are smallest, so that most of them split and merge; else of two."""
    for length in (1, 2, 3) if min_arity == 2 else (1, 2):
        for actions in product([*INSERTS, *EVICTS], repeat=length):
            pair = AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity))
            pair.checked = False  # what comes before the last action was the last of a shorter history
            for action in (run_after, *actions[:-1]):
                do(pair, action)
            pair.checked = True
            do(pair, actions[-1])


@ARITIES
@pytest.mark.parametrize("insert", INSERTS)
def test_every_bulk_after_an_eviction_to_empty(min_arity, insert):
    for again in INSERTS:
        pair = AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity))
        for action in (everywhere, run_after, "all", insert, again, "all", insert, "half", again):
            do(pair, action)


@ARITIES
@pytest.mark.parametrize("size", [0, 1, 3, 4, 8])
def test_every_bulk_of_up_to_three_times(min_arity, size):
    """Trees of even times; every bulk over the times there, between, before and after, with repeats."""
    candidates = range(-1, 2 * size + 1)
    for width in range(1, 4):
        for bulk in combinations_with_replacement(candidates, width):
            pair = AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity))
            pair.begin(range(0, 2 * size, 2))
            pair.bulk_insert(bulk[1:] + bulk[:1])


@ARITIES
@pytest.mark.parametrize("build", ["bulk", "single"])
@pytest.mark.parametrize("size", [1, 2, 7, 20, 45, 100])
def test_every_bulk_eviction(min_arity, build, size):
    for time in range(-1, size + 1):
        pair = AggregatorLockstep(partial(BulkFiBA, min_arity=min_arity))
        if build == "bulk":
            pair.bulk_insert(range(size))
        else:
            pair.begin(range(size))
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
    """The costs for m = 1, 4, …, 4^5 out of 2^11 entries; they grow by at most a level's work per 4 x."""
    level = 6 * min_arity * 2 / log2(min_arity)
    for size, powers in ((LARGER * 2**9, 6 if THOROUGH else 5), (LARGER * 2**11, 6)):
        for power in range(powers):
            counted = Counted(partial(BulkFiBA, min_arity=min_arity))
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
    for bulk in (1, 16, 256, LARGER * 1024):
        counted = Counted(partial(BulkFiBA, min_arity=min_arity))
        counted.window.bulk_insert((4 * time, 1) for time in range(LARGER * 2**11))
        start = 4 * (LARGER * 2**11 - bulk // 2)
        pairs = [(start + 4 * i + 1, 1) for i in range(bulk)]
        per_entry.append(counted.combines("bulk_insert", pairs) / bulk)
    assert per_entry == sorted(per_entry, reverse=True)
    assert per_entry[-1] < 2.5


@ARITIES
def test_scattered_bulk_insertion_costs_the_logarithm_of_the_gap(min_arity):
    size = LARGER * 2**12
    for bulk in (2**4, 2**8, 2**12) if THOROUGH else (2**4, 2**7, 2**10):
        counted = Counted(partial(BulkFiBA, min_arity=min_arity))
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
