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

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial

__all__ = ["DABALite"]


class Cell:
    """One entry: a partial or a fold, depending on its list."""

    __slots__ = ("newer", "older", "partial")

    partial: Partial
    newer: Cell

    def __init__(self, older: Cell | None) -> None:
        self.older = older


class DABALite(InOrder):
    """A first-in-first-out window with constant cost in the worst case and little memory.

    Args:
        monoid: the aggregate.
    """

    algorithm = "daba_lite"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._size = 0
        # The pointers have the names of the paper. The cell at E is empty, for the next entry.
        self._F = self._L = self._R = self._A = self._B = self._E = Cell(None)
        self._middle: Partial = monoid.identity
        self._back: Partial = monoid.identity

    def __len__(self) -> int:
        return self._size

    def query(self) -> Any:
        if self._F is self._B:
            return self.monoid.lower(self.monoid.identity)  # only an empty window has an empty front
        if self._B is self._E:
            return self.monoid.lower(self._F.partial)
        return self.monoid.lower(self.monoid.combine(self._F.partial, self._back))

    def insert(self, value: Any) -> None:
        cell = self._E
        cell.partial = self.monoid.lift(value)
        back_is_empty = self._B is cell
        self._back = cell.partial if back_is_empty else self.monoid.combine(self._back, cell.partial)
        cell.newer = self._E = Cell(cell)
        self._size += 1
        self._fix_up()

    def evict(self) -> None:
        if not self._size:
            raise self._nothing_to_evict()
        self._F = self._F.newer
        self._F.older = None  # frees the cell; nothing reads before F
        self._size -= 1
        self._fix_up()

    def _fix_up(self) -> None:
        """Restore the balance after one insert or evict."""
        if self._F is self._B:  # empty, or with one new entry: there is only the front
            self._L = self._R = self._A = self._B = self._E
            self._middle = self._back = self.monoid.identity
            return
        if self._L is self._B:
            self._flip()
        if self._L is self._R:
            self._shift()
        else:
            self._shrink()

    def _flip(self) -> None:
        """Make the front the left list and the back the right list; R already is at the border between them."""
        self._L = self._F
        self._A = self._B = self._E
        self._middle, self._back = self._back, self.monoid.identity

    def _shift(self) -> None:
        """Move past an entry that is repaired."""
        self._L = self._R = self._A = self._A.newer

    def _shrink(self) -> None:
        """Repair the oldest entry of the left list and the newest entry of the right list."""
        left, right = self._L, self._A.older
        assert right is not None
        left.partial = self.monoid.combine(left.partial, self._middle)
        if self._A is not self._B:
            right.partial = self.monoid.combine(right.partial, self._A.partial)
        self._L, self._A = left.newer, right

    def check_invariants(self) -> None:
        cells = [self._F]
        while cells[-1] is not self._E:
            cells.append(cells[-1].newer)
            require(cells[-1].older is cells[-2], "links", f"cell {len(cells) - 1} does not lead back")
        at = {id(cell): index for index, cell in enumerate(cells)}
        pointers = (self._F, self._L, self._R, self._A, self._B, self._E)
        require(all(id(cell) in at for cell in pointers), "pointers", "one is at a cell that has left")
        f, left, r, a, b, e = bounds = [at[id(cell)] for cell in pointers]
        require(bounds == sorted(bounds), "pointer order", f"F, L, R, A, B, E = {bounds}")
        require(e - f == self._size, "size", f"{e - f} cells for {self._size} entries")
        require(r - left == a - r, "balance", f"|[L,R)| is {r - left}, but |[R,A)| is {a - r}")
        if self._size:
            require(b - left + 1 == (b - f) - (e - b), "balance", f"F, L, R, A, B, E = {bounds}")
        # The folds in the queue cannot be checked: their partials are gone.
        self._check_fold("back", self._back, (cell.partial for cell in cells[b:e]))
        if left < r:
            middle = cells[r : a + 1] if a < b else cells[r:a]  # the fold at A reaches up to B
            self._check_fold("middle", self._middle, (cell.partial for cell in middle))
