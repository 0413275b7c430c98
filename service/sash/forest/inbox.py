"""Newcomers whose splice is deferred, bulk by bulk, until somebody reads inside their blocks.

    run 0   rows 0..2: block 3    2..3: block 4    3..7: block 9        a bulk, sorted, and whose its rows are
    run 1   rows 0..3: block 4    3..4: block 9
    run 2   rows 0..1: block 3    1..5: block 5
    taken   {4: 2}       block 4 was read after run 1: it has its rows of runs 0 and 1, and takes from run 2 on

A bulk that is scattered over hundreds of blocks is noted once instead of in each of them. Blocks that are read take
their own rows; when many runs wait, all are merged and handed out, so that a block gets one note for all of them.

Add: O(1).  Take: O(r log k) for r runs over k blocks.  Hand out: O(m log m) for m rows, in a few vectorised calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sash.forest.block import Note
from sash.forest.segments import starts_of_runs
from sash.monoids.base import Array

__all__ = ["Inbox"]

_RUNS = 32
_ROWS = 65_536
"""So much waits at most. For bulks of 1,024 over 1,024 blocks, merging takes 0.1 ms a bulk where notes in each block
took 0.4; a block that is read looks into every run, which is 1 µs each."""


class _Run(NamedTuple):
    columns: Sequence[Array]
    positions: Array
    bounds: Array


class Inbox:
    """Rows that wait, by the block that they belong to; those of one block in order of arrival."""

    __slots__ = ("_rows", "_runs", "_taken", "newest")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.newest = -1
        """The newest block that may have rows here."""
        self._rows = 0
        self._taken: dict[int, int] = {}

    @property
    def full(self) -> bool:
        """Whether so much waits that it should be handed out."""
        return len(self._runs) >= _RUNS or self._rows >= _ROWS

    def add(self, columns: Sequence[Array], positions: Array, bounds: Array) -> None:
        """Keep rows for k >= 1 blocks.

        Args:
            columns: sorted by time.
            positions: int64 (k,), the blocks, strictly increasing.
            bounds: int64 (k + 1,); rows bounds[i]..bounds[i + 1] are those of block i.
        """
        self._runs.append(_Run(columns, positions, bounds))
        self.newest = max(self.newest, positions.item(-1))
        self._rows += bounds.item(-1) - bounds.item(0)

    def take(self, position: int) -> list[Note]:
        """The rows of one block, which takes them over."""
        runs = self._runs
        first = self._taken.get(position, 0)
        self._taken[position] = len(runs)
        notes = []
        for columns, positions, bounds in runs[first:]:
            i = int(positions.searchsorted(position))
            if i < len(positions) and positions.item(i) == position:
                notes.append((columns, bounds.item(i), bounds.item(i + 1)))
        return notes

    def all(self, head: int) -> Iterator[tuple[int, Note]]:
        """The rows of each block from `head` on that were not taken, in one note, with its position."""
        runs, taken = self._runs, self._taken
        lengths = [np.diff(run.bounds) for run in runs]
        owners = np.concatenate([np.repeat(run.positions, k) for run, k in zip(runs, lengths, strict=True)])
        keep = owners >= head
        if taken:
            seen = np.zeros(max(owners.max(), *taken) + 1 - head, np.int64)
            for position, count in taken.items():
                if position >= head:
                    seen[position - head] = count
            number = np.repeat(np.arange(len(runs)), [k.sum() for k in lengths])
            keep &= number >= seen[np.maximum(owners - head, 0)]
        owners = owners[keep]
        if not len(owners):
            return
        columns = [
            np.concatenate([run.columns[i][run.bounds[0] : run.bounds[-1]] for run in runs])[keep]
            for i in range(len(runs[0].columns))
        ]
        order = np.lexsort((columns[0], owners))
        owners, columns = owners[order], [column[order] for column in columns]
        starts = starts_of_runs(owners)
        bounds = [*starts.tolist(), len(owners)]
        for position, (a, b) in zip(owners[starts].tolist(), itertools.pairwise(bounds), strict=True):
            yield position, (columns, a, b)
