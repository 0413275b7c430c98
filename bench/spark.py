"""Fine-sliding windows in Spark: rows of one hour, the sum over ten minutes at every second, or of many keys.

    window       Spark's own `groupBy(window(time, "10 minutes", "1 second"))`: every row goes into 600 groups
    aggregate    `sliding_aggregate` on the same table: a row is kept once, a window is folded from panes
    stream       `sliding_aggregate` on the same rows as a stream, state in RocksDB, answers by watermark
    sink         the rows into a durable window (LMDB) with `format("sash")`, then one series query
    nothing      the rows go to Python by key, as for `aggregate`, and are dropped: what Spark itself takes; with keys

    throughput   how fast rows leave Spark, from memory and from files: into its own sink that does nothing, as they are
                 and once through Python and back; into a sink in Python that does nothing; into a durable window.
                 In turns, medians

A million rows without keys. With `--keys 100000` there are ten million, and the sum at every minute; the stream has a
micro-batch for each file, and neither `sink` nor `throughput` runs. Each case runs in a process and a Spark session of
its own, one after the other, on the same Parquet files. Seconds are from the first call until the answers are there:
written as Parquet, or with keys counted and summed. Starting the JVM and one small query before are not counted. Peak
memory is that of the JVM and all Python workers together (their resident sets, sampled ten times a second: pages that
they share are counted for each). Processor time is that of all processes, the service included: two cores have two
seconds of it in each. The part of Python is that of the workers that are there at the end.

Answers without keys are compared with a fold by NumPy, window by window. With keys all cases must have the same number
of windows that have ended, and the same total of their sums. The digest is of the sums that NumPy finds.

Does not show: a cluster, where Spark's own way is as many times slower but has more cores to be so on.

Run ``python -m bench.spark`` (some minutes; Linux), or with ``--smoke`` (figures meaningless). ``--keys``, ``--rows``,
``--cores`` and ``--cases`` change what is measured.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.harness import MIB, arguments, digest, family, in_fresh_process, memory_of, used_s
from sash_client import Client
from sash_client.local import local_service
from sash_spark import register
from sash_spark.session import local_session
from sash_spark.sliding import sliding_aggregate
from tests.support.spark_streams import settled

SECOND = 1_000_000  # all times are in microseconds
START = 1_577_836_800 * SECOND
STATE = "spark.sql.streaming.stateStore"
STREAM = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings of the stream, as the README has them."""


@dataclass(frozen=True)
class Size:
    """How much is measured: rows, keys, and the seconds that they are spread over, the width and the step."""

    rows: int = 1_000_000
    keys: int = 0
    over_s: int = 3_600
    width_s: int = 600
    step_s: int = 1
    files: int = 8
    warming: int = 1
    """Turns that are not counted: the first starts workers."""
    turns: int = 3

    @property
    def schema(self) -> str:
        return f"at timestamp, {'key string, ' * (self.keys > 0)}value double"


SMOKE = Size(rows=5_000, over_s=120, width_s=20, files=2, warming=0, turns=1)


@dataclass(frozen=True)
class Result:
    """What one case took, and the windows that came out; `found` is their number and the total of their sums."""

    seconds: float
    peak_mib: float
    processor_s: float
    python_s: float
    windows: int
    wrong: int
    found: tuple[Any, ...] = ()
    state_bytes: int = 0


# ---------------------------------------------------------------- rows, and the fold


def rows_of(size: Size) -> tuple[Any, Any, Any]:
    """Times in order, int64 (n,), codes of keys, and values, float64 (n,): quarters, so that sums are exact."""
    rng = np.random.default_rng(7)
    times = START + np.sort(rng.integers(0, size.over_s * SECOND, size.rows))
    return times, rng.integers(0, max(size.keys, 1), size.rows), rng.integers(-4_000, 4_000, size.rows) / 4


def write_rows(size: Size, directory: Path) -> None:
    """Write the rows as Parquet files, in order of time."""
    times, codes, values = rows_of(size)
    names = pa.array([f"key-{i:06d}" for i in range(size.keys)], pa.string())
    directory.mkdir()
    for i, part in enumerate(np.array_split(np.arange(size.rows), size.files)):
        keys = {"key": names.take(pa.array(codes[part]))} if size.keys else {}
        columns = {"at": pa.array(times[part]).cast(pa.timestamp("us", "UTC")), **keys, "value": values[part]}
        pq.write_table(pa.table(columns), directory / f"{i:03d}.parquet")


