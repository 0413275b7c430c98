"""Recalculation: keep every entry, and fold all of them for each query. Slow, and obviously correct.

    times      [  1    2    2    5 ]
    partials   [ p0   p1   p2   p3 ]      answer = lower(identity ∘ p0 ∘ p1 ∘ p2 ∘ p3)

This is the oracle: after the same history, any other structure must give the same answers. It supports all operations.
It keeps entries of equal times in either of two ways: combined into one entry, as the papers define, or as separate
entries in order of arrival, as the service does.

Worked example. Times 2 and 2 are one entry in the first window and two in the second, so evicting the two oldest
entries leaves different entries:

>>> from sash_engine.monoids import Sum
>>> combined, kept = Recalc(Sum("int64")), Recalc(Sum("int64"), equal_times="keep")
>>> for window in (combined, kept):
...     window.bulk_insert([(5, 50), (1, 10), (2, 20), (2, 21)])
...     print(len(window), window.range_query(2, 5), window.evict_count(2), window.query())
3 91 2 50
4 91 2 71

Insert, evict: O(n).  Query, range query: O(n), one combine per entry.  Space: n partials.
Requires: associativity.  Order: any.
Source: the definition of the problem; as the baseline in Tangwongsan, Hirzel, Schneider and Wu, VLDB 2015.
Differs: values are lifted once, when they are inserted, which gives the same answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from operator import itemgetter
from typing import Any, Literal

from sash_engine.aggregators.base import Bulk, InOrder, OutOfOrder, Pairs, Range
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial


class Recalc(OutOfOrder, Bulk, Range):
    """The oracle for timed windows.

    Args:
        monoid: the aggregate.
        equal_times: "combine" combines entries of equal times into one; "keep" keeps them apart, in order of arrival.
    """

    algorithm = "recalc"

    def __init__(self, monoid: Monoid, *, equal_times: Literal["combine", "keep"] = "combine") -> None:
        super().__init__(monoid)
        self.equal_times = equal_times
        self._times: list[int] = []
        self._partials: list[Partial] = []

    def __len__(self) -> int:
        return len(self._times)

    @property
    def oldest(self) -> int | None:
        return self._times[0] if self._times else None

    @property
    def youngest(self) -> int | None:
        return self._times[-1] if self._times else None

    @property
    def times(self) -> list[int]:
        """The times of all entries, oldest first."""
        return list(self._times)

    def query(self) -> Any:
        return self.monoid.lower(self._fold(0, len(self)))

    def range_query(self, start: int, end: int) -> Any:
        return self.monoid.lower(self._fold(bisect_left(self._times, start), bisect_right(self._times, end)))

    def _fold(self, first: int, last: int) -> Partial:
        total = self.monoid.identity
        for partial in self._partials[first:last]:
            total = self.monoid.combine(total, partial)
        return total

    def insert(self, time: int, value: Any) -> None:
        self._insert(time, self.monoid.lift(value))

    def _insert(self, time: int, partial: Partial) -> None:
        after = bisect_right(self._times, time)
        if self.equal_times == "combine" and after and self._times[after - 1] == time:
            self._partials[after - 1] = self.monoid.combine(self._partials[after - 1], partial)
        else:
            self._times.insert(after, time)
            self._partials.insert(after, partial)

    def bulk_insert(self, pairs: Pairs) -> None:
        lifted = [(time, self.monoid.lift(value)) for time, value in pairs]
        for time, partial in sorted(lifted, key=itemgetter(0)):
            self._insert(time, partial)

    def evict(self, time: int | None = None) -> None:
        """Evict the entry at `time`, or the first of several; the oldest entry if `time` is None."""
        if not self._times:
            raise self._nothing_to_evict()
        at = 0 if time is None else bisect_left(self._times, time)
        if time is not None and (at == len(self) or self._times[at] != time):
            raise self._absent(time)
        del self._times[at], self._partials[at]

    def bulk_evict(self, time: int) -> int:
        return self.evict_count(bisect_right(self._times, time))

    def evict_count(self, count: int) -> int:
        """Evict the oldest `count` entries, or all if there are fewer; return the number of evicted entries."""
        count = min(count, len(self))
        del self._times[:count], self._partials[:count]
        return count

    def check_invariants(self) -> None:
        times = self._times
        require(len(times) == len(self._partials), "size", f"{len(times)} times, {len(self._partials)} partials")
        require(times == sorted(times), "order", f"times {times}")
        if self.equal_times == "combine":
            require(len(set(times)) == len(times), "equal times", f"not combined in {times}")


class RecalcInOrder(InOrder):
    """The oracle for windows without times.

    >>> from sash_engine.monoids import Sum
    >>> window = RecalcInOrder(Sum("int64"))
    >>> for value in (1, 2, 3):
    ...     window.insert(value)
    >>> window.evict()
    >>> window.query(), len(window)
    (5, 2)
    """

    algorithm = "recalc_in_order"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._partials: deque[Partial] = deque()

    def __len__(self) -> int:
        return len(self._partials)

    def query(self) -> Any:
        total = self.monoid.identity
        for partial in self._partials:
            total = self.monoid.combine(total, partial)
        return self.monoid.lower(total)

    def insert(self, value: Any) -> None:
        self._partials.append(self.monoid.lift(value))

    def evict(self) -> None:
        if not self._partials:
            raise self._nothing_to_evict()
        self._partials.popleft()

    def check_invariants(self) -> None:
        """Check nothing: a queue of entries has no invariants."""
