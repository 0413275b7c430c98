"""Sash for PySpark: push streams into windows from the executors.

from sash_spark import sash_sink

departures.writeStream.foreachBatch(
    sash_sink("127.0.0.1:7070", window="departure_delay", time="departure", key="airport")
).start()
"""

from sash_spark.sink import BatchReport, SashSink, sash_sink

__all__ = ["BatchReport", "SashSink", "sash_sink"]
