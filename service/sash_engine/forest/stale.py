"""Stale blocks: they have lost rows, or have other values, and their partials are folded when somebody asks for one.

    removed     block 17, rows 3 and 5                        block 90, row 7
    rows        noted, and gone when the block is read        noted
    counts      two less in 17 and in every node above it     one less
    partials    stale: 17, 90                                 folded again, and the nodes above, with the next question

Nothing is subtracted from a partial. Counts are right at once, and so are the times of the first and last entry of each
block, because first and last rows are never deferred. So what asks for numbers of entries or for rows folds nothing.
A partial of any block, or of any node, is read after `freshen` only. Blocks that others push to another position stay
stale; before all blocks from some position on are rebuilt, they are folded.

Many stale blocks are folded together: the rows that stay are put one behind the other, so that a vectorised pass folds
some dozens of blocks at once. Rows that are gone stay in their blocks meanwhile.

Change: below a µs a block, and O(log n) for the counts above it.  Freshen: O(B) a stale block, 5 to 10 µs with two
aggregates, and the nodes above them in one pass over the levels.
Space: 0.2 KB a stale block. There are at most `_BLOCKS`; more are folded with the change that brings them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sash_engine.forest.directory import Directory
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids.base import Array

__all__ = ["Stale"]

_BLOCKS = 1_024
"""Stale blocks of one forest: the next question folds them all, in 5 to 10 ms."""

_FEW = 4
"""Fewer blocks are folded one by one."""

_ROWS = 16_384
"""So many rows are folded together, or a few more: 128 KiB of a column. The allocator gets more anew each time, which
takes twice the time."""


_UNREAD = np.empty(0)
"""In the place of a column that no aggregate reads."""


class Stale:
    """The stale blocks of a forest.

    Args:
        directory: the blocks.
        levels: what follows from them.
        layout: what they hold.
    """

    __slots__ = ("_directory", "_layout", "_levels")

    def __init__(self, directory: Directory, levels: Levels, layout: Layout) -> None:
        self._directory = directory
        self._levels = levels
        self._layout = layout

    @property
    def defers(self) -> bool:
        """Whether folding may wait: not where it loads partials from a tier, since that may fail."""
        return not self._directory.has_external

    def lose(self, positions: Array, rows: Array) -> None:
        """Blocks have noted that rows leave: int64 (k,) increasing positions, and how many rows each loses."""
        self._directory.lose(positions, rows)
        self._levels.lose(positions, rows)
        self.change(positions.tolist())

    def change(self, positions: Iterable[int]) -> None:
        """Blocks at these positions have other rows, as many as the directory counts."""
        stale = self._directory.stale
        stale.update(positions)
        if len(stale) > _BLOCKS or not self.defers:
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
                self._fold(some)
        self._levels.refresh(stale)

    def _fold(self, positions: Array) -> None:
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
