"""The directory of sealed blocks, which is level 0: where each time is, known without touching a block.

    position        head               tail
    blocks     x  x  B   B   B   B   B           x: dropped, freed a few at a time ("swept")
    first      .  .  10  20  31  40  55          fence pointers: 16 bytes per block
    last       .  .  19  30  40  54  60
    counts, partials                             those of a level, see level.py

Deferred rows of all blocks wait in one inbox (inbox.py). They are noted on their block when the block is asked for.
Dropping any number of blocks is O(1). Their memory is freed block by block with later writes, because freeing four
thousand arrays at once takes a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from sash_engine.forest.block import Block, Note
from sash_engine.forest.inbox import Inbox
from sash_engine.forest.level import Level, moved
from sash_engine.forest.row_slices import RowSlice
from sash_engine.kernels import first_after, first_from
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array

__all__ = ["Directory", "BlockRun"]

_NO_TIMES: Array = np.empty(0, np.int64)
_SWEEP = 4
"""Dropped blocks freed per sealed block: more than are made, so that what is dropped goes."""


class _Slab:
    """Many whole blocks that came as one bulk. A block is cut out of it when it is asked for."""

    __slots__ = ("_block", "_columns", "_position")

    def __init__(self, columns: Sequence[Array], block: int, position: int) -> None:
        self._columns = columns
        self._block = block
        self._position = position

    def cut(self, position: int) -> Block:
        start = (position - self._position) * self._block
        return Block([column[start : start + self._block] for column in self._columns], self._block)


class BlockRun(NamedTuple):
    """Neighbouring blocks that are removed and added again elsewhere, with copies of their rows of the directory."""

    blocks: Sequence[Block | list[Array] | None]
    first: Array
    last: Array
    counts: Array
    columns: list[Partials]
    ids: Array | None = None
    """int64, where blocks are stored."""


class Directory(Level):
    """The sealed blocks head..tail: the times of their first and last entries, their counts and partials.

    Args:
        monoids: one per slot.
    """

    __slots__ = ("_blocks", "_first", "_inbox", "_last", "_swept", "head", "stale")

    loads: ClassVar[bool] = False
    """Whether blocks may have to be loaded, so that it pays to say before which will be read."""

    def __init__(self, monoids: Sequence[Monoid]) -> None:
        super().__init__(monoids)
        self.head = 0
        """Position of the oldest block; `tail` is one past the position of the newest."""
        self._swept = 0  # positions below have been freed
        self._blocks: list[Block | list[Array] | _Slab | None] = []  # columns: a block that was not asked for so far
        self._first = self._last = _NO_TIMES
        self._inbox: Inbox | None = None
        self.stale: set[int] = set()
        """Positions of blocks whose partials are not those of their rows, and of some that were dropped: stale.py."""

    # ---------------------------------------------------------------- growing and shrinking

    def append(self, columns: list[Array], partials: Sequence[Partial]) -> None:
        """Add one block of all rows of `columns`; `partials` has its fold per slot."""
        times = columns[0]
        rows = len(times)
        row = self.tail - self.base
        if row == len(self.counts):
            row = self.make_room(1, self._swept)
        self.tail += 1
        self._blocks.append(columns)
        self._first[row] = times.item(0)
        self._last[row] = times.item(rows - 1)
        self.counts[row] = rows
        for slot, put in enumerate(self.putters):
            put(row, partials[slot])
        if self._swept < self.head:
            self.sweep(_SWEEP)

    def extend(self, run: BlockRun) -> None:
        """Add the blocks of a run."""
        k = len(run.blocks)
        row = self.reserve(k, self._swept)
        self._blocks.extend(run.blocks)
        self._first[row : row + k] = run.first
        self._last[row : row + k] = run.last
        self.put_many(slice(row, row + k), run.counts, run.columns)

    def extend_whole(self, columns: Sequence[Array], k: int, block: int, partials: Sequence[Partials]) -> None:
        """Add the first k * block rows of sorted columns as k blocks, without copying them."""
        slab, stop = _Slab(columns, block, self.tail), k * block
        row = self.reserve(k, self._swept)
        self._blocks.extend([slab] * k)
        self._first[row : row + k] = columns[0][:stop:block]
        self._last[row : row + k] = columns[0][block - 1 : stop : block]
        self.put_many(slice(row, row + k), np.array(block), partials)
        self.sweep(_SWEEP * k)

    def exchange(
        self, position: int, drop: int, pieces: Sequence[list[Array]], folds: Sequence[Sequence[Partial]]
    ) -> None:
        """Put other blocks in the place of `drop` of them; those behind move on, or back.

        Args:
            position: of the first one to be dropped, or of the one to move on.
            drop: how many there are to be dropped.
            pieces: the columns of each new block.
            folds: its fold per slot.
        """
        if self._inbox is not None:
            self._hand_out()  # positions change, and what waits goes by position
        more, behind_all = len(pieces) - drop, position + drop
        if self.stale:
            self.stale = {p if p < position else p + more for p in self.stale if not position <= p < behind_all}
        self.release(slice(position - self.base, position - self.base + drop))
        self.reserve(more, self._swept)
        row, stop = position - self.base, self.tail - self.base - more
        behind = enumerate(self._blocks[row + drop :], position + drop)
        self._blocks[row:] = [*pieces, *(block.cut(p) if type(block) is _Slab else block for p, block in behind)]
        self._shift(row + drop, stop, more)
        self._clear(slice(row, row + len(pieces)))
        self._clear(slice(stop + more, stop))  # rows that have moved back are there twice
        for at, (columns, partials) in enumerate(zip(pieces, folds, strict=True), row):
            self._first[at], self._last[at] = columns[0][0], columns[0][-1]
            self.put(at, len(columns[0]), partials)

    def _shift(self, start: int, stop: int, by: int) -> None:
        super()._shift(start, stop, by)
        for column in (self._first, self._last):
            column[start + by : stop + by] = column[start:stop]

    def _move(self, dead: int, rows: int, capacity: int) -> None:
        super()._move(dead, rows, capacity)
        self._first = moved(self._first, dead, rows, capacity)
        self._last = moved(self._last, dead, rows, capacity)
        del self._blocks[:dead]

    def advance(self, head: int) -> None:
        """Drop the blocks before `head`."""
        assert self.head <= head <= self.tail
        self.head = head
        if self._inbox is not None and head > self._inbox.newest:
            self._inbox = None

    def sweep(self, most: int) -> bool:
        """Free up to `most` dropped blocks; return whether there are more."""
        position, head = self._swept, self.head
        while position < head and most:
            self._blocks[position - self.base] = None
            position += 1
            most -= 1
        self._swept = position
        return position < head

    def truncate(self, position: int) -> None:
        """Forget the blocks from `position` on, to add others in their place."""
        assert self.head <= position <= self.tail
        assert not self.stale, "positions change"
        row = position - self.base
        del self._blocks[row:]
        self._clear(slice(row, self.tail - self.base))  # not released: the run that was taken of them has the ids
        self.tail = position

    def relevel(self, monoids: Sequence[Monoid], columns: list[Partials]) -> None:
        """Keep the blocks and replace the partials: per slot of `monoids`, one for each block of head..tail."""
        row = self.head - self.base
        self._use(monoids)
        self._hold([tuple(np.empty(len(self.counts), dtype) for dtype in monoid.dtypes) for monoid in monoids])
        self._clear(slice(0, len(self.counts)))
        rows = slice(row, row + self.tail - self.head)
        self.put_many(rows, self.counts[rows], columns)

    # ---------------------------------------------------------------- reading and changing blocks

    def fetch(self, positions: Iterable[int], partials: Sequence[int] = ()) -> None:
        """The blocks at `positions` and stored partials will be read: nothing to do where all are in memory."""

    def note_unstored_partials(self) -> None:
        """Partials were made, of blocks that may be stored already."""

    def block(self, position: int) -> Block:
        """The block at `position`, settled; not to be changed."""
        if self._inbox is not None:
            self._take(position)
        block = self._blocks[position - self.base]
        if type(block) is not Block:
            return self.raw_block(position)
        if block.pending is not None or block.gone is not None:
            block.settle()
        return block

    def unsettled(self, position: int) -> Block:
        """The block at `position`, rows that are gone still in its columns, and none pending; not to be changed."""
        if self._inbox is not None:
            self._take(position)
        block = self._blocks[position - self.base]
        if type(block) is not Block:
            return self.raw_block(position)
        if block.pending is not None:
            block.settle()
        return block

    def scanned(self, positions: Sequence[int]) -> list[Block]:
        """The blocks at `positions`, as `unsettled`, to be looked through once: what is loaded enters no cache."""
        return [self.unsettled(position) for position in positions]

    def raw_block(self, position: int) -> Block:
        """The block at `position` as it is."""
        if self._inbox is not None:
            self._take(position)
        return self._block_for_note(position)

    def edit(self, position: int, settled: bool = True) -> Block:
        """The block at `position`, to be changed; `settled`: without rows that are gone."""
        return self.block(position) if settled else self.unsettled(position)

    def defer(self, columns: Sequence[Array], positions: Array, bounds: Array) -> None:
        """Keep rows for the blocks at `positions` until those are read; see `Inbox.add`."""
        if self._inbox is None:
            self._inbox = Inbox()
        self._note(self._inbox.due(self.head, bounds.item(-1) - bounds.item(0)))
        self._inbox.add(columns, positions, bounds)

    def _take(self, position: int) -> None:
        assert self._inbox is not None
        for note in self._inbox.take(position):
            self._block_for_note(position).defer(*note)

    def _hand_out(self) -> None:
        """Note all rows that wait on their blocks."""
        assert self._inbox is not None
        self._note(self._inbox.all(self.head))
        self._inbox = None

    def _note(self, notes: Iterable[tuple[int, Note]]) -> None:
        for position, note in notes:
            self._block_for_note(position).defer(*note)

    def _block_for_note(self, position: int) -> Block:
        """The block at `position`, to note rows on."""
        row = position - self.base
        block = self._blocks[row]
        if type(block) is list:
            block = self._blocks[row] = Block(block, len(block[0]))
        elif type(block) is _Slab:
            block = self._blocks[row] = block.cut(position)
        assert isinstance(block, Block)
        return block

    def change(self, position: int, count: int, partials: Sequence[Partial]) -> None:
        """The block at `position` has other rows."""
        self.put(position - self.base, count, partials)

    def change_many(self, positions: Array, counts: Array, columns: Sequence[Partials]) -> None:
        """The blocks at `positions`, int64 (k,), have other rows."""
        self.put_many(positions - self.base, counts, columns)

    def lose(self, positions: Array, rows: Array) -> None:
        """The blocks at `positions`, distinct, have so many rows less, int64 (k,); partials are as they were."""
        self.counts[positions - self.base] -= rows

    def run(self, start: int, stop: int) -> BlockRun:
        """The blocks start..stop, to be added again elsewhere."""
        assert not self.stale, "positions change"
        if self._inbox is not None:
            self._hand_out()  # positions change, and what waits goes by position
        found = self._blocks[start - self.base : stop - self.base]
        blocks = [block.cut(p) if type(block) is _Slab else block for p, block in enumerate(found, start)]
        first, last = self.spans(start, stop)
        counts, columns = self.slices(start, stop)
        copies = [tuple([part.copy() for part in parts]) for parts in columns]
        return BlockRun(blocks, first.copy(), last.copy(), counts.copy(), copies)  # type: ignore[arg-type]  # no slabs

    def row_slices(self, places: Sequence[tuple[int, int, int]]) -> list[RowSlice]:
        """Rows first..stop of blocks as they are now; places are (position, first, stop)."""
        return [RowSlice.of_block(self.block(position), first, stop) for position, first, stop in places]

    # ---------------------------------------------------------------- times

    def first(self, position: int) -> int:
        """Time of the first entry of a block; that may be an evicted one in the head."""
        return self._first.item(position - self.base)  # type: ignore[no-any-return]

    def last(self, position: int) -> int:
        """Time of the last entry of a block."""
        return self._last.item(position - self.base)  # type: ignore[no-any-return]

    def spans(self, start: int, stop: int) -> tuple[Array, Array]:
        """First and last times of the blocks start..stop, as views."""
        rows = slice(start - self.base, stop - self.base)
        return self._first[rows], self._last[rows]

    def widen(self, positions: Array | int, first: Array | int, last: Array | int) -> None:
        """Note that entries with times first..last came to the blocks at `positions` (distinct)."""
        rows = positions - self.base
        self._first[rows] = np.minimum(self._first[rows], first)
        self._last[rows] = np.maximum(self._last[rows], last)

    def respan(self, position: int, first: int, last: int) -> None:
        """Note that the entries of a block have times first..last now."""
        self._first[position - self.base] = first
        self._last[position - self.base] = last

    def ending(self, time: int, side: str) -> int:
        """The first block whose last time is >= `time` ("left") or > `time` ("right"); `tail` if none."""
        base, find = self.base, first_from if side == "left" else first_after
        return base + find(self._last, self.head - base, self.tail - base, time)

    def owner(self, time: int) -> int:
        """The position of the block that an entry of that time is sorted into."""
        base = self.base
        return max(base + first_after(self._first, self.head - base, self.tail - base, time) - 1, self.head)

    def owners(self, times: Array) -> Array:
        """`owner` of each of many times: int64 (m,)."""
        rows = self._first[self.head - self.base : self.tail - self.base]
        return self.head + np.maximum(rows.searchsorted(times, "right") - 1, 0)

    def check_invariants(self, skip: int) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `skip` rows at the head are evicted."""
        assert self.base <= self._swept <= self.head <= self.tail, "base <= swept <= head <= tail"
        assert len(self._blocks) == self.tail - self.base, "one list entry per position"
        before = None
        for position in range(self.head, self.tail):
            block = self.raw_block(position)
            settled = not block.pending and not block.gone
            rows = block.columns[0][skip if position == self.head and settled else 0 : block.rows]
            assert (rows[1:] >= rows[:-1]).all(), f"block {position} is not sorted"
            times = np.concatenate([rows, *(c[0][a:b] for c, a, b in block.pending or [])])
            first, last = self._first[position - self.base], self.last(position)
            assert len(times), f"block {position} is empty"
            assert last == times.max(), f"block {position} ends at {times.max()}, not {last}"
            early = position == self.head and skip and first < times.min()  # its first one is evicted
            assert early or first == times.min(), f"block {position} starts at {times.min()}, not {first}"
            assert before is None or first >= before, f"block {position} starts before its left neighbour ends"
            before = last
