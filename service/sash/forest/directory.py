"""The directory of sealed blocks: where each time is, known without touching a block.

    position        head               tail
    blocks     x  x  B   B   B   B   B           x: dropped, freed a few at a time ("swept")
    first      .  .  10  20  31  40  55          fence pointers: 16 bytes per block
    last       .  .  19  30  40  54  60

Dropping any number of blocks is O(1); their memory goes back block by block with later writes, because freeing
four thousand arrays at once would take a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash.forest.block import Block
from sash.monoids.base import Array

__all__ = ["Directory"]


class _Slab:
    """Many whole blocks that came as one bulk: cut into blocks one by one, when somebody asks for them."""

    __slots__ = ("_block", "_columns", "_position", "_start")

    def __init__(self, columns: Sequence[Array], start: int, block: int, position: int) -> None:
        self._columns = columns
        self._start = start
        self._block = block
        self._position = position

    def cut(self, position: int) -> Block:
        start = self._start + (position - self._position) * self._block
        return Block([column[start : start + self._block] for column in self._columns], self._block)


class Directory:
    """The sealed blocks head..tail with the times of their first and last entries."""

    __slots__ = ("_base", "_blocks", "_first", "_last", "_swept", "head", "tail")

    def __init__(self) -> None:
        self.head = 0
        self.tail = 0
        self._base = 0  # position of _blocks[0] and of row 0
        self._swept = 0  # positions below have been freed
        self._blocks: list[Block | _Slab | None] = []
        self._first: Array = np.empty(4, np.int64)
        self._last: Array = np.empty(4, np.int64)

    def append(self, block: Block, first: int, last: int) -> None:
        """Add one block."""
        row = self._reserve(1)
        self._blocks.append(block)
        self._first[row] = first
        self._last[row] = last
        self.tail += 1

    def extend(self, blocks: Sequence[Block], first: Array, last: Array) -> None:
        """Add k blocks; int64 (k,) times."""
        row, k = self._reserve(len(blocks)), len(blocks)
        self._blocks.extend(blocks)
        self._first[row : row + k] = first
        self._last[row : row + k] = last
        self.tail += k

    def extend_whole(self, columns: Sequence[Array], start: int, k: int, block: int) -> None:
        """Add k blocks of `block` rows each, from row `start` of sorted columns on."""
        row, stop = self._reserve(k), start + k * block
        self._blocks.extend([_Slab(columns, start, block, self.tail)] * k)
        self._first[row : row + k] = columns[0][start:stop:block]
        self._last[row : row + k] = columns[0][start + block - 1 : stop : block]
        self.tail += k

    def advance(self, head: int) -> None:
        """Drop the blocks before `head`."""
        assert self.head <= head <= self.tail
        self.head = head

    def sweep(self, most: int) -> bool:
        """Free up to `most` dropped blocks; return whether there are more."""
        start, stop = self._swept, min(self.head, self._swept + most)
        if start < stop:
            self._blocks[start - self._base : stop - self._base] = [None] * (stop - start)
            self._swept = stop
        return stop < self.head

    def truncate(self, position: int) -> None:
        """Forget the blocks from `position` on, to add others in their place."""
        del self._blocks[position - self._base :]
        self.tail = position

    def spans(self, start: int, stop: int) -> tuple[Array, Array]:
        """First and last times of the blocks start..stop, as copies."""
        rows = slice(start - self._base, stop - self._base)
        return self._first[rows].copy(), self._last[rows].copy()

    def block(self, position: int) -> Block:
        """The block at `position`, its pending rows sorted in."""
        block = self.unsettled(position)
        if block.pending is not None:
            block.settle()
        return block

    def unsettled(self, position: int) -> Block:
        """The block at `position` as it is."""
        row = position - self._base
        block = self._blocks[row]
        if type(block) is _Slab:
            block = self._blocks[row] = block.cut(position)
        assert type(block) is Block
        return block

    def first(self, position: int) -> int:
        """Time of the first entry of a block."""
        return int(self._first[position - self._base])

    def last(self, position: int) -> int:
        """Time of the last entry of a block."""
        return int(self._last[position - self._base])

    def widen(self, positions: Array | int, first: Array | int, last: Array | int) -> None:
        """Note that entries with times first..last came to the blocks at `positions` (distinct)."""
        rows = positions - self._base
        self._first[rows] = np.minimum(self._first[rows], first)
        self._last[rows] = np.maximum(self._last[rows], last)

    def ending(self, time: int, side: str) -> int:
        """The first block whose last time is >= `time` ("left") or > `time` ("right"); `tail` if none."""
        rows = self._last[self.head - self._base : self.tail - self._base]
        return self.head + int(rows.searchsorted(time, side))  # type: ignore[call-overload]

    def owners(self, times: Array) -> Array:
        """For each time the position of the block that an entry of that time is sorted into."""
        rows = self._first[self.head - self._base : self.tail - self._base]
        return self.head + np.maximum(rows.searchsorted(times, "right") - 1, 0)

    def _reserve(self, k: int) -> int:
        row = self.tail - self._base
        if row + k > len(self._first):
            dead = self._swept - self._base
            live = row - dead
            capacity = max(4, 2 * live, live + k)
            self._first = _moved(self._first, dead, row, capacity)
            self._last = _moved(self._last, dead, row, capacity)
            del self._blocks[:dead]
            self._base += dead
            row = live
        return row

    def check_invariants(self, skip: int) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `skip` rows at the head are evicted."""
        assert self._base <= self._swept <= self.head <= self.tail, "base <= swept <= head <= tail"
        assert len(self._blocks) == self.tail - self._base, "one list entry per position"
        before = None
        for position in range(self.head, self.tail):
            block = self.unsettled(position)
            rows = block.columns[0][skip if position == self.head and not block.pending else 0 : block.rows]
            assert (rows[1:] >= rows[:-1]).all(), f"block {position} is not sorted"
            times = np.concatenate([rows, *(c[0][a:b] for c, a, b in block.pending or [])])
            first, last = self.first(position), self.last(position)
            assert len(times), f"block {position} is empty"
            assert last == times.max(), f"block {position} ends at {times.max()}, not {last}"
            assert position == self.head or first == times.min(), f"block {position} starts at {times.min()}"
            assert before is None or first >= before, f"block {position} starts before its left neighbour ends"
            before = last


def _moved(column: Array, start: int, stop: int, capacity: int) -> Array:
    out = np.empty(capacity, column.dtype)
    out[: stop - start] = column[start:stop]
    return out
