"""Aggregates against NumPy, DataSketches, and plain transcriptions of their definitions."""

import math
import statistics
from collections import Counter

import datasketches as ds
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sash_engine import monoids
from sash_engine.errors import InvalidArgument
from tests.support.aggregates import column

RANDOM = np.random.default_rng(17)


def folded(monoid, columns, parts=7):
    """The answer over parts that are combined, as a window does."""
    starts = np.unique(np.linspace(0, len(columns[0]) - 1, parts).astype(np.int64))
    return monoid.lower(monoid.fold(monoid.reduce_segments(columns, starts)))


# -------------------------------------------------------------------- two fields and more


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_covariance_and_correlation_are_numpys(offset):
    x = RANDOM.normal(size=1000) + offset
    y = 3 * x + RANDOM.normal(size=1000)
    assert folded(monoids.Covariance(), [x, y]) == pytest.approx(np.cov(x, y)[0, 1], rel=1e-6)
    assert folded(monoids.CovariancePopulation(), [x, y]) == pytest.approx(np.cov(x, y, ddof=0)[0, 1], rel=1e-6)
    assert folded(monoids.Correlation(), [x, y]) == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-6)


def test_covariance_without_an_answer():
    one = [np.array([1.0]), np.array([2.0])]
    covariance, population, correlation = monoids.Covariance(), monoids.CovariancePopulation(), monoids.Correlation()
    assert covariance.lower(covariance.reduce(one)) is None
    assert population.lower(population.reduce(one)) == 0.0
    assert correlation.lower(correlation.reduce([np.array([1.0, 2.0]), np.array([5.0, 5.0])])) is None
    assert math.isnan(covariance.lower(covariance.reduce([np.array([1.0, math.nan]), np.array([1.0, 2.0])])))
    limits = [np.array([-(2**63), 2**63 - 1]), np.array([2**63 - 1, -(2**63)])]
    assert covariance.lower(covariance.reduce(limits)) == pytest.approx(-(2.0**127))


@pytest.mark.parametrize("fields", [1, 3, 16])
def test_linear_regression_is_least_squares(fields):
    x = RANDOM.normal(size=(500, fields)) * np.logspace(-3, 6, fields) + 100
    y = x @ np.arange(1.0, fields + 1) - 7 + RANDOM.normal(size=500)
    found = folded(monoids.LinearRegression(*["float64"] * (fields + 1)), [y, *x.T])
    scales = x.std(axis=0)
    standard = (x - x.mean(axis=0)) / scales
    slopes = np.linalg.lstsq(standard, y - y.mean(), rcond=None)[0]
    residuals = y - y.mean() - standard @ slopes
    intercept = y.mean() - x.mean(axis=0) @ (slopes / scales)
    assert found["intercept"] == pytest.approx(intercept, rel=1e-5)
    assert np.array(found["coefficients"]) * scales == pytest.approx(slopes, rel=1e-6, abs=1e-6)
    assert found["r_squared"] == pytest.approx(1 - residuals @ residuals / ((y - y.mean()) @ (y - y.mean())), rel=1e-9)


def test_linear_regression_without_an_answer():
    regression = monoids.LinearRegression("float64", "float64", "float64")
    x = np.arange(5.0)
    assert regression.lower(regression.reduce([x, x, 2 * x])) is None, "collinear"
    assert regression.lower(regression.reduce([x, x, np.ones(5)])) is None, "constant"
    assert regression.lower(regression.reduce([x[:2], x[:2], x[:2] ** 2])) is None, "too few entries"
    fit = regression.lower(regression.reduce([np.ones(5), x, x**2]))
    assert fit == {"intercept": 1.0, "coefficients": [0.0, 0.0], "r_squared": 1.0}


def test_naive_bayes_of_numbers_has_the_moments_of_each_label():
    labels = RANDOM.integers(0, 3, 400)
    x = RANDOM.normal(size=(400, 2)) * 3 + labels[:, None] * [1.0, -2.0]
    model = folded(monoids.NaiveBayes("int64", "float64", "float64"), [labels, *x.T])
    assert [row["label"] for row in model] == [0, 1, 2]
    for label, row in enumerate(model):
        chosen = x[labels == label]
        assert row["entries"] == len(chosen)
        assert row["means"] == pytest.approx(chosen.mean(axis=0))
        assert row["variances"] == pytest.approx(chosen.var(axis=0))
        assert row["values"] == []


