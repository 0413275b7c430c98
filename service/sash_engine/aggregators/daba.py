"""DABA, the de-amortised banker's aggregator: Two-Stacks whose flip is done a little at every step.

                front                              back
    F            L       R       A            B         E
    [ p0  p1  p2 | p3 p4 | p5 p6 | p7  p8  p9 | p10 p11 ]       partials
    [     →B     |  →R   |  R→   |     →B     |   B→    ]       folds

    →B   fold of the entries from here up to B        R→   fold of the entries from R up to here
    →R   fold of the entries from here up to R        B→   fold of the entries from B up to here

    answer = lower(fold at F ∘ fold at E - 1)

A flip turns folds that grew forwards (the back's) into folds that reach backwards (the front's). DABA flips
early, when the front is as long as the back, by moving pointers only: the old front becomes the left list [L,
R), whose folds are right but do not yet reach B; the old back becomes the right list [R, A), whose folds
still run the wrong way. From then on every insert and every evict mends one entry of either: the one at L is
made to reach B, and the one before A is turned around. Both lists have the same length, so they are used up
together, and before the oldest unmended entry can come to the front. Once they are empty, [F, B) is mended,
and L, R and A move on with each step until the next flip. After every step, unless the window is empty:

    |[L,R)| = |[R,A)|   and   |[L,B)| + 1 = |[F,B)| - |[B,E)|

Worked example. 0 is all front. 1 makes the back as long as the front: they flip, and 0's fold is made to
reach over 1. With 2, L, R and A move on to B. 3 makes it 2 against 2: they flip, and 0's fold is made to
reach over all four. The eviction of 0 mends the rest: 1's fold, 1, becomes 1∘(2∘3), and 2's, 2, becomes 2∘3.

>>> from sash_engine.monoids import Sum
>>> window = DABA(Sum("int64"))
>>> for value in (0, 1, 2, 3):
...     window.insert(value)
>>> window.evict()
>>> window.query(), len(window)
(6, 3)

Insert: worst-case O(1), at most 4 combines (2.5 on average).  Evict: worst-case O(1), at most 3 (1.5 on
average).
Query: worst-case O(1), one.  Space: 2n partials.
Requires: associativity.  Order: in order only.
Source: Tangwongsan, Hirzel, Schneider, VLDB Journal 2021, section 5 (first in DEBS 2017).  Differs: (a) the
queue is a doubly linked list instead of a chunked array, so that no step ever copies and pointers stay valid;
(b) no combine is spent on the identity.
"""

from __future__ import annotations

from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial

__all__ = ["DABA"]


class Cell:
    """One entry: its partial, and a fold that depends on the list it is in."""

    __slots__ = ("fold", "newer", "older", "partial")

    partial: Partial
    fold: Partial
    newer: Cell

    def __init__(self, older: Cell | None) -> None:
        self.older = older


class DABA(InOrder):
    """A first-in-first-out window with constant cost in the worst case.

    Args:
        monoid: the aggregate.
    """

    algorithm = "daba"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._size = 0
        # The pointers have the paper's names. The cell at E is empty: the next entry goes there.
        self._F = self._L = self._R = self._A = self._B = self._E = Cell(None)

    def __len__(self) -> int:
        return self._size

    def query(self) -> Any:
        if self._F is self._B:
            return self.monoid.lower(self.monoid.identity)  # only an empty window has an empty front
        if self._B is self._E:
            return self.monoid.lower(self._F.fold)
        return self.monoid.lower(self.monoid.combine(self._F.fold, before(self._E).fold))

    def insert(self, value: Any) -> None:
        cell = self._E
        cell.partial = self.monoid.lift(value)
        back_is_empty = self._B is cell
        cell.fold = cell.partial if back_is_empty else self.monoid.combine(before(cell).fold, cell.partial)
        cell.newer = self._E = Cell(cell)
        self._size += 1
        self._fix_up()

    def evict(self) -> None:
        if not self._size:
            raise self._nothing_to_evict()
        self._F = self._F.newer
        self._F.older = None  # lets go of the cell; nothing looks behind F
        self._size -= 1
        self._fix_up()

    def _fix_up(self) -> None:
        """Restore the balance after one entry came or went."""
        if self._F is self._B:  # empty, or one entry that has just come: the front is all there is
            self._L = self._R = self._A = self._B = self._E
            return
        if self._L is self._B:
            self._flip()
        if self._L is self._R:
            self._shift()
        else:
            self._shrink()

    def _flip(self) -> None:
        """Make the front the left list and the back the right list; R is at the border between them already."""
        self._L = self._F
        self._A = self._B = self._E

    def _shift(self) -> None:
        """Move past an entry that is mended."""
        self._L = self._R = self._A = self._A.newer

    def _shrink(self) -> None:
        """Mend the oldest entry of the left list, and the newest one of the right list."""
        combine, left, right = self.monoid.combine, self._L, before(self._A)
        fold = combine(left.fold, right.fold)  # what is left of L up to R, then all of R
        if self._A is self._B:
            left.fold, right.fold = fold, right.partial
        else:
            left.fold = combine(fold, self._A.fold)
            right.fold = combine(right.partial, self._A.fold)
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
        partials = [cell.partial for cell in cells[:-1]]
        for index in range(self._size):
            if index < left or a <= index < b:
                first, last = index, b
            elif index < r:
                first, last = index, r
            else:
                first, last = (r if index < a else b), index + 1
            self._check_fold(f"fold {index}, pointers {bounds}", cells[index].fold, partials[first:last])


def before(cell: Cell) -> Cell:
    """Return the cell before this one, which must not be the oldest."""
    assert cell.older is not None
    return cell.older
