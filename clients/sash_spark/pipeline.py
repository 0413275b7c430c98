"""Flights through Spark into windows: read the feed, clean and type it, key it by airport, push.

    Parquet files ──> clean ──> in order of arrival, ──> departure_delay        the last 6 hours
    (a stream)                  an airport per task  ──> departure_delay_month  the last 30 days

Run it with ``python -m sash_spark.pipeline`` beside a service (``sash serve``); ``--help`` shows the options.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sash_client import Client
from sash_spark.flights import load_flights, write_feed
from sash_spark.session import local_session
from sash_spark.sink import BatchReport, sash_sink

__all__ = ["SPECS", "clean", "in_arrival_order", "read_feed", "run"]

_AGGREGATES: Mapping[str, Mapping[str, str]] = {
    "flights": {"function": "count"},
    "mean": {"function": "mean", "field": "delay"},
    "deviation": {"function": "stddev", "field": "delay"},
    "max": {"function": "max", "field": "delay"},
    "worst": {"function": "arg_max", "field": "delay", "returns": "carrier"},
}

SPECS: tuple[Mapping[str, Any], ...] = tuple(
    {
        "name": name,
        "time_unit": "us",
        "keyed": True,
        "fields": {"delay": "float64", "carrier": "string"},
        "aggregates": _AGGREGATES,
        "slide": {"max_age": max_age},
    }
    for name, max_age in (("departure_delay", "6h"), ("departure_delay_month", "30d"))
)
"""Two windows over the same departures: what happens now, and what to compare it with."""

_FEED_SCHEMA = (
    "origin string, dest string, carrier string, flight long, time_hour string, minute long, dep_delay double, "
    "air_time double"
)


def read_feed(spark: SparkSession, directory: Path, *, files_per_batch: int = 1) -> DataFrame:
    """Return the feed as a stream of raw rows, `files_per_batch` files in each micro-batch."""
    reader = spark.readStream.schema(_FEED_SCHEMA).option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(directory))


def clean(flights: DataFrame) -> DataFrame:
    """Return departures, typed; flights that never landed are left out.

    Returns:
        airport, carrier (string); flight (long); departure, landed (timestamp); delay (double, minutes).
    """
    minutes = (F.col("minute") + F.col("dep_delay")).cast("int")
    departure = F.to_timestamp("time_hour") + F.make_dt_interval(mins=minutes)
    return (
        flights.where("air_time is not null and dep_delay is not null")
        .withColumn("departure", departure)
        .select(
            F.col("origin").alias("airport"),
            "carrier",
            "flight",
            "departure",
            (F.col("departure") + F.make_dt_interval(mins=F.col("air_time").cast("int"))).alias("landed"),
            F.col("dep_delay").alias("delay"),
        )
    )


def in_arrival_order(departures: DataFrame) -> DataFrame:
    """Return the rows of a micro-batch with each airport in one partition, in the order of landing.

    The tie-breakers make the order, and with it every answer, the same in every run.
    """
    return departures.repartition("airport").sortWithinPartitions("landed", "departure", "carrier", "flight")


def run(
    spark: SparkSession,
    feed: Path,
    target: str,
    checkpoint: Path,
    *,
    files_per_batch: int = 1,
    rows_per_call: int = 1024,
) -> dict[str, BatchReport]:
    """Push all of the feed that the checkpoint does not know yet, then stop.

    Args:
        spark: the session.
        feed: directory of Parquet files.
        target: host and port of the service's gRPC edge; windows that it lacks are created.
        checkpoint: directory in which Spark keeps how far it got.
        files_per_batch: files in each micro-batch.
        rows_per_call: rows in each bulk insert.

    Returns:
        for each window, what became of the rows.
    """
    with Client(target) as client:
        for spec in SPECS:
            client.create_window(spec)
    sinks = {
        spec["name"]: sash_sink(
            target, window=spec["name"], time="departure", key="airport", rows_per_call=rows_per_call
        )
        for spec in SPECS
    }

    def push(batch: DataFrame, batch_id: int) -> None:
        departures = in_arrival_order(batch).persist()  # two sinks read it: compute it once
        try:
            for sink in sinks.values():
                sink(departures, batch_id)
        finally:
            departures.unpersist()

    query = (
        clean(read_feed(spark, feed, files_per_batch=files_per_batch))
        .writeStream.foreachBatch(push)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {name: sink.total for name, sink in sinks.items()}


def main(arguments: list[str] | None = None) -> None:
    """Run the pipeline from the command line."""
    parser = argparse.ArgumentParser(prog="python -m sash_spark.pipeline", description="Push flights into Sash.")
    parser.add_argument("--target", default="127.0.0.1:7070", help="gRPC edge of the service (%(default)s)")
    parser.add_argument("--feed", type=Path, help="directory of Parquet files; the flights of 2013 where omitted")
    parser.add_argument("--checkpoint", type=Path, help="where Spark keeps its progress; forgotten where omitted")
    parser.add_argument("--files-per-batch", type=int, default=1, help="files in a micro-batch (%(default)s)")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("sash_spark").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="sash-pipeline-") as scratch_name:
        scratch = Path(scratch_name)
        feed = options.feed
        if feed is None:
            feed = scratch / "feed"
            write_feed(load_flights(), feed)
        spark = local_session("sash pipeline", scratch)
        try:
            checkpoint = options.checkpoint or scratch / "checkpoint"
            reports = run(spark, feed, options.target, checkpoint, files_per_batch=options.files_per_batch)
        finally:
            spark.stop()
    for name, report in reports.items():
        print(
            f"{name}: {report.arrived:,} arrived, {report.inserted:,} inserted, {report.late:,} late, "
            f"{report.evicted:,} evicted"
        )


if __name__ == "__main__":
    main()
