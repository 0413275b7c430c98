"""The forest's levels: partials of pairs, each written once (AMTA's queues of nodes).

    level 2          [  0..3  ]                       node (i, j) folds the blocks
    level 1      [0..1]    [2..3]    [4..5]           j * 2^i <= position < (j + 1) * 2^i
    level 0      0    1    2    3    4    5    6      the directory: position of a sealed block
                 ^ head                        ^ tail

A node exists once its last block is sealed, and dies when `head` passes its first one. Where its partials are large,
they may be in a tier (external.py); what reads several nodes loads what it lacks of them at once.

Nodes are written when nodes are read, and not when blocks are sealed. So a window that is only written, and queried as
a whole, builds its upper levels in vectorised passes. After a change of blocks, `refresh` writes their ancestors anew.

*Stale* blocks have lost rows, or have other values, and are folded when somebody asks for a partial:

    removed     block 17, rows 3 and 5                        block 90, row 7
    rows        noted, and gone when the block is read        noted
    counts      two less in 17 and in every node above it     one less
    partials    stale: 17, 90                                 folded again, and the nodes above, with the next question

Nothing is subtracted from a partial. Counts are right at once, and so are the times of the first and last entry of each
block, because first and last rows are never deferred. So what asks for numbers of entries or for rows folds nothing.
A partial of any block, or of any node, is read after `freshen` only. Blocks that others push to another position stay
stale; before all blocks from some position on are rebuilt, they are folded. Many stale blocks are folded together: the
rows that stay are put one behind the other, so that a vectorised pass folds some dozens of blocks at once. Rows that
are gone stay in their blocks meanwhile.

Append: amortised O(1) combines, paid when nodes are next read.  Fold of a range: O(log n).
Refresh of a block's ancestors: O(log n).  Space: 2 n partials for n blocks, without those in a tier.
A stale block: below a µs, and O(log n) for the counts above it; 0.2 KB. There are at most `_STALE`; more are folded
with the change that brings them. Freshen: O(B) a stale block, 5 to 10 µs with two aggregates, and the nodes above them
in one pass over the levels.
Source: Villalba, Berral, Carrera, "Constant-Time Sliding Window Framework with Reduced Memory Footprint and
Efficient Bulk Evictions", TPDS 2019.  Differs: (a) level 0 holds a block of entries, not one; (b) nodes are
addressed by position instead of dequeued, so that any range can be folded; (c) whole chunks are combined in one
vectorised call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.directory import Directory
from sash_engine.forest.layout import Layout
from sash_engine.forest.level import Level
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps

_UNPAIRED = 128
"""Up to so many new blocks are folded as they are: one reduction, where pairing them is one call for every level."""

_ONE_BY_ONE = 3
"""Up to so many new or changed blocks are carried up one by one: a vectorised pass over all levels costs as much."""

_PAIRED = 64
"""So many new blocks one step pairs where partials are large: a union takes 35 µs."""

_STALE = 1_024
"""Stale blocks of one forest: the next question folds them all, in 5 to 10 ms."""

_FEW = 4
"""Fewer blocks are folded one by one."""

_ROWS = 16_384
"""So many rows are folded together, or a few more: 128 KiB of a column. The allocator gets more anew each time, which
takes twice the time."""

_UNREAD = np.empty(0)
"""In the place of a column that no aggregate reads."""


class Levels:
    """The levels over the sealed blocks of a directory, for all aggregates of a window at once.

    Args:
        directory: level 0; who appends to it or drops from it need not say so here.
        layout: what the blocks hold.
    """

    __slots__ = ("_directory", "_done", "_fixed", "_layout", "_levels", "_monoids")

    def __init__(self, directory: Directory, layout: Layout) -> None:
        self._directory = directory
        self._use(layout)
        self._levels: list[Level] = [directory]
        self._done = 0  # pairs are complete for the blocks before; the rest is written when nodes are read

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        self._monoids = self._directory.monoids
        self._fixed = all(monoid.fixed for monoid in self._monoids)

    def truncate(self, position: int) -> None:
        """Forget the nodes above the blocks from `position` on, which the directory has forgotten."""
        if position >= self._done:
            return
        self._done = position
        for i in range(1, len(self._levels)):
            self._levels[i].truncate(self._done >> i)

    def relevel(self, layout: Layout) -> None:
        """Forget all nodes: the directory's partials are of other aggregates now."""
        self._use(layout)
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

    def _lose(self, positions: Array, rows: Array) -> None:
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

    def pair_steps(self, starts: Array, stops: Array) -> Steps[None]:
        """Write the nodes that new blocks complete, in steps, if one of the runs starts..stops has many such blocks."""
        if (stops - np.maximum(starts, self._done) > _UNPAIRED).any():
            large, tail = any(monoid.large for monoid in self._monoids), self._directory.tail
            while self._done < tail:
                self._catch_up(min(max(self._done, self._directory.head) + _PAIRED, tail) if large else tail)
                yield

    def _catch_up(self, tail: int | None = None) -> None:
        """Write the nodes that new blocks complete, up to some block."""
        tail = self._directory.tail if tail is None else tail
        if self._directory.has_external:
            self.fetch((), self._unpaired(tail))
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

    def _unpaired(self, tail: int) -> list[tuple[int, int]]:
        """Return the nodes that new ones will be made of up to block `tail`, as (level, position)."""
        first, head = self._done, self._directory.head
        found, i = [(0, position) for position in range(max(first, head), tail)], 0
        while tail >> i + 1 > first >> i + 1:
            if first >> i & 1 and (first >> i) - 1 << i >= head:  # the older one of a pair, of which this is the newer
                found.append((i, (first >> i) - 1))
            i += 1
        return found

    def _complete(self, first: int) -> None:
        """Write the nodes of level 1 and up that the blocks from `first` on complete."""
        i = 1
        while self._done >> i > first >> i:
            stop = self._done >> i
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

    # ---------------------------------------------------------------- stale blocks

    @property
    def defers(self) -> bool:
        """Whether folding may wait: not where it loads partials from a tier, since that may fail."""
        return not self._directory.has_external

    def lose(self, positions: Array, rows: Array) -> None:
        """Blocks have noted that rows leave: int64 (k,) increasing positions, and how many rows each loses."""
        self._directory.lose(positions, rows)
        self._lose(positions, rows)
        self.change(positions.tolist())

    def change(self, positions: Iterable[int]) -> None:
        """Blocks at these positions have other rows, as many as the directory counts."""
        stale = self._directory.stale
        stale.update(positions)
        if len(stale) > _STALE or not self.defers:
            self.freshen()

    def freshen(self) -> None:
        """Fold the stale blocks again, and the nodes above them."""
        directory, layout = self._directory, self._layout
        if not directory.stale:
            return
        positions = sorted(position for position in directory.stale if position >= directory.head)
        directory.stale.clear()
        if not positions:
            return
        stale = np.array(positions)
        if len(positions) < _FEW:
            for position in positions:
                block = directory.block(position)
                directory.change(position, block.rows, layout.reduce_rows(block.columns, 0, block.rows))
        else:
            rows = np.add.accumulate(directory.counts[stale - directory.base])
            parts = starts_of_runs(rows // _ROWS)
            for some in np.split(stale, parts[1:]):
                self._fold_blocks(some)
        self.refresh(stale)

    def _fold_blocks(self, positions: Array) -> None:
        """Fold some stale blocks again, all at once."""
        directory, layout = self._directory, self._layout
        blocks = [directory.unsettled(position) for position in positions.tolist()]
        columns: list[Array] = [_UNREAD] * len(layout.dtypes)
        for i in layout.used:
            columns[i] = np.concatenate([part for block in blocks for part in block.kept(i)])
        counts = directory.counts[positions - directory.base]
        starts = np.zeros(len(counts), np.int64)
        np.add.accumulate(counts[:-1], out=starts[1:])
        directory.change_many(positions, counts, layout.reduce_segments(columns, starts))

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

    def covers(
        self, starts: Array, stops: Array
    ) -> tuple[list[tuple[Array, Level, Array]], Array, set[tuple[int, int]]]:
        """What `fold` folds of many runs of blocks starts..stops, int64 (k,), in its order, after `pair_steps`.

        Returns:
            which runs have a node of a level, int64, the level, and which rows of it: of each run the oldest node
            first. Then for each run where the blocks begin that follow and are in no pair yet, int64 (k,). And all
            nodes, as `cover` has them.
        """
        older, newer = list[tuple[Array, Level, Array]](), list[tuple[Array, Level, Array]]()
        nodes = set[tuple[int, int]]()
        stops = paired = np.minimum(np.maximum(starts, self._done), stops)
        for i, level in enumerate(self._levels):
            some = np.flatnonzero((starts < stops) & (starts & 1 == 1))
            if len(some):
                older.append((some, level, starts[some] - level.base))
                nodes.update((i, index) for index in np.unique(starts[some]).tolist())
            starts = starts + (starts & 1)
            some = np.flatnonzero((starts < stops) & (stops & 1 == 1))
            if len(some):
                newer.append((some, level, stops[some] - 1 - level.base))
                nodes.update((i, index) for index in np.unique(stops[some] - 1).tolist())
            starts, stops = starts >> 1, stops >> 1
        return [*older, *reversed(newer)], paired, nodes

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
        """The partials above level 0 that are to be stored, of all nodes; `given` is called when one gets its id.

        Stale blocks are folded first: one that is stored would be loaded for that. Dropped ones are forgotten.
        """
        self.freshen()
        if not self._directory.has_external:
            return []
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
        large = [slot for slot, _ in self._directory.external]
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
        self.check_counts()
        head, tail = self._directory.head, self._directory.tail
        for i in range(1, len(self._levels)):
            children, level = self._levels[i - 1], self._levels[i]
            first = -(-head >> i)
            if first >= tail >> i:
                continue
            assert level.tail == tail >> i, f"level {i} ends at node {level.tail}, not {tail >> i}"
            assert level.base <= first, f"level {i} starts at {level.base}, needs {first}"
            for index in range(first, level.tail):
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
