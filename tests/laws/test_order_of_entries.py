"""Entries with equal times keep arrival order, and of equal extremes the first counts."""

import itertools

import numpy as np
import pytest

from sash_engine.monoids import M4, ArgMax, ArgMin, Collect, CollectDistinct, First, Last
from tests.support.aggregates import column

TIMES = np.array([10, 10, 10, 20, 20])
NAMES = column("string", ["a", "b", "c", "d", "e"])


def in_every_grouping(monoid, columns):
    """The fold of two and of three parts, wherever they are cut, by scalars and by columns."""
    n = len(columns[0])
    for cuts in itertools.chain(itertools.combinations(range(1, n), 1), itertools.combinations(range(1, n), 2)):
        partials = monoid.reduce_segments(columns, np.array([0, *cuts]))
        left = monoid.identity
        for partial in monoid.unpack(partials):
            left = monoid.combine(left, partial)
        yield monoid.lower(left)
        yield monoid.lower(monoid.fold(partials))
        if len(cuts) == 1:
            first, second = (tuple(c[i : i + 1] for c in partials) for i in (0, 1))
            (joined,) = monoid.unpack(monoid.combine_columns(first, second))
            yield monoid.lower(joined)


def extremes(kind, *values):
    return [column(kind, values), NAMES]


M4_OF_EQUAL = {
    "first": {"time": 10, "value": 5},
    "last": {"time": 30, "value": 1},
    "min": {"time": 20, "value": 1},
    "max": {"time": 10, "value": 9},
}


@pytest.mark.parametrize(
    ("monoid", "columns", "expected"),
    [
        (ArgMax("float64", "string"), extremes("float64", 1.0, 7.0, 7.0, 7.0, 2.0), "b"),
        (ArgMin("float64", "string"), extremes("float64", 5.0, 1.0, 1.0, 2.0, 1.0), "b"),
        (ArgMax("float64", "string"), extremes("float64", 9.0, 1.0, float("nan"), float("nan"), 9.0), "c"),
        (ArgMin("float64", "string"), extremes("float64", 0.0, 1.0, 2.0, float("nan"), float("nan")), "d"),
        (ArgMax("string", "string"), extremes("string", "x", "zz", "z", "zz", "a"), "b"),
        (ArgMin("int64", "string"), extremes("int64", 3, 2, 2, 2, 3), "b"),
        (First("string"), [NAMES], "a"),
        (Last("string"), [NAMES], "e"),
        (Collect("string"), [NAMES], ["a", "b", "c", "d", "e"]),
        (CollectDistinct("string"), [NAMES], ["a", "b", "c", "d", "e"]),
        (CollectDistinct("int64"), [np.array([2, 1, 2, 3, 1])], [2, 1, 3]),
        (M4("int64"), [np.array([5, 9, 1, 9, 1]), np.array([10, 10, 20, 20, 30])], M4_OF_EQUAL),
    ],
)
def test_the_order_of_entries_is_that_of_time_and_then_of_arrival(monoid, columns, expected):
    assert monoid.lower(monoid.reduce(columns)) == expected
    assert all(found == expected for found in in_every_grouping(monoid, columns))


def test_where_an_extreme_is_without_saying_what_to_return():
    where = ArgMax()
    assert where.types == ("float64", "int64")
    assert where.lower(where.reduce([np.array([1.0, 4.0, 4.0, 3.0, 2.0]), TIMES])) == 10
