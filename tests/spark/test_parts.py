"""Keys with parts: the sinks take a column for each part, and reads give one back."""

import datetime as dt

import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from sash_client import InvalidArgument
from sash_spark import register, sash_sink
from sash_spark.config import parse
from sash_spark.pipeline import Pipeline
from sash_spark.writing.paths import find

pytestmark = pytest.mark.spark

WINDOW = {
    "name": "w",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"flights": {"function": "count"}, "mean": {"function": "mean", "field": "delay"}},
}
START = dt.datetime(2013, 1, 1)
# Values with the characters that join parts, and empty ones.
ROWS = [
    (START + dt.timedelta(seconds=i), ["JFK", "L|GA", "", "\\"][i % 4], ["AA", "B6|", "é"][i % 3], float(i))
    for i in range(48)
]
COLUMNS = "time timestamp, airport string, carrier string, delay double"


@pytest.fixture
def frame(spark):
    return spark.createDataFrame(ROWS, COLUMNS).repartition(3)


@pytest.fixture
def window(client):
    return client.create_window(WINDOW)


def expected(*by):
    rows = pd.DataFrame(ROWS, columns=["time", "airport", "carrier", "delay"])
    return {key: (len(group), group.mean()) for key, group in rows.groupby(list(by))["delay"]}


def answered(window, *by):
    return {
        tuple(answer.parts[name] for name in by): (answer.entries, answer.aggregates["mean"])
        for answer in window.query(by=by)
    }


def writes(frame, target, tmp_path):
    """Ways to write a frame: name -> function."""
    spark = frame.sparkSession
    options = {"target": target, "window": "w", "time": "time"}

    def stream():
        frame.write.parquet(str(tmp_path / "rows"))
        rows = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "rows"))
        query = rows.writeStream.format("sash").options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    return {
        "foreachBatch": lambda: sash_sink(target, window="w", time="time", query="q")(frame, 0),
        "save": lambda: frame.write.format("sash").mode("append").options(**options).save(),
        "stream": stream,
    }


@pytest.mark.parametrize("way", ["foreachBatch", "save", "stream"])
def test_parts_are_columns_by_name(frame, window, target, tmp_path, way):
    register(frame.sparkSession)
    writes(frame, target, tmp_path)[way]()
    for by in (["airport"], ["carrier"], ["airport", "carrier"]):
        assert answered(window, *by) == expected(*by)


def test_parts_may_be_called_otherwise_and_be_numbers(spark, window, target):
    rows = spark.createDataFrame(
        [(1, "JFK", 7, 1.0), (2, "LGA", 7, 2.0)], "t long, origin string, carrier int, d double"
    )
    given = {"window": "w", "time": "t", "parts": {"airport": "origin"}, "fields": {"delay": "d"}}
    sash_sink(target, **given, query="q")(rows, 0)
    assert set(answered(window, "airport", "carrier")) == {("JFK", "7"), ("LGA", "7")}
    register(spark)
    options = {"target": target, "window": "w", "time": "t", "parts": "airport=origin", "fields": "delay=d"}
    rows.write.format("sash").mode("append").options(**options).save()
    assert answered(window, "carrier") == {("7",): (4, 1.5)}


def test_a_column_may_have_whole_keys(spark, window, target):
    rows = spark.createDataFrame([(1, "JFK|AA", 1.0)], "t long, k string, delay double")
    sash_sink(target, window="w", time="t", key="k", query="q")(rows, 0)
    assert set(answered(window, "airport", "carrier")) == {("JFK", "AA")}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"parts": {"airline": "carrier"}}, "parts"),
        ({"parts": {"airport": "nope"}}, "nope"),
        ({"parts": {"airport": "airport"}, "key": "airport"}, "parts"),
    ],
)
def test_parts_that_do_not_fit_are_refused_on_the_driver(frame, window, target, options, field):
    with pytest.raises(InvalidArgument) as caught:
        sash_sink(target, window="w", time="time", query="q", **options)(frame, 0)
    assert caught.value.field == field


