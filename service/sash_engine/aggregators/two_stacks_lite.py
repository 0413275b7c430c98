"""Two-Stacks Lite: a first-in-first-out window in one queue and one running partial.

    queue   [ s0  s1  s2 | p3  p4 ]     s0 = p0∘p1∘p2   s1 = p1∘p2   s2 = p2
                         ^ split        back = p3∘p4
    answer  = lower(s0 ∘ back)

Before the split the queue has suffix folds, after it partials. This is `two_stacks.py` without the values that it never
reads: the partials of the front, and all folds of the back except the last. When the front is empty, an eviction
*flips*: it turns every partial of the queue into its suffix fold, in place, from the newest to the oldest.

Worked example: insert 0, 1, 2 and evict one. The flip turns [0, 1, 2] into [3, 3, 2] with two combines, and the first
is removed. Then insert 3 and 4: the queue is [3, 2 | 3, 4], back is 7 and the answer is 3 + 7.

>>> from sash_engine.monoids import Sum
>>> window = TwoStacksLite(Sum("int64"))
>>> for value in (0, 1, 2):
...     window.insert(value)
>>> window.evict()
>>> for value in (3, 4):
...     window.insert(value)
>>> window.query(), len(window)
(10, 4)

Insert: worst-case O(1), one combine.  Evict: amortised O(1) (one combine), worst O(n) (n - 1).  Query: O(1),
one.
Space: n + 1 partials.
Requires: associativity.  Order: in order only.
Source: Tangwongsan, Hirzel, Schneider, VLDB Journal 2021, section 4.  Differs: (a) no combine is spent on the
identity; (b) the split is a count, not an iterator.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial


class TwoStacksLite(InOrder):
    """A first-in-first-out window in a queue and a partial.

    Args:
        monoid: the aggregate.
    """

    algorithm = "two_stacks_lite"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._queue: deque[Partial] = deque()
        self._split = 0  # the number of suffix folds
        self._back: Partial = monoid.identity

    def __len__(self) -> int:
        return len(self._queue)

    def query(self) -> Any:
        if not self._split:
            return self.monoid.lower(self._back)
        if self._split == len(self._queue):
            return self.monoid.lower(self._queue[0])
        return self.monoid.lower(self.monoid.combine(self._queue[0], self._back))

    def insert(self, value: Any) -> None:
        partial = self.monoid.lift(value)
        empty = self._split == len(self._queue)
        self._back = partial if empty else self.monoid.combine(self._back, partial)
        self._queue.append(partial)

    def evict(self) -> None:
        if not self._split:
            self._flip()
        self._queue.popleft()
        self._split -= 1

    def _flip(self) -> None:
        """Turn the queue's partials into suffix folds."""
        if not self._queue:
            raise self._nothing_to_evict()
        # Each rotation brings the next partial to the end, which a deque reaches in O(1). After n rotations all are
        # back in place. A second queue would take another n partials.
        queue, combine = self._queue, self.monoid.combine
        fold = queue[-1]
        queue.rotate(1)
        for _ in range(len(queue) - 1):
            queue[-1] = fold = combine(queue[-1], fold)
            queue.rotate(1)
        self._split, self._back = len(queue), self.monoid.identity

    def check_invariants(self) -> None:
        """Check the split and the back. Suffix folds cannot be checked: their partials are gone."""
        require(0 <= self._split <= len(self._queue), "split", f"{self._split} of {len(self._queue)} entries")
        self._check_fold("back", self._back, islice(self._queue, self._split, None))
