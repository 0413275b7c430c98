"""Pre-aggregation: a window fed with panes that Spark has combined answers as one fed with the rows."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sash_client import InvalidArgument
from sash_engine.monoids.laws import close
from sash_spark import sash_sink
from sash_spark.writing.preaggregate import check_preaggregation, partials_of, preaggregate
from tests.support.far_from_zero import variance_and_error

pytestmark = pytest.mark.spark

FIELDS = {"v": "float64", "i": "int64", "s": "string", "b": "bool"}
EXACT = {
    "n": {"function": "count"},
    "sum_i": {"function": "sum", "field": "i"},
    "mean_i": {"function": "mean", "field": "i"},
    "min_v": {"function": "min", "field": "v"},
    "max_v": {"function": "max", "field": "v"},
    "min_s": {"function": "min", "field": "s"},
    "max_time": {"function": "max", "field": "time"},
    "range_i": {"function": "range", "field": "i"},
    "least": {"function": "arg_min", "field": "i", "returns": "s"},
    "most": {"function": "arg_max", "field": "i", "returns": "v"},
    "when": {"function": "arg_max", "field": "v"},
    "first": {"function": "first", "field": "s"},
    "last": {"function": "last", "field": "b"},
    "m4": {"function": "m4", "field": "v"},
    "histogram": {"function": "histogram", "field": "v", "bounds": [-1, 0, 2.5]},
    "all": {"function": "collect", "field": "i"},
    "seen": {"function": "collect_distinct", "field": "s"},
    "distinct_s": {"function": "distinct_count", "field": "s", "lg_k": 10},
    "distinct_i": {"function": "distinct_count", "field": "i"},
    "distinct_b": {"function": "distinct_count", "field": "b"},
    "top_s": {"function": "frequent_items", "field": "s", "limit": 3},
    "top_i": {"function": "frequent_items", "field": "i", "lg_max_map_size": 12},
    "theta_s": {"function": "theta_sketch", "field": "s"},
    "theta_i": {"function": "theta_sketch", "field": "i", "lg_k": 5},
    "theta_v": {"function": "theta_sketch", "field": "v"},
    "theta_b": {"function": "theta_sketch", "field": "b"},
}
ROUNDED = {
    "sum_v": {"function": "sum", "field": "v"},
    "mean_v": {"function": "mean", "field": "v"},
    "geometric": {"function": "geometric_mean", "field": "v"},
    "variance": {"function": "variance", "field": "v"},
    "deviation": {"function": "stddev", "field": "i"},
    "population": {"function": "stddev_population", "field": "v"},
    "variation": {"function": "relative_variation", "field": "v"},
    "skewness": {"function": "skewness", "field": "v"},
    "kurtosis": {"function": "kurtosis", "field": "v"},
    "slope": {"function": "linear_slope", "field": "v"},
    "covariance": {"function": "covariance", "field": "v", "with": "i"},
    "correlation": {"function": "correlation", "field": "v", "with": "i"},
    "fit": {"function": "linear_regression", "field": "v", "features": ["i"]},
    "median": {"function": "quantile", "field": "v", "q": [0.25, 0.5, 0.75], "k": 4000},  # exact while it is small
}
SPEC = {
    "keyed": True,
    "time_unit": "us",
    "granularity": "1m",
    "fields": FIELDS,
    "aggregates": EXACT | ROUNDED,
    "slide": {"max_age": "1h"},
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SCHEMA = "at timestamp, k string, v double, i long, s string, b boolean"


def rows_of(n, *, start_s, seed=1):
    """Rows over some minutes around `start_s`, of distinct times, out of order."""
    out = []
    for j in range(n):
        x = (j * 7919 + seed * 104729) % 1_000_003
        at = EPOCH + dt.timedelta(seconds=start_s + (x % 600), microseconds=j)
        word = f"s{x % 41}" if x % 41 else ""
        out.append((at, f"k{x % 3}", (x % 1000) / 8 - 3, x % 97 - 40, word, x % 5 == 0))
    return out


def in_time(frame):
    """Rows as pre-aggregation takes them to have arrived."""
    return frame.repartition("k").sortWithinPartitions("at")


def twins(client, target, **parts):
    """The same window twice, and a sink for each: of rows, and of panes."""
    sinks = []
    for name in ("rows", "panes"):
        client.create_window(SPEC | parts | {"name": name})
        key = "k" if (SPEC | parts)["keyed"] else None
        sinks.append(sash_sink(target, window=name, time="at", key=key, query="q", preaggregate=name == "panes"))
    return sinks


def plain(value):
    """So that all NaN are equal; -0.0 is 0.0 anyway."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return "NaN" if value != value else value


