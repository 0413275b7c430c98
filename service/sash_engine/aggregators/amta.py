"""AMTA, the amortized monoid tree aggregator: the forest of LMTA, and a stack that splits its oldest trees.

    entries      [ 3 ][ 4   5   6   7 ][ 8   9 ] | 10  11  12 | 13 open
                 `------- front -------------´ turn `- back -´

    stack        (entry 3,         3 ∘ 4–7 ∘ 8–9)   <- top
    (to the turn)(entries 4 to 7,      4–7 ∘ 8–9)
                 (entries 8 and 9,           8–9)

    answer       lower(top's partial ∘ back ∘ 13)

The entries before the *turn* are the front. The stack has the forest nodes that cover the front, each with the fold
from its first entry to the turn. The entries after the turn are the back, which is folded entry by entry. To evict the
oldest entry, pop its node and push the nodes of its other entries: the newer half, the newer quarter before that, and
so on. Every pushed node is popped later and each eviction pops one node, so evictions cost one combine on average. When
the front is empty, the turn moves to the tail and the stack is filled with the O(log n) nodes of the forest. A bulk
eviction pops the nodes that it covers and splits one node.

Worked example, in the drawing: evicting 3 pops (entry 3, …), and the next fold, of 4 to 9, is on the stack already.
Evicting 4 pops (4 to 7) and pushes (6 and 7, 6–7 ∘ 8–9) and (5, 5 ∘ 6–9): two combines.

>>> from sash_engine.monoids import Sum
>>> window = AMTA(Sum("int64"))
>>> for time in range(14):
...     window.insert(time, time)
>>> window.bulk_evict(2), window.query(), len(window)
(3, 88, 11)
>>> window.evict()
>>> window.query(), window.oldest
(85, 4)

Insert: amortised O(1) (2 combines), worst O(log n).  Evict: amortised O(1) (1 combine), worst O(log n).  Query: O(1)
(2 combines).  Bulk evict, by time or by policy: O(log n).  Range query: O(log n).  Space: at most 2n partials, of
which O(log n) must be local.
Requires: associativity.  Order: in order only; equal times combine (old ∘ new).
Source: Villalba, Berral, Carrera, "Constant-time sliding window framework with reduced memory footprint and
efficient bulk evictions", TPDS 2019.  Differs: as LMTA (`log_mta.py`).
"""

from __future__ import annotations

from sash_engine.aggregators.checks import require, require_same
from sash_engine.aggregators.level_queues import LevelNode, Levels, Place
from sash_engine.aggregators.log_mta import LogMTA, decompose
from sash_engine.monoids.base import Monoid, Partial


class AMTA(LogMTA):
    """A monoid tree aggregator with constant-time queries.

    Args:
        monoid: the aggregate.
        levels: empty level queues, of this window alone; in memory by default.
    """

    algorithm = "amta"

    def __init__(self, monoid: Monoid, *, levels: Levels | None = None) -> None:
        super().__init__(monoid, levels=levels)
        self._stack: list[tuple[Place, Partial]] = []  # nodes, each with the fold from its first entry to the turn
        self._turn = 0
        self._back: Partial = monoid.identity

    @property
    def local(self) -> int:
        return super().local + len(self._stack) + 1

    def _total(self) -> Partial:
        total = self.monoid.combine(self._stack[-1][1], self._back) if self._stack else self._back
        return total if self._open is None else self.monoid.combine(total, self._open[1])

    def _seal(self, node: LevelNode) -> None:
        super()._seal(node)
        self._back = self.monoid.combine(self._back, node[1])

    def _move_head(self, head: int) -> None:
        super()._move_head(head)
        while self._stack:
            (level, index), _ = self._stack[-1]
            if head <= index << level:
                return
            self._stack.pop()
            end = (index + 1) << level
            if head < end:
                self._push(decompose(head, end))
                return
        self._turn, self._back = self._tail, self.monoid.identity
        self._push(decompose(head, self._tail))

    def _push(self, places: list[Place]) -> None:
        """Push nodes, given from left to right."""
        for place, (_, partial) in zip(reversed(places), reversed(self._levels.read(places)), strict=True):
            fold = self.monoid.combine(partial, self._stack[-1][1]) if self._stack else partial
            self._stack.append((place, fold))

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        super().check_invariants()
        require(self._turn <= self._tail, "turn", f"{self._turn} is past the tail, {self._tail}")
        at, fold = self._turn, None
        for (level, index), stacked in self._stack:
            end = (index + 1) << level
            require(end == at, "stack", f"node {index} of level {level} ends at {end}, not {at}")
            at = index << level
            partial = self._levels.queues[level][index][1]
            fold = self.monoid.combine(partial, fold) if end < self._turn else partial
            require_same(stacked, fold, "stack", f"entry {at}")
        require(at == self._head, "stack", f"begins at {at}, the window at {self._head}")
        back = self.monoid.identity
        for index in range(self._turn, self._tail):
            back = self.monoid.combine(back, self._levels.queues[0][index][1])
        require_same(self._back, back, "back", f"entry {self._turn} on")
