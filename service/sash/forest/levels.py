"""The forest's levels: partials of pairs, each written once (AMTA's queues of nodes).

    level 2          [  0..3  ]                       node (i, j) folds the blocks
    level 1      [0..1]    [2..3]    [4..5]           j * 2^i <= position < (j + 1) * 2^i
    level 0      0    1    2    3    4    5    6      position of a sealed block
                 ^ head                        ^ tail

Positions only grow; a node exists once its last block is sealed, and dies when `head` passes its first one.
A level is a growing array per partial column; dead rows at its front go when it runs out of room.

Append: amortised O(1) combines, paid when nodes are next read.  Fold of a range: O(log n).  Update of a block: O(log n).  Advance: O(1).
Space: 2 n partials for n blocks.
Source: Villalba, Berral, Carrera, "Constant-Time Sliding Window Framework with Reduced Memory Footprint and
Efficient Bulk Evictions", TPDS 2019.  Differs: (a) level 0 holds a block of entries, not one; (b) nodes are
addressed by position instead of dequeued, so that any range can be folded; (c) whole chunks are combined in one
vectorised call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash.forest.segments import lengths_of_segments, starts_of_runs
from sash.monoids import Monoid, Partial, Partials
from sash.monoids.base import Array

__all__ = ["Levels"]

_FIRST_ROWS = 4
_ONE_BY_ONE = 3
"""Up to so many new blocks are carried up one by one: a vectorised pass over all levels costs as much."""


class _Level:
    """One level: node `base + row` in each row; one count column and, per aggregate, its partial columns."""

    __slots__ = ("base", "capacity", "columns", "counts", "size")

    def __init__(self, monoids: Sequence[Monoid]) -> None:
        self.base = 0
        self.size = 0
        self.capacity = 0
        self.counts: Array = np.empty(0, np.int64)
        self.columns: list[Partials] = [tuple(np.empty(0, dtype) for dtype in m.dtypes) for m in monoids]

    def reserve(self, rows: int, first_live: int) -> int:
        """Make room for `rows` more nodes and count them in; return the row of the first.

        Args:
            first_live: the oldest node that is still of use; older ones may go.
        """
        if self.size + rows > self.capacity:
            dead = min(max(first_live - self.base, 0), self.size)
            live = self.size - dead
            self.capacity = max(_FIRST_ROWS, 2 * live, live + rows)
            self.counts = _moved(self.counts, dead, live, self.capacity)
            self.columns = [
                tuple(_moved(column, dead, live, self.capacity) for column in columns) for columns in self.columns
            ]
            self.base += dead
            self.size = live
        row = self.size
        self.size += rows
        return row


def _moved(column: Array, dead: int, live: int, capacity: int) -> Array:
    out = np.empty(capacity, column.dtype)
    out[:live] = column[dead : dead + live]
    return out


class Levels:
    """All levels over the sealed blocks head..tail, for all aggregates of a window at once.

    Args:
        monoids: one per slot. Every node also has its count of entries.
    """

    __slots__ = ("_done", "_levels", "_monoids", "head", "tail")

    def __init__(self, monoids: Sequence[Monoid]) -> None:
        self._monoids = monoids
        self._levels = [_Level(monoids)]
        self._done = 0  # pairs are complete for the blocks before; the rest is caught up when somebody reads nodes
        self.head = 0
        """Position of the oldest block."""
        self.tail = 0
        """One past the position of the newest block."""

    # ---------------------------------------------------------------- growing and shrinking

    def append(self, count: int, partials: Sequence[Partial]) -> None:
        """Add one block's count and partials."""
        level = self._levels[0]
        row = level.reserve(1, self.head)
        level.counts[row] = count
        slot = 0
        for monoid in self._monoids:
            monoid.put(level.columns[slot], row, partials[slot])
            slot += 1
        self.tail += 1

    def extend(self, counts: Array, columns: Sequence[Partials]) -> None:
        """Add k >= 1 blocks: int64 counts (k,) and, per slot, k partials."""
        k = len(counts)
        level = self._levels[0]
        row = level.reserve(k, self.head)
        level.counts[row : row + k] = counts
        for mine, theirs in zip(level.columns, columns, strict=True):
            for to, source in zip(mine, theirs, strict=True):
                to[row : row + k] = source
        self.tail += k

    def advance(self, head: int) -> None:
        """Drop the blocks before `head`."""
        assert self.head <= head <= self.tail
        self.head = head

    def truncate(self, position: int) -> None:
        """Drop the blocks from `position` on, to add others in their place."""
        assert self.head <= position <= self.tail
        self.tail = position
        self._done = min(self._done, position)
        for i, level in enumerate(self._levels):
            end = (position if i == 0 else self._done) >> i
            level.size = max(end - level.base, 0)
            if level.base > end:
                level.base = end

    def update(self, position: int, count: int, partials: Sequence[Partial]) -> None:
        """Replace one block's count and partials, and its ancestors'."""
        self._catch_up()
        level = self._levels[0]
        row = position - level.base
        level.counts[row] = count
        for monoid, columns, partial in zip(self._monoids, level.columns, partials, strict=True):
            monoid.put(columns, row, partial)
        for i in range(1, len(self._levels)):
            position >>= 1
            if not self._complete_node(i, position):
                if (position + 1) << i > self.tail:
                    return
                continue  # it straddles the head: nobody asks for it again
            self._combine_pair(self._levels[i - 1], self._levels[i], position)

    def update_many(self, positions: Array, counts: Array, newcomers: Sequence[Partials]) -> None:
        """Combine newcomers into blocks and all their ancestors, level by level; commutative aggregates only.

        Args:
            positions: int64 (k,), strictly increasing.
            counts: int64 (k,), entries that are added to each.
            newcomers: per slot, k partials.
        """
        self._catch_up()
        for i, level in enumerate(self._levels):
            if i:
                parents = positions >> 1
                firsts = starts_of_runs(parents)
                counts = np.add.reduceat(counts, firsts)
                newcomers = [
                    _fold_runs(monoid, columns, firsts, len(parents))
                    for monoid, columns in zip(self._monoids, newcomers, strict=True)
                ]
                positions = parents[firsts]
            alive = ((positions << i) >= self.head) & (((positions + 1) << i) <= self.tail)
            everyone = bool(alive.all())
            rows = (positions if everyone else positions[alive]) - level.base
            if not len(rows):
                continue
            level.counts[rows] += counts if everyone else counts[alive]
            for monoid, mine, theirs in zip(self._monoids, level.columns, newcomers, strict=True):
                add = theirs if everyone else tuple(column[alive] for column in theirs)
                joined = monoid.combine_columns(tuple(column[rows] for column in mine), add)
                for to, source in zip(mine, joined, strict=True):
                    to[rows] = source

    # ---------------------------------------------------------------- reading

    def cover(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The fewest nodes (level, index) that together are the blocks start..stop, oldest first."""
        if stop > self._done:
            self._catch_up()
        left, right, i = [], [], 0
        while start < stop:
            if start & 1:
                left.append((i, start))
                start += 1
            if stop & 1:
                stop -= 1
                right.append((i, stop))
            start >>= 1
            stop >>= 1
            i += 1
        right.reverse()
        return left + right

    def node(self, i: int, index: int) -> list[Partial]:
        """The partials of node (i, index), one per slot."""
        level = self._levels[i]
        row = index - level.base
        out, slot = [], 0
        for monoid in self._monoids:
            out.append(monoid.take(level.columns[slot], row))
            slot += 1
        return out

    def leaves(self, start: int, stop: int) -> list[list[Partial]]:
        """The partials of each block of start..stop, one per slot."""
        if stop - start == 1:
            return [self.node(0, start)]
        _, columns = self.blocks(start, stop)
        slots = [monoid.unpack(partials) for monoid, partials in zip(self._monoids, columns, strict=True)]
        return [list(partials) for partials in zip(*slots, strict=True)] if slots else [[]] * (stop - start)

    def rows(self, position: int) -> int:
        """Entries in one block."""
        level = self._levels[0]
        return level.counts.item(position - level.base)  # type: ignore[no-any-return]

    def count(self, start: int, stop: int) -> int:
        """Entries in the blocks start..stop."""
        total = 0
        for i, index in self.cover(start, stop):
            level = self._levels[i]
            total += level.counts.item(index - level.base)
        return total

    def fold(self, start: int, stop: int) -> list[Partial]:
        """Fold the blocks start..stop, one partial per slot."""
        total: list[Partial] | None = None
        for i, index in self.cover(start, stop):
            node = self.node(i, index)
            if total is None:
                total = node
            else:
                total = [m.combine(a, b) for m, a, b in zip(self._monoids, total, node, strict=True)]
        return [monoid.identity for monoid in self._monoids] if total is None else total

    def blocks(self, start: int, stop: int) -> tuple[Array, list[Partials]]:
        """The counts and partials of the blocks start..stop, as views of level 0."""
        level = self._levels[0]
        a, b = start - level.base, stop - level.base
        return level.counts[a:b], [tuple(column[a:b] for column in columns) for columns in level.columns]

    def seek(self, start: int, fits: Callable[[int, int], bool]) -> int:
        """Walk right from block `start` over all that fits; return the position of the first block that does not.

        Args:
            fits: asked O(log n) times about node (level, index), in order; where it says True the walk goes on
                behind the node, and the next question is about that. It must be monotone: what fits as a whole
                fits in part.
        """
        self._catch_up()
        position, i, climbing = start, 0, True
        while True:
            while climbing and position & ((2 << i) - 1) == 0 and self._complete_node(i + 1, position >> (i + 1)):
                i += 1
            if self._complete_node(i, position >> i) and fits(i, position >> i):
                position += 1 << i
            elif i:
                i, climbing = i - 1, False  # the answer lies inside this node, or it is not complete
            else:
                return position

    def seek_count(self, start: int, entries: int) -> tuple[int, int]:
        """Find the entry that has `entries` others before it from block `start` on: block and row."""

        def fits(i: int, index: int) -> bool:
            nonlocal entries
            level = self._levels[i]
            count = level.counts.item(index - level.base)
            if count > entries:
                return False
            entries -= count
            return True

        return self.seek(start, fits), entries

    # ---------------------------------------------------------------- pairs

    def _catch_up(self) -> None:
        """Write the nodes that new blocks complete."""
        first, self._done = self._done, self.tail
        if self.tail - first > _ONE_BY_ONE:
            self._complete(first)
        else:
            for position in range(first, self.tail):
                self._carry(position)

    def _carry(self, position: int) -> None:
        """Write the nodes that block `position` completes."""
        i = 0
        while position & 1:  # node `position` of level i completes the pair of its parent
            position >>= 1
            i += 1
            parent = self._start(i, position)
            if parent is not None:
                self._combine_pair(self._levels[i - 1], parent, position)

    def _complete_node(self, i: int, index: int) -> bool:
        return i < len(self._levels) and index << i >= self.head and (index + 1) << i <= self.tail

    def _start(self, i: int, index: int) -> _Level | None:
        """Make a row for node `index` at the end of level i; None where it straddles the head."""
        if i == len(self._levels):
            self._levels.append(_Level(self._monoids))
            self._levels[i].base = index
        level = self._levels[i]
        if index << i < self.head:  # and so do all before it: none of the level is of use
            level.base, level.size = index + 1, 0
            return None
        if level.base + level.size != index:
            assert level.size == 0 or (level.base + level.size - 1) << i < self.head
            level.base, level.size = index, 0
        level.reserve(1, -(-self.head >> i))
        return level

    def _combine_pair(self, children: _Level, parents: _Level, index: int) -> None:
        """Write node `index` of `parents` from its two children."""
        left = 2 * index - children.base
        row = index - parents.base
        parents.counts[row] = children.counts.item(left) + children.counts.item(left + 1)
        for monoid, below, above in zip(self._monoids, children.columns, parents.columns, strict=True):
            monoid.put(above, row, monoid.combine(monoid.take(below, left), monoid.take(below, left + 1)))

    def _complete(self, first: int) -> None:
        """Write the nodes of level 1 and up that blocks first..tail complete."""
        i = 0
        while True:
            i += 1
            start, stop = max(first >> i, -(-self.head >> i)), self.tail >> i
            if i == len(self._levels):
                if start >= stop:
                    return
                self._levels.append(_Level(self._monoids))
            level, children = self._levels[i], self._levels[i - 1]
            if start >= stop:
                if level.base + level.size < stop:  # only nodes that straddle the head were completed
                    level.base, level.size = stop, 0
                continue
            if level.base + level.size != start:
                level.base, level.size = start, 0
            k = stop - start
            row = level.reserve(k, -(-self.head >> i))
            left = 2 * start - children.base
            evens, odds = slice(left, left + 2 * k, 2), slice(left + 1, left + 2 * k, 2)
            level.counts[row : row + k] = children.counts[evens] + children.counts[odds]
            for monoid, below, above in zip(self._monoids, children.columns, level.columns, strict=True):
                pairs = monoid.combine_columns(
                    tuple(column[evens] for column in below), tuple(column[odds] for column in below)
                )
                for to, source in zip(above, pairs, strict=True):
                    to[row : row + k] = source

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool]) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same` compares two partials."""
        self._catch_up()
        for i, level in enumerate(self._levels):
            if i and self.tail >> i == 0 and level.size == 0:
                continue
            end = level.base + level.size
            assert end == self.tail >> i, f"level {i} ends at node {end}, not {self.tail >> i}"
            first = -(-self.head >> i)
            assert level.base <= first or first >= end, f"level {i} starts at {level.base}, needs {first}"
            if i == 0:
                continue
            children = self._levels[i - 1]
            for index in range(max(first, level.base), end):
                row, left = index - level.base, 2 * index - children.base
                total = children.counts[left] + children.counts[left + 1]
                assert level.counts[row] == total, f"count of node {i, index} is not its children's"
                for monoid, below, above in zip(self._monoids, children.columns, level.columns, strict=True):
                    pair = monoid.combine(monoid.take(below, left), monoid.take(below, left + 1))
                    found = monoid.take(above, row)
                    assert same(monoid, found, pair), f"{monoid!r} of node {i, index} is {found}, not {pair}"


def _fold_runs(monoid: Monoid, columns: Partials, firsts: Array, n: int) -> Partials:
    """Fold runs of one or two neighbouring rows: children of one parent."""
    heads: Any = tuple(column[firsts] for column in columns)
    doubles = np.flatnonzero(lengths_of_segments(firsts, n) == 2)
    if len(doubles):
        seconds = firsts[doubles] + 1
        joined = monoid.combine_columns(
            tuple(column[doubles] for column in heads), tuple(column[seconds] for column in columns)
        )
        for to, source in zip(heads, joined, strict=True):
            to[doubles] = source
    return heads  # type: ignore[no-any-return]
