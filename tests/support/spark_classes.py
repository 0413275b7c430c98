"""Keeps the classes that Spark loads in an archive. JVMs map it instead of loading them, which halves their start.

    python -m tests.support.spark_classes ARCHIVE

`make test` makes it once, and tells all JVMs of it. One with other jars, or of another Java, does without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from sash_spark.session import local_session


def keep(archive: Path) -> None:
    """Run what most tests run, then have the JVM write the archive, which takes longer."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(f".{os.getpid()}")
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={part}"
    os.environ["JDK_JAVA_OPTIONS"] = options
    with tempfile.TemporaryDirectory() as name:
        spark = local_session("classes", Path(name))
        rows = f"{name}/rows"
        spark.range(100).selectExpr("id", "id % 3 AS k", "cast(id AS timestamp) AS at").write.parquet(rows)
        table = spark.read.parquet(rows).mapInArrow(lambda batches: batches, "id long, k long, at timestamp")
        table.groupBy("k").sum("id").orderBy("k").collect()
        stream = spark.readStream.schema("id long, k long, at timestamp").parquet(rows)
        counts = stream.withWatermark("at", "1 second").groupBy("k").count()
        writer = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
        writer.trigger(availableNow=True).option("checkpointLocation", f"{name}/checkpoint").start().awaitTermination()
        spark.stop()
        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    if part.exists():
        part.rename(archive)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
