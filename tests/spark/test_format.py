"""`df.write.format("sash")` and `df.writeStream.format("sash")`: exactly once, as the sink for foreachBatch is."""

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sash_client import InvalidArgument, Unavailable
from sash_spark import register
from sash_spark.source import SashDataSource
from sash_spark.writing.route import Outcome, Route
from tests.support.spark_streams import KEYED, Stream, assert_fold, rows

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def format_sash(spark):
    register(spark)


@pytest.fixture
def window(client):
    return client.create_window(KEYED)


@pytest.fixture
def options(target):
    return {"target": target, "window": "w", "time": "at", "key": "k"}


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


def test_a_table_is_written_once_per_save(spark, window, options):
    writer = spark.createDataFrame(rows(0, 100)).repartition(3).write.format("sash").options(**options).mode("append")
    writer.save()
    assert_fold(window, rows(0, 100))
    writer.save()
    assert_fold(window, rows(0, 100), rows(0, 100))
    writer.option("query", "load").save()
    writer.option("query", "load").save()
    assert_fold(window, *[rows(0, 100)] * 3)
    writer.option("query", "load").option("batch", 1).save()
    assert_fold(window, *[rows(0, 100)] * 4)


def test_fields_of_other_names_and_ticks(spark, client, target):
    window = client.create_window(
        {
            "name": "w",
            "time_unit": "none",
            "fields": {"a": "int64", "b": "string"},
            "aggregates": {"n": {"function": "count"}},
        }
    )
    frame = spark.createDataFrame(
        [(1, 2, "x", dt.datetime(2020, 1, 1))], "t int, `odd.name` int, b string, more timestamp"
    )
    options = {"target": target, "window": "w", "time": "t", "fields": "a=odd.name, b"}
    frame.write.format("sash").options(**options).mode("append").save()
    (bulk,) = window.entries()
    assert (bulk.times.tolist(), bulk.columns["a"].tolist(), bulk.columns["b"].tolist()) == ([1], [2], ["x"])


def test_a_stream_whose_last_commit_is_lost(stream, window, options):
    """Spark's commit is lost, not the sink's: its tasks are told that the batch is there."""
    writer = stream.read().writeStream.format("sash").options(**options)
    stream.feed(rows(0, 30))
    stream.run(writer)
    stream.forget_last_commit()
    stream.feed(rows(30, 60))
    stream.run(stream.read().repartition(3).writeStream.format("sash").options(**options))
    assert_fold(window, *stream.fed)


def test_a_driver_that_dies_before_the_commit(spark, stream, window, options, tmp_path):
    died = tmp_path / "died"

    class Dying(SashDataSource):
        @classmethod
        def name(cls):
            return "dying"

        def streamWriter(self, schema, overwrite):
            made = super().streamWriter(schema, overwrite)

            class Writer(type(made)):
                def commit(self, messages, batchId):
                    if batchId == 1 and not died.exists():
                        died.touch()
                        raise RuntimeError("killed")
                    super().commit(messages, batchId)

            return Writer(made.route, made.query)

    spark.dataSource.register(Dying)
    for first in range(0, 60, 30):
        stream.feed(rows(first, first + 30))
    with pytest.raises(StreamingQueryException, match="killed"):
        stream.run(stream.read().repartition(2).writeStream.format("dying").options(**options))
    assert_fold(window, rows(0, 30))
    stream.run(stream.read().writeStream.format("dying").options(**options))
    assert died.exists()
    assert_fold(window, *stream.fed)


def test_streams_into_one_window_and_batches_without_rows(spark, stream, window, options, tmp_path):
    for first in range(0, 60, 30):
        stream.feed(rows(first, first + 30))
    stream.run(stream.read().where("v >= 30").writeStream.format("sash").options(**options))
    assert_fold(window, rows(30, 60))
    stream.checkpoint = tmp_path / "other"
    stream.run(stream.read().where("v < 30").writeStream.format("sash").options(**options, query="other"))
    assert_fold(window, *stream.fed)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"target": None}, "target"),
        ({"window": None}, "window"),
        ({"time": None}, "time"),
        ({"time": "nope"}, "nope"),
        ({"time": "f"}, "f"),
        ({"key": None}, "key"),
        ({"key": "f"}, "f"),
        ({"fields": "v,x"}, "fields"),
        ({"fields": "v=nope"}, "nope"),
        ({"fields": "v=f"}, "f"),
        ({"fields": "v=k"}, "k"),
        ({"fields": "v=amount"}, "amount"),
        ({"rows_per_cal": "10"}, "rows_per_cal"),
        ({"path": "somewhere"}, "path"),
        ({"checkpointLocation": "somewhere"}, "checkpointlocation"),
        ({"rows_per_call": "0"}, "rows_per_call"),
        ({"batch": "3"}, "query"),
        ({"batch": "-3", "query": "q"}, "batch"),
    ],
)
def test_options_that_do_not_fit_are_named(spark, window, options, changed, field):
    schema = spark.createDataFrame([], "at timestamp, k string, v long, f float, amount decimal(18,0)").schema
    given = {name: value for name, value in (options | changed).items() if value is not None}
    with pytest.raises(InvalidArgument) as caught:
        SashDataSource(given).writer(schema, overwrite=False)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", ["short", "int", "long"])
