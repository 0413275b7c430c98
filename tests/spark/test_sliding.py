"""`sliding_aggregate` on a local Spark: what comes out is what Spark's own `window` makes of the same rows.

Streams read Parquet files; `Stream.run` writes one at a time and waits until the query has dealt with it, including the
empty micro-batch that finds the watermark moved.
"""

import datetime as dt
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampNTZType

from sash_client import InvalidArgument
from sash_spark.sliding import sliding_aggregate
from tests.spark.conftest import set_in
from tests.support.spark_streams import settled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sliding_state")]

START = dt.datetime(2020, 1, 1)
ROWS = "at timestamp, k string, v long, x double, s string"
AGGREGATES = {
    "n": {"function": "count"},
    "sum": {"function": "sum", "field": "v"},
    "deviation": {"function": "stddev", "field": "x"},
    "largest": {"function": "max", "field": "x"},
    "distinct": {"function": "distinct_count", "field": "s"},
}


def own_aggregates(distinct=F.countDistinct):
    """The same in Spark's words."""
    return [
        F.count("*").alias("n"),
        F.sum("v").alias("sum"),
        F.stddev("x").alias("deviation"),
        F.max("x").alias("largest"),
        distinct("s").alias("distinct"),
    ]


def row(second, key, value):
    return START + dt.timedelta(seconds=second), key, value, value % 11 * 0.25, f"s{value % 6}"


def at(second):
    return START + dt.timedelta(seconds=second)


def own_windows(frame, widths, step):
    """What Spark's `window` makes of a table."""
    out = []
    for width in widths:
        found = frame.groupBy("k", F.window("at", f"{width} seconds", f"{step} seconds").alias("w"))
        found = found.agg(F.count("*").alias("entries"), *own_aggregates())
        out += found.select("k", F.lit(f"{width}s"), "w.start", "w.end", *found.columns[2:]).collect()
    return ordered(out)


def ordered(rows):
    return sorted((tuple(found) for found in rows), key=lambda found: tuple(map(str, found[:4])))


def assert_same(found, expected):
    """Equal but for the last bits of the deviation."""
    assert len(found) == len(expected)
    for ours, theirs in zip(ordered(found), expected, strict=True):
        assert ours[:7] + ours[8:] == theirs[:7] + theirs[8:]
        assert ours[7] == (None if theirs[7] is None else pytest.approx(theirs[7], abs=1e-12))


class Stream:
    """One query over the files of a directory; `answers` has what it has emitted, by micro-batch."""

    def __init__(self, spark, path, schema=ROWS, **options):
        self.spark, self.path, self.options, self.schema = spark, path, options, schema
        self.files = itertools.count()
        self.answers = {}
        self.metrics = {}
        (path / "in").mkdir(parents=True, exist_ok=True)

    def source(self):
        return self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.path / "in"))

    def run(self, *files, beside=()):
        """Start from the checkpoint, write files and deal with each, stop; raises what the query raises.

        Without files, deal with those that are there.

        `beside` are other queries over `source()` that run already.
        """

        def keep(batch, number):
            rows = ordered(batch.collect())
            assert self.answers.get(number, rows) == rows, "a batch that is repeated has the same rows"
            self.answers[number] = rows

        queries = []

        def start():
            writer = sliding_aggregate(self.source(), **self.options).writeStream.foreachBatch(keep)
            queries.append(writer.option("checkpointLocation", str(self.path / "checkpoint")).start())
            return queries[-1]

        query = start()
        try:
            for rows in files or [None]:
                if rows is not None:
                    self.write(rows)
                query = settled(start, query)
                for each in beside:
                    each.processAllAvailable()
            for progress in (progress for each in queries for progress in each.recentProgress):
                self.metrics[progress["batchId"]] = progress["observedMetrics"].get("sliding")
        finally:
            queries[-1].stop()

    def write(self, rows):
        schema = to_arrow_schema(StructType.fromDDL(self.schema), timezone="UTC")
        table = pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in rows], schema)
        pq.write_table(table, self.path / "one")
        (self.path / "one").rename(self.path / "in" / f"{next(self.files):03d}.parquet")

    @property
    def rows(self):
        return [found for number in sorted(self.answers) for found in self.answers[number]]

    @property
    def late(self):
        return sum(found["late"] for found in self.metrics.values() if found)