def same(left, right, names=(*EXACT, *ROUNDED)):
    assert (left.start, left.end, left.entries) == (right.start, right.end, right.entries)
    for name in names:
        ours, theirs = left.aggregates[name], right.aggregates[name]
        if name in EXACT:
            assert plain(ours) == plain(theirs), name
        else:
            assert close(ours, theirs, 1e-9), f"{name}: {ours}, not {theirs}"


def test_the_same_answers_as_from_rows(spark, client, target):
    rows, panes = twins(client, target)
    for batch, start_s in enumerate((-250, 100, 2000)):  # before 1970 and after it; panes that are there, and new ones
        frame = spark.createDataFrame(rows_of(400, start_s=start_s, seed=batch), SCHEMA).repartition(3)
        rows(in_time(frame), batch)
        panes(frame, batch)
    ours, theirs = rows.total, panes.total
    assert (ours.arrived, ours.inserted, ours.late) == (theirs.arrived, theirs.inserted, theirs.late) == (1200, 1200, 0)
    assert ours.staged == 1200
    assert theirs.staged <= 3 * 3 * 11  # keys, batches, granules
    left, right = client.window("rows"), client.window("panes")
    assert left.describe().entries == right.describe().entries > 0
    for key in ("k0", "k1", "k2"):
        for ours, theirs in zip(
            left.query(key=key, lookbacks=["3m", "30m", "1h"]),
            right.query(key=key, lookbacks=["3m", "30m", "1h"]),
            strict=True,
        ):
            same(ours, theirs)


def test_late_rows_are_counted_by_row(spark, client, target):
    rows, panes = twins(client, target)
    for batch, start_s in enumerate((10_000, 100)):
        frame = spark.createDataFrame(rows_of(60, start_s=start_s), SCHEMA)
        rows(in_time(frame), batch)
        panes(frame, batch)
    assert (panes.total.arrived, panes.total.inserted, panes.total.late) == (120, 60, 60)
    assert rows.total.late == 60
    assert client.window("panes").describe().counts.late == 60


def test_a_batch_that_comes_again_changes_nothing(spark, client, target):
    _, panes = twins(client, target)
    frame = spark.createDataFrame(rows_of(50, start_s=0), SCHEMA)
    panes(frame, 0)
    again = sash_sink(target, window="panes", time="at", key="k", query="q", preaggregate=True)
    again(frame.repartition(5), 0)
    assert again.total.already_applied
    assert client.window("panes").describe().counts.inserted == 50
    again(frame.limit(0), 1)
    assert (again.total.staged, client.window("panes").describe().entries) == (0, 50)


NUMBERS = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 5e-324, 1.7e308, -3.0]
EXTREMES = {name: EXACT[name] for name in ("n", "min_v", "max_v", "when", "m4", "histogram", "all")} | {
    name: ROUNDED[name] for name in ("sum_v", "mean_v", "geometric", "variance", "median")
}


@pytest.mark.parametrize("values", [NUMBERS, NUMBERS[1:], NUMBERS[3:6], [-3.0, float("nan")], [1e9, 1e9 + 1]], ids=str)
def test_numbers_at_the_edge(spark, client, target, values):
    sinks = twins(client, target, keyed=False, aggregates=EXTREMES)
    rows = [(EPOCH + dt.timedelta(seconds=j), "", x, j, "s", True) for j, x in enumerate(values)]
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    for sink in sinks:
        sink(frame, 0)
    left, right = (client.window(name).query()[0] for name in ("rows", "panes"))
    assert left.entries == len(values)
    same(left, right, tuple(EXTREMES))


def test_moments_of_equal_values_are_those_of_equal_values(spark, client, target):
    names = ("variance", "skewness", "kurtosis")
    _, panes = twins(client, target, keyed=False, aggregates={name: ROUNDED[name] for name in names})
    rows = [(EPOCH + dt.timedelta(seconds=17 * j), "", 0.1, j, "s", True) for j in range(20)]
    panes(spark.createDataFrame(rows, SCHEMA).repartition(3), 0)
    found = client.window("panes").query()[0].aggregates
    assert (found["variance"], found["skewness"], found["kurtosis"]) == (0, None, None)


