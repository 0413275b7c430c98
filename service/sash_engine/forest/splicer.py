"""Out of order: newcomers that belong into sealed blocks.

    newcomers    4  4   17        52 53                 sorted; each block owns the times from its first on
                 |  |    |         |  |
    blocks     [ 1..9 ] [ 10..31 ] [ 40..90 ]           up to twice the block size, then cut into even pieces

Where every aggregate commutes, many newcomers spread over many blocks are *deferred*. Their partials are combined into
those of the blocks and their ancestors at once. Their rows are merged into the columns when the block is read; until
then the bulk waits as a whole (inbox.py). Otherwise each block is spliced and folded again, and all ancestors follow in
one pass over the levels. Newcomers of half a block or more that go between the same two rows become blocks of their
own, without copying; the rows of the directory behind them move on.

Cost for m newcomers in k of n blocks: O(m + k log n) deferred, O(m + k (B + log n)) spliced. A cut, and blocks of
their own, also rebuild the levels behind: O(blocks behind).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sash_engine.forest.directory import BlockRun, Directory
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.forest.segments import starts_of_runs
from sash_engine.forest.stale import Stale
from sash_engine.monoids.base import Array

__all__ = ["Splicer", "SpliceResult"]


@dataclass(frozen=True, slots=True)
class SpliceResult:
    """What an insertion did: blocks from `first` on have changed, those from `cut` on were replaced and moved."""

    first: int
    cut: int | None


class Splicer:
    """Inserts into the sealed blocks of a directory.

    Args:
        directory: the blocks.
        levels: what follows from them.
        layout: what they hold.
        stale: folds blocks before they move.
    """

    __slots__ = ("_directory", "_layout", "_levels", "_stale")

    def __init__(self, directory: Directory, levels: Levels, layout: Layout, stale: Stale) -> None:
        self._directory = directory
        self._levels = levels
        self._layout = layout
        self._stale = stale

    def insert(self, rows: Sequence[Array], skip: int) -> SpliceResult:
        """Insert m >= 1 sorted rows, none of them behind the last block.

        Args:
            rows: the columns.
            skip: rows of the head block that are evicted; nothing is spliced before them. Where the head block
                is replaced (`cut` is the head), they are gone.
        """
        directory, times = self._directory, rows[0]
        if 2 * len(times) >= self._layout.block:
            oldest, newest = times.item(0), times.item(-1)
            position = directory.owner(oldest)
            at = self._only_gap(position, oldest, newest, skip) if position == directory.owner(newest) else None
            if at is not None:
                return self._insert_run(position, at, rows, skip)
        owners = directory.owners(times)
        starts = starts_of_runs(owners)
        positions = owners[starts]
        bounds = np.append(starts, len(owners))
        deferred = len(positions) > 1 and self._layout.commutative
        if directory.loads:  # all at once, and before anything changes
            blocks = self._not_deferred(positions, bounds, skip) if deferred else positions
            nodes = self._levels.nodes_of_refresh(positions) if directory.has_external else []
            if deferred and directory.has_external:
                nodes += [(0, position) for position in positions.tolist()]
            self._levels.fetch(blocks.tolist(), nodes)
        if deferred:
            self._defer(rows, positions, bounds, skip)
        else:
            for position, (a, b) in zip(positions.tolist(), itertools.pairwise(bounds.tolist()), strict=True):
                self._splice(position, [column[a:b] for column in rows], skip)
        self._levels.refresh(positions)
        return SpliceResult(int(positions[0]), self._cut_overfull(positions, skip))

    def _only_gap(self, position: int, oldest: int, newest: int, skip: int) -> int | None:
        """The row of a block before which all times of oldest..newest belong; None where there are several."""
        block = self._directory.block(position)
        times, skip = block.columns[0], skip if position == self._directory.head else 0
        at = skip + int(times[skip : block.rows].searchsorted(oldest, "right"))
        return at if at == block.rows or times.item(at) > newest else None

    def _insert_run(self, position: int, at: int, rows: Sequence[Array], skip: int) -> SpliceResult:
        """Put newcomers between two rows of a block, as blocks of their own."""
        directory = self._directory
        block = directory.block(position)
        pieces, drop = self.even_blocks(rows), 0
        if at == block.rows:
            position += 1
        elif at:
            block, drop = directory.edit(position), 1
            skip = skip if position == directory.head else 0
            before = self.even_blocks([column[skip:at] for column in block.columns]) if at > skip else []
            pieces = [*before, *pieces, *self.even_blocks([column[at : block.rows] for column in block.columns])]
        directory.exchange(position, drop, pieces, [self._layout.reduce(piece) for piece in pieces])
        self._levels.truncate(position)
        return SpliceResult(position, position)

    def _splice(self, position: int, newcomers: list[Array], skip: int) -> None:
        directory = self._directory
        block = directory.edit(position)
        block.splice(newcomers, skip if position == directory.head else 0)
        directory.widen(position, newcomers[0][0], newcomers[0][-1])
        partials = self._layout.reduce_rows(block.columns, 0, block.rows)
        directory.change(position, block.rows, partials)

    def _not_deferred(self, positions: Array, bounds: Array, skip: int) -> Array:
        """Which blocks are read although newcomers are deferred: the head, and those that will be cut."""
        counts = self._directory.counts[positions - self._directory.base] + np.diff(bounds)
        read: Array = counts > 2 * self._layout.block
        if skip and positions[0] == self._directory.head:
            read[0] = True
        return positions[read]

    def _defer(self, rows: Sequence[Array], positions: Array, bounds: Array, skip: int) -> None:
        directory = self._directory
        starts, ends = bounds[:-1], bounds[1:]
        first = 0
        if skip and positions[0] == directory.head:
            # The newcomers belong behind rows that are evicted, whatever their times.
            first = 1
            directory.edit(directory.head).splice([column[: ends[0]] for column in rows], skip)
        directory.defer(rows, positions[first:], bounds[first:])
        directory.widen(positions, rows[0][starts], rows[0][ends - 1])
        newcomers, at = self._layout.reduce_segments(rows, starts), positions - directory.base
        partials = [
            monoid.combine_columns(tuple([part[at] for part in mine]), theirs)
            for monoid, mine, theirs in zip(directory.monoids, directory.columns, newcomers, strict=True)
        ]
        directory.change_many(positions, directory.counts[at] + (ends - starts), partials)

    # ---------------------------------------------------------------- cutting

    def _cut_overfull(self, positions: Array, skip: int) -> int | None:
        """Cut blocks that outgrew twice the block size into even pieces; return where the first of them was."""
        directory = self._directory
        counts = directory.counts[positions - directory.base]
        if counts.max() <= 2 * self._layout.block:
            return None
        self._stale.freshen()
        overfull: list[int] = positions[counts > 2 * self._layout.block].tolist()
        parts: list[tuple[list[list[Array]], BlockRun]] = []
        for position, following in itertools.pairwise([*overfull, directory.tail]):
            block = directory.edit(position)
            start = skip if position == directory.head else 0
            pieces = self.even_blocks([column[start : block.rows] for column in block.columns])
            parts.append((pieces, directory.run(position + 1, following)))
        self._rebuild(overfull[0], parts)
        return overfull[0]

    def _rebuild(self, first: int, parts: Sequence[tuple[list[list[Array]], BlockRun]]) -> None:
        """Replace all blocks from `first` on: by new ones, each time followed by a run of those that were there."""
        self._directory.truncate(first)
        self._levels.truncate(first)
        for pieces, following in parts:
            for columns in pieces:
                self._directory.append(columns, self._layout.reduce(columns))
            self._directory.extend(following)

    def even_blocks(self, columns: Sequence[Array]) -> list[list[Array]]:
        """Cut sorted columns into even blocks of at most the block size."""
        rows = len(columns[0])
        k = -(-rows // self._layout.block)
        bounds = [rows * i // k for i in range(k + 1)]
        return [[column[a:b] for column in columns] for a, b in itertools.pairwise(bounds)]
