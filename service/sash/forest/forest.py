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
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash.forest.block import Block, merge
from sash.forest.directory import Directory
from sash.forest.ends import Head, Tail
from sash.forest.layout import Layout
from sash.forest.levels import Levels
from sash.forest.middle import Middle
from sash.forest.segments import lengths_of_segments, starts_of_runs
from sash.monoids import Monoid, Partial, Partials
from sash.monoids.base import Array

__all__ = ["Forest"]

_BEFORE_ALL = -(2**63)
_SWEEP = 4
"""Dropped blocks freed per sealed block: more than are made, so that what is dropped goes."""


class Forest:
    """The entries of one key, sorted by (time, arrival), and their aggregates.

    Args:
        layout: columns, aggregates and block size.

    >>> from sash.forest import Forest, Layout
    >>> from sash.monoids import Sum
    >>> forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> for time, value in [(1, 10.0), (3, 30.0), (2, 20.0)]:
    ...     forest.insert(time, (value,))
    >>> forest.query(), forest.range_query(2, 3)
    ([60.0], (2, [50.0]))
    """

    __slots__ = (
        "_answers",
        "_directory",
        "_head",
        "_layout",
        "_len",
        "_levels",
        "_middle",
        "_newest",
        "_skip",
        "_split",
        "_tail",
        "_totals",
    )

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._directory = Directory()
        self._levels = Levels(layout.monoids)
        self._middle = Middle(self._levels, layout)
        self._head = Head(layout)
        self._tail = Tail(layout)
        self._skip = 0  # evicted rows at the front of the first block
        self._split = 0  # where the tail holds the head: rows before belong to the head's fold
        self._len = 0
        self._newest = _BEFORE_ALL
        self._totals: list[Partial] | None = None
        self._answers: list[Any] | None = None

    def __len__(self) -> int:
        return self._len

    @property
    def oldest(self) -> int | None:
        """Time of the oldest entry, in ticks; None where empty."""
        if not self._len:
            return None
        columns, row = self._front()
        return columns[0].item(row)  # type: ignore[no-any-return]

    @property
    def newest(self) -> int | None:
        """Time of the newest entry, in ticks; None where empty."""
        return self._newest if self._len else None

    # ---------------------------------------------------------------- inserting

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one entry: `values` has one scalar per field. Entries of equal time keep arrival order."""
        self._answers = self._totals = None
        if time < self._newest:
            self._insert_between(time, values)
            return
        tail = self._tail
        row = tail.rows
        if row == len(tail.columns[0]):
            row = self._make_room()
        columns = tail.columns
        columns[0][row] = time
        for i, value in enumerate(values, 1):
            columns[i][row] = value
        tail.rows = row + 1
        self._newest = time
        self._len += 1
        if tail.rows == self._layout.block:
            self._seal()

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 entries: int64 (m,) times in any order, and per field an array (m,) of its dtype."""
        m = len(times)
        if not m:
            return
        self._answers = self._totals = None
        rows = [times, *columns]
        if np.count_nonzero(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            rows = [column[order] for column in rows]
        newest = rows[0].item(m - 1)
        if rows[0].item(0) >= self._newest:
            self._append(rows, 0, m)
        else:
            self._insert_sorted_between(rows, m)
        self._len += m
        self._newest = max(self._newest, newest)

    def _append(self, rows: Sequence[Array], start: int, stop: int) -> None:
        """Add rows that are sorted and belong behind all others."""
        block, tail = self._layout.block, self._tail
        while tail.rows:  # mostly once: sealing may only make room
            take = min(block - tail.rows, stop - start)
            tail.extend(rows, start, start + take)
            start += take
            if tail.rows < block:
                return
            self._seal()
        whole = (stop - start) // block
        if whole:
            self._seal_whole(rows, start, whole)
            start += whole * block
        if start < stop:
            self._tail.extend(rows, start, stop)

    def _make_room(self) -> int:
        """Make room for a row in the tail; return the row."""
        tail = self._tail
        if self._skip * 2 > tail.rows and not self._has_blocks():
            self._discard_head_of_tail()
        else:
            tail.grow(tail.rows + 1)
        return tail.rows

    def _seal(self) -> None:
        """Make the tail a sealed block, without rows that are evicted already."""
        tail = self._tail
        if self._skip and not self._has_blocks():
            if self._skip * 2 > tail.rows:  # a window smaller than a block: make room instead
                self._discard_head_of_tail()
                return
            partials = self._layout.reduce(tail.columns, self._skip, tail.rows)
            columns = [column[self._skip : tail.rows] for column in tail.columns]
            self._skip = self._split = 0
            self._head.reset()
        else:
            partials, columns = tail.fold(0), tail.columns
        rows = len(columns[0])
        self._directory.append(Block(columns, rows), columns[0].item(0), columns[0].item(rows - 1))
        self._levels.append(rows, partials)
        tail.clear()
        self._directory.sweep(_SWEEP)

    def _seal_whole(self, rows: Sequence[Array], start: int, k: int) -> None:
        """Make k whole blocks of rows without copying them."""
        layout, directory = self._layout, self._directory
        block = layout.block
        if k == 1:
            columns = [column[start : start + block] for column in rows]
            directory.append(Block(columns, block), columns[0].item(0), columns[0].item(block - 1))
            self._levels.append(block, layout.reduce(columns, 0, block))
        else:
            directory.extend_whole(rows, start, k, block)
            starts, stop = np.arange(0, k * block, block), start + k * block
            self._levels.extend(
                np.full(k, block),
                [
                    monoid.reduce_segments(layout.values(slot, rows, start, stop), starts)
                    for slot, monoid in enumerate(layout.monoids)
                ],
            )
        directory.sweep(_SWEEP * k)

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

    def _insert_sorted_between(self, rows: Sequence[Array], m: int) -> None:
        """Insert m sorted rows, the first of which is older than the newest entry."""
        tail, times = self._tail, rows[0]
        if not self._has_blocks():
            cut = 0
        elif tail.rows:
            cut = int(times.searchsorted(tail.columns[0][0], "left"))
        else:
            cut = int(times.searchsorted(self._newest, "left"))
        if cut:
            self._splice_sealed([column[:cut] for column in rows])
        if cut == m:
            return
        newer = [column[cut:] for column in rows]
        if not tail.rows:
            self._append(newer, 0, m - cut)
            return
        skip = 0 if self._has_blocks() else self._skip
        if tail.rows + m - cut < self._layout.block:
            if skip:
                self._split = self._skip  # the head's fold would miss the newcomers
                self._head.reset()
            if m - cut + tail.rows > len(tail.columns[0]):
                tail.grow(m - cut + tail.rows)
            tail.splice(newer, skip)
            tail.refold()
        else:
            merged = merge([column[skip:] for column in tail.columns], 0, tail.rows - skip, newer)
            if skip:
                self._skip = self._split = 0
                self._head.reset()
            tail.clear()
            self._append(merged, 0, len(merged[0]))

    def _splice_sealed(self, rows: Sequence[Array]) -> None:
        """Insert sorted rows into the sealed blocks that own their times."""
        directory, layout = self._directory, self._layout
        times = rows[0]
        owners = directory.owners(times)
        starts = starts_of_runs(owners)
        positions = owners[starts]
        bounds = [*starts.tolist(), len(times)]
        self._middle.invalidate(int(positions[0]), int(positions[-1]))
        if positions[0] == directory.head:
            self._head.reset()
        if layout.commutative and len(positions) > 1:
            self._defer(rows, starts, positions, bounds)
        else:
            for position, a, b in zip(positions.tolist(), bounds, bounds[1:], strict=False):
                self._splice_block(position, [column[a:b] for column in rows])
        self._split_overfull(positions)

    def _splice_block(self, position: int, newcomers: list[Array]) -> None:
        directory, layout = self._directory, self._layout
        block = directory.block(position)
        block.splice(newcomers, self._skip if position == directory.head else 0)
        times = block.columns[0]
        directory.widen(position, times.item(0), times.item(block.rows - 1))
        self._levels.update(position, block.rows, layout.reduce(block.columns, 0, block.rows))

    def _defer(self, rows: Sequence[Array], starts: Array, positions: Array, bounds: list[int]) -> None:
        """Combine newcomers into partials now, and into columns when somebody reads inside their block."""
        directory, layout = self._directory, self._layout
        for position, a, b in zip(positions.tolist(), bounds, bounds[1:], strict=False):
            directory.unsettled(position).defer(rows, a, b)
        if self._skip and positions[0] == directory.head:
            # The newcomers belong behind rows that are evicted, whatever their times.
            block = directory.unsettled(directory.head)
            (columns, a, b), block.pending = block.pending[-1], block.pending[:-1] or None  # type: ignore[index]
            directory.block(directory.head).splice([column[a:b] for column in columns], self._skip)
        ends = np.append(starts[1:], len(rows[0])) - 1
        directory.widen(positions, rows[0][starts], rows[0][ends])
        self._levels.update_many(
            positions,
            lengths_of_segments(starts, len(rows[0])),
            [
                monoid.reduce_segments(layout.values(slot, rows, 0, len(rows[0])), starts)
                for slot, monoid in enumerate(layout.monoids)
            ],
        )

    def _split_overfull(self, positions: Array) -> None:
        """Cut blocks that outgrew twice the block size into even pieces and rebuild the levels behind the first."""
        block, directory, levels = self._layout.block, self._directory, self._levels
        tail = levels.tail
        counts, _ = levels.blocks(directory.head, tail)
        overfull = positions[counts[positions - directory.head] > 2 * block].tolist()
        if not overfull:
            return
        at = first = overfull[0]
        if first == directory.head and self._skip:
            self._trim_head()
        new_blocks: list[Block] = []
        new_counts: list[Array] = []
        new_partials: list[list[Partials]] = []
        new_spans: list[tuple[Array, Array]] = []
        for position in [*overfull, tail]:
            if at < position:
                new_blocks.extend(directory.unsettled(p) for p in range(at, position))
                new_spans.append(directory.spans(at, position))
                kept, partials = levels.blocks(at, position)
                new_counts.append(kept.copy())
                new_partials.append([tuple(column.copy() for column in columns) for columns in partials])
            if position < tail:
                pieces = self._pieces(directory.block(position))
                new_blocks.extend(pieces)
                new_spans.append(
                    (
                        np.array([piece.columns[0][0] for piece in pieces]),
                        np.array([piece.columns[0][-1] for piece in pieces]),
                    )
                )
                new_counts.append(np.array([piece.rows for piece in pieces]))
                partials_of = [self._layout.reduce(piece.columns, 0, piece.rows) for piece in pieces]
                new_partials.append(
                    [
                        m.pack([partials[slot] for partials in partials_of])
                        for slot, m in enumerate(self._layout.monoids)
                    ]
                )
            at = position + 1
        directory.truncate(first)
        directory.extend(new_blocks, *(np.concatenate(times) for times in zip(*new_spans, strict=True)))
        levels.truncate(first)
        levels.extend(
            np.concatenate(new_counts),
            [
                tuple(np.concatenate(columns) for columns in zip(*(chunk[slot] for chunk in new_partials), strict=True))
                for slot in range(len(self._layout.monoids))
            ],
        )
        self._middle.reset()

    def _trim_head(self) -> None:
        """Remove the evicted rows from the head block."""
        block = self._directory.block(self._directory.head)
        block.columns = [column[self._skip : block.rows] for column in block.columns]
        block.rows -= self._skip
        self._skip = 0
        self._head.reset()

    def _pieces(self, block: Block) -> list[Block]:
        """Cut a block into even pieces of about the block size."""
        k = -(-block.rows // self._layout.block)
        cuts = [block.rows * i // k for i in range(k + 1)]
        return [Block([column[a:b] for column in block.columns], b - a) for a, b in itertools.pairwise(cuts)]

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest entries, or as many as there are; return how many."""
        if count >= self._len:
            return self._clear()
        if count <= 0:
            return 0
        self._len -= count
        skip = self._skip + count
        position = self._directory.head
        if self._has_blocks():
            rows = self._levels.rows(position)
            if skip == rows:
                position, skip = position + 1, 0
            elif skip > rows:
                position, skip = self._levels.seek_count(position, skip)
        self._cut(position, skip)
        return count

    def bulk_evict(self, time: int) -> int:
        """Evict all entries with a time <= `time`; return how many."""
        if not self._len or time < self.oldest:  # type: ignore[operator]
            return 0
        if time >= self._newest:
            return self._clear()
        position, row = self._locate(time, "right")
        directory = self._directory
        if position == directory.head:
            count = row - self._skip
        else:
            count = self._levels.count(directory.head, position) - self._skip + row
        self._cut(position, row)
        self._len -= count
        return count

    def _cut(self, position: int, row: int) -> None:
        """Make row `row` of the block at `position` the oldest; `position` is the tail's where it is its end."""
        self._answers = self._totals = None
        directory = self._directory
        if position != directory.head:
            self._head.reset()
            self._split = 0
            directory.advance(position)
            self._levels.advance(position)
            directory.sweep(_SWEEP)
        self._skip = row

    def _clear(self) -> int:
        count = self._len
        self._answers = self._totals = None
        self._directory.advance(self._directory.tail)
        self._levels.advance(self._levels.tail)
        self._directory.sweep(_SWEEP)
        self._middle.reset()
        self._head.reset()
        self._tail.clear()
        self._skip = self._split = self._len = 0
        self._newest = _BEFORE_ALL
        return count

    def sweep(self, blocks: int = 256) -> bool:
        """Free the memory of up to `blocks` evicted blocks; return whether there are more."""
        return self._directory.sweep(blocks)

    # ---------------------------------------------------------------- reading

    def query(self) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        if self._answers is None:
            self._answers = self._layout.lower(self._len, self.totals())
        return self._answers

    def totals(self) -> list[Partial]:
        """The partials over all entries, one per slot."""
        if self._totals is None:
            self._totals = self._fold_all()
        return self._totals

    def range_query(self, start: int, end: int) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(start, end)
        return entries, self._layout.lower(entries, partials)

    def range_totals(self, start: int, end: int) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        layout = self._layout
        if not self._len or start > end or start > self._newest or end < self.oldest:  # type: ignore[operator]
            return 0, list(layout.identities)
        if end >= self._newest and start <= self.oldest:  # type: ignore[operator]
            return self._len, self.totals()
        a, first_row = self._locate(start, "left")
        b, stop_row = self._locate(end, "right")
        if a == b:
            return stop_row - first_row, layout.reduce(self._columns(a), first_row, stop_row)
        entries, parts = 0, []
        if first_row:
            block = self._directory.block(a)
            entries += block.rows - first_row
            parts.append(layout.reduce(block.columns, first_row, block.rows))
            a += 1
        if a < b:
            entries += self._levels.count(a, b)
            parts.append(self._levels.fold(a, b))
        if stop_row:
            entries += stop_row
            whole_tail = b == self._directory.tail and stop_row == self._tail.rows
            parts.append(self._tail.fold(0) if whole_tail else layout.reduce(self._columns(b), 0, stop_row))
        total = parts[0]
        for part in parts[1:]:
            total = layout.combine(total, part)
        return entries, total

    def columns(self) -> list[Array]:
        """All entries as columns (copies): times, then one array per field."""
        directory = self._directory
        pieces = [directory.block(p) for p in range(directory.head, directory.tail)]
        chunks = [[column[: block.rows] for column in block.columns] for block in [*pieces, self._tail]]
        return [np.concatenate(column)[self._skip :] for column in zip(*chunks, strict=True)]

    def _fold_all(self) -> list[Partial]:
        combine, tail = self._layout.combine, self._tail
        if not self._has_blocks():
            if not self._skip:
                return tail.fold(0)
            if self._skip >= self._split:
                self._split = tail.rows
                self._head.reset()
            front = self._head.fold(tail.columns, self._skip, self._split)
            return combine(front, tail.fold(self._split)) if self._split < tail.rows else front
        directory = self._directory
        if self._skip:
            block = directory.block(directory.head)
            total = self._head.fold(block.columns, self._skip, block.rows)
            middle = self._middle.fold(directory.head + 1)
            if middle is not None:
                total = combine(total, middle)
        else:
            total = self._middle.fold(directory.head)  # type: ignore[assignment]
        return combine(total, tail.fold(0)) if tail.rows else total

    def _locate(self, time: int, side: str) -> tuple[int, int]:
        """The place of the first entry with a time >= `time` ("left") or > `time` ("right"): block and row.

        The end is row `rows` of the tail, at position `tail`.
        """
        directory = self._directory
        position = directory.ending(time, side)
        columns = self._columns(position)
        rows = self._tail.rows if position == directory.tail else directory.unsettled(position).rows
        skip = self._skip if position == directory.head else 0
        return position, skip + int(columns[0][skip:rows].searchsorted(time, side))  # type: ignore[call-overload]

    def _columns(self, position: int) -> list[Array]:
        directory = self._directory
        return self._tail.columns if position == directory.tail else directory.block(position).columns

    def _front(self) -> tuple[list[Array], int]:
        return self._columns(self._directory.head), self._skip

    def _has_blocks(self) -> bool:
        return self._directory.head < self._directory.tail

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials; equality where None.
        """
        same = same or (lambda monoid, a, b: bool(a == b))
        directory, levels, tail, layout = self._directory, self._levels, self._tail, self._layout
        assert (directory.head, directory.tail) == (levels.head, levels.tail), "directory and levels agree"
        directory.check_invariants(self._skip)
        levels.check_invariants(same)
        entries = tail.rows - self._skip
        counts, partials = levels.blocks(directory.head, directory.tail)
        for i, position in enumerate(range(directory.head, directory.tail)):
            block = directory.unsettled(position)
            rows = block.rows + sum(b - a for _, a, b in block.pending or [])
            assert counts[i] == rows, f"block {position} has {rows} rows, level 0 says {counts[i]}"
            assert rows <= 2 * layout.block, f"block {position} outgrew its bound: {rows}"
            entries += rows
            whole = directory.block(position)
            for slot, monoid in enumerate(layout.monoids):
                found = monoid.take(partials[slot], i)
                expected = monoid.reduce(layout.values(slot, whole.columns, 0, whole.rows))
                assert same(monoid, found, expected), f"{monoid!r} of block {position}: {found}, not {expected}"
        assert entries == self._len, f"{entries} entries counted, len says {self._len}"
        assert tail.rows < layout.block or not tail.rows, f"the tail has {tail.rows} rows and is not sealed"
        times = self.columns()[0]
        assert (times[1:] >= times[:-1]).all(), "entries are sorted by time"
        if self._len:
            assert times[-1] == self._newest, f"newest is {times[-1]}, not {self._newest}"
            front_rows = tail.rows if not self._has_blocks() else directory.unsettled(directory.head).rows
            assert 0 <= self._skip < front_rows, f"skip {self._skip} lies in the first block"
        else:
            assert self._newest == _BEFORE_ALL, "an empty forest has no newest entry"
        for monoid, found, reads in zip(layout.monoids, self.totals(), layout.reads, strict=True):
            columns = self.columns()
            expected = monoid.reduce([columns[i] for i in reads]) if self._len else monoid.identity
            assert same(monoid, found, expected), f"{monoid!r} over all: {found}, not {expected}"
