"""Series, slides by predicate, changed aggregates: what reads a forest in other ways than a query."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import ArgMax, Collect, Count, First, Last, Max, Mean, Min, StdDev, Sum
from tests.support.forest_model import LAYOUTS, ForestLockstep, commuting_layout, histories, ordered_layout, same

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
