"""Numbers that are known: cancellation, exact integers, NaN and inf that leave, and independent references."""

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import MaxCount, MinCount, catalogue
from tests.support.aggregates import every_case, label

NAN, INF = math.nan, math.inf
FLOATS = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=2, max_size=40)


def of(function, *types, **parameters):
    return catalogue()[function](*types, **parameters)


def answer(function, values, *types, **parameters):
    """The answer over one column (and the times 0, 1, 2, … where it reads them)."""
    monoid = of(function, *types, **parameters)
    columns = [np.asarray(values), np.arange(len(values))][: len(monoid.reads)]
    return monoid.lower(monoid.reduce(columns))


# -------------------------------------------------------------------- cancellation


def test_a_huge_value_leaves_no_trace_in_the_mean():
    mean = of("mean")
    suffixes = mean.scan_suffix([np.array([2.0**54, 1.0, 1.0])])
    assert mean.lower(suffixes[1]) == 1.0
    assert mean.lower(mean.combine(mean.lift(1.0), mean.lift(1.0))) == 1.0


def spread_in_every_way(function, column):
    """The same answer by reduction, by ragged and by even segments, by suffixes and one by one."""
    monoid = of(function)
    n = len(column)
    yield monoid.reduce([column])
    for starts in (np.array([0, n // 2]), np.array([0, n // 3 + 1]), np.arange(0, n, 8)):
        yield monoid.fold(monoid.reduce_segments([column], starts))
    yield monoid.scan_suffix([column])[0]
    total = monoid.identity
    for value in column.tolist():
        total = monoid.combine(total, monoid.lift(value))
    yield total


def exact_variance(column):
    """Of the numbers that the floats are, without rounding."""
    exact = [Fraction(x) for x in column.tolist()]
    mean = sum(exact) / len(exact)
    return sum((x - mean) ** 2 for x in exact) / (len(exact) - 1)


@pytest.mark.parametrize("offset", [1e3, -1e9, 1e12, 1e15, 4e15])
@pytest.mark.parametrize("n", [2, 3, 64, 1025])
def test_moments_of_a_column_are_right_to_the_last_digits_however_far_it_is_from_zero(offset, n):
    column = offset + np.random.default_rng(n).normal(size=n) * 2
    small = column - offset  # exact, as floats of nearly one size are
    variance, mean = float(exact_variance(column)), float(sum(map(Fraction, column.tolist())) / n)
    assert answer("variance", column) == pytest.approx(variance, rel=1e-12)
    assert of("variance").reduce([column])[1] == pytest.approx(mean, rel=2.0**-52, abs=0)
    for function in ("skewness", "kurtosis"):
        assert answer(function, column) == pytest.approx(answer(function, small), rel=1e-9, abs=1e-9)
    for function in ("covariance", "correlation"):
        monoid = of(function)
        both = [monoid.lower(monoid.reduce([each, each[::-1].copy()])) for each in (column, small)]
        assert both[0] == pytest.approx(both[1], rel=1e-9, abs=1e-9)
    for function in ("variance", "covariance", "linear_regression", "kurtosis"):
        monoid = of(function)
        columns = [column, column[::-1].copy()][: len(monoid.reads)]
        for starts in (np.arange(0, n, 2), np.array([0, n // 3 + 1])[: n - 1]):
            parts = monoid.reduce_segments(columns, starts)
            for i, (a, b) in enumerate(itertools.pairwise([*starts.tolist(), n])):
                alone = monoid.reduce([each[a:b] for each in columns])
                assert monoid.take(parts, i)[2:] == pytest.approx(alone[2:], rel=1e-9, abs=1e-9 * (b - a))


@given(
    values=st.lists(st.floats(-100, 100), min_size=2, max_size=40),
    offset=st.sampled_from([1e6, -1e9, 1e12, 1e14, 1e15, 8e15]),
)
def test_variance_is_off_by_no_more_than_the_rounding_of_the_means_that_were_joined(values, offset):
    column = offset + np.array(values)
    exact = exact_variance(column)
    if not exact:
        return
    off = len(column) * 2.0**-53 * abs(offset) * 1.01 / math.sqrt(exact)
    monoid = of("variance")
    for partial in spread_in_every_way("variance", column):
        assert abs(Fraction(monoid.lower(partial)) - exact) <= exact * Fraction(3 * off + off * off + 1e-12)


@pytest.mark.parametrize(("offset", "error"), [(1e6, 1e-10), (1e9, 1e-7), (1e12, 1e-4)])
def test_variance_of_a_window_that_is_asked_after_each_entry_is_as_right_as_its_page_says(offset, error):
    column = offset + np.random.default_rng(7).normal(size=1500)
    forest = Forest(Layout({"value": "float64"}, {"variance": (of("variance"), ["value"])}))
    for time, value in enumerate(column.tolist()):
        forest.insert(time, (value,))
        forest.query()
    assert forest.query()[0] == pytest.approx(float(exact_variance(column)), rel=error)


@pytest.mark.parametrize("value", [0.1, 1e9 / 3, -1e-7, 1e300, 0.0, -0.0, 5e-324])
@pytest.mark.parametrize("n", [2, 3, 1000, 1024, 5000])
def test_equal_values_have_no_spread_at_all(value, n):
    column = np.full(n, value)
    for partial in spread_in_every_way("stddev_population", column) if n < 5000 else [of("stddev").reduce([column])]:
        assert of("stddev_population").lower(partial) == 0.0
        assert of("skewness").lower((*partial, 0.0)) is None


# -------------------------------------------------------------------- integers


def test_integer_sums_pass_two_to_the_63():
    column = np.full(2048, 2**63 - 1)
    total = of("sum", "int64")
    assert total.lower(total.reduce([column])) == 2048 * (2**63 - 1)
    parts = total.reduce_segments([column], np.array([0, 1000]))
    assert total.lower(total.fold(parts)) == 2048 * (2**63 - 1)
    assert total.lower(total.reduce([np.full(2048, -(2**63))])) == -(2**74)


def test_integer_means_are_rounded_once():
    assert answer("mean", [2**62 + 1, -(2**62), 0, 0], "int64") == 0.25
    assert answer("mean", [2**63 - 1] * 3, "int64") == float(2**63 - 1)


@pytest.mark.parametrize("function", ["min", "max", "first", "last"])
def test_integers_are_not_rounded(function):
    assert answer(function, [2**53 + 1], "int64") == 2**53 + 1


def test_integer_range_and_columns_of_it():
    assert answer("range", [2**63 - 1, -(2**63)], "int64") == 2**64 - 1
    monoid = of("range", "int64")
    partials = monoid.pack([(-(2**63), 2**63 - 1), (3, 3)])
    assert monoid.lower_columns(partials).tolist() == [2**64 - 1, 0]


# -------------------------------------------------------------------- NaN, inf, -0.0, nothing, one


def test_nan_rules():
    column = [1.0, NAN, 3.0, NAN]
    for function in ("sum", "mean", "min", "max", "range", "variance", "stddev", "skewness", "geometric_mean"):
        assert math.isnan(answer(function, column)), function
    assert answer("min_count", column) == answer("max_count", column) == 2
    assert answer("arg_min", column) == answer("arg_max", column) == 1
    assert answer("histogram", column, bounds=[2]) == {"bounds": [2.0], "counts": [1, 1], "nan": 2}
    found = answer("collect_distinct", [NAN, 1.0, NAN, -0.0, 0.0])
    assert math.isnan(found[0])
    assert found[1:] == [1.0, 0.0]
    assert answer("quantile", [NAN, 1.0, 2.0, NAN], q=[0.5, 1.0]) == [1.0, 2.0]
    assert answer("quantile", [NAN]) is None
    run = answer("longest_increasing_run", [1.0, 2.0, NAN, 3.0, 4.0, 5.0])
    assert run == {"length": 3, "start": 3, "end": 5}


def test_infinities_are_values():
    assert answer("sum", [INF, 1.0]) == answer("mean", [INF, 1.0]) == answer("max", [INF, 1.0]) == INF
    assert math.isnan(answer("sum", [INF, -INF]))
    assert math.isnan(answer("variance", [INF, 1.0]))
    assert answer("range", [-INF, 1.0]) == INF
    assert answer("arg_max", [1.0, INF, INF]) == 1
    assert answer("histogram", [-INF, INF], bounds=[0, 1])["counts"] == [1, 0, 1]


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e300])
@pytest.mark.parametrize(
    "function", ["sum", "mean", "variance", "kurtosis", "linear_slope", "min", "max", "relative_variation"]
)
def test_what_has_left_the_window_is_forgotten(function, bad):
    monoid = of(function)
    column = np.array([bad, 1.0, 4.0, 2.0, 8.0])
    columns = [column, np.arange(5)][: len(monoid.reads)]
    with_it = monoid.scan_suffix(columns)
    without = monoid.reduce([c[1:] for c in columns])
    assert monoid.lower(with_it[1]) == pytest.approx(monoid.lower(without), rel=1e-14)
    assert math.isfinite(monoid.lower(without))


def test_negative_zero_equals_zero():
    assert answer("min_count", [0.0, -0.0, 1.0]) == 2
    assert answer("arg_max", [-0.0, 0.0]) == answer("arg_min", [0.0, -0.0]) == 0
    assert answer("geometric_mean", [-0.0, 4.0]) == 0.0
    assert answer("distinct_count", [0.0, -0.0]) == 1
    assert answer("longest_increasing_run", [-0.0, 0.0])["length"] == 1


@pytest.mark.parametrize("kind", [MinCount, MaxCount])
@pytest.mark.parametrize("texts", [["\x00"], ["a\x00", "a\x00"], ["", "\x00"], ["a", "a\x00"]], ids=repr)
def test_texts_that_end_with_nul_are_counted(kind, texts):
    """NumPy takes a text alone without the NULs at its end."""
    count = kind("string")
    best = max(texts) if kind is MaxCount else min(texts)
    assert count.reduce([np.array(texts, object)]) == (best, texts.count(best))


NOTHING = {
    "count": 0,
    "sum": 0,
    "collect": [],
    "collect_distinct": [],
    "distinct_count": 0,
    "frequent_items": [],
    "histogram": {"bounds": [-1.0, 0.0, 2.5, 40.0], "counts": [0] * 5, "nan": 0},
    "decayed_sum": 0.0,
    "largest": [],
    "smallest": [],
    "naive_bayes": [],
}


@pytest.mark.parametrize("monoid", every_case(), ids=label)
def test_nothing(monoid):
    found = monoid.lower(monoid.identity)
    if monoid.answer is bytes:
        assert len(found) == {"bloom": 24, "count_min": 16, "theta_sketch": 8}[monoid.function]
    elif monoid.function != "histogram" or len(monoid.bounds) == 4:
        assert found == NOTHING.get(monoid.function)


ONE = {"variance": None, "stddev": None, "relative_variation": None, "linear_slope": None}
ONE |= {"skewness": None, "kurtosis": None, "variance_population": 0.0, "stddev_population": 0.0, "range": 0.0}
ONE |= {"sum": 3.5, "mean": 3.5, "min": 3.5, "max": 3.5, "first": 3.5, "last": 3.5, "min_count": 1, "max_count": 1}


@pytest.mark.parametrize("function", sorted(ONE))
def test_one(function):
    assert answer(function, [3.5]) == ONE[function]


# -------------------------------------------------------------------- references


@given(FLOATS)
def test_moments_against_statistics(items):
    assert answer("mean", items) == pytest.approx(statistics.fmean(items), rel=1e-12, abs=1e-9)
    exact = [Fraction(x) for x in items]
    assert answer("variance", items) == pytest.approx(float(statistics.variance(exact)), rel=1e-11)
    assert answer("variance_population", items) == pytest.approx(float(statistics.pvariance(exact)), rel=1e-11)
    assert answer("stddev", items) == pytest.approx(statistics.stdev(items), rel=1e-11)
    assert answer("stddev_population", items) == pytest.approx(statistics.pstdev(items), rel=1e-11)


@given(FLOATS)
def test_skewness_and_kurtosis_against_their_definition(items):
    exact = [Fraction(x) for x in items]
    n, mean = len(exact), sum(exact) / len(exact)
    m2, m3, m4 = (sum((x - mean) ** p for x in exact) / n for p in (2, 3, 4))
    if m2 == 0:
        assert answer("skewness", items) is answer("kurtosis", items) is None
        return
    if m2 < Fraction(1, 10**6) * mean * mean:
        return  # so near each other that the input's own rounding decides
    assert answer("skewness", items) == pytest.approx(float(m3) / float(m2) ** 1.5, rel=1e-9, abs=1e-9)
    assert answer("kurtosis", items) == pytest.approx(float(m4 / m2**2) - 3, rel=1e-9, abs=1e-9)


def test_relative_variation_has_the_sign_of_the_mean():
    assert answer("relative_variation", [2.0, 4.0, 6.0]) == 0.5
    assert answer("relative_variation", [-2.0, -4.0, -6.0]) == -0.5
    assert answer("relative_variation", [-1.0, 1.0]) is None
    assert answer("relative_variation", [1.0, 4.0]) == pytest.approx(math.sqrt(4.5) / 2.5), "divided by n - 1, not n"


AROUND_ZERO = [[0.1, 0.2, -0.3], [0.1, 0.7, -0.8], [0.1] * 600 + [-60.0]]


@pytest.mark.parametrize("values", AROUND_ZERO)
def test_relative_variation_around_a_mean_of_zero_is_none(values):
    """Rounding leaves a mean that is not 0: divided by that, the deviation was 3.6e16, or anything."""
    variation = of("relative_variation")
    column = np.array(values)
    one_by_one = variation.identity
    for value in values:
        one_by_one = variation.combine(one_by_one, variation.lift(value))
    halves = variation.combine(variation.reduce([column[:2]]), variation.reduce([column[2:]]))
    partials = [variation.reduce([column]), one_by_one, halves, variation.reduce([column[::-1].copy()])]
    assert [variation.lower(partial) for partial in partials] == [None] * 4
    assert any(partial[1] for partial in partials), "the means are not all 0, or this shows nothing"
    assert variation.lower_columns(variation.pack(partials)).tolist() == [None] * 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -1.0, 3e-11], 1e11),  # the mean is small, and well above what rounding makes
        ([1.0, -1.0, 3e-13], None),
        ([0.0, 0.0], None),
        ([1e200, 3e200], INF),  # the square of the deviation is no float64, but the mean is not 0
        ([1e200, -1e200], None),
        ([1.0, NAN], NAN),
    ],
)
def test_relative_variation_at_the_edge_of_zero(values, expected):
    variation = of("relative_variation")
    partial = variation.reduce([np.array(values)])
    (by_column,) = variation.lower_columns(variation.pack([partial])).tolist()
    for found in (variation.lower(partial), by_column):
        assert found == (expected if expected is None else pytest.approx(expected, nan_ok=True))


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
def test_geometric_mean_against_statistics(items):
    assert answer("geometric_mean", items) == pytest.approx(statistics.geometric_mean(items), rel=1e-12)
    assert math.isnan(answer("geometric_mean", [*items, -1.0]))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-99, 99)), min_size=2, max_size=30))
