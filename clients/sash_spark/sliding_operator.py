"""The stateful operator as Spark sees it: what state there is, and calls that go on to `sliding.py`.

    driver       Operator ──▶ init: "head", "blocks", "sketches"            while planning; imports this module only
    executors    Operator ──▶ init, then rows and timers, key by key ──▶ `_packed`, unpacked when it is first called

Spark starts a Python process of its own while it plans a query, only to hear what state there is. The engine takes
longer to import than all the rest of that, so this module does without it, and what needs it stays pickled there.
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
    """What is done with the state of the key that Spark is at; pickled to the executors."""

    def rows(self, handle: Any, store: SparkStore, key: Any, rows: Any, timers: TimerValues) -> Iterator[Row]:
        """Take the rows of a micro-batch."""

    def expired(self, handle: Any, store: SparkStore, key: Any, timers: TimerValues) -> Iterator[Row]:
        """The key's timer has expired."""


class SparkStore:
    """The `Store` (see `sliding_state.py`) of the key that Spark is at."""

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
    """The state of all keys; called by Spark once per micro-batch and key with rows, and per timer that has expired."""

    def __init__(self, keys: Keys) -> None:
        self._packed: bytes = cloudpickle.dumps(keys)  # type: ignore[no-untyped-call]

    @cached_property
    def _keys(self) -> Keys:
        unpacked: Keys = pickle.loads(self._packed)
        return unpacked

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Say what state there is."""
        self._handle = handle
        self._store = SparkStore(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """Take a key's rows of a micro-batch."""
        return self._keys.rows(self._handle, self._store, key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Take it that a key's timer has expired."""
        return self._keys.expired(self._handle, self._store, key, timerValues)