def test_a_window_without_parts_takes_none(frame, client, target):
    client.create_window({key: value for key, value in WINDOW.items() if key != "keys"} | {"keyed": True})
    with pytest.raises(InvalidArgument, match="have no parts: 'airport' is none of them"):
        sash_sink(target, window="w", time="time", parts={"airport": "airport"}, query="q")(frame, 0)


def test_bad_parts(spark, window, target):
    long = "|" * 126 + "\\" * 127  # 506 bytes as a part of a key
    rows = [
        (1, "JFK", "AA", 1.0),
        (2, None, "AA", 1.0),
        (3, "JFK", None, 1.0),
        (4, long, "AAAAA", 2.0),  # 512 bytes
        (5, long, "AAAAAA", 1.0),
        (6, "", "", 3.0),
    ]
    frame = spark.createDataFrame(rows, "t long, airport string, carrier string, delay double").coalesce(1)
    sink = sash_sink(target, window="w", time="t", query="q", bad_rows="drop")
    sink(frame, 0)
    assert (sink.total.inserted, sink.total.bad) == (3, 3)
    assert set(answered(window, "airport", "carrier")) == {("JFK", "AA"), (long, "AAAAA"), ("", "")}
    for row, why in (
        (2, "'airport' is null"),
        (3, "'carrier' is null"),
        (5, "'carrier' makes its key longer than 512"),
    ):
        with pytest.raises(PythonException, match=f"column {why}"):
            sash_sink(target, window="w", time="t", query="fail")(frame.where(F.col("t") == row), 0)


def test_reads_have_a_column_for_each_part(frame, window, target):
    spark = frame.sparkSession
    register(spark)
    sash_sink(target, window="w", time="time", query="q")(frame, 0)
    options = {"target": target, "window": "w"}
    entries = spark.read.format("sash").options(**options, partitions=3).load()
    assert entries.schema.simpleString() == "struct<airport:string,carrier:string,time:timestamp,delay:double>"
    found = entries.select("time", "airport", "carrier", "delay").orderBy("time").collect()
    assert [tuple(row) for row in found] == ROWS
    answers = spark.read.format("sash").options(**options, what="answers").load()
    assert answers.columns == ["airport", "carrier", "lookback", "start", "end", "entries", "flights", "mean"]
    both = {(row.airport, row.carrier): (row.flights, row.mean) for row in answers.collect()}
    assert both == expected("airport", "carrier")
    series = spark.read.format("sash").options(**options, what="series", step="1m").load()
    assert series.columns == ["airport", "carrier", "time", "entries", "flights", "mean"]
    both = {(row.airport, row.carrier): (row.flights, row.mean) for row in series.collect()}
    assert both == expected("airport", "carrier")
    whole = spark.read.format("sash").options(**options, what="answers", combine="true").load()
    assert (whole.columns[0], whole.collect()[0].flights) == ("lookback", len(ROWS))
    some = spark.read.format("sash").options(**options, keys='["JFK|AA"]').load()
    assert {(row.airport, row.carrier) for row in some.collect()} == {("JFK", "AA")}


def test_panes_have_parts(spark, client, target, frame):
    window = client.create_window(WINDOW | {"granularity": "1m"})
    sash_sink(target, window="w", time="time", preaggregate=True, query="q")(frame, 0)
    assert answered(window, "airport", "carrier") == expected("airport", "carrier")


