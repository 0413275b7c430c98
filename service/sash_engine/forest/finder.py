"""Finding single entries of a forest by their times and another value.

    wanted       time 17, name b     time 31, name x                    time 52, name c
    blocks       [ 10 12 17 19 ]     [ 30 31 40 ]     [ 52 52 52 ] [ 52 53 ]
    found        row 2               -                UNCLEAR: several of its time; here and in the next block

The directory says in which block each time is, and a kernel looks into all of these blocks in one call. The few names
that are left, whose time several entries have, are looked up one by one. Rows that are gone stay in their blocks.

Without times, blocks are looked through from the newest to the oldest, until every value is found.

m names in k blocks: O(m log B + k), and O(r) for a name whose time r entries have.
Without times: O(n log m) for n entries, in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.forest.directory import Directory
from sash_engine.forest.image import BEFORE_ALL
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.forest.tail import Tail
from sash_engine.kernels import UNCLEAR, find_named
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps

_SCANNED = 8
"""Blocks that are looked through in one step: 0.1 to 0.3 ms in memory. Where they are stored, it is one round trip, and
1 to 3 ms to read them."""

_PREPARED = 4_096
"""Values that are made ready for the look in one step: 1 to 3 ms."""


class Hits(NamedTuple):
    """Rows that were found, sorted by place, each once.

    A row counts those that are gone, except in a head of which rows were evicted.
    """

    positions: Array
    """int64 (k,): where their blocks are."""
    rows: Array
    """int64 (k,)"""
    numbers: Array
    """int64 (k,): the number of the last name of each."""
    last: Array
    """bool (k,): whether it is the last row of its block."""

    def where(self, which: Array) -> Hits:
        """Some of them: `which` is bool (k,)."""
        return Hits(self.positions[which], self.rows[which], self.numbers[which], self.last[which])


class Finder:
    """Finds single entries of a forest.

    Args:
        directory: the sealed blocks.
        tail: the open one.
        skip: rows of the first block that have left.
    """

    __slots__ = ("_directory", "_skip", "_tail")

    def __init__(self, directory: Directory, tail: Tail, skip: int) -> None:
        self._directory, self._tail, self._skip = directory, tail, skip

    def search(self, times: Array, column: int, values: Sequence[Any], found: Array, once: bool) -> Hits:
        """Find the rows that are named; `found` is set where there is one. Changes nothing.

        Args:
            times, column, values: as in `Forest.remove`.
            once: whether a row is found once; else as often as it is named.
        """
        directory = self._directory
        if not len(times):
            return _hits([])
        _, last = directory.spans(directory.head, directory.tail)
        at = directory.head + last.searchsorted(times, "left")
        starts = starts_of_runs(at)
        one = len(at) == 1
        positions: list[int] = at[starts].tolist()
        if directory.loads:
            directory.fetch(positions)
        held, names, stops, gone = list[Array](), list[Array](), list[int](), list[list[int] | None]()
        for position in positions:
            block = self.block(position)
            columns = block.columns
            held.append(columns[0])
            names.append(columns[column])
            stops.append(block.rows)
            gone.append(block.gone)
        which = starts if one else np.repeat(np.arange(len(starts)), lengths_of_segments(starts, len(at)))
        skip = self._skip if positions[0] == directory.head else 0
        rows = find_named(held, names, stops, gone, skip, which, times, list(values))
        if one and rows.item(0) >= 0:
            found[0] = True
            return Hits(at, rows, starts, np.zeros(1, np.bool_))
        numbers = np.flatnonzero(rows >= 0)
        found[numbers] = True
        hits = Hits(at[numbers], rows[numbers], numbers, np.zeros(len(numbers), np.bool_))
        unclear = np.flatnonzero(rows == UNCLEAR)
        return _merged(hits, self._in_runs(times, at, unclear, column, values, found, once)) if len(unclear) else hits

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Find the time of the newest entry that has a value, for each of many, in steps. Changes nothing.

        Args:
            column: the number of the column that tells entries apart, 1 or more.
            values: m values of that column.
            once: whether an entry is found once; else as often as its value is there.

        Returns:
            int64 (m,): the times, `BEFORE_ALL` where there is no entry.
        """
        directory, wanted = self._directory, Wanted(values, once)
        yield from wanted.prepared()
        if wanted.left:
            skip = self._skip if directory.head == directory.tail else 0
            wanted.take(self._tail.columns[0], self._tail.columns[column], skip, self._tail.rows, ())
        stop = directory.tail
        while wanted.left and stop > directory.head:
            start = max(stop - _SCANNED, directory.head)
            positions = list(range(start, stop))
            for position, block in reversed(list(zip(positions, directory.scanned(positions), strict=True))):
                skip = 0
                if position == directory.head and self._skip:
                    skip = self._skip
                    if block.gone is not None:
                        block = directory.block(position)
                wanted.take(block.columns[0], block.columns[column], skip, block.rows, block.gone or ())
            stop = start
            yield
        return wanted.times

    def block(self, position: int) -> Block:
        """The block or the tail, to look for rows: with those that are gone, but for a head of which rows left."""
        directory = self._directory
        if position == directory.tail:
            return self._tail
        if position == directory.head and self._skip:
            return directory.block(position)  # what is evicted are rows of the settled block
        return directory.unsettled(position)

    def _in_runs(
        self, times: Array, at: Array, wanted: Array, column: int, values: Sequence[Any], found: Array, once: bool
    ) -> Hits:
        """Find rows where several have a time, in a block or in the next ones; see `search`.

        Args:
            at: the position of the block to begin with, by number of the name; changed.
            wanted: numbers of names, increasing. All names of one time are among them.
        """
        directory, hits = self._directory, dict[tuple[int, int], tuple[int, bool]]()
        while len(wanted):
            starts = starts_of_runs(at[wanted])
            if directory.loads:
                directory.fetch(at[wanted][starts].tolist())
            missing = list[int]()
            for some in np.split(wanted, starts[1:]):
                position = int(at[some[0]])
                block = self.block(position)
                skip, gone = self._skip if position == directory.head else 0, block.gone or ()
                held, names = block.columns[0][skip : block.rows], block.columns[column]
                first = (held.searchsorted(times[some], "left") + skip).tolist()
                stop = (held.searchsorted(times[some], "right") + skip).tolist()
                run, index = (0, 0), dict[Any, list[int]]()
                for i, a, b in zip(some.tolist(), first, stop, strict=True):
                    if (a, b) != run:
                        run, index = (a, b), {}
                        for row, name in enumerate(names[a:b].tolist(), a):
                            if row not in gone and not (once and (position, row) in hits):
                                index.setdefault(name, []).append(row)
                    same = index.get(values[i])
                    if same:
                        row = same.pop(0) if once else same[0]
                        hits[position, row] = i, row + 1 == block.rows
                        found[i] = True
                    elif b == block.rows and position < directory.tail:
                        missing.append(i)  # entries of its time go on in the next block
            wanted = np.array(missing, np.int64)
            at[wanted] += 1
        return _hits([(position, row, i, last) for (position, row), (i, last) in sorted(hits.items())])


