"""The sink's options and reports, on a local Spark against a real service: what arrives is what was sent."""

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampNTZType

import sash_client
from sash_spark import BatchReport, sash_sink

pytestmark = pytest.mark.spark

COLLECT = {"n": {"function": "count"}, "all": {"function": "collect", "field": "v"}}
KEYED = {"name": "w", "keyed": True, "fields": {"v": "int64", "s": "string"}, "aggregates": COLLECT}
UNBOUNDED = {"order": {"ahead": "none"}}  # any time is one of the window
PLAIN = {"name": "w", "time_unit": "none", "fields": {"v": "int64"}, "aggregates": COLLECT}


def test_every_task_pushes_its_rows(spark, client, target):
    window = client.create_window(KEYED)
    rows = [
        (dt.datetime(2013, 1, 1) + dt.timedelta(microseconds=7 * i), f"k{i % 3}", i, f"s{i % 5}") for i in range(1000)
    ]
    frame = spark.createDataFrame(rows, "at timestamp, k string, v long, s string").repartition(4)
    seen = []
    sink = sash_sink(target, window="w", time="at", key="k", query="q", rows_per_call=100, on_batch=seen.append)
    sink(frame, 0)
    assert sink.total == seen[0]
    assert (sink.total.arrived, sink.total.inserted, sink.total.late, sink.total.evicted) == (1000, 1000, 0, 0)
    for key in range(3):
        (answer,) = window.query(key=f"k{key}")
        mine = range(key, 1000, 3)
        assert answer.aggregates["all"] == list(mine)  # in order of time, however the tasks ran
        assert answer.end == 1_356_998_400_000_000 + 7 * mine[-1]


def test_late_and_evicted_rows_are_reported(spark, client, target):
    client.create_window(PLAIN | {"slide": {"max_age": "10"}})
    sink = sash_sink(target, window="w", time="t", query="q", fields={"v": "odd.name"})
    sink(spark.createDataFrame([(t, t) for t in range(100)], "t long, `odd.name` long").coalesce(1), 0)
    sink(spark.createDataFrame([(89, 0), (90, 1), (100, 2)], "t long, `odd.name` long").coalesce(1), 1)
    total = sink.total
    assert (total.batch_id, total.arrived, total.inserted, total.late) == (1, 103, 102, 1)
    info = client.window("w").describe()
    assert info.entries == total.inserted - total.evicted == 10
    assert (info.counts.inserted, info.counts.late, info.counts.evicted) == (total.inserted, total.late, total.evicted)


def test_rows_too_far_ahead_are_reported(spark, client, target):
    client.create_window(PLAIN | {"time_unit": "s", "order": {"ahead": "5m"}})
    sink = sash_sink(target, window="w", time="t", query="q")
    sink(spark.createDataFrame([(1, 1), (10**11, 2)], "t long, v long").coalesce(1), 0)
    total = sink.total
    assert (total.arrived, total.inserted, total.ahead) == (2, 1, 1)


def test_an_empty_batch_is_a_batch(spark, client, target):
    window = client.create_window(PLAIN)
    sink = sash_sink(target, window="w", time="t", query="q")
    sink(spark.createDataFrame([], "t long, v long"), 5)
    assert sink.total == BatchReport(batch_id=5, seconds=sink.total.seconds)
    assert window.commit("q", 5, []).already_applied


def test_timestamps_without_a_zone_and_other_integer_types(spark, client, target):
    client.create_window(PLAIN | {"time_unit": "us"})
    frame = spark.createDataFrame([(dt.datetime(1970, 1, 1, 0, 0, 1), 4)], "t timestamp_ntz, v tinyint")
    assert isinstance(frame.schema["t"].dataType, TimestampNTZType)
    sash_sink(target, window="w", time="t", fields="v", query="q")(frame, 0)
    assert client.window("w").range_query(1_000_000, 1_000_000).aggregates["all"] == [4]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"time": "nope"}, "nope"),
        ({"time": "text"}, "text"),
        ({"key": "nope"}, "nope"),
        ({"key": None}, "key"),
        ({"fields": ["v"]}, "fields"),
        ({"fields": {"v": "v", "s": "s", "x": "v"}}, "fields"),
        ({"fields": {"v": "v", "s": "nope"}}, "nope"),
        ({"query": None}, "query"),
    ],
)
def test_a_frame_that_does_not_fit_the_window_is_refused_on_the_driver(spark, client, target, options, field):
    client.create_window(KEYED)
    frame = spark.createDataFrame([(1, "k", 1, "s", "x")], "t long, k string, v long, s string, text string")
    sink = sash_sink(target, **({"window": "w", "time": "t", "key": "k", "query": "q"} | options))
    with pytest.raises(sash_client.InvalidArgument) as caught:
        sink(frame, 0)
    assert caught.value.field == field
    assert client.window("w").describe().counts.inserted == 0


def test_a_window_that_is_not_there(spark, client, target):
    with pytest.raises(sash_client.NotFound, match="w"):
        sash_sink(target, window="w", time="t")(spark.createDataFrame([(1, 1)], "t long, v long"), 0)


def test_a_value_that_cannot_be_pushed_fails_the_batch(spark, client, target):
    client.create_window(PLAIN)
    frame = spark.createDataFrame([(1, None)], "t long, v long")
    with pytest.raises(PythonException, match=r"column 'v' is null in \{'t': 1, 'v': None\}"):
        sash_sink(target, window="w", time="t", query="q")(frame, 0)
    assert client.window("w").describe().counts.inserted == 0


