"""The folds that a forest keeps up to date: of the block that is being evicted, and of all whole blocks.

    head block   [ x  x  x | 3  4  5 ]       x: evicted.  Suffix scan: 3∘4∘5, 4∘5, 5: the paper's stack

The fold of all whole blocks is AMTA's stack and result pair:

    blocks    h  .  .  .  |  .  .  .  .  .  |  .  .  .  t
              near h..near_end  [  p  ][ q  ]    back
                                            ^ split

    near    folds of [h..split), [h+1..split), … for the next few blocks
    stack   folds of [p..split), [q..split), … for the nodes that cover near_end..split, the nearest one on top
    back    fold of [split..t)
    answer  = near ∘ back

When the head runs out of near blocks, the next few are scanned, and the rest of the node they lie in takes its place;
each node pays for that once. When the head passes the split, everything becomes stack again. Appended blocks only
touch `back`, and so do out-of-order writes behind the split. A write before the split moves the split to its place.

Fold: amortised O(1) combines per block that came or went, worst O(log n).  Space: O(log n).
Source: Villalba, Berral, Carrera, TPDS 2019, sections 4.2 and 4.3.  Differs: (a) caught up when asked, not when
written; (b) the lowest levels of the stack are one scan, since one loop is cheaper than pushes and pops.
"""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.errors import SashError
from sash_engine.forest.directory import Directory
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array

_NEVER = 2**63
_NEAR = 32
"""Blocks scanned at a time: at 32 a scan's fixed cost is well under a microsecond a block."""

_LANDINGS = 24
"""A scan pays where so many more evictions are to be expected in the block: making and freeing 1,024 partials takes
some 50 µs, a reduction 1.5 µs."""


class HeadFold:
    """Folds of the newer part of one block, while its older part is evicted bit by bit.

    `rows` is how many rows the block has; 0 where that was not noted.
    """

    __slots__ = ("_layout", "_scan", "_scan_from", "_single", "_single_at", "rows")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.reset()

    def reset(self) -> None:
        """Forget the folds: it is another block, or the block has changed."""
        self.rows = 0
        self._scan: list[tuple[Partial, ...]] | None = None
        self._scan_from = 0
        self._single: Sequence[Partial] = ()
        self._single_at = -1

    def known(self, start: int) -> Sequence[Partial] | None:
        """The fold of the rows from `start` on, where it is known already."""
        if self._scan is not None:
            return self._scan[start - self._scan_from]
        return self._single if self._single_at == start else None

    def fold(self, columns: Sequence[Array], start: int, stop: int) -> Sequence[Partial]:
        """Fold rows start..stop; `stop` is the same and `start` never goes back between resets."""
        if self._single_at < 0 or (start - self._single_at) * _LANDINGS > stop - start:
            # Bulk evictions land a few times in a block and move on.
            self._single, self._single_at = self._layout.reduce_rows(columns, start, stop), start
            return self._single
        self._scan, self._scan_from = self._layout.scan_suffix(columns, start, stop), start
        return self._scan[0]


class SealedFold:
    """The fold of the blocks from some first one to the newest.

    Args:
        directory: the blocks.
        levels: where the nodes are.
        layout: what they hold.
    """

    __slots__ = (
        "_back",
        "_back_end",
        "_calm",
        "_directory",
        "_layout",
        "_levels",
        "_near",
        "_near_start",
        "_split",
        "_stack",
        "_total",
        "_total_first",
        "_total_tail",
    )

    def __init__(self, directory: Directory, levels: Levels, layout: Layout) -> None:
        self._directory = directory
        self._levels = levels
        self._layout = layout
        self._stack: list[tuple[int, list[Partial]]] = []
        self._calm = _NEVER  # nothing before was touched since the split was chosen
        self.forget()

    def forget(self) -> None:
        """Compute everything anew when asked."""
        self._stack.clear()
        self._near: list[list[Partial]] = []
        self._near_start = 0
        self._split = -1
        self._back_end = -1
        self._back: list[Partial] | None = None
        self._total: list[Partial] | None = None
        self._total_first = self._total_tail = -1

    def touch(self, first: int) -> None:
        """Blocks from `first` on have changed or moved."""
        self._total_tail = -1
        self._calm = min(self._calm, first)
        if first < self._split:
            self.forget()
        else:
            self._back, self._back_end = None, self._split

    def fold(self, first: int, others: Sequence[int] = ()) -> list[Partial] | None:
        """Fold the blocks first..tail; None where there are none. `first` never goes back until it is told to forget.

        The same list as long as nothing changes.

        Args:
            others: positions of blocks that the caller will read, so that they are loaded with what is missing here.
        """
        tail = self._directory.tail
        if self._total_tail == tail and self._total_first == first:
            return self._total
        if first + 1 >= tail:  # no scan for so little: a small window comes by here with every block
            total = None if first == tail else self._levels.node(0, first)
            self._total, self._total_first, self._total_tail = total, first, tail
            return total
        at = first - self._near_start
        front = self._near[at] if 0 <= at < len(self._near) else self._refill(first, others)
        if self._back_end < tail:
            one = self._back_end + 1 == tail  # the usual case, and a microsecond cheaper
            newer = self._levels.node(0, tail - 1) if one else self._levels.fold(self._back_end, tail)[1]
            self._back = newer if self._back is None else self._layout.combine(self._back, newer)
            self._back_end = tail
        back = self._back
        total = front if back is None else back if front is None else self._layout.combine(front, back)
        self._total, self._total_first, self._total_tail = total, first, tail
        return total

    def _refill(self, first: int, others: Sequence[int]) -> list[Partial] | None:
        """Scan the next blocks from `first` on; the fold of [first..split), None where that is empty."""
        try:
            return self._scan(first, others)
        except SashError:
            self.forget()  # what could not be loaded may have left it half-way
            raise

    def _scan(self, first: int, others: Sequence[int]) -> list[Partial] | None:
        stack, levels, combine = self._stack, self._levels, self._layout.combine
        if first > self._split:
            # Out-of-order writes tend to come back to where they were: what they touch stays behind the split.
            tail = self._directory.tail
            self._split = self._back_end = self._calm if first < self._calm < tail else tail
            self._calm = _NEVER
            self._back = None
            stack.clear()
        while stack and stack[-1][0] <= first:
            stack.pop()
        end = stack[-1][0] if stack else self._split
        total = stack[-1][1] if stack else None
        near_end = min((first // _NEAR + 1) * _NEAR, end)
        cover = levels.cover(near_end, end)
        if self._directory.has_external:
            levels.fetch(others, [*cover, *((0, position) for position in range(first, near_end))])
        for i, index in reversed(cover):
            node = levels.node(i, index)
            total = node if total is None else combine(node, total)
            stack.append((index << i, total))
        near = []
        for node in reversed(levels.leaves(first, near_end)):
            total = node if total is None else combine(node, total)
            near.append(total)
        near.reverse()
        self._near, self._near_start = near, first
        return near[0] if near else None
