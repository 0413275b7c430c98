"""Writes that remove entries, as values; see `records.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sash_engine.windows.answers import WriteResult
from sash_engine.windows.window import Window

__all__ = ["BulkEvict", "Evict", "EvictRange"]


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


Evict = BulkEvict | EvictRange
"""Writes that make room."""
