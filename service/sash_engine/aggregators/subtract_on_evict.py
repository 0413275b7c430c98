"""Subtract-on-Evict: one running total. An insert combines into it, an evict subtracts from it.

    queue   [ p0 | p1   p2   p3 ]           total = p0∘p1∘p2∘p3
              |                             evict:  total = uncombine(total, p0) = p1∘p2∘p3
              v leaves                      insert: total = total ∘ p4

Worked example: 1, 2, 3 make the total 6; evicting the 1 leaves 6 - 1 = 5.

>>> from sash_engine.monoids import Sum
>>> window = SubtractOnEvict(Sum("int64"))
>>> for value in (1, 2, 3):
...     window.insert(value)
>>> window.evict()
>>> window.query()
5

A sum of floats is refused: 2^54 + 1 - 2^54 is not 1, and NaN - NaN is not 0, so one such entry would make all later
answers wrong.

>>> SubtractOnEvict(Sum("float64"))
Traceback (most recent call last):
sash_engine.errors.Unsupported: subtract_on_evict evicts by subtracting, and Sum(float64) has no exact inverse

Insert, evict: worst-case O(1), one combine each.  Query: O(1), none.  Space: n + 1 partials.
Requires: associativity and an exact inverse.  Order: in order only.
Source: folklore; as the baseline in Tangwongsan, Hirzel, Schneider, VLDB Journal 2021.  Differs: (a) an empty
window's total is the identity, not the remainder of the subtractions; (b) monoids without an inverse are refused.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.monoids.base import Monoid, Partial


class SubtractOnEvict(InOrder):
    """A first-in-first-out window that subtracts.

    Args:
        monoid: the aggregate; it must be `invertible`.
    """

    algorithm = "subtract_on_evict"
    inverts = True

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._queue: deque[Partial] = deque()
        self._total: Partial = monoid.identity

    def __len__(self) -> int:
        return len(self._queue)

    def query(self) -> Any:
        return self.monoid.lower(self._total)

    def insert(self, value: Any) -> None:
        partial = self.monoid.lift(value)
        self._total = self.monoid.combine(self._total, partial)
        self._queue.append(partial)

    def evict(self) -> None:
        if not self._queue:
            raise self._nothing_to_evict()
        # Subtract before the entry goes: where `uncombine` raises, nothing has changed.
        self._total = self.monoid.uncombine(self._total, self._queue[0]) if len(self) > 1 else self.monoid.identity
        self._queue.popleft()

    def check_invariants(self) -> None:
        self._check_fold("total", self._total, self._queue)
