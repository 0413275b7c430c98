"""Fine-sliding windows in Spark: a million rows over one hour, the sum over ten minutes at every second.

    window       Spark's own `groupBy(window(time, "10 minutes", "1 second"))`: every row goes into 600 groups
    aggregate    `sliding_aggregate` on the same table: a row is kept once, a window is folded from panes
    stream       `sliding_aggregate` on the same rows as a stream, state in RocksDB, answers by watermark
    sink         the rows into a durable window (LMDB) with `format("sash")`, then one series query

    throughput   how fast rows leave Spark, from memory and from files: into its own sink that does nothing, as they are
                 and once through Python and back; into a sink in Python that does nothing; into a durable window.
                 In turns, medians

Each case runs in a process and a Spark session of its own, one after the other, on the same Parquet files. Seconds
are from the first call until the answers have been written as Parquet; starting the JVM and one small query
before are not counted. Peak memory is that of the JVM and all Python workers together (their resident sets, sampled ten
times a second: pages that they share are counted for each). Processor time is that of all processes, the service
included: two cores have two seconds of it in each.

All answers are compared with a fold by NumPy, window by window, and the digest is of those sums, rounded: it depends on
the rows and on nothing else.

Does not show: a cluster, where Spark's own way is as many times slower but has more cores to be so on.

Run ``python -m bench.spark`` (some minutes; Linux), ``--rows``, ``--cores`` and ``--cases`` to change what is
measured, or ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
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
    "spark.sql.shuffle.partitions": "1",  # rows without a key are all in one, and each has a Python worker of its own
}
"""Settings of the stream, as the README has them."""


@dataclass(frozen=True)
class Size:
    """How much is measured: rows, and the seconds that they are spread over, the width and the step."""

    rows: int
    over_s: int
    width_s: int
    step_s: int
    files: int = 8
    warming: int = 1
    """Turns that are not counted: the first starts workers."""
    turns: int = 3


SMOKE = Size(rows=5_000, over_s=120, width_s=20, step_s=1, files=2, warming=0, turns=1)
REAL = Size(rows=1_000_000, over_s=3_600, width_s=600, step_s=1)


@dataclass(frozen=True)
class Result:
    """What one case took, and the windows that came out."""

    seconds: float
    peak_mib: float
    processor_s: float
    windows: int
    wrong: int


# ---------------------------------------------------------------- rows, and the fold


def rows_of(size: Size) -> tuple[Any, Any]:
    """Times in order, int64 (n,), and values, float64 (n,): quarters, so that sums are exact in any order."""
    rng = np.random.default_rng(7)
    times = START + np.sort(rng.integers(0, size.over_s * SECOND, size.rows))
    return times, rng.integers(-4_000, 4_000, size.rows) / 4


def write_rows(size: Size, directory: Path) -> None:
    """Write the rows as Parquet files, in order of time."""
    times, values = rows_of(size)
    directory.mkdir()
    for i, part in enumerate(np.array_split(np.arange(size.rows), size.files)):
        table = pa.table({"at": pa.array(times[part]).cast(pa.timestamp("us", "UTC")), "value": values[part]})
        pq.write_table(table, directory / f"{i:03d}.parquet")


def expected_sums(size: Size) -> dict[int, float]:
    """Start of each window with rows in it, in microseconds -> the sum over it."""
    times, values = rows_of(size)
    width, step = size.width_s * SECOND, size.step_s * SECOND
    starts = np.arange((times[0] - width) // step * step + step, times[-1] + 1, step)
    first, stop = times.searchsorted(starts), times.searchsorted(starts + width)
    return {
        int(s): float(values[a:b].sum())
        for s, a, b in zip(starts.tolist(), first.tolist(), stop.tolist(), strict=True)
        if a < b
    }


# ---------------------------------------------------------------- the cases


def spark_window(spark: SparkSession, size: Size, rows: Path, out: Path) -> None:
    """Spark's own."""
    window = F.window("at", f"{size.width_s} seconds", f"{size.step_s} seconds").alias("w")
    sums = spark.read.parquet(str(rows)).groupBy(window).agg(F.sum("value").alias("sum"))
    sums.select("w.start", "sum").write.parquet(str(out))