def test_a_pipeline_has_parts(spark, client, target, tmp_path):
    rows = [*((*row[1:], i) for i, row in enumerate(ROWS)), (None, "AA", 1.0, 100), ("x" * 511, "AA", 1.0, 101)]
    frame = spark.createDataFrame(rows, "origin string, carrier string, delay double, at long")
    frame.coalesce(1).write.json(str(tmp_path / "feed"))
    document = {
        "name": "flights",
        "service": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "source": {
            "format": "json",
            "path": str(tmp_path / "feed"),
            "schema": "origin string, carrier string, delay double, at long",
        },
        "time": "at",
        "parts": {"airport": "origin"},
        "order_by": ["at"],
        "bad_records": {"path": str(tmp_path / "bad")},
        "windows": [{"spec": WINDOW}, {"spec": {**WINDOW, "name": "other"}, "parts": {"carrier": "upper(carrier)"}}],
    }
    document["windows"][1]["parts"]["airport"] = "origin"
    done = Pipeline(parse(document), spark).run()
    assert done.bad == {"airport is null": 1, "key is not 1 to 512 bytes long": 1}
    assert answered(client.window("w"), "airport", "carrier") == expected("airport", "carrier")
    assert set(answered(client.window("other"), "carrier")) == {("AA",), ("B6|",), ("É",)}
    document["windows"][1]["parts"] = {"airline": "carrier"}
    with pytest.raises(InvalidArgument) as caught:
        Pipeline(parse(document), spark)
    assert caught.value.field == "windows[1].parts.airline"


def test_names_in_another_case_and_paths_into_structures(spark, window, client, target, tmp_path):
    register(spark)
    nested = spark.createDataFrame(
        [(1, ("JFK", ("AA", 1.5)), None), (2, ("LGA", ("B6", 2.5)), None), (3, (None, ("B6", 2.5)), None)],
        "At long, Where struct<airport string, `by.whom` struct<carrier string, delay double>>, `where.airport` int",
    ).drop("where.airport")
    given = {"time": "at", "fields": {"delay": "where.by.whom.DELAY"}}
    given["parts"] = {"airport": "where.Airport", "carrier": "Where.by.whom.carrier"}
    seen = []
    sink = sash_sink(target, window="w", query="q", bad_rows=lambda bad, _: seen.extend(bad.collect()), **given)
    sink(nested, 0)
    assert [row.At for row in seen] == [3]
    fails = sash_sink(target, window="w", **given).route.fitted(nested.schema)
    with pytest.raises(
        InvalidArgument, match=r"'where.Airport' is null in \{'at': 3, 'where.Airport': None,"
    ) as caught:
        fails.stage(iter(nested.toArrow().to_batches()), "q", 1)
    assert caught.value.field == "where.Airport"
    options = {name: ",".join(f"{a}={b}" for a, b in given[name].items()) for name in ("parts", "fields")}
    writer = nested.write.format("sash").mode("append")
    writer.options(target=target, window="w", time="at", bad_rows="drop", **options).save()
    assert answered(window, "airport", "carrier") == {("JFK", "AA"): (2, 1.5), ("LGA", "B6"): (2, 2.5)}
    client.create_window(WINDOW | {"name": "panes", "granularity": "1m"})
    sash_sink(target, window="panes", query="q", preaggregate=True, **given)(nested.where("At < 3"), 0)
    assert answered(client.window("panes"), "airport") == {("JFK",): (1, 1.5), ("LGA",): (1, 2.5)}


def schema_of(names):
    return StructType(
        [StructField(name, schema_of(kind) if kind is not int else LongType()) for name, kind in names.items()]
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.b", ("a.b",)),
        ("A.B", ("a.b",)),
        ("P", ("p",)),
        ("p.X", ("p", "x")),
        ("P.q.r", ("p", "q.r")),
        ("one", ("one",)),
        ("ONE", ("ONE",)),
    ],
)
def test_columns_are_found_as_spark_finds_them(name, path):
    schema = schema_of({"a.b": int, "a": {"b": int}, "p": {"x": int, "q.r": int}, "one": int, "ONE": int})
    assert find(schema, name)[0] == path


@pytest.mark.parametrize("name", ["One", "p.y", "p.x.z", "", "p.", ".p"])
def test_columns_that_are_not_there(name):
    schema = schema_of({"p": {"x": int}, "one": int, "ONE": int})
    with pytest.raises(InvalidArgument) as caught:
        find(schema, name)
    assert caught.value.field == name
