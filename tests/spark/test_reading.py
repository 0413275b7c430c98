"""`spark.read.format("sash")`: Spark sees what the client is told, and asks the service for no more than it needs."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, Not
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sash_client import ALL_KEYS, InvalidArgument, Unsupported
from sash_spark import register
from sash_spark.options import Options
from sash_spark.reading import planning
from sash_spark.reading.answer_columns import AnswerColumn, instants
from sash_spark.reading.planning import Share
from sash_spark.reading.question import Question
from sash_spark.reading.reader import PushedReader
from tests.spark.conftest import set_in

pytestmark = pytest.mark.spark

FIELDS = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
NUMBERS = ("f", "i")
ON_NUMBERS = (
    *("sum", "min", "max", "range", "mean", "geometric_mean", "relative_variation", "skewness", "kurtosis"),
    *("variance", "variance_population", "stddev", "stddev_population", "linear_slope", "m4"),
    "longest_increasing_run",
)
ON_ANYTHING = ("first", "last", "collect", "collect_distinct", "distinct_count", "bloom")
AGGREGATES = {
    "count": {"function": "count"},
    **{f"{name}_{field}": {"function": name, "field": field} for name in ON_NUMBERS for field in NUMBERS},
    **{f"{name}_{field}": {"function": name, "field": field} for name in ON_ANYTHING for field in FIELDS},
    "min_count": {"function": "min_count", "field": "s"},
    "arg_max": {"function": "arg_max", "field": "f", "returns": "s"},
    "arg_min": {"function": "arg_min", "field": "i"},
    "histogram": {"function": "histogram", "field": "f", "bounds": [10.5, 20]},
    "median": {"function": "quantile", "field": "f", "q": 0.5},
    "quartiles": {"function": "quantile", "field": "i", "q": [0.25, 0.75]},
    "frequent": {"function": "frequent_items", "field": "s"},
}
KEYED = {"name": "w", "time_unit": "ms", "keyed": True, "fields": FIELDS, "aggregates": AGGREGATES}
SIMPLE = {"name": "w", "time_unit": "s", "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}}}
EPOCH = dt.datetime(1970, 1, 1)
N = 60


@pytest.fixture(scope="module", autouse=True)
def format_sash(spark):
    register(spark)
    with set_in(spark, {"spark.sql.python.filterPushdown.enabled": "true"}):
        yield


@pytest.fixture
def read(spark, target):
    def reading_of(**options):
        options = {"target": target, "window": "w"} | {name: str(value) for name, value in options.items()}
        return spark.read.format("sash").options(**options).load()

    return reading_of


@pytest.fixture
def reader(target):
    """What Spark plans a read with."""

    def made(filters=(), **options):
        question = Question.of(Options({"target": target, "window": "w", **options}))
        found = PushedReader(question, question.schema())
        assert list(found.pushFilters(list(filters))) == list(filters)
        return found

    return made


@pytest.fixture
def keyed(client):
    window = client.create_window(KEYED)
    i = np.arange(N)
    columns = {"f": np.where(i % 7 == 6, np.nan, i / 2 + 1), "i": i + 1, "s": np.array(["x", "y", "zz"])[i % 3]}
    window.bulk_insert(i * 1000, columns | {"b": i % 2 == 0}, keys=np.array(["a", "b", "c,d"])[i % 3])
    return window


@pytest.fixture
def simple(client):
    window = client.create_window(SIMPLE)
    window.bulk_insert(np.arange(100), np.arange(100))
    return window


def plain(value):
    """What Spark gives, as the client has it: structs are mappings, bytes are bytes, NaN equals itself."""
    if hasattr(value, "asDict"):
        return {name: plain(item) for name, item in value.asDict().items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return "NaN" if isinstance(value, float) and value != value else value


def told(value):
    if isinstance(value, dict):
        return {name: told(item) for name, item in value.items()}
    if isinstance(value, list):
        return [told(item) for item in value]
    return "NaN" if isinstance(value, float) and value != value else value


def test_entries_are_those_of_the_window(read, keyed):
    for options in ({}, {"partitions": 2}, {"partitions": 6, "start": 0, "end": "1970-01-01T00:01:00"}):
        frame = read(**options)
        assert frame.schema.simpleString() == ("struct<key:string,time:timestamp,b:boolean,f:double,i:bigint,s:string>")
        found = frame.toPandas().sort_values(["key", "time"], ignore_index=True)
        bulks = list(keyed.entries())
        expected = pd.concat(
            pd.DataFrame({"key": bulk.keys, "time": bulk.times.view("datetime64[ms]"), **bulk.columns})
            for bulk in bulks
        )
        assert len(expected) == N
        expected = expected.sort_values(["key", "time"], ignore_index=True)
        pd.testing.assert_frame_equal(found, expected[list(found)], check_dtype=False)


def test_answers_are_those_of_the_client(read, keyed):
    lookbacks = ["10s", "1m"]
    for options, expected in (
        ({"lookback": "10s, 1m"}, keyed.query(keys=ALL_KEYS, lookbacks=lookbacks)),
        ({"lookback": "10s,1m", "partitions": 3}, keyed.query(keys=ALL_KEYS, lookbacks=lookbacks)),
        ({"keys": '["c,d", "nobody"]'}, keyed.query(keys=["c,d", "nobody"])),
        ({"as_of": 500, "lookback": 400}, keyed.query(keys=ALL_KEYS, lookbacks=[400], as_of=500)),
    ):
        rows = {(row["key"], row["lookback"]): row for row in read(what="answers", **options).collect()}
        assert len(rows) == len(expected)
        for answer in expected:
            row = rows[answer.key, answer.lookback]
            assert row["entries"] == answer.entries
            for name in ("start", "end"):
                tick = getattr(answer, name)
                assert row[name] == (None if tick is None else EPOCH + dt.timedelta(milliseconds=tick))
            assert {name: plain(row[name]) for name in AGGREGATES} == told(dict(answer.aggregates))


def test_series_are_those_of_the_client(read, keyed):
    options = {"what": "series", "step": "5s", "width": "20s", "start": 0, "end": 60_000}
    for more in ({}, {"partitions": 5}, {"partitions": 2, "keys": "b"}):
        frame = read(**options, **more)
        rows = {(row["key"], row["time"]): row for row in frame.collect()}
        keys = ["a", "b", "c,d"] if "keys" not in more else ["b"]
        assert len(rows) == 12 * len(keys)
        for key in keys:
            series = keyed.series(0, 60_000, step="5s", width="20s", key=key)
            for j, time in enumerate(series.times.tolist()):
                row = rows[key, EPOCH + dt.timedelta(milliseconds=time)]
                assert row["entries"] == series.entries[j]
                expected = {name: told(column.tolist()[j]) for name, column in series.aggregates.items()}
                assert {name: plain(row[name]) for name in AGGREGATES} == expected


def test_several_keys_together(client, read):
    aggregates = {"n": {"function": "count"}, "sum": {"function": "sum"}}
    window = client.create_window({"name": "w", "time_unit": "none", "keyed": True, "aggregates": aggregates})
    window.bulk_insert(range(10), range(10), keys=list("abcab" * 2))
    frame = read(what="answers", combine="true", keys="a,c", lookback=5)
    assert frame.columns == ["lookback", "start", "end", "entries", "n", "sum"]
    (answer,) = window.query(keys=["a", "c"], lookbacks=[5], combine=True)
    assert (answer.end, answer.entries) == (8, 3)
    assert [tuple(row) for row in frame.collect()] == [("5", answer.start, 8, 3, 3, 5.0 + 7.0 + 8.0)]
    series = read(what="series", combine="true", step=2, partitions=3).orderBy("time").collect()
    assert [(row["time"], row["sum"]) for row in series] == [(0, 1.0), (2, 5.0), (4, 9.0), (6, 13.0), (8, 17.0)]


def test_a_series_from_the_first_entry_to_the_last(read, simple, client):
    rows = read(what="series", step=30, partitions=2).orderBy("time").collect()
    assert [(row["time"].minute * 60 + row["time"].second, row["n"]) for row in rows] == [
        (0, 30),
        (30, 30),
        (60, 30),
        (90, 10),
    ]
    simple.bulk_evict(1000)
    assert read(what="series", step=30).collect() == []
    assert read().collect() == []


def test_filters_narrow_what_the_service_is_asked_for(reader, keyed):
    time = ("time",)
    low, high = EPOCH + dt.timedelta(seconds=10, microseconds=500), EPOCH + dt.timedelta(seconds=20)
    filters = [EqualTo(("key",), "b"), GreaterThan(time, low), LessThanOrEqual(time, high)]
    assert reader(filters).partitions() == [Share(("b",), 10_000, 20_000)]
    assert reader(filters, partitions="2").partitions() == [
        Share(("b",), 10_000, 14_999),
        Share(("b",), 15_000, 20_000),
    ]
    assert reader([In(("key",), ("b", "nobody", "a"))], start="5").partitions() == [Share(("a", "b"), 5, None)]
    assert reader([Not(EqualTo(("key",), "b"))]).partitions() == [Share()]
    assert reader([EqualTo(("key",), "nobody")]).partitions() == [Share(())]
    assert reader([GreaterThan(time, high), LessThanOrEqual(time, low)]).partitions() == [Share(())]
    series = {"what": "series", "step": "3s", "start": "0", "end": "60000"}
    assert reader(filters, **series).partitions() == [Share(("b",), 12_000, 20_000, 3000)]
    assert reader([EqualTo(("key",), "b")], what="answers").partitions() == [Share(("b",))]
    # A part of a column is not the column.
    assert reader([EqualTo(("key", "deeper"), "b")]).partitions() == [Share()]


def test_what_is_pushed_is_what_spark_filters(read, keyed):
    whole = read(partitions=2).toPandas()
    for condition, expected in (
        (
            "key = 'b' and time >= timestamp'1970-01-01 00:00:30'",
            (whole.key == "b") & (whole.time >= "1970-01-01 00:00:30"),
        ),
        (
            "time between timestamp'1970-01-01 00:00:10' and timestamp'1970-01-01 00:00:20.5'",
            (whole.time >= "1970-01-01 00:00:10") & (whole.time <= "1970-01-01 00:00:20.5"),
        ),
        (
            "time = timestamp'1970-01-01 00:00:07' or key = 'a'",
            (whole.time == "1970-01-01 00:00:07") | (whole.key == "a"),
        ),
        (
            "key in ('a', 'nobody') and time < timestamp'1970-01-01 00:00:40'",
            (whole.key == "a") & (whole.time < "1970-01-01 00:00:40"),
        ),
    ):
        found = read(partitions=2, pushdown="true").where(condition)
        assert sorted(found.select("i").toPandas().i) == sorted(whole[expected].i)
    answers = read(what="answers", pushdown="true").where("key in ('a', 'nobody')")
    assert [row["key"] for row in answers.collect()] == ["a"]


def test_without_pushdown_a_table_may_be_used_again(read, keyed):
    frame = read()
    assert frame.where("key = 'a'").count() == 20
    assert frame.where("key = 'b'").union(frame.where("time < timestamp'1970-01-01 00:00:10'")).count() == 20 + 10
    assert frame.count() == N
    keyed.bulk_insert([1], {"f": [1.0], "i": [1], "s": ["x"], "b": [True]}, keys="new")
    assert frame.count() == N + 1


def test_logical_time_and_nanoseconds_are_longs(client, read):
    for unit in ("ns", "none"):
        window = client.create_window(SIMPLE | {"name": unit, "time_unit": unit})
        window.bulk_insert([2**53 + 1, 2**53 + 3], [1, 2])
        frame = read(window=unit).where(f"time > {2**53 + 1}")
        assert frame.schema["time"].dataType.simpleString() == "bigint"
        assert [tuple(row) for row in frame.collect()] == [(2**53 + 3, 2.0)]


def test_columns_are_found_in_any_case(spark, target, keyed):
    reader = spark.read.format("sash").options(target=target, window="w", pushdown="true")
    frame = reader.schema("I long, KEY string, tIMe timestamp").load()
    assert frame.columns == ["I", "KEY", "tIMe"]
    narrow = frame.where("KEY = 'a' and tIMe >= timestamp '1970-01-01T00:00:03Z'")
    expected = sorted((i + 1, "a") for i in range(3, N, 3))
    assert sorted((row["I"], row["KEY"]) for row in narrow.collect()) == expected
    with pytest.raises(AnalysisException, match="no column 'ii'; there are key, time"):
        reader.schema("ii long").load().collect()


def test_a_filter_on_a_column_in_another_case_narrows_what_is_read(target, keyed):
    question = Question.of(Options({"target": target, "window": "w"}))
    wanted = StructType([StructField("KEY", StringType()), StructField("TIME", TimestampType())])
    made = PushedReader(question, wanted)
    made.pushFilters([EqualTo(("KEY",), "a"), GreaterThan(("TIME",), EPOCH + dt.timedelta(seconds=3))])
    assert [(share.keys, share.start) for share in made.partitions()] == [(("a",), 3000)]


def test_a_part_of_the_columns(spark, target, keyed):
    reader = spark.read.format("sash").option("target", target).option("window", "w")
    frame = reader.schema("i long, key string").load()
    assert sorted(tuple(row) for row in frame.collect())[:2] == [(1, "a"), (2, "b")]
    with pytest.raises(AnalysisException, match="column 'i' is a bigint, not a double"):
        reader.schema("i double").load().collect()
    reader = spark.read.format("sash").option("target", target).option("window", "w").option("what", "answers")
    frame = reader.option("aggregates", "count,Median").load()
    assert frame.columns == ["key", "lookback", "start", "end", "entries", "count", "median"]


def test_a_large_window_is_read_by_several_tasks(read, client, monkeypatch, reader):
    window = client.create_window(KEYED | {"fields": {"v": "int64"}, "aggregates": {"n": {"function": "count"}}})
    keys = np.array([f"k{i}" for i in range(50)])
    window.bulk_insert(np.arange(20_000), {"v": np.arange(20_000)}, keys=keys[np.arange(20_000) % 50])
    monkeypatch.setattr(planning, "ENTRIES_PER_TASK", 5000)
    shares = reader().partitions()
    assert shares == [Share(part=part, parts=4) for part in range(4)]
    frame = read(partitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.agg(F.sum("v"), F.count("*")).collect()[0][:] == (sum(range(20_000)), 20_000)


def test_any_number_of_keys_is_read(read, client):
    """More than one call of the service lists, and more than it answers at once."""
    spec = {"name": "w", "time_unit": "none", "keyed": True, "aggregates": {"sum": {"function": "sum"}}}
    keys = [f"k{i}" for i in range(110_000)]
    client.create_window(spec).bulk_insert(np.arange(len(keys)), np.arange(len(keys)), keys=keys)
    total = float(sum(range(len(keys))))
    for options in ({}, {"partitions": 1}):
        answers = read(what="answers", **options).agg(F.count("*"), F.countDistinct("key"), F.sum("sum")).collect()
        assert tuple(answers[0]) == (len(keys), len(keys), total)
    entries = read().agg(F.count("*"), F.countDistinct("key"), F.sum("value")).collect()  # one task has them all
    assert tuple(entries[0]) == (len(keys), len(keys), total)


def test_a_series_of_more_keys_than_one_call_answers(read, client, monkeypatch):
    monkeypatch.setattr(planning, "KEYS_PER_CALL", 3)
    spec = {"name": "w", "time_unit": "none", "keyed": True, "aggregates": {"n": {"function": "count"}}}
    window = client.create_window(spec)
    window.bulk_insert(range(100, 110), range(10), keys=[f"k{i}" for i in range(10)])
    window.insert(95, 1.0, key="k7")
    rows = read(what="series", step=20, partitions=2).where("n > 0").orderBy("key", "time").collect()
    assert [(row["key"], row["time"], row["n"]) for row in rows if row["key"] in ("k7", "k8")] == [
        ("k7", 80, 1),
        ("k7", 100, 1),
        ("k8", 100, 1),
    ]
    assert len(rows) == 11


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"target": ""}, "target"),
        ({"window": ""}, "window"),
        ({"what": "partials"}, "what"),
        ({"what": "series"}, "step"),
        ({"lookbacks": "1h"}, "lookbacks"),
        ({"partitions": "0"}, "partitions"),
        ({"partitions": "many"}, "partitions"),
        ({"combine": "maybe"}, "combine"),
        ({"timeout_s": "-1"}, "timeout_s"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"keys": "[1"}, "keys"),
        ({"what": "answers", "aggregates": "count,nope"}, "aggregates"),
        ({"start": "soon"}, "start"),
        ({"lookback": "1h"}, "lookback"),
        ({"as_of": "5"}, "as_of"),
        ({"step": "5s"}, "step"),
        ({"width": "5s"}, "width"),
        ({"combine": "true"}, "combine"),
        ({"aggregates": "count"}, "aggregates"),
        ({"what": "answers", "start": "90"}, "start"),
        ({"what": "answers", "end": "90"}, "end"),
        ({"what": "answers", "step": "5s"}, "step"),
        ({"what": "series", "step": "5s", "as_of": "5"}, "as_of"),
        ({"what": "series", "step": "5s", "lookback": "1h"}, "lookback"),
        ({"what": "answers", "lookback": "1h,soon"}, "lookback"),
        ({"what": "answers", "as_of": "soon"}, "as_of"),
        ({"what": "series", "step": "soon"}, "step"),
        ({"what": "series", "step": "5s", "width": "soon"}, "width"),
        ({"what": "series", "step": "5s", "end": "soon"}, "end"),
        ({"what": "answers", "window": "taken"}, "aggregates"),
        ({"keys": "a", "window": "taken"}, "keys"),
        ({"what": "answers", "combine": "true", "window": "taken"}, "combine"),
    ],
)
def test_options_that_do_not_fit_are_named(client, keyed, reader, options, field):
    client.create_window({"name": "taken", "aggregates": {"Entries": {"function": "count"}}})
    with pytest.raises(InvalidArgument) as caught:
        reader(**options)
    assert caught.value.field == field


def test_what_cannot_be_read_says_so(client, reader, read):
    panes = {"name": "w", "aggregates": {"n": {"function": "count"}}, "granularity": "10s"}
    client.create_window(panes).bulk_insert([1, 2], [1, 2])
    with pytest.raises(Unsupported, match="panes instead of entries"):
        reader()
    assert read(what="answers").collect()[0]["n"] == 2
    with pytest.raises(AnalysisException, match="is not a time"):
        read(what="series", step="10s", start="soon").collect()


def test_sums_beyond_64_bits_are_no_numbers_of_spark(client, read):
    window = client.create_window(
        {"name": "w", "fields": {"v": "int64"}, "aggregates": {"sum": {"function": "sum", "field": "v"}}}
    )
    window.bulk_insert([1, 2], [2**62, 2**62])
    with pytest.raises(PythonException, match="sum: an answer is no int64"):
        read(what="answers").collect()


def test_answers_of_an_aggregate_that_is_not_our_own_are_json():
    column = AnswerColumn.of("mine", {"function": "mine", "field": "v"}, {"v": "float64"})
    assert column.array([None, {"a": [1, 2.5]}]).to_pylist() == [None, '{"a": [1, 2.5]}']
    assert column.array(np.ma.MaskedArray([1.5, 2.5], [False, True])).to_pylist() == ["1.5", None]


def test_times_out_of_the_range_of_timestamps():
    assert instants([None, 2**60], "us").is_null().to_pylist() == [True, False]
    with pytest.raises(InvalidArgument, match="out of the range of timestamps"):
        instants([2**60], "s")
