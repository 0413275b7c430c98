"""Two-Stacks: a queue of two stacks, each of which knows the fold of its entries.

    front (evict here)                     back (insert here)
    [ p0 : p0∘p1∘p2 ]  <- top              [ p4 : p3∘p4 ]  <- top
    [ p1 :    p1∘p2 ]                      [ p3 : p3    ]
    [ p2 :       p2 ]                      partial : fold of the stack up to here, in time order

    answer = lower(front's top ∘ back's top)

When the front is empty, the next eviction *flips*: it moves every entry from the back to the front, which reverses
their order, so the oldest is on top.

Worked example: insert 0, 1, 2 and evict one. The flip makes the front [2], [1, 2], [0, 1, 2] with two combines, and its
top is popped. Then insert 3 and 4 at the back: the answer is front (1 + 2) ∘ back (3 + 4).

>>> from sash_engine.monoids import Sum
>>> window = TwoStacks(Sum("int64"))
>>> for value in (0, 1, 2):
...     window.insert(value)
>>> window.evict()
>>> for value in (3, 4):
...     window.insert(value)
>>> window.query(), len(window)
(10, 4)

Insert: worst-case O(1), one combine.  Evict: amortised O(1) (one combine), worst O(n) (n - 1).  Query: O(1),
one.
Space: 2n partials.
Requires: associativity.  Order: in order only.
Source: Tangwongsan, Hirzel, Schneider, VLDB Journal 2021, section 3, which also has its history.  Differs: no combine
is spent on the identity, so counts are at most those of the paper.
"""

from __future__ import annotations

from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.monoids.base import Monoid, Partial

Stack = list[tuple[Partial, Partial]]
"""For each entry, from the bottom up: its partial, and the fold from the bottom to it, in time order."""


class TwoStacks(InOrder):
    """A first-in-first-out window in two stacks.

    Args:
        monoid: the aggregate.
    """

    algorithm = "two_stacks"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._front: Stack = []
        self._back: Stack = []

    def __len__(self) -> int:
        return len(self._front) + len(self._back)

    def query(self) -> Any:
        if not self._front:
            return self.monoid.lower(self._back[-1][1] if self._back else self.monoid.identity)
        if not self._back:
            return self.monoid.lower(self._front[-1][1])
        return self.monoid.lower(self.monoid.combine(self._front[-1][1], self._back[-1][1]))

    def insert(self, value: Any) -> None:
        partial = self.monoid.lift(value)
        fold = self.monoid.combine(self._back[-1][1], partial) if self._back else partial
        self._back.append((partial, fold))

    def evict(self) -> None:
        if not self._front:
            self._front, self._back = self._flipped(), []
        self._front.pop()

    def _flipped(self) -> Stack:
        """Make a front of the entries of the back."""
        if not self._back:
            raise self._nothing_to_evict()
        partial = fold = self._back[-1][0]
        front = [(partial, fold)]
        for partial, _ in self._back[-2::-1]:
            fold = self.monoid.combine(partial, fold)
            front.append((partial, fold))
        return front

    def check_invariants(self) -> None:
        front = [partial for partial, _ in self._front]
        for depth, (_, fold) in enumerate(self._front):
            self._check_fold(f"front {depth}", fold, front[depth::-1])
        back = [partial for partial, _ in self._back]
        for depth, (_, fold) in enumerate(self._back):
            self._check_fold(f"back {depth}", fold, back[: depth + 1])