def test_naive_bayes_of_strings_counts_each_value_of_each_label():
    labels, values = RANDOM.integers(0, 2, 300), RANDOM.integers(0, 5, 300)
    texts = column("string", [f"v{value}" for value in values])
    model = folded(monoids.NaiveBayes("bool", "string"), [labels.astype(bool), texts])
    counts = Counter(zip(labels.tolist(), texts.tolist(), strict=True))
    assert [row["label"] for row in model] == [False, True]
    for row in model:
        assert {pair["value"]: pair["entries"] for pair in row["values"][0]} == {
            text: count for (label, text), count in counts.items() if label == row["label"]
        }


def test_naive_bayes_has_an_end():
    bayes = monoids.NaiveBayes("int64", "string", labels=2, values=2)
    texts = column("string", ["a", "b", "a"])
    assert len(bayes.lower(bayes.reduce([np.array([1, 1, 2]), texts]))) == 2
    assert bayes.lower(bayes.reduce([np.array([1, 2, 3]), texts])) is None
    assert bayes.lower(bayes.reduce([np.array([1, 1, 1]), column("string", ["a", "b", "c"])])) is None


# -------------------------------------------------------------------- median, mode, the largest


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=30))
def test_median_and_mode_of_integers(items):
    columns = [np.array(items, np.int64)]
    assert folded(monoids.Median("int64"), columns) == float(statistics.median(items))
    values, counts = np.unique(columns[0], return_counts=True)
    assert folded(monoids.Mode("int64"), columns) == values[counts.argmax()]


