"""DABA, the de-amortised banker's aggregator: Two-Stacks that does a little of each flip at every step.

                front                              back
    F            L       R       A            B         E
    [ p0  p1  p2 | p3 p4 | p5 p6 | p7  p8  p9 | p10 p11 ]       partials
    [     →B     |  →R   |  R→   |     →B     |   B→    ]       folds

    →B   fold of the entries from here up to B        R→   fold of the entries from R up to here
    →R   fold of the entries from here up to R        B→   fold of the entries from B up to here

    answer = lower(fold at F ∘ fold at E - 1)

A flip turns prefix folds (of the back) into suffix folds (of the front). DABA flips early, when the front is as long as
the back, and only moves pointers: the old front becomes the left list [L, R), whose folds do not yet reach B; the old
back becomes the right list [R, A), whose folds still are prefix folds. Then every insert and every evict repairs one
entry of each list: the fold at L is extended to B, and the fold before A becomes a suffix fold. Both lists have the
same length, so both are done at the same time, before an entry that is not repaired can become the oldest. Then all of
[F, B) is repaired, and L, R and A move on with each step until the next flip. After every step, unless the window is
empty:

    |[L,R)| = |[R,A)|   and   |[L,B)| + 1 = |[F,B)| - |[B,E)|

Worked example. 0 is the front. Inserting 1 makes the back as long as the front: they flip, and the fold of 0 becomes
0∘1. Inserting 2 moves L, R and A to B. Inserting 3 makes both lists 2 long: they flip, and the fold of 0 covers all
four entries. Evicting 0 repairs the rest: the fold of 1 becomes 1∘(2∘3), and the fold of 2 becomes 2∘3.

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
queue is a doubly linked list instead of a chunked array, so no step copies entries and pointers stay valid;
(b) no combine is spent on the identity.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, cast

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial


class Cell:
    """One entry: its partial, or a fold in the place of it."""

    __slots__ = ("newer", "older", "partial")

    partial: Partial
    newer: Any

    def __init__(self, older: Any) -> None:
        self.older = older


class Folded(Cell):
    """One entry: its partial, and a fold that depends on its list."""

    __slots__ = ("fold",)

    fold: Partial


class Pointers(InOrder):
    """A queue of cells with the pointers of DABA, and how they move.

    Args:
        monoid: the aggregate.
    """

    _cell: ClassVar[type[Cell]] = Cell

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._size = 0
        # The pointers have the names of the paper. The cell at E is empty, for the next entry.
        self._F = self._L = self._R = self._A = self._B = self._E = cast("Any", self._cell(None))

    def __len__(self) -> int:
        return self._size

    def insert(self, value: Any) -> None:
        cell = self._E
        cell.partial = self.monoid.lift(value)
        self._fold_in(cell)
        cell.newer = self._E = self._cell(cell)
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
            self._restart()
            return
        if self._L is self._B:
            self._flip()
        if self._L is self._R:  # past an entry that is repaired
            self._L = self._R = self._A = self._A.newer
        else:
            self._shrink()

    def _restart(self) -> None:
        """Make all there is the front."""
        self._L = self._R = self._A = self._B = self._E

    def _flip(self) -> None:
        """Make the front the left list and the back the right list; R already is at the border between them."""
        self._L = self._F
        self._A = self._B = self._E

    @abstractmethod
    def _fold_in(self, cell: Any) -> None:
        """Add the newest entry to the fold of the back."""

    @abstractmethod
    def _shrink(self) -> None:
        """Repair the oldest entry of the left list and the newest entry of the right list."""

    def _checked(self) -> tuple[list[Any], list[int]]:
        """The cells, the empty one last, and where F, L, R, A, B and E are among them; raises if they are wrong."""
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
        return cells, bounds


class DABA(Pointers):
    """A first-in-first-out window with constant cost in the worst case.

    Args:
        monoid: the aggregate.
    """

    algorithm = "daba"
    _cell = Folded

    def query(self) -> Any:
        if self._F is self._B:
            return self.monoid.lower(self.monoid.identity)  # only an empty window has an empty front
        if self._B is self._E:
            return self.monoid.lower(self._F.fold)
        return self.monoid.lower(self.monoid.combine(self._F.fold, self._E.older.fold))

    def _fold_in(self, cell: Any) -> None:
        back_is_empty = self._B is cell
        cell.fold = cell.partial if back_is_empty else self.monoid.combine(cell.older.fold, cell.partial)

    def _shrink(self) -> None:
        combine, left, right = self.monoid.combine, self._L, self._A.older
        fold = combine(left.fold, right.fold)  # the left list from here on, then the right list
        if self._A is self._B:
            left.fold, right.fold = fold, right.partial
        else:
            left.fold = combine(fold, self._A.fold)
            right.fold = combine(right.partial, self._A.fold)
        self._L, self._A = left.newer, right

    def check_invariants(self) -> None:
        cells, bounds = self._checked()
        _, left, r, a, b, _ = bounds
        partials = [cell.partial for cell in cells[:-1]]
        for index in range(self._size):
            if index < left or a <= index < b:
                first, last = index, b
            elif index < r:
                first, last = index, r
            else:
                first, last = (r if index < a else b), index + 1
            self._check_fold(f"fold {index}, pointers {bounds}", cells[index].fold, partials[first:last])
