"""Newcomers whose splice is deferred, bulk by bulk, until their blocks are read.

    merged  rows 0..4: block 3  | 4..6: block 4    6..9: block 9     many bulks in one, on its way out: 3 has its note
    run 0   rows 0..2: block 3    2..3: block 4    3..7: block 9        a bulk, sorted, and whose its rows are
    run 1   rows 0..3: block 4    3..4: block 9
    run 2   rows 0..1: block 3    1..5: block 5
    taken   {4: 2}       block 4 was read after run 1: it has all before that, and takes from run 2 on

A bulk that is scattered over hundreds of blocks is noted once instead of in each of them. A block that is read takes
its own rows. When many runs wait, they are merged, so that a block gets one note for all of them. Those notes are given
part by part with later bulks, because giving all at once takes 0.1 s.

Add: O(1).  Take: O(r log k) for r runs over k blocks.  Merge: O(m log m) for m rows, in a few vectorised calls.
Hand out: O(k), of which each bulk pays at most some 2,048 blocks, or its own number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sash_engine.forest.block import Note
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids.base import Array

_RUNS = 32
_ROWS = 65_536
"""So much waits before it is merged. For bulks of 1,024 over 1,024 blocks, merging takes 0.1 ms a bulk where notes in
each block took 0.4; a block that is read looks into every run, which is 1 µs each."""

_SHARE = _ROWS // _RUNS
"""Blocks that get their notes with one bulk, 1 to 3 µs each; or as many as it has rows, if that is more: then all have
theirs by the time that so much waits again."""

_KNOWN = 8_192
"""So many blocks without rows here are remembered, 0.1 KB each, so that they are not looked for with every read."""


class _Run(NamedTuple):
    columns: Sequence[Array]
    positions: Array
    bounds: Array


class Inbox:
    """Rows that wait, by the block that they belong to; those of one block in order of arrival."""

    __slots__ = ("_given", "_merged", "_rows", "_runs", "_taken", "_without", "newest")

    def __init__(self) -> None:
        self._merged: _Run | None = None
        self._given = 0  # so many blocks of `_merged` have got their notes
        self._runs: list[_Run] = []
        self.newest = -1
        """The newest block that may have rows here."""
        self._rows = 0
        self._taken: dict[int, int] = {}  # blocks that took rows: all of `_merged`, and of so many runs
        self._without: dict[int, int] = {}  # blocks that looked and found none

    def add(self, columns: Sequence[Array], positions: Array, bounds: Array) -> None:
        """Keep rows for k >= 1 blocks; what is `due` is to be noted before.

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
        runs, taken, without, merged = self._runs, self._taken, self._without, self._merged
        first = taken.get(position)
        if first is None:
            first = without.get(position)
        if first is not None:
            runs = runs[first:]
        elif merged is not None and position >= merged.positions.item(self._given):
            runs = [merged, *runs]
        notes = []
        for columns, positions, bounds in runs:
            i = int(positions.searchsorted(position))
            if i < len(positions) and positions.item(i) == position:
                notes.append((columns, bounds.item(i), bounds.item(i + 1)))
        if notes or position in taken:
            taken[position] = len(self._runs)
        else:
            if len(without) >= _KNOWN:
                without.clear()
            without[position] = len(self._runs)
        return notes

    def due(self, head: int, rows: int) -> Iterator[tuple[int, Note]]:
        """The notes that it is time for when another bulk comes: blocks from `head` on, each with its position.

        Args:
            rows: that the bulk has.
        """
        if len(self._runs) < _RUNS and self._rows < _ROWS:
            yield from self._give(head, max(_SHARE, rows))
        else:
            yield from self._give(head)
            self._merge(head)

    def all(self, head: int) -> Iterator[tuple[int, Note]]:
        """All rows that wait for blocks from `head` on, in at most two notes for each block, with its position."""
        if self._runs:
            yield from self._give(head)
            self._merge(head)
        yield from self._give(head)

    def _give(self, head: int, most: int | None = None) -> Iterator[tuple[int, Note]]:
        """The notes of up to `most` further blocks of the merged run."""
        run = self._merged
        if run is None:
            return
        columns, taken = run.columns, self._taken
        self._given = start = max(self._given, int(run.positions.searchsorted(head)))
        stop = len(run.positions) if most is None else start + most
        positions, bounds = run.positions[start:stop].tolist(), run.bounds[start : stop + 1].tolist()
        for position, (a, b) in zip(positions, itertools.pairwise(bounds), strict=True):
            if position not in taken:
                yield position, (columns, a, b)
            self._given += 1  # only now: a note that could not be taken is given again
        if stop >= len(run.positions):
            self._merged = None

    def _merge(self, head: int) -> None:
        """Make one run of all, without what was taken; the one before has been given."""
        assert self._merged is None, "its rows are older"
        merged = self._one_of_all(head)
        self._merged, self._given = merged, 0
        self._runs, self._rows = [], 0
        self._taken, self._without = {}, {}

    def _one_of_all(self, head: int) -> _Run | None:
        """The rows of all runs for blocks from `head` on that were not taken, sorted by (block, time, arrival)."""
        runs, taken = self._runs, self._taken
        lengths = [np.diff(run.bounds) for run in runs]
        owners = np.concatenate([np.repeat(run.positions, k) for run, k in zip(runs, lengths, strict=True)])
        keep = owners >= head
        if taken and keep.any():
            positions = np.fromiter(taken, np.int64, len(taken))
            counts = np.fromiter(taken.values(), np.int64, len(taken))
            mine = (positions >= head) & (positions <= owners.max())
            seen = np.zeros(owners.max() + 1 - head, np.int64)
            seen[positions[mine] - head] = counts[mine]
            number = np.repeat(np.arange(len(runs)), [k.sum() for k in lengths])
            keep &= number >= seen[np.maximum(owners - head, 0)]
        owners = owners[keep]
        if not len(owners):
            return None
        columns = [
            np.concatenate([run.columns[i][run.bounds[0] : run.bounds[-1]] for run in runs])[keep]
            for i in range(len(runs[0].columns))
        ]
        order = np.lexsort((columns[0], owners))
        owners, columns = owners[order], [column[order] for column in columns]
        starts = starts_of_runs(owners)
        return _Run(columns, owners[starts], np.append(starts, len(owners)))
