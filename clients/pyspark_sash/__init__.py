"""Spark finds `format("sash")` here by itself: it looks for `DefaultSource` in packages whose names begin so."""

from sash_spark.source import SashDataSource as DefaultSource

__all__ = ["DefaultSource"]