def expected_sums(size: Size) -> dict[int, float]:
    """Start of each window with rows in it, in microseconds -> the sum over it."""
    times, _, values = rows_of(size)
    width, step = size.width_s * SECOND, size.step_s * SECOND
    starts = np.arange((times[0] - width) // step * step + step, times[-1] + 1, step)
    first, stop = times.searchsorted(starts), times.searchsorted(starts + width)
    return {
        int(s): float(values[a:b].sum())
        for s, a, b in zip(starts.tolist(), first.tolist(), stop.tolist(), strict=True)
        if a < b
    }


# ---------------------------------------------------------------- the cases

# A case is a function of (session, size, directory of the rows, what is done with the sums).
Sums = Callable[[Any], None]


def spark_window(spark: SparkSession, size: Size, rows: Path, done: Sums) -> None:
    """Spark's own."""
    window = F.window("at", f"{size.width_s} seconds", f"{size.step_s} seconds").alias("w")
    groups = spark.read.parquet(str(rows)).groupBy(window, *["key"] * (size.keys > 0))
    done(groups.agg(F.sum("value").alias("sum")).select("w.start", "w.end", "sum"))


def sliding_table(spark: SparkSession, size: Size, rows: Path, done: Sums) -> None:
    """`sliding_aggregate` on a table."""
    done(sliding(spark.read.parquet(str(rows)), size))


def sliding_stream(spark: SparkSession, size: Size, rows: Path, done: Sums) -> None:
    """`sliding_aggregate` on a stream of the files; without keys of all at once, and a last row closes the windows."""
    # Rows without a key are all in one partition, and each has a Python worker of its own.
    for name, value in (STREAM | {"spark.sql.shuffle.partitions": "2" if size.keys else "1"}).items():
        spark.conf.set(name, value)
    feed, reader = rows, spark.readStream.schema(size.schema)
    if size.keys:
        reader = reader.option("maxFilesPerTrigger", 1)
    else:
        feed = rows.with_suffix(".feed")
        feed.mkdir()
        for file in rows.iterdir():
            os.link(file, feed / file.name)
        far = START + 2 * (size.over_s + size.width_s) * SECOND
        last = {"at": pa.array([far]).cast(pa.timestamp("us", "UTC")), "value": [0.0]}
        pq.write_table(pa.table(last), feed / "last.parquet")
    sums = sliding(reader.parquet(str(feed)), size, watermark="0 seconds")
    query = sums.writeStream.foreachBatch(lambda batch, number: done(batch)).trigger(availableNow=True)
    query = query.option("checkpointLocation", str(rows.with_suffix(".checkpoint")))
    settled(query.start, wait=lambda started: started.awaitTermination())


def sash_sink_and_series(spark: SparkSession, size: Size, rows: Path, done: Sums) -> None:
    """All rows into a window, then one question for all answers."""
    width, step = size.width_s * SECOND, size.step_s * SECOND
    with local_service(data=str(rows.with_suffix(".sash"))) as service, Client(service.target) as client:
        window = client.create_window(WINDOW)
        written(spark.read.parquet(str(rows)), service.target)
        start = (START - width) // step * step
        series = window.series(start, START + size.over_s * SECOND, step=step, width=width)
    there = series.entries > 0
    starts = pa.array(series.times[there]).cast(pa.timestamp("us", "UTC"))
    done(pa.table({"start": starts, "sum": series.aggregates["sum"][there]}))


def dropped(spark: SparkSession, size: Size, rows: Path, done: Sums) -> None:
    """The rows to Python, by key, in as many tasks as `sliding_aggregate` has."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([sum(batch.num_rows for batch in batches)])], ["rows"])

    table = spark.read.parquet(str(rows)).select("key", "at", "value").repartition(8, "key")
    assert sum(row["rows"] for row in table.mapInArrow(counted, "rows long").collect()) == size.rows


CASES: dict[str, Callable[[SparkSession, Size, Path, Sums], None]] = {
    "window": spark_window,
    "aggregate": sliding_table,
    "stream": sliding_stream,
    "sink": sash_sink_and_series,
    "nothing": dropped,
}


def sliding(frame: DataFrame, size: Size, **options: str) -> DataFrame:
    """The question."""
    return sliding_aggregate(
        frame,
        **({"key": "key"} if size.keys else {}),
        time="at",
        windows=[f"{size.width_s}s"],
        aggregates={"sum": {"function": "sum", "field": "value"}},
        emit=f"{size.step_s}s",
        **options,
    )


WINDOW = {"name": "rows", "time_unit": "us", "aggregates": {"sum": {"function": "sum"}}}


def written(frame: DataFrame, target: str) -> None:
    """Write rows into the window, exactly once."""
    register(frame.sparkSession)
    options = {"target": target, "window": "rows", "time": "at"}
    frame.write.format("sash").options(**options).mode("append").save()


# ---------------------------------------------------------------- throughput


def nothing() -> type[DataSource]:
    """A sink that takes Arrow batches in Python and drops them: what any Python sink costs.

    It is made in a function so that workers get it as it is, and do not import this file.
    """

    class DropsAll(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return DropsAll()

    return Nothing


def throughput(size: Size, cores: int, directory: Path) -> None:
    """Print how fast rows leave Spark: into a window, and into sinks that do nothing; from memory, and from files."""
    with tempfile.TemporaryDirectory() as scratch:
        spark = local_session("bench throughput", Path(scratch), cores=cores)
        spark.dataSource.register(nothing())
        try:
            with local_service(data=str(Path(scratch) / "data")) as service, Client(service.target) as client:
                client.create_window(WINDOW | {"slide": {"max_count": 2 * size.rows}})
                files = spark.read.parquet(str(directory / "rows"))
                cached = files.repartition(cores).persist()
                cached.count()
                sinks = WAYS | {"sash": partial(written, target=service.target)}
                ways = {
                    f"{source}: {name}": partial(way, frame)
                    for source, frame in (("cached", cached), ("files", files))
                    for name, way in sinks.items()
                }
                taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
                for turn in range(size.warming + size.turns):
                    for name, way in ways.items():
                        began, used = time.perf_counter(), used_s(os.getpid())
                        way()
                        if turn >= size.warming:
                            taken[name].append((time.perf_counter() - began, used_s(os.getpid()) - used))
        finally:
            spark.stop()
    print(f"{'sink':24} {'seconds':>8} {'rows/s':>12} {'processor s':>12}")
    for name, turns in taken.items():
        seconds, used = (statistics.median(each) for each in zip(*turns, strict=True))
        print(f"{name:24} {seconds:8.2f} {size.rows / seconds:12,.0f} {used:12.2f}")


def into_nothing(frame: DataFrame) -> None:
    """Into Spark's own sink for measurements."""
    frame.write.format("noop").mode("overwrite").save()


def through_python(frame: DataFrame) -> None:
    """Through Python and back, then into nothing."""
    into_nothing(frame.mapInArrow(lambda batches: batches, frame.schema))


def into_nothing_in_python(frame: DataFrame) -> None:
    """To Python, and there into nothing."""
    frame.write.format("nothing").mode("append").save()


WAYS: dict[str, Callable[[DataFrame], None]] = {
    "noop": into_nothing,
    "noop behind Python": through_python,
    "nothing in Python": into_nothing_in_python,
}


# ---------------------------------------------------------------- measuring


class Peak:
    """Samples the resident memory of this process and all that it started."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            bytes_ = 0
            for pid in family(os.getpid()):
                with suppress(OSError, KeyError):  # it has ended meanwhile
                    bytes_ += memory_of(pid, "VmRSS")[0]
            self.mib = max(self.mib, bytes_ / MIB)


def python_s() -> float:
    """Processor time of this process's Python workers."""
    found = 0.0
    for pid in family(os.getpid())[1:]:
        with suppress(OSError):  # it has ended meanwhile
            if b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                found += used_s(pid, alone=True)
    return found


def measure(case: str, size: Size, cores: int, scratch: Path) -> Result:
    """Run one case in this process."""
    out, found = scratch / case, list[Any]()
    spark = local_session(f"bench {case}", scratch, cores=cores)
    if size.keys:
        spark.conf.set("spark.sql.shuffle.partitions", "2")

    def write(sums: DataFrame | pa.Table) -> None:
        if isinstance(sums, pa.Table):
            out.mkdir()
            pq.write_table(sums, out / "answers.parquet")
            return
        sums.select("start", "sum").write.mode("append").parquet(str(out))

    def add(sums: DataFrame) -> None:
        ended = sums.where(F.unix_micros("end") <= START + (size.over_s - size.step_s) * SECOND)
        found.append(tuple(ended.agg(F.count("*"), F.coalesce(F.sum("sum"), F.lit(0.0))).first()))

    try:
        first = spark.read.parquet(str(scratch / "rows")).limit(10)
        first.mapInArrow(lambda batches: batches, size.schema).collect()
        peak = Peak()
        began, used = time.perf_counter(), used_s(os.getpid())
        CASES[case](spark, size, scratch / "rows", add if size.keys else write)
        took = time.perf_counter() - began, used_s(os.getpid()) - used
        peak.stop()
        measured = (took[0], peak.mib, took[1], python_s())
        if size.keys:
            totals = tuple(map(sum, zip(*found, strict=True)))
            state = sum(file.stat().st_size for file in scratch.glob("rows.checkpoint/state/**/*") if file.is_file())
            return Result(*measured, totals[0] if totals else 0, 0, totals, state if case == "stream" else 0)
        rows = spark.read.parquet(str(out)).select(F.unix_micros("start"), "sum").collect()
    finally:
        spark.stop()
    expected = expected_sums(size)
    if case == "stream":  # the row that closed the windows has none of its own: the watermark is not past them
        rows = [row for row in rows if row[0] < START + size.over_s * SECOND]
    wrong = len(set(expected) ^ {row[0] for row in rows}) + len(rows) - len({row[0] for row in rows})
    wrong += sum(1 for start, total in rows if expected.get(start) != total)
    return Result(*measured, len(rows), wrong)


def main() -> int:
    given = arguments(
        __doc__,
        {
            "--rows": {"type": int, "help": "how many rows"},
            "--keys": {"type": int, "default": 0, "help": "of how many keys"},
            "--cores": {"type": int, "default": 2, "help": "tasks at a time"},
            "--cases": {"nargs": "+", "choices": CASES, "help": "some of them"},
        },
    )
    size = replace(SMOKE if given.smoke else Size(), keys=given.keys)
    if given.keys:
        size = replace(size, step_s=size.width_s // 10, rows=size.rows if given.smoke else 10_000_000)
    size = replace(size, rows=given.rows or size.rows)
    without = {"sink"} if size.keys else {"nothing"}
    print(f"{size.rows:,} rows of {size.keys:,} keys, the sum over {size.width_s} s every {size.step_s} s")
    titles = ("seconds", "rows/s", "peak MiB", "processor s", "of Python", "windows", "wrong")
    print(f"{'case':10}" + "".join(f"{title:>13}" for title in titles))
    wrong, totals = 0, set()
    with tempfile.TemporaryDirectory() as name:
        write_rows(size, Path(name) / "rows")
        for case in given.cases or [case for case in CASES if case not in without]:
            # Figures of a case are not those of one that ran before it.
            result = in_fresh_process(measure, case, size, given.cores, Path(name))
            wrong += result.wrong
            totals |= {result.found} - {()}
            cells = (f"{result.seconds:.1f}", f"{size.rows / result.seconds:,.0f}", f"{result.peak_mib:,.0f}")
            cells += (f"{result.processor_s:.1f}", f"{result.python_s:.1f}", f"{result.windows:,}", f"{result.wrong}")
            print(f"{case:10}" + "".join(f"{cell:>13}" for cell in cells), flush=True)
            if result.state_bytes:
                print(f"{'':10} state in the checkpoint: {result.state_bytes:,} bytes")
        if not size.keys:
            in_fresh_process(throughput, size, given.cores, Path(name))
    print("digest", digest(sorted(expected_sums(size).items())))
    return int(wrong > 0 or len(totals) > 1)


if __name__ == "__main__":
    sys.exit(main())
