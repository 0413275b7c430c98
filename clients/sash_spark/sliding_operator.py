"""The stateful operator for Spark: it declares its state, and passes calls on to `sliding.py`.

    driver       Operator ──▶ init: "head", "blocks", "sketches"            while planning; imports this module only
    executors    Operator ──▶ init, then rows and timers, key by key ──▶ `_packed`, unpacked when it is first called

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

__all__ = ["Keys", "Operator", "SparkStore"]


class Keys(Protocol):
    """Works on the state of the current key; pickled to the executors."""

    def rows(self, handle: Any, store: SparkStore, key: Any, rows: Any, timers: TimerValues) -> Iterator[Row]:
        """Process the rows of a micro-batch."""

    def expired(self, handle: Any, store: SparkStore, key: Any, timers: TimerValues) -> Iterator[Row]:
        """Process an expired timer of the key."""


class SparkStore:
    """The `Store` (see `sliding_state.py`) of the current key."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "value binary")
        self._blocks = handle.getMapState("blocks", "number long", "value binary")
        self._sketches = handle.getMapState("sketches", "number long", "value binary")

    def head(self) -> bytes | None:
        found = self._head.get()
        return None if found is None else bytes(found[0])

    def put_head(self, value: bytes) -> None:
        self._head.update((value,))

    def clear(self) -> None:
        for state in (self._head, self._blocks, self._sketches):
            state.clear()

    def block(self, number: int) -> bytes | None:
        found = self._blocks.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_block(self, number: int, value: bytes) -> None:
        self._blocks.updateValue((number,), (value,))

    def sketches(self, number: int) -> bytes | None:
        found = self._sketches.getValue((number,))
        return None if found is None else bytes(found[0])

    def put_sketches(self, number: int, value: bytes) -> None:
        self._sketches.updateValue((number,), (value,))

    def remove(self, number: int) -> None:
        self._blocks.removeKey((number,))
        self._sketches.removeKey((number,))


class Operator(StatefulProcessor):
    """The state of all keys. Spark calls it for each key with rows in a micro-batch, and for each expired timer."""

    def __init__(self, keys: Keys) -> None:
        self._packed: bytes = cloudpickle.dumps(keys)  # type: ignore[no-untyped-call]

    @cached_property
    def _keys(self) -> Keys:
        unpacked: Keys = pickle.loads(self._packed)
        return unpacked

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._store = SparkStore(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """Process a key's rows of a micro-batch."""
        return self._keys.rows(self._handle, self._store, key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Process an expired timer of a key."""
        return self._keys.expired(self._handle, self._store, key, timerValues)
