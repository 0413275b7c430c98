"""DABA Lite: DABA with one partial per entry, and two more.

                front                              back
    F            L       R       A            B         E
    [ p0  p1  p2 | p3 p4 | p5 p6 | p7  p8  p9 | p10 p11 ]       entries
    [     →B     |  →R   | plain |     →B     |  plain  ]       what the queue holds

    →B   fold of the entries from here up to B        middle = p5∘…∘p9   (R up to B, while L ≠ R)
    →R   fold of the entries from here up to R        back   = p10∘p11   (B up to E)

    answer = lower(queue[F] ∘ back)

The pointers move as in `daba.py`. DABA keeps a partial and a fold for each entry, but reads only one of them at a time.
Of the folds of the back it reads only the last, which is `back`. Of the folds of the right list it needs only the last,
too; together with the entries up to B, that is `middle`. A flip turns `back` into `middle`, which then does not change
until the lists are repaired.

Worked example, with the queue after each step, and a bar at F, L, R, A, B and E where they differ:

>>> from sash_engine.monoids import Sum
>>> window = DABALite(Sum("int64"))
>>> window.insert(0)  # |0|            one entry: the front
>>> window.insert(1)  # |1|1|          flipped; middle = 1, and the fold at F covers it
>>> window.insert(2)  # |1 1|2|        L, R and A moved to B; back = 2
>>> window.insert(3)  # |6|1|2|3|      flipped; middle = 2∘3, and the fold at F covers it
>>> window.query(), len(window)
(6, 4)

Insert: worst-case O(1), at most 3 combines (2 on average).  Evict: worst-case O(1), at most 2 (1 on average).
Query: worst-case O(1), one.  Space: n + 2 partials.
Requires: associativity.  Order: in order only.
Source: Tangwongsan, Hirzel, Schneider, VLDB Journal 2021, section 6.  Differs: (a) the queue is a doubly
linked list, as in `daba.py`; (b) no combine is spent on the identity; (c) while L = R, `middle` keeps its old value,
which nothing reads.
"""

from __future__ import annotations

from typing import Any

from sash_engine.aggregators.daba import Cell, Pointers
from sash_engine.monoids.base import Monoid, Partial


class DABALite(Pointers):
    """A first-in-first-out window with constant cost in the worst case and little memory.

    Args:
        monoid: the aggregate.
    """

    algorithm = "daba_lite"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._middle: Partial = monoid.identity
        self._back: Partial = monoid.identity

    def query(self) -> Any:
        if self._F is self._B:
            return self.monoid.lower(self.monoid.identity)  # only an empty window has an empty front
        if self._B is self._E:
            return self.monoid.lower(self._F.partial)
        return self.monoid.lower(self.monoid.combine(self._F.partial, self._back))

    def _fold_in(self, cell: Cell) -> None:
        back_is_empty = self._B is cell
        self._back = cell.partial if back_is_empty else self.monoid.combine(self._back, cell.partial)

    def _restart(self) -> None:
        super()._restart()
        self._middle = self._back = self.monoid.identity

    def _flip(self) -> None:
        super()._flip()
        self._middle, self._back = self._back, self.monoid.identity

    def _shrink(self) -> None:
        left, right = self._L, self._A.older
        left.partial = self.monoid.combine(left.partial, self._middle)
        if self._A is not self._B:
            right.partial = self.monoid.combine(right.partial, self._A.partial)
        self._L, self._A = left.newer, right

    def check_invariants(self) -> None:
        cells, (_, left, r, a, b, e) = self._checked()
        # The folds in the queue cannot be checked: their partials are gone.
        self._check_fold("back", self._back, (cell.partial for cell in cells[b:e]))
        if left < r:
            middle = cells[r : a + 1] if a < b else cells[r:a]  # the fold at A reaches up to B
            self._check_fold("middle", self._middle, (cell.partial for cell in middle))
