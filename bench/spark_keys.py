"""Fine-sliding windows of many keys in Spark: the sum over ten minutes at every minute, of each of 100,000 keys.

    window       Spark's own `groupBy(key, window(time, "10 minutes", "1 minute"))` on a table
    nothing      the rows of the table go to Python by key, as for `aggregate`, and are dropped: what Spark itself takes
    aggregate    `sliding_aggregate` on the same table
    stream       `sliding_aggregate` on the same rows as a stream of one micro-batch per file, state in RocksDB

Each case runs in a process and a Spark session of its own, on the same Parquet files, two tasks at a time. Processor
time is that of all processes; the part of Python is that of the workers that are there at the end. All cases must have
the same number of windows and the same total of sums; the stream leaves out the windows that are open at the end.

Run ``python -m bench.spark_keys`` (minutes), ``--rows``, ``--keys`` and ``--cases`` to change what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.spark import SECOND, START, STREAM, family, processor_s
from sash_spark.session import local_session
from sash_spark.sliding import sliding_aggregate

FILES, OVER_S, WIDTH_S, STEP_S = 8, 3_600, 600, 60
SCHEMA = "at timestamp, key string, value double"
CASES = ("window", "nothing", "aggregate", "stream")


def write_rows(rows: int, keys: int, directory: Path) -> None:
    """Write rows of random keys and times, file by file in order of time."""
    rng = np.random.default_rng(7)
    names = pa.array([f"key-{i:06d}" for i in range(keys)])
    directory.mkdir()
    for i in range(FILES):
        low, high = (START + part * OVER_S * SECOND // FILES for part in (i, i + 1))
        count = rows // FILES
        columns = {
            "at": pa.array(np.sort(rng.integers(low, high, count))).cast(pa.timestamp("us", "UTC")),
            "key": names.take(pa.array(rng.integers(0, keys, count))),
            "value": rng.integers(-4_000, 4_000, count) / 4,  # quarters: sums are exact in any order
        }
        pq.write_table(pa.table(columns), directory / f"{i:03d}.parquet")


def sliding(frame: DataFrame, **options: str) -> DataFrame:
    """The question."""
    return sliding_aggregate(
        frame,
        key="key",
        time="at",
        windows=[f"{WIDTH_S}s"],
        aggregates={"sum": {"function": "sum", "field": "value"}},
        emit=f"{STEP_S}s",
        **options,
    )


def totals(frame: DataFrame) -> list[float]:
    """How many windows that have ended there are, and the total of their sums."""
    ended = F.lit(START + (OVER_S - STEP_S) * SECOND)
    found = frame.where(F.unix_micros("end") <= ended).agg(F.count("*"), F.coalesce(F.sum("sum"), F.lit(0.0))).first()
    assert found is not None
    return list(found)


def dropped(table: DataFrame) -> int:
    """Return how many rows came to Python, by key, in as many tasks as `sliding_aggregate` has."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([sum(batch.num_rows for batch in batches)])], ["rows"])

    found = table.select("key", "at", "value").repartition(8, "key").mapInArrow(counted, "rows long")
    return sum(row["rows"] for row in found.collect())


def run(case: str, spark: SparkSession, rows: Path) -> tuple[list[float], dict[int, int]]:
    """Return the totals, and for each micro-batch its milliseconds."""
    table = spark.read.schema(SCHEMA).parquet(str(rows))
    if case == "window":
        own = table.groupBy("key", F.window("at", f"{WIDTH_S} seconds", f"{STEP_S} seconds").alias("w"))
        return totals(own.agg(F.sum("value").alias("sum")).select("w.end", "sum")), {}
    if case == "nothing":
        return [dropped(table)], {}
    if case == "aggregate":
        return totals(sliding(table)), {}
    found = []

    def add(batch: DataFrame, number: int) -> None:
        found.append(totals(batch))

    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(rows))
    writer = sliding(source, watermark="0 seconds").writeStream.foreachBatch(add)
    query = writer.option("checkpointLocation", str(rows.parent / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = {each["batchId"]: each["durationMs"]["addBatch"] for each in query.recentProgress if each["numInputRows"]}
    return [sum(column) for column in zip(*found, strict=True)], batches


def python_s() -> float:
    """Processor time of this process's Python workers."""
    used = 0.0
    for pid, stat in family(os.getpid()).items():
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if pid != os.getpid() and b"java" not in command.split(b"\0")[0]:
            used += sum(int(each) for each in stat[11:15]) / os.sysconf("SC_CLK_TCK")
    return used


def measure(case: str, scratch: Path) -> dict[str, Any]:
    """Run one case in this process."""
    spark = local_session(f"bench {case}", scratch)
    for name, value in (STREAM | {"spark.sql.shuffle.partitions": "2"}).items():
        spark.conf.set(name, value)
    try:
        spark.read.parquet(str(scratch / "rows")).limit(10).mapInArrow(lambda batches: batches, SCHEMA).collect()
        began, used = time.perf_counter(), processor_s(os.getpid())
        found, batches = run(case, spark, scratch / "rows")
        seconds, used = time.perf_counter() - began, processor_s(os.getpid()) - used
        files = (scratch / "checkpoint").glob("state/**/*") if case == "stream" else []
        return {
            "seconds": round(seconds, 1),
            "processor_s": round(used, 1),
            "python_s": round(python_s(), 1),
            "found": found,
            "state_bytes": sum(f.stat().st_size for f in files if f.is_file()),
            "batches_ms": batches,
        }
    finally:
        spark.stop()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the directory to measure one case in, in this process
    arguments = parser.parse_args(argv)
    if arguments.one:
        print(json.dumps(measure(arguments.cases[0], Path(arguments.one))))
        return 0
    answers = set()
    with tempfile.TemporaryDirectory() as name:
        write_rows(arguments.rows, arguments.keys, Path(name) / "rows")
        for case in arguments.cases:
            command = [sys.executable, "-m", "bench.spark_keys", "--one", name, "--cases", case]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            if case != "nothing":
                answers.add(tuple(result["found"]))
            print(f"{case:10} {result}", flush=True)
    return 1 if len(answers) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
