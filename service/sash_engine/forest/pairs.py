"""Writes the nodes of the levels from their children; the drawing is in levels.py.

Nodes are written when nodes are read, and not when blocks are sealed. So a window that is only written, and queried as
a whole, builds its upper levels in vectorised passes. After a change of blocks, `refresh` writes their ancestors anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from sash_engine.forest.directory import Directory
from sash_engine.forest.level import Level
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids import Monoid, Partials
from sash_engine.monoids.base import Array

__all__ = ["Pairs"]

_ONE_BY_ONE = 3
"""Up to so many new or changed blocks are carried up one by one: a vectorised pass over all levels costs as much."""


class Pairs:
    """The levels over the sealed blocks of a directory, with what writes their nodes.

    Args:
        directory: level 0; who appends to it or drops from it need not say so here.
        monoids: one per slot.
    """

    __slots__ = ("_directory", "_done", "_fixed", "_levels", "_monoids")

    def __init__(self, directory: Directory, monoids: Sequence[Monoid]) -> None:
        self._directory = directory
        self._use(monoids)
        self._levels: list[Level] = [directory]
        self._done = 0  # pairs are complete for the blocks before; the rest is written when nodes are read

    def _use(self, monoids: Sequence[Monoid]) -> None:
        self._monoids = monoids
        self._fixed = all(monoid.fixed for monoid in monoids)

    def truncate(self, position: int) -> None:
        """Forget the nodes above the blocks from `position` on, which the directory has forgotten."""
        if position >= self._done:
            return
        self._done = position
        for i in range(1, len(self._levels)):
            self._levels[i].truncate(self._done >> i)

    def relevel(self, monoids: Sequence[Monoid]) -> None:
        """Forget all nodes: the directory's partials are of other aggregates now."""
        self._use(monoids)
        for level in self._levels[1:]:
            level.restart(0)
        del self._levels[1:]
        self._done = self._directory.head

    def fetch(
        self, positions: Iterable[int], nodes: Iterable[tuple[int, int]], slots: Sequence[int] | None = None
    ) -> None:
        """Load the blocks at `positions` and the partials of `nodes` that are not in memory, at once.

        Args:
            slots: only the partials of these; None: of all.
        """
        self._directory.fetch(positions, [n for i, index in nodes for n in self._levels[i].numbers(index, slots)])

    def _live(self, i: int) -> tuple[int, int]:
        """The nodes of level i that are there and live: from where, and up to where."""
        start = -(-self._directory.head >> i)
        return start, max(start, self._done >> i)

    # ---------------------------------------------------------------- blocks that have changed

    def refresh(self, positions: Array) -> None:
        """Let the ancestors of the blocks at `positions`, int64 (k,) and strictly increasing, follow them."""
        # One by one, a common ancestor is combined several times.
        few = 1 if self._directory.has_external else _ONE_BY_ONE
        if len(positions) <= few:
            for position in positions.tolist():
                self._refresh_above(position)
            return
        positions = positions[positions < self._done]  # what is not combined yet will be with the new partials
        for i in range(1, len(self._levels)):
            if not len(positions):
                return
            if self._fixed and positions[-1] - positions[0] < 2 * len(positions):
                self._refresh_between(i, positions.item(0), positions.item(-1))
                return
            parents = positions >> 1
            parents = parents[starts_of_runs(parents)]
            positions = parents[(parents << i >= self._directory.head) & ((parents + 1) << i <= self._done)]
            children, level = self._levels[i - 1], self._levels[i]
            left = 2 * positions - children.base
            self._combine_pairs(children, level, left, left + 1, positions - level.base)

    def _refresh_between(self, lowest: int, first: int, last: int) -> None:
        """Write all nodes from level `lowest` up that have one of the nodes first..last of the level below under them.

        For numbers that is cheaper than to pick those that have changed, where they are every second one or more.
        """
        for i in range(lowest, len(self._levels)):
            first, last = max(first >> 1, -(-self._directory.head >> i)), min(last >> 1, (self._done >> i) - 1)
            if last - first < _ONE_BY_ONE:
                for index in range(first, last + 1):
                    self._combine_pair(i, index)
            else:
                self._combine_neighbours(i, first, last + 1)

    def _refresh_above(self, position: int) -> None:
        for i in range(1, len(self._levels)):
            position >>= 1
            if (position + 1) << i > self._done:
                return
            if position << i >= self._directory.head:  # others straddle the head, and are not asked for again
                self._combine_pair(i, position)

    def lose(self, positions: Array, rows: Array) -> None:
        """The blocks at `positions`, int64 (k,) increasing, have so many rows less; so do the nodes above them."""
        head, done = self._directory.head, self._done
        if len(positions) <= _ONE_BY_ONE:
            for position, lost in zip(positions.tolist(), rows.tolist(), strict=True):
                for i in range(1, len(self._levels)):
                    position >>= 1
                    if (position + 1) << i > done:
                        break
                    if position << i >= head:
                        level = self._levels[i]
                        level.counts[position - level.base] -= lost
            return
        for i in range(1, len(self._levels)):
            starts = starts_of_runs(positions >> 1)
            positions, rows = positions[starts] >> 1, np.add.reduceat(rows, starts)
            live = slice(*positions.searchsorted([-(-head >> i), done >> i]).tolist())
            level = self._levels[i]
            level.counts[positions[live] - level.base] -= rows[live]

    def nodes_of_refresh(self, positions: Array) -> list[tuple[int, int]]:
        """The nodes that `refresh` reads, but for those that it has written."""
        head, found = self._directory.head, []
        mine = {position for position in positions.tolist() if position < self._done}
        for i in range(1, len(self._levels)):
            parents = {p for p in {child >> 1 for child in mine} if p << i >= head and (p + 1) << i <= self._done}
            found += [(i - 1, child) for p in sorted(parents) for child in (2 * p, 2 * p + 1) if child not in mine]
            mine = parents
        return found

    # ---------------------------------------------------------------- new blocks

    def _catch_up(self) -> None:
        """Write the nodes that new blocks complete."""
        tail = self._directory.tail
        if self._directory.has_external:
            self.fetch((), self._unpaired())
            self._directory.note_unstored_partials()
        first, self._done = self._done, tail
        if tail - first > _ONE_BY_ONE:
            self._complete(first)
            return
        for position in range(first, tail):
            i = 0
            while position & 1:  # node `position` of level i completes the pair of its parent
                position >>= 1
                i += 1
                if self._make(i, position, position + 1) == position:
                    self._combine_pair(i, position)

    def _unpaired(self) -> list[tuple[int, int]]:
        """What is there of the nodes that new ones will be made of."""
        first, tail, head = self._done, self._directory.tail, self._directory.head
        found, i = [(0, position) for position in range(max(first, head), tail)], 0
        while tail >> i + 1 > first >> i + 1:
            if first >> i & 1 and (first >> i) - 1 << i >= head:  # the older one of a pair, of which this is the newer
                found.append((i, (first >> i) - 1))
            i += 1
        return found

    def _complete(self, first: int) -> None:
        """Write the nodes of level 1 and up that the blocks from `first` on complete."""
        tail, i = self._directory.tail, 1
        while tail >> i > first >> i:
            stop = tail >> i
            start = self._make(i, first >> i, stop)
            if start < stop:
                self._combine_neighbours(i, start, stop)
            i += 1

    def _make(self, i: int, start: int, stop: int) -> int:
        """Make rows for nodes start..stop at the end of level i, without those that straddle the head.

        Returns:
            the first node that has a row, `stop` where none has.
        """
        if i == len(self._levels):
            self._levels.append(Level(self._monoids, start))
        level, live = self._levels[i], -(-self._directory.head >> i)
        start = min(max(start, live), stop)
        if level.tail != start:  # all it has is dead, and a gap follows
            level.restart(start)
        level.reserve(stop - start, live)
        return start

    # ---------------------------------------------------------------- nodes

    def _combine_pair(self, i: int, index: int) -> None:
        """Write node (i, index) from its two children."""
        children, level = self._levels[i - 1], self._levels[i]
        left, row = 2 * index - children.base, index - level.base
        level.counts[row] = children.counts.item(left) + children.counts.item(left + 1)
        for slot, monoid in enumerate(self._monoids):
            take = children.takers[slot]
            pair = monoid.combine(take(left), take(left + 1))
            level.putters[slot](row, pair)

    def _combine_neighbours(
        self, i: int, start: int, stop: int, known: Mapping[int, Partials] = MappingProxyType({})
    ) -> None:
        """Write the nodes start..stop of level i from their children."""
        children, level = self._levels[i - 1], self._levels[i]
        left, right = 2 * start - children.base, 2 * stop - children.base
        rows = slice(start - level.base, stop - level.base)
        self._combine_pairs(children, level, slice(left, right, 2), slice(left + 1, right, 2), rows, known)

    def _combine_pairs(
        self,
        children: Level,
        level: Level,
        left: Array | slice,
        right: Array | slice,
        rows: Array | slice,
        known: Mapping[int, Partials] = MappingProxyType({}),
    ) -> None:
        """Write many nodes from the rows of their children, but for slots of which the partials are known."""
        level.put_many(
            rows,
            children.counts[left] + children.counts[right],
            [
                known[slot]
                if slot in known
                else monoid.combine_columns(
                    tuple([part[left] for part in parts]), tuple([part[right] for part in parts])
                )
                for slot, (monoid, parts) in enumerate(zip(self._monoids, children.columns, strict=True))
            ],
        )
