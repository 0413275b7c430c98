"""What goes in: arrays of any kind, handed over and never written to; and values that are no ordinary numbers."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import ArgMax, Collect, Last, Max, Mean, Min, StdDev, Sum
from tests.support.forest_model import same

FLOATS = {
    "sum": (Sum(), ["value"]),
    "max": (Max(), ["value"]),
    "min": (Min(), ["value"]),
    "mean": (Mean(), ["value"]),
    "std": (StdDev(), ["value"]),
}


def forest_of(aggregates, block=8, **fields):
    return Forest(Layout(fields or {"value": "float64"}, aggregates, block))


def test_empty_single_and_emptied_again():
    forest = forest_of(FLOATS)
    nothing = [0.0, None, None, None, None]
    assert (len(forest), forest.oldest, forest.newest, forest.query()) == (0, None, None, nothing)
    assert forest.range_query(-5, 5) == (0, nothing)
    forest.bulk_insert(np.empty(0, np.int64), [np.empty(0)])
    assert (forest.evict(), forest.bulk_evict(10)) == (0, 0)
    forest.insert(7, (2.5,))
    assert (forest.oldest, forest.newest, forest.query()) == (7, 7, [2.5, 2.5, 2.5, 2.5, None])
    assert forest.evict(5) == 1
    assert (len(forest), forest.oldest, forest.newest, forest.query()) == (0, None, None, nothing)
    forest.insert(3, (1.0,))  # older than what was there before
    assert forest.range_query(3, 3) == (1, [1.0, 1.0, 1.0, 1.0, None])
    forest.check_invariants()


@pytest.mark.parametrize("block", [2, 8, 1024])
def test_read_only_and_strided_arrays(block):
    times = np.arange(3000)[::2]
    values = np.asfortranarray(np.arange(6000.0).reshape(1500, 4))[:, 1]
    times.flags.writeable = values.flags.writeable = False
    before = times.copy(), values.copy()
    forest = forest_of(FLOATS, block)
    for a, b in ((0, 500), (1000, 1500), (500, 1000), (700, 720)):
        forest.bulk_insert(times[a:b], [values[a:b]])
        forest.insert(int(times[a]), (0.5,))
    forest.evict(3)
    forest.check_invariants(lambda monoid, a, b: same(a, b))
    assert np.array_equal(times, before[0])
    assert np.array_equal(values, before[1])
    expected = values.sum() + values[700:720].sum() + 4 * 0.5 - values[0] - 0.5 - values[1]
    assert same(forest.query()[0], expected)


def test_what_the_caller_keeps_is_not_written_to_by_later_inserts():
    times, values = np.arange(1024), np.zeros(1024)
    forest = forest_of({"sum": (Sum(), ["value"])}, 1024)
    forest.bulk_insert(times, [values])
    for i in range(50):
        forest.insert(i * 17, (1.0,))
    forest.bulk_insert(np.arange(0, 1000, 9), [np.ones(112)])
    assert forest.query() == [162.0]
    assert not values.any()
    assert np.array_equal(times, np.arange(1024))


def test_strings_and_several_fields():
    forest = forest_of(
        {"names": (Collect("string"), ["name"]), "who": (ArgMax("float64", "string"), ["value", "name"])},
        4,
        value="float64",
        name="string",
    )
    names = np.array([f"n{i}" for i in range(20)], object)
    forest.bulk_insert(np.arange(20), [np.arange(20.0) % 7, names])
    forest.insert(5, (100.0, "late"))
    forest.bulk_insert(np.array([6, 2, 6]), [np.zeros(3), np.array(["x", "y", "z"], object)])
    forest.evict(2)
    assert forest.query() == [
        ["n2", "y", "n3", "n4", "n5", "late", "n6", "x", "z", *(f"n{i}" for i in range(7, 20))],
        "late",
    ]
    assert forest.range_query(6, 8) == (5, [["n6", "x", "z", "n7", "n8"], "n6"])
    forest.check_invariants()


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e308, -1e308, math.nan, math.inf, -math.inf, 2.0**54])


@pytest.mark.parametrize("block", [2, 8])
@given(values=st.lists(SPECIAL, min_size=1, max_size=40), keep=st.integers(1, 5))
def test_no_value_warns_or_outlives_its_entry(block, values, keep):
    """Warnings are errors here. What is left after the special ones have gone is as if they had never been there."""
    forest = forest_of(FLOATS, block)
    half = len(values) // 2
    forest.bulk_insert(np.arange(half), [np.array(values[:half], np.float64)])
    for i, value in enumerate(values[half:], half):
        forest.insert(i, (value,))
        forest.query()
    forest.bulk_insert(np.arange(0, len(values), 3), [np.array(values[::3])])
    forest.query()
    forest.range_query(1, len(values) - 2)
    forest.series(np.arange(len(values)), np.arange(len(values)) + 4)
    clean = [float(i) for i in range(20)]
    forest.bulk_insert(np.arange(100, 120), [np.array(clean)])
    forest.query()
    while len(forest) > keep:
        forest.evict()
        forest.query()
    expected = forest_of(FLOATS, 1024)
    expected.bulk_insert(np.arange(keep), [np.array(clean[-keep:])])
    assert same(forest.query(), expected.query())


def test_no_drift():
    """[2^54, 1, 1]: a window that subtracts would answer 0 or 2 when the first one has left."""
    forest = forest_of({"mean": (Mean(), ["value"]), "sum": (Sum(), ["value"])}, 2)
    for i, value in enumerate([2.0**54, 1.0, 1.0]):
        forest.insert(i, (value,))
        forest.query()
    forest.evict()
    assert forest.query() == [1.0, 2.0]


def test_times_at_the_ends_of_int64():
    first, last = -(2**63) + 1, 2**63 - 2
    forest = forest_of({"last": (Last("int64"), ["value"])}, 2, value="int64")
    forest.bulk_insert(np.array([last, 0, first, last]), [np.arange(4)])
    assert (forest.oldest, forest.newest, forest.query()) == (first, last, [3])
    assert forest.range_query(first, 0) == (2, [1])
    entries, (answers,) = forest.series(np.array([first, 1]), np.array([1, last]))
    assert (entries.tolist(), answers.tolist()) == ([2, 0], [1, None])
    assert forest.bulk_evict(0) == 2
    forest.check_invariants()


def test_memory_of_evicted_blocks_goes_with_later_writes():
    """held: 4,096 blocks, dropped at once; each later block frees some of them."""
    forest = forest_of({"sum": (Sum(), ["value"])}, 4)
    forest.bulk_insert(np.arange(40), [np.ones(40)])
    assert forest.evict(36) == 36
    assert forest.sweep(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(40, 60):
            forest.insert(i, (1.0,))
    assert not forest.sweep(0)
    assert forest.query() == [24.0]