def test_a_stream_gives_what_spark_s_windows_give(spark, tmp_path):
    """Several keys, out of order within the watermark, several files, and a restart between them."""
    disorder = [0, 3, -4, 2, -5, 1, 5, -1]
    rows = [row(40 + i // 2 + disorder[i % 8], f"k{i % 3}", i) for i in range(240)]
    rows += [row(190, None, 7), row(192, "k1", 8)]  # a silence, and a null key
    stream = Stream(
        *(spark, tmp_path),
        key="k",
        time="at",
        windows=["10s", "25s"],
        emit="2s",
        aggregates=AGGREGATES,
        watermark="12 seconds",
    )
    stream.run(rows[:100])
    before = len(stream.rows)
    stream.write(rows[100:110])
    stream.write([*rows[110:], row(1000, "end", 0)])
    stream.run()
    assert 0 < before < len(stream.rows)
    assert stream.late == 0
    expected = own_windows(spark.createDataFrame(rows, ROWS), (10, 25), 2)
    assert_same(stream.rows, expected)
    assert len({found[:4] for found in stream.rows}) == len(stream.rows), "every window once"


@pytest.mark.parametrize(("at_once", "partitions", "late"), [(False, "3", 5), (True, "1", 1)])
def test_late_rows_are_dropped_as_spark_drops_them_and_counted(spark, tmp_path, partitions, at_once, late):
    """At once, the watermark moves between micro-batches with rows, and late is what was late in the one before.

    Of three partitions, some have no rows at first; Spark's own windows need one.
    """
    files = [
        [row(s, "a", s) for s in range(30)] + [row(3, "silent", 1)],
        # The watermark is at 24: a window of 10 s that holds 14 has ended, one that holds 15 is open.
        [row(14, "a", 100), row(15, "a", 101), row(13, "new", 102), row(20, "new", 103), row(40, "a", 104)],
        # At 35: a key without state, and one that was silent, count in the same windows as the others.
        [
            row(25, "a", 105),
            row(24, "new", 106),
            row(26, "silent", 107),
            row(27, "newer", 108),
            row(10, "n", 109),
            row(90, "a", 107),
        ],
    ]
    stream = Stream(spark, tmp_path, key="k", time="at", windows=["10s"], emit="1s", aggregates=AGGREGATES)
    stream.options["watermark"] = "5 seconds"
    own = (
        stream.source()
        .withWatermark("at", "5 seconds")
        .groupBy("k", F.window("at", "10 seconds", "1 second").alias("w"))
    )
    own = own.agg(F.count("*").alias("entries"), *own_aggregates(F.approx_count_distinct))
    own = own.select("k", F.lit("10s"), "w.start", "w.end", *own.columns[2:])
    theirs = {}
    query = own.writeStream.foreachBatch(lambda batch, number: theirs.update({number: batch.collect()}))
    query = query.outputMode("append").option("checkpointLocation", str(tmp_path / "theirs")).start()
    try:
        if at_once:
            for rows in files:
                stream.write(rows)
            files = []
        with set_in(spark, {"spark.sql.shuffle.partitions": partitions}):
            stream.run(*files, beside=[query])
    finally:
        query.stop()
    assert_same(stream.rows, ordered(found for part in theirs.values() for found in part))
    assert len({found[:4] for found in stream.rows}) == len(stream.rows), "every window once"
    assert stream.late == late


def test_update_gives_the_current_answers_of_each_key(spark, tmp_path):
    schema = "at timestamp_ntz, `odd.name` long, v double"
    stream = Stream(
        *(spark, tmp_path, schema),
        key="odd.name",
        time="at",
        windows=["10s", "1m"],
        aggregates={
            "all": {"function": "collect", "field": "v"},
            "quartiles": {"function": "quantile", "field": "v", "q": [0.25, 0.75]},
            "m4": {"function": "m4", "field": "v"},
        },
    )
    stream.run([(at(s), s % 2, float(s)) for s in range(60)])
    # 0 goes on; 1 gets a row that no window of the key holds, and one that only the longer does.
    stream.run([(at(62), 0, 62.0), (at(-2), 1, -2.0), (at(5), 1, 5.0)])
    first, second = stream.answers[0], stream.answers[1]
    assert isinstance(spark.createDataFrame([], schema).schema["at"].dataType, TimestampNTZType)
    assert [found[:5] for found in first] == [
        (0, "10s", at(48), at(58), 5),
        (0, "1m", at(-2), at(58), 30),
        (1, "10s", at(49), at(59), 5),
        (1, "1m", at(-1), at(59), 30),
    ]
    assert first[0][5] == [50.0, 52.0, 54.0, 56.0, 58.0]
    assert [found[:5] for found in second] == [
        (0, "10s", at(52), at(62), 4),
        (0, "1m", at(2), at(62), 29),
        (1, "10s", at(49), at(59), 5),
        (1, "1m", at(-1), at(59), 31),
    ]
    assert [found[5] for found in second[::2]] == [[54.0, 56.0, 58.0, 62.0], [51.0, 53.0, 55.0, 57.0, 59.0]]
    assert second[3][5] == [1.0, 3.0, 5.0, 5.0, *(float(s) for s in range(7, 60, 2))]
    assert second[0][6] == [54.0, 58.0]
    assert second[0][7]["min"].asDict() == {"time": 1_577_836_854_000_000, "value": 54.0}
    assert stream.late == 1


def test_windows_of_windows_follow_the_watermark(spark, tmp_path):
    """`end` carries the watermark: Spark's own windows behind it end, as they do behind its own windows."""

    def twice(windows, end):
        windows = windows.groupBy("k", F.window(end, "1 minute").alias("m"))
        return windows.agg(F.count("*").alias("n"), F.sum("n").alias("rows")).select("k", "m.start", "n", "rows")

    def started(frame, name):
        def keep(batch, number):
            found[name] += [tuple(row) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(keep).outputMode("append")
        return writer.option("checkpointLocation", str(tmp_path / name)).start

    found = {"ours": [], "theirs": []}
    stream = Stream(spark, tmp_path, aggregates={"n": {"function": "count"}})
    source = stream.source().withWatermark("at", "5 seconds")
    ours = sliding_aggregate(
        source, key="k", time="at", windows=["10s"], aggregates={"n": {"function": "count"}}, emit="5s"
    )
    own = source.groupBy("k", F.window("at", "10 seconds", "5 seconds").alias("w")).agg(F.count("*").alias("n"))
    starts = [
        started(twice(ours.drop("entries"), "end"), "ours"),
        # Spark takes a window's `end` less a microsecond for its time.
        started(twice(own.select("k", F.window_time("w").alias("at"), "n"), "at"), "theirs"),
    ]
    stream.write([row(s, f"k{s % 2}", s) for s in range(150)])
    stream.write([row(140, "k0", 0), row(230, "k1", 0)])
    stream.write([row(400, "k0", 0)])
    queries = [start() for start in starts]
    try:
        queries = [settled(start, query) for start, query in zip(starts, queries, strict=True)]
    finally:
        for query in queries:
            query.stop()
    assert len(found["ours"]) >= 4
    assert sum(n for _, _, n, _ in found["ours"]) == sum(n for _, _, n, _ in found["theirs"])


def test_state_of_other_aggregates_fails_the_query(spark, tmp_path):
    options = {"key": "k", "time": "at", "windows": ["10s"], "watermark": "1 second"}
    stream = Stream(spark, tmp_path, **options, aggregates={"n": {"function": "count"}})
    stream.run([row(1, "a", 1)])
    stream.options["aggregates"] = {"n": {"function": "sum", "field": "v"}}
    with pytest.raises(StreamingQueryException, match="belongs to other keys, fields, aggregates, windows or steps"):
        stream.run([row(2, "a", 1)])


def test_a_missing_value_fails_the_query_and_names_the_column(spark, tmp_path):
    stream = Stream(spark, tmp_path, time="at", windows=["10s"], aggregates={"sum": {"function": "sum", "field": "v"}})
    with pytest.raises(StreamingQueryException, match="column 'v' has 1 missing values"):
        stream.run([(START, "a", None, 1.0, "s")])


def test_a_table_gives_what_spark_s_windows_give(spark):
    rows = [row(i * 7 % 200, f"k{i % 3}", i) for i in range(300)]
    frame = spark.createDataFrame(rows, ROWS)
    found = sliding_aggregate(
        frame, key="k", time="at", windows=["10s", "25s"], emit="2s", aggregates=AGGREGATES
    ).collect()
    assert_same(found, own_windows(frame, (10, 25), 2))


def test_a_table_without_a_key(spark):
    rows = [row(i, "k", i) for i in range(100)]
    options = {"time": "at", "windows": ["10s"], "aggregates": {"sum": {"function": "sum", "field": "v"}}}
    (found,) = sliding_aggregate(spark.createDataFrame(rows, ROWS), **options).collect()
    assert found.asDict() == {"width": "10s", "start": at(89), "end": at(99), "entries": 10, "sum": sum(range(90, 100))}
    assert sliding_aggregate(spark.createDataFrame([], ROWS), **options, emit="1s").collect() == []


def test_steps_need_a_watermark_and_tables_have_none(spark, tmp_path):
    options = {"time": "at", "windows": ["10s"], "aggregates": {"n": {"function": "count"}}, "emit": "1s"}
    with pytest.raises(InvalidArgument) as caught:
        sliding_aggregate(spark.readStream.schema(ROWS).parquet(str(tmp_path)), **options)
    assert caught.value.field == "watermark"
    with pytest.raises(InvalidArgument) as caught:
        sliding_aggregate(spark.createDataFrame([], ROWS), **options, watermark="1 second")
    assert caught.value.field == "watermark"
