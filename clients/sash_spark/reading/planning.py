"""Splits a read into tasks: by keys, then by time, within what Spark's filters leave."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from sash_client import Window, WindowInfo
from sash_spark.reading.question import Question, Shape

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

ENTRIES_PER_TASK = 250_000
"""Reading 250,000 entries takes as long as starting a Python worker: about 100 ms."""

ANSWERS_PER_TASK = 50_000
TASKS_MAX = 32
KEYS_PER_CALL = 1000
"""All answers of one call are in memory at once, so the service limits how many there are."""


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads.

    Args:
        keys: the names of its keys; None: all keys, or a window without keys.
        part, parts: where `keys` is None, only keys whose hash modulo `parts` is `part`.
        start, end: its range of ticks, inclusive; None: no bound.
        step: ticks between the buckets of a series.
    """

    keys: tuple[str, ...] | None = None
    start: int | None = None
    end: int | None = None
    step: int = 0
    part: int = 0
    parts: int = 1

    def names(self, window: Window) -> tuple[str, ...] | None:
        """Look up the names of its keys; None stands for all keys."""
        if self.keys is not None or self.parts == 1:
            return self.keys
        return tuple(name for name in window.keys(limit=None) if zlib.crc32(name.encode()) % self.parts == self.part)


def in_chunks(names: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Split names into tuples of at most `size`."""
    return [names[at : at + size] for at in range(0, len(names), size)]


@dataclass
class Narrowed:
    """The times and keys that Spark's filters leave: `low` <= time <= `high`, and `keys`. None is no bound."""

    low: int | None = None
    high: int | None = None
    keys: frozenset[str] | None = None

    def apply(self, shape: Shape, condition: Filter, own: Mapping[str, str]) -> None:
        """Apply a filter, if it is one on a key or a time. Spark pushes filters since 4.1.

        Args:
            own: name of a column in Spark -> its name in `shape`.
        """
        from pyspark.sql.datasource import (
            EqualNullSafe,
            EqualTo,
            GreaterThan,
            GreaterThanOrEqual,
            In,
            LessThan,
            LessThanOrEqual,
        )

        (name, *deeper) = getattr(condition, "attribute", ("", ""))
        name = own.get(name, name)
        if deeper or name not in ("key", "time") or name not in shape.columns:
            return
        wanted = condition.value if isinstance(condition, In) else (getattr(condition, "value", None),)
        if name == "key":
            if isinstance(condition, EqualTo | EqualNullSafe | In) and all(isinstance(one, str) for one in wanted):
                self.keys = frozenset(wanted) if self.keys is None else self.keys & frozenset(wanted)
            return
        ticks = [shape.pushed(one) for one in wanted]
        found = [tick for tick in ticks if tick is not None]
        if not found or len(found) < len(ticks):
            return
        # A time between two ticks counts as the earlier one, so the read covers at most one tick too many.
        if isinstance(condition, EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual):
            self.low = min(found) if self.low is None else max(self.low, min(found))
        if isinstance(condition, EqualTo | EqualNullSafe | In | LessThan | LessThanOrEqual):
            self.high = max(found) if self.high is None else min(self.high, max(found))


@dataclass(frozen=True)
class TaskPlan:
    """Splits a question into tasks, on the driver."""

    question: Question
    shape: Shape
    info: WindowInfo
    narrowed: Narrowed
    window: Window

    def entries(self) -> list[Share]:
        """Split by keys, then by time if its bounds are known."""
        low, high = self._bounds()
        tasks = self._tasks(self.info.entries, ENTRIES_PER_TASK)
        shares = self._by_key(tasks)
        ranges = self._ranges(low, high, tasks // max(len(shares), 1))
        return [replace(share, start=first, end=last) for share in shares for first, last in ranges]

    def answers(self) -> list[Share]:
        """Split by keys."""
        return self._by_key(self._tasks(self.info.keys, ANSWERS_PER_TASK))

    def series(self) -> list[Share]:
        """Split by keys, then by buckets."""
        names = self._names()
        span = None if names == () else self._span(names)
        if span is None:
            return []
        start, end, step = span
        keys = 1 if not self.shape.by_key else self.info.keys if names is None else len(names)
        buckets = -((start - end) // step)
        tasks = self._tasks(buckets * keys, 10 * ANSWERS_PER_TASK)
        shares = self._by_key(tasks)
        return [
            replace(share, start=start + first * step, end=min(start + last * step, end) - 1, step=step)
            for share in shares
            for first, last in pairwise(_edges(0, buckets, tasks // len(shares)))
        ]

    def _by_key(self, tasks: int) -> list[Share]:
        names = self._names()
        if not self.shape.by_key:
            return [Share(names)]
        if names is not None:
            size = max(math.ceil(len(names) / tasks), 1)
            return [Share(names[at : at + size]) for at in range(0, len(names), size)]
        parts = min(tasks, max(self.info.keys, 1))
        return [Share(part=part, parts=parts) for part in range(parts)]

    def _tasks(self, rows: int, rows_per_task: int) -> int:
        return self.question.partitions or min(max(-(-rows // rows_per_task), 1), TASKS_MAX)

    def _bounds(self) -> tuple[int | None, int | None]:
        low, high = self.narrowed.low, self.narrowed.high
        if self.question.start is not None:
            start = self.shape.tick(self.question.start, "start")
            low = start if low is None else max(low, start)
        if self.question.end is not None:
            end = self.shape.tick(self.question.end, "end")
            high = end if high is None else min(high, end)
        return low, high

    def _names(self) -> tuple[str, ...] | None:
        """Return the names of the keys to read; None stands for all keys."""
        asked, pushed = self.question.keys, self.narrowed.keys
        if asked is not None:
            return tuple(name for name in dict.fromkeys(asked) if pushed is None or name in pushed)
        if pushed is not None:
            # A key that does not exist would get a row here, and no row in a plan without the filter.
            return tuple(name for name in sorted(pushed) if name in self.window.keys(name, limit=None))
        return None

    def _ranges(self, low: int | None, high: int | None, parts: int) -> list[tuple[int | None, int | None]]:
        """Split a range into consecutive ranges; the outer ones keep the bounds of the question, if it has any."""
        first = self.info.oldest if low is None else low
        last = self.info.newest if high is None else high
        if low is not None and high is not None and low > high:
            return []
        if parts < 2 or first is None or last is None or first >= last:
            return [(low, high)]
        starts = _edges(first, last + 1, parts)[:-1]
        return [
            (low if i == 0 else start, high if i == len(starts) - 1 else starts[i + 1] - 1)
            for i, start in enumerate(starts)
        ]

    def _oldest(self, names: tuple[str, ...] | None) -> int | None:
        """The time of the oldest entry of these keys; None if there is none."""
        every = tuple(self.window.keys(limit=None)) if names is None else names
        answers = (self.window.query(keys=list(some)) for some in in_chunks(every, KEYS_PER_CALL))
        return min((one.start for found in answers for one in found if one.start is not None), default=None)

    def _span(self, names: tuple[str, ...] | None) -> tuple[int, int, int] | None:
        """Return the start of the first bucket, the end of the buckets' starts, and the step; None without buckets."""
        assert self.question.step is not None
        key = {"key": "|".join("-" for _ in self.shape.parts or ("key",))} if self.shape.keyed else {}  # any will do
        # The service converts the step into ticks.
        step = self.window.series(0, 1, step=self.question.step, **key).width
        start = None if self.question.start is None else self.shape.tick(self.question.start, "start")
        end = None if self.question.end is None else self.shape.tick(self.question.end, "end")
        if start is None:
            oldest = self._oldest(names) if self.shape.keyed else self.info.oldest
            start = None if oldest is None else oldest // step * step
        if end is None:
            end = None if self.info.newest is None else self.info.newest + 1
        if start is None or end is None:
            return None
        if self.narrowed.low is not None and self.narrowed.low > start:
            start += -((start - self.narrowed.low) // step) * step
        if self.narrowed.high is not None:
            end = min(end, self.narrowed.high + 1)
        return None if start >= end else (start, end, step)


def _edges(first: int, stop: int, parts: int) -> list[int]:
    """Return the bounds of `parts` even parts of a range, or of fewer parts of a short range."""
    parts = max(min(parts, stop - first), 1)
    return [first + (stop - first) * i // parts for i in range(parts + 1)]
