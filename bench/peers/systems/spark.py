"""Spark's own `window()` on all cores of this machine: a job over a Parquet file."""

from __future__ import annotations

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from bench.peers.job import Job
from bench.peers.work import SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints


class System(Job):
    name = "Spark"
    package = "pyspark"

    def start(self) -> None:
        super().start()
        builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.bindAddress", "127.0.0.1")
        self._spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def stop(self) -> None:
        self._spark.stop()

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        rows = self._spark.read.parquet(str(self.file(code))).withColumn("t", f.timestamp_millis("t"))
        windows = rows.groupBy(f.window("t", f"{SERIES_LOOKBACK_MS} milliseconds", f"{SERIES_STEP_MS} milliseconds"))
        end = (f.unix_millis(f.col("window.end")) - 1).alias("end")
        found = windows.agg(f.avg("v").alias("mean"), f.max("v").alias("max")).select(end, "mean", "max")
        table = found.where((f.col("end") >= int(ends[0])) & (f.col("end") <= int(ends[-1]))).sort("end").collect()
        return np.array([row["mean"] for row in table]), np.array([row["max"] for row in table])