class Wanted:
    """Values that are looked for, and the times of those that were found.

    Args:
        values: m values; they are wanted once `prepared` has ended.
        once: whether an entry is found once.
    """

    def __init__(self, values: Sequence[Any], once: bool) -> None:
        self.times: Array = np.full(len(values), BEFORE_ALL, np.int64)
        self.left: dict[Any, list[int]] = {}
        """Each value that is not found yet, with its numbers, the first of them last."""
        self._values = values
        self._once = once
        self._sorted: Array | None = None  # of integers: all that are looked for, and which of them are left
        self._open: Array = np.empty(0, np.bool_)

    def prepared(self) -> Steps[None]:
        """Sort the values by what they are, in steps."""
        left, values = self.left, self._values
        for i in range(len(values) - 1, -1, -1):
            left.setdefault(values[i], []).append(i)
            if not i % _PREPARED:
                yield

    def take(self, times: Array, names: Array, start: int, stop: int, gone: Sequence[int]) -> None:
        """Look through the rows start..stop of a block, all older than those before."""
        left = self.left
        if not left:
            return
        if names.dtype.hasobject:
            rows = [row for row, name in enumerate(names[start:stop].tolist(), start) if name in left]
        else:
            if self._sorted is None:
                self._sorted = np.array(list(left), names.dtype)
                self._sorted.sort()
                self._open = np.ones(len(self._sorted), np.bool_)
            some = names[start:stop]
            at = np.minimum(self._sorted.searchsorted(some), len(self._sorted) - 1)
            rows = (np.flatnonzero((self._sorted[at] == some) & self._open[at]) + start).tolist()
        for row in reversed(rows):
            name = names.item(row)
            if row in gone or name not in left:
                continue
            numbers, time = left[name], times.item(row)
            self.times[numbers.pop()] = time
            if numbers and not self._once:
                self.times[numbers] = time
            if not numbers or not self._once:
                del left[name]
                if self._sorted is not None:
                    self._open[at[row - start]] = False


def _hits(found: Sequence[tuple[int, int, int, bool]]) -> Hits:
    positions, rows, numbers, last = zip(*found, strict=True) if found else ((), (), (), ())
    integers = [np.array(each, np.int64) for each in (positions, rows, numbers)]
    return Hits(integers[0], integers[1], integers[2], np.array(last, np.bool_))


def _merged(one: Hits, other: Hits) -> Hits:
    """The rows of both, which have none in common."""
    both = [np.concatenate(parts) for parts in zip(one, other, strict=True)]
    order = np.lexsort((both[1], both[0]))
    return Hits(both[0][order], both[1][order], both[2][order], both[3][order])
