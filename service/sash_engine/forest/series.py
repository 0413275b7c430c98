"""Series: the answers over many overlapping ranges of time in one vectorised pass.

    ranges     |-------- 0 --------|
                    |-------- 1 --------|
                         |-------- 2 --------|
    panes      | a  | b  | c  | d  | e  | f  |         cut wherever a range starts or stops; empty panes do not count
    runs of 4  [a..d]    [b..e]    [c..f]              by doubling: ab bc cd de ef, then abcd bcde cdef

Each pane is folded once. Then tables of the folds of 1, 2, 4, … neighbouring panes are made from one another, and
each range takes from them what the bits of its number of panes say, from left to right: combining only, in order,
nothing is subtracted and nothing counted twice. A pane of several blocks is folded from the forest's nodes; only
the rows of narrow panes are read.

Costs, for k ranges over at most p <= 2 k panes: O(rows of narrow panes) + O((p + k) log p) combines, in
O(log p) vectorised calls.
Requires: associativity.  Source: the panes are those of Li, Maier, Tufte, Papadimos, Tucker, "No pane, no gain",
SIGMOD Record 2005; the tables are those of range-minimum queries, used here without overlap, so that they need
no idempotence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from sash_engine.forest.directory import Directory
from sash_engine.forest.head_tail import Tail
from sash_engine.forest.layout import Layout
from sash_engine.forest.segments import starts_of_runs
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array, object_array

__all__ = ["Rows", "fold_buckets"]

_WIDE_BLOCKS = 8
"""A pane of so many blocks is folded from nodes: some 20 µs, what one aggregate takes over 8,192 rows."""

_Fold = Callable[[Sequence[tuple[int, int, int, int]]], list[list[Partial]]]


class Rows:
    """All rows of a forest by number: row 0 is the first of its first block, evicted or not.

    Args:
        directory: the sealed blocks.
        tail: the open one.
        skip: how many rows are evicted.
    """

    def __init__(self, directory: Directory, tail: Tail, skip: int) -> None:
        self._directory = directory
        self._tail = tail
        self._skip = skip
        counts, _ = directory.slices(directory.head, directory.tail)
        self._starts = np.zeros(len(counts) + 1, np.int64)  # row number of each block's first row, the tail's last
        np.cumsum(counts, out=self._starts[1:])
        self.total = int(self._starts[-1]) + tail.rows
        """One past the last row."""

    def locate(self, times: Array) -> Array:
        """The first row with a time >= each of `times`, int64 (k,), k >= 1, sorted; `total` where there is none."""
        directory = self._directory
        first, last = directory.spans(directory.head, directory.tail)
        blocks = last.searchsorted(times, "left")
        out = self._starts[blocks]
        runs = starts_of_runs(blocks)
        ends = np.append(runs[1:], len(times))
        blocks = blocks[runs]
        inside = blocks == len(last)
        inside[~inside] = times[ends - 1][~inside] > first[blocks[~inside]]  # others have their rows behind all times
        if self._skip:
            inside |= blocks == 0  # who reads from row `skip` on will read the block
        self._fetch(blocks[inside].tolist())
        for block, a, b in zip(blocks[inside].tolist(), runs[inside].tolist(), ends[inside].tolist(), strict=True):
            columns, rows = self._block(block)
            skip = self._skip if block == 0 else 0
            out[a:b] += columns[0][skip:rows].searchsorted(times[a:b], "left") + skip
        return out

    def place(self, row: int) -> tuple[int, int]:
        """Position and row of row number `row`."""
        block = int(self._starts.searchsorted(row, "right")) - 1
        return self._directory.head + block, row - int(self._starts[block])

    def columns(self, runs: Sequence[tuple[int, int]], wanted: Collection[int]) -> list[Array]:
        """The rows start..stop of each run, one after the other, as columns (copies); empty where not wanted."""
        pieces: list[list[Array]] = [[column[:0]] for column in self._tail.columns]
        if self._directory.loads:
            self._fetch(itertools.chain.from_iterable(self._touched(start, stop) for start, stop in runs))
        for start, stop in runs:
            block = int(self._starts.searchsorted(start, "right")) - 1
            while start < stop:
                columns, rows = self._block(block)
                first = int(self._starts[block])
                end = min(stop, first + rows)
                for i in wanted:
                    pieces[i].append(columns[i][start - first : end - first])
                start, block = end, block + 1
        return [np.concatenate(into) for into in pieces]

    def _touched(self, start: int, stop: int) -> Iterable[int]:
        """The blocks of rows start..stop, start < stop."""
        first, last = (self._starts.searchsorted([start, stop - 1], "right") - 1).tolist()
        return range(first, last + 1)

    def _fetch(self, blocks: Iterable[int]) -> None:
        self._directory.fetch(block + self._directory.head for block in blocks)

    def _block(self, block: int) -> tuple[list[Array], int]:
        position = self._directory.head + block
        found = self._tail if position == self._directory.tail else self._directory.block(position)
        return found.columns, found.rows


def fold_buckets(layout: Layout, rows: Rows, fold: _Fold, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
    """The entries and answers over each range; see `Forest.series`.

    Args:
        layout: the aggregates.
        rows: the entries.
        fold: folds the rows between each two places, from the nodes where it can.
        starts: int64 (k,), first times.
        stops: int64 (k,), times behind the last.
    """
    k = len(starts)
    if not k:
        return np.empty(0, np.int64), [np.empty(0, object) for _ in layout.names]
    times, which = np.unique(np.concatenate((starts, stops)), return_inverse=True)
    bounds = rows.locate(times)[which]
    first, stop = bounds[:k], np.maximum(bounds[k:], bounds[:k])
    entries = stop - first
    filled = np.flatnonzero(entries)
    partials: list[Partials] = []
    if len(filled):
        cuts = np.unique(np.concatenate((first[filled], stop[filled])))
        begin, end = cuts.searchsorted(first[filled]), cuts.searchsorted(stop[filled])
        panes = _fold_panes(layout, rows, fold, cuts)
        partials = [
            fold_runs(monoid, pane, begin, end - begin) for monoid, pane in zip(layout.monoids, panes, strict=True)
        ]
    answers = [
        entries if slot < 0 else _spread(layout.monoids[slot], partials[slot] if partials else None, filled, k)
        for slot in layout.answers
    ]
    return entries, answers


def _fold_panes(layout: Layout, rows: Rows, fold: _Fold, cuts: Array) -> list[Partials]:
    """Fold the rows between each two cuts: per slot p partials, for p + 1 strictly increasing row numbers."""
    widths, read = np.diff(cuts), {i for reads in layout.reads for i in reads}
    wide = np.flatnonzero(widths >= _WIDE_BLOCKS * layout.block)
    if not len(wide):
        return layout.reduce_segments(rows.columns([(int(cuts[0]), int(cuts[-1]))], read), cuts[:-1] - cuts[0])
    bounds, edges = cuts.tolist(), [-1, *wide.tolist(), len(widths)]
    runs = [(bounds[a + 1], bounds[b]) for a, b in itertools.pairwise(edges) if a + 1 < b]
    narrow = np.flatnonzero(widths < _WIDE_BLOCKS * layout.block)
    folds = fold([(*rows.place(bounds[i]), *rows.place(bounds[i + 1])) for i in wide.tolist()])
    parts = [monoid.pack([partials[slot] for partials in folds]) for slot, monoid in enumerate(layout.monoids)]
    if not len(narrow):
        return parts
    lengths = widths[narrow]
    folded = layout.reduce_segments(rows.columns(runs, read), np.cumsum(lengths) - lengths)
    order = np.argsort(np.concatenate((wide, narrow)))
    return [
        tuple([np.concatenate(both)[order] for both in zip(of_wide, of_narrow, strict=True)])
        for of_wide, of_narrow in zip(parts, folded, strict=True)
    ]


def fold_runs(monoid: Monoid, partials: Partials, first: Array, length: Array) -> Partials:
    """Fold runs of neighbouring partials, which may overlap.

    Args:
        monoid: what they are partials of.
        partials: p of them.
        first: int64 (k,), where each run starts.
        length: int64 (k,), how long it is, >= 1.

    Returns:
        k partials.
    """
    out = tuple([np.empty(len(first), part.dtype) for part in partials])
    begun, at, width, longest = np.zeros(len(first), np.bool_), first.copy(), 1, int(length.max())
    table = partials  # row i folds the `width` partials from i on
    while True:
        here = (length & width) != 0
        more, new = np.flatnonzero(here & begun), np.flatnonzero(here & ~begun)
        if len(more):
            _put(out, more, monoid.combine_columns(_rows(out, more), _rows(table, at[more])))
        _put(out, new, _rows(table, at[new]))
        at[here] += width
        begun |= here
        if 2 * width > longest:
            return out
        table = monoid.combine_columns(
            tuple([part[:-width] for part in table]), tuple([part[width:] for part in table])
        )
        width *= 2


def _rows(partials: Partials, rows: Array) -> Partials:
    return tuple([part[rows] for part in partials])


def _put(partials: Partials, rows: Array, those: Partials) -> None:
    for to, source in zip(partials, those, strict=True):
        to[rows] = source


def _spread(monoid: Monoid, partials: Partials | None, filled: Array, k: int) -> Array:
    """The answers of `filled` ranges among k, and those of no entries for the others."""
    answers = None if partials is None else monoid.lower_columns(partials)
    if answers is not None and len(filled) == k:
        return answers
    nothing = monoid.lower(monoid.identity)
    if answers is not None and answers.dtype != object and nothing is not None:
        out = np.full(k, nothing, answers.dtype)
    else:
        out = object_array([monoid.lower(monoid.identity) for _ in range(k)])  # lists are not shared
    if answers is not None:
        out[filled] = answers
    return out
