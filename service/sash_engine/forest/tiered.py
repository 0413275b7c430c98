"""The directory of a forest whose sealed blocks are kept in a tier.

    position        head                   tail
    ids        1  2  3   7   -   4   -   -           released when swept: those of dropped blocks
    blocks     .  .  .   .   B   .   O   B           B: dirty, in memory   .: stored   O: stored, and rows to sort in
                                     └─ base 5       first, last, counts, partials: as in directory.py

A stored block costs its row in the columns: 32 bytes, and 8 to 66 for each of its partials, 16 where they are large and
stored as well (external.py). `Cold` knows whether its own columns are in memory. A block that gets deferred rows is not
read for that: the rows wait in memory, and are merged when the block is next read.

`fetch` loads several blocks at once before they are read. An operation fetches everything it needs before it changes
anything, so that the forest is as it was where loading fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from sash_engine.errors import DataLoss
from sash_engine.forest.block import Block
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.deferred import DeferredBlock
from sash_engine.forest.directory import BlockRun, Directory
from sash_engine.forest.image import ForestImage
from sash_engine.forest.level import moved
from sash_engine.forest.row_slices import RowSlice
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array

__all__ = ["TieredDirectory"]

_NONE = -1
"""In place of an id: the block is dirty."""


class TieredDirectory(Directory):
    """The sealed blocks head..tail, some in memory and some not.

    Args:
        monoids: one per slot.
        cold: where the others are.
    """

    __slots__ = ("_cold", "_ids", "above", "dirty", "freshen", "unstored_partials")

    loads: ClassVar[bool] = True

    def __init__(self, monoids: Sequence[Monoid], cold: Cold) -> None:
        super().__init__(monoids)
        self._cold = cold
        self._ids: Array = np.empty(0, np.int64)
        self.dirty = 0
        """Entries in blocks that are not stored as they are."""
        self.unstored_partials = 0
        """How many partials are not stored, of blocks that may be; 1 stands for some that were not counted yet."""
        self.above: Callable[[], Callable[[Callable[[], None]], list[PendingBlock]] | None] = lambda: None
        """Returns `Levels.pending_blocks` of the levels above; weak, because they refer to this directory."""
        self.freshen: Callable[[], Callable[[], None] | None] = lambda: None
        """Returns `Stale.freshen`, weak as well."""

    def restore(self, image: ForestImage) -> None:
        """Take the blocks that an image names; there are none so far."""
        assert self.tail == 0, "an unused directory"
        self.restart(image.head)
        self.head = self._swept = image.head
        partials = list(image.partials)
        b, pending = len(image.ids), False
        for slot, _ in self._external if b else ():
            if slot in image.nodes:
                partials[slot] = np.full(b, None), image.nodes[slot][:b]
            else:  # its partials were not large when the image was made
                partials[slot] = partials[slot][0], np.full(b, _NONE)
                pending = True
        self.extend(BlockRun([None] * b, image.first, image.last, image.counts, partials, image.ids))
        if pending:
            self.note_unstored_partials()

    # ---------------------------------------------------------------- growing and shrinking

    def append(self, columns: list[Array], partials: Sequence[Partial]) -> None:
        """Add one block of all rows of `columns`; `partials` has its fold per slot."""
        super().append(columns, partials)
        self._ids[self.tail - 1 - self.base] = _NONE
        self._cold.note_dirty(self, len(columns[0]))

    def extend(self, run: BlockRun) -> None:
        """Add the blocks of a run."""
        assert run.ids is not None, "a run of a directory like this one"
        super().extend(run)
        start = self.tail - len(run.blocks)
        self._ids[start - self.base : self.tail - self.base] = run.ids
        self._note_dirty_range(start, self.tail, 1)

    def extend_whole(self, columns: Sequence[Array], k: int, block: int, partials: Sequence[Partials]) -> None:
        """Add the first k * block rows of sorted columns as k blocks, without copying them."""
        super().extend_whole(columns, k, block, partials)
        row = self.tail - self.base
        self._ids[row - k : row] = _NONE
        self._cold.note_dirty(self, k * block)

    def exchange(
        self, position: int, drop: int, pieces: Sequence[list[Array]], folds: Sequence[Sequence[Partial]]
    ) -> None:
        """Put other blocks in the place of `drop` of them: see `Directory.exchange`."""
        row = position - self.base
        ids = self._ids[row : row + drop]
        gone = int(self.counts[row : row + drop][ids == _NONE].sum())
        self._release_blocks(row, row + drop)
        super().exchange(position, drop, pieces, folds)
        row = position - self.base
        self._ids[row : row + len(pieces)] = _NONE
        self._cold.note_dirty(self, sum(len(columns[0]) for columns in pieces) - gone)

    def _shift(self, start: int, stop: int, by: int) -> None:
        super()._shift(start, stop, by)
        self._ids[start + by : stop + by] = self._ids[start:stop]

    def _move(self, dead: int, rows: int, capacity: int) -> None:
        super()._move(dead, rows, capacity)
        self._ids = moved(self._ids, dead, rows, capacity)

    def advance(self, head: int) -> None:
        """Drop the blocks before `head`; their ids are released when they are swept."""
        self._note_dirty_range(self.head, head, -1)
        super().advance(head)
        if self.unstored_partials and head == self.tail:
            self.unstored_partials = 0
            self._cold.note_dirty(self, 0)

    def truncate(self, position: int) -> None:
        """Forget the blocks from `position` on: those that are stored must have been kept, to be added again."""
        self._note_dirty_range(position, self.tail, -1)
        super().truncate(position)

    def sweep(self, most: int) -> bool:
        """Free up to `most` dropped blocks and release their ids; return whether there are more."""
        start, stop = self._swept - self.base, min(self._swept + most, self.head) - self.base
        if start < stop:
            self._release_blocks(start, stop)
            self.release(slice(start, stop))
        return super().sweep(most)

    def _release_blocks(self, start: int, stop: int) -> None:
        """Release the ids of the blocks in rows start..stop, which are not needed any more."""
        for number, block in zip(self._ids[start:stop].tolist(), self._blocks[start:stop], strict=True):
            if number != _NONE:
                self._cold.release(number)
            elif type(block) is DeferredBlock:
                self._cold.release(block.stored_id)

    def relevel(self, monoids: Sequence[Monoid], columns: list[Partials]) -> None:
        """Keep the blocks and replace the partials; stored ones that are not among `columns` are released."""
        self.sweep(self.tail)
        before = self._stored_partials()
        super().relevel(monoids, columns)
        after = set(self._stored_partials())
        for number in before:
            if number not in after:
                self._cold.release(number)
        self.note_unstored_partials()

    def note_unstored_partials(self) -> None:
        """Partials were made, of blocks that may be stored already."""
        if self.has_external and not self.unstored_partials:
            self.unstored_partials = 1
            self._cold.note_dirty(self, 0)

    def _note_dirty_range(self, start: int, stop: int, sign: int) -> None:
        """The dirty ones of the blocks start..stop have come (1) or gone (-1)."""
        if start == stop or (sign < 0 and not self.dirty):
            return
        if stop - start == 1:  # the usual case, and some microseconds cheaper
            if self._ids.item(start - self.base) == _NONE:
                self._cold.note_dirty(self, sign * self.count(start))
            return
        rows = slice(start - self.base, stop - self.base)
        entries = int(np.add.reduce(self.counts[rows][self._ids[rows] == _NONE]))
        if entries:
            self._cold.note_dirty(self, sign * entries)

    # ---------------------------------------------------------------- reading and changing blocks

    def fetch(self, positions: Iterable[int], partials: Sequence[int] = ()) -> None:
        """Load what is missing of the blocks at `positions` and of stored partials, in one go; `tail` is none."""
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

    def scanned(self, positions: Sequence[int]) -> list[Block]:
        """The blocks at `positions`, to be looked through once; those that are stored come in one round trip."""
        if self._inbox is not None:
            for position in positions:
                self._take(position)
        rows = [position - self.base for position in positions if self._blocks[position - self.base] is None]
        numbers: list[int] = [self._ids.item(row) for row in rows]
        loaded = {
            row + self.base: Block(columns, len(columns[0]))
            for row, columns in zip(rows, self._cold.columns(numbers), strict=True)
        }
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
        return super().raw_block(position)

    def edit(self, position: int, settled: bool = True) -> Block:
        """The block at `position`, to be changed: dirty, and no array of it has room that another could see filled."""
        row = position - self.base
        if self._blocks[row] is not None:
            return super().edit(position, settled)
        number = self._ids.item(row)
        block = self._blocks[row] = self._copy(number, self.count(position))
        self._ids[row] = _NONE
        self._cold.release(number)
        self._cold.note_dirty(self, block.rows)
        return block

    def defer(self, columns: Sequence[Array], positions: Array, bounds: Array) -> None:
        """Keep rows for the blocks at `positions` until those are read; nothing is loaded for that."""
        rows = positions - self.base
        for row in rows[self._ids[rows] != _NONE].tolist():
            self._blocks[row] = DeferredBlock(self._ids.item(row))
            self._ids[row] = _NONE
            self._cold.note_dirty(self, self.counts.item(row))
        super().defer(columns, positions, bounds)

    def change(self, position: int, count: int, partials: Sequence[Partial]) -> None:
        """The block at `position`, a dirty one, has other rows."""
        self._cold.note_dirty(self, count - self.count(position))
        super().change(position, count, partials)

    def change_many(self, positions: Array, counts: Array, columns: Sequence[Partials]) -> None:
        """The blocks at `positions`, int64 (k,), which are dirty, have other rows."""
        self._cold.note_dirty(self, int(counts.sum() - self.counts[positions - self.base].sum()))
        super().change_many(positions, counts, columns)

    def lose(self, positions: Array, rows: Array) -> None:
        """The blocks at `positions`, dirty ones, have so many rows less: see `Directory.lose`."""
        self._cold.note_dirty(self, -int(rows.sum()))
        super().lose(positions, rows)

    def run(self, start: int, stop: int) -> BlockRun:
        """The blocks start..stop, to be added again elsewhere; no block is loaded."""
        return super().run(start, stop)._replace(ids=self._ids[start - self.base : stop - self.base].copy())

    def row_slices(self, places: Sequence[tuple[int, int, int]]) -> list[RowSlice]:
        """Rows first..stop of blocks as they are now; only blocks with deferred rows are loaded."""
        self.fetch(p for p, _, _ in places if type(self._blocks[p - self.base]) is DeferredBlock)
        slices = []
        for position, first, stop in places:
            number = self._ids.item(position - self.base)
            block = self.block(position) if number == _NONE else self._cold.in_flight(number)
            slices.append(
                RowSlice.of_stored(number, first, stop) if block is None else RowSlice.of_block(block, first, stop)
            )
        return slices

    def _load(self, number: int, rows: int) -> Block:
        block = self._cold.block(number)
        if block.rows != rows:
            raise DataLoss(f"stored block {number} has {block.rows} rows, not {rows}")
        return block

    def _copy(self, number: int, rows: int) -> Block:
        """A stored block, to be changed: its arrays have no room, so that a splice copies them."""
        block = self._load(number, rows)
        return Block([column[:rows] for column in block.columns], rows)

    def _settle_deferred(self, row: int, deferred: DeferredBlock) -> Block:
        block = self._copy(deferred.stored_id, self.counts.item(row) - deferred.pending_rows())
        block.pending = deferred.pending
        block.settle()
        self._blocks[row] = block
        self._cold.release(deferred.stored_id)
        return block

    # ---------------------------------------------------------------- storing

    def pending_blocks(self, most: int | None = None) -> list[PendingBlock]:
        """See `Forest.pending_blocks`."""
        if self.stale and (freshen := self.freshen()) is not None:
            freshen()  # a block that is stored would be loaded for that; dropped ones are forgotten
        if not (self.dirty or self.unstored_partials):
            return []
        partials = self._pending_partials() if self.has_external else []
        ids = self._ids[self.head - self.base : self.tail - self.base]
        positions = (np.flatnonzero(ids == _NONE)[:most] + self.head).tolist()
        self.fetch(positions)
        blocks = [self.block(position) for position in positions]
        saved = [
            PendingBlock(block, partial(self._number, p, block), layout=self._cold.layout)
            for p, block in zip(positions, blocks, strict=True)
        ]
        saved += partials if most is None else partials[: max(0, most - len(saved))]
        self.unstored_partials = len(partials)
        self._cold.note_dirty(self, 0)
        return saved

    def _pending_partials(self) -> list[PendingBlock]:
        above = self.above()
        nodes = above(self._stored_one) if above else []
        return self.pending_partials(self.head, self.tail, self._stored_one) + nodes

    def _stored_one(self) -> None:
        """One of the partials that were counted has got its id."""
        self.unstored_partials -= 1
        if not self.unstored_partials:
            self._cold.note_dirty(self, 0)

    def _stored_partials(self) -> list[int]:
        return [number for ids in self.ids(self.head, self.tail) for number in ids.tolist() if number >= 0]

    def _number(self, position: int, block: Block, number: int) -> None:
        """The dirty block at `position` is stored under an id."""
        row = position - self.base
        assert number >= 0, f"{number} is no id"
        assert self.head <= position < self.tail, "the block is still there"
        assert self._blocks[row] is block, "the block is still there"
        if self._inbox is not None:
            self._take(position)
        assert (block.pending, block.gone) == (None, None), "nothing was written since the block was asked for"
        self._blocks[row] = None
        self._ids[row] = number
        self._cold.launch(number, block)
        self._cold.note_dirty(self, -block.rows)
        if not self.dirty:
            self._inbox = None  # a block with rows in it is dirty, so it has none; taken rows would stay in memory

    def dumped(self, columns: Sequence[Partials]) -> list[Partials]:
        """Copies of partials, as an image has them: none of those that are large."""
        large = {slot for slot, _ in self._external}
        return [() if slot in large else tuple([part.copy() for part in parts]) for slot, parts in enumerate(columns)]

    def block_ids(self) -> Array:
        """The ids of all blocks (a copy), int64; all of them are stored."""
        assert not self.dirty, f"{self.dirty} entries are in blocks that are not stored"
        assert not self.stale, "partials are those of the rows"
        return self._ids[self.head - self.base : self.tail - self.base].copy()

    def check_invariants(self, skip: int) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `skip` rows at the head are evicted."""
        assert len(self._ids) == len(self.counts), "one id per row"
        if self._inbox is not None:
            self._hand_out()
        start, stop = self.head - self.base, self.tail - self.base
        numbers, dirty = [], 0
        live = zip(self._ids[start:stop].tolist(), self._blocks[start:stop], strict=True)
        for row, (number, block) in enumerate(live, start):
            assert (number == _NONE) == (block is not None), f"row {row}: id {number} goes with {block}"
            if block is not None:
                dirty += self.counts.item(row)
            if number != _NONE:
                numbers.append(number)
            elif type(block) is DeferredBlock:
                assert block.pending_rows(), f"row {row} has no deferred rows"
                numbers.append(block.stored_id)
        assert len(set(numbers)) == len(numbers), f"ids are unique: {numbers}"
        assert not set(numbers) & set(self._cold.released), "an id that is in use is not released"
        assert dirty == self.dirty, f"{dirty} entries in dirty blocks, not {self.dirty}"
        assert (self in self._cold.dirty) == (dirty > 0 or self.unstored_partials > 0), (
            "a directory with dirty blocks is listed"
        )
        in_memory = any((ids < 0).any() for ids in self.ids(self.head, self.tail))
        assert not in_memory or self.dirty or self.unstored_partials, "a directory with partials to store is listed"
        partials = self._stored_partials()
        assert len(set(partials)) == len(partials), f"ids of partials are unique: {partials}"
        assert not set(partials) & (set(numbers) | set(self._cold.released)), "an id is of one thing that is in use"
        self._cold.check_invariants()
        super().check_invariants(skip)
