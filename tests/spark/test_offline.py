"""Answers from a table of history in Spark: the rows that the engine answers in process, to the last bit."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from sash_client import InvalidArgument
from sash_client.offline import answers_at
from sash_spark import answers_offline
from tests.clients.test_offline import KINDS, START, pairs_of, spec_of, table_of
from tests.spark.conftest import set_in
from tests.support.pairs import bits

pytestmark = pytest.mark.spark


def plain(value):
    """An answer of Spark's as the client has it: structs are mappings."""
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, bytearray):
        return bytes(value)
    return [plain(each) for each in value] if isinstance(value, list) else value


def history(seed, n=300, keys=4, until=60):
    random = np.random.default_rng(seed)
    columns = random.integers(0, keys, n), random.integers(1, until, n), random.integers(-9, 99, n)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("kind", "part", "parts"), [*(("keys", part, 2) for part in range(2)), *((k, 3, 8) for k in KINDS)]
)
def test_spark_answers_the_same(spark, kind, part, parts):
    spec = spec_of(kind, part, parts)
    rows = history(part)
    asked = [(i % 6, 3 * i - 5) for i in range(25)]
    table, pairs = table_of(spec, rows), pairs_of(spec, asked)
    pairs = pairs.append_column("row", pa.array(range(len(asked))))
    expected = answers_at(table, pairs, spec, lookbacks=["7", "40"])
    found = answers_offline(spark.createDataFrame(table), spark.createDataFrame(pairs), spec, lookbacks=["7", "40"])
    assert found.columns == expected.column_names
    got = sorted(found.collect(), key=lambda row: row["row"])
    for name in expected.column_names:
        for row, value in zip(got, expected[name].to_pylist(), strict=True):
            assert bits(plain(row[name])) == bits(value), (name, row)


SPEC = {
    "name": "flights",
    "keyed": True,
    "fields": {"delay": "float64", "tail": "string"},
    "slide": {"max_age": "1h"},
    "aggregates": {
        "all": {"function": "collect", "field": "tail"},
        "sum": {"function": "sum", "field": "delay"},
        "entries": {"function": "count"},
    },
}
NAMES = {"entry_time": "left", "entry_key": "airport", "time": "at", "key": "airport", "lookbacks": ["1h"]}


@pytest.fixture
def in_new_york(spark):
    with set_in(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        yield


@pytest.fixture
def flights(spark):
    rows = [(["JFK", "LGA"][i % 2], START + 60 * (i // 40), i, f"N{i}", None) for i in range(200)]
    frame = spark.createDataFrame(rows, "airport string, seconds long, delay int, Tail string, more string")
    return frame.select("*", F.timestamp_seconds("seconds").alias("Left")).drop("seconds")


@pytest.fixture
def pairs(spark):
    rows = [("JFK", START + 60, 1.5, ["x"]), ("LGA", START, 2.5, None), ("EWR", START, None, [])]
    frame = spark.createDataFrame(rows, "airport string, seconds long, SUM_1h double, tags array<string>")
    at = F.timestamp_seconds("seconds")
    nested = F.struct(F.array(at).alias("some"), F.create_map(F.lit("a"), at).alias("named")).alias("nested")
    return frame.select("*", at.alias("at"), nested)


@pytest.mark.parametrize("buckets", [None, 1, 50])
def test_columns_in_any_case_and_rows_as_they_were(flights, pairs, in_new_york, buckets):
    """Entries of one time count in the order of the rows, whichever task had them."""
    found = answers_offline(
        flights.repartition(3).orderBy("delay"),
        pairs,
        SPEC,
        **NAMES,
        buckets=buckets,
    )
    assert found.columns == [*pairs.columns, "entries_1h", "all_1h", "aggregates.entries_1h", "aggregates.sum_1h"]
    rows = {row["airport"]: row for row in found.collect()}
    even = list(range(0, 80, 2))
    assert rows["JFK"]["all_1h"] == [f"N{i}" for i in even]
    assert (rows["JFK"]["aggregates.sum_1h"], rows["JFK"]["entries_1h"]) == (sum(even), len(even))
    assert (rows["LGA"]["entries_1h"], rows["EWR"]["entries_1h"]) == (20, 0)
    given = {row["airport"]: tuple(row) for row in pairs.collect()}
    assert {airport: tuple(row)[: len(pairs.columns)] for airport, row in rows.items()} == given


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"entry_time": "when"}, "when"),
        ({"key": "port"}, "port"),
        ({"entry_key": "delay"}, "key"),
        ({"lookbacks": ["never"]}, "lookback"),
        ({"aggregates": ["none"]}, "aggregates"),
        ({"spec": SPEC | {"order": {"ahead": "5m"}}}, "order.ahead"),
        ({"spec": SPEC | {"fields": {"speed": "float64", "delay": "float64", "tail": "string"}}}, "speed"),
    ],
)
def test_what_does_not_fit_is_refused_before_spark_runs(flights, pairs, options, field):
    with pytest.raises(InvalidArgument) as refused:
        answers_offline(flights, pairs, **({"spec": SPEC} | NAMES | options))
    assert refused.value.field == field


def test_missing_values_fail_the_query(flights, pairs):
    found = answers_offline(flights.withColumn("delay", F.nullif("delay", F.lit(7))), pairs, SPEC, **NAMES)
    with pytest.raises(Exception, match="delay has missing values"):
        found.collect()
