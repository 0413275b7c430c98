"""Sash for PySpark: streams and tables into windows, exactly once; windows as tables; sliding windows inside Spark.

from sash_spark import answers_at, register, sash_sink

departures.writeStream.foreachBatch(
    sash_sink("127.0.0.1:7070", window="departure_delay", time="departure", key="airport")
).start()

register(spark)
spark.read.format("sash").option("target", "127.0.0.1:7070").option("window", "departure_delay").load()

answers_at(labels, "127.0.0.1:7070", window="departure_delay", key="airport", time="at", lookbacks=["1h", "1d"])

`answers_offline` answers about pairs of a key and a time from a table of history. `sash_spark.sliding.aggregate` has
sliding windows inside Spark. Both need the package `sash` on the executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sash_spark.login import Login
    from sash_spark.offline import answers_offline
    from sash_spark.reading.pairs import answers_at
    from sash_spark.source import SashDataSource, register
    from sash_spark.writing.sink import BatchReport, SashSink, sash_sink

__all__ = [
    "BatchReport",
    "Login",
    "SashDataSource",
    "SashSink",
    "answers_at",
    "answers_offline",
    "register",
    "sash_sink",
]

_HOMES = {
    "Login": "login",
    "answers_at": "reading.pairs",
    "answers_offline": "offline",
    **dict.fromkeys(("BatchReport", "SashSink", "sash_sink"), "writing.sink"),
    **dict.fromkeys(("SashDataSource", "register"), "source"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: each Python worker of Spark imports this package, and most of it for nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise ImportError(
            'format("sash") needs Spark 4.0; foreachBatch(sash_sink(…)) works with this version', name=name
        ) from None
    globals()[name] = found
    return found
