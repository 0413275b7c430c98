"""`sash_spark.answers_at`: beside each row is what the client answers about it, which is the fold over its entries."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from sash_client import InvalidArgument, NotFound
from sash_spark import answers_at
from sash_spark.login import Login
from sash_spark.reading.pairs import _Asked, _joined
from tests.spark.test_reading import AGGREGATES, FIELDS, plain, told

pytestmark = pytest.mark.spark

START = dt.datetime(2013, 1, 1)
TICKS = 1_356_998_400
SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keyed": True,
    "fields": {"delay": "float64", "carrier": "string"},
    "aggregates": {
        "sum": {"function": "sum", "field": "delay"},
        "worst": {"function": "max", "field": "delay"},
        "entries": {"function": "count"},
        "all": {"function": "collect", "field": "carrier"},
        "which": {"function": "arg_max", "field": "delay", "returns": "carrier"},
    },
}
N = 600
TIMES = TICKS + np.sort(np.random.default_rng(1).integers(0, 7200, N))
KEYS = np.array(["JFK", "LGA", "EWR"])[np.random.default_rng(2).integers(0, 3, N)]
DELAYS = np.random.default_rng(3).integers(-50, 500, N) / 4
CARRIERS = np.array(["AA", "B6"])[np.arange(N) % 2]
PAIRS = [(["JFK", "LGA", "nobody"][i % 3], TICKS + 37 * i % 9000 - 500, i) for i in range(100)]
COLUMNS = "airport string, at long, label int not null"
LOOKBACKS = ["10m", "1h"]


@pytest.fixture
def flights(client):
    window = client.create_window(SPEC)
    window.bulk_insert(TIMES, {"delay": DELAYS, "carrier": CARRIERS}, keys=KEYS)
    return window


@pytest.fixture
def pairs(spark):
    return spark.createDataFrame(PAIRS, COLUMNS).repartition(3)


def test_answers_are_the_fold_and_those_of_the_client(pairs, target, flights):
    frame = answers_at(
        pairs, target, window="flights", key="airport", time="at", lookbacks=[*LOOKBACKS, "1h"], rows_per_call=7
    )
    assert frame.schema.simpleString() == (
        "struct<airport:string,at:bigint,label:int,"
        "entries_10m:bigint,all_10m:array<string>,aggregates.entries_10m:bigint,sum_10m:double,which_10m:string,"
        "worst_10m:double,"
        "entries_1h:bigint,all_1h:array<string>,aggregates.entries_1h:bigint,sum_1h:double,which_1h:string,"
        "worst_1h:double>"
    )
    assert not frame.schema["label"].nullable
    rows = sorted(frame.collect(), key=lambda row: row["label"])
    assert [(row["airport"], row["at"], row["label"]) for row in rows] == PAIRS
    asked = pa.table({"airport": [row[0] for row in PAIRS], "at": [row[1] for row in PAIRS]})
    same = flights.answers_at(asked, key="airport", time="at", lookbacks=LOOKBACKS)
    for name in same.column_names[2:]:
        assert [row[name] for row in rows] == same[name].to_pylist(), name
    for row in rows:
        for lookback, seconds in (("10m", 600), ("1h", 3600)):
            there = (row["airport"] == KEYS) & (row["at"] - seconds < TIMES) & (row["at"] >= TIMES)
            assert row[f"entries_{lookback}"] == row[f"aggregates.entries_{lookback}"] == there.sum()
            assert row[f"sum_{lookback}"] == DELAYS[there].sum()  # quarters: the sum is exact in any order
            assert row[f"worst_{lookback}"] == (DELAYS[there].max() if there.any() else None)
            assert row[f"all_{lookback}"] == CARRIERS[there].tolist()
    assert sum(row["entries_1h"] for row in rows) > 1000


def test_every_aggregate_has_the_type_of_its_answers(spark, target, client):
    spec = {"name": "w", "time_unit": "ms", "fields": FIELDS, "aggregates": AGGREGATES}
    window = client.create_window(spec)
    i = np.arange(60)
    columns = {"f": np.where(i % 7 == 6, np.nan, i / 2 + 1), "i": i + 1, "s": np.array(["x", "y", "zz"])[i % 3]}
    window.bulk_insert(i * 1000, columns | {"b": i % 2 == 0})
    times = [-1, 0, 9_000, 30_500]
    instants = [(dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=time),) for time in times]
    frame = spark.createDataFrame(instants, "moment timestamp")
    found = answers_at(frame, target, window="w", time="Moment", lookbacks=["10s"]).collect()
    for time, row in zip(times, found, strict=True):
        (answer,) = window.query(as_of=time, lookbacks=["10s"])
        assert row["entries_10s"] == answer.entries
        assert {name: plain(row[f"{name}_10s"]) for name in AGGREGATES} == told(dict(answer.aggregates))


TOTAL = {"name": "total", "time_unit": "ms", "fields": {"late": "int64"}, "aggregates": {"most": {"function": "max"}}}
PARTS = {
    "name": "parts",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"sum": {"function": "sum"}},
}


def test_several_windows(spark, target, client, flights):
    """Of other time units, without keys, with parts of keys: each has options of its own."""
    total, parts = client.create_window(TOTAL), client.create_window(PARTS)
    total.bulk_insert(1000 * TIMES, {"late": np.arange(N)})
    parts.bulk_insert(1_000_000 * TIMES, {"delay": DELAYS}, keys={"airport": KEYS, "carrier": CARRIERS})
    rows = [((key, ("B6", 0)), dt.datetime.fromtimestamp(time, dt.UTC), 7) for key, time, _ in PAIRS]
    shape = "of struct<Airport: string, by: struct<carrier: string, rest: int>>, At timestamp, total_entries_1h int"
    frame = spark.createDataFrame(rows, shape).coalesce(2)
    asked = {
        "flights": {"key": "of.airport", "aggregates": "sum"},
        "total": {"lookbacks": [dt.timedelta(minutes=1)]},
        "parts": {"parts": {"airport": "of.airport", "carrier": "of.by.carrier"}, "where": "airport=JFK"},
    }
    found = answers_at(frame, target, windows=asked, time="at", lookbacks=["1h"]).collect()
    assert [str(name) for name in found[0].asDict()] == [
        *("of", "At", "total_entries_1h", "flights_entries_1h", "flights_sum_1h"),
        *("total_entries_1m", "total_most_1m", "parts_entries_1h", "parts_sum_1h"),
    ]
    keys, times = [row[0] for row in PAIRS], np.array([row[1] for row in PAIRS])
    same = client.answers_at(times, ["flights"], keys=keys, lookbacks=["1h"]).columns
    assert [row["flights_sum_1h"] for row in found] == same["flights_sum_1h"].tolist()
    same = total.answers_at(1000 * times, lookbacks=["1m"]).columns
    assert [row["total_most_1m"] for row in found] == same["most_1m"].tolist()
    there = {"airport": keys, "carrier": ["B6"] * len(keys)}
    same = parts.answers_at(1_000_000 * times, keys=there, lookbacks=["1h"], where="airport=JFK").columns
    assert [row["parts_sum_1h"] for row in found] == same["sum_1h"].tolist()
    assert {row["parts_entries_1h"] > 0 for row in found if row["of"]["Airport"] != "JFK"} == {False}
    assert sum(row["parts_entries_1h"] for row in found) > 0


def test_no_rows(spark, target, flights):
    frame = spark.createDataFrame([], COLUMNS)
    found = answers_at(frame, target, window="flights", key="airport", time="at", aggregates=["SUM"])
    assert found.columns == ["airport", "at", "label", "entries", "sum"]
    assert found.collect() == []


def test_a_stream_of_rows(spark, target, flights, tmp_path):
    rows = spark.createDataFrame(PAIRS, COLUMNS)
    rows.write.parquet(str(tmp_path / "pairs"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "pairs"))
    found = answers_at(stream, target, window="flights", key="airport", time="at", lookbacks=["1h"])
    query = found.writeStream.format("memory").queryName("pairs").trigger(availableNow=True).start()
    query.awaitTermination()
    table = spark.table("pairs").collect()
    assert len(table) == len(PAIRS)
    once = answers_at(rows, target, window="flights", key="airport", time="at", lookbacks=["1h"]).collect()
    assert sorted(table, key=lambda row: row["label"]) == sorted(once, key=lambda row: row["label"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": None}, "key"),
        ({"key": "airports"}, "airports"),
        ({"key": "share"}, "share"),
        ({"time": "airport"}, "airport"),
        ({"time": "when"}, "when"),
        ({"parts": {"airport": "airport"}}, "parts"),
        ({"key": None, "parts": {"airport": "airport"}}, "parts"),
        ({"lookbacks": "1h"}, "lookbacks"),
        ({"lookbacks": ["never"]}, "lookback"),
        ({"where": "carrier=AA"}, "where"),
        ({"where": "?"}, "where"),
        ({"aggregates": ["sums"]}, "aggregates"),
        ({"rows_per_call": 0}, "rows_per_call"),
        ({"windows": ["flights"]}, "window"),
        ({"window": None}, "window"),
        ({"window": None, "windows": []}, "windows"),
        ({"window": None, "windows": "flights"}, "windows"),
        ({"window": None, "windows": {"flights": {"time": "at"}}}, "time"),
        ({"window": "twice", "key": None}, "AGGREGATES.sum"),
    ],
)
def test_refused_before_a_task_runs(pairs, target, client, flights, options, field):
    client.create_window({"name": "twice", "time_unit": "s", "aggregates": {"sum": {"function": "sum"}}})
    frame = pairs.withColumns({"share": F.lit(0.5), "SUM": F.lit(1), "AGGREGATES.sum": F.lit(2)})
    asked = {"window": "flights", "key": "airport", "time": "at"} | options
    with pytest.raises(InvalidArgument) as refused:
        answers_at(frame, target, **asked)
    assert refused.value.field.lower() == field.lower()


def test_refused_of_the_windows(pairs, spark, target, client, flights):
    with pytest.raises(NotFound):
        answers_at(pairs, target, window="none", key="airport", time="at")
    for name, aggregate in (("a", "b_c"), ("a_b", "c")):
        client.create_window({"name": name, "time_unit": "s", "aggregates": {aggregate: {"function": "sum"}}})
    with pytest.raises(InvalidArgument, match="two windows have columns 'a_b_c'"):
        answers_at(pairs, target, windows=["a", "a_b"], time="at")
    client.create_window({"name": "logical", "time_unit": "none", "aggregates": {"sum": {"function": "sum"}}})
    with pytest.raises(InvalidArgument, match="logical time"):
        answers_at(spark.sql("SELECT timestamp'2013-01-01' AS at"), target, window="logical", time="at")
    with pytest.raises(InvalidArgument, match="two columns 'at'"):
        answers_at(spark.sql("SELECT 1L AS at, 2L AS at"), target, window="logical", time="at")


def test_rows_say_what_they_are_known_at(spark, target, client):
    fields, sums = {"v": "int64", "id": "int64"}, {"sum": {"function": "sum", "field": "v"}}
    spec = {"name": "known", "time_unit": "s", "keyed": True, "fields": fields, "aggregates": sums}
    window = client.create_window(spec | {"identity": "id", "known": "arrival"})
    window.bulk_insert([5, 9], {"v": [1, 2], "id": [1, 2]}, keys="a")
    window.retract([5], [1], keys="a")
    window.insert(4, fields={"v": 40, "id": 3}, key="a")
    frame = spark.createDataFrame([("a", 9, known) for known in range(5)], "k string, at long, known long")
    found = answers_at(frame, target, window="known", key="k", time="at", known_at="known").collect()
    assert sorted((row["known"], row["sum"]) for row in found) == [(0, 0), (1, 1), (2, 3), (3, 2), (4, 42)]
    found = answers_at(frame, target, windows={"known": {"known_at": "known"}}, key="k", time="at").collect()
    assert sum(row["known_sum"] for row in found) == 48
    with pytest.raises(InvalidArgument) as refused:
        answers_at(frame, target, window="known", key="k", time="at", known_at="none")
    assert refused.value.field == "none"


@pytest.mark.parametrize(("row", "says"), [((None, 5, 1), "key"), (("JFK", None, 1), "time")])
def test_a_missing_key_or_time_fails_the_task(spark, target, flights, row, says):
    frame = spark.createDataFrame([*PAIRS, row], COLUMNS)
    with pytest.raises(PythonException, match=f"InvalidArgument.*{says}"):
        answers_at(frame, target, window="flights", key="airport", time="at").collect()


def test_a_task_has_one_block_in_memory(pairs, target, client, flights):
    """It reads as many rows as a block has before it answers about them, and no more."""
    question = {"key": "airport", "parts": None, "lookbacks": ["1h"], "where": None, "aggregates": None}
    question["known_at"] = None
    asked = [_Asked.of(client, pairs.schema, "flights", "at", question)]
    read = []

    def batches():
        for row in PAIRS:
            read.append(row)
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], names=["airport", "at", "label"])

    names = ["airport", "at", "label", *asked[0].answers]
    for i, block in enumerate(_joined(asked, Login(), target, 30.0, 8, names)(batches())):
        assert block.schema.names == names
        assert len(read) == min(8 * (i + 1), len(PAIRS))
        assert block["label"].to_pylist() == list(range(8 * i, min(8 * i + 8, 100)))
    assert len(read) == len(PAIRS)
