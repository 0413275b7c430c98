"""The stateful operator for Spark: it declares its state, and passes calls on to `sliding.py`.

    driver       Operator ──▶ init: "head", "parts"                         while planning; imports this module only
    executors    Operator ──▶ init, then rows and timers of each bucket ──▶ `_packed`, unpacked when first called

While Spark plans a query, it starts a Python process that only reads which state the operator has. Importing the engine
would take longer than all else in that process. So this module does not import it: what needs it stays pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)


class Buckets(Protocol):
    """Works on the state of the current bucket; pickled to the executors."""

    def rows(self, handle: Any, store: SparkStore, bucket: int, rows: Any, timers: TimerValues) -> Iterator[Row]:
        """Process the rows of a micro-batch."""

    def expired(self, handle: Any, store: SparkStore, bucket: int, timers: TimerValues) -> Iterator[Row]:
        """Process an expired timer of the bucket."""


class SparkStore:
    """The `Store` (see `state.py`) of the current bucket."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "value binary")
        self._parts = handle.getMapState("parts", "chunk long, part int", "value binary")

    def head(self) -> bytes | None:
        found = self._head.get()
        return None if found is None else bytes(found[0])

    def put_head(self, value: bytes) -> None:
        self._head.update((value,))

    def clear(self) -> None:
        self._head.clear()
        self._parts.clear()

    def get(self, number: int, part: int) -> bytes | None:
        found = self._parts.getValue((number, part))
        return None if found is None else bytes(found[0])

    def put(self, number: int, part: int, value: bytes) -> None:
        self._parts.updateValue((number, part), (value,))

    def remove(self, number: int, part: int) -> None:
        self._parts.removeKey((number, part))


class Operator(StatefulProcessor):
    """The state of all buckets. Spark calls it for each one with rows in a micro-batch, and for each expired timer."""

    def __init__(self, buckets: Buckets) -> None:
        self._packed: bytes = cloudpickle.dumps(buckets)  # type: ignore[no-untyped-call]

    @cached_property
    def _buckets(self) -> Buckets:
        unpacked: Buckets = pickle.loads(self._packed)
        return unpacked

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._store = SparkStore(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """Process a bucket's rows of a micro-batch."""
        return self._buckets.rows(self._handle, self._store, key[0], rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Process an expired timer of a bucket."""
        return self._buckets.expired(self._handle, self._store, key[0], timerValues)


class PandasOperator(Operator):
    """The same for Spark 4.0, which passes rows as data frames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Any]:
        """Process a bucket's rows of a micro-batch."""
        plain = (Row(packed=None if value is None else bytes(value)) for frame in rows for value in frame["packed"])
        return map(_framed, super().handleInputRows(key, plain, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Process an expired timer of a bucket."""
        return map(_framed, super().handleExpiredTimer(key, timerValues, expiredTimerInfo))


def _framed(row: Row) -> Any:
    import pandas as pd

    return pd.DataFrame([row.asDict()])
