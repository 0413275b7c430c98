"""Removing entries from the middle of a forest; the drawing shows a range of time, and single entries.

    range      [ 1 2 3 | x ] [ x x x x ] [ x | 7 8 9 ]      the two ends become one block, what lies between goes
                        ^ start           ^ end
    single     [ 1 x 3 4 5 ] [ 5 6 7 8 9 ] [ 9 x x 12 ]     noted; each block is folded again, once, when asked for
                                             ^ less than a quarter: joined with the block behind it, at once

Nothing is subtracted. A block that loses rows is folded again from the rows that are left, and so are its ancestors. So
every aggregate can lose entries, also one that has no inverse, and floats round as if the entries had never come. The
folding waits for the next question (stale.py); where partials are in a tier it is done at once.

Range: O(B + log n), and O(blocks behind) where a whole block goes.  m single entries in k blocks: O(m log B + k log n),
and O(k B) with the next question.  A block is joined with the next after B / 4 removals at the earliest, unless it was
small from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from sash_engine.forest.block import without
from sash_engine.forest.finder import BlockFinder, Hits
from sash_engine.forest.reader import BEFORE_ALL
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.monoids.base import Array

__all__ = ["BlockRemover"]

_SMALL = 4
"""A block with less than this part of a full one is joined with the block behind it."""


class BlockRemover(BlockFinder):
    """The entries of one key in blocks, with what removes some from their middle."""

    __slots__ = ()

    # ---------------------------------------------------------------- a range of time

    def load_between(self, start: int, end: int) -> None:
        """Load what `evict_between(start, end)` reads, so that it cannot fail afterwards."""
        directory = self._directory
        if not directory.loads or not self._len or start > end:
            return
        a, b = directory.ending(start, "left"), directory.ending(end, "right")
        # One sealed block is rewritten: it has both ends, or the rest of the range is in the tail.
        one = a < directory.tail and (a == b or a + 1 == b == directory.tail) and directory.has_external
        self._levels.fetch((a, b), self._levels.nodes_of_refresh(np.array([a])) if one else ())

    def evict_between(self, start: int, end: int) -> int:
        """Remove all entries with start <= time <= end; return how many."""
        if not self._len or start > end:
            return 0
        self.load_between(start, end)
        directory = self._directory
        a, row = self._locate(start, "left")
        b, stop = self._locate(end, "right")
        count = self._count(b, stop) - self._count(a, row)
        if count <= 0:
            return 0
        if count == self._len:
            return self._clear()
        self._answers = None
        if a == directory.head and row == self._skip:
            self._cut(b, stop, count)
            return count
        if b == directory.tail:
            first = row if a == b else 0
            if first < stop:
                self._remove_of_tail(np.arange(first, stop))
            if a < b:
                self._remove_between(a, row, b - 1, directory.count(b - 1))
        else:
            self._remove_between(a, row, b, stop)
        self._len -= count
        self._find_newest()
        return count

    def _remove_between(self, a: int, row: int, b: int, stop: int) -> None:
        """Remove the rows from row `row` of block `a` up to row `stop` of block `b`, both sealed."""
        directory = self._directory
        first = self._skip if a == directory.head else 0
        ends = [[column[first:row] for column in directory.block(a).columns]] if first < row else []
        if stop < directory.count(b):
            ends.append([column[stop : directory.count(b)] for column in directory.block(b).columns])
        kept = [np.concatenate(columns) for columns in zip(*ends, strict=True)]
        if a == b and kept:
            lost = self._rewrite(a, kept)
            self._stale.lose(np.array([a]), np.array([lost]))
        else:
            pieces = self._splicer.even_blocks(kept) if kept else []
            directory.exchange(a, b - a + 1, pieces, [self._layout.reduce(piece) for piece in pieces])
            self._levels.truncate(a)
        self._sealed_changed(a)

    # ---------------------------------------------------------------- single entries

    def remove(self, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Remove single entries, each the first of its time that has some value and does not leave yet.

        Args:
            times: int64 (m,), sorted.
            column: the number of the column that tells entries apart, 1 or more.
            values: m values of that column.

        Returns:
            which of them were there, bool (m,).
        """
        found = np.zeros(len(times), np.bool_)
        hits = self._search(times, column, values, found, True)
        removed = len(hits.rows)
        if not removed:
            return found
        if removed == self._len:
            self._clear()
            return found
        later, gone = self._parted(hits)
        kept, joined = self._plan(gone)
        self._fetch_named(hits.positions, joined)
        self._answers = None
        if len(later.rows):
            self._remove_later(later)
        of_tail = gone.pop(self._directory.tail, None)
        if of_tail is not None:
            self._remove_of_tail(np.array(of_tail))
        if gone:
            self._remove_rows(gone, kept, joined)
        self._len -= removed
        self._find_newest()
        return found

    def correct(self, times: Array, column: int, values: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Give single entries other values: each is the first of its time that has some value. They stay in place.

        Args:
            times, column, values: as in `remove`.
            columns: the new values: an array (m,) per column after the time. Of two for one entry the later counts.

        Returns:
            which of them were there, bool (m,).
        """
        found = np.zeros(len(times), np.bool_)
        hits = self._search(times, column, values, found, False)
        if len(hits.rows):
            self._fetch_named(hits.positions, set())
            same = columns[column - 1].tolist() == list(values)  # as a rule: then that column stays as it is
            given = {i: each[hits.numbers] for i, each in enumerate(columns, 1) if i != column or not same}
            self._give(hits.positions, hits.rows, given)
        return found

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Load what `remove` and `correct` of these entries read, so that they cannot fail afterwards."""
        if self._directory.loads:
            hits = self._search(times, column, values, np.zeros(len(times), np.bool_), True)
            self._fetch_named(hits.positions, self._plan(_by_block(hits))[1])

    def _parted(self, hits: Hits) -> tuple[Hits, dict[int, list[int]]]:
        """The rows that leave when somebody reads their blocks, and by position those that leave at once.

        At once: of the head and the tail, of blocks that lose their first or last row, and of those that become small.
        """
        if not self._stale.defers or not len(hits.rows):
            return hits.where(np.zeros(len(hits.rows), np.bool_)), _by_block(hits)
        directory, least = self._directory, max(self._layout.block // _SMALL, 1)
        if len(hits.rows) == 1:
            position = hits.positions.item(0)
            waits = directory.head < position < directory.tail and hits.rows.item(0) > 0 and not hits.last.item(0)
            if waits and directory.count(position) > least:
                return hits, {}
            return hits.where(np.zeros(1, np.bool_)), _by_block(hits)
        starts = starts_of_runs(hits.positions)
        lengths, positions = lengths_of_segments(starts, len(hits.rows)), hits.positions[starts]
        later = (positions > directory.head) & (positions < directory.tail)
        later[later] = directory.counts[positions[later] - directory.base] - lengths[later] >= least
        later &= (hits.rows[starts] > 0) & ~hits.last[starts + lengths - 1]
        each = np.repeat(later, lengths)
        return hits.where(each), _by_block(hits.where(~each))

    def _remove_later(self, hits: Hits) -> None:
        """Note rows of blocks as gone; they are out of all counts at once."""
        directory = self._directory
        starts = starts_of_runs(hits.positions)
        positions, lengths, rows = (
            hits.positions[starts],
            lengths_of_segments(starts, len(hits.rows)),
            hits.rows.tolist(),
        )
        for position, a, k in zip(positions.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            directory.edit(position, False).lose(rows[a : a + k])
        self._stale.lose(positions, lengths)
        self._sealed.touch(positions.item(0))

    def _plan(self, gone: Mapping[int, Sized]) -> tuple[dict[int, int], set[int]]:
        """How many rows the sealed blocks keep that lose some, and which are to be joined with the one behind."""
        directory = self._directory
        kept = {p: directory.count(p) - len(rows) for p, rows in gone.items() if p < directory.tail}
        if directory.head in kept:
            kept[directory.head] -= self._skip
        return kept, self._joined(kept)

    def _fetch_named(self, positions: Array, joined: set[int]) -> None:
        """Load the blocks at these positions, those behind `joined`, and what their ancestors are combined from."""
        directory = self._directory
        if directory.loads:
            sealed = np.unique(positions[positions < directory.tail])
            nodes = self._levels.nodes_of_refresh(sealed) if directory.has_external else ()
            self._levels.fetch(sorted({*sealed.tolist(), *(position + 1 for position in joined)}), nodes)

    def _joined(self, kept: dict[int, int]) -> set[int]:
        """The blocks that are to be joined with the one behind them: they keep some rows, but few."""
        directory, block, joined = self._directory, self._layout.block, set[int]()
        for position, rows in sorted(kept.items()):
            behind = position + 1
            if 0 < rows < block // _SMALL and behind < directory.tail and position - 1 not in joined:
                others = kept.get(behind, directory.count(behind))
                if others and rows + others <= block:
                    joined.add(position)
        return joined

    def _remove_rows(self, gone: Mapping[int, list[int]], kept: Mapping[int, int], joined: set[int]) -> None:
        """Remove rows of sealed blocks at once."""
        directory, layout = self._directory, self._layout
        moving = [position for position in sorted(gone) if position in joined or not kept[position]]
        moving = [position for position in moving if position - 1 not in joined]  # it goes with the one before it
        others = [p for p in sorted(gone) if kept[p] and p not in joined and p - 1 not in joined]
        if moving:
            self._levels.truncate(moving[0])  # first: else ancestors of the others would be made of what moves
        if others:
            lost = [self._rewrite(position, self._kept_rows(position, gone[position])) for position in others]
            self._stale.lose(np.array(others), np.array(lost))
        for position in reversed(moving):  # from the newest to the oldest, so that positions stay as they are
            columns = list[list[Array]]()
            if position in joined:
                parts = [self._kept_rows(each, gone.get(each, [])) for each in (position, position + 1)]
                columns = [[np.concatenate(both) for both in zip(*parts, strict=True)]]
            directory.exchange(position, 1 + len(columns), columns, [layout.reduce(each) for each in columns])
        self._sealed_changed(min(gone))

    def _kept_rows(self, position: int, rows: list[int]) -> list[Array]:
        """The rows of a sealed block that neither leave now nor have left."""
        block, skip = self._searched(position), self._skip if position == self._directory.head else 0
        return without(block.columns, skip, block.rows, [*rows, *(block.gone or [])])

    # ---------------------------------------------------------------- what both need

    def _rewrite(self, position: int, columns: list[Array]) -> int:
        """Give a sealed block fewer rows, at least one; return how many it lost. Its count and partials stay."""
        directory = self._directory
        block = directory.edit(position)
        block.columns, block.rows = columns, len(columns[0])
        directory.respan(position, columns[0].item(0), columns[0].item(-1))
        return directory.count(position) - block.rows

    def _sealed_changed(self, first: int) -> None:
        """Sealed blocks from `first` on have changed; if that is the head, its evicted rows are gone."""
        self._sealed.touch(first)
        if first == self._directory.head:
            self._head.reset()
            self._skip = self._split = 0

    def _remove_of_tail(self, rows: Array) -> None:
        """Remove some rows of the open block."""
        self._tail.remove(rows)
        if not self._has_blocks():
            self._split = self._skip  # the head's fold would have them
            self._head.reset()

    def _find_newest(self) -> None:
        tail, directory = self._tail, self._directory
        if tail.rows:
            self._newest = tail.columns[0].item(tail.rows - 1)
        else:
            self._newest = directory.last(directory.tail - 1) if self._has_blocks() else BEFORE_ALL

    # ---------------------------------------------------------------- evicting at the old end

    def _cut(self, position: int, row: int, count: int) -> None:
        """Evict the `count` entries before row `row` of the block at `position` (not the end of that block)."""
        self._answers = None
        directory, head = self._directory, self._head
        if position != directory.head:
            head.reset()
            self._split = 0
            directory.advance(position)
        if row and position < directory.tail:
            head.rows = directory.count(position)
        self._skip = row
        self._len -= count

    def _clear(self) -> int:
        count = self._len
        self._answers = None
        self._directory.advance(self._directory.tail)
        self._sealed.forget()
        self._head.reset()
        self._tail.clear()
        self._skip = self._split = self._len = 0
        self._newest = BEFORE_ALL
        return count


def _by_block(hits: Hits) -> dict[int, list[int]]:
    """By the position of their block the rows of hits."""
    rows = dict[int, list[int]]()
    for position, row in zip(hits.positions.tolist(), hits.rows.tolist(), strict=True):
        rows.setdefault(position, []).append(row)
    return rows
