"""`sliding_aggregate` with a key of several columns: the windows of Spark's own `window`, grouped by these columns."""

import datetime as dt
from decimal import Decimal

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from sash_client import InvalidArgument
from sash_spark.sliding import sliding_aggregate
from sash_spark.sliding.keys import exact
from tests.support.spark_streams import settled

pytestmark = pytest.mark.spark

START = dt.datetime(2020, 1, 1)
SCHEMA = "at timestamp, `air.port` string, carrier int, ok boolean, day date, price decimal(20,3), v long"
ROWS = [
    (
        START + dt.timedelta(seconds=7 * i),
        ["JFK", 'L"GA', "", None, "é\\"][i % 5],
        [1, -2, None][i % 3],
        [True, False][i % 2],
        [dt.date(2013, 1, 1), None][i % 2],
        [Decimal("12345678901234567.125"), Decimal("-0.500")][i % 2],
        i,
    )
    for i in range(90)
]
KEY = ["air.port", "carrier", "ok", "day", "price"]
ASKED = {"time": "at", "windows": ["60s"], "aggregates": {"sum": {"function": "sum", "field": "v"}}, "emit": "20s"}


@pytest.fixture
def frame(spark):
    return spark.createDataFrame(ROWS, SCHEMA)


def ordered(rows):
    return sorted((tuple(row) for row in rows), key=str)


def own(frame, key):
    grouped = frame.groupBy(*(f"`{name}`" for name in key), F.window("at", "60 seconds", "20 seconds").alias("w"))
    found = grouped.agg(F.count("*").alias("entries"), F.sum("v").alias("sum"))
    return found.select(*(f"`{name}`" for name in key), F.lit("60s"), "w.start", "w.end", "entries", "sum").collect()


@pytest.mark.parametrize("key", [KEY, ["carrier"]], ids=len)
def test_a_table_has_the_windows_of_spark(frame, key):
    found = sliding_aggregate(frame, key=key, **ASKED)
    assert found.columns == [*key, "width", "start", "end", "entries", "sum"]
    assert [found.schema[name].dataType for name in key] == [frame.schema[name].dataType for name in key]
    assert ordered(found.collect()) == ordered(own(frame, key))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [0.0, -0.0, float("nan"), None, 1.5]),
        ("binary", [b"", b"\x00", None]),
        ("timestamp", [START, None]),
        ("decimal(20,3)", [Decimal("12345678901234567.125"), Decimal("-0.500"), None]),
    ],
)
def test_a_table_has_one_group_for_each_key(spark, kind, values):
    rows = [(at, values[i % len(values)], v) for i, (at, *_, v) in enumerate(ROWS)]
    # A key's rows come from several partitions, and most buckets are empty.
    frame = spark.createDataFrame(rows, f"at timestamp, k {kind}, v long").repartition(3)
    found = sliding_aggregate(frame, key="k", **ASKED)
    assert found.schema["k"].dataType == frame.schema["k"].dataType
    assert ordered(map(str, row) for row in found.collect()) == ordered(map(str, row) for row in own(frame, ["k"]))


def test_a_stream_has_them_too(spark, frame, sliding_state, tmp_path):
    far = (START + dt.timedelta(days=1), None, None, None, None, None, 0)  # closes the windows
    frame.union(spark.createDataFrame([far], SCHEMA)).coalesce(1).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    answers = sliding_aggregate(rows, key=KEY, watermark="1 second", **ASKED)
    writer = answers.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    settled(lambda: writer.start(str(tmp_path / "out")), wait=lambda query: query.awaitTermination())
    assert ordered(spark.read.parquet(str(tmp_path / "out")).collect()) == ordered(own(frame, KEY))


def test_columns_are_found_in_any_case(frame):
    asked = ASKED | {"time": "AT", "aggregates": {"sum": {"function": "sum", "field": "V"}}}
    found = sliding_aggregate(frame, key=["AIR.port", "Carrier"], **asked)
    assert found.columns[:2] == ["air.port", "carrier"]
    assert ordered(found.collect()) == ordered(own(frame, ["air.port", "carrier"]))
    one = sliding_aggregate(frame, key="CARRIER", **asked)
    assert ordered(one.collect()) == ordered(own(frame, ["carrier"]))


@pytest.mark.parametrize("given", ["KEY", "AT", ["KEY", "carrier"]])
def test_a_name_of_several_columns_in_other_cases_is_refused(given):
    schema = StructType([StructField(name, StringType()) for name in ("at", "At", "key", "Key", "carrier")])
    with pytest.raises(InvalidArgument, match="is one of") as caught:
        exact(schema, given)
    assert caught.value.field in ("KEY", "AT")
    assert exact(schema, "Key") == "Key"


@pytest.mark.parametrize(
    ("key", "field"),
    [([], "key"), (["carrier", "carrier"], "key"), (["nope"], "nope"), (["at"], "at"), (["sum", "carrier"], "sum")],
)
def test_a_key_that_does_not_fit(frame, key, field):
    with pytest.raises(InvalidArgument) as caught:
        sliding_aggregate(frame.withColumn("sum", F.lit(1)), key=key, **ASKED)
    assert caught.value.field == field