@given(st.lists(st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 2.5, 1.7e308, math.inf, math.nan]), min_size=1))
def test_median_of_floats_is_numpys(items):
    low_and_high = sorted(items)[(len(items) - 1) // 2 :][:2]
    assume(low_and_high[:1] != [-math.inf] or low_and_high[-1] != math.inf)  # NumPy answers NaN, with a warning
    with np.errstate(all="ignore"):
        expected = float(np.median(items))
    found = folded(monoids.Median(), [np.array(items)])
    assert found == expected or (math.isnan(found) and math.isnan(expected)) or not math.isfinite(expected)


def test_median_and_mode_say_nothing_beyond_their_limit_and_recover():
    for monoid in (monoids.Median("int64", distinct=3), monoids.Mode("int64", distinct=3)):
        over, within = monoid.reduce([np.arange(4)]), monoid.reduce([np.array([1, 1, 2])])
        assert monoid.lower(over) is None
        assert monoid.lower(monoid.combine(within, over)) is None
        assert monoid.lower(within) == 1
        assert monoid.lower(monoid.reduce([np.zeros(0, np.int64)])) is None


@given(st.lists(st.integers(-4, 4).map(float) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=20))
def test_largest_and_smallest_are_a_stable_sort(items):
    columns = [np.array(items), np.arange(len(items))]
    rows = range(len(items))
    largest = sorted(rows, key=lambda i: (items[i] == items[i], -items[i] if items[i] == items[i] else 0))[:5]
    smallest = sorted(rows, key=lambda i: (items[i] == items[i], items[i] if items[i] == items[i] else 0))[:5]
    for cls, expected in ((monoids.Largest, largest), (monoids.Smallest, smallest)):
        monoid = cls("float64", "int64", n=5)
        found = folded(monoid, columns) if items else monoid.lower(monoid.reduce(columns))
        assert [row["returned"] for row in found] == expected


def test_largest_integers_at_the_limits():
    columns = [np.array([2**63 - 1, -(2**63), 0]), column("string", ["a", "b", "c"])]
    largest = monoids.Largest("int64", "string", n=2)
    assert largest.lower(largest.reduce(columns)) == [
        {"value": 2**63 - 1, "returned": "a"},
        {"value": 0, "returned": "c"},
    ]


@given(st.lists(st.text(max_size=5), max_size=20), st.integers(1, 40))
def test_join_keeps_the_oldest_that_fit(items, limit):
    join = monoids.Join(separator="--", limit=limit)
    columns = [column("string", items)]
    kept = list(items)
    while kept and len("--".join(kept)) > limit:
        kept.pop()
    expected = None if not items else "--".join(kept if kept == items else [*kept, "…"])
    assert (folded(join, columns) if items else join.lower(join.identity)) == expected


# -------------------------------------------------------------------- time


def test_time_weighted_means_are_numpys():
    times = np.sort(RANDOM.integers(0, 10**6, 300)) + 10**18
    values = RANDOM.normal(size=300)
    apart = np.diff(times).astype(float)
    whole = float(times[-1] - times[0])
    assert folded(monoids.TimeWeightedMean(), [values, times]) == pytest.approx(values[:-1] @ apart / whole)
    linear = monoids.TimeWeightedMean(method="linear")
    assert folded(linear, [values, times]) == pytest.approx(np.trapezoid(values, times - times[0]) / whole)


def test_time_weighted_mean_when_no_time_passes():
    mean = monoids.TimeWeightedMean()
    assert mean.lower(mean.identity) is None
    assert mean.lower(mean.reduce([np.array([1.0, 3.0]), np.array([5, 5])])) == 3.0
    assert mean.lower(mean.reduce([np.array([math.inf, 3.0, 4.0]), np.array([5, 5, 6])])) == 3.0
    whole = np.array([-(2**63) + 1, 2**63 - 2])
    assert mean.lower(mean.reduce([np.array([7.0, 9.0]), whole])) == 7.0


def test_decayed_sum_is_the_weighted_sum():
    times = np.sort(RANDOM.integers(0, 10**4, 500))
    values = RANDOM.normal(size=500)
    weights = 0.5 ** ((times[-1] - times) / 700)
    decayed = monoids.DecayedSum(half_life=700)
    assert folded(decayed, [values, times]) == pytest.approx(values @ weights)
    late = decayed.combine(decayed.lift((1.0, 1400)), decayed.lift((8.0, 700)))
    assert decayed.lower(late) == 5.0
    old_infinity = decayed.combine(decayed.lift((math.inf, 0)), decayed.lift((1.0, 10**9)))
    assert decayed.lower(old_infinity) == math.inf


def prometheus_rate(times, values, start, end, seconds):
    """Transcribed from `extrapolatedRate` of promql/functions.go, line by line."""
    if len(times) < 2:
        return None
    result, previous = values[-1] - values[0], values[0]
    for value in values[1:]:
        if value < previous:
            result += previous
        previous = value
    duration_to_start, duration_to_end = times[0] - start, end - times[-1]
    sampled_interval = times[-1] - times[0]
    average_duration = sampled_interval / (len(times) - 1)
    threshold = average_duration * 1.1
    if duration_to_start >= threshold:
        duration_to_start = average_duration / 2
    if result > 0 and values[0] >= 0:
        duration_to_start = min(duration_to_start, sampled_interval * (values[0] / result))
    if duration_to_end >= threshold:
        duration_to_end = average_duration / 2
    factor = (sampled_interval + duration_to_start + duration_to_end) / sampled_interval
    return result * factor / seconds


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=2, max_size=12),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_rate_and_increase_are_prometheus(rows, before, after):
    times = np.cumsum([apart for apart, _ in rows])
    values = np.array([value for _, value in rows], float)
    increase = monoids.Increase()
    partial = increase.fold(increase.lift_columns([values, times]))
    start, end = int(times[0]) - before, int(times[-1]) + after
    expected = prometheus_rate(times.tolist(), values.tolist(), start, end, 1)
    assert monoids.consecutive.extrapolated_increase(partial, start, end) == pytest.approx(expected)
    span = int(times[-1]) - start
    if span:
        expected = prometheus_rate(times.tolist(), values.tolist(), start, int(times[-1]), span)
        assert folded(monoids.Rate(range=span), [values, times]) == pytest.approx(expected)
        in_minutes = folded(monoids.Rate(range=span, per=60), [values, times])
        assert in_minutes == pytest.approx(expected * 60)


def test_counters_of_few_entries():
    increase, rate = monoids.Increase(), monoids.Rate()
    one, same = [np.array([5.0]), np.array([3])], [np.array([5.0, 7.0]), np.array([3, 3])]
    assert increase.lower(increase.identity) is None
    assert (increase.lower(increase.reduce(one)), rate.lower(rate.reduce(one))) == (0.0, None)
    assert (increase.lower(increase.reduce(same)), rate.lower(rate.reduce(same))) == (2.0, None)
    extrapolated = monoids.Increase(range=10)
    assert extrapolated.lower(extrapolated.reduce(one)) is None
    assert extrapolated.lower(extrapolated.reduce(same)) is None