def test_integers_are_keys_times_and_values_and_parts_keep_their_order(spark, client, target, kind):
    """A task's part in several calls; Spark's types go through Arrow as they do in a task."""
    spec = {"name": "w", "time_unit": "none", "keyed": True, "fields": {"v": "float64"}}
    window = client.create_window(spec | {"aggregates": {"all": {"function": "collect"}}})
    schema = spark.createDataFrame([], f"t {kind}, k {kind}, v {kind}").schema
    options = {"target": target, "window": "w", "time": "t", "key": "k", "rows_per_call": "10"}
    writer = SashDataSource(options).writer(schema, overwrite=False)
    arrow = to_arrow_schema(schema)
    batches = [
        pa.RecordBatch.from_pylist([{"t": 5, "k": -7, "v": i + j} for j in range(4)], arrow) for i in range(0, 48, 4)
    ]
    staged = writer.write(iter(batches))
    assert (staged.outcome.arrived, len(staged.outcome.stages)) == (48, 5)
    writer.commit([staged])
    (answer,) = window.query(key="-7")
    assert answer.aggregates["all"] == list(range(48)), "equal times: the order of arrival"
    assert writer.write(iter(batches)).outcome == Outcome(0, (), committed=True)


def test_options_for_bad_rows_and_order(spark, window, options):
    frame = spark.createDataFrame([(5, "k", 2), (5, "k", 1), (5, None, 0)], "at long, k string, v long").coalesce(1)
    writer = frame.write.format("sash").options(**options, bad_rows="drop", sort="v").mode("append")
    writer.save()
    assert window.query(key="k")[0].aggregates["all"] == [1, 2]
    for option, value in {"bad_rows": "keep", "sort": "nope"}.items():
        with pytest.raises(AnalysisException, match=value):
            frame.write.format("sash").options(**options | {option: value}).mode("append").save()


def test_logical_time_is_integers(spark, client, target):
    client.create_window({"name": "w", "time_unit": "none", "aggregates": {"n": {"function": "count"}}})
    schema = spark.createDataFrame([], "at timestamp, value double").schema
    with pytest.raises(InvalidArgument, match="has logical time") as caught:
        SashDataSource({"target": target, "window": "w", "time": "at"}).writer(schema, overwrite=False)
    assert caught.value.field == "at"


def test_what_spark_has_found_by_itself_is_not_registered_again(spark, monkeypatch):
    """Spark would warn that it replaces a data source."""
    monkeypatch.setattr(type(spark.dataSource), "register", lambda *_: pytest.fail("registered again"))
    register(spark)


def test_a_table_without_rows(spark, window, options):
    frame = spark.createDataFrame([], "at timestamp, k string, v long")
    frame.write.format("sash").options(**options, query="load").mode("append").save()
    assert window.commit("load", 0, []).already_applied
    assert window.describe().entries == 0


def test_a_window_is_not_overwritten(spark, window, options):
    frame = spark.createDataFrame(rows(0, 10))
    with pytest.raises(AnalysisException, match="a window is appended to"):
        frame.write.format("sash").options(**options).mode("overwrite").save()
    with pytest.raises(AnalysisException, match="NotFound"):
        frame.write.format("sash").options(**options | {"window": "nope"}).mode("append").save()
    assert window.describe().entries == 0


def test_windows_in_sql(spark, window, target):
    """A view has its options; of a table in its catalog Spark 4.3 hands over those of the query only."""
    options = f"(TARGET '{target}', window 'w', what 'answers', aggregates 'sum')"
    window.bulk_insert([1, 2, 3], {"v": [1, 2, 3]}, keys=["a", "b", "a"])
    try:
        spark.sql(f"CREATE TEMPORARY VIEW sums USING sash OPTIONS {options}")
        spark.sql(f"CREATE TABLE listed USING sash OPTIONS {options}")
        for table in ("sums", f"listed WITH {options}"):
            found = spark.sql(f"SELECT key, sum FROM {table} ORDER BY key").collect()
            assert [tuple(row) for row in found] == [("a", 4), ("b", 2)]
        with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM listed").collect()
        with pytest.raises(AnalysisException, match="no option 'wat'"):
            spark.sql(f"CREATE TABLE wrong USING sash OPTIONS (target '{target}', window 'w', wat '1')")
    finally:
        spark.sql("DROP VIEW IF EXISTS sums")
        spark.sql("DROP TABLE IF EXISTS listed")


AWAY = {"target": "127.0.0.1:1", "timeout_s": "0.2"}
ROWS = StructType().add("at", "timestamp").add("k", "string").add("v", "long")


def test_a_stream_waits_for_a_service_that_is_away(options):
    """The checks on the driver are for early errors only."""
    writer = SashDataSource(options | AWAY).streamWriter(ROWS, overwrite=False)
    assert writer.route.fields is None


def test_what_is_saved_to_a_wrong_target_fails_on_the_driver(options):
    with pytest.raises(Unavailable, match=r"no service at 127\.0\.0\.1:1 within 0\.2 s"):
        SashDataSource(options | AWAY).writer(ROWS, overwrite=False)


def test_names_of_parts_are_what_is_committed(client, window, target):
    route = Route(target, "w", "at", "k", None, 10, 20.0)
    with pytest.raises(Exception, match="no part 'gone' is staged"):
        route.commit("q", 0, [Outcome(1, ("gone",))])
    assert route.commit("q", 0, [Outcome(1, ("gone",)), Outcome(0, (), committed=True)]).already_applied
    assert window.describe().counts.inserted == 0
