"""`nulls="ignore"` in the sinks: a window has the sums that Spark's own aggregates have of rows with nulls."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sash_client import InvalidArgument
from sash_spark import BatchReport, register, sash_sink
from sash_spark.pipeline import Pipeline
from sash_spark.writing.preaggregate import check_preaggregation
from tests.support.pipelines import SPEC, config_in, feed, record

pytestmark = pytest.mark.spark

FIELDS = {"x": "float64", "n": "int64", "s": "string", "b": "bool"}
AGGREGATES = {
    "rows": {"function": "count"},
    "sum_x": {"function": "sum", "field": "x"},
    "count_x": {"function": "count", "field": "x"},
    "mean_n": {"function": "mean", "field": "n"},
    "min_n": {"function": "min", "field": "n"},
    "max_s": {"function": "max", "field": "s"},
}
WINDOW = {"name": "w", "time_unit": "ms", "keyed": True, "fields": FIELDS, "aggregates": AGGREGATES}
SCHEMA = "k string, at timestamp_ntz, x double, n long, s string, b boolean"


@pytest.fixture
def nullable(client):
    return client.create_window({**WINDOW, "nullable": list(FIELDS)})


def frame(spark):
    """Nulls in every field, NaN as a value, and a key without any value."""
    return spark.sql(
        """
        SELECT k, timestamp_millis(1700000000000 + i * 250)::timestamp_ntz AS at,
               CASE WHEN k = 'none' OR i % 3 = 0 THEN NULL WHEN i = 10 THEN double('NaN') ELSE i / 4 END AS x,
               CASE WHEN k = 'none' OR i % 5 < 2 THEN NULL ELSE i END AS n,
               CASE WHEN k = 'none' OR i % 2 = 0 THEN NULL ELSE concat('s', i) END AS s,
               CASE WHEN i % 4 = 0 THEN NULL ELSE i % 4 = 1 END AS b
        FROM (SELECT id AS i, element_at(array('a', 'b', 'c', 'none'), int(1 + id % 4)) AS k FROM range(200))
        """
    ).repartition(3)


def spark_s_own(rows, *by):
    found = rows.groupBy("k", *by).agg(
        F.count("*").alias("rows"),
        F.sum("x").alias("sum_x"),
        F.count("x").alias("count_x"),
        F.avg("n").alias("mean_n"),
        F.min("n").alias("min_n"),
        F.max("s").alias("max_s"),
    )
    return [row.asDict() for row in found.collect()]


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value, nan_ok=True)), name


def test_the_sink_and_the_format_have_spark_s_sums(spark, target, nullable):
    rows = frame(spark)
    reports: list[BatchReport] = []
    sink = sash_sink(target, window="w", time="at", key="k", query="q", nulls="ignore", on_batch=reports.append)
    sink(rows, 0)
    assert (reports[0].inserted, reports[0].bad) == (200, 0)
    own = spark_s_own(rows)
    assert {row["k"] for row in own} == {"a", "b", "c", "none"}
    for row in own:
        same(nullable.query(key=row.pop("k"))[0].aggregates, row)
    register(spark)
    options = {"target": target, "window": "w"}
    buckets = spark.read.format("sash").options(**options, what="series", step="10s").load()
    expected = {
        (row["k"], row.pop("w")["start"]): row for row in spark_s_own(rows, F.window("at", "10 seconds").alias("w"))
    }
    found = {
        (row["key"], row["time"].replace(tzinfo=None)): row.asDict() for row in buckets.where("entries > 0").collect()
    }
    assert found.keys() == expected.keys()
    for place, row in expected.items():
        same({name: found[place][name] for name in AGGREGATES}, {name: row[name] for name in AGGREGATES})
    back = spark.read.format("sash").options(**options).load().drop("time")
    assert back.select("key", *FIELDS).exceptAll(rows.select("k", *FIELDS)).count() == 0
    write = rows.write.format("sash").options(**options, time="at", key="k", nulls="ignore").mode("append")
    write.save()
    assert nullable.query(key="none")[0].aggregates["rows"] == 100


def test_rows_with_nulls_are_bad_where_the_field_may_not_be_null(spark, client, target):
    window = client.create_window({**WINDOW, "nullable": ["n", "s", "b"]})
    rows = frame(spark)
    sink = sash_sink(target, window="w", time="at", key="k", query="q", nulls="ignore")
    with pytest.raises(
        Exception, match=r"column 'x' is null, which field 'x' may not be \(nullable in the window's spec"
    ):
        sink(rows, 0)
    with pytest.raises(Exception, match=r"column '[xnsb]' is null in "):
        sash_sink(target, window="w", time="at", key="k", query="q")(rows, 0)
    kept = rows.where("x IS NOT NULL").count()
    drops = sash_sink(target, window="w", time="at", key="k", query="q", nulls="ignore", bad_rows="drop")
    drops(rows, 0)
    assert (drops.total.bad, drops.total.inserted) == (200 - kept, kept)
    assert window.describe().entries == kept


def test_what_is_refused_before_a_row_is_read(spark, client, target):
    with pytest.raises(InvalidArgument) as caught:
        sash_sink(target, window="w", time="at", nulls="drop")
    assert caught.value.field == "nulls"
    with pytest.raises(InvalidArgument) as caught:
        sash_sink(target, window="w", time="at", nulls="ignore", preaggregate=True)
    assert caught.value.field == "nulls"
    client.create_window(WINDOW)
    with pytest.raises(InvalidArgument, match=r"nullable: \[") as caught:
        sash_sink(target, window="w", time="at", key="k", query="q", nulls="ignore")(frame(spark), 0)
    assert caught.value.field == "nulls"
    panes = {**WINDOW, "name": "panes", "granularity": "1s", "nullable": ["x"]}
    with pytest.raises(InvalidArgument) as caught:
        check_preaggregation(client.create_window(panes).spec)
    assert caught.value.field == "nullable"


def test_changes_set_and_take_away_values(client, target):
    schema = pa.schema([("op", pa.string()), ("t", pa.int64()), ("id", pa.int64()), ("x", pa.float64())])
    window = client.create_window(
        {
            "name": "w",
            "time_unit": "none",
            "fields": {"id": "int64", "x": "float64"},
            "nullable": ["x"],
            "identity": "id",
            "aggregates": {"sum": {"function": "sum", "field": "x"}, "rows": {"function": "count"}},
        }
    )
    sink = sash_sink(target, window="w", time="t", op="op", nulls="ignore")
    route = sink.route.fitted(from_arrow_schema(schema))

    def write(number, *rows):
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        route.commit("q", number, [route.stage(iter(table.to_batches()), "q", number)], streaming=True)
        return window.query()[0].aggregates

    assert write(0, ("insert", 1, 1, 2.0), ("insert", 2, 2, None)) == {"rows": 2, "sum": 2.0}
    assert write(1, ("update", 1, 1, None), ("update", 2, 2, 5.0)) == {"rows": 2, "sum": 5.0}
    assert write(2, ("update", 2, 2, None), ("delete", 1, 1, None)) == {"rows": 1, "sum": None}


def test_a_pipeline_follows_the_spec_that_it_creates_its_window_from(spark, client, target, tmp_path):
    feed(tmp_path, record(1, v=2.0), record(2, v=None), record(3, k=None, v=None))
    spec = {**SPEC, "nullable": ["v"], "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}}}
    bad = {"path": str(tmp_path / "bad")}
    total = Pipeline(config_in(tmp_path, target, windows=[{"spec": spec}], bad_records=bad), spark).run()
    assert total.bad == {"key (k) is null": 1}
    assert client.window("w").query(key="x")[0].aggregates == {"n": 2, "sum": 2.0}