def test_slope_against_least_squares_in_fractions(points):
    points.sort()
    times, values = zip(*points, strict=True)
    n, t, v = len(points), Fraction(sum(times), len(times)), Fraction(sum(values), len(values))
    s_tt = sum((x - t) ** 2 for x in times)
    s_tv = sum((x - t) * (y - v) for x, y in points)
    expected = None if s_tt == 0 else float(s_tv / s_tt)
    # Nanoseconds since 1970, 2023: float64 cannot tell neighbours apart there.
    origin = 1_700_000_000_000_000_000
    slope = of("linear_slope", "int64")
    columns = [np.array(values), origin + np.array(times)]
    for partial in (slope.reduce(columns), slope.scan_suffix(columns)[0]):
        found = slope.lower(partial)
        assert found == expected if expected is None else found == pytest.approx(expected, rel=1e-9, abs=1e-10)
    assert n == partial[0]


def test_slope_over_all_of_time():
    slope = of("linear_slope")
    columns = [np.array([0.0, 1.0]), np.array([-(2**63) + 1, 2**63 - 2])]
    expected = 1 / (2**64 - 3)
    assert slope.lower(slope.reduce(columns)) == pytest.approx(expected, rel=1e-15)
    assert slope.lower(slope.scan_suffix(columns)[0]) == pytest.approx(expected, rel=1e-15)
    lifted = slope.lift_columns(columns)
    swapped = slope.combine_columns(tuple(c[1:] for c in lifted), tuple(c[:1] for c in lifted))
    assert slope.lower(slope.take(swapped, 0)) == pytest.approx(expected, rel=1e-15)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 5))
def test_runs_against_trying_all(items, step):
    best = (0, 0, 0)
    for start in range(len(items)):
        end = start
        while end + 1 < len(items) and items[end + 1] > items[end]:
            end += 1
        if end - start + 1 > best[0]:
            best = (end - start + 1, start, end)
    expected = dict(zip(("length", "start", "end"), best, strict=True))
    run = of("longest_increasing_run", "int64")
    columns = [np.array(items), np.arange(len(items))]
    segments = run.reduce_segments(columns, np.arange(0, len(items), step))
    assert run.lower(run.reduce(columns)) == expected
    assert run.lower(run.fold(segments)) == expected


@given(st.lists(st.integers(-5, 15), max_size=40))
def test_histogram_against_counting(items):
    counts = [sum(x < 0 for x in items), sum(0 <= x < 10 for x in items), sum(x >= 10 for x in items)]
    assert answer("histogram", np.array(items, np.int64), "int64", bounds=[0, 10])["counts"] == counts