@pytest.mark.parametrize("offset", [1e6, -1e9, 1e12])
def test_of_a_variance_far_from_zero_no_more_is_lost_than_is_said(spark, client, target, offset):
    """Spark adds the rows of a pane one by one; they rise, so the roundings of the means are on one side."""
    values = (np.sort(np.random.default_rng(7).normal(size=2000)) + offset).tolist()
    _, panes = twins(client, target, keyed=False, aggregates={"variance": ROUNDED["variance"]})
    rows = [(EPOCH + dt.timedelta(seconds=j // 10), "", x, j, "s", True) for j, x in enumerate(values)]
    panes(spark.createDataFrame(rows, SCHEMA).coalesce(1), 0)
    variance, error = variance_and_error(values, len(values))
    assert client.window("panes").query()[0].aggregates["variance"] == pytest.approx(variance, abs=error)


@pytest.mark.parametrize("top", [2**63 - 1, 7], ids=["beyond int64", "within it"])
def test_sums_of_integers_are_exact_whatever_their_size(spark, client, target, top):
    aggregates = {"sum": {"function": "sum", "field": "i"}, "mean": {"function": "mean", "field": "i"}}
    _, panes = twins(client, target, keyed=False, aggregates=aggregates)
    values = [top, top, top, -(2**63), -1] * 3
    rows = [(EPOCH + dt.timedelta(seconds=30 * j), "", 0.0, x, "s", True) for j, x in enumerate(values)]
    panes(spark.createDataFrame(rows, SCHEMA), 0)
    (answer,) = client.window("panes").query()
    assert answer.aggregates == {"sum": sum(values), "mean": sum(values) / len(values)}


def test_quantiles_are_within_their_error(spark, client, target):
    aggregates = {"q": {"function": "quantile", "field": "v", "q": [0.1, 0.5, 0.99]}}
    _, panes = twins(client, target, keyed=False, aggregates=aggregates)
    n = 20_000
    frame = spark.range(n).select(
        F.timestamp_seconds(F.col("id") % 600).alias("at"),
        *(F.pmod(F.col("id") * 7919, F.lit(n)).cast("double").alias("v"), F.lit(1).alias("i")),
        *(F.lit("s").alias("s"), F.lit(True).alias("b")),
    )
    panes(frame, 0)
    assert panes.total.staged == 10
    (answer,) = client.window("panes").query()
    assert answer.entries == n
    assert answer.aggregates["q"] == pytest.approx([0.1 * n, 0.5 * n, 0.99 * n], abs=0.03 * n)


# ---------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("unit", "granularity", "expected"),
    [("s", "1m", [-60, 0, 60]), ("ms", "90s", [-90_000, 0]), ("us", "1m", [-60_000_000, 0, 60_000_000])],
)
def test_panes_start_at_whole_granules_of_utc(spark, unit, granularity, expected):
    spec = SPEC | {"name": "w", "keyed": False, "time_unit": unit, "granularity": granularity}
    spec |= {"fields": {"v": "float64"}, "aggregates": {"n": {"function": "count"}}}
    for kind in ("timestamp", "timestamp_ntz"):
        texts = "('1969-12-31 23:59:59'), ('1970-01-01 00:00:00'), ('1970-01-01 00:01:29')"
        frame = spark.sql(f"select cast(text as {kind}) at, 1.0d v from values {texts} as t(text)")
        try:
            spark.conf.set("spark.sql.session.timeZone", "UTC" if kind == "timestamp" else "America/New_York")
            panes = preaggregate(frame, spec, time="at").collect()
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert sorted(row["time"] for row in panes) == expected, kind
        assert sum(row["entries"] for row in panes) == 3


def test_ticks_of_nanoseconds_and_of_logical_time(spark):
    spec = SPEC | {"name": "w", "keyed": False, "time_unit": "ns", "granularity": "1us500ns"}
    spec |= {"fields": {"v": "float64"}, "aggregates": {"n": {"function": "count"}}}
    frame = spark.createDataFrame([(EPOCH + dt.timedelta(microseconds=4), 1.0)], "at timestamp, v double")
    assert preaggregate(frame, spec, time="at").first().asDict() == {"time": 3000, "entries": 1}
    spec |= {"time_unit": "none", "granularity": "7"}
    ticks = spark.createDataFrame([(-1, 1.0), (-7, 1.0), (6, 1.0)], "at int, v double")
    assert sorted(map(tuple, preaggregate(ticks, spec, time="at").collect())) == [(-7, 2), (0, 1)]
    with pytest.raises(InvalidArgument, match="logical"):
        preaggregate(frame, spec, time="at")


# ---------------------------------------------------------------- what is refused, and when


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((None, "k", 1.0, 1, "s", True), "at has missing values"),
        ((EPOCH, None, 1.0, 1, "s", True), "k has missing values"),
        ((EPOCH, "k", None, 1, "s", True), "v has missing values"),
        ((EPOCH, "k", 1.0, 1, None, True), "s has missing values"),
    ],
)
def test_a_row_without_a_value_fails_the_batch(spark, client, target, row, why):
    _, panes = twins(client, target, aggregates={"v": ROUNDED["sum_v"], "s": EXACT["top_s"]})
    with pytest.raises(PySparkException, match=why):
        panes(spark.createDataFrame([(EPOCH, "k", 1.0, 1, "s", True), row], SCHEMA), 0)
    assert client.window("panes").describe().counts.inserted == 0


