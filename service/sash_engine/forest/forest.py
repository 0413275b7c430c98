"""The columnar engine: an AMTA forest over column blocks. One forest holds the entries of one key.

     level 1        o       o             partials of pairs (levels.py), the fold of the whole
     level 0      o   o   o   o   o       blocks kept up to date by a stack and a pair (middle.py)
                 [x ] [ ] [ ] [ ] [ ] [..
      skip rows --^head block          ^tail block: open
                  (ends.py)              (ends.py)

Insert, in order: a row in the tail; amortised O(1).  Insert, out of order: a splice in one block, O(B + log n).
Bulk insert of m: O(m), a few vectorised passes.  Evict, bulk evict: O(log n), whatever the number of entries.
Query: amortised O(1).  Range query: O(B + log n).  Space: the raw columns and 2 n / B partials.
Requires: associativity; deferred splices only where every aggregate commutes.
Source: Villalba, Berral, Carrera, TPDS 2019 (AMTA); the head's scan and the small window are Two-Stacks Lite
(Tangwongsan, Hirzel, Schneider, VLDBJ 2021).  Differs: see `service/ARCHITECTURE.md`.

No I/O, no threads, no clock, no randomness. Arrays that are passed in are handed over: the forest keeps views of
them, never writes to them, and nobody else may.

Blocks may be kept in a tier (cold.py), and be loaded when their rows are read. So may the partials of sketches and
collections, at all levels (spilled.py), which are loaded when they are folded; others are in memory for all blocks:

    in order, evict, whole window     nothing, but the block that the head lands in; at once with it, as the head moves
                                      on, large partials of the next blocks to be evicted and of O(log n) nodes
    range query                       its two end blocks and large partials of its O(log n) nodes, at once
    series                            the blocks with ends in them at once, the partials of wide ranges at once, and
                                      the blocks of narrow ones at once
    out of order                      the blocks that are spliced, at once, but none for rows that are deferred; with
                                      them what their ancestors are combined from
    a cut, other aggregates           when nodes are next read, the large partials of all blocks that moved

An operation loads all it needs before it changes anything: where loading raises, the forest is as it was. A block that
is lost or damaged hurts who needs its rows, until it is evicted; others are answered as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakMethod

import numpy as np

from sash_engine.forest.block import Block, merge
from sash_engine.forest.cold import Cold, Unsaved
from sash_engine.forest.directory import Directory
from sash_engine.forest.disorder import Splicer
from sash_engine.forest.ends import Head, Tail
from sash_engine.forest.image import ForestImage
from sash_engine.forest.layout import Layout
from sash_engine.forest.levels import Levels
from sash_engine.forest.middle import Middle
from sash_engine.forest.pieces import Piece, piece_of
from sash_engine.forest.prefix import Prefix
from sash_engine.forest.series import Rows, answers_of, fold_buckets
from sash_engine.forest.spilled import spilling, with_small
from sash_engine.forest.stored import Stored
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished

__all__ = ["Forest"]

_BEFORE_ALL = -(2**63)


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
        "_middle",
        "_newest",
        "_skip",
        "_splicer",
        "_split",
        "_tail",
    )

    def __init__(self, layout: Layout, cold: Cold | None = None) -> None:
        self._cold = cold
        monoids = spilling(layout.monoids, cold)
        self._directory = Directory(monoids) if cold is None else Stored(monoids, cold)
        self._levels = Levels(self._directory, monoids)
        if isinstance(self._directory, Stored):
            self._directory.above = WeakMethod(self._levels.unsaved)
        self._tail = Tail(layout)
        self._use(layout)
        self._skip = 0  # evicted rows at the front of the first block
        self._split = 0  # where the tail holds the head: rows before belong to the head's fold
        self._len = 0
        self._newest = _BEFORE_ALL

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        self._middle = Middle(self._directory, self._levels, layout)
        self._splicer = Splicer(self._directory, self._levels, layout)
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

    # ---------------------------------------------------------------- inserting

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
        columns[0][row] = time
        for i, value in enumerate(values, 1):
            columns[i][row] = value
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
        if np.count_nonzero(times[1:] < times[:-1]):
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
        self._middle.touch(touched.first)
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

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Give entries other values: int64 (m,) distinct times that there are, and per field an array (m,).

        Of several entries with one time it is the first that is changed.
        """
        self._answers = None
        if self._directory.loads:
            touched = sorted({self._directory.ending(time, "left") for time in times.tolist()})
            each = touched if self._directory.spills else ()  # one after the other is combined with what is beside it
            self._levels.fetch(touched, {node for one in each for node in self._levels.beside(np.array([one]))})
        places = [self._locate(time, "left") for time in times.tolist()]
        for position in sorted({position for position, _ in places}):
            mine = [i for i, (at, _) in enumerate(places) if at == position]
            rows = [places[i][1] for i in mine]
            sealed = position < self._directory.tail
            block = self._directory.edit(position) if sealed else self._tail
            for number, values in enumerate(columns, 1):
                column = block.columns[number].copy() if sealed else block.columns[number]  # it may be somebody else's
                column[rows] = values[mine]
                block.columns[number] = column
            if sealed:
                partials = self._layout.reduce_rows(block.columns, 0, block.rows)
                self._directory.change(position, block.rows, partials)
                self._levels.refresh(np.array([position]))
                self._middle.touch(position)
            else:
                self._tail.refold()
            if position == self._directory.head:
                self._head.reset()
                self._split = 0 if sealed else self._skip

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest entries, or as many as there are; return how many."""
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
        """Evict all entries with a time <= `time`; return how many."""
        if not self._len:
            return 0
        if time >= self._newest:
            return self._clear()
        position, row = self._locate(time, "right")
        count = self._count(position, row)
        if count:
            self._cut(position, row, count)
        return count

    def bring(self, time: int) -> None:
        """Load what `bulk_evict(time)` is going to read, so that it cannot fail after this."""
        if self._directory.loads and self._len and time < self._newest:
            self._locate(time, "right")

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest entries for which `holds`.

        Returns:
            how many left, and the time of the newest of them; None where none did.

        Args:
            holds: asked with a number n >= 1 and the partials, one per slot, over the n oldest entries. It must be
                monotone: where it holds for some n, it holds for every smaller one. It is asked O(log n) times,
                and once where the answer is that nothing goes.
        """
        if not self._len:
            return 0, None
        directory, layout = self._directory, self._layout
        prefix, position = Prefix(layout, holds), directory.head
        if self._has_blocks():
            block = directory.block(position)
            row = prefix.take_rows(block.columns, self._skip, block.rows)
            if row == block.rows:
                position, row = self._levels.seek(position + 1, self._taker(prefix)), 0
                if position < directory.tail:
                    block = directory.block(position)
                    row = prefix.take_rows(block.columns, 0, block.rows)
        else:
            row = self._skip
        if position == directory.tail:
            row = prefix.take_rows(self._tail.columns, row, self._tail.rows)
        if not prefix.entries:
            return 0, None
        last = self._columns(position)[0].item(row - 1) if row else directory.last(position - 1)
        if prefix.entries == self._len:
            self._clear()
        else:
            self._cut(position, row, prefix.entries)
        return prefix.entries, last

    def _taker(self, prefix: Prefix) -> Callable[[int, int], bool]:
        levels = self._levels
        return lambda i, index: prefix.take(levels.entries(i, index), levels.node(i, index))

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
        self._middle.forget()
        self._head.reset()
        self._tail.clear()
        self._skip = self._split = self._len = 0
        self._newest = _BEFORE_ALL
        return count

    def sweep(self, blocks: int = 256) -> bool:
        """Free the memory of up to `blocks` evicted blocks and release their ids; return whether there are more."""
        return self._directory.sweep(blocks)

    def drop(self) -> None:
        """Evict all entries and release all ids at once: nobody will want this forest any more."""
        self._clear()
        self._directory.sweep(self._directory.tail)
        self._levels.sweep()

    # ---------------------------------------------------------------- reading

    def query(self) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        answers = self._answers
        if answers is None:
            answers = self._answers = self._layout.lower(self._len, self.totals())
        return answers

    def totals(self) -> list[Partial]:
        """The partials over all entries, one per slot."""
        directory, tail, skip = self._directory, self._tail, self._skip
        position = directory.head
        if position == directory.tail:
            return self._totals_of_tail()
        if not skip:
            whole: list[Partial] = self._middle.fold(position)  # type: ignore[assignment]
            return (tail.fold(0, whole) if tail.rows else whole)[:]
        front = self._head.known(skip)
        rest = tail.fold(0, self._middle.fold(position + 1, (position,) if front is None else ()))
        if front is None:
            block = directory.block(position)
            front = self._head.fold(block.columns, skip, block.rows)
        return self._layout.combine(front, rest)

    def _totals_of_tail(self) -> list[Partial]:
        tail, skip = self._tail, self._skip
        if not skip:
            return tail.fold(0, None)[:]
        if skip >= self._split:
            self._split = tail.rows
            self._head.reset()
        front = self._head.known(skip)
        if front is None:
            front = self._head.fold(tail.columns, skip, self._split)
        return self._layout.combine(front, tail.fold(self._split, None))

    def range_query(self, start: int, end: int) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(start, end)
        return entries, self._layout.lower(entries, partials)

    def range_totals(self, start: int, end: int) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        if self._len and start <= end:
            if self._directory.loads:
                self._fetch_ends(start, end)
            a, first_row = self._locate(start, "left")
            b, stop_row = self._locate(end, "right")
            if a < b or first_row < stop_row:
                if end >= self._newest and first_row == self._skip and a == self._directory.head:
                    return self._len, self.totals()
                return self._fold_rows(a, first_row, b, stop_row)
        return 0, list(self._layout.identities)

    def _fetch_ends(self, start: int, end: int) -> None:
        """Load those of the blocks at the ends of a range that it will read."""
        directory = self._directory
        a, b = directory.ending(start, "left"), directory.ending(end, "right")
        inside = [a] if a < directory.tail and start > directory.first(a) else []
        whole = a == directory.head and not inside and end >= self._newest  # it has its fold
        if a == directory.head and self._skip and not whole:
            inside.append(a)
        between = () if whole or not directory.spills else self._levels.parts(a + bool(inside), b)
        if b < directory.tail and end >= directory.first(b):
            inside.append(b)
        self._levels.fetch(inside, between)

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many time ranges at once, which may overlap: a chart's points.

        Args:
            starts: int64 (k,), the first time of each range.
            stops: int64 (k,), the time behind the last one: start <= time < stop.

        Returns:
            the number of entries in each range, int64 (k,), and per name of the layout an array (k,) of answers;
            it is of dtype object where the answers are, or where a range has no answer (None).

        Costs O(k log n + entries in narrow ranges); all entries of a range wider than some blocks are not read.
        """
        return finished(self.series_steps(starts, stops))

    def series_steps(self, starts: Array, stops: Array) -> Steps[tuple[Array, list[Array]]]:
        """As `series`, in steps; no entry may come or leave from the first to the last."""
        entries, filled, partials = yield from self.fold_steps(starts, stops)
        return entries, (yield from answers_of(self._layout, partials, filled, entries))

    def fold_steps(self, starts: Array, stops: Array) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many time ranges, as `series_steps` does: entries (k,), which ranges have any, and their partials.

        With panes, it counts panes and not entries.
        """
        rows = Rows(self._directory, self._tail, self._skip)
        return fold_buckets(self._layout, rows, self._fold_each, starts, stops)

    def columns(self) -> list[Array]:
        """All entries as columns (copies): times, then one array per field."""
        rows = Rows(self._directory, self._tail, self._skip)
        return rows.columns([(self._skip, rows.total)], range(len(self._layout.dtypes)))

    def pieces(self, start: int | None, end: int | None) -> list[Piece]:
        """The entries with start <= time <= end (None: no bound) as they are now, in order, to be read later.

        Loads the blocks at the ends of the range, and those for which rows were deferred.
        """
        if not self._len:
            return []
        directory, tail = self._directory, self._tail
        a, row = (directory.head, self._skip) if start is None else self._locate(start, "left")
        b, stop = (directory.tail, tail.rows) if end is None else self._locate(end, "right")
        found = []
        for position, source in enumerate(directory.held(a, min(b + 1, directory.tail)), a):
            first = row if position == a else 0
            behind = stop if position == b else directory.count(position)
            if first < behind:
                found.append(piece_of(source, first, behind))
        if b == directory.tail:
            first = row if a == b else 0
            if first < stop:
                found.append(Piece([column[first:stop].copy() for column in tail.columns], 0, stop - first))
        return found

    # ---------------------------------------------------------------- other aggregates

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: those that are new are computed from the stored entries.

        Args:
            layout: the same columns and block size, other aggregates.
        """
        assert (layout.dtypes, layout.block) == (self._layout.dtypes, self._layout.block), "the same columns and block"
        directory = self._directory
        _, kept = directory.slices(directory.head, directory.tail)
        known = dict(zip(self._layout.keys, kept, strict=True))
        slots = [slot for slot, key in enumerate(layout.keys) if key not in known]
        for slot, partials in zip(slots, self._reduce_blocks(layout, slots), strict=True):
            known[layout.keys[slot]] = partials
        monoids = spilling(layout.monoids, self._cold)
        self._levels.relevel(monoids)
        directory.relevel(monoids, [known[key] for key in layout.keys])
        self._tail.relayout(layout)
        self._use(layout)
        self._split = 0

    def _reduce_blocks(self, layout: Layout, slots: Sequence[int]) -> list[Partials]:
        """The fold of each sealed block, for some slots of a layout; of the blocks one at a time is in memory."""
        directory = self._directory
        folds: list[list[Partial]] = [[] for _ in slots]
        for position in range(directory.head, directory.tail) if slots else ():
            block = directory.block(position)
            for into, slot in zip(folds, slots, strict=True):
                into.append(layout.monoids[slot].reduce([block.columns[i][: block.rows] for i in layout.reads[slot]]))
            if self._cold is not None:
                self._cold.cache.trim()
        return [layout.monoids[slot].pack(fold) for slot, fold in zip(slots, folds, strict=True)]

    # ---------------------------------------------------------------- storing

    def unsaved(self, most: int | None = None) -> list[Unsaved]:
        """The sealed blocks that have no id yet, oldest first; the `most` oldest of them.

        Give each its id (`block.stored = id`) before anything else is done with the forest, let its columns be
        written, and say `Cold.landed` when the tier has them. Loads the blocks for which rows were deferred.
        """
        return self._directory.unsaved(most) if isinstance(self._directory, Stored) else []

    def dump(self) -> ForestImage:
        """All there is but the columns of sealed blocks, every one of which has an id; and sweep.

        The ids of all evicted blocks are released by it: see `Cold.take_released`.
        """
        directory, tail = self._directory, self._tail
        assert isinstance(directory, Stored), "a forest in memory has nothing stored"
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
        image = with_small(image, layout.monoids, cold)
        assert isinstance(forest._directory, Stored)
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
        return position, skip + int(block.columns[0][skip : block.rows].searchsorted(time, side))  # type: ignore[call-overload]

    def _count(self, position: int, row: int) -> int:
        """Entries before a place."""
        head = self._directory.head
        return row - self._skip + (self._levels.count(head, position) if position > head else 0)

    def _fold_rows(self, a: int, first_row: int, b: int, stop_row: int) -> tuple[int, list[Partial]]:
        """Count and fold from place (a, first_row) up to place (b, stop_row), which is not before it."""
        layout, entries = self._layout, stop_row - first_row
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
            count, total = self._levels.fold(a, b, older, newer)
            return entries + count, total
        if older is None or newer is None:
            return entries, older or newer or []
        return entries, layout.combine(older, newer)

    def _fold_each(self, places: Sequence[tuple[int, int, int, int]]) -> list[list[Partial]]:
        """Fold between each two places, as `_fold_rows` does; what is lacking for all comes at once."""
        if self._directory.spills:
            blocks, nodes = set(), set()
            for a, first_row, b, stop_row in places:
                blocks |= {a} if first_row else set()
                blocks |= {b} if stop_row else set()
                nodes.update(self._levels.parts(a + bool(first_row), b))
            self._levels.fetch(sorted(blocks), sorted(nodes))
        return [self._fold_rows(*place)[1] for place in places]

    def _columns(self, position: int) -> list[Array]:
        directory = self._directory
        return self._tail.columns if position == directory.tail else directory.block(position).columns

    def _has_blocks(self) -> bool:
        return self._directory.head < self._directory.tail

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials; equality where None.
        """
        same = same or (lambda monoid, a, b: bool(a == b))
        directory, tail, layout = self._directory, self._tail, self._layout
        directory.check_invariants(self._skip)
        self._levels.check_invariants(same)
        entries = tail.rows - self._skip
        for position in range(directory.head, directory.tail):
            count, partials = directory.count(position), directory.node(position)
            block = directory.unsettled(position)
            rows = block.rows + sum(b - a for _, a, b in block.pending or [])
            assert count == rows, f"block {position} has {rows} rows, the directory says {count}"
            assert rows <= 2 * layout.block, f"block {position} outgrew its bound: {rows}"
            entries += rows
            whole = directory.block(position)
            expected = layout.reduce_rows(whole.columns, 0, whole.rows)
            for monoid, found, fold in zip(layout.monoids, partials, expected, strict=True):
                assert same(monoid, found, fold), f"{monoid!r} of block {position}: {found}, not {fold}"
        assert entries == self._len, f"{entries} entries counted, len says {self._len}"
        assert tail.rows < layout.block or not tail.rows, f"the tail has {tail.rows} rows and is not sealed"
        columns = self.columns()
        times = columns[0]
        assert (times[1:] >= times[:-1]).all(), "entries are sorted by time"
        if self._len:
            assert times[-1] == self._newest, f"newest is {times[-1]}, not {self._newest}"
            front_rows = directory.unsettled(directory.head).rows if self._has_blocks() else tail.rows
            assert 0 <= self._skip < front_rows, f"skip {self._skip} lies in the first block"
            assert self._head.rows in (0, front_rows), f"the head knows {self._head.rows} rows of {front_rows}"
        else:
            assert self._newest == _BEFORE_ALL, "an empty forest has no newest entry"
        expected = layout.reduce_rows(columns, 0, self._len)
        for monoid, found, fold in zip(layout.monoids, self.totals(), expected, strict=True):
            assert same(monoid, found, fold), f"{monoid!r} over all: {found}, not {fold}"
