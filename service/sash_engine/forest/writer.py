"""Inserting into a forest: rows go to the open block, which is sealed when it is full; the drawing is in forest.py.

    newer than all      a row of the tail; bulks of half a block and more become blocks of their own, without a copy
    older               the part that belongs to sealed blocks goes to splicer.py, the rest is merged into the tail

Insert, in order: amortised O(1).  Out of order: O(B + log n).  Bulk insert of m: O(m), a few vectorised passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sash_engine.forest.block import merge
from sash_engine.forest.reader import BlockReader
from sash_engine.forest.segments import starts_of_runs
from sash_engine.kernels import append_row, is_sorted
from sash_engine.monoids.base import Array

__all__ = ["BlockWriter"]


class BlockWriter(BlockReader):
    """The entries of one key in blocks, with what adds and changes them."""

    __slots__ = ()

    def check_insert(self, times: Array) -> None:
        """Do nothing: entries may come in any order; see `KeyStore.check_insert`."""

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one entry: `values` has one scalar per field. Entries of equal time keep arrival order."""
        self._answers = None
        if time < self._newest:
            self._insert_between(time, values)
            return
        tail = self._tail
        row = tail.rows
        columns = tail.columns
        if row == len(columns[0]):
            row = self._make_room()
        append_row(columns, row, time, values)
        tail.rows = row = row + 1
        self._newest = time
        self._len += 1
        if row == self._layout.block:
            self._seal_full()

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 entries: int64 (m,) times in any order, and per field an array (m,) of its dtype."""
        m = len(times)
        if not m:
            return
        self._answers = None
        rows = [times, *columns]
        if not is_sorted(times):
            order = np.argsort(times, kind="stable")
            rows = [column[order] for column in rows]
            times = rows[0]
        if times.item(0) >= self._newest:
            self._append(rows, m)
            self._newest = times.item(m - 1)
        else:
            self._insert_sorted_between(rows, m)
            self._newest = max(self._newest, times.item(m - 1))
        self._len += m

    def _append(self, rows: list[Array], m: int) -> None:
        """Add m >= 1 rows that are sorted and belong behind all others."""
        block, tail, start = self._layout.block, self._tail, 0
        if 2 * m >= block:
            # They become blocks of their own, without copying; the tail is sealed as short as it is.
            if tail.rows:
                self._seal()
            if m > block:
                whole = self._adopt_whole(rows, m)
                rows, m = [column[whole:] for column in rows], m - whole
            if 2 * m >= block:
                self._directory.append(rows, self._layout.reduce(rows))
                return
        while tail.rows + m - start >= block:
            take = block - tail.rows
            tail.extend(rows, start, start + take)
            start += take
            self._seal_full()
        if start < m:
            tail.extend(rows, start, m)

    def _adopt_whole(self, rows: Sequence[Array], m: int) -> int:
        """Make whole blocks of the first rows; return how many rows went."""
        block = self._layout.block
        stop = m - m % block
        partials = self._layout.reduce_segments([column[:stop] for column in rows], np.arange(0, stop, block))
        self._directory.extend_whole(rows, stop // block, block, partials)
        return stop

    def _make_room(self) -> int:
        """Make room for a row in the tail; return the row."""
        tail = self._tail
        if self._skip * 2 > tail.rows and not self._has_blocks():
            self._discard_head_of_tail()
        else:
            tail.grow(tail.rows + 1)
        return tail.rows

    def _seal_full(self) -> None:
        """Seal a full tail; where most of it is evicted, the window is smaller than a block: only make room."""
        if self._skip * 2 > self._tail.rows and not self._has_blocks():
            self._discard_head_of_tail()
        else:
            self._seal()

    def _seal(self) -> None:
        """Make the tail a sealed block, without rows that are evicted already."""
        tail = self._tail
        skip = 0 if self._has_blocks() else self._skip
        columns, rows = tail.columns, tail.rows
        if skip or rows < len(columns[0]):
            wasteful = 2 * (rows - skip) < len(columns[0])  # a view would keep the room behind it, too
            columns = [column[skip:rows].copy() if wasteful else column[skip:rows] for column in columns]
        if skip:
            self._skip = self._split = 0
            self._head.reset()
        self._directory.append(columns, self._layout.reduce(columns))
        tail.clear()

    def _discard_head_of_tail(self) -> None:
        self._tail.discard(self._skip)
        self._skip = self._split = 0
        self._head.reset()

    # ---------------------------------------------------------------- the newest row, where it may change

    def open_row(self) -> tuple[list[Array], int] | None:
        """The columns of the open block and the row of the newest entry, whose values the caller may change.

        None where the newest entry is in a sealed block: use `replace`. Requires `Layout.open_row`.
        """
        tail = self._tail
        self._answers = None
        return (tail.columns, tail.rows - 1) if tail.rows else None

    def keep_open(self) -> None:
        """Seal the open block if the next entry would fill it, so that this entry stays in the open block."""
        if self._tail.rows and self._tail.rows + 1 >= self._layout.block:
            self._seal_full()

    # ---------------------------------------------------------------- inserting out of order

    def _insert_between(self, time: int, values: Sequence[Any]) -> None:
        row = [np.array([time])]
        for value, dtype in zip(values, self._layout.dtypes[1:], strict=True):
            column = np.empty(1, dtype)
            column[0] = value
            row.append(column)
        self._insert_sorted_between(row, 1)
        self._len += 1

    def _insert_sorted_between(self, rows: list[Array], m: int) -> None:
        """Insert m sorted rows, the first of which is older than the newest entry."""
        tail, times = self._tail, rows[0]
        if not self._has_blocks():
            cut = 0
        elif tail.rows:
            cut = int(times.searchsorted(tail.columns[0][0], "left"))
        else:
            cut = int(times.searchsorted(self._newest, "left"))
        if cut:
            self._splice_sealed(rows if cut == m else [column[:cut] for column in rows])
        if cut == m:
            return
        newer = [column[cut:] for column in rows]
        if tail.rows:
            self._splice_tail(newer, m - cut)
        else:
            self._append(newer, m - cut)

    def _splice_sealed(self, rows: Sequence[Array]) -> None:
        touched = self._splicer.insert(rows, self._skip)
        self._sealed.touch(touched.first)
        if touched.first == self._directory.head:
            self._head.reset()
        if touched.cut == self._directory.head:
            self._skip = 0

    def _splice_tail(self, newer: list[Array], m: int) -> None:
        tail = self._tail
        skip = 0 if self._has_blocks() else self._skip
        if tail.rows + m < self._layout.block:
            if skip:
                self._split = self._skip  # the head's fold would miss the newcomers
                self._head.reset()
            if m + tail.rows > len(tail.columns[0]):
                tail.grow(m + tail.rows)
            tail.splice(newer, skip)
            tail.refold()
            return
        merged = merge([column[skip:] for column in tail.columns], 0, tail.rows - skip, newer)
        if skip:
            self._skip = self._split = 0
            self._head.reset()
        tail.clear()
        self._append(merged, len(merged[0]))

    # ---------------------------------------------------------------- other values

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Give entries other values: int64 (m,) distinct times that there are, and per field an array (m,).

        Of several entries with one time it is the first that is changed.
        """
        if not len(times):
            return
        if self._directory.loads:
            touched = {self._directory.ending(time, "left") for time in times.tolist()}
            sealed = np.array(sorted(position for position in touched if position < self._directory.tail), np.int64)
            nodes = self._levels.nodes_of_refresh(sealed) if self._directory.has_external and len(sealed) else ()
            self._levels.fetch(sealed.tolist(), nodes)
        places = np.array([self._locate(time, "left") for time in times.tolist()], np.int64).reshape(-1, 2)
        order = np.argsort(places[:, 0], kind="stable")
        given = {i: values[order] for i, values in enumerate(columns, 1)}
        self._give(places[order, 0], places[order, 1], given)

    def _give(self, positions: Array, rows: Array, columns: Mapping[int, Array]) -> None:
        """Give rows other values; all that is needed is in memory. Sealed blocks are folded with the next question.

        Args:
            positions: int64 (k,), sorted: where their blocks are; k >= 1.
            rows: int64 (k,), which rows of them; those that are gone count, except in a head of which rows left.
            columns: by the number of a column its values, an array (k,).
        """
        self._answers = None
        directory = self._directory
        starts = starts_of_runs(positions)
        changed = positions[starts]
        for position, a, b in zip(changed.tolist(), starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
            sealed, head = position < directory.tail, position == directory.head
            block = directory.edit(position, head and self._skip > 0) if sealed else self._tail
            for i, values in columns.items():
                column = block.columns[i].copy() if sealed else block.columns[i]  # a row slice may have it
                if b - a == 1:
                    column[rows.item(a)] = values[a]
                else:
                    column[rows[a:b]] = values[a:b]
                block.columns[i] = column
            if not sealed:
                self._tail.refold()
            if head:
                self._head.reset()
                self._split = 0 if sealed else self._skip
        if changed.item(0) < directory.tail:
            self._stale.change(changed[changed < directory.tail].tolist())
            self._sealed.touch(changed.item(0))
