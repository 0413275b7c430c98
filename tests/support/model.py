"""The slow, obvious window: a sorted list per key, every answer a fold from scratch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

Entry = tuple[int, object]
NEVER = float("-inf")


@dataclass
class Slow:
    """One key: entries in (time, arrival) order, slid as the spec says.

    Args:
        max_age, max_count, every, max_gap: the slide policy; by wall time where `wall` is set.
        ahead: how far ahead of wall time an entry may be; None: as far as it likes.
        wall: whether now is wall time.

    Attributes:
        mark: the newest time ever inserted.
        now: what lookbacks go back from.
    """

    max_age: int | None = None
    max_count: int | None = None
    entries: list[Entry] = field(default_factory=list)
    late_through: float = NEVER
    mark: float = NEVER
    ahead: int | None = None
    wall: bool = False
    every: int = 1
    max_gap: int | None = None
    punctuated: float | None = None
    """Of a window until punctuation: what is final."""
    time: float = NEVER
    """Wall time, which the test moves."""
    inserted: int = 0
    late: int = 0
    evicted: int = 0
    too_far: int = 0
    slid: float = NEVER
    """The newest time of those that the slide policy has evicted."""

    @property
    def end(self) -> float:
        """Where lookbacks end: nothing is cut off at the newer end, unless now is what is final."""
        return self.now if self.punctuated is not None else max(self.now, self.mark)

    @property
    def now(self) -> float:
        if self.punctuated is not None:
            return self.punctuated
        return self.time if self.wall else self.mark

    @property
    def newest(self) -> int | None:
        """The newest entry's time."""
        return self.entries[-1][0] if self.entries else None

    def write(self, batch: list[Entry]) -> tuple[int, int, int]:
        """Insert a batch as one; return how many were inserted, late and evicted. `too_far` counts the others."""
        near = [entry for entry in batch if self.ahead is None or entry[0] <= self.time + self.ahead]
        late_through = self.late_through
        if self.wall and self.max_age is not None:
            late_through = max(late_through, self.begin - 1)
        if self.punctuated is not None:
            late_through = max(late_through, self.punctuated)
        on_time = [entry for entry in near if entry[0] > late_through]
        self.entries = sorted(self.entries + on_time, key=lambda entry: entry[0])
        self.mark = max([self.mark, *(time for time, _ in on_time)])
        evicted = self.slide() if on_time else 0
        self.inserted += len(on_time)
        self.late += len(near) - len(on_time)
        self.too_far += len(batch) - len(near)
        return len(on_time), len(near) - len(on_time), evicted

    def slide(self) -> int:
        """Evict what the policy says; return how many."""
        before = self.entries
        evicted = self._end_sessions()
        if self.max_age is not None and self.now > NEVER and self.begin - 1 > self.late_through:
            self.late_through = self.begin - 1
            evicted += self._leave(self.late_through)
        if self.max_count is not None and len(self.entries) > self.max_count:
            surplus = len(self.entries) - self.max_count
            self.late_through = max(self.late_through, self.entries[surplus - 1][0] - 1)
            self.entries = self.entries[surplus:]
            evicted += surplus
        left = before[: len(before) - len(self.entries)]
        self.slid = max([self.slid, *(time for time, _ in left[-1:])])
        self.evicted += evicted
        return evicted

    @property
    def begin(self) -> float:
        """The oldest time that `max_age` keeps: the window ends with the step that now is in."""
        return (self.now // self.every + 1) * self.every - self.max_age

    def _end_sessions(self) -> int:
        """Evict all before the last gap."""
        times = [time for time, _ in self.entries]
        ends = [a for a, b in pairwise(times) if self.max_gap is not None and b - a > self.max_gap]
        if not ends:
            return 0
        self.late_through = max(self.late_through, ends[-1])
        return self._leave(ends[-1])

    def evict(self, time: float) -> int:
        """Remove entries of that time and older."""
        gone = self._leave(time)
        self.evicted += gone
        return gone

    def evict_range(self, start: float, end: float) -> int:
        """Remove entries with start <= time <= end."""
        gone = len(self.between(start, end))
        self.entries = [entry for entry in self.entries if not start <= entry[0] <= end]
        gone += self._end_sessions() if gone else 0
        self.evicted += gone
        return gone

    def evict_wrong(self, start: float, end: float) -> int:
        """As `evict_range`; a mark in the range goes back to what is left, and what is late begins anew."""
        gone = self.evict_range(start, end)
        if start <= self.mark <= end:
            self.mark = max((time for time, _ in self.entries), default=NEVER)
            self.late_through = self.slid = NEVER
            assert not self.slide(), "what is left is in the window"
        return gone

    def _leave(self, time: float) -> int:
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[0] > time]
        return before - len(self.entries)

    def between(self, start: float, end: float) -> list[object]:
        """The values with start <= time <= end, in order."""
        return [value for time, value in self.entries if start <= time <= end]

    def trailing(self, lookback: int) -> list[object]:
        """The values of a lookback as of now."""
        return self.between(self.now - lookback + 1, self.end)

    def punctuate(self, time: float) -> int:
        """Let entries up to a time be final; return how many left."""
        assert self.punctuated is not None, "the window waits for it"
        self.punctuated = max(self.punctuated, time)
        return self.slide()


def slow_window(
    max_age: int | None = None,
    max_count: int | None = None,
    ahead: int | None = None,
    wall: bool = False,
    every: int = 1,
    max_gap: int | None = None,
    until: str | None = None,
) -> defaultdict[str, Slow]:
    """A keyed window of `Slow`s; `until` as in a spec."""
    final = None if until is None else NEVER
    return defaultdict(
        lambda: Slow(max_age, max_count, ahead=ahead, wall=wall, every=every, max_gap=max_gap, punctuated=final)
    )