# -------------------------------------------------------------------- sketches


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_count_min_is_datasketches(kind):
    numbers = RANDOM.integers(-50, 50, 2000)
    items = [f"item {n}" * (1 + n % 5) for n in numbers.tolist()] if kind == "string" else numbers.tolist()
    monoid = monoids.CountMin(kind, error=0.03)
    theirs = ds.count_min_sketch(monoid.hashes, monoid.buckets)
    for item in items:
        theirs.update(item)
    columns = [column(kind, items)]
    assert folded(monoid, columns) == theirs.serialize()
    lifted = monoid.fold(monoid.lift_columns([columns[0][:50]]))
    assert lifted.tolist() == monoid.reduce([columns[0][:50]]).tolist()
    assert monoid.lower(monoid.identity) == ds.count_min_sketch(monoid.hashes, monoid.buckets).serialize()
    read = ds.count_min_sketch.deserialize(folded(monoid, columns))
    assert read.get_estimate(items[0]) == theirs.get_estimate(items[0])


@pytest.mark.parametrize("kind", ["int64", "float64", "string"])
@pytest.mark.parametrize("distinct", [1, 30, 5000])
def test_theta_sketches_are_datasketches(kind, distinct):
    numbers = RANDOM.integers(0, distinct, 3 * distinct)
    items = [f"n{n}" for n in numbers.tolist()] if kind == "string" else numbers.astype(kind).tolist()
    monoid = monoids.ThetaSketch(kind, lg_k=9)
    theirs = ds.update_theta_sketch(20)
    for item in items:
        theirs.update(item)
    answer = folded(monoid, [column(kind, items)])
    read = ds.compact_theta_sketch.deserialize(answer)
    hashes = sorted(theirs)
    assert list(read) == hashes[:512]
    assert read.theta64 == (hashes[512] if len(hashes) > 512 else 2**63 - 1)
    assert read.get_estimate() == pytest.approx(theirs.get_estimate(), rel=0.2)
    small = ds.update_theta_sketch(9)
    for item in items:
        small.update(item)
    (partial,) = [monoid.decode(small.compact().serialize())]
    assert monoid.lower(partial) == answer, (
        "the sketches of DataSketches keep up to twice as many; the rest is left out"
    )


@pytest.mark.parametrize("n", [1, 2, 8, 33, 1000, 100_000, 200_000])
def test_compressed_theta_sketches_are_read(n):
    theirs = ds.update_theta_sketch(17 if n > 150_000 else 12)
    for i in range(n):
        theirs.update(i)
    monoid = monoids.ThetaSketch("int64", lg_k=18)
    compressed = theirs.compact().serialize(compress=True)
    assert monoid.lower(monoid.decode(compressed)) == monoid.lower(monoid.decode(theirs.compact().serialize()))
    for damaged in (compressed[:-1], compressed + b"\0", compressed[:3] + bytes([compressed[3] ^ 32]) + compressed[4:]):
        if n > 1:
            with pytest.raises(InvalidArgument, match="theta sketch"):
                monoid.decode(damaged)


def test_theta_sketch_of_nothing():
    empty = ds.compact_theta_sketch.deserialize(monoids.ThetaSketch().lower(None))
    assert empty.is_empty()


@pytest.mark.parametrize("parts", [1, 50, 1000])
def test_tail_quantiles_are_datasketches_and_close_to_numpys(parts):
    values = RANDOM.pareto(1.5, 100_000)
    quantiles = np.array([0, 0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1])
    monoid = monoids.Quantile(q=quantiles.tolist(), accuracy="tail")
    found = folded(monoid, [values], parts)
    ranks = np.sort(values).searchsorted(found) / len(values)
    assert (np.abs(ranks - quantiles) <= 0.15 * quantiles * (1 - quantiles) + 2 / len(values)).all()
    alone = ds.tdigest_double(200)
    alone.update(values)
    assert monoid.lower(monoid.reduce([values])) == [alone.get_quantile(q) for q in quantiles.tolist()]
    assert monoid.decode(alone.serialize()).get_total_weight() == len(values)


def test_tail_quantiles_of_extremes_are_numbers():
    monoid = monoids.Quantile(q=[0, 0.5, 1], accuracy="tail")
    values = np.array([math.inf, -math.inf, 1.7e308, -1.7e308, math.nan] * 300)
    found = monoid.lower(monoid.fold(monoid.reduce_segments([values], np.arange(0, 1500, 7))))
    assert all(math.isfinite(answer) for answer in found)
    assert monoid.lower(monoid.reduce([np.array([math.nan])])) is None
