"""Sessions: runs of entries with no gap between them; the slide policy `max_gap` keeps the current one of each key.

    max_gap 5      1  3  7        15  18  19  24      an entry more than 5 behind the one before begins a session
                   x  x  x        ~~~~~~~~~~~~~~      the current session; all before it leaves

What a key has is one session before each write. So only entries outside of it can bring a gap, and what is evicted
follows from their times and the session's two ends. Only what leaves from the middle needs a look into the store.

Cost: O(m) vectorised for m entries of k keys; O(log n) for each time that loses entries.
"""

from __future__ import annotations

import numpy as np

from sash_engine.monoids.base import Array
from sash_engine.windows.answers import Counts
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.keys import NEVER, Keys

_WIDEST = 2**63 - 1
_ONE_SESSION: Numbers = np.array([NEVER])
_ONE_SESSION.flags.writeable = False
"""The usual answer about a single key: all is one session."""


class Sessions:
    """Evicts all sessions but the current one.

    Args:
        max_gap: the longest time between two entries of a session, in ticks.
        keys: the entries to evict from.
        counts: counts evicted entries.
    """

    def __init__(self, max_gap: int, keys: Keys, counts: Counts) -> None:
        self._gap, self._keys, self._counts = max_gap, keys, counts

    def end_of_entry(self, number: int, time: int) -> int:
        """As `ends_of_rows`, for one entry."""
        oldest, newest = self._keys.span(number)
        if oldest is None or newest is None:
            return NEVER
        if time - newest > self._gap:
            return newest
        return time if oldest - time > self._gap else NEVER

    def ends_of_rows(self, numbers: Numbers, lengths: Numbers, times: Array) -> Numbers:
        """Where the last session before the current one ends, once some entries are inserted.

        Args:
            numbers: int64 (k,), the keys.
            lengths: int64 (k,), how many entries each is sent, at least one; k may be 0.
            times: the entries of the first key, then those of the second, and so on; in any order.

        Returns:
            the time of its last entry for each key, int64 (k,); `NEVER` where all is one session.
        """
        keys, k = self._keys, len(numbers)
        if not k:
            return np.empty(0, np.int64)
        if k == 1:
            _, last = keys.span(numbers.item())
            if last is not None and times.item(0) - last in range(self._gap + 1):
                steps = (times[1:] - times[:-1]).view(np.uint64)  # steps back, and too wide for an int64, are huge
                widest = steps.max().item() if len(steps) else 0
                if widest <= self._gap:
                    return _ONE_SESSION
                if widest <= _WIDEST:
                    return times[np.flatnonzero(steps > self._gap)[-1:]]
        newest = keys.newest_each(numbers)
        starts = np.cumsum(lengths) - lengths
        steps_back = times[1:] < times[:-1]
        steps_back[starts[1:] - 1] = False  # from one key to the next
        if not steps_back.any() and (times[starts] >= newest).all():
            before = np.concatenate((times[:1], times[:-1]))
            before[starts] = np.where(newest > NEVER, newest, times[starts])
            return np.maximum.reduceat(np.where(wider(before, times, self._gap), before, NEVER), starts)
        # The two ends of what is there stand for all of it.
        oldest, there = keys.oldest_each(numbers), np.flatnonzero(newest > NEVER)
        of = np.concatenate((np.repeat(np.arange(k), lengths), there, there))
        merged = np.concatenate((times, oldest[there], newest[there]))
        order = np.lexsort((merged, of))
        merged, of = merged[order], of[order]
        older, newer, key = merged[:-1], merged[1:], of[:-1]
        outside = (older < oldest[key]) | (newer > newest[key])
        found = (of[1:] == key) & outside & wider(older, newer, self._gap)
        ends = np.full(k, NEVER)
        np.maximum.at(ends, key[found], older[found])
        return ends

    def evict(self, numbers: Numbers, ends: Numbers) -> None:
        """Evict the entries of k keys up to the end of the last session before the current one; see `ends_of_rows`."""
        if ends is _ONE_SESSION:
            return
        ended = ends > NEVER
        if ended.any():
            keys, some, through = self._keys, numbers[ended], ends[ended]
            self._counts.evicted += int(keys.bulk_evict_each(some, through).sum())
            keys.late_through[some] = np.maximum(keys.late_through[some], through)

    def after_removal(self, number: int, times: Array) -> None:
        """Evict what is no longer of the current session of a key, once entries of some times have left."""
        store = self._keys.store(number)
        for time in np.unique(times)[::-1].tolist():
            older, newer = store.neighbours(time)
            if older is not None and newer is not None and newer - older > self._gap:
                self.evict(np.array([number]), np.array([older]))
                return


def wider(older: Array, newer: Array, gap: int) -> Array:
    """Where newer - older > gap. The difference may be larger than an int64; it counts only where newer >= older."""
    wide: Array = (newer.view(np.uint64) - older.view(np.uint64)) > np.uint64(gap)
    return wide
