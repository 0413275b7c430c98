"""Removing entries from the middle of a forest; the drawing shows a range of time, and single entries.

    range      [ 1 2 3 | x ] [ x x x x ] [ x | 7 8 9 ]      the two ends become one block, what lies between goes
                        ^ start           ^ end
    single     [ 1 x 3 4 5 ] [ 5 6 7 8 9 ] [ 9 x x 12 ]     each block that changed is folded again, once
                                             ^ less than a quarter: joined with the block behind it

Nothing is subtracted. A block that loses rows is folded again from the rows that are left, and so are its ancestors. So
every aggregate can lose entries, also one that has no inverse, and floats round as if the entries had never come.

Range: O(B + log n), and O(blocks behind) where a whole block goes.  m single entries in k blocks: O(m + k (B + log n)),
the ancestors in one pass over the levels.  A block is joined with the next after B / 4 removals at the earliest, unless
it was small from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from sash_engine.forest.reader import BEFORE_ALL
from sash_engine.forest.segments import starts_of_runs
from sash_engine.forest.writer import BlockWriter
from sash_engine.monoids.base import Array

__all__ = ["BlockRemover"]

_SMALL = 4
"""A block with less than this part of a full one is joined with the block behind it."""


class BlockRemover(BlockWriter):
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
            self._rewrite(a, kept)
            self._levels.refresh(np.array([a]))
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
        gone = {position: list(rows) for position, rows in self._search(times, column, values, found, True).items()}
        removed = sum(map(len, gone.values()))
        if not removed:
            return found
        if removed == self._len:
            self._clear()
            return found
        kept, joined = self._plan(gone)
        self._fetch_named(gone, joined)
        self._answers = None
        of_tail = gone.pop(self._directory.tail, None)
        if of_tail is not None:
            self._remove_of_tail(np.array(sorted(of_tail)))
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
        rows = self._search(times, column, values, found, False)
        self._fetch_named(rows, set())
        if rows:
            self._give(rows, columns)
        return found

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Load what `remove` and `correct` of these entries read, so that they cannot fail afterwards."""
        if self._directory.loads:
            rows = self._search(times, column, values, np.zeros(len(times), np.bool_), True)
            self._fetch_named(rows, self._plan(rows)[1])

    def _search(
        self, times: Array, column: int, values: Sequence[Any], found: Array, once: bool
    ) -> dict[int, dict[int, int]]:
        """Find the rows that are named; `found` is set where there is one. Changes nothing.

        Args:
            once: whether a row is found once; else as often as it is named.

        Returns:
            by the position of its block each row, with the number of the last one that names it.
        """
        directory, rows = self._directory, dict[int, dict[int, int]]()
        if not self._len:
            return rows
        _, last = directory.spans(directory.head, directory.tail)
        at = directory.head + last.searchsorted(times, "left")
        wanted = np.arange(len(times))
        while len(wanted):
            starts = starts_of_runs(at[wanted])
            if directory.loads:
                directory.fetch(at[wanted][starts].tolist())
            missing = list[int]()
            for some in np.split(wanted, starts[1:]):
                position = int(at[some[0]])
                block = self._tail if position == directory.tail else directory.block(position)
                skip = self._skip if position == directory.head else 0
                held, names = block.columns[0][skip : block.rows], block.columns[column]
                first = (held.searchsorted(times[some], "left") + skip).tolist()
                stop = (held.searchsorted(times[some], "right") + skip).tolist()
                taken, run, index = rows.pop(position, {}), (0, 0), dict[Any, list[int]]()
                for i, a, b in zip(some.tolist(), first, stop, strict=True):
                    if (a, b) != run:
                        run, index = (a, b), {}
                        for row, name in enumerate(names[a:b].tolist(), a):
                            if not once or row not in taken:
                                index.setdefault(name, []).append(row)
                    same = index.get(values[i])
                    if same:
                        taken[same.pop(0) if once else same[0]] = i
                        found[i] = True
                    elif b == block.rows and position < directory.tail:
                        missing.append(i)  # entries of its time go on in the next block
                if taken:
                    rows[position] = taken
            wanted = np.array(missing, np.int64)
            at[wanted] += 1
        return rows

    def _plan(self, gone: Mapping[int, Sized]) -> tuple[dict[int, int], set[int]]:
        """How many rows the sealed blocks keep that lose some, and which are to be joined with the one behind."""
        directory = self._directory
        kept = {p: directory.count(p) - len(rows) for p, rows in gone.items() if p < directory.tail}
        if directory.head in kept:
            kept[directory.head] -= self._skip
        return kept, self._joined(kept)

    def _fetch_named(self, rows: Iterable[int], joined: set[int]) -> None:
        """Load the blocks of these positions, those behind `joined`, and what their ancestors are combined from."""
        directory = self._directory
        sealed = sorted(position for position in rows if position < directory.tail)
        if directory.loads and sealed:
            nodes = self._levels.nodes_of_refresh(np.array(sealed)) if directory.has_external else ()
            self._levels.fetch(sorted({*sealed, *(position + 1 for position in joined)}), nodes)

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

    def _remove_rows(self, gone: dict[int, list[int]], kept: dict[int, int], joined: set[int]) -> None:
        """Remove rows of sealed blocks, from the newest to the oldest, so that positions stay as they are."""
        directory, levels, layout = self._directory, self._levels, self._layout
        lowest = directory.tail
        rewritten = list[int]()
        for position in sorted(gone, reverse=True):
            if position - 1 in joined:
                continue  # it goes with the one before it
            columns = self._kept_rows(position, gone[position])
            if position in joined:
                more = self._kept_rows(position + 1, gone.get(position + 1, []))
                columns = [np.concatenate(both) for both in zip(columns, more, strict=True)]
                directory.exchange(position, 2, [columns], [layout.reduce(columns)])
                lowest = position
            elif kept[position]:
                self._rewrite(position, columns)
                rewritten.append(position)
            else:
                directory.exchange(position, 1, [], [])
                lowest = position
        levels.truncate(lowest)
        if rewritten:
            levels.refresh(np.array(rewritten[::-1]))
        self._sealed_changed(min(gone))

    def _kept_rows(self, position: int, rows: list[int]) -> list[Array]:
        """The rows of a sealed block that neither leave now nor have left."""
        block = self._directory.block(position)
        first = self._skip if position == self._directory.head else 0
        if len(rows) == 1:
            (row,) = rows
            return [np.concatenate((column[first:row], column[row + 1 : block.rows])) for column in block.columns]
        stay = np.ones(block.rows, np.bool_)
        stay[:first] = False
        stay[rows] = False
        return [column[: block.rows][stay] for column in block.columns]

    # ---------------------------------------------------------------- what both need

    def _rewrite(self, position: int, columns: list[Array]) -> None:
        """Give a sealed block other rows, at least one; its ancestors are not refreshed."""
        directory = self._directory
        block = directory.edit(position)
        block.columns, block.rows = columns, len(columns[0])
        directory.respan(position, columns[0].item(0), columns[0].item(-1))
        directory.change(position, block.rows, self._layout.reduce(columns))

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
