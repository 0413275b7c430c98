"""The fold of all whole blocks, kept up to date: AMTA's stack and result pair.

    blocks    h  .  .  .  .  .  |  .  .  .  t          stack: folds of [h..split), [p..split), … for the nodes
              [h][   p   ][ q  ]|  back                that cover h..split, the nearest one on top
                                ^ split                back:  fold of [split..t)

    answer  = top of the stack ∘ back

When the head moves, entries are popped; where it lands inside a node, the node's parts are pushed, which each
node pays once. When it passes the split, everything becomes stack again. Appended blocks only touch `back`.

Fold: amortised O(1) combines per block that came or went, worst O(log n).  Space: O(log n).
Source: Villalba, Berral, Carrera, TPDS 2019, sections 4.2 and 4.3.  Differs: caught up when asked, not when written.
"""

from __future__ import annotations

from collections.abc import Sequence

from sash.forest.levels import Levels
from sash.monoids import Monoid, Partial

__all__ = ["Middle"]


class Middle:
    """The fold of the blocks from some first one to the newest.

    Args:
        levels: where the nodes are.
        monoids: one per slot.
    """

    __slots__ = ("_back", "_back_end", "_levels", "_monoids", "_split", "_stack", "_total", "_total_of")

    def __init__(self, levels: Levels, monoids: Sequence[Monoid]) -> None:
        self._levels = levels
        self._monoids = monoids
        self._stack: list[tuple[int, list[Partial]]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything: positions have shifted."""
        self._stack.clear()
        self._split = -1
        self._back_end = -1
        self._back: list[Partial] | None = None
        self._total: list[Partial] | None = None
        self._total_of = (-1, -1)

    def invalidate(self, first: int, last: int) -> None:
        """Some blocks of first..last, both included, have changed in place."""
        self._total = None
        if last >= self._split:
            self._back, self._back_end = None, self._split
        while self._stack and self._stack[-1][0] <= last:
            self._stack.pop()

    def fold(self, first: int) -> list[Partial] | None:
        """Fold the blocks first..tail; None where there are none. `first` never goes back between resets."""
        levels = self._levels
        if self._total is not None and self._total_of == (first, levels.tail):
            return self._total
        front = self._front(first)
        back = self._catch_up(levels.tail)
        total = front if back is None else back if front is None else self._combine(front, back)
        self._total, self._total_of = total, (first, levels.tail)
        return total

    def _front(self, first: int) -> list[Partial] | None:
        stack = self._stack
        while stack and stack[-1][0] < first:
            stack.pop()
        if first > self._split:
            self._split = self._back_end = self._levels.tail
            self._back = None
        at = stack[-1][0] if stack else self._split
        if first < at:
            total = stack[-1][1] if stack else None
            for i, index in reversed(self._levels.cover(first, at)):
                node = self._levels.node(i, index)
                total = node if total is None else self._combine(node, total)
                stack.append((index << i, total))
        return stack[-1][1] if stack else None

    def _catch_up(self, tail: int) -> list[Partial] | None:
        if self._back_end < tail:
            for i, index in self._levels.cover(self._back_end, tail):
                node = self._levels.node(i, index)
                self._back = node if self._back is None else self._combine(self._back, node)
            self._back_end = tail
        return self._back

    def _combine(self, older: list[Partial], newer: list[Partial]) -> list[Partial]:
        return [m.combine(a, b) for m, a, b in zip(self._monoids, older, newer, strict=True)]
