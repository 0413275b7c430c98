"""The two ends of a forest: the block that is being evicted, and the block that is being filled.

    head block   [ x  x  x | 3  4  5 ]       x: evicted.  Suffix scan: 3∘4∘5, 4∘5, 5: the paper's stack
    tail block   [ 7  8  9 .  .  .  . ]      running fold 7∘8, caught up with 9 when asked

A window smaller than a block has both ends in one: then the head folds up to a split, the tail from there on,
which is Two-Stacks Lite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash.forest.block import Block
from sash.forest.layout import Layout
from sash.monoids import Partial
from sash.monoids.base import Array

__all__ = ["Head", "Tail"]

_FIRST_ROWS = 8
_SCALAR_ROWS = 6
"""Up to so many entries are lifted and combined one by one: a NumPy reduction costs as much as about six."""


class Head:
    """Folds of the newer part of one block, while its older part is evicted bit by bit."""

    __slots__ = ("_cached", "_cached_at", "_layout", "_scan_from", "_scans")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.reset()

    def reset(self) -> None:
        """Another block, or the block has changed."""
        self._scans: list[list[Partial]] | None = None
        self._scan_from = 0
        self._cached: list[Partial] | None = None
        self._cached_at = -1

    def fold(self, columns: Sequence[Array], start: int, stop: int) -> list[Partial]:
        """Fold rows start..stop; `stop` is the same and `start` never goes back between resets."""
        if self._scans is not None:
            at = start - self._scan_from
            return [scan[at] for scan in self._scans]
        if self._cached is not None and self._cached_at == start:
            return self._cached
        if self._cached is None:
            # Bulk evictions land once in a block and move on: one reduction is cheaper than a scan.
            self._cached, self._cached_at = self._layout.reduce(columns, start, stop), start
            return self._cached
        layout = self._layout
        self._scan_from = start
        self._scans = [
            monoid.scan_suffix(layout.values(slot, columns, start, stop)) for slot, monoid in enumerate(layout.monoids)
        ]
        return [scan[0] for scan in self._scans]


class Tail(Block):
    """The open block, with a fold of its rows that is caught up when somebody asks."""

    __slots__ = ("_folded", "_layout", "_running", "_start")

    def __init__(self, layout: Layout) -> None:
        rows = min(_FIRST_ROWS, layout.block)  # a window of few entries stays small
        super().__init__([np.empty(rows, dtype) for dtype in layout.dtypes], 0)
        self._layout = layout
        self.refold()

    def refold(self) -> None:
        """The rows have changed other than by growing."""
        self._running: list[Partial] | None = None
        self._start = 0
        self._folded = 0

    def clear(self) -> None:
        """Start a new block; the old arrays are somebody else's now."""
        rows = max(len(self.columns[0]), _FIRST_ROWS)
        self.columns = [np.empty(min(rows, self._layout.block), dtype) for dtype in self._layout.dtypes]
        self.rows = 0
        self.refold()

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        capacity = min(max(rows, 2 * len(self.columns[0])), max(self._layout.block, rows))
        for i, column in enumerate(self.columns):
            self.columns[i] = np.empty(capacity, column.dtype)
            self.columns[i][: self.rows] = column[: self.rows]

    def extend(self, columns: Sequence[Array], start: int, stop: int) -> None:
        """Copy rows start..stop of `columns` in behind the last row."""
        rows = self.rows + stop - start
        if rows > len(self.columns[0]):
            self.grow(rows)
        for mine, theirs in zip(self.columns, columns, strict=True):
            mine[self.rows : rows] = theirs[start:stop]
        self.rows = rows

    def discard(self, skip: int) -> None:
        """Remove the first `skip` rows."""
        for column in self.columns:
            column[: self.rows - skip] = column[skip : self.rows]
            if column.dtype.hasobject:
                column[self.rows - skip : self.rows] = None
        self.rows -= skip
        self.refold()

    def fold(self, start: int) -> list[Partial]:
        """Fold the rows from `start` on; the list is the tail's own."""
        if self._running is None or self._start != start:
            self._running = list(self._layout.identities)
            self._start = self._folded = start
        rows, layout = self.rows, self._layout
        if self._folded < rows:
            if rows - self._folded > _SCALAR_ROWS:
                self._running = layout.combine(self._running, layout.reduce(self.columns, self._folded, rows))
            else:
                for row in range(self._folded, rows):
                    layout.extend(self._running, self.columns, row)
            self._folded = rows
        return self._running
