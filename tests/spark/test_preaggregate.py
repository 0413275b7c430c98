"""Pre-aggregation: a window fed with panes that tasks have folded answers as one fed with the rows."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sash_client import InvalidArgument
from sash_engine.monoids.laws import close
from sash_spark import sash_sink
from sash_spark.writing.preaggregate import check_preaggregation, panes_of
from sash_wire.rows import Columns
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
    "distinct_v": {"function": "distinct_count", "field": "v"},
    "bloom": {"function": "bloom", "field": "s"},
    "often": {"function": "count_min", "field": "s"},
    "how_often": {"function": "max_count", "field": "i"},
    "rising": {"function": "longest_increasing_run", "field": "i"},
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


@pytest.mark.parametrize(
    ("function", "brought"), [("sum", False), ("sum", True), ("first", False)], ids=["as they are", "by key", "ordered"]
)
def test_few_panes_are_divided(spark, client, target, function, brought):
    client.create_window(SPEC | {"name": "panes", "aggregates": {"it": {"function": function, "field": "i"}}})
    options = {"window": "panes", "time": "at", "key": "k", "query": "q", "rows_per_call": 100}
    sink = sash_sink(target, preaggregate=True, **options)
    rows = rows_of(1000, start_s=0)
    frame = spark.createDataFrame(rows, SCHEMA)
    sink(frame.repartition("k") if brought else frame.repartition(3), 0)
    panes = len({(row[1], (row[0] - EPOCH) // dt.timedelta(minutes=1)) for row in rows})
    tasks = 1 if brought or function == "first" else 3
    assert panes <= sink.total.staged <= tasks * panes + 13
    assert tasks == 1 or sink.total.staged > panes + 13
    assert sink.total.inserted == 1000


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
    assert (panes.total.arrived, panes.total.staged) == (n, 10 * frame.rdd.getNumPartitions())
    (answer,) = client.window("panes").query()
    assert answer.entries == n
    assert answer.aggregates["q"] == pytest.approx([0.1 * n, 0.5 * n, 0.99 * n], abs=0.03 * n)


# ---------------------------------------------------------------- times


def panes_at(times, kind, unit, granularity):
    """The panes of rows at these times, with 1.0 as their only value."""
    spec = {"name": "w", "time_unit": unit, "granularity": granularity, "fields": {"v": "float64"}}
    spec["aggregates"] = {"n": {"function": "count"}, "sum": {"function": "sum"}}
    table = pa.table({"at": pa.array(times, kind), "v": [1.0] * len(times)})
    starts, keys, content = panes_of(spec, table, Columns("at", None, {}, {"v": "v"}, unit))
    assert keys is None
    assert content["partials"]["sum"][0].tolist() == content["entries"].tolist()
    return dict(zip(starts.tolist(), content["entries"].tolist(), strict=True))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", None])
@pytest.mark.parametrize(
    ("unit", "granularity", "expected"),
    [
        ("s", "1m", {-60: 1, 0: 1, 60: 1}),
        ("ms", "90s", {-90_000: 1, 0: 2}),
        ("us", "1m", {-60_000_000: 1, 0: 1, 60_000_000: 1}),
    ],
)
def test_panes_start_at_whole_granules_of_utc(unit, granularity, expected, zone):
    times = [micros * 1_000_000 for micros in (89, -1, 0)]
    assert panes_at(times, pa.timestamp("us", zone), unit, granularity) == expected


def test_ticks_of_nanoseconds_and_of_logical_time():
    assert panes_at([4], pa.timestamp("us", "UTC"), "ns", "1us500ns") == {3000: 1}
    assert panes_at([-1, -7, 6], pa.int32(), "none", "7") == {-7: 2, 0: 1}
    with pytest.raises(InvalidArgument, match="logical"):
        panes_at([4], pa.timestamp("us", "UTC"), "none", "7")


@pytest.mark.parametrize(
    ("tick", "kind", "unit", "why"),
    [
        (-(2**63) + 3, pa.int64(), "us", "out of range"),
        (500_000, pa.timestamp("us"), "s", "whole number of ticks"),
        (2**62, pa.timestamp("us"), "ns", "out of range in ns"),
    ],
)
def test_times_that_no_pane_has(tick, kind, unit, why):
    with pytest.raises(InvalidArgument, match=why):
        panes_at([tick], kind, unit, 1000)


def test_rows_of_a_key_and_a_pane_are_folded_in_the_order_of_arrival():
    spec = {"name": "w", "time_unit": "none", "granularity": 10, "fields": {"v": "int64"}, "keys": ["a", "b"]}
    spec["aggregates"] = {"all": {"function": "collect", "field": "v"}}
    rows = [
        ("y", "p", 12, 0),
        ("x", "q", 3, 1),
        ("x", "p", 15, 2),
        ("x", "q", 1, 3),
        ("y", "p", 11, 4),
        ("x", "p", 2, 5),
    ]
    table = pa.table(dict(zip(["one", "two", "at", "v"], map(list, zip(*rows, strict=True)), strict=True)))
    times, keys, content = panes_of(spec, table, Columns("at", None, {"a": "one", "b": "two"}, {"v": "v"}, "none"))
    (blobs,) = content["partials"]["all"]
    pairs = zip(keys["a"].to_pylist(), keys["b"].to_pylist(), times.tolist(), map(bytes.decode, blobs), strict=True)
    assert {row[:3]: row[3] for row in pairs} == {
        ("x", "p", 0): "[5]",
        ("x", "p", 10): "[2]",
        ("x", "q", 0): "[1,3]",
        ("y", "p", 10): "[0,4]",
    }
    assert sorted(content["entries"].tolist()) == [1, 1, 2, 2]


# ---------------------------------------------------------------- what is refused, and when


def test_a_row_without_a_value_fails_the_batch(spark, client, target):
    _, panes = twins(client, target, aggregates={"v": ROUNDED["sum_v"], "s": EXACT["top_s"]})
    rows = [(EPOCH, "k", 1.0, 1, "s", True), (EPOCH, "k", 1.0, 1, None, True)]
    with pytest.raises(PySparkException, match="'s' is null"):
        panes(spark.createDataFrame(rows, SCHEMA), 0)
    assert client.window("panes").describe().counts.inserted == 0


def test_an_aggregate_that_is_not_installed_here_is_named():
    with pytest.raises(InvalidArgument, match="of_my_own") as caught:
        check_preaggregation(
            SPEC | {"name": "w", "aggregates": EXACT | {"odd": {"function": "of_my_own", "field": "v"}}}
        )
    assert caught.value.field.startswith("aggregates.odd")


def test_a_window_of_entries_takes_no_panes(spark, client, target):
    client.create_window({key: value for key, value in SPEC.items() if key != "granularity"} | {"name": "w"})
    sink = sash_sink(target, window="w", time="at", key="k", query="q", preaggregate=True)
    with pytest.raises(InvalidArgument, match="no granularity") as caught:
        sink(spark.createDataFrame([], SCHEMA), 0)
    assert caught.value.field == "granularity"


@pytest.mark.parametrize("name", ["v", "i", "s", "b"])
def test_a_column_of_another_type_is_named(spark, client, target, name):
    _, panes = twins(client, target)
    with pytest.raises(InvalidArgument, match="date") as caught:
        panes(spark.createDataFrame([], SCHEMA).withColumn(name, F.lit(dt.date(2013, 1, 1))), 0)
    assert caught.value.field == name


def test_decimals_and_narrow_numbers_are_widened(spark, client, target):
    spec = {"fields": {"v": "float64", "i": "int64"}, "keyed": False}
    spec["aggregates"] = {name: {"function": "sum", "field": name} for name in ("v", "i")}
    _, panes = twins(client, target, **spec)
    frame = spark.createDataFrame(
        [(EPOCH, Decimal("1.10"), Decimal(12))], "at timestamp, v decimal(10,2), i decimal(18,0)"
    )
    for column, name in ((F.col("i").cast("decimal(19,0)"), "i"), (F.col("v").cast("decimal(10,2)"), "v")):
        narrow = frame.withColumn("i", column) if name == "i" else frame.withColumn("i", F.col("v"))
        with pytest.raises(InvalidArgument, match="decimal"):
            panes(narrow, 0)
    panes(frame, 0)
    assert client.window("panes").query()[0].aggregates == {"v": 1.1, "i": 12}
