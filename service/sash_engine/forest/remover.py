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

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from sash_engine.forest.block import without
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
        gone = {position: sorted(rows) for position, rows in self._search(times, column, values, found, True).items()}
        removed = sum(map(len, gone.values()))
        if not removed:
            return found
        if removed == self._len:
            self._clear()
            return found
        deferred = self._deferred(gone)
        at_once = {position: rows for position, rows in gone.items() if position not in deferred}
        kept, joined = self._plan(at_once)
        self._fetch_named(gone, joined)
        self._answers = None
        if deferred:
            self._remove_later(deferred)
        of_tail = at_once.pop(self._directory.tail, None)
        if of_tail is not None:
            self._remove_of_tail(np.array(of_tail))
        if at_once:
            self._remove_rows(at_once, kept, joined)
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
        if not self._len or not len(times):
            return rows
        _, last = directory.spans(directory.head, directory.tail)
        at = directory.head + last.searchsorted(times, "left")
        if directory.loads:
            directory.fetch(np.unique(at).tolist())
        head, tail, before = directory.head, directory.tail, None
        unclear, seen = list[int](), list[int]()
        asked = times.tolist()
        for i, (time, after, position) in enumerate(zip(asked, [*asked[1:], None], at.tolist(), strict=True)):
            if time in (before, after):
                unclear.append(i)
                before = time
                continue
            before = time
            block = self._tail if position == tail else directory.block(position)
            columns, stop = block.columns, block.rows
            held = columns[0]
            row = bisect_left(held.data, time, self._skip if position == head else 0, stop)
            if row == stop or held.item(row) != time:
                continue
            if row + 1 == stop or held.item(row + 1) == time:
                unclear.append(i)  # one of several of its time, or the next block may have more of them
            elif columns[column].item(row) == values[i]:
                rows.setdefault(position, {})[row] = i
                seen.append(i)
        found[seen] = True
        if unclear:
            self._search_runs(times, at, np.array(unclear), column, values, found, once, rows)
        return rows

    def _search_runs(
        self,
        times: Array,
        at: Array,
        wanted: Array,
        column: int,
        values: Sequence[Any],
        found: Array,
        once: bool,
        rows: dict[int, dict[int, int]],
    ) -> None:
        """Find rows where several have a time, in a block or in the next ones; see `_search`.

        Args:
            at: the position of the block to begin with, by number of the name.
            wanted: numbers of names, increasing. All names of one time are among them.
            rows: gets what is found.
        """
        directory = self._directory
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

    def _deferred(self, gone: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """The blocks whose rows leave when somebody reads them, of those that lose sorted rows.

        Others lose them at once: the head and the tail, blocks that lose their first or last row, or become small.
        """
        directory, least = self._directory, max(self._layout.block // _SMALL, 1)
        head, tail, base, counts = directory.head, directory.tail, directory.base, directory.counts
        if not self._stale.defers:
            return {}
        found = {}
        for position, rows in gone.items():
            if head < position < tail and rows[0]:
                count = counts.item(position - base)
                if rows[-1] < count - 1 and count - len(rows) >= least:
                    found[position] = rows
        return found

    def _remove_later(self, gone: Mapping[int, list[int]]) -> None:
        """Note rows of blocks as gone; they are out of all counts at once."""
        directory = self._directory
        for position, rows in gone.items():
            directory.edit(position).lose(rows)
        blocks = np.array(sorted(gone))
        self._stale.lose(blocks, np.array([len(gone[position]) for position in blocks.tolist()]))
        self._sealed.touch(blocks.item(0))

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
        if directory.loads:
            sealed = sorted(position for position in rows if position < directory.tail)
            nodes = self._levels.nodes_of_refresh(np.array(sealed, np.int64)) if directory.has_external else ()
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

    def _remove_rows(self, gone: Mapping[int, list[int]], kept: Mapping[int, int], joined: set[int]) -> None:
        """Remove rows of sealed blocks at once."""
        directory, layout = self._directory, self._layout
        moving = [position for position in sorted(gone) if position in joined or not kept[position]]
        moving = [position for position in moving if position - 1 not in joined]  # it goes with the one before it
        others = [p for p in sorted(gone) if kept[p] and p not in joined and p - 1 not in joined]
        if others:
            lost = [self._rewrite(position, self._kept_rows(position, gone[position])) for position in others]
            self._stale.lose(np.array(others), np.array(lost))
        if moving:
            for position in reversed(moving):  # from the newest to the oldest, so that positions stay as they are
                columns = list[list[Array]]()
                if position in joined:
                    parts = [self._kept_rows(each, gone.get(each, [])) for each in (position, position + 1)]
                    columns = [[np.concatenate(both) for both in zip(*parts, strict=True)]]
                directory.exchange(position, 1 + len(columns), columns, [layout.reduce(each) for each in columns])
            self._levels.truncate(moving[0])
        self._sealed_changed(min(gone))

    def _kept_rows(self, position: int, rows: list[int]) -> list[Array]:
        """The rows of a sealed block that neither leave now nor have left."""
        block = self._directory.block(position)
        return without(block.columns, self._skip if position == self._directory.head else 0, block.rows, rows)

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
