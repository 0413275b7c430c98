"""Writes that remove or correct entries, as values; see `records.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sash.durability.columns import batch_to, size_of
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.window import Window

__all__ = ["BulkEvict", "Evict", "EvictRange", "Punctuate", "Retract", "Update", "eviction_of"]


@dataclass(slots=True)
class BulkEvict:
    """Evict all entries up to a time."""

    kind: ClassVar[str] = "bulk_evict"
    time: int
    key: str | None = None

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.bulk_evict(self.time, self.key))

    def fields(self) -> list[Any]:
        return [self.time, self.key]

    @property
    def size(self) -> int:
        return 100


@dataclass(slots=True)
class EvictRange:
    """Evict all entries of a range of time: start <= time <= end."""

    kind: ClassVar[str] = "evict_range"
    start: int
    end: int
    key: str | None = None

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.evict_range(self.start, self.end, self.key))

    def fields(self) -> list[Any]:
        return [self.start, self.end, self.key]

    @property
    def size(self) -> int:
        return 100


@dataclass(slots=True)
class _Change:
    """A write that names entries by time, identity and key.

    Where it comes without times, it has those of the entries that were found once it is applied: so its record has
    them, and recovery looks nothing up.
    """

    retracts: ClassVar[bool]
    batch: AnyBatch

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return finished(self.steps(window, now_ns))

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As `apply`, in steps."""
        batch, absent = yield from window.timed_steps(self.batch, self.retracts)
        change = window.retract_steps if self.retracts else window.update_steps
        result = yield from change(batch)
        result.missing += absent
        self.batch = batch
        return result

    def fields(self) -> list[Any]:
        return [batch_to(self.batch)]

    @property
    def size(self) -> int:
        return 100 + size_of(self.batch)


@dataclass(slots=True)
class Retract(_Change):
    """Remove the entries that a batch names."""

    kind: ClassVar[str] = "retract"
    retracts: ClassVar[bool] = True


@dataclass(slots=True)
class Update(_Change):
    """Give the entries that a batch names the values of the batch."""

    kind: ClassVar[str] = "update"
    retracts: ClassVar[bool] = False


@dataclass(slots=True)
class Punctuate:
    """Note that entries of a time and older are final."""

    kind: ClassVar[str] = "punctuate"
    time: int

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.punctuate(self.time))

    def fields(self) -> list[Any]:
        return [self.time]

    @property
    def size(self) -> int:
        return 100


Evict = BulkEvict | EvictRange | Punctuate | Retract
"""Writes that make room."""


def eviction_of(time: int | None, key: str | None, start: int | None, end: int | None, end_exclusive: bool) -> Evict:
    """Return the write that a call to evict asks for; raises InvalidArgument."""
    if start is None and end is None:
        if time is None:
            raise InvalidArgument("give a time, or start and end", field="time")
        if end_exclusive:
            raise InvalidArgument("end_exclusive is for a start and an end", field="end_exclusive")
        return BulkEvict(time, key)
    if time is not None:
        raise InvalidArgument("give either a time, or start and end", field="time")
    if start is None or end is None:
        missing = "start" if start is None else "end"
        raise InvalidArgument(f"{missing} is missing: give both start and end", field=missing)
    last = end - end_exclusive
    if start > last:
        wrong = "is not before" if end_exclusive else "is after"
        raise InvalidArgument(f"start {start} {wrong} end {end}", field="start", limit=str(last))
    return EvictRange(start, last, key)
