"""The forest's levels: partials of pairs, each written once (AMTA's queues of nodes).

    level 2          [  0..3  ]                       node (i, j) folds the blocks
    level 1      [0..1]    [2..3]    [4..5]           j * 2^i <= position < (j + 1) * 2^i
    level 0      0    1    2    3    4    5    6      the directory: position of a sealed block
                 ^ head                        ^ tail

A node exists once its last block is sealed, and dies when `head` passes its first one. Where its partials are large,
they may be in a tier (external.py); what reads several nodes loads what it lacks of them at once.

Append: amortised O(1) combines, paid when nodes are next read.  Fold of a range: O(log n).
Refresh of a block's ancestors: O(log n).  Space: 2 n partials for n blocks, without those in a tier.
Source: Villalba, Berral, Carrera, "Constant-Time Sliding Window Framework with Reduced Memory Footprint and
Efficient Bulk Evictions", TPDS 2019.  Differs: (a) level 0 holds a block of entries, not one; (b) nodes are
addressed by position instead of dequeued, so that any range can be folded; (c) whole chunks are combined in one
vectorised call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.external import ExternalPartials
from sash_engine.forest.level import Level
from sash_engine.forest.pairs import Pairs
from sash_engine.monoids import Monoid, Partial
from sash_engine.monoids.base import Array

__all__ = ["Levels"]

_UNPAIRED = 128
"""Up to so many new blocks are folded as they are: one reduction, where pairing them is one call for every level."""


class Levels(Pairs):
    """The levels over the sealed blocks of a directory, for all aggregates of a window at once; see `Pairs`."""

    __slots__ = ()

    # ---------------------------------------------------------------- reading

    def cover(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The fewest nodes (level, index) that together are the blocks start..stop, oldest first."""
        if stop > self._done:
            self._catch_up()
        return _cover(start, stop)

    def node(self, i: int, index: int) -> list[Partial]:
        """The partials of node (i, index), one per slot."""
        if self._directory.has_external:
            self.fetch((), [(i, index)])
        return self._levels[i].node(index)

    def entries(self, i: int, index: int) -> int:
        """Entries under node (i, index)."""
        return self._levels[i].count(index)

    def partial(self, i: int, index: int, slot: int) -> Partial:
        """The partial of node (i, index) in one slot, which is not stored in a tier."""
        level = self._levels[i]
        return level.takers[slot](index - level.base)

    def widening(self, start: int, stop: int, share: int) -> list[tuple[int, int]]:
        """Nodes (level, index) that together are the blocks start..stop, newest first.

        A node has one block, or at most the `share`-th part of as many as are newer than it.
        """
        if stop > self._done:
            self._catch_up()
        nodes, end = [], stop + 1
        while stop > start:
            i = 0
            while stop & ((2 << i) - 1) == 0 and stop - (2 << i) >= start and share * (2 << i) <= end - stop:
                i += 1
            nodes.append((i, (stop >> i) - 1))
            stop -= 1 << i
        return nodes

    def leaves(self, start: int, stop: int) -> list[list[Partial]]:
        """The partials of each block of start..stop, one per slot."""
        if stop - start == 1:
            return [self._directory.node(start)]
        _, columns = self._directory.slices(start, stop)
        slots = [monoid.unpack(partials) for monoid, partials in zip(self._monoids, columns, strict=True)]
        return [list(partials) for partials in zip(*slots, strict=True)] if slots else [[]] * (stop - start)

    def count(self, start: int, stop: int) -> int:
        """Entries in the blocks start..stop."""
        paired = self._paired(start, stop)
        total = 0
        for i, index in _cover(start, paired):
            total += self._levels[i].count(index)
        if paired < stop:
            total += self._directory.total(paired, stop)
        return total

    def fold(
        self,
        start: int,
        stop: int,
        older: Sequence[Partial] | None = None,
        newer: Sequence[Partial] | None = None,
        slots: Sequence[int] | None = None,
    ) -> tuple[int, list[Partial]]:
        """Count and fold the blocks start..stop, start < stop; one partial per slot.

        Args:
            older: a fold of what comes before them, to begin with.
            newer: a fold of what comes behind them, to end with.
            slots: only these, in `older` and `newer`, too; None: all.
        """
        paired = self._paired(start, stop)
        if self._directory.has_external:
            self.fetch((), self.nodes_of_fold(start, stop), slots)
        wanted = range(len(self._monoids)) if slots is None else slots
        entries, nodes = self._gather(start, paired)
        unpaired = None
        if paired < stop:
            entries += self._directory.total(paired, stop)
            unpaired = self._directory.fold(paired, stop, slots)
        if older is None:  # not with the identity: 0.0 + -0.0 is 0.0
            if nodes:
                takers, row = nodes[0]
                older, nodes = [takers[slot](row) for slot in wanted], nodes[1:]
            else:
                older, unpaired = unpaired, None
        assert older is not None, "start < stop"
        out = []
        for at, slot in enumerate(wanted):
            combine = self._monoids[slot].combine
            total = older[at]
            for takers, row in nodes:
                total = combine(total, takers[slot](row))
            if unpaired is not None:
                total = combine(total, unpaired[at])
            out.append(total if newer is None else combine(total, newer[at]))
        return entries, out

    def _gather(self, start: int, stop: int) -> tuple[int, list[tuple[list[Callable[[int], Partial]], int]]]:
        """Count the nodes of `_cover` and list where each is: a level's takers and a row.

        The same walk once more, as a range query mostly consists of it: over a list of nodes it costs a quarter more.
        """
        entries, older, newer = 0, [], []
        for level in self._levels:
            if start >= stop:
                break
            if start & 1:
                row = start - level.base
                older.append((level.takers, row))
                entries += level.counts.item(row)
                start += 1
            if stop & 1:
                stop -= 1
                row = stop - level.base
                newer.append((level.takers, row))
                entries += level.counts.item(row)
            start >>= 1
            stop >>= 1
        newer.reverse()
        older += newer
        return entries, older

    def nodes_of_fold(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The nodes that `fold` reads for the blocks start..stop."""
        if start >= stop:
            return []
        paired = self._paired(start, stop)
        return _cover(start, paired) + [(0, position) for position in range(paired, stop)]

    def _paired(self, start: int, stop: int) -> int:
        """Up to where the blocks start..stop are in pairs, or will be now; few new ones are left as they are."""
        if stop - max(start, self._done) > _UNPAIRED:
            self._catch_up()
        return min(max(start, self._done), stop)

    # ---------------------------------------------------------------- searching

    def seek(self, start: int, fits: Callable[[int, int], bool]) -> int:
        """Walk right from block `start` over all that fits; return the position of the first block that does not.

        Args:
            fits: asked O(log n) times about node (level, index), in order; where it says True the walk goes on
                behind the node, and the next question is about that. It must be monotone: what fits as a whole
                fits in part.
        """
        position, i, climbing = start, 0, True
        while True:
            while climbing and position & ((2 << i) - 1) == 0 and self._exists(i + 1, position >> (i + 1)):
                i += 1
            if self._exists(i, position >> i) and fits(i, position >> i):
                position += 1 << i
            elif i:
                i, climbing = i - 1, False  # the answer lies inside this node, or it is not complete
            else:
                return position

    def seek_count(self, start: int, entries: int) -> tuple[int, int]:
        """Find the entry that has `entries` others before it from block `start` on: block and row."""

        def fits(i: int, index: int) -> bool:
            nonlocal entries
            count = self._levels[i].count(index)
            if count > entries:
                return False
            entries -= count
            return True

        return self.seek(start, fits), entries

    def _exists(self, i: int, index: int) -> bool:
        stop, directory = (index + 1) << i, self._directory
        if stop > directory.tail or index << i < directory.head:
            return False
        if stop > self._done:
            self._catch_up()
        return True

    # ---------------------------------------------------------------- storing

    def pending_blocks(self, given: Callable[[], None]) -> list[PendingBlock]:
        """The partials above level 0 that are to be stored, of all nodes; `given` is called when one gets its id."""
        if self._done < self._directory.tail:
            self._catch_up()
        return [
            one
            for i, level in enumerate(self._levels[1:], 1)
            for one in level.pending_partials(max(-(-self._directory.head >> i), level.base), level.tail, given)
        ]

    def sweep(self) -> None:
        """Release what is stored of nodes that are dead."""
        for i, level in enumerate(self._levels[1:], 1):
            live = min(-(-self._directory.head >> i), level.tail)
            level.release(slice(0, max(live - level.base, 0)))

    def dump(self) -> tuple[int, dict[int, Array]]:
        """Up to where there are nodes, and the ids of all large partials by slot: see `ForestImage`."""
        large = [slot for slot, monoid in enumerate(self._monoids) if isinstance(monoid, ExternalPartials)]
        ids = [[part] for part in self._directory.ids(self._directory.head, self._directory.tail)]
        for i in range(1, len(self._levels)):
            start, stop = self._live(i)
            for into, part in zip(ids, self._levels[i].ids(start, stop) if start < stop else (), strict=False):
                into.append(part)
        nodes = [np.concatenate(parts) for parts in ids]
        assert all((part >= 0).all() for part in nodes), "partials are stored"
        return self._done, dict(zip(large, nodes, strict=True))

    def restore(self, done: int, nodes: Mapping[int, Array]) -> None:
        """Take the nodes of an image; partials that it has no ids of are computed anew."""
        assert len(self._levels) == 1, "there are none so far"
        if not nodes:
            return
        self._done, i, at = done, 1, self._directory.tail - self._directory.head
        while True:
            start, stop = self._live(i)
            if start == stop:
                assert all(len(ids) == at for ids in nodes.values()), f"there are {at} nodes"
                return
            level, end = Level(self._monoids, start), at + stop - start
            level.reserve(stop - start, start)
            self._levels.append(level)
            stored = {slot: (np.full(stop - start, None), ids[at:end]) for slot, ids in nodes.items()}
            self._combine_neighbours(i, start, stop, stored)
            i, at = i + 1, end

    # ---------------------------------------------------------------- invariants

    def check_counts(self) -> None:
        """Raise AssertionError where a node that is there does not count what is under it; others are not made."""
        for i in range(1, len(self._levels)):
            children, level = self._levels[i - 1], self._levels[i]
            for index in range(*self._live(i)):
                total = children.count(2 * index) + children.count(2 * index + 1)
                assert level.count(index) == total, f"count of node {i, index} is not its children's"

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool]) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same` compares two partials."""
        self._catch_up()
        head, tail = self._directory.head, self._directory.tail
        for i in range(1, len(self._levels)):
            children, level = self._levels[i - 1], self._levels[i]
            first = -(-head >> i)
            if first >= tail >> i:
                continue
            assert level.tail == tail >> i, f"level {i} ends at node {level.tail}, not {tail >> i}"
            assert level.base <= first, f"level {i} starts at {level.base}, needs {first}"
            for index in range(first, level.tail):
                total = children.count(2 * index) + children.count(2 * index + 1)
                assert level.count(index) == total, f"count of node {i, index} is not its children's"
                older, newer = children.node(2 * index), children.node(2 * index + 1)
                for slot, (monoid, found) in enumerate(zip(self._monoids, level.node(index), strict=True)):
                    pair = monoid.combine(older[slot], newer[slot])
                    assert same(monoid, found, pair), f"{monoid!r} of node {i, index} is {found}, not {pair}"


def _cover(start: int, stop: int) -> list[tuple[int, int]]:
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
