"""FlatFIT: every entry has a fold, and a pointer to the entry after the last one in that fold.

    position   3     4     5     6     7
    partial    p3    p4    p5∘p6 p6    p7              a query for the newest five walks 3 -> 4 -> 5 -> 7
    next       4     5     7     7     8 (tail)

    after it   p3∘…∘p7  p4∘…∘p7  p5∘…∘p7  p6  p7       the walked entries point to the tail,
    next       8        8        8        7   8        and hold the fold up to there

A query from any entry follows the pointers to the tail. On its way back it writes the folds that it computed, and
points the entries to the tail. The next query from one of these entries takes one step. So queries over windows of
several lengths share their work, and each window length has a full walk only once per round through the window.

Worked example, on the drawing: the entries 5 and 6 were queried before 7 was inserted. Then the whole window costs
three combines (the partial of 7 into 5, then into 4, then into 3), and the newest four entries cost none.

>>> from sash_engine.monoids import Sum
>>> window = FlatFIT(Sum("int64"))
>>> for value in range(7):
...     window.insert(value)
>>> window.query_newest(2)
11
>>> for _ in range(3):
...     window.evict()
>>> window.insert(7)
>>> window.query(), window.query_newest(4), len(window)
(25, 22, 5)

Insert, evict: no combines.  Query: amortised O(1) for the whole window, at most 3 combines per slide (evict,
insert, query); worst O(n), n - 1 combines.  Query of a part: at most one combine per entry.
Space: n partials and n pointers, in buffers of at most four times that.
Requires: associativity.  Order: in order only.
Source: Shein, Chrysanthis, Labrinidis, "FlatFIT: accelerated incremental sliding-window aggregation for
real-time analytics", SSDBM 2017.  Differs: (a) the window may have any length at any time, and the buffer
grows and shrinks with it; (b) positions count up and are mapped to slots only when the buffer is read, so pointers
stay valid after a resize.
"""

from __future__ import annotations

from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid, Partial

LEAST_CAPACITY = 4


class FlatFIT(InOrder):
    """A first-in-first-out window that shares folds between queries.

    Args:
        monoid: the aggregate.
    """

    algorithm = "flatfit"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._head = self._tail = 0  # positions: head <= position < tail
        self._mask = LEAST_CAPACITY - 1
        self._partials: list[Partial] = [None] * LEAST_CAPACITY
        self._next = [0] * LEAST_CAPACITY

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def capacity(self) -> int:
        """The length of the buffer, a power of two."""
        return self._mask + 1

    def query(self) -> Any:
        return self.monoid.lower(self._fold_from(self._head))

    def query_newest(self, count: int) -> Any:
        """Answer over the newest `count` entries, or all if there are fewer.

        Raises:
            InvalidArgument: `count` is negative.
        """
        if count < 0:
            raise InvalidArgument(f"count is {count}: a number of entries cannot be negative", field="count", limit="0")
        return self.monoid.lower(self._fold_from(max(self._head, self._tail - count)))

    def _fold_from(self, position: int) -> Partial:
        """Fold the entries from `position` to the tail; every entry on the way then points to the tail."""
        partials, following, tail, mask = self._partials, self._next, self._tail, self._mask
        if position == tail:
            return self.monoid.identity
        path = [position & mask]
        position = following[path[0]]
        while position != tail:
            path.append(position & mask)
            position = following[path[-1]]
        fold = partials[path.pop()]
        while path:
            at = path.pop()
            fold = partials[at] = self.monoid.combine(partials[at], fold)
            following[at] = tail
        return fold

    def insert(self, value: Any) -> None:
        partial = self.monoid.lift(value)
        if len(self) == self.capacity:
            self._resize(2 * self.capacity)
        self._partials[self._tail & self._mask] = partial
        self._tail += 1
        self._next[(self._tail - 1) & self._mask] = self._tail

    def evict(self) -> None:
        if not len(self):
            raise self._nothing_to_evict()
        self._partials[self._head & self._mask] = None
        self._head += 1
        if len(self) * 4 <= self.capacity > LEAST_CAPACITY:
            self._resize(self.capacity // 2)

    def _resize(self, capacity: int) -> None:
        """Move the entries to a buffer of another length; their positions do not change."""
        partials: list[Partial] = [None] * capacity
        following = [0] * capacity
        for position in range(self._head, self._tail):
            partials[position & (capacity - 1)] = self._partials[position & self._mask]
            following[position & (capacity - 1)] = self._next[position & self._mask]
        self._mask, self._partials, self._next = capacity - 1, partials, following

    def check_invariants(self) -> None:
        """Check buffers and pointers. Folds cannot be checked: their partials are gone."""
        capacity, size = self.capacity, len(self)
        require(capacity.bit_count() == 1, "capacity", f"{capacity} is not a power of two")
        require(len(self._partials) == len(self._next) == capacity, "buffers", "they differ in length")
        require(0 <= size <= capacity, "size", f"{size} entries in {capacity} places")
        require(size * 4 > capacity or capacity == LEAST_CAPACITY, "fill", f"{size} entries in {capacity} places")
        for position in range(self._head, self._tail):
            following = self._next[position & self._mask]
            found = f"{position} points to {following}, and the tail is {self._tail}"
            require(position < following <= self._tail, "pointers", found)