def sliding_table(spark: SparkSession, size: Size, rows: Path, out: Path) -> None:
    """`sliding_aggregate` on a table."""
    sliding(spark.read.parquet(str(rows)), size).select("start", "sum").write.parquet(str(out))


def sliding_stream(spark: SparkSession, size: Size, rows: Path, out: Path) -> None:
    """`sliding_aggregate` on a stream of all files at once; a last row an hour on closes the last windows."""
    for name, value in STREAM.items():
        spark.conf.set(name, value)
    far = START + 2 * (size.over_s + size.width_s) * SECOND
    last = pa.table({"at": pa.array([far]).cast(pa.timestamp("us", "UTC")), "value": [0.0]})
    feed = out.with_suffix(".feed")
    feed.mkdir()
    for file in rows.iterdir():
        os.link(file, feed / file.name)
    pq.write_table(last, feed / "last.parquet")
    stream = spark.readStream.schema("at timestamp, value double").parquet(str(feed))
    sums = sliding(stream, size, watermark="0 seconds").select("start", "sum")
    query = sums.writeStream.format("parquet").option("checkpointLocation", str(out.with_suffix(".checkpoint")))
    query = query.trigger(availableNow=True)
    settled(lambda: query.start(str(out)), wait=lambda started: started.awaitTermination())


def sash_sink_and_series(spark: SparkSession, size: Size, rows: Path, out: Path) -> None:
    """All rows into a window, then one question for all answers."""
    width, step = size.width_s * SECOND, size.step_s * SECOND
    with local_service(data=str(out.with_suffix(".sash"))) as service, Client(service.target) as client:
        window = client.create_window(WINDOW)
        written(spark.read.parquet(str(rows)), service.target)
        start = (START - width) // step * step
        series = window.series(start, START + size.over_s * SECOND, step=step, width=width)
    there = series.entries > 0
    starts = pa.array(series.times[there]).cast(pa.timestamp("us", "UTC"))
    out.mkdir()
    pq.write_table(pa.table({"start": starts, "sum": series.aggregates["sum"][there]}), out / "series.parquet")


WINDOW = {"name": "rows", "time_unit": "us", "aggregates": {"sum": {"function": "sum"}}}


def written(frame: DataFrame, target: str) -> None:
    """Write rows into the window, exactly once."""
    register(frame.sparkSession)
    options = {"target": target, "window": "rows", "time": "at"}
    frame.write.format("sash").options(**options).mode("append").save()


