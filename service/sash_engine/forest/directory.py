"""The directory of sealed blocks, which is level 0: where each time is, known without touching a block.

    position        head               tail
    blocks     x  x  B   B   B   B   B           x: dropped, freed a few at a time ("swept")
    first      .  .  10  20  31  40  55          fence pointers: 16 bytes per block
    last       .  .  19  30  40  54  60
    counts, partials                             those of a level, see level.py

Deferred rows of all blocks wait in one inbox (inbox.py). They are noted on their block when the block is asked for.
Dropping any number of blocks is O(1). Their memory is freed block by block with later writes, because freeing four
thousand arrays at once takes a millisecond.

Blocks may be kept in a tier (cold.py):

    position        head                   tail
    ids        1  2  3   7   -   4   -   -           released when swept: those of dropped blocks
    blocks     .  .  .   .   B   .   O   B           B: dirty, in memory   .: stored   O: stored, and rows to sort in
                                     └─ base 5

A stored block costs its row in the columns: 32 bytes, and 8 to 66 for each of its partials, 16 where they are large and
stored as well (external.py). `Cold` knows whether its own columns are in memory. A block that gets deferred rows is not
read for that: the rows wait in memory, and are merged when the block is next read. Without a tier all blocks are in
memory and have no ids.

`fetch` loads several blocks at once before they are read. An operation fetches everything it needs before it changes
anything, so that the forest is as it was where loading fails.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sash_engine.errors import DataLoss
from sash_engine.forest.block import Block, DeferredBlock, Note, RowSlice
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.image import ForestImage
from sash_engine.forest.inbox import Inbox
from sash_engine.forest.level import Level, moved
from sash_engine.kernels import first_after, first_from
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array

_EMPTY: Array = np.empty(0, np.int64)
_NONE = -1
"""In place of an id: the block is not stored, or not as it is (dirty). So does every id below 0: of `_NONE - k`, k rows
are in the tier, and the others wait to be sorted in."""

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


class Exchange(NamedTuple):
    """Blocks that come in the place of others."""

    position: int
    """Of the first block to be dropped, or of the one that moves on."""
    drop: int
    """How many blocks are dropped."""
    pieces: Sequence[list[Array]]
    """The columns of each new block."""
    folds: Sequence[Sequence[Partial]]
    """Its fold per slot."""


class Directory(Level):
    """The sealed blocks head..tail: the times of their first and last entries, their counts, partials and ids.

    Args:
        monoids: one per slot.
        cold: where the blocks are that are not in memory; None: all are in memory.
    """

    __slots__ = (
        "_blocks",
        "_cold",
        "_first",
        "_ids",
        "_inbox",
        "_last",
        "_swept",
        "above",
        "dirty",
        "head",
        "loads",
        "stale",
        "unstored_partials",
    )

    def __init__(self, monoids: Sequence[Monoid], cold: Cold | None = None) -> None:
        super().__init__(monoids)
        self._cold = cold
        self.loads = cold is not None
        """Whether blocks may have to be loaded, so that it pays to say before which will be read."""
        self.head = 0
        """Position of the oldest block; `tail` is one past the position of the newest."""
        self._swept = 0  # positions below have been freed
        # None: dropped, or stored. Columns: a block that was not asked for so far.
        self._blocks: list[Block | list[Array] | _Slab | None] = []
        self._first = self._last = self._ids = _EMPTY
        self._inbox: Inbox | None = None
        self.stale: set[int] = set()
        """Positions of blocks whose partials are not those of their rows, and of some that were dropped: levels.py."""
        self.dirty = 0
        """Entries in memory of blocks that are not stored as they are; 0 without a tier."""
        self.unstored_partials = 0
        """How many partials are not stored, of blocks that may be; 1 stands for some that were not counted yet."""
        self.above: Callable[[], Callable[[Callable[[], None]], list[PendingBlock]] | None] = lambda: None
        """Returns `Levels.pending_blocks` of the levels above; weak, because they refer to this directory."""

    def restore(self, image: ForestImage) -> None:
        """Take the blocks that an image names; there are none so far."""
        assert self.tail == 0, "an unused directory"
        self.restart(image.head)
        self.head = self._swept = image.head
        partials = list(image.partials)
        b, pending = len(image.ids), False
        for slot, _ in self.external if b else ():
            if slot in image.nodes:
                partials[slot] = np.full(b, None), image.nodes[slot][:b]
            else:  # its partials were not large when the image was made
                partials[slot] = partials[slot][0], np.full(b, _NONE)
                pending = True
        row = self.reserve(b, image.head)
        rows = slice(row, row + b)
        self._blocks.extend([None] * b)
        self._first[rows], self._last[rows], self._ids[rows] = image.first, image.last, image.ids
        self.put_many(rows, image.counts, partials)
        if pending:
            self.note_unstored_partials()

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
        self._ids[row] = _NONE
        self.counts[row] = rows
        for slot, put in enumerate(self.putters):
            put(row, partials[slot])
        if self._swept < self.head:
            self.sweep(_SWEEP)
        self._note_dirty(rows)

    def extend_whole(self, columns: Sequence[Array], k: int, block: int, partials: Sequence[Partials]) -> None:
        """Add the first k * block rows of sorted columns as k blocks, without copying them."""
        slab, stop = _Slab(columns, block, self.tail), k * block
        row = self.reserve(k, self._swept)
        self._blocks.extend([slab] * k)
        self._first[row : row + k] = columns[0][:stop:block]
        self._last[row : row + k] = columns[0][block - 1 : stop : block]
        self._ids[row : row + k] = _NONE
        self.put_many(slice(row, row + k), np.array(block), partials)
        self.sweep(_SWEEP * k)
        self._note_dirty(stop)

    def exchange(self, changes: Sequence[Exchange]) -> None:
        """Put blocks in the place of others; those behind move on, or back. `changes` are in order, one at least."""
        if self._inbox is not None:
            self._hand_out()  # positions change, and what waits goes by position
        first, n, more, dirty = changes[0].position, self.tail - changes[0].position, 0, 0
        places = list[int]()  # of the new blocks
        runs = list[tuple[int, int, int]]()  # blocks that stay, counted from `first`: from, up to, and where they go
        for i, (position, drop, pieces, _) in enumerate(changes):
            places += range(position + more, position + more + len(pieces))
            rows = slice(position - self.base, position - self.base + drop)
            if self._cold is not None:  # nobody else asks how many, and counting takes 3 of 17 µs
                dirty -= self._dirty_in(rows)
            self._release_blocks(rows.start, rows.stop)
            self.release(rows)
            more += len(pieces) - drop
            a, b = position - first + drop, changes[i + 1].position - first if i + 1 < len(changes) else n
            runs.append((a, b, a + more))
        if self.stale:
            self._move_stale(first, runs)
        self.reserve(more, self._swept)
        start = first - self.base
        for column in (self.counts, self._first, self._last, self._ids, *(part for p in self.columns for part in p)):
            old = column[start : start + n]
            if len(runs) > 1:  # one run may overlap with its own place
                old = old.copy()
            for a, b, to in runs:
                column[start + to : start + to + b - a] = old[a:b]
        blocks: list[Block | list[Array] | _Slab | None] = [None] * (n + more)
        for a, b, to in runs:
            those = enumerate(self._blocks[start + a : start + b], first + a)
            blocks[to : to + b - a] = [block.cut(p) if type(block) is _Slab else block for p, block in those]
        self._blocks[start:] = blocks
        # Neither new rows nor those that are left over have stored partials.
        self._clear(np.array(places, np.int64) - self.base)
        self._clear(slice(start + n + more, start + n))
        made = [each for change in changes for each in zip(change.pieces, change.folds, strict=True)]
        for place, (columns, partials) in zip(places, made, strict=True):
            row = place - self.base
            self._blocks[row] = columns
            self._first[row], self._last[row], self._ids[row] = columns[0][0], columns[0][-1], _NONE
            self.put(row, len(columns[0]), partials)
            dirty += len(columns[0])
        self._note_dirty(dirty)

    def _move_stale(self, first: int, runs: Sequence[tuple[int, int, int]]) -> None:
        """Blocks from `first` on move, as `exchange` says, or are gone."""
        moved, starts = set[int](), [a for a, _, _ in runs]
        for position in self.stale:
            run = bisect_right(starts, position - first) - 1
            if position < first:
                moved.add(position)
            elif run >= 0 and position - first < runs[run][1]:
                moved.add(position - runs[run][0] + runs[run][2])
        self.stale = moved

    def make_room(self, k: int, live: int) -> int:
        base = self.base
        rows = super().make_room(k, live)
        dead, mine = self.base - base, (self._first, self._last, self._ids)
        self._first, self._last, self._ids = moved(mine, dead, rows, len(self.counts))
        del self._blocks[:dead]
        return rows

    def advance(self, head: int) -> None:
        """Drop the blocks before `head`; their ids are released when they are swept."""
        assert self.head <= head <= self.tail
        self._note_dropped(self.head, head)
        self.head = head
        if self._inbox is not None and head > self._inbox.newest:
            self._inbox = None
        if self.unstored_partials and head == self.tail:
            self.unstored_partials = 0
            self._note_dirty(0)

    def sweep(self, most: int) -> bool:
        """Free up to `most` dropped blocks and release their ids; return whether there are more."""
        stop = min(self._swept + most, self.head)
        if self.loads and self._swept < stop:
            self._release_blocks(self._swept - self.base, stop - self.base)
            self.release(slice(self._swept - self.base, stop - self.base))
        for position in range(self._swept, stop):
            self._blocks[position - self.base] = None
        self._swept = max(self._swept, stop)
        return self._swept < self.head

    def _release_blocks(self, start: int, stop: int) -> None:
        """Release the ids of the blocks in rows start..stop, which are not needed any more."""
        if self._cold is None:
            return
        for number, block in zip(self._ids[start:stop].tolist(), self._blocks[start:stop], strict=True):
            if number >= 0:
                self._cold.release(number)
            elif type(block) is DeferredBlock:
                self._cold.release(block.stored_id)

    def relevel(self, monoids: Sequence[Monoid], columns: list[Partials]) -> None:
        """Keep the blocks and replace the partials: per slot of `monoids`, one for each block of head..tail.

        Stored partials that are not among `columns` are released.
        """
        if self.loads:
            self.sweep(self.tail)
        before, row = self._stored_partials(), self.head - self.base
        self._use(monoids)
        self._hold([tuple(np.empty(len(self.counts), dtype) for dtype in monoid.dtypes) for monoid in monoids])
        self._clear(slice(0, len(self.counts)))
        rows = slice(row, row + self.tail - self.head)
        self.put_many(rows, self.counts[rows], columns)
        after = set(self._stored_partials())
        if self._cold is not None:
            for number in before:
                if number not in after:
                    self._cold.release(number)
        self.note_unstored_partials()

    def note_unstored_partials(self) -> None:
        """Partials were made, of blocks that may be stored already."""
        if self.has_external and not self.unstored_partials:
            self.unstored_partials = 1
            self._note_dirty(0)

    def _note_dirty(self, entries: int) -> None:
        """So many entries have come to dirty blocks, or left them where it is negative."""
        if self._cold is not None:
            self._cold.note_dirty(self, entries)

    def _dirty_in(self, rows: slice) -> int:
        """How many entries the dirty ones of some blocks have in memory."""
        counts, ids = self.counts[rows], self._ids[rows]
        return int(np.add.reduce((counts + (ids - _NONE))[ids < 0]))

    def _note_dropped(self, start: int, stop: int) -> None:
        """The blocks start..stop are gone, the dirty ones among them, too."""
        if start == stop or not self.dirty:
            return
        if stop - start == 1:  # the usual case, and some microseconds cheaper
            number = self._ids.item(start - self.base)
            if number < 0:
                self._note_dirty(_NONE - number - self.count(start))
            return
        entries = self._dirty_in(slice(start - self.base, stop - self.base))
        if entries:
            self._note_dirty(-entries)

    # ---------------------------------------------------------------- reading and changing blocks

    def fetch(self, positions: Iterable[int], partials: Sequence[int] = ()) -> None:
        """Load what is missing of the blocks at `positions` and of stored partials, in one go; `tail` is none."""
        if self._cold is None:
            return
        numbers = list(partials)
        for position in positions:
            if position < self.tail:
                row = position - self.base
                block = self._blocks[row]
                if block is None:
                    numbers.append(self._ids.item(row))
                elif type(block) is DeferredBlock:
                    numbers.append(block.stored_id)
        if numbers:
            self._cold.fetch(numbers)

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
        """The blocks at `positions`, as `unsettled`, to be looked through once.

        Those that are stored come in one round trip and enter no cache.
        """
        if self._inbox is not None:
            for position in positions:
                self._take(position)
        loaded = dict[int, Block]()
        if self._cold is not None:
            stored = [position for position in positions if self._blocks[position - self.base] is None]
            numbers: list[int] = [self._ids.item(position - self.base) for position in stored]
            for position, columns in zip(stored, self._cold.columns(numbers), strict=True):
                loaded[position] = Block(columns, len(columns[0]))
        return [loaded[position] if position in loaded else self.unsettled(position) for position in positions]

    def raw_block(self, position: int) -> Block:
        """The block at `position` as it is, loaded if need be."""
        if self._inbox is not None:
            self._take(position)
        row = position - self.base
        block = self._blocks[row]
        if block is None:
            return self._load(self._ids.item(row), self.count(position))
        if type(block) is DeferredBlock:
            return self._settle_deferred(row, block)
        return self._block_for_note(position)

    def edit(self, position: int, settled: bool = True) -> Block:
        """The block at `position`, to be changed; `settled`: without rows that are gone.

        It is dirty, and no array of it has room that another could see filled.
        """
        row = position - self.base
        if self._blocks[row] is not None:
            return self.block(position) if settled else self.unsettled(position)
        number = self._ids.item(row)
        block = self._blocks[row] = self._copy(number, self.count(position))
        self._ids[row] = _NONE
        self._release(number)
        self._note_dirty(block.rows)
        return block

    def defer(self, columns: Sequence[Array], positions: Array, bounds: Array) -> None:
        """Keep rows for the blocks at `positions` until those are read; nothing is loaded for that. See `Inbox.add`."""
        rows = positions - self.base
        for row in rows[self._ids[rows] >= 0].tolist():
            self._blocks[row] = DeferredBlock(self._ids.item(row))
            self._ids[row] = _NONE - self.counts.item(row)
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
        """The block at `position`, a dirty one, has other rows."""
        self._note_dirty(count - self.count(position))
        self.put(position - self.base, count, partials)

    def change_many(self, positions: Array, counts: Array, columns: Sequence[Partials]) -> None:
        """The blocks at `positions`, int64 (k,), which are dirty, have other rows."""
        if self.loads:
            self._note_dirty(int(counts.sum() - self.counts[positions - self.base].sum()))
        self.put_many(positions - self.base, counts, columns)

    def lose(self, positions: Array, rows: Array) -> None:
        """The blocks at `positions`, distinct and dirty, have so many rows less, int64 (k,); partials are as before."""
        if self.loads:
            self._note_dirty(-int(rows.sum()))
        self.counts[positions - self.base] -= rows

    def row_slices(self, places: Sequence[tuple[int, int, int]]) -> list[RowSlice]:
        """Rows first..stop of blocks as they are now; places are (position, first, stop).

        Only blocks with deferred rows are loaded.
        """
        self.fetch(p for p, _, _ in places if type(self._blocks[p - self.base]) is DeferredBlock)
        slices = []
        for position, first, stop in places:
            number = self._ids.item(position - self.base)
            if number < 0 or self._cold is None:
                block: Block | None = self.block(position)
            else:
                block = self._cold.in_flight(number)
            slices.append(
                RowSlice.of_stored(number, first, stop) if block is None else RowSlice.of_block(block, first, stop)
            )
        return slices

    def _load(self, number: int, rows: int) -> Block:
        assert self._cold is not None, "without a tier all blocks are in memory"
        block = self._cold.block(number)
        if block.rows != rows:
            raise DataLoss(f"stored block {number} has {block.rows} rows, not {rows}")
        return block

    def _copy(self, number: int, rows: int) -> Block:
        """A stored block, to be changed: its arrays have no room, so that a splice copies them."""
        block = self._load(number, rows)
        return Block([column[:rows] for column in block.columns], rows)

    def _settle_deferred(self, row: int, deferred: DeferredBlock) -> Block:
        stored = _NONE - self._ids.item(row)
        block = self._copy(deferred.stored_id, stored)
        block.pending = deferred.pending
        block.settle()
        self._blocks[row] = block
        self._ids[row] = _NONE
        self._note_dirty(stored)
        self._release(deferred.stored_id)
        return block

    def _release(self, number: int) -> None:
        """Release an id that no block has any more."""
        assert self._cold is not None, "without a tier there are no ids"
        self._cold.release(number)

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

    # ---------------------------------------------------------------- storing

    def pending_blocks(self, most: int | None = None) -> list[PendingBlock]:
        """See `Forest.pending_blocks`."""
        cold = self._cold
        if cold is None or not (self.stale or self.dirty or self.unstored_partials):
            return []
        above = self.above()
        nodes = [] if above is None else above(self._stored_one)  # first: it folds blocks that are stale
        partials = self.pending_partials(self.head, self.tail, self._stored_one) + nodes
        ids = self._ids[self.head - self.base : self.tail - self.base]
        positions = (np.flatnonzero(ids < 0)[:most] + self.head).tolist()
        self.fetch(positions)
        if self._inbox is not None:
            self._hand_out()  # all at once: a third of what it costs to look for the rows of each block
        blocks = [self.block(position) for position in positions]
        saved = [
            PendingBlock(block, partial(self._number, p, block), layout=cold.layout)
            for p, block in zip(positions, blocks, strict=True)
        ]
        saved += partials if most is None else partials[: max(0, most - len(saved))]
        self.unstored_partials = len(partials)
        self._note_dirty(0)
        return saved

    def _stored_one(self) -> None:
        """One of the partials that were counted has got its id."""
        self.unstored_partials -= 1
        if not self.unstored_partials:
            self._note_dirty(0)

    def _stored_partials(self) -> list[int]:
        return [number for ids in self.ids(self.head, self.tail) for number in ids.tolist() if number >= 0]

    def _number(self, position: int, block: Block, number: int) -> None:
        """The dirty block at `position` is stored under an id."""
        row = position - self.base
        assert self._cold is not None, "only a tier gives ids"
        assert number >= 0, f"{number} is no id"
        assert self.head <= position < self.tail, "the block is still there"
        assert self._blocks[row] is block, "the block is still there"
        assert self._inbox is None, "it was handed out"
        assert (block.pending, block.gone) == (None, None), "nothing was written since the block was asked for"
        self._blocks[row] = None
        self._ids[row] = number
        self._cold.launch(number, block)
        self._note_dirty(-block.rows)

    def dumped(self, columns: Sequence[Partials]) -> list[Partials]:
        """Copies of partials, as an image has them: none of those that are large."""
        large = {slot for slot, _ in self.external}
        return [() if slot in large else tuple([part.copy() for part in parts]) for slot, parts in enumerate(columns)]

    def block_ids(self) -> Array:
        """The ids of all blocks (a copy), int64; all of them are stored."""
        assert not self.dirty, f"{self.dirty} entries are in blocks that are not stored"
        assert not self.stale, "partials are those of the rows"
        return self._ids[self.head - self.base : self.tail - self.base].copy()

    def check_invariants(self, skip: int) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `skip` rows at the head are evicted."""
        assert self.base <= self._swept <= self.head <= self.tail, "base <= swept <= head <= tail"
        if self._cold is not None:
            self._check_stored(self._cold)
        assert len(self._blocks) == self.tail - self.base, "one list entry per position"
        before = None
        for position in range(self.head, self.tail):
            block = self.raw_block(position)
            settled = not block.pending and not block.gone
            count = block.rows + sum(b - a for _, a, b in block.pending or []) - len(block.gone or [])
            assert self.count(position) == count, f"block {position} has {count} rows, not {self.count(position)}"
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

    def _check_stored(self, cold: Cold) -> None:
        assert len(self._ids) == len(self.counts), "one id per row"
        if self._inbox is not None:
            self._hand_out()
        start, stop = self.head - self.base, self.tail - self.base
        numbers, dirty = [], 0
        live = zip(self._ids[start:stop].tolist(), self._blocks[start:stop], strict=True)
        for row, (number, block) in enumerate(live, start):
            assert (number < 0) == (block is not None), f"row {row}: id {number} goes with {block}"
            assert (number < _NONE) == (type(block) is DeferredBlock), f"row {row}: id {number} goes with {block}"
            if block is not None:
                dirty += self.counts.item(row) + number - _NONE
            if number >= 0:
                numbers.append(number)
            elif type(block) is DeferredBlock:
                assert block.pending, f"row {row} has no deferred rows"
                numbers.append(block.stored_id)
        assert len(set(numbers)) == len(numbers), f"ids are unique: {numbers}"
        assert not set(numbers) & set(cold.released), "an id that is in use is not released"
        assert dirty == self.dirty, f"{dirty} entries in dirty blocks, not {self.dirty}"
        assert (self in cold.dirty) == (dirty > 0 or self.unstored_partials > 0), (
            "a directory with dirty blocks is listed"
        )
        in_memory = any((ids < 0).any() for ids in self.ids(self.head, self.tail))
        assert not in_memory or self.dirty or self.unstored_partials, "a directory with partials to store is listed"
        partials = self._stored_partials()
        assert len(set(partials)) == len(partials), f"ids of partials are unique: {partials}"
        assert not set(partials) & (set(numbers) | set(cold.released)), "an id is of one thing that is in use"
        cold.check_invariants()
