"""LMTA, the logarithmic monoid tree aggregator: a binary forest whose levels are first-in-first-out queues.

    level 2              [       1        ]
    level 1              [   2   ] [   3  ]  [   4   ]
    level 0       [ 3 ]  [ 4 ][ 5 ][ 6 ][ 7 ][ 8 ][ 9 ]    10
                    ^ head = 3              tail = 10 ^     ^ the youngest entry, still open

    answer = lower(node 3 of level 0 ∘ node 1 of level 2 ∘ node 4 of level 1 ∘ entry 10)

Node j of level i combines the nodes 2j and 2j + 1 below it, and so folds the entries j·2^i to (j + 1)·2^i - 1. It is
written once, when that pair is complete, and dropped when its first entry leaves. So the levels are queues, and an
eviction of any size only moves their heads: the head of each level is half the head below it, rounded up. At most two
nodes per level make up the window: at the left end nodes with an odd index, at the right end nodes with an even index.
Each of them is the first or the last node of its queue, so only the ends of the queues need to be in memory
(`level_queues.py` can keep the middle in a key-value store).

The youngest entry stays *open*, outside the forest, until a newer one arrives: equal times combine into it, and written
nodes never change.

**Sliding.** To find the longest prefix for which a policy holds, take nodes from the left while the policy holds with
the node included. Then descend into the first node for which it does not hold: O(log n) evaluations.

Worked example. The values below sum to 23; the oldest entries leave until the sum is at most 10. Node 0 of level 2 is
taken: it sums to 9, so 14 would remain. Node 2 of level 1 is not taken, because 7 would remain, and neither is its
first half, because 9 would remain: this entry is the last one that leaves.

>>> from sash_engine.monoids import Sum
>>> window = LogMTA(Sum("int64"))
>>> for time, value in enumerate([3, 1, 4, 1, 5, 2, 6, 1]):
...     window.insert(time, value)
>>> window.evict_until(lambda total, old: total - old <= 10)
5
>>> window.query(), window.oldest, window.youngest
(9, 5, 7)

Insert: amortised O(1) (1 combine), worst O(log n).  Evict: amortised O(1), no combines.  Bulk evict, by time or by
policy: O(log n).  Query, range query: O(log n).  Space: at most 2n partials, of which O(log n) must be local.
Requires: associativity.  Order: in order only; equal times combine (old ∘ new).
Source: Villalba, Berral, Carrera, "Constant-time sliding window framework with reduced memory footprint and
efficient bulk evictions", TPDS 2019.  Differs: (a) nodes are found by index, and have the time of their newest entry,
which guides evictions by time; (b) the youngest entry is kept open, so that equal times can combine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sash_engine.aggregators.base import Capability, Range
from sash_engine.aggregators.checks import require, require_same
from sash_engine.aggregators.level_queues import LevelNode, Levels, MemoryLevels, Place
from sash_engine.monoids.base import Monoid, Partial

Predicate = Callable[[Partial, Partial], bool]
"""A slide policy: a condition on the partial of the whole window and the partial of a prefix."""


class LogMTA(Range):
    """A monoid tree aggregator that folds its forest for every query.

    Args:
        monoid: the aggregate.
        levels: empty level queues, of this window alone; in memory by default.
    """

    algorithm = "log_mta"
    grants = Capability.BULK_EVICT

    def __init__(self, monoid: Monoid, *, levels: Levels | None = None) -> None:
        super().__init__(monoid)
        self._levels: Levels = MemoryLevels() if levels is None else levels
        self._head = 0  # index of the oldest entry in the forest, or `_tail`
        self._tail = 0  # index that the open entry will have
        self._open: LevelNode | None = None

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        return self._tail - self._head + (self._open is not None)

    @property
    def local(self) -> int:
        """The number of partials held in memory."""
        return self._levels.local + (self._open is not None)

    @property
    def oldest(self) -> int | None:
        if self._head < self._tail:
            return self._levels.queues[0][self._head][0]
        return self.youngest

    @property
    def youngest(self) -> int | None:
        return self._open[0] if self._open is not None else None

    def query(self) -> Any:
        return self.monoid.lower(self._total())

    def range_query(self, start: int, end: int) -> Any:
        first = self._search(lambda node: node[0] < start)
        last = self._search(lambda node: node[0] <= end)
        total = self._fold(decompose(first, last))
        if self._open is not None and start <= self._open[0] <= end:
            total = self.monoid.combine(total, self._open[1])
        return self.monoid.lower(total)

    def _total(self) -> Partial:
        total = self._fold(decompose(self._head, self._tail))
        return total if self._open is None else self.monoid.combine(total, self._open[1])

    def _fold(self, places: list[Place]) -> Partial:
        if not places:
            return self.monoid.identity
        nodes = self._levels.read(places)
        total = nodes[0][1]
        for _, partial in nodes[1:]:
            total = self.monoid.combine(total, partial)
        return total

    # ---------------------------------------------------------------- insert

    def insert(self, time: int, value: Any) -> None:
        partial = self.monoid.lift(value)
        if self._open is not None:
            youngest, sealed = self._open
            if time < youngest:
                raise self._out_of_order(time)
            if time == youngest:
                self._open = (time, self.monoid.combine(sealed, partial))
                return
            self._seal(self._open)
        self._open = (time, partial)

    def _seal(self, node: LevelNode) -> None:
        """Write an entry and the nodes above that it completes."""
        queues, index = self._levels.queues, self._tail
        self._tail += 1
        for level in range(index.bit_length() + 1):
            queue = queues[level] if level < len(queues) else self._levels.add(index)
            complete = index % 2 == 1 and queue.head < index
            older = queue[index - 1] if complete else None
            queue.append(node)
            if older is None:
                return
            node = (node[0], self.monoid.combine(older[1], node[1]))
            index //= 2

    # ---------------------------------------------------------------- evict

    def evict(self, time: int | None = None) -> None:
        oldest = self.oldest
        if oldest is None:
            raise self._nothing_to_evict()
        if time is not None and time != oldest:
            raise self._refusal(Capability.EVICT_ANYWHERE, field="time")
        self._drop(1)

    def bulk_evict(self, time: int) -> int:
        if self._open is not None and self._open[0] <= time:
            return self._drop(len(self))
        return self._drop(self._search(lambda node: node[0] <= time) - self._head)

    def evict_while(self, predicate: Predicate) -> int:
        """Evict the longest prefix for which a policy holds.

        Args:
            predicate: called with the partials of the whole window and of a prefix of at least one entry. It must be
                monotone: if it holds for a prefix, it holds for every shorter one.

        Returns:
            the number of evicted entries.
        """
        return self._drop(self._longest_prefix(predicate))

    def evict_until(self, predicate: Predicate) -> int:
        """Evict the shortest prefix, possibly empty, for which a policy holds; all entries if it never holds.

        Args:
            predicate: called with the partials of the whole window and of a prefix, possibly empty. It must be
                monotone: if it holds for a prefix, it holds for every longer one.

        Returns:
            the number of evicted entries.
        """
        if not len(self) or predicate(self._total(), self.monoid.identity):
            return 0
        return self._drop(min(len(self), 1 + self._longest_prefix(lambda total, old: not predicate(total, old))))

    def _longest_prefix(self, predicate: Predicate) -> int:
        """Return the number of entries in the longest prefix for which the predicate holds."""
        if self._open is None:
            return 0
        total, old = self._total(), self.monoid.identity

        def leaves(node: LevelNode) -> bool:
            nonlocal old
            longer = self.monoid.combine(old, node[1])
            if not predicate(total, longer):
                return False
            old = longer
            return True

        index = self._search(leaves)
        return index - self._head + (index == self._tail and leaves(self._open))

    def _search(self, leaves: Callable[[LevelNode], bool]) -> int:
        """Return the index of the first entry in the forest that stays, or the tail.

        Args:
            leaves: tells whether all entries of a node leave. It is called from left to right, each time with the node
                after those for which it was true.
        """
        queues = self._levels.queues
        for level, index in decompose(self._head, self._tail):
            if leaves(queues[level][index]):
                continue
            while level:
                level, index = level - 1, 2 * index
                if leaves(queues[level][index]):
                    index += 1
            return index
        return self._tail

    def _drop(self, count: int) -> int:
        """Evict the oldest `count` entries; return `count`."""
        if count > self._tail - self._head:
            self._open = None
            self._move_head(self._tail)
        elif count:
            self._move_head(self._head + count)
        return count

    def _move_head(self, head: int) -> None:
        self._head = head
        for queue in self._levels.queues:
            if head <= queue.head:
                return  # if the head of a level does not move, the heads above it do not move either
            queue.drop(head)
            head = (head + 1) // 2

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        queues, monoid = self._levels.queues, self.monoid
        require(0 <= self._head <= self._tail, "head", f"{self._head} is past the tail, {self._tail}")
        require(self._open is not None or self._head == self._tail, "open entry", "none, but the forest has some")
        newest: int | None = None
        for level, queue in enumerate(queues):
            head, tail = -(-self._head >> level), self._tail >> level
            require(queue.head == head, "head", f"of level {level} is {queue.head}, not {head}")
            require(queue.tail == max(head, tail), "tail", f"of level {level} is {queue.tail}, not {tail}")
            for index in range(queue.head, queue.tail):
                time, partial = queue[index]
                if level:
                    older, newer = queues[level - 1][2 * index], queues[level - 1][2 * index + 1]
                    where = f"{index} of level {level}"
                    require(time == newer[0], "node", f"{where} ends at {time}, not {newer[0]}")
                    require_same(partial, monoid.combine(older[1], newer[1]), "node", where)
                else:
                    require(newest is None or newest < time, "order", f"{time} comes after {newest}")
                    newest = time
        if self._open is not None and newest is not None:
            require(newest < self._open[0], "order", f"{self._open[0]} comes after {newest}")
        highest = max((level for level, _ in decompose(self._head, self._tail)), default=-1)
        require(highest < len(queues), "levels", f"there are {len(queues)}, but {highest} is complete")


def decompose(first: int, last: int) -> list[Place]:
    """Return the smallest set of nodes that covers the entries first <= index < last, from left to right."""
    left: list[Place] = []
    right: list[Place] = []
    level = 0
    while first < last:
        if first % 2:
            left.append((level, first))
            first += 1
        if last % 2:
            last -= 1
            right.append((level, last))
        first, last, level = first // 2, last // 2, level + 1
    return left + right[::-1]
