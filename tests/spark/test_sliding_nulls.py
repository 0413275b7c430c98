"""`nulls="ignore"`: an aggregate over rows with nulls is the aggregate over the rows without."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from sash_client import InvalidArgument
from sash_engine.monoids import IgnoresNulls, catalogue
from sash_engine.monoids.base import NUMPY_TYPES
from sash_spark.sliding import sliding_aggregate
from sash_spark.sliding.plan import Plan, columns_of
from sash_spark.sliding.stream import entries_of
from tests.spark.test_sliding_state import SCHEMA, plan_of

SOME = {"float64": [1.0, -2.5, 4.0], "int64": [3, -1, 7], "string": ["b", "a", "c"], "bool": [True, False, True]}


def columns_for(monoid, rows, there):
    values = [np.array([SOME[kind][i % 3] for i in rows], NUMPY_TYPES[kind]) for kind in monoid.types]
    return values, np.array(there, np.bool_)


def same(found, expected):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            same(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected or found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("function", sorted(set(catalogue()) - {"count", "bloom", "histogram", "quantile"}))
@settings(max_examples=20)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=5),
)
@example([[(0, True), (2, True)], [(0, True), (1, True), (1, True), (2, True)]])
def test_the_answer_is_that_over_the_rows_with_values(function, segments):
    cls = catalogue()[function]
    inner = cls(**dict(cls.example))
    wrapped = IgnoresNulls(inner, 1)
    rows = [row for segment in segments for row in segment]
    values, there = columns_for(inner, [row for row, _ in rows], [mark for _, mark in rows])
    kept = [column[there] for column in values]
    nothing = None if function in ("sum", "decayed_sum") else inner.lower(inner.identity)
    expected = inner.lower(inner.reduce(kept)) if there.any() else nothing
    same(wrapped.lower(wrapped.reduce([*values, there])), expected)
    sizes = np.array([len(segment) for segment in segments])
    partials = wrapped.reduce_segments([*values, there], np.cumsum(sizes) - sizes)
    partials = wrapped.pack([wrapped.decode(wrapped.encode(each)) for each in wrapped.unpack(partials)])
    total = wrapped.unpack(partials)[0]
    columns = tuple(part[:1] for part in partials)
    for i, partial in enumerate(wrapped.unpack(partials)[1:], 1):
        total = wrapped.combine(total, partial)
        columns = wrapped.combine_columns(columns, tuple(part[i : i + 1] for part in partials))
    same(wrapped.lower(total), expected)
    same(wrapped.lower_columns(columns).tolist()[0], expected)


def test_null_columns_and_their_marks():
    plan = Plan.of(SCHEMA, "k", "at", ["10s"], {"sum": {"function": "sum", "field": "v"}}, "1s", "ignore")
    times = pa.array([1, 2, 3], pa.timestamp("us", "UTC"))
    rows = pa.table([pa.array(["a", None, "b"]), times, pa.array([4, None, 6])], ["key", "at", "v"])
    found = columns_of(plan, entries_of(plan, rows).drop_columns(["key"]))
    assert [column.tolist() for column in found] == [[1, 2, 3], [4, 0, 6], [True, False, True]]
    with pytest.raises(InvalidArgument, match="column 'at' has 1 missing values"):
        entries_of(plan, rows.set_column(1, "at", pa.array([1, None, 3], times.type)))
    with pytest.raises(InvalidArgument) as caught:
        Plan.of(SCHEMA, "k", "at", ["10s"], {"n": {"function": "count"}}, "1s", "drop")
    assert caught.value.field == "nulls"


def test_the_parameters_of_an_aggregate_count():
    """Two quantiles of one column are two, and state of another one is not read."""
    one, other = ({"q": {"function": "quantile", "field": "x", "q": q}} for q in (0.1, 0.9))
    plans = [Plan.of(SCHEMA, "k", "at", ["10s"], each, "1s", "ignore") for each in (one, other)]
    assert plans[0].digest != plans[1].digest != plan_of(aggregates=other).digest
    both = Plan.of(SCHEMA, "k", "at", ["10s"], one | {"p": other["q"]}, "1s", "ignore")
    assert len(both.layout.monoids) == 2


@pytest.mark.spark
def test_nulls_are_ignored_as_spark_ignores_them(spark):
    rows = [
        (i % 3, 1000 + 7 * i % 90, None if i % 4 or i > 60 else i, None if i % 5 == 0 else i / 4) for i in range(90)
    ]
    frame = spark.createDataFrame(rows, "k int, s long, v long, x double")
    frame = frame.select("k", F.timestamp_seconds("s").alias("at"), "v", "x")
    found = sliding_aggregate(
        frame,
        key="k",
        time="at",
        windows=["10s"],
        aggregates={
            "sum": {"function": "sum", "field": "v"},
            "largest": {"function": "max", "field": "x"},
            "deviation": {"function": "stddev", "field": "x"},
            "distinct": {"function": "distinct_count", "field": "v"},
            "values": {"function": "collect_distinct", "field": "v"},
        },
        emit="2s",
        nulls="ignore",
    )
    own = frame.groupBy("k", F.window("at", "10 seconds", "2 seconds").alias("w")).agg(
        F.count("*").alias("entries"),
        F.sum("v").alias("sum"),
        F.max("x").alias("largest"),
        F.round(F.stddev("x"), 9).alias("deviation"),
        F.countDistinct("v").alias("distinct"),
        F.sort_array(F.collect_set("v")).alias("values"),
    )
    found = found.withColumn("deviation", F.round("deviation", 9)).withColumn("values", F.sort_array("values"))
    expected = own.select("k", "w.start", *own.columns[2:]).orderBy("k", "start").collect()
    assert found.select(*own.columns[:1], "start", *own.columns[2:]).orderBy("k", "start").collect() == expected
    assert any(row["sum"] is None for row in expected)
