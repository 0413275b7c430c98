"""Sliding windows inside Spark: `sliding_aggregate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sash_spark.sliding.aggregate import sliding_aggregate

__all__ = ["sliding_aggregate"]


def __getattr__(name: str) -> Any:
    """Import the operator when it is asked for: while Spark plans a query, it needs `operator.py` only, and at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sash_spark.sliding.aggregate import sliding_aggregate

    return sliding_aggregate
