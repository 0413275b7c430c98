"""The columnar engine: an AMTA forest over column blocks. One forest holds the entries of one key.

     level 1        o       o             partials of pairs (levels.py), the fold of the whole
     level 0      o   o   o   o   o       blocks kept up to date by a stack and a pair (folds.py)
                 [x ] [ ] [ ] [ ] [ ] [..
      skip rows --^head block          ^tail block: open
                  (folds.py)             (tail.py)

A *place* is the position of a block and a row in it. Reading starts from two places: blocks between them are folded
from the nodes of the levels, and rows of the two end blocks from their columns. A series folds many ranges (series.py).

Entries that are newer than all others go to the tail, which is sealed when it is full; bulks of half a block and more
become blocks of their own, without a copy. Older entries belong into sealed blocks:

    newcomers    4  4   17        52 53                 sorted; each block owns the times from its first on
                 |  |    |         |  |
    blocks     [ 1..9 ] [ 10..31 ] [ 40..90 ]           up to twice the block size, then cut into even pieces

Where every aggregate commutes, many newcomers spread over many blocks are *deferred*. Their partials are combined into
those of the blocks and their ancestors at once. Their rows are merged into the columns when the block is read; until
then the bulk waits as a whole (inbox.py). Otherwise each block is spliced and folded again, and all ancestors follow in
one pass over the levels. Newcomers of half a block or more that go between the same two rows become blocks of their
own, without copying; the rows of the directory behind them move on.

Entries leave at the old end, or from the middle: a range of time, or single entries that are named (finder.py).

    range      [ 1 2 3 | x ] [ x x x x ] [ x | 7 8 9 ]      the two ends become one block, what lies between goes
                        ^ start           ^ end
    single     [ 1 x 3 4 5 ] [ 5 6 7 8 9 ] [ 9 x x 12 ]     noted; each block is folded again, once, when asked for
                                             ^ less than a quarter: joined with the block behind it, at once

Nothing is subtracted. A block that loses rows is folded again from the rows that are left, and so are its ancestors. So
every aggregate can lose entries, also one that has no inverse, and floats round as if the entries had never come. The
folding waits for the next question (levels.py); where partials are in a tier it is done at once.

A row is an entry, or where the layout is one of panes, a pane (pane_layout.py): then there is one row of a time, a
second pane of that time is combined with it, and what is counted are the entries that the panes fold. The newest pane
is the last row of the tail and changes in place.

Insert, in order: a row in the tail; amortised O(1).  Insert, out of order: a splice in one block, O(B + log n).
Bulk insert of m: O(m), a few vectorised passes. Out of order, in k blocks: O(m + k log n) deferred, and
O(m + k (B + log n)) spliced. A cut, and blocks of their own, also rebuild the levels behind: O(blocks behind).
Evict, bulk evict: O(log n), whatever the number of entries.
Remove a range: O(B + log n), and O(blocks behind) where a whole block goes.  m single entries in k blocks: O(m log B +
k log n), and O(k B) with the next question.  A block is joined with the next after B / 4 removals at the earliest,
unless it was small from the start.
Query: amortised O(1).  Range query: O(B + log n).  Space: the raw columns and 2 n / B partials.
Requires: associativity; deferred splices only where every aggregate commutes.
Source: Villalba, Berral, Carrera, TPDS 2019 (AMTA); the head's scan and the small window are Two-Stacks Lite
(Tangwongsan, Hirzel, Schneider, VLDBJ 2021).  Differs: see `service/ARCHITECTURE.md`.

No I/O, no threads, no clock, no randomness. Arrays that are passed in are handed over: the forest keeps views of
them and never writes to them, and nobody else may write to them.

Blocks may be kept in a tier (cold.py) and loaded when their rows are read. So may the partials of sketches and
collections, at all levels (external.py), which are loaded when they are folded; others are in memory for all blocks:

    in order, evict, whole window     nothing, but the block that the head lands in; at once with it, as the head moves
                                      on, large partials of the next blocks to be evicted and of O(log n) nodes
    range query                       its two end blocks and large partials of its O(log n) nodes, at once
    series                            the blocks with ends in them at once, the partials of wide ranges at once, and
                                      the blocks of narrow ones at once
    out of order                      the blocks that are spliced, at once, but none for rows that are deferred; with
                                      them what their ancestors are combined from
    remove from the middle            the blocks at both ends of the range, or those of the single entries and the next
                                      of each that becomes small; what their ancestors are combined from
    a cut, other aggregates           when nodes are next read, the large partials of all blocks that moved

An operation loads all it needs before it changes anything: where loading raises, the forest is as it was. If a block is
lost or damaged, only operations that need its rows fail, until the block is evicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import lru_cache, partial
from typing import Any
from weakref import ref

import numpy as np

from sash_engine.errors import Unsupported
from sash_engine.forest.block import Block, RowSlice, without
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.directory import Directory, Exchange
from sash_engine.forest.external import inline_partials, level_monoids
from sash_engine.forest.finder import Finder, Hits
from sash_engine.forest.folds import HeadFold, SealedFold
from sash_engine.forest.image import BEFORE_ALL, ForestImage
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.forest.pane_layout import PaneLayout
from sash_engine.forest.ranges import Parts, RangeAnswers, blocks_steps
from sash_engine.forest.segments import lengths_of_segments, runs_of_numbers, starts_of_runs
from sash_engine.forest.series import Rows, answers_of, fold_buckets, free_steps
from sash_engine.forest.sliding import slid_steps
from sash_engine.forest.tail import Tail
from sash_engine.kernels import append_row, first_after, first_from, is_sorted, merge
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished

_FOLDS = 256
"""Folds of blocks that one step makes for new aggregates: 0.5 to 2 ms, or one block where partials are sketches."""

_SMALL = 4
"""A block with less than this part of a full one is joined with the block behind it."""

_PER_WIDTH = 5
"""Pieces of each width, as in ADWIN2: a piece is at most a fifth of what is newer."""


class Forest:
    """The entries of one key, sorted by (time, arrival), and their aggregates.

    Args:
        layout: columns, aggregates and block size.
        cold: where sealed blocks are kept that are not in memory; None keeps all in memory.

    Methods that read entries raise what `cold` raises where it loads: Unavailable, DataLoss.

    >>> from sash_engine.forest import Forest, Layout
    >>> from sash_engine.monoids import Sum
    >>> forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> for time, value in [(1, 10.0), (3, 30.0), (2, 20.0)]:
    ...     forest.insert(time, (value,))
    >>> forest.query(), forest.range_query(2, 3)
    ([60.0], (2, [50.0]))
    """

    __slots__ = (
        "_answers",
        "_cold",
        "_directory",
        "_head",
        "_layout",
        "_len",
        "_levels",
        "_newest",
        "_panes",
        "_pending_nodes",
        "_sealed",
        "_skip",
        "_split",
        "_tail",
    )

    def __init__(self, layout: Layout, cold: Cold | None = None) -> None:
        self._cold = cold
        self._directory = Directory(level_monoids(layout.monoids, cold), cold)
        self._levels = Levels(self._directory, layout)
        if cold is not None:  # by a function that can be referred to weakly: methods of compiled classes cannot
            self._pending_nodes = partial(self._levels.pending_blocks)
            self._directory.above = ref(self._pending_nodes)
        self._tail = Tail(layout)
        self._panes = layout if isinstance(layout, PaneLayout) else None
        self._use(layout)
        self._skip = 0  # evicted rows at the front of the first block
        self._split = 0  # where the tail holds the head: rows before belong to the head's fold
        self._len = 0
        self._newest = BEFORE_ALL

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        self._sealed = SealedFold(self._directory, self._levels, layout)
        self._head = HeadFold(layout)
        self._answers: list[Any] | None = None

    @property
    def rows(self) -> int:
        """How many rows there are: entries, or panes."""
        return self._len

    def __len__(self) -> int:
        return self._len if self._panes is None else self.totals(self._panes.counting())[0]

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
            self._levels.freshen()
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
        rows, partials = 0, None
        if self._len and start <= end:
            if self._directory.loads:
                self._fetch_ends(start, end, part)
            a, first_row = self._locate(start, "left")
            b, stop_row = self._locate(end, "right")
            if a < b or first_row < stop_row:
                if end >= self._newest and first_row == self._skip and a == self._directory.head:
                    rows, partials = self._len, self.totals(part)
                else:
                    rows, partials = self._fold_rows(a, first_row, b, stop_row, part)
        if partials is None:
            partials = list((self._layout if part is None else part).identities)
        return (rows if self._panes is None else partials[0]), partials

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
        layout = self._layout if part is None else part
        rows, filled, partials = yield from self.fold_steps(starts, stops, part)
        answers = yield from answers_of(layout, partials, filled, rows)
        yield from free_steps(partials)
        return layout.counted(rows, answers)

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many time ranges, as `series_steps` does: rows (k,), which ranges have any, and their partials."""
        layout = self._layout if part is None else part
        return fold_buckets(layout, self._all_rows(), partial(self._fold_each, layout), starts, stops)

    def answer_steps(self, out: RangeAnswers, which: Array, starts: Array, stops: Array) -> Steps[None]:
        """Answer over many ranges of time as `range_totals` folds them, in steps; see `ranges.py`.

        Args:
            out: gets the answers.
            which: int64 (m,), the numbers of the ranges there.
            starts, stops: int64 (m,): start <= time < stop.
        """
        if self._len:
            whole = partial(self.totals, out.layout)
            parts = Parts(self._directory, self._levels, self._tail, self._skip, self._newest + 1, whole, self._cold)
            yield from slid_steps(out, which, starts, stops, parts)

    def open_rows(self) -> tuple[list[Array], int, int] | None:
        """The columns of the open block, with its rows start..stop, if no row is anywhere else."""
        return None if self._has_blocks() else (self._tail.columns, self._skip, self._tail.rows)

    def block_maxima(self, slot: int) -> tuple[Array, Array, Array, Array]:
        """The times of the first and last row of each block, the open one last, how many rows it has, and its partial
        in a slot of a `Max` over an int64 column."""
        self._levels.freshen()
        directory, tail, skip = self._directory, self._tail, self._skip
        first, last = directory.spans(directory.head, directory.tail)
        counts, partials = directory.slices(directory.head, directory.tail)
        newest: Array = partials[slot][0]
        begin = skip if directory.head == directory.tail else 0
        if tail.rows == begin:
            return first, last, counts, newest
        times, values = tail.columns[0], tail.columns[self._layout.reads[slot][0]]
        return (
            np.append(first, times[begin]),
            np.append(last, times[tail.rows - 1]),
            np.append(counts, tail.rows - begin),
            np.append(newest, values[begin : tail.rows].max()),
        )

    @property
    def whole(self) -> tuple[int, int]:
        """Which of the blocks of `block_maxima` are sealed and have all their rows: first <= block < stop."""
        return int(self._skip > 0), self._directory.tail - self._directory.head

    def block_rows(self, blocks: Sequence[int], used: Iterable[int]) -> tuple[list[Array], Array]:
        """Columns of the rows of some blocks, numbered as in `block_maxima`, and how many rows each block has.

        Args:
            used: which columns; the others are of no rows.
        """
        directory, tail, found = self._directory, self._tail, list[Block]()
        positions = [directory.head + block for block in blocks if directory.head + block < directory.tail]
        directory.fetch(positions)
        found += [directory.block(position) for position in positions]
        if len(found) < len(blocks):
            found.append(tail)
        skips = [self._skip if block == 0 else 0 for block in blocks]
        columns = [column[:0] for column in tail.columns]
        each = list(zip(found, skips, strict=True))
        for i in used:
            columns[i] = np.concatenate([block.columns[i][skip : block.rows] for block, skip in each])
        return columns, np.array([block.rows - skip for block, skip in each])

    def runs_steps(self, first: Array, stop: Array, layout: Layout) -> Steps[list[Partials]]:
        """Fold runs of whole blocks, first..stop as in `block_maxima`, int64 (k,), in steps: per slot k partials."""
        head = self._directory.head
        return blocks_steps(layout, self._levels, self._directory, head + first, head + stop)

    def _all_rows(self) -> Rows:
        return Rows(self._directory, self._tail, self._skip)

    def pieces(self, slot: int) -> tuple[list[int], list[Partial]]:
        """Cut the entries into O(log n) pieces: how many entries each has, and its partial in a slot, oldest first.

        A piece has one entry, or at most a fifth of the newer entries, or is a block: the places where a change may be.

            entries   oldest                                                  newest
            pieces    [ skip.. ][    nodes of levels    ][ blocks ][ rows  |  | ||||]

        The rows of the tail, and of sealed blocks before it up to a block's worth, are cut at rows. Older entries are
        cut at blocks and nodes, whose partials are there. So it loads no block but the newest ones and a head that has
        lost rows. O(B) for the rows, and O(log n) nodes.
        Source: the exponential histogram of Datar, Gionis, Indyk, Motwani, "Maintaining stream statistics over sliding
        windows", SIAM J. Comput. 2002, as ADWIN2 uses it.  Differs: the pieces are read from the forest, and not kept.
        """
        self._levels.freshen()
        directory, levels, tail, layout = self._directory, self._levels, self._tail, self._layout
        monoid, reads = layout.monoids[slot], layout.reads[slot]
        position, head = directory.tail, directory.head
        start = self._skip_of(position)
        rows, parts = tail.rows - start, [[tail.columns[i][start : tail.rows] for i in reads]]
        while position > head and rows < layout.block:
            position -= 1
            start, block = self._skip_of(position), directory.block(position)
            parts.append([block.columns[i][start : block.rows] for i in reads])
            rows += block.rows - start
        if not rows:
            return [], []
        columns = [np.concatenate(column) for column in zip(*reversed(parts), strict=True)]
        starts = _starts(rows)
        counts: list[int] = np.diff(starts, append=rows).tolist()
        partials = monoid.unpack(monoid.reduce_segments(columns, starts))
        older_counts, older = list[int](), list[Partial]()
        if position > head and self._skip:
            block = directory.block(head)
            older_counts.append(block.rows - self._skip)
            older.append(monoid.reduce([block.columns[i][self._skip : block.rows] for i in reads]))
            head += 1
        for i, index in reversed(levels.widening(head, position, _PER_WIDTH)):
            older_counts.append(levels.entries(i, index))
            older.append(levels.partial(i, index, slot))
        return older_counts + counts, older + partials

    # ---------------------------------------------------------------- rows

    def columns(self) -> list[Array]:
        """All entries as columns (copies): times, then one array per field."""
        rows = self._all_rows()
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
                self._levels.freshen()
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

    # ---------------------------------------------------------------- inserting

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one row: `values` has one scalar per column after the time. Entries of equal time keep arrival order.

        A pane is combined with the one of its time.
        """
        self._answers = None
        if self._panes is not None and self._joined_pane(time, values, self._panes):
            return
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
        """Insert m >= 0 rows: int64 (m,) times, and per column after the time an array (m,) of its dtype.

        Entries come in any order; the times of panes strictly increase.
        """
        if self._panes is None:
            self._insert_rows(times, columns)
        else:
            self._insert_panes(times, columns)

    def _insert_rows(self, times: Array, columns: Sequence[Array]) -> None:
        m = len(times)
        if not m:
            return
        self._answers = None
        rows = [times, *columns]
        if not is_sorted(times):
            order = np.argsort(times, kind="stable")
            rows = [column[order] for column in rows]
            times = rows[0]
        newest = times.item(m - 1)
        if times.item(0) >= self._newest:
            self._append(rows, m)
        else:
            self._insert_sorted_between(rows, m)
        self._newest = max(self._newest, newest)
        self._len += m

    def _append(self, rows: list[Array], m: int) -> None:
        """Add m >= 1 rows that are sorted and belong behind all others."""
        block, tail, start = self._layout.block, self._tail, 0
        if 2 * m >= block:
            # They become blocks of their own, without copying; the tail is sealed as short as it is.
            if tail.rows:
                self._seal()
            if m > block:
                whole = m - m % block
                partials = self._layout.reduce_segments([column[:whole] for column in rows], np.arange(0, whole, block))
                self._directory.extend_whole(rows, whole // block, block, partials)
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

    # ---------------------------------------------------------------- panes

    def _joined_pane(self, time: int, values: Sequence[Any], panes: PaneLayout) -> bool:
        """Combine a pane with the one of its time; False where there is none: then it can be inserted as a row."""
        tail = self._tail
        if time > self._newest:
            if tail.rows and tail.rows + 1 >= self._layout.block:
                self._seal_full()  # so that the newest pane stays in the tail
            return False
        if time == self._newest and tail.rows:
            panes.join(tail.columns, tail.rows - 1, values)
            return True
        columns = [_column(value, dtype) for value, dtype in zip(values, self._layout.dtypes[1:], strict=True)]
        return bool(self._join_panes(np.array([time]), columns, panes).item())

    def _join_panes(self, times: Array, columns: Sequence[Array], panes: PaneLayout) -> Array:
        """Combine panes with those of their times; return which have one, bool (m,). m >= 1."""
        rows = self._all_rows()
        at = rows.locate(times)
        there: Array = rows.locate(times + 1) > at
        if there.any():
            held = rows.columns(runs_of_numbers(at[there]), range(1, len(self._layout.dtypes)))[1:]
            self.replace(times[there], panes.combine_columns(held, [column[there] for column in columns]))
        return there

    def _insert_panes(self, times: Array, columns: Sequence[Array]) -> None:
        m = len(times)
        if not m:
            return
        assert self._panes is not None
        cut, last = 0, m - 1
        if self._len and (m > 1 or times.item(0) < self._newest):
            cut = int(times.searchsorted(self._newest, "right"))
        if cut:
            new = ~self._join_panes(times[:cut], [column[:cut] for column in columns], self._panes)
            self._insert_rows(times[:cut][new], [column[:cut][new] for column in columns])
        if cut < last:
            self._insert_rows(times[cut:last], [column[cut:last] for column in columns])
        if cut < m:
            self.insert(times.item(last), [column.item(last) for column in columns])

    # ---------------------------------------------------------------- inserting out of order

    def _insert_between(self, time: int, values: Sequence[Any]) -> None:
        row = (time, *values)
        self._insert_sorted_between([_column(*each) for each in zip(row, self._layout.dtypes, strict=True)], 1)
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

    # ---------------------------------------------------------------- inserting into sealed blocks

    def _splice_sealed(self, rows: Sequence[Array]) -> None:
        """Insert m >= 1 sorted rows into sealed blocks: none belongs behind the last of them."""
        directory, times = self._directory, rows[0]
        if 2 * len(times) >= self._layout.block:
            oldest, newest = times.item(0), times.item(-1)
            position = directory.owner(oldest)
            at = self._only_gap(position, oldest, newest) if position == directory.owner(newest) else None
            if at is not None:
                self._insert_run(position, at, rows)
                return
        owners = directory.owners(times)
        starts = starts_of_runs(owners)
        positions = owners[starts]
        bounds = np.append(starts, len(owners))
        deferred = len(positions) > 1 and self._layout.commutative
        if directory.loads:  # all at once, and before anything changes
            blocks = self._not_deferred(positions, bounds) if deferred else positions
            nodes = self._levels.nodes_of_refresh(positions) if directory.has_external else []
            if deferred and directory.has_external:
                nodes += [(0, position) for position in positions.tolist()]
            self._levels.fetch(blocks.tolist(), nodes)
        if deferred:
            self._defer(rows, positions, bounds)
        else:
            for position, (a, b) in zip(positions.tolist(), itertools.pairwise(bounds.tolist()), strict=True):
                self._splice(position, [column[a:b] for column in rows])
        self._levels.refresh(positions)
        self._sealed_changed(positions.item(0), self._cut_overfull(positions))

    def _sealed_changed(self, first: int, cut: int | None) -> None:
        """Sealed blocks from `first` on have changed; those from `cut` on were replaced, and moved.

        Where the head is replaced, its evicted rows are gone.
        """
        self._sealed.touch(first)
        if first == self._directory.head:
            self._head.reset()
        if cut == self._directory.head:
            self._skip = 0

    def _skip_of(self, position: int) -> int:
        """How many rows at the front of a block are evicted."""
        return self._skip if position == self._directory.head else 0

    def _only_gap(self, position: int, oldest: int, newest: int) -> int | None:
        """The row of a block before which all times of oldest..newest belong; None where there are several."""
        block = self._directory.block(position)
        times, skip = block.columns[0], self._skip_of(position)
        at = skip + int(times[skip : block.rows].searchsorted(oldest, "right"))
        return at if at == block.rows or times.item(at) > newest else None

    def _insert_run(self, position: int, at: int, rows: Sequence[Array]) -> None:
        """Put newcomers between two rows of a block, as blocks of their own."""
        directory = self._directory
        block = directory.block(position)
        pieces, drop = self._even_blocks(rows), 0
        if at == block.rows:
            position += 1
        elif at:
            block, drop, skip = directory.edit(position), 1, self._skip_of(position)
            before = self._even_blocks([column[skip:at] for column in block.columns]) if at > skip else []
            pieces = [*before, *pieces, *self._even_blocks([column[at : block.rows] for column in block.columns])]
        self._exchange([(position, drop, pieces)])
        self._sealed_changed(position, position)

    def _exchange(self, changes: Sequence[tuple[int, int, Sequence[list[Array]]]]) -> None:
        """Put blocks in the place of others: from a position on, so many, by blocks of these columns."""
        reduce = self._layout.reduce
        self._levels.truncate(changes[0][0])
        self._directory.exchange(
            [Exchange(position, drop, new, [reduce(each) for each in new]) for position, drop, new in changes]
        )

    def _splice(self, position: int, newcomers: list[Array]) -> None:
        directory = self._directory
        block = directory.edit(position)
        block.splice(newcomers, self._skip_of(position))
        directory.widen(position, newcomers[0][0], newcomers[0][-1])
        partials = self._layout.reduce_rows(block.columns, 0, block.rows)
        directory.change(position, block.rows, partials)

    def _not_deferred(self, positions: Array, bounds: Array) -> Array:
        """Which blocks are read although newcomers are deferred: the head, and those that will be cut."""
        counts = self._directory.counts[positions - self._directory.base] + np.diff(bounds)
        read: Array = counts > 2 * self._layout.block
        if self._skip_of(positions.item(0)):
            read[0] = True
        return positions[read]

    def _defer(self, rows: Sequence[Array], positions: Array, bounds: Array) -> None:
        directory = self._directory
        starts, ends = bounds[:-1], bounds[1:]
        first = 1 if self._skip_of(positions.item(0)) else 0
        if first:  # the newcomers belong behind rows that are evicted, whatever their times
            directory.edit(directory.head).splice([column[: ends[0]] for column in rows], self._skip)
        directory.defer(rows, positions[first:], bounds[first:])
        directory.widen(positions, rows[0][starts], rows[0][ends - 1])
        newcomers, at = self._layout.reduce_segments(rows, starts), positions - directory.base
        partials = [
            monoid.combine_columns(tuple([part[at] for part in mine]), theirs)
            for monoid, mine, theirs in zip(directory.monoids, directory.columns, newcomers, strict=True)
        ]
        directory.change_many(positions, directory.counts[at] + (ends - starts), partials)

    def _cut_overfull(self, positions: Array) -> int | None:
        """Cut blocks that outgrew twice the block size into even pieces; return where the first of them was."""
        directory = self._directory
        counts = directory.counts[positions - directory.base]
        if counts.max() <= 2 * self._layout.block:
            return None
        overfull: list[int] = positions[counts > 2 * self._layout.block].tolist()
        changes = []
        for position in overfull:
            block, start = directory.edit(position), self._skip_of(position)
            changes.append((position, 1, self._even_blocks([column[start : block.rows] for column in block.columns])))
        self._exchange(changes)
        return overfull[0]

    def _even_blocks(self, columns: Sequence[Array]) -> list[list[Array]]:
        """Cut sorted columns into even blocks of at most the block size."""
        rows = len(columns[0])
        k = -(-rows // self._layout.block)
        bounds = [rows * i // k for i in range(k + 1)]
        return [[column[a:b] for column in columns] for a, b in itertools.pairwise(bounds)]

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
            self._levels.change(changed[changed < directory.tail].tolist())
            self._sealed.touch(changed.item(0))

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest rows, or as many as there are; return how many."""
        skip = self._skip + count
        if skip < self._head.rows:
            self._skip = skip
            self._len -= count
            self._answers = None
            return count
        if count >= self._len:
            return self._clear()
        directory = self._directory
        position, tail = directory.head, directory.tail
        if position < tail:
            rows = directory.count(position)
            if skip >= rows:
                position, skip = position + 1, skip - rows
                if skip and position < tail and skip >= directory.count(position):
                    position, skip = self._levels.seek_count(position, skip)
        self._cut(position, skip, count)
        return count

    def bulk_evict(self, time: int) -> int:
        """Evict all rows with a time <= `time`; return how many entries they had."""
        if not self._len:
            return 0
        position, row, rows = self._directory.tail, self._tail.rows, self._len
        if time < self._newest:
            position, row = self._locate(time, "right")
            rows = self._count(position, row)
        if not rows:
            return 0
        entries = rows if self._panes is None else self._entries_before(position, row, self._panes)
        if rows == self._len:
            self._clear()
        else:
            self._cut(position, row, rows)
        return entries

    def _entries_before(self, position: int, row: int, panes: PaneLayout) -> int:
        """How many entries the panes before a place fold."""
        _, (entries,) = self._fold_rows(self._directory.head, self._skip, position, row, panes.counting())
        return int(entries)

    def load_evicted(self, time: int) -> None:
        """Load what `bulk_evict(time)` reads, so that it cannot fail afterwards."""
        if not self._directory.loads or not self._len:
            return
        position, row = self._directory.tail, self._tail.rows
        if time < self._newest:
            position, row = self._locate(time, "right")
        if self._panes is not None and self._count(position, row):
            self._entries_before(position, row, self._panes)

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest rows for which `holds`.

        Returns:
            how many entries left, and the time of the newest of them; None where none did.

        Args:
            holds: asked with a number n >= 1 and the partials, one per slot, over the n oldest entries. It must be
                monotone: where it holds for some n, it holds for every smaller one. It is asked O(log n) times,
                and once where the answer is that nothing goes.
        """
        if not self._len:
            return 0, None
        self._levels.freshen()
        directory, layout = self._directory, self._layout
        prefix, position = _Prefix(layout, holds), directory.head
        if self._has_blocks():
            block = directory.block(position)
            row = prefix.take_rows(block.columns, self._skip, block.rows)
            if row == block.rows:
                levels, row = self._levels, 0
                position = levels.seek(position + 1, lambda i, k: prefix.take(levels.entries(i, k), levels.node(i, k)))
                if position < directory.tail:
                    block = directory.block(position)
                    row = prefix.take_rows(block.columns, 0, block.rows)
        else:
            row = self._skip
        if position == directory.tail:
            row = prefix.take_rows(self._tail.columns, row, self._tail.rows)
        if not prefix.rows:
            return 0, None
        last = self._columns(position)[0].item(row - 1) if row else directory.last(position - 1)
        if prefix.rows == self._len:
            self._clear()
        else:
            self._cut(position, row, prefix.rows)
        return prefix.entries, last

    def sweep(self, blocks: int = 256) -> bool:
        """Free the memory of up to `blocks` evicted blocks and release their ids; return whether there are more."""
        return self._directory.sweep(blocks)

    def drop(self) -> None:
        """Evict all entries and release all ids at once: the forest is not used any more."""
        self._clear()
        self._directory.sweep(self._directory.tail)
        self._levels.sweep()

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

    # ---------------------------------------------------------------- removing a range of time

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
        """Remove all rows with start <= time <= end; return how many entries they had."""
        if not self._len or start > end:
            return 0
        self.load_between(start, end)
        if self._panes is None:
            return self._remove_range(start, end)
        entries, _ = self.range_totals(start, end, self._panes.counting())
        self._remove_range(start, end)
        return entries

    def _remove_range(self, start: int, end: int) -> int:
        """Remove all rows with start <= time <= end; return how many."""
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
            self._levels.lose(np.array([a]), np.array([lost]))
        else:
            self._exchange([(a, b - a + 1, self._even_blocks(kept) if kept else [])])
        self._sealed_changed(a, a)

    # ---------------------------------------------------------------- removing and correcting single entries

    def _finder(self) -> Finder:
        if self._panes is not None:
            raise Unsupported("panes keep partials, out of which no single entry can be taken")
        return Finder(self._directory, self._tail, self._skip)

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Find the time of the newest entry that has a value, for each of many, in steps; see `Finder.newest_steps`."""
        return self._finder().newest_steps(column, values, once)

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
        hits = self._finder().search(times, column, values, found, True)
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
        hits = self._finder().search(times, column, values, found, False)
        if len(hits.rows):
            self._fetch_named(hits.positions, set())
            same = columns[column - 1].tolist() == list(values)  # as a rule: then that column stays as it is
            given = {i: each[hits.numbers] for i, each in enumerate(columns, 1) if i != column or not same}
            self._give(hits.positions, hits.rows, given)
        return found

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Load what `remove` and `correct` of these entries read, so that they cannot fail afterwards."""
        if self._directory.loads and self._panes is None:
            hits = self._finder().search(times, column, values, np.zeros(len(times), np.bool_), True)
            self._fetch_named(hits.positions, self._plan(_by_block(hits))[1])

    def _parted(self, hits: Hits) -> tuple[Hits, dict[int, list[int]]]:
        """The rows that leave when somebody reads their blocks, and by position those that leave at once.

        At once: of the head and the tail, of blocks that lose their first or last row, and of those that become small.
        """
        if not self._levels.defers or not len(hits.rows):
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
        self._levels.lose(positions, lengths)
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
        moving = [position for position in sorted(gone) if position in joined or not kept[position]]
        moving = [position for position in moving if position - 1 not in joined]  # it goes with the one before it
        others = [p for p in sorted(gone) if kept[p] and p not in joined and p - 1 not in joined]
        if moving:
            self._levels.truncate(moving[0])  # first: else ancestors of the others would be made of what moves
        if others:
            lost = [self._rewrite(position, self._kept_rows(position, gone[position])) for position in others]
            self._levels.lose(np.array(others), np.array(lost))
        changes = []
        for position in moving:
            columns = list[list[Array]]()
            if position in joined:
                parts = [self._kept_rows(each, gone.get(each, [])) for each in (position, position + 1)]
                columns = [[np.concatenate(both) for both in zip(*parts, strict=True)]]
            changes.append((position, 1 + len(columns), columns))
        if changes:
            self._exchange(changes)
        self._sealed_changed(min(gone), min(gone))

    def _kept_rows(self, position: int, rows: list[int]) -> list[Array]:
        """The rows of a sealed block that neither leave now nor have left."""
        block, skip = self._finder().block(position), self._skip if position == self._directory.head else 0
        return without(block.columns, skip, block.rows, [*rows, *(block.gone or [])])

    def _rewrite(self, position: int, columns: list[Array]) -> int:
        """Give a sealed block fewer rows, at least one; return how many it lost. Its count and partials stay."""
        directory = self._directory
        block = directory.edit(position)
        block.columns, block.rows = columns, len(columns[0])
        directory.respan(position, columns[0].item(0), columns[0].item(-1))
        return directory.count(position) - block.rows

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

    # ---------------------------------------------------------------- other aggregates

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: those that are new are computed from the stored entries.

        Args:
            layout: the same columns and block size, other aggregates.
        """
        finished(self.relayout_steps(layout))

    def relayout_steps(self, layout: Layout) -> Steps[None]:
        """As `relayout`, in steps; nobody may use the forest from the first to the last."""
        if self._panes is not None:
            raise Unsupported("panes keep partials and no values, of which another aggregate could be made")
        assert (layout.dtypes, layout.block) == (self._layout.dtypes, self._layout.block), "the same columns and block"
        self._levels.freshen()
        directory = self._directory
        _, kept = directory.slices(directory.head, directory.tail)
        known = dict(zip(self._layout.keys, kept, strict=True))
        slots = [slot for slot, key in enumerate(layout.keys) if key not in known]
        folds = yield from self._reduce_blocks(layout, slots)
        for slot, partials in zip(slots, folds, strict=True):
            known[layout.keys[slot]] = partials
        directory.relevel(level_monoids(layout.monoids, self._cold), [known[key] for key in layout.keys])
        self._levels.relevel(layout)
        self._tail.relayout(layout)
        self._use(layout)
        self._split = 0

    def _reduce_blocks(self, layout: Layout, slots: Sequence[int]) -> Steps[list[Partials]]:
        """The fold of each sealed block, for some slots of a layout; of the blocks one at a time is in memory."""
        directory = self._directory
        folds: list[list[Partial]] = [[] for _ in slots]
        large = any(layout.monoids[slot].large for slot in slots)
        blocks = 1 if large else max(_FOLDS // max(len(slots), 1), 1)
        for position in range(directory.head, directory.tail) if slots else ():
            block = directory.block(position)
            for into, slot in zip(folds, slots, strict=True):
                into.append(layout.monoids[slot].reduce([block.columns[i][: block.rows] for i in layout.reads[slot]]))
            if self._cold is not None:
                self._cold.cache.trim()
            if not position % blocks:
                yield
        return [layout.monoids[slot].pack(fold) for slot, fold in zip(slots, folds, strict=True)]

    # ---------------------------------------------------------------- storing

    def pending_blocks(self, most: int | None = None) -> list[PendingBlock]:
        """Return the sealed blocks that have no id yet, oldest first; at most the `most` oldest.

        Give each its id (`block.stored = id`) before the next operation on the forest, write its columns, and call
        `Cold.landed` when the tier has them. Loads the blocks that have deferred rows.
        """
        return self._directory.pending_blocks(most)

    def dump(self) -> ForestImage:
        """An image: everything but the columns of sealed blocks, each of which must have an id.

        It sweeps, so that the ids of all evicted blocks are released: see `Cold.take_released`.
        """
        directory, tail = self._directory, self._tail
        assert self._cold is not None, "a forest in memory has nothing stored"
        directory.sweep(directory.head)
        self._levels.sweep()
        done, nodes = self._levels.dump()
        first, last = directory.spans(directory.head, directory.tail)
        counts, columns = directory.slices(directory.head, directory.tail)
        return ForestImage(
            head=directory.head,
            skip=self._skip,
            newest=self._newest,
            ids=directory.block_ids(),
            first=first.copy(),
            last=last.copy(),
            counts=counts.copy(),
            partials=directory.dumped(columns),
            tail=[column[: tail.rows].copy() for column in tail.columns],
            room=len(tail.columns[0]),
            done=done,
            nodes=nodes,
        )

    @classmethod
    def restore(cls, layout: Layout, cold: Cold, image: ForestImage) -> Forest:
        """The forest that an image was made of; the image's arrays are copied.

        Nothing is loaded, unless an aggregate was large when the image was made and is not any more.

        Args:
            layout: the same as it had, but for which aggregates are large; see `relayout` for another.
            cold: loads the blocks that the image names.
            image: as `dump` made it.
        """
        forest = cls(layout, cold)
        image = inline_partials(image, layout.monoids, cold)
        forest._directory.restore(image)
        forest._levels.restore(image.done, image.nodes)
        forest._tail.restore(image.tail, image.room)
        forest._skip = image.skip
        forest._len = image.entries
        forest._newest = image.newest
        return forest

    def refold(self, positions: Iterable[int]) -> None:
        """Fold the blocks at `positions` anew from their rows, for large partials that cannot be read any more."""
        for position in positions:
            block = self._directory.edit(position)
            self._directory.change(position, block.rows, self._layout.reduce_rows(block.columns, 0, block.rows))

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials; equality where None.
        """
        same = same or (lambda monoid, a, b: bool(a == b))
        directory, tail, layout = self._directory, self._tail, self._layout
        directory.check_invariants(self._skip)
        self._levels.check_counts()
        self._levels.freshen()
        self._levels.check_invariants(same)
        entries = tail.rows - self._skip
        for position in range(directory.head, directory.tail):
            block = directory.block(position)
            assert block.rows <= 2 * layout.block, f"block {position} outgrew its bound: {block.rows}"
            entries += block.rows
            expected = layout.reduce_rows(block.columns, 0, block.rows)
            for monoid, found, fold in zip(layout.monoids, directory.node(position), expected, strict=True):
                assert same(monoid, found, fold), f"{monoid!r} of block {position}: {found}, not {fold}"
        assert entries == self._len, f"{entries} entries counted, len says {self._len}"
        assert tail.rows < layout.block or not tail.rows, f"the tail has {tail.rows} rows and is not sealed"
        columns = self.columns()
        times = columns[0]
        assert (times[1:] >= times[:-1]).all(), "entries are sorted by time"
        if self._len:
            assert times[-1] == self._newest, f"newest is {times[-1]}, not {self._newest}"
            front_rows = directory.raw_block(directory.head).rows if self._has_blocks() else tail.rows
            assert 0 <= self._skip < front_rows, f"skip {self._skip} lies in the first block"
            assert self._head.rows in (0, front_rows), f"the head knows {self._head.rows} rows of {front_rows}"
        else:
            assert self._newest == BEFORE_ALL, "an empty forest has no newest entry"
        expected = layout.reduce_rows(columns, 0, self._len)
        for monoid, found, fold in zip(layout.monoids, self.totals(), expected, strict=True):
            assert same(monoid, found, fold), f"{monoid!r} over all: {found}, not {fold}"
        if self._panes is not None:
            assert (times[1:] > times[:-1]).all(), "there is one pane of a time"
            assert (columns[1] >= 1).all(), "a pane has entries"
            assert columns[1].sum() == len(self), f"{columns[1].sum()} entries counted, len says {len(self)}"


class _Prefix:
    """The longest prefix of a window for which a monotone predicate holds: what a slide policy evicts.

        entries    e0  e1  e2  e3  e4  e5  e6  e7  e8 …
        asked      1   |       |               |           widths double while it holds, so that the usual
                   2 --'       |               |           answer, "nothing goes", takes one question,
                   4 ----------'               |           then the last width is halved until the place
                   8 --------------------------'           is found; whole nodes are asked for where there are

    Source: AMTA's window slide policy (Villalba, Berral, Carrera, TPDS 2019, section 4.4) descends the levels in the
    same way; the doubling from the front is ours.

    Args:
        layout: the aggregates.
        holds: asked with a number of entries and the partials over so many oldest ones; monotone.
    """

    __slots__ = ("_holds", "_layout", "_partials", "rows")

    def __init__(self, layout: Layout, holds: Callable[[int, Sequence[Partial]], bool]) -> None:
        self._layout = layout
        self._holds = holds
        self._partials: Sequence[Partial] = layout.identities
        self.rows = 0
        """How many rows were taken."""

    @property
    def entries(self) -> int:
        """How many entries were taken."""
        return self._entries(self.rows, self._partials)

    def _entries(self, rows: int, partials: Sequence[Partial]) -> int:
        return rows if self._layout.rows_are_entries else partials[0]

    def take(self, rows: int, partials: Sequence[Partial]) -> bool:
        """Take the next rows, whose fold is `partials`, if the predicate still holds with them."""
        longer = self._layout.combine(self._partials, partials)
        if not self._holds(self._entries(self.rows + rows, longer), longer):
            return False
        self._partials = longer
        self.rows += rows
        return True

    def take_rows(self, columns: Sequence[Array], start: int, stop: int) -> int:
        """Take as many as possible of rows start..stop, which are next; return the first row that was not taken."""
        width, bound = 1, stop + 1  # it does not hold for the rows up to `bound`
        while True:
            if bound > stop:
                middle = min(start + width, stop)
                width *= 2
            else:
                middle = (start + bound) // 2
            if middle == start:
                return start
            if self.take(middle - start, self._layout.reduce_rows(columns, start, middle)):
                start = middle
            else:
                bound = middle


def _column(value: Any, dtype: np.dtype[Any]) -> Array:
    """One value as a column."""
    column = np.empty(1, dtype)
    column[0] = value
    return column


def _by_block(hits: Hits) -> dict[int, list[int]]:
    """By the position of their block the rows of hits."""
    rows = dict[int, list[int]]()
    for position, row in zip(hits.positions.tolist(), hits.rows.tolist(), strict=True):
        rows.setdefault(position, []).append(row)
    return rows


@lru_cache(maxsize=4096)
def _starts(rows: int) -> Array:
    """Where n >= 1 rows are cut: the newest five alone, five pieces of two rows, five of four, and so on."""
    starts, stop, width = [], rows, 1
    while stop > 0:
        for _ in range(_PER_WIDTH):
            stop = max(stop - width, 0)
            starts.append(stop)
            if not stop:
                break
        width *= 2
    found = np.array(starts[::-1], np.int64)
    found.flags.writeable = False
    return found
