"""The blocks of a forest and what reads them; the drawing is in forest.py.

A *place* is the position of a block and a row in it. Reading starts from two places: blocks between them are folded
from the nodes of the levels, and rows of the two end blocks from their columns.

Query: amortised O(1).  Range query: O(B + log n).  Series: see series.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.forest.cold import Cold
from sash_engine.forest.directory import Directory
from sash_engine.forest.external import level_monoids
from sash_engine.forest.head_tail import Head, OpenTail, Tail
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.forest.row_slices import RowSlice
from sash_engine.forest.sealed_fold import SealedFold
from sash_engine.forest.segments import starts_of_runs
from sash_engine.forest.series import Rows, answers_of, fold_buckets, free_steps
from sash_engine.forest.splicer import Splicer
from sash_engine.forest.stale import Stale
from sash_engine.forest.tiered import TieredDirectory
from sash_engine.kernels import first_after, first_from
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished

__all__ = ["BEFORE_ALL", "BlockReader"]

BEFORE_ALL = -(2**63)
"""The time of the newest entry where there is none."""


class BlockReader:
    """The entries of one key in blocks, and what is asked about them.

    Args:
        layout: columns, aggregates and block size.
        cold: keeps the sealed blocks that are not in memory; None keeps all blocks in memory.
    """

    __slots__ = (
        "_answers",
        "_cold",
        "_directory",
        "_freshen",
        "_head",
        "_layout",
        "_len",
        "_levels",
        "_newest",
        "_pending_nodes",
        "_sealed",
        "_skip",
        "_splicer",
        "_split",
        "_stale",
        "_tail",
        "_tiered",
    )

    def __init__(self, layout: Layout, cold: Cold | None = None) -> None:
        self._cold = cold
        monoids = level_monoids(layout.monoids, cold)
        self._tiered = None if cold is None else TieredDirectory(monoids, cold)
        self._directory = Directory(monoids) if self._tiered is None else self._tiered
        self._levels = Levels(self._directory, monoids)
        if self._tiered is not None:  # by functions that can be referred to weakly: methods of compiled classes cannot
            self._pending_nodes = partial(self._levels.pending_blocks)
            self._tiered.above = ref(self._pending_nodes)
        self._tail = OpenTail(layout) if layout.open_row else Tail(layout)
        self._use(layout)
        self._skip = 0  # evicted rows at the front of the first block
        self._split = 0  # where the tail holds the head: rows before belong to the head's fold
        self._len = 0
        self._newest = BEFORE_ALL

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        self._sealed = SealedFold(self._directory, self._levels, layout)
        self._stale = Stale(self._directory, self._levels, layout)
        if self._tiered is not None:
            self._freshen = partial(self._stale.freshen)
            self._tiered.freshen = ref(self._freshen)
        self._splicer = Splicer(self._directory, self._levels, layout, self._stale)
        self._head = Head(layout)
        self._answers: list[Any] | None = None

    def __len__(self) -> int:
        return self._len

    @property
    def oldest(self) -> int | None:
        """Time of the oldest entry, in ticks; None where empty."""
        if not self._len:
            return None
        if not self._skip and self._has_blocks():
            return self._directory.first(self._directory.head)
        columns = self._columns(self._directory.head)
        return columns[0].item(self._skip)  # type: ignore[no-any-return]

    @property
    def newest(self) -> int | None:
        """Time of the newest entry, in ticks; None where empty."""
        return self._newest if self._len else None

    # ---------------------------------------------------------------- all entries

    # `part`, an argument of many methods, is a layout of some of the slots, in increasing order, which alone are folded
    # and answered; None: the forest's own.

    def query(self, part: Layout | None = None) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        if part is not None and part is not self._layout:
            return part.lower(self._len, self.totals(part))
        answers = self._answers
        if answers is None:
            answers = self._answers = self._layout.lower(self._len, self.totals())
        return answers

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries, one per slot."""
        if part is not None and len(part.slots) < len(self._layout.monoids):
            return self._totals_of(part) if part.is_small_part else list(map(self.totals().__getitem__, part.slots))
        directory, tail, skip = self._directory, self._tail, self._skip
        position = directory.head
        if position == directory.tail:
            return self._totals_of_tail()
        if directory.stale:
            self._stale.freshen()
        if not skip:
            whole: list[Partial] = self._sealed.fold(position)  # type: ignore[assignment]
            return (tail.fold(0, whole) if tail.rows else whole)[:]
        front = self._head.known(skip)
        rest = tail.fold(0, self._sealed.fold(position + 1, (position,) if front is None else ()))
        if front is None:
            block = directory.block(position)
            front = self._head.fold(block.columns, skip, block.rows)
        return self._layout.combine(front, rest)

    def _totals_of(self, part: Layout) -> list[Partial]:
        """The partials of some slots. The others are not folded, so that nothing is kept for the next question."""
        if not self._len:
            return list(part.identities)
        directory = self._directory
        if directory.loads:
            self._fetch_ends(BEFORE_ALL, self._newest, part)
        return self._fold_rows(directory.head, self._skip, directory.tail, self._tail.rows, part)[1]

    def _totals_of_tail(self) -> list[Partial]:
        tail, skip = self._tail, self._skip
        if not skip:
            return tail.fold(0, None)[:]
        if skip >= self._split:
            self._split = tail.closed()
            self._head.reset()
        front = self._head.known(skip)
        if front is None:
            front = self._head.fold(tail.columns, skip, self._split)
        return self._layout.combine(front, tail.fold(self._split, None))

    # ---------------------------------------------------------------- ranges

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(start, end, part)
        return entries, (self._layout if part is None else part).lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        if part is not None and len(part.slots) == len(self._layout.monoids):
            part = None
        if self._len and start <= end:
            if self._directory.loads:
                self._fetch_ends(start, end, part)
            a, first_row = self._locate(start, "left")
            b, stop_row = self._locate(end, "right")
            if a < b or first_row < stop_row:
                if end >= self._newest and first_row == self._skip and a == self._directory.head:
                    return self._len, self.totals(part)
                return self._fold_rows(a, first_row, b, stop_row, part)
        return 0, list((self._layout if part is None else part).identities)

    def _fetch_ends(self, start: int, end: int, part: Layout | None) -> None:
        """Load those of the blocks at the ends of a range that it will read."""
        directory = self._directory
        a, b = directory.ending(start, "left"), directory.ending(end, "right")
        inside = [a] if a < directory.tail and start > directory.first(a) else []
        whole = part is None and a == directory.head and not inside and end >= self._newest  # it has its fold
        if a == directory.head and self._skip and not whole:
            inside.append(a)
        between = () if whole or not directory.has_external else self._levels.nodes_of_fold(a + bool(inside), b)
        if b < directory.tail and end >= directory.first(b):
            inside.append(b)
        self._levels.fetch(inside, between, None if part is None else part.slots)

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many time ranges at once, which may overlap: a chart's points.

        Args:
            starts: int64 (k,), the first time of each range.
            stops: int64 (k,), the time behind the last one: start <= time < stop.

        Returns:
            the number of entries in each range, int64 (k,), and per name of the layout an array (k,) of answers;
            it is of dtype object where the answers are, or where a range has no answer (None).

        Costs O(k log n + entries in narrow ranges): of a range wider than some blocks most entries are not read.
        """
        return finished(self.series_steps(starts, stops))

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """As `series`, in steps; no entry may come or leave from the first to the last."""
        entries, filled, partials = yield from self.fold_steps(starts, stops, part)
        answers = yield from answers_of(self._layout if part is None else part, partials, filled, entries)
        yield from free_steps(partials, answers)
        return entries, answers

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many time ranges, as `series_steps` does: rows (k,), which ranges have any, and their partials."""
        rows = Rows(self._directory, self._tail, self._skip)
        layout = self._layout if part is None else part
        return fold_buckets(layout, rows, partial(self._fold_each, layout), starts, stops)

    def sum_through(self, time: int | None, column: int, slot: int) -> int:
        """The sum of an int64 column over the entries with a time <= `time`; None: over all entries.

        O(B + blocks): of whole blocks it adds the partials of `slot`, which must be the sum of the column.
        """
        directory = self._directory
        a, first_row = directory.head, self._skip
        b, stop_row = directory.tail, self._tail.rows
        if time is not None and time < self._newest:
            b, stop_row = self._locate(time, "right")
        if a == b:
            return int(self._columns(a)[column][first_row:stop_row].sum())
        total = 0
        if first_row:
            block = directory.block(a)
            total += int(block.columns[column][first_row : block.rows].sum())
            a += 1
        if a < b:
            self._stale.freshen()
            _, partials = directory.slices(a, b)
            total += int(partials[slot][0].sum())
        if stop_row:
            total += int(self._columns(b)[column][:stop_row].sum())
        return total

    # ---------------------------------------------------------------- rows

    def columns(self) -> list[Array]:
        """All entries as columns (copies): times, then one array per field."""
        rows = Rows(self._directory, self._tail, self._skip)
        return rows.columns([(self._skip, rows.total)], range(len(self._layout.dtypes)))

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """The entries with start <= time <= end (None: no bound) as they are now, in order, to be read later.

        Loads the blocks at the ends of the range, and those that have deferred rows.
        """
        if not self._len:
            return []
        directory, tail = self._directory, self._tail
        a, row = (directory.head, self._skip) if start is None else self._locate(start, "left")
        b, stop = (directory.tail, tail.rows) if end is None else self._locate(end, "right")
        places = []
        for position in range(a, min(b + 1, directory.tail)):
            first = row if position == a else 0
            behind = stop if position == b else directory.count(position)
            if first < behind:
                places.append((position, first, behind))
        slices = directory.row_slices(places)
        if b == directory.tail:
            first = row if a == b else 0
            if first < stop:
                slices.append(RowSlice.copied(tail.columns, first, stop))
        return slices

    def find(self, times: Array) -> tuple[Array, list[Array]]:
        """Find the entries that have some times, the first of each.

        Args:
            times: int64 (k,), k >= 1, strictly increasing.

        Returns:
            whether there is an entry of each time, bool (k,); and per field the values of those entries.
        """
        rows = Rows(self._directory, self._tail, self._skip)
        at = rows.locate(times)
        there = rows.locate(times + 1) > at
        runs = _runs(at[there]) if there.any() else []
        return there, rows.columns(runs, range(1, len(self._layout.dtypes)))[1:]

    def count_after(self, time: int) -> int:
        """How many entries are newer than `time`; loads at most the block that has entries around it, and no node."""
        if not self._len or time >= self._newest:
            return 0
        directory = self._directory
        position, row = self._locate(time, "right")
        return directory.total(position, directory.tail) + self._tail.rows - row

    def neighbours(self, time: int) -> tuple[int | None, int | None]:
        """The newest time of an entry that is <= `time`, and the oldest that is newer; None where there is none."""
        directory = self._directory
        position, row = self._locate(time, "right")
        in_tail, in_head = position == directory.tail, position == directory.head
        older = None if in_head else directory.last(position - 1)
        if row > (self._skip if in_head else 0):
            older = self._columns(position)[0].item(row - 1)
        if in_tail and row == self._tail.rows:
            return older, None
        return older, self._columns(position)[0].item(row) if in_tail or row else directory.first(position)

    # ---------------------------------------------------------------- places: a block's position and a row in it

    def _locate(self, time: int, side: str) -> tuple[int, int]:
        """The place of the first entry with a time >= `time` ("left") or > `time` ("right").

        The end is row `rows` of the tail, at position `tail`.
        """
        directory = self._directory
        position = directory.ending(time, side)
        skip = self._skip if position == directory.head else 0
        if position == directory.tail:
            block: Block = self._tail
        else:
            first = directory.first(position)
            if time < first or (time == first and side == "left"):
                return position, skip
            block = directory.block(position)
        find = first_from if side == "left" else first_after
        return position, find(block.columns[0], skip, block.rows, time)

    def _count(self, position: int, row: int) -> int:
        """Entries before a place."""
        head = self._directory.head
        return row - self._skip + (self._levels.count(head, position) if position > head else 0)

    def _fold_rows(
        self, a: int, first_row: int, b: int, stop_row: int, part: Layout | None = None
    ) -> tuple[int, list[Partial]]:
        """Count and fold from place (a, first_row) up to place (b, stop_row), which is not before it."""
        layout, entries = self._layout if part is None else part, stop_row - first_row
        if a == b:
            return entries, layout.reduce_rows(self._columns(a), first_row, stop_row)
        older = newer = None
        if first_row:
            block = self._directory.block(a)
            older = layout.reduce_rows(block.columns, first_row, block.rows)
            entries += block.rows
            a += 1
        if stop_row:
            newer = layout.reduce_rows(self._columns(b), 0, stop_row)
        if a < b:
            if self._directory.stale:
                self._stale.freshen()
            count, total = self._levels.fold(a, b, older, newer, None if part is None else part.slots)
            return entries + count, total
        if older is None or newer is None:
            return entries, older or newer or []
        return entries, layout.combine(older, newer)

    def _fold_each(self, part: Layout, places: Sequence[tuple[int, int, int, int]]) -> list[list[Partial]]:
        """Fold between each two places, as `_fold_rows` does; load everything that is missing at once."""
        if self._directory.has_external:
            blocks, nodes = set(), set()
            for a, first_row, b, stop_row in places:
                blocks |= {a} if first_row else set()
                blocks |= {b} if stop_row else set()
                nodes.update(self._levels.nodes_of_fold(a + bool(first_row), b))
            self._levels.fetch(sorted(blocks), sorted(nodes), part.slots)
        return [self._fold_rows(*place, part)[1] for place in places]

    def _columns(self, position: int) -> list[Array]:
        directory = self._directory
        return self._tail.columns if position == directory.tail else directory.block(position).columns

    def _has_blocks(self) -> bool:
        return self._directory.head < self._directory.tail


def _runs(rows: Array) -> list[tuple[int, int]]:
    """Increasing row numbers as runs start..stop."""
    firsts = starts_of_runs(rows - np.arange(len(rows)))
    return [(int(rows[a]), int(rows[b - 1]) + 1) for a, b in pairwise([*firsts.tolist(), len(rows)])]