class Nothing(DataSource):
    """A sink that takes Arrow batches in Python and drops them: what any Python sink costs."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DropsAll()


class DropsAll(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def throughput(size: Size, cores: int, directory: Path) -> None:
    """Print how fast rows leave Spark: into a window, and into sinks that do nothing; from memory, and from files."""
    with tempfile.TemporaryDirectory() as scratch:
        spark = local_session("bench throughput", Path(scratch), cores=cores)
        spark.dataSource.register(Nothing)
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
                        began, used = time.perf_counter(), processor_s(os.getpid())
                        way()
                        if turn >= size.warming:
                            taken[name].append((time.perf_counter() - began, processor_s(os.getpid()) - used))
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


def sliding(frame: DataFrame, size: Size, **options: str) -> DataFrame:
    """The question."""
    return sliding_aggregate(
        frame,
        time="at",
        windows=[f"{size.width_s}s"],
        aggregates={"sum": {"function": "sum", "field": "value"}},
        emit=f"{size.step_s}s",
        **options,
    )


# A case is a function of (session, size, directory of the rows, directory for the answers), which writes Parquet
# with `start` and `sum`. One that needs a service starts it itself.
CASES: dict[str, Callable[[SparkSession, Size, Path, Path], None]] = {
    "window": spark_window,
    "aggregate": sliding_table,
    "stream": sliding_stream,
    "sink": sash_sink_and_series,
}


# ---------------------------------------------------------------- measuring


class Peak:
    """Samples the resident memory of a process and all that it started."""

    def __init__(self, root: int) -> None:
        self.mib = 0.0
        self._root, self._stop = root, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.mib = max(self.mib, resident_mib(self._root))


def resident_mib(root: int) -> float:
    """Resident memory of a process and its descendants."""
    return sum(int(stat[21]) for stat in family(root).values()) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_s(root: int) -> float:
    """Processor time that a process, its descendants, and those of them that have ended, have used."""
    return sum(int(used) for stat in family(root).values() for used in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def family(root: int) -> dict[int, list[str]]:
    """A process and its descendants: what /proc/…/stat says of each, from the state on."""
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
    found, grown = {root}, True
    while grown:
        more = {pid for pid, stat in stats.items() if int(stat[1]) in found} - found
        found, grown = found | more, bool(more)
    return {pid: stats[pid] for pid in found if pid in stats}


def measure(case: str, size: Size, cores: int, scratch: Path) -> Result:
    """Run one case in this process."""
    out = scratch / case
    spark = local_session(f"bench {case}", scratch, cores=cores)
    try:
        spark.read.parquet(str(scratch / "rows")).limit(10).mapInArrow(
            lambda batches: batches, "at timestamp, value double"
        ).collect()
        peak = Peak(os.getpid())
        began, used = time.perf_counter(), processor_s(os.getpid())
        CASES[case](spark, size, scratch / "rows", out)
        seconds, used = time.perf_counter() - began, processor_s(os.getpid()) - used
        peak.stop()
        found = spark.read.parquet(str(out)).select(F.unix_micros("start"), "sum").collect()
    finally:
        spark.stop()
    expected = expected_sums(size)
    if case == "stream":  # the row that closed the windows has none of its own: the watermark is not past them
        found = [row for row in found if row[0] < START + size.over_s * SECOND]
    wrong = len(set(expected) ^ {row[0] for row in found}) + len(found) - len({row[0] for row in found})
    wrong += sum(1 for start, total in found if expected.get(start) != total)
    return Result(seconds, peak.mib, used, len(found), wrong)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes; figures meaningless")
    parser.add_argument("--rows", type=int, help="how many rows")
    parser.add_argument("--cores", type=int, default=2, help="tasks at a time")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the directory to measure one case in, in this process
    arguments = parser.parse_args(argv)
    size = SMOKE if arguments.smoke else REAL
    if arguments.rows:
        size = Size(**(asdict(size) | {"rows": arguments.rows}))
    if arguments.one:
        for case in arguments.cases:
            print("result", json.dumps(asdict(measure(case, size, arguments.cores, Path(arguments.one)))))
        if arguments.smoke:
            throughput(size, arguments.cores, Path(arguments.one))
        return 0
    print(
        f"{size.rows:,} rows over {size.over_s} s, the sum over {size.width_s} s every {size.step_s} s; "
        f"{arguments.cores} cores"
    )
    print(f"{'case':10} {'seconds':>9} {'rows/s':>12} {'peak MiB':>10} {'processor s':>12} {'windows':>9} {'wrong':>6}")
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        write_rows(size, Path(name) / "rows")
        # Figures of a case are not those of one that ran before it. Where they are meaningless, one process is enough.
        for cases in [arguments.cases] if arguments.smoke else [[case] for case in arguments.cases]:
            command = [sys.executable, "-m", "bench.spark", "--one", name, "--rows", str(size.rows)]
            command += ["--cores", str(arguments.cores), *(["--smoke"] if arguments.smoke else []), "--cases", *cases]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
            for case, line in zip(cases, lines, strict=True):
                result = Result(**json.loads(line.removeprefix("result ")))
                wrong += result.wrong
                print(
                    f"{case:10} {result.seconds:9.1f} {size.rows / result.seconds:12,.0f} {result.peak_mib:10,.0f} "
                    f"{result.processor_s:12.1f} "
                    f"{result.windows:9,} {result.wrong:6}",
                    flush=True,
                )
        if arguments.smoke:
            print(*(line for line in done.stdout.splitlines() if not line.startswith("result ")), sep="\n")
        else:
            throughput(size, arguments.cores, Path(name))
    sums = sorted(expected_sums(size).items())
    print("digest", hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
