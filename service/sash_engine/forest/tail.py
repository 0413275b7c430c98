"""The open block of a forest: the one that is being filled.

    tail block   [ 7  8  9 .  .  .  . ]      running fold older∘7∘8, caught up with 9 when asked

The running fold starts from the fold of all sealed blocks behind the head (folds.py), so that a query joins two folds
and no more. A window smaller than a block has both ends in one: then the head folds up to a split, the tail from there
on, which is Two-Stacks Lite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.forest.layout import Layout
from sash_engine.kernels import copy_rows
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array

_FIRST_ROWS = 8
_SCALAR_ROWS = 6
"""Up to so many entries are lifted and combined one by one: a NumPy reduction costs as much as about six."""


class Tail(Block):
    """The open block, with a fold of its rows that is brought up to date when it is asked for.

    Of panes the newest row may still change: the running fold ends before it, and each call combines it anew.
    """

    __slots__ = ("_folded", "_layout", "_older", "_running", "_start")

    def __init__(self, layout: Layout) -> None:
        rows = min(_FIRST_ROWS, layout.block)  # a window of few entries stays small
        super().__init__([np.empty(rows, dtype) for dtype in layout.dtypes], 0)
        self._layout = layout
        self.refold()

    def refold(self) -> None:
        """Forget the fold: rows have changed, and not only been added."""
        self._running: list[Partial] | None = None
        self._older: Sequence[Partial] | None = None
        self._start = 0
        self._folded = 0

    def relayout(self, layout: Layout) -> None:
        """Fold other aggregates from now on."""
        self._layout = layout
        self.refold()

    def clear(self) -> None:
        """Start a new block; the old arrays belong to the sealed block now."""
        rows = max(len(self.columns[0]), _FIRST_ROWS)
        self.columns = [np.empty(min(rows, self._layout.block), dtype) for dtype in self._layout.dtypes]
        self.rows = 0
        self.refold()

    def restore(self, columns: Sequence[Array], room: int) -> None:
        """Take the rows of `columns`, all of them (copied), with room for `room` rows."""
        self.columns = [np.empty(room, dtype) for dtype in self._layout.dtypes]
        self.rows = 0
        self.refold()
        self.extend(columns, 0, len(columns[0]))

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        capacity = min(max(rows, 2 * len(self.columns[0])), max(self._layout.block, rows))
        for i, column in enumerate(self.columns):
            self.columns[i] = np.empty(capacity, column.dtype)
            self.columns[i][: self.rows] = column[: self.rows]

    def extend(self, columns: Sequence[Array], start: int, stop: int) -> None:
        """Copy rows start..stop of `columns` in behind the last row."""
        before = self.rows
        rows = self.rows = before + stop - start
        if rows > len(self.columns[0]):
            self.rows = before
            self.grow(rows)
            self.rows = rows
        copy_rows(self.columns, before, columns, start, stop)

    def discard(self, skip: int) -> None:
        """Remove the first `skip` rows."""
        for column in self.columns:
            column[: self.rows - skip] = column[skip : self.rows]
            if column.dtype.hasobject:
                column[self.rows - skip : self.rows] = None
        self.rows -= skip
        self.refold()

    def remove(self, rows: Array) -> None:
        """Remove some rows, int64 (k,) and increasing."""
        stay = np.ones(self.rows, np.bool_)
        stay[rows] = False
        left = self.rows - len(rows)
        for column in self.columns:
            column[:left] = column[: self.rows][stay]
            if column.dtype.hasobject:
                column[left : self.rows] = None
        self.rows = left
        self.refold()

    def closed(self) -> int:
        """How many rows do not change any more."""
        return self.rows if self._layout.rows_are_entries else max(self.rows - 1, 0)

    def fold(self, start: int, older: Sequence[Partial] | None) -> list[Partial]:
        """Fold `older` (a fold of all before; None: of nothing) and the rows from `start` on.

        The list belongs to the tail and changes with it. `older` is compared by identity.
        """
        layout, rows, running = self._layout, self.closed(), self._running
        if running is None or older is not self._older or start != self._start:
            running = self._running = list(layout.identities if older is None else older)
            self._older = older
            self._start = self._folded = start
        folded = self._folded
        if folded < rows:
            self._folded = rows
            if rows - folded > _SCALAR_ROWS:
                running = self._running = layout.combine(running, layout.reduce_rows(self.columns, folded, rows))
            else:
                layout.extend(running, self.columns, folded, rows)
        if rows < self.rows:
            running = running[:]
            layout.extend(running, self.columns, rows, self.rows)
        return running
