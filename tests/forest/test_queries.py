"""Series, slides by predicate, changed aggregates: what reads a forest in other ways than a query."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import ArgMax, Collect, Count, First, Last, Max, Mean, Min, StdDev, Sum
from tests.support.forest_model import LAYOUTS, Bag, ForestLockstep, commuting_layout, histories, ordered_layout, same

AGGREGATES = {
    "sum": (Sum(), ["value"]),
    "max": (Max(), ["value"]),
    "std": (StdDev(), ["value"]),
    "mean": (Mean(), ["value"]),
    "n": (Count(), ["time"]),
    "where": (ArgMax("float64", "int64"), ["value", "time"]),
    "last": (Last(), ["value"]),
}


def filled(n, block=64, aggregates=AGGREGATES, seed=1):
    """A forest over n entries in n ticks or less, with equal times; and its columns."""
    random = np.random.default_rng(seed)
    times, values = np.sort(random.integers(0, n, n)), random.normal(size=n)
    forest = Forest(Layout({"value": "float64"}, aggregates, block))
    forest.bulk_insert(times, [values])
    return forest, times, values


def expect_series(forest, layout, columns, starts, stops):
    entries, answers = forest.series(starts, stops)
    times = columns[0]
    for i, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        a, b = np.searchsorted(times, [start, max(stop, start)]).tolist()
        assert entries[i] == b - a
        expected = layout.lower(b - a, layout.reduce_rows(columns, a, b))
        assert same([column[i] for column in answers], expected, 1e-9), (i, start, stop)


@pytest.mark.parametrize(
    ("start", "step", "width"),
    [
        (0, 10, 10),  # disjoint, touching
        (0, 10, 3),  # with gaps
        (0, 10, 95),  # overlapping
        (-500, 7, 600),  # from before the oldest to behind the newest
        (0, 100, 2000),  # wider than eight blocks
        (0, 900, 800),  # wide panes and gaps
        (0, 0, 50),  # the same one many times
        (10**6, 5, 5),  # all behind the newest
    ],
)
def test_series_equals_range_by_range(start, step, width):
    forest, times, values = filled(5000)
    starts = start + step * np.arange(60)
    layout = Layout({"value": "float64"}, AGGREGATES, 64)
    expect_series(forest, layout, [times, values], starts, starts + width)
    forest.evict(100)
    expect_series(forest, layout, [times[100:], values[100:]], starts, starts + width)


@given(st.lists(st.tuples(st.integers(-5, 400), st.integers(-3, 300)), max_size=20))
def test_series_takes_ranges_in_any_order_and_of_any_width(ranges):
    forest, times, values = filled(300, block=8)
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([width for _, width in ranges], np.int64)
    expect_series(forest, Layout({"value": "float64"}, AGGREGATES, 8), [times, values], starts, stops)


def test_series_of_nothing_has_the_answers_over_no_entries():
    forest = Forest(ordered_layout(8))
    entries, answers = forest.series(np.array([1, 2]), np.array([5, 5]))
    assert entries.tolist() == [0, 0]
    assert [column.tolist() for column in answers] == [[[], []], [0, 0], [0, 0], [None, None]]


def test_series_without_ranges():
    forest, _, _ = filled(10)
    nothing = np.empty(0, np.int64)
    entries, answers = forest.series(nothing, nothing)
    assert len(entries) == 0
    assert [len(column) for column in answers] == [0] * len(AGGREGATES)


def test_float_series_stay_float_columns():
    """A chart has no use for objects: only ranges without an answer make a column one of objects."""
    forest, _, _ = filled(100)
    _, (total, largest, *_) = forest.series(np.array([0, 50]), np.array([50, 100]))
    assert (total.dtype, largest.dtype) == (np.float64, np.float64)
    _, (total, largest, *_) = forest.series(np.array([0, 500]), np.array([50, 600]))
    assert (total.dtype, largest.dtype) == (np.float64, np.dtype(object))
    assert (total[1], largest[1]) == (0.0, None)


@pytest.mark.parametrize("block", [1, 16, 1024])
@pytest.mark.parametrize("most", [0, 1, 5, 15, 16, 17, 32, 150, 199, 200, 500])
def test_evict_while_finds_the_longest_prefix(block, most):
    for skip in (0, 1, 30):
        forest, times, _ = filled(200, block)
        forest.evict(skip)
        asked = []

        def holds(entries, partials, asked=asked):
            asked.append(entries)
            return entries <= most

        count = min(most, 200 - skip)
        last = times[skip + count - 1] if count else None
        assert forest.evict_while(holds) == (count, last)
        assert len(forest) == 200 - skip - count
        assert forest.oldest == (times[skip + count] if len(forest) else None)
        assert len(asked) <= 40, "O(log n) questions"
        if not most:
            assert asked == [1]
        forest.check_invariants(lambda monoid, a, b: same(a, b, 1e-9))


def test_evict_while_of_nothing_asks_nothing():
    assert Forest(ordered_layout(8)).evict_while(lambda entries, partials: pytest.fail("asked")) == (0, None)


@pytest.mark.parametrize("kind", LAYOUTS)
@given(steps=histories(), more=histories())
def test_relayout_computes_new_aggregates_from_stored_entries(kind, steps, more):
    lockstep = ForestLockstep(LAYOUTS[kind](3))
    lockstep.run(steps, check_every=5)
    lockstep.relayout(commuting_layout(3))
    lockstep.run([("evict", 0), *more], check_every=3)
    lockstep.relayout(ordered_layout(3))
    lockstep.check()
    lockstep.run(steps, check_every=4)


def test_relayout_keeps_what_it_has():
    """A partial that is there already is not computed again."""

    class Counted(Sum):
        reduced = 0

        def reduce(self, values):
            Counted.reduced += 1
            return super().reduce(values)

    def layout(**more):
        return Layout({"value": "float64"}, {"sum": (Counted(), ["value"]), **more}, 16)

    forest = Forest(layout())
    forest.bulk_insert(np.arange(1000), [np.ones(1000)])
    forest.query()
    before = Counted.reduced
    forest.relayout(layout(least=(Min(), ["value"])))
    assert forest.query() == [1000.0, 1.0]
    assert Counted.reduced - before <= 1, "only the tail"


def test_answers_that_were_given_do_not_change():
    forest = Forest(
        Layout({"value": "int64"}, {"all": (Collect("int64"), ["value"]), "first": (First("int64"), ["value"])}, 4)
    )
    seen = []
    for i in range(40):
        forest.insert(i, (i,))
        if i % 3 == 0:
            forest.evict()
        ranged = forest.range_totals(0, 100)[1]
        seen.extend((answer, repr(answer)) for answer in (forest.totals(), ranged, forest.query()))
    assert all(repr(answer) == before for answer, before in seen)


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
