"""What works with the PySpark that is imported: ``python -m tests.spark.features`` prints one JSON object.

`test_versions.py` runs it with several versions of PySpark, each in a process of its own.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sash_client import Client
from sash_client.local import local_service
from sash_spark.session import local_session

SCHEMA = "at timestamp, k string, v double"
ROWS = [(dt.datetime(2020, 1, 1) + dt.timedelta(seconds=i), f"k{i % 3}", float(i)) for i in range(60)]
WINDOW = {"keyed": True, "fields": {"v": "float64"}, "aggregates": {"sum": {"function": "sum", "field": "v"}}}
SUMS = {f"k{k}": float(sum(range(k, 60, 3))) for k in range(3)}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Run:
    """One Spark, one service, and rows as a table and as a stream."""

    def __init__(self, spark: SparkSession, target: str, scratch: Path) -> None:
        self.spark, self.target, self.scratch = spark, target, scratch
        self.table().coalesce(1).write.parquet(str(scratch / "rows"))

    def table(self) -> DataFrame:
        return self.spark.createDataFrame(ROWS, SCHEMA)

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).parquet(str(self.scratch / "rows"))

    def window(self, name: str) -> None:
        with Client(self.target) as client:
            client.create_window(WINDOW | {"name": name})

    def sums(self, name: str) -> dict[str, float]:
        with Client(self.target) as client:
            return {f"k{k}": client.window(name).query(key=f"k{k}")[0].aggregates["sum"] for k in range(3)}

    def started(self, frame: DataFrame, name: str) -> None:
        """Run a stream into a table, again where Spark has not waited for its Python worker."""
        for attempt in itertools.count():
            checkpoint = str(self.scratch / f"{name}-{attempt}")
            writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            try:
                writer.format("memory").queryName(name).outputMode("append").start().awaitTermination()
            except StreamingQueryException as error:
                if "Python worker failed to connect back" not in str(error):
                    raise
            else:
                return


def found_by_spark(run: Run) -> None:
    """`format("sash")` without `register`"""
    run.window("found")
    options = {"target": run.target, "window": "found", "time": "at", "key": "k"}
    run.table().write.format("sash").options(**options).mode("append").save()
    assert run.sums("found") == SUMS


def foreach_batch(run: Run) -> None:
    """`sash_sink` in `foreachBatch`"""
    from sash_spark import sash_sink

    run.window("foreach")
    sink = sash_sink(run.target, window="foreach", time="at", key="k")
    writer = run.stream().writeStream.foreachBatch(sink).option("checkpointLocation", str(run.scratch / "foreach"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert run.sums("foreach") == SUMS


def preaggregate(run: Run) -> None:
    """`preaggregate=True`"""
    from sash_spark import sash_sink

    with Client(run.target) as client:
        client.create_window(WINDOW | {"name": "panes", "granularity": "10s"})
    sash_sink(run.target, window="panes", time="at", key="k", query="q", preaggregate=True)(run.table(), 0)
    assert run.sums("panes") == SUMS


def batch_format(run: Run) -> None:
    """`write.format("sash")`"""
    from sash_spark import register

    register(run.spark)
    run.window("batch")
    options = {"target": run.target, "window": "batch", "time": "at", "key": "k"}
    run.table().write.format("sash").options(**options).mode("append").save()
    assert run.sums("batch") == SUMS


def stream_format(run: Run) -> None:
    """`writeStream.format("sash")`"""
    from sash_spark import register

    register(run.spark)
    run.window("stream")
    options = {"target": run.target, "window": "stream", "time": "at", "key": "k"}
    writer = run.stream().writeStream.format("sash").options(**options)
    writer = writer.option("checkpointLocation", str(run.scratch / "stream")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert run.sums("stream") == SUMS


def read_answers(run: Run) -> None:
    """`read.format("sash")`"""
    from sash_spark import register, sash_sink

    register(run.spark)
    run.window("read")
    sash_sink(run.target, window="read", time="at", key="k", query="q")(run.table(), 0)
    reader = run.spark.read.format("sash").option("target", run.target).option("window", "read")
    found = reader.option("what", "answers").load()
    assert {row["key"]: row["sum"] for row in found.collect()} == SUMS


def pairs(run: Run) -> None:
    """`answers_at`"""
    from sash_spark import answers_at, sash_sink

    run.window("pairs")
    sash_sink(run.target, window="pairs", time="at", key="k", query="q")(run.table(), 0)
    found = answers_at(run.table(), run.target, window="pairs", time="at", key="k", lookbacks=["9s"])
    for row in found.collect():
        assert row["sum_9s"] == sum(range(int(row["v"]) % 3, int(row["v"]) + 1, 3)[-3:])


def expected_windows(run: Run) -> list[tuple[object, ...]]:
    own = run.table().groupBy("k", F.window("at", "10 seconds", "2 seconds").alias("w")).agg(F.sum("v").alias("sum"))
    return sorted(map(tuple, own.select("k", "w.start", "sum").collect()))


def sliding(run: Run, frame: DataFrame, **options: str) -> DataFrame:
    from sash_spark.sliding import sliding_aggregate

    aggregates = {"sum": {"function": "sum", "field": "v"}}
    found = sliding_aggregate(frame, key="k", time="at", windows=["10s"], emit="2s", aggregates=aggregates, **options)
    return found.select("k", "start", "sum")


def sliding_table(run: Run) -> None:
    """`sliding_aggregate`, table"""
    assert sorted(map(tuple, sliding(run, run.table()).collect())) == expected_windows(run)


def sliding_stream(run: Run) -> None:
    """`sliding_aggregate`, stream"""
    run.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    run.started(sliding(run, run.stream(), watermark="0 seconds"), "slides")
    closed = [one for one in expected_windows(run) if one[1] <= ROWS[-1][0] - dt.timedelta(seconds=10)]  # type: ignore[operator]
    assert sorted(map(tuple, run.spark.table("slides").collect())) == closed


FEATURES: tuple[Callable[[Run], None], ...] = (
    *(
        found_by_spark,
        foreach_batch,
        preaggregate,
        batch_format,
        stream_format,
        read_answers,
        pairs,
        sliding_table,
        sliding_stream,
    ),
)


def cause(error: Exception) -> str:
    """The line of an error that says why; Spark puts Python's traceback before it."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if re.match(r"[\w.]*(Error|Argument): ", line)), lines[0])


def main() -> None:
    """Try each feature, and print what came of it."""
    with tempfile.TemporaryDirectory() as directory, local_service(wait_s=600) as service:
        scratch = Path(directory)
        spark = local_session("features", scratch)
        found = {}
        run = Run(spark, service.target, scratch)
        for feature in FEATURES:
            try:
                feature(run)
                found[feature.__doc__] = "works"
            except Exception as error:  # any: this is what the table says
                found[feature.__doc__] = cause(error)
        spark.stop()
    print(json.dumps({"pyspark": pyspark.__version__, "python": sys.version.split()[0], "features": found}))


if __name__ == "__main__":
    main()
