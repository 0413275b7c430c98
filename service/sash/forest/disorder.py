"""Out of order: newcomers that belong into sealed blocks.

    newcomers    4  4   17        52 53                 sorted; each block owns the times from its first on
                 |  |    |         |  |
    blocks     [ 1..9 ] [ 10..31 ] [ 40..90 ]           up to twice the block size, then cut into even pieces

Where every aggregate commutes, many newcomers spread over many blocks are *deferred*: their partials go into the
blocks' and their ancestors' now, and their rows into the columns when somebody reads inside the block. Else each
block is spliced and folded again, and all ancestors follow in one pass over the levels. Half a block of newcomers
or more that go between the same two rows become blocks of their own there, without copying.

Cost for m newcomers in k of n blocks: O(m + k log n) deferred, O(m + k (B + log n)) spliced. A cut also rebuilds
the levels behind it: O(blocks behind).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sash.forest.block import Block
from sash.forest.directory import Directory
from sash.forest.layout import Layout
from sash.forest.levels import Levels
from sash.forest.segments import starts_of_runs
from sash.monoids import Partials
from sash.monoids.base import Array

__all__ = ["Splicer", "Touched"]


@dataclass(frozen=True, slots=True)
class Touched:
    """What an insertion did: blocks from `first` on have changed, those from `cut` on were replaced and moved."""

    first: int
    cut: int | None


class Splicer:
    """Inserts into the sealed blocks of a directory.

    Args:
        directory: the blocks.
        levels: what follows from them.
        layout: what they hold.
    """

    __slots__ = ("_directory", "_layout", "_levels")

    def __init__(self, directory: Directory, levels: Levels, layout: Layout) -> None:
        self._directory = directory
        self._levels = levels
        self._layout = layout

    def insert(self, rows: Sequence[Array], skip: int) -> Touched:
        """Insert m >= 1 sorted rows, none of them behind the last block.

        Args:
            rows: the columns.
            skip: rows of the head block that are evicted; nothing is spliced before them. Where the head block
                is replaced (`cut` is the head), they are gone.
        """
        directory, times = self._directory, rows[0]
        if 2 * len(times) >= self._layout.block:
            first, last = directory.owners(times[[0, -1]]).tolist()
            at = self._only_gap(first, times, skip) if first == last else None
            if at is not None:
                return self._insert_run(first, at, rows, skip)
        owners = directory.owners(times)
        starts = starts_of_runs(owners)
        positions = owners[starts]
        bounds = [*starts.tolist(), len(owners)]
        if len(positions) > 1 and self._layout.commutative:
            self._defer(rows, starts, positions, bounds, skip)
        else:
            for position, (a, b) in zip(positions.tolist(), itertools.pairwise(bounds), strict=True):
                self._splice(position, [column[a:b] for column in rows], skip)
        self._levels.refresh(positions)
        return Touched(int(positions[0]), self._cut_overfull(positions, skip))

    def _only_gap(self, position: int, times: Array, skip: int) -> int | None:
        """The row of a block before which all `times` belong; None where there are several."""
        block = self._directory.block(position)
        skip = skip if position == self._directory.head else 0
        first, last = (block.columns[0][skip : block.rows].searchsorted(times[[0, -1]], "right") + skip).tolist()
        return first if first == last else None

    def _insert_run(self, position: int, at: int, rows: Sequence[Array], skip: int) -> Touched:
        """Put newcomers between two rows of a block, as blocks of their own."""
        directory = self._directory
        block = directory.block(position)
        skip = skip if position == directory.head else 0
        parts: list[list[Block] | _Kept] = [self._pieces(rows)]
        behind = position  # the first block that stays as it is
        if at == block.rows:
            position = behind = position + 1
        elif at:
            behind += 1
            if at > skip:
                parts.insert(0, self._pieces([column[skip:at] for column in block.columns]))
            parts.append(self._pieces([column[at : block.rows] for column in block.columns]))
        parts.append(self._kept(behind))
        self._rebuild(position, parts)
        return Touched(position, position)

    def _splice(self, position: int, newcomers: list[Array], skip: int) -> None:
        directory = self._directory
        block = directory.block(position)
        block.splice(newcomers, skip if position == directory.head else 0)
        directory.widen(position, newcomers[0][0], newcomers[0][-1])
        partials = self._layout.reduce_rows(block.columns, 0, block.rows)
        directory.put(position - directory.base, block.rows, partials)

    def _defer(self, rows: Sequence[Array], starts: Array, positions: Array, bounds: Sequence[int], skip: int) -> None:
        directory = self._directory
        blocks = directory.blocks_at(positions)
        places = zip(blocks, bounds, bounds[1:], strict=False)
        if skip and positions[0] == directory.head:
            # The newcomers belong behind rows that are evicted, whatever their times.
            block, a, b = next(places)
            block.settle()
            block.splice([column[a:b] for column in rows], skip)
        for block, a, b in places:
            block.defer(rows, a, b)
        ends = np.append(starts[1:], len(rows[0]))
        directory.widen(positions, rows[0][starts], rows[0][ends - 1])
        newcomers, at = self._layout.reduce_segments(rows, starts), positions - directory.base
        partials = [
            monoid.combine_columns(tuple([part[at] for part in mine]), theirs)
            for monoid, mine, theirs in zip(self._layout.monoids, directory.columns, newcomers, strict=True)
        ]
        directory.put_many(at, directory.counts[at] + (ends - starts), partials)

    # ---------------------------------------------------------------- cutting

    def _cut_overfull(self, positions: Array, skip: int) -> int | None:
        """Cut blocks that outgrew twice the block size into even pieces; return where the first of them was."""
        directory = self._directory
        counts = directory.counts[positions - directory.base]
        if counts.max() <= 2 * self._layout.block:
            return None
        overfull: list[int] = positions[counts > 2 * self._layout.block].tolist()
        parts: list[list[Block] | _Kept] = []
        for position, following in itertools.pairwise([*overfull, directory.tail]):
            block = directory.block(position)
            start = skip if position == directory.head else 0
            parts.append(self._pieces([column[start : block.rows] for column in block.columns]))
            parts.append(self._kept(position + 1, following))
        self._rebuild(overfull[0], parts)
        return overfull[0]

    def _rebuild(self, first: int, parts: Sequence[list[Block] | _Kept]) -> None:
        """Put other blocks in the place of all from `first` on."""
        self._directory.truncate(first)
        self._levels.truncate(first)
        for part in parts:
            if isinstance(part, tuple):
                self._directory.extend(*part)
            else:
                for block in part:
                    self._directory.append(block, self._layout.reduce(block.columns))

    def _kept(self, start: int, stop: int | None = None) -> _Kept:
        """Copies of what the directory has for the blocks start..stop, or for all from `start` on."""
        directory = self._directory
        stop = directory.tail if stop is None else stop
        first, last = directory.spans(start, stop)
        counts, columns = directory.slices(start, stop)
        copies = [tuple([part.copy() for part in parts]) for parts in columns]
        return directory.blocks(start, stop), first.copy(), last.copy(), counts.copy(), copies

    def _pieces(self, columns: Sequence[Array]) -> list[Block]:
        """Cut sorted columns into even blocks of at most the block size."""
        rows = len(columns[0])
        k = -(-rows // self._layout.block)
        bounds = [rows * i // k for i in range(k + 1)]
        return [Block([column[a:b] for column in columns], b - a) for a, b in itertools.pairwise(bounds)]


_Kept = tuple[list[Block], Array, Array, Array, list[Partials]]
"""Neighbouring blocks with their first and last times, counts and partials."""
