"""The sink and the pipeline, on a local Spark against a real service: what arrives is what was sent."""

import datetime as dt

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

import sash_client
from sash_spark import BatchReport, sash_sink
from sash_spark.demo import Row, departures_of, differences, expected_present, expected_rows
from sash_spark.flights import FEED_COLUMNS, load_flights, write_feed
from sash_spark.pipeline import SPECS, clean, in_arrival_order, run
from tests.support.readme import Reader, needs_spark, readme_blocks

pytestmark = pytest.mark.spark

COLLECT = {"n": {"function": "count"}, "all": {"function": "collect", "field": "v"}}
KEYED = {"name": "w", "keyed": True, "fields": {"v": "int64", "s": "string"}, "aggregates": COLLECT}
PLAIN = {"name": "w", "time_unit": "none", "fields": {"v": "int64"}, "aggregates": COLLECT}


def test_every_task_pushes_its_rows(spark, client, target):
    window = client.create_window(KEYED)
    rows = [
        (dt.datetime(2013, 1, 1) + dt.timedelta(microseconds=7 * i), f"k{i % 3}", i, f"s{i % 5}") for i in range(1000)
    ]
    frame = spark.createDataFrame(rows, "at timestamp, k string, v long, s string").repartition(4)
    seen = []
    sink = sash_sink(target, window="w", time="at", key="k", rows_per_call=100, on_batch=seen.append)
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
    sink = sash_sink(target, window="w", time="t", fields={"v": "odd.name"})
    sink(spark.createDataFrame([(t, t) for t in range(100)], "t long, `odd.name` long").coalesce(1), 0)
    sink(spark.createDataFrame([(89, 0), (90, 1), (100, 2)], "t long, `odd.name` long").coalesce(1), 1)
    total = sink.total
    assert (total.batch_id, total.arrived, total.inserted, total.late) == (1, 103, 102, 1)
    info = client.window("w").describe()
    assert info.entries == total.inserted - total.evicted == 10
    assert (info.counts.inserted, info.counts.late, info.counts.evicted) == (total.inserted, total.late, total.evicted)


def test_an_empty_batch_pushes_nothing(spark, client, target):
    client.create_window(PLAIN)
    sink = sash_sink(target, window="w", time="t")
    sink(spark.createDataFrame([], "t long, v long"), 5)
    assert sink.total == BatchReport(batch_id=5, seconds=sink.total.seconds)


def test_timestamps_without_a_zone_and_other_integer_types(spark, client, target):
    client.create_window(PLAIN | {"time_unit": "us"})
    frame = spark.createDataFrame([(dt.datetime(1970, 1, 1, 0, 0, 1), 4)], "t timestamp_ntz, v tinyint")
    assert isinstance(frame.schema["t"].dataType, TimestampNTZType)
    sash_sink(target, window="w", time="t", fields="v")(frame, 0)
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
    ],
)
def test_a_frame_that_does_not_fit_the_window_is_refused_on_the_driver(spark, client, target, options, field):
    client.create_window(KEYED)
    frame = spark.createDataFrame([(1, "k", 1, "s", "x")], "t long, k string, v long, s string, text string")
    sink = sash_sink(target, **({"window": "w", "time": "t", "key": "k"} | options))
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
    with pytest.raises(PythonException, match="v has missing values"):
        sash_sink(target, window="w", time="t")(frame, 0)
    assert client.window("w").describe().counts.inserted == 0


@pytest.fixture(scope="module")
def flights():
    """Some real flights: the days around both changes of the clock, long flights, and some that never left."""
    whole = load_flights()
    days = whole["time_hour"].str[:10]
    return whole[days.isin(["2013-03-09", "2013-03-10", "2013-11-03"])]


def test_cleaning_is_what_pandas_makes_of_it(spark, flights):
    raw = flights.astype({"dep_delay": "float64", "air_time": "float64"})
    frame = spark.createDataFrame(raw.astype(object).where(raw.notna(), None).values.tolist(), schema_of(FEED_COLUMNS))
    found = in_arrival_order(clean(frame)).toPandas()
    expected = departures_of(flights)
    assert 0 < len(expected) < len(flights)
    assert len(found) == len(expected)
    for airport, group in expected.groupby("airport"):
        ours = found[found["airport"] == airport]
        for name in ("carrier", "flight", "delay"):
            assert ours[name].tolist() == group[name].tolist()
        for name in ("departure", "landed"):
            assert ours[name].tolist() == group[name].dt.tz_localize(None).tolist()


def schema_of(columns):
    kinds = {"flight": "long", "minute": "long", "dep_delay": "double", "air_time": "double"}
    return ", ".join(f"{column} {kinds.get(column, 'string')}" for column in columns)


def test_the_pipeline_ends_with_the_fold_and_goes_on_where_it_stopped(spark, client, target, flights, tmp_path):
    files = write_feed(flights, tmp_path / "all", files=5)
    (tmp_path / "feed").mkdir()
    for pushed in (files[:3], files[3:], []):
        for path in pushed:
            path.rename(tmp_path / "feed" / path.name)
        before = arrived_of(client)
        reports = run(spark, tmp_path / "feed", target, tmp_path / "checkpoint", rows_per_call=64)
        assert {report.arrived for report in reports.values()} == {arrived_of(client) - before}
    departures = departures_of(flights)
    assert arrived_of(client) == len(departures)
    for spec in SPECS:
        window = client.window(spec["name"])
        info = window.describe()
        assert info.counts.inserted - info.counts.evicted == info.entries
        assert info.entries == expected_present(departures, spec["slide"]["max_age"])
        expected = expected_rows(departures, ("1h", "6h"))
        found = [
            Row.of(str(answer.key), str(answer.lookback), answer.aggregates)
            for airport in ("EWR", "JFK", "LGA")
            for answer in window.query(key=airport, lookbacks=["1h", "6h"])
        ]
        assert differences(expected, found, "gRPC") == []


def test_the_blocks_of_the_readme_run(spark, service, client, tmp_path):
    reader = Reader(service, tmp_path)
    rows = [(60 * i, "JFK", float(i), "UA") for i in range(100)]
    frame = spark.createDataFrame(rows, "at long, airport string, delay double, carrier string")
    frame = frame.select(F.timestamp_seconds("at").alias("departed_at"), "airport", "delay", "carrier")
    frame.write.parquet(str(tmp_path / "departures"))
    # What the README takes for granted: a stream, and a directory for its checkpoint.
    departures = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "departures"))
    reader.session |= {"departures": departures, "checkpoint": str(tmp_path / "checkpoint")}
    blocks = readme_blocks()
    for block in blocks:
        if block.language == "yaml":
            reader.run(block)
    spark_blocks = [block for block in blocks if needs_spark(block)]
    assert spark_blocks
    for block in spark_blocks:
        reader.run(block)
        query = reader.session["query"]
        query.processAllAvailable()
        query.stop()
    assert client.window("departure_delay").describe().counts.inserted == 100


def arrived_of(client):
    """Entries that the windows were sent so far: the same for each."""
    counts = {window.counts.inserted + window.counts.late for window in client.list_windows()}
    assert len(counts) <= 1
    return counts.pop() if counts else 0
