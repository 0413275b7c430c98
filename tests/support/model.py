"""The slow, obvious window: a sorted list per key, every answer a fold from scratch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Entry = tuple[int, object]


@dataclass
class Slow:
    """One key: entries in (time, arrival) order, slid as the spec says."""

    max_age: int | None = None
    max_count: int | None = None
    entries: list[Entry] = field(default_factory=list)
    late_through: float = float("-inf")
    newest: float = float("-inf")

    def write(self, batch: list[Entry]) -> tuple[int, int, int]:
        """Insert a batch as one; return how many were inserted, late and evicted."""
        on_time = [entry for entry in batch if entry[0] > self.late_through]
        self.entries = sorted(self.entries + on_time, key=lambda entry: entry[0])
        self.newest = max([self.newest, *(time for time, _ in on_time)])
        evicted = 0
        if self.max_age is not None and self.newest - self.max_age > self.late_through:
            self.late_through = self.newest - self.max_age
            evicted += self.evict(self.late_through)
        if self.max_count is not None and len(self.entries) > self.max_count:
            surplus = len(self.entries) - self.max_count
            self.late_through = max(self.late_through, self.entries[surplus - 1][0] - 1)
            del self.entries[:surplus]
            evicted += surplus
        return len(on_time), len(batch) - len(on_time), evicted

    def evict(self, time: float) -> int:
        """Remove entries of that time and older."""
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[0] > time]
        return before - len(self.entries)

    def between(self, start: float, end: float) -> list[object]:
        """The values with start <= time <= end, in order."""
        return [value for time, value in self.entries if start <= time <= end]


def slow_window(max_age: int | None = None, max_count: int | None = None) -> defaultdict[str, Slow]:
    """A keyed window of `Slow`s."""
    return defaultdict(lambda: Slow(max_age, max_count))