# Each row but the first has one thing wrong with it.
BAD = [
    (1, "k", 1, "s"),
    (None, "k", 1, "s"),
    (2**63 - 1, "k", 1, "s"),
    (-(2**63), "k", 1, "s"),
    (1, None, 1, "s"),
    (1, "", 1, "s"),
    (1, "é" * 257, 1, "s"),
    (1, "k", None, "s"),
    (1, "k", 1, None),
    (2**63 - 2, "é" * 256, 2, ""),
]


def test_bad_rows_are_left_out_and_counted(spark, client, target):
    window = client.create_window(KEYED | UNBOUNDED)
    frame = spark.createDataFrame(BAD, "`odd t` long, k string, v long, s string").coalesce(1)
    sink = sash_sink(target, window="w", time="odd t", key="k", query="q", bad_rows="drop", rows_per_call=4)
    sink(frame, 0)
    assert (sink.total.arrived, sink.total.inserted, sink.total.bad, sink.total.staged) == (10, 2, 8, 2)
    found = {key: window.query(key=key)[0].aggregates["all"] for key in list(window.keys())}
    assert found == {"k": [1], "é" * 256: [2]}


@pytest.mark.parametrize(
    ("row", "column"),
    [*zip(BAD[1:-1], ["odd t"] * 3 + ["k"] * 3 + ["v", "s"], strict=True), ((None, "", None, None), "odd t")],
    ids=str,
)
def test_a_bad_row_is_named_by_the_columns_of_the_frame(client, target, row, column):
    """As a task of Spark stages its rows."""
    client.create_window(KEYED)
    schema = StructType().add("odd t", "long").add("k", "string").add("v", "long").add("s", "string")
    route = sash_sink(target, window="w", time="odd t", key="k", query="q").route.fitted(schema)
    rows = [dict(zip(schema.names, each, strict=True)) for each in (BAD[0], BAD[0], row)]
    named = f"1 of 3 rows cannot go into the window: column '{column}' is"
    with pytest.raises(sash_client.InvalidArgument, match=named) as caught:
        route.stage(iter([pa.RecordBatch.from_pylist(rows, to_arrow_schema(schema))]), "q", 0)
    assert caught.value.field == column
    assert client.window("w").describe().counts.inserted == 0


@pytest.mark.parametrize("unit", ["ns", "ms", "s"])
def test_times_that_are_no_ticks_of_the_window_are_bad_rows(spark, client, target, unit):
    window = client.create_window(PLAIN | {"time_unit": unit} | UNBOUNDED)
    times = [dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(9999, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)]
    times.append(dt.datetime(1970, 1, 1, 0, 0, 1, 1))
    frame = spark.createDataFrame([(time, n) for n, time in enumerate(times)], "t timestamp_ntz, v long")
    sink = sash_sink(target, window="w", time="t", query="q", bad_rows="drop")
    sink(frame, 0)
    assert window.query()[0].aggregates["all"] == {"ns": [0, 3, 2], "ms": [0, 2, 1], "s": [0, 1]}[unit]
    assert sink.total.bad == len(times) - sink.total.inserted


def test_a_function_gets_the_bad_rows_before_the_others_are_there(spark, client, target):
    window = client.create_window(KEYED | UNBOUNDED)
    frame = spark.createDataFrame([(*row, 0.5) for row in BAD], "t long, k string, v long, s string, other double")
    seen = []

    def keep(bad, number):
        seen.append((number, bad.columns, sorted(map(tuple, bad.collect()), key=str), window.describe().entries))

    sink = sash_sink(target, window="w", time="t", key="k", query="q", bad_rows=keep)
    sink(frame, 0)
    expected = sorted(((*row, 0.5) for row in BAD[1:-1]), key=str)
    assert seen == [(0, frame.columns, expected, 0)]
    sink(frame.where("v = 2"), 1)
    assert len(seen) == 1
    assert sink.total.bad == 8


def test_tasks_sort_their_rows_where_they_are_asked_to(spark, client, target):
    window = client.create_window(PLAIN)
    frame = spark.createDataFrame([(1, 2, "b"), (1, 1, "b"), (1, 3, "a"), (0, 9, "z")], "t long, v long, by string")
    frame = frame.coalesce(1)
    sash_sink(target, window="w", time="t", query="by", sort=["by", "v"], rows_per_call=2)(frame, 0)
    assert window.query()[0].aggregates["all"] == [9, 3, 1, 2]
    sash_sink(target, window="w", time="t", query="time", sort=True)(frame, 0)
    assert window.query()[0].aggregates["all"] == [9, 9, 3, 1, 2, 2, 1, 3]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"bad_rows": "keep"}, "bad_rows"),
        ({"bad_rows": "drop", "preaggregate": True}, "bad_rows"),
        ({"sort": True, "preaggregate": True}, "sort"),
    ],
)
def test_options_that_do_not_go_together(target, options, field):
    with pytest.raises(sash_client.InvalidArgument) as caught:
        sash_sink(target, window="w", time="t", **options)
    assert caught.value.field == field


@pytest.mark.parametrize(("frame", "ends"), [("t long, x long", 'fields="FIELD=COLUMN"'), ("x long, v long", "x, v")])
def test_a_column_that_is_not_there(spark, client, target, frame, ends):
    client.create_window(PLAIN)
    with pytest.raises(sash_client.InvalidArgument, match="no column") as caught:
        sash_sink(target, window="w", time="t", query="q")(spark.createDataFrame([(1, 1)], frame), 0)
    assert caught.value.message.endswith(ends)


def test_a_column_to_sort_by_that_is_not_there(spark, client, target):
    client.create_window(PLAIN)
    with pytest.raises(sash_client.InvalidArgument, match="no column 'nope'"):
        sash_sink(target, window="w", time="t", query="q", sort="nope")(
            spark.createDataFrame([(1, 1)], "t long, v long"), 0
        )
