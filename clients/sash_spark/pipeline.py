"""The pipeline that a YAML file describes: it reads a source, checks its records, and writes them to windows.

    source ──▶ parse ──▶ columns, where ──▶ judge ──┬─▶ good, in order ──▶ sink of window 1, 2, …    exactly once
    (a stream)                                      ├─▶ bad ──▶ JSON files, each with its reason
                                                    └─▶ excluded by `where`: counted

Run it with ``python -m sash_spark.pipeline CONFIG.yaml``, or give this file to ``spark-submit``. `config.py` describes
the file. A micro-batch is read and checked once, whatever the number of windows, and every row counts as good, bad or
excluded. A pipeline that stops continues from its checkpoint: windows get each row once, and the bad records of a
repeated micro-batch overwrite the earlier ones.

A record is bad if it cannot be parsed, or if it has no time, no key or no value for a field. An expression that fails
(such as a cast of a word to a number, in Spark's ANSI mode) fails the micro-batch instead. With `try_cast`,
`try_to_timestamp` and the like it returns a null, and the record is bad.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sash_client import InvalidArgument, SashClientError
from sash_spark.config import PipelineConfig, Target, load
from sash_spark.records import AT, LEFT_OUT, RECORD, VERDICT, TargetColumns, judged, read
from sash_spark.session import local_session
from sash_spark.writing.preaggregate import check_preaggregation
from sash_spark.writing.route import QUERY_ID
from sash_spark.writing.sink import BatchReport, SashSink, sash_sink


@dataclass(frozen=True, slots=True)
class Progress:
    """The outcome of one micro-batch, or of several.

    Args:
        batch_id: Spark's id of the (last) micro-batch; -1 before the first.
        rows: records that were read: good, excluded and bad ones.
        left_out: records that `where` excludes.
        bad: reason -> number of bad records.
        windows: name -> report of its sink; the good rows arrive there.
        seconds: time that it took.
        lag_s: seconds from the newest good row to now; None without good rows, or if times are ticks.
    """

    batch_id: int = -1
    rows: int = 0
    left_out: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[str, BatchReport] = field(default_factory=dict)
    seconds: float = 0.0
    lag_s: float | None = None

    def plus(self, later: Progress) -> Progress:
        """Add later ones to this one."""
        return Progress(
            later.batch_id,
            self.rows + later.rows,
            self.left_out + later.left_out,
            {why: self.bad.get(why, 0) + later.bad.get(why, 0) for why in {**self.bad, **later.bad}},
            {name: self.windows.get(name, BatchReport()).plus(report) for name, report in later.windows.items()},
            self.seconds + later.seconds,
            self.lag_s if later.lag_s is None else later.lag_s,
        )

    def line(self) -> str:
        """Return a line for the log."""
        reports = self.windows.values()
        parts = [f"{self.rows:,} in", f"{sum(self.bad.values()):,} bad", f"{self.left_out:,} left out"]
        parts += [f"{sum(r.staged for r in reports):,} staged", f"{sum(r.late for r in reports):,} late"]
        if ahead := sum(report.ahead for report in reports):
            parts.append(f"{ahead:,} too far ahead")
        if any(report.already_applied for report in reports):
            parts.append("applied before")
        lag = "" if self.lag_s is None else f", lag {_span(self.lag_s)}"
        return f"batch {self.batch_id}: {', '.join(parts)}; {self.seconds:.2f} s{lag}"

    def summary(self) -> str:
        """Return the summary that is printed at the end."""
        bad = sum(self.bad.values())
        lines = [f"{self.rows:,} records in {self.seconds:.1f} s: {bad:,} bad, {self.left_out:,} left out"]
        lines += [f"  bad, {why}: {count:,}" for why, count in sorted(self.bad.items())]
        for name, report in self.windows.items():
            lines.append(
                f"  {name}: {report.arrived:,} arrived, {report.staged:,} staged, {report.inserted:,} inserted, "
                f"{report.late:,} late, {report.evicted:,} evicted"
                + (f", {report.ahead:,} too far ahead" if report.ahead else "")
            )
        return "\n".join(lines)


class Pipeline:
    """A pipeline that can run; `total` adds up its micro-batches.

    Args:
        config: what to build.
        spark: the session.
        on_batch: called after each micro-batch.

    Raises:
        InvalidArgument: `field` names what does not fit; the service may also refuse a window's spec.
        AlreadyExists: a window has another spec.
        Unavailable: no service answers.
    """

    def __init__(
        self, config: PipelineConfig, spark: SparkSession, *, on_batch: Callable[[Progress], None] | None = None
    ) -> None:
        for name, value in config.spark.items():
            spark.conf.set(name, value)
        self.total = Progress()
        self._config = config
        self._on_batch = on_batch
        self._failure: Exception | None = None
        self._stopping = False
        self._reports: dict[str, BatchReport] = {}
        self._judged = judged(read(spark, config.source), config, _windows(config))
        self._sinks = [self._sink(*each) for each in zip(config.windows, self._judged.targets, strict=True)]
        for sink in self._sinks:
            sink.route.fitted(self._judged.rows.schema)

    def _sink(self, target: Target, columns: TargetColumns) -> SashSink:
        return sash_sink(
            self._config.service,
            window=target.name,
            time=columns.time,
            key=columns.key,
            parts=columns.parts,
            fields=columns.fields,
            query=self._config.name,
            rows_per_call=self._config.rows_per_call,
            preaggregate=target.preaggregate,
            on_batch=partial(self._reports.__setitem__, target.name),
            login=self._config.login,
            nulls=columns.nulls,
        )

    def run(self) -> Progress:
        """Run until the source is read (`available_now`), or forever; return the outcome of all rows.

        Raises:
            SashClientError: an error of the service; InvalidArgument for bad records that the configuration forbids.
            StreamingQueryException: the query ended for another reason.
        """
        config = self._config
        trigger = {"availableNow": True} if config.trigger == "available_now" else {"processingTime": config.trigger}
        writer = self._judged.rows.writeStream.foreachBatch(self._take).queryName(config.name)
        query = writer.option("checkpointLocation", config.checkpoint).trigger(**trigger).start()
        try:
            while not self._stopping and not query.awaitTermination(1):
                pass  # a second at a time, so that Python can handle signals
        except StreamingQueryException:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            query.stop()
        return self.total

    def stop(self) -> None:
        """Make `run` return soon. The next start repeats a micro-batch that is in progress."""
        self._stopping = True

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        try:
            progress = self._taken(batch, batch_id)
        except Exception as error:
            self._failure = error  # Spark passes on its text only
            raise
        self.total = self.total.plus(progress)
        if self._on_batch is not None:
            self._on_batch(progress)

    def _taken(self, batch: DataFrame, batch_id: int) -> Progress:
        started_s = clock.perf_counter()
        rows = self._judged.ordered(batch).persist()  # so that it is read and checked once for all windows
        try:
            found = rows.groupBy(VERDICT).agg(F.count(F.lit(1)).alias("n"), F.max(AT).alias("newest")).collect()
            counts = {row[VERDICT]: row["n"] for row in found}
            bad = {why: n for why, n in counts.items() if why}
            if bad:
                self._put_aside(rows, batch_id, bad, sum(counts.values()))
            good = rows.where(F.col(VERDICT).isNull())
            for sink in self._sinks:
                sink(good, batch_id)
        finally:
            rows.unpersist()
        newest = next((row["newest"] for row in found if row[VERDICT] is None), None)
        return Progress(
            batch_id,
            rows=sum(counts.values()),
            left_out=counts.get(LEFT_OUT, 0),
            bad=bad,
            windows=dict(self._reports),
            seconds=clock.perf_counter() - started_s,
            lag_s=None if newest is None else clock.time() - newest / 1e6,
        )

    def _put_aside(self, rows: DataFrame, batch_id: int, bad: Mapping[str, int], n: int) -> None:
        """Write bad records; overwrite those of an earlier attempt at the micro-batch."""
        aside, n_bad = self._config.bad_records, sum(bad.values())
        reasons = ", ".join(f"{why}: {count:,}" for why, count in sorted(bad.items()))
        if aside is None:
            raise InvalidArgument(
                f"{n_bad:,} records of batch {batch_id} are bad ({reasons}); bad_records.path says where to put them",
                field="bad_records",
            )
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        path = f"{aside.path}/query={query}/batch={batch_id:08d}"
        records = rows.where(F.col(VERDICT) != LEFT_OUT).select(F.col(VERDICT).alias("reason"), RECORD)
        records.write.mode("overwrite").json(path)
        if n_bad > aside.share_max * n:
            raise InvalidArgument(
                f"{n_bad:,} of {n:,} records of batch {batch_id} are bad ({reasons}); they are in {path}",
                field="bad_records.share_max",
                limit=str(aside.share_max),
            )


def _windows(config: PipelineConfig) -> list[Mapping[str, Any]]:
    """Create the windows that do not exist; return the specs of all, as the service has them."""
    specs = []
    with config.login.client(config.service) as client:
        for i, target in enumerate(config.windows):
            try:
                spec = client.create_window(target.spec).spec
                if target.preaggregate:
                    check_preaggregation(spec)
            except SashClientError as error:
                field = ".".join(part for part in (f"windows[{i}].spec", error.field) if part)
                raise type(error)(f"{field}: {error.message}", field=field, limit=error.limit) from None
            specs.append(spec)
    return specs


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.1f} s"


# ---------------------------------------------------------------- the command


class _Meters:
    """Serves a pipeline's metrics on a port of the driver."""

    def __init__(self, pipeline: str, port: int) -> None:
        registry = CollectorRegistry()
        self._records = Counter("sash_pipeline_records", "Records read.", ["pipeline", "outcome"], registry=registry)
        self._staged = Counter("sash_pipeline_staged", "Rows staged.", ["pipeline", "window"], registry=registry)
        self._late = Counter("sash_pipeline_late", "Rows that were late.", ["pipeline", "window"], registry=registry)
        self._seconds = Histogram("sash_pipeline_batch_seconds", "Per micro-batch.", ["pipeline"], registry=registry)
        self._lag = Gauge("sash_pipeline_lag_seconds", "Age of the newest row.", ["pipeline"], registry=registry)
        self._pipeline = pipeline
        self._server, self._thread = start_http_server(port, registry=registry)

    @property
    def port(self) -> int:
        """Their URL."""
        return int(self._server.server_port)

    def observe(self, progress: Progress) -> None:
        """Add one micro-batch."""
        bad = sum(progress.bad.values())
        good = progress.rows - progress.left_out - bad
        for outcome, n in (("good", good), ("left_out", progress.left_out), ("bad", bad)):
            self._records.labels(self._pipeline, outcome).inc(n)
        for name, report in progress.windows.items():
            self._staged.labels(self._pipeline, name).inc(report.staged)
            self._late.labels(self._pipeline, name).inc(report.late)
        self._seconds.labels(self._pipeline).observe(progress.seconds)
        if progress.lag_s is not None:
            self._lag.labels(self._pipeline).set(progress.lag_s)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Run a pipeline from the command line; return 0, 2 if the configuration is wrong, or 1 for other errors."""
    parser = argparse.ArgumentParser(prog="python -m sash_spark.pipeline", description="Push a stream into windows.")
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml")
    parser.add_argument("--service", help="host and port of the service, instead of the configuration's")
    parser.add_argument("--check", action="store_true", help="only say whether the document is in order")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
        if options.service is not None:
            config = config.model_copy(update={"service": options.service})
        if not options.check:
            _run(config)
    except InvalidArgument as error:
        print(f"{options.config}: {error.message}", file=sys.stderr)
        return 2
    except (SashClientError, StreamingQueryException, OSError) as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(config: PipelineConfig) -> None:
    meters = None
    if config.metrics_port is not None:
        meters = _Meters(config.name, config.metrics_port)
        print(f"metrics on http://0.0.0.0:{meters.port}/metrics", flush=True)

    def show(progress: Progress) -> None:
        print(progress.line(), flush=True)
        if meters is not None:
            meters.observe(progress)

    try:
        with _session(config.name) as spark:
            pipeline = Pipeline(config, spark, on_batch=show)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: pipeline.stop())
            print(pipeline.run().summary(), flush=True)
    finally:
        if meters is not None:
            meters.close()


@contextmanager
def _session(name: str) -> Iterator[SparkSession]:
    """Yield the session of spark-submit, or a local one; stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="sash-pipeline-") as scratch:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        spark = SparkSession.builder.appName(name).getOrCreate() if submitted else local_session(name, Path(scratch))
        try:
            yield spark
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