@pytest.mark.parametrize(
    ("tick", "unit", "why"),
    [
        (-(2**63) + 3, "us", "out of range"),
        ("2013-01-01 00:00:00.5", "s", "whole number of ticks"),
        ("2300-01-01 00:00:00", "ns", "out of range in ns"),
    ],
)
def test_times_that_no_pane_has(spark, tick, unit, why):
    spec = SPEC | {"name": "w", "keyed": False, "time_unit": unit, "granularity": 1000}
    spec |= {"fields": {"v": "float64"}, "aggregates": {"n": {"function": "count"}}}
    at = f"timestamp'{tick}'" if isinstance(tick, str) else f"{tick}L"
    with pytest.raises(PySparkException, match=why):
        preaggregate(spark.sql(f"select {at} at, 1.0d v"), spec, time="at").collect()


@pytest.mark.parametrize(
    ("aggregate", "why"),
    [
        ({"function": "longest_increasing_run", "field": "v"}, "in order"),
        ({"function": "bloom", "field": "s"}, "Bloom"),
        ({"function": "count_min", "field": "s"}, "CountMin"),
        ({"function": "quantile", "field": "v", "accuracy": "tail"}, "t-digest"),
        ({"function": "max_count", "field": "v"}, "how often"),
        ({"function": "distinct_count", "field": "v"}, "no floats"),
        ({"function": "of_my_own", "field": "v"}, "no such aggregate"),
    ],
)
def test_an_aggregate_that_spark_cannot_combine_is_named(aggregate, why):
    with pytest.raises(InvalidArgument, match=why) as caught:
        check_preaggregation(SPEC | {"name": "w", "aggregates": EXACT | {"odd": aggregate}})
    assert caught.value.field == "aggregates.odd"


def test_a_window_of_entries_takes_no_panes(spark, client, target):
    client.create_window({key: value for key, value in SPEC.items() if key != "granularity"} | {"name": "w"})
    sink = sash_sink(target, window="w", time="at", key="k", query="q", preaggregate=True)
    with pytest.raises(InvalidArgument, match="no granularity") as caught:
        sink(spark.createDataFrame([], SCHEMA), 0)
    assert caught.value.field == "granularity"


@pytest.mark.parametrize("name", ["v", "i", "s", "b"])
def test_a_column_of_another_type_is_named(spark, name):
    frame = spark.createDataFrame([], SCHEMA).withColumn(name, F.lit(dt.date(2013, 1, 1)))
    with pytest.raises(InvalidArgument, match="date") as caught:
        preaggregate(frame, SPEC | {"name": "w"}, time="at", key="k")
    assert caught.value.field == name


def test_decimals_and_narrow_numbers_are_widened(spark):
    spec = SPEC | {"name": "w", "keyed": False, "fields": {"v": "float64", "i": "int64"}}
    spec |= {"aggregates": {name: {"function": "sum", "field": name} for name in ("v", "i")}}
    row = (0, Decimal("1.10"), Decimal(12))
    frame = spark.createDataFrame([row], "at long, v decimal(10,2), i decimal(18,0)")
    panes = preaggregate(frame, spec, time="at").toArrow()
    assert partials_of(panes)["partials"]["v"]["sum"].to_pylist() == [1.1]
    assert partials_of(panes)["partials"]["i"]["sum"].to_pylist() == [12]
    for column, name in ((F.col("i").cast("decimal(19,0)"), "i"), (F.col("v").cast("decimal(10,2)"), "v")):
        narrow = frame.withColumn("i", column) if name == "i" else frame.withColumn("i", F.col("v"))
        with pytest.raises(InvalidArgument, match="decimal"):
            preaggregate(narrow, spec, time="at")


def test_partials_that_are_no_numbers_travel_as_blobs():
    table = pa.table(
        {
            "time": [0, 60],
            "entries": pa.array([2, 1], pa.int64()),
            "partial:sum:sum": pa.array([Decimal(2**64), Decimal(-1)], pa.decimal128(31, 0)),
            "partial:mean:entries": pa.array([2, 1], pa.int64()),
            "partial:mean:sum": pa.array([Decimal(2**64), Decimal(-1)], pa.decimal128(31, 0)),
            "partial:least:min": ["a", "é"],
            "partial:all:values": [[1.5, math.nan], [2.0]],
            "partial:sketch:sketch": [b"\x00\x01\x00", b""],
            "partial:max:max": [1.0, 2.0],
        }
    )
    found = partials_of(table)
    assert found["entries"].tolist() == [2, 1]
    partials = found["partials"]
    assert partials["sum"] == [b"\x00" * 8 + b"\x01", b"\xff"]
    assert partials["mean"] == [b"[2,18446744073709551616]", b"[1,-1]"]
    assert partials["least"] == [b'"a"', b'"\\u00e9"']
    assert partials["all"] == [b"[1.5,NaN]", b"[2.0]"]
    assert partials["sketch"] == [b"\x00\x01\x00", b""]
    assert partials["max"]["max"].to_pylist() == [1.0, 2.0]
