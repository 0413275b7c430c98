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

The work is cut into steps (`sash_engine.steps`): so many ranges, rows or partials each.

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
from sash_engine.forest.layout import Layout
from sash_engine.forest.segments import runs_of_numbers, starts_of_runs
from sash_engine.forest.tail import Tail
from sash_engine.monoids import IgnoresNulls, Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import Pane
from sash_engine.steps import Steps, spans_of

_WIDE_BLOCKS = 8
"""A pane of so many blocks is folded from nodes: some 20 µs, what one aggregate takes over 8,192 rows."""

_RANGES = 8_192
"""Ranges that one step locates: 2 ms."""

_ROWS = 65_536
"""Rows that one step folds into narrow panes: 0.3 ms for a sum, 1 ms for a variance."""

_WIDE_PANES = 16
"""Wide panes that one step folds from nodes."""

_COLUMNS, _SCALARS, _LARGE = 16_384, 1_024, 16
"""Partials that one step makes: by a vectorised method, one by one, and of sketches and collections (20 to 160 µs)."""

_FREED = 4_096
"""Sketches that one step frees: 1.5 ms."""

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


def fold_buckets(
    layout: Layout, rows: Rows, fold: _Fold, starts: Array, stops: Array
) -> Steps[tuple[Array, Array, list[Partials]]]:
    """Fold each range, in steps; see `Forest.fold_steps`.

    Args:
        layout: the aggregates.
        rows: the entries.
        fold: folds the rows between each two places, from the nodes where it can.
        starts: int64 (k,), first times.
        stops: int64 (k,), times behind the last.

    Returns:
        how many rows each range has, int64 (k,); which ranges have any, int64; and per slot the partials of these.
    """
    k = len(starts)
    first, stop = np.empty(k, np.int64), np.empty(k, np.int64)
    for a, b in spans_of(k, _RANGES):
        times, which = np.unique(np.concatenate((starts[a:b], stops[a:b])), return_inverse=True)
        bounds = rows.locate(times)[which]
        first[a:b], stop[a:b] = bounds[: b - a], np.maximum(bounds[b - a :], bounds[: b - a])
        yield
    entries = stop - first
    filled = np.flatnonzero(entries)
    partials: list[Partials] = []
    if len(filled):
        cuts = sorted_unique(np.concatenate((first[filled], stop[filled])))
        yield
        begin, end = cuts.searchsorted(first[filled]), cuts.searchsorted(stop[filled])
        yield
        panes = yield from _fold_panes(layout, rows, fold, cuts)
        for monoid, pane in zip(layout.monoids, panes, strict=True):
            partials.append((yield from fold_runs(monoid, pane, begin, end - begin)))
    return entries, filled, partials


def answers_of(layout: Layout, partials: Sequence[Partials], filled: Array, entries: Array) -> Steps[list[Array]]:
    """The answers over k ranges, per name of the layout.

    Args:
        partials: per slot those of the ranges that have entries; none where no range has.
        filled: int64, which ranges these are.
        entries: int64 (k,), how many entries each range has.
    """
    answers = []
    for slot in layout.answers:
        if slot < 0:
            answers.append(entries)
        else:
            monoid = layout.monoids[slot]
            found = [(yield from lowered_steps(monoid, partials[slot]))] if partials else []
            answers.append((yield from spread_steps(monoid, found, filled, len(entries))))
    return answers


def sorted_unique(numbers: Array) -> Array:
    """The distinct ones of some numbers, sorted. A stable sort is linear where they are a few sorted runs."""
    numbers = np.sort(numbers, kind="stable")
    return numbers[starts_of_runs(numbers)] if len(numbers) else numbers


def _fold_panes(layout: Layout, rows: Rows, fold: _Fold, cuts: Array) -> Steps[list[Partials]]:
    """Fold the rows between each two cuts: per slot p partials, for p + 1 strictly increasing row numbers."""
    widths, read = np.diff(cuts), {i for reads in layout.reads for i in reads}
    is_wide = widths >= _WIDE_BLOCKS * layout.block
    wide, narrow = np.flatnonzero(is_wide), np.flatnonzero(~is_wide)
    parts: list[list[Partials]] = []
    for a, b in spans_of(len(wide), _WIDE_PANES):
        panes = wide[a:b]
        ends = zip(cuts[panes].tolist(), cuts[panes + 1].tolist(), strict=True)
        folds = fold([(*rows.place(first), *rows.place(stop)) for first, stop in ends])
        parts.append([monoid.pack([each[slot] for each in folds]) for slot, monoid in enumerate(layout.monoids)])
        yield
    behind, at = np.cumsum(widths[narrow]), 0
    while at < len(narrow):
        # At least one pane, and no more rows than one step folds.
        before = int(behind[at - 1]) if at else 0
        stop = max(int(behind.searchsorted(before + _ROWS, "right")), at + 1)
        panes = narrow[at:stop]
        columns = rows.columns([(int(cuts[a]), int(cuts[b])) for a, b in runs_of_numbers(panes)], read)
        parts.append((yield from reduce_steps(layout, columns, behind[at:stop] - widths[panes] - before)))
        at = stop
    folded = [joined([part[slot] for part in parts]) for slot in range(len(layout.monoids))]
    if len(wide) and len(narrow):
        order = np.argsort(np.concatenate((wide, narrow)))
        folded = [rows_of(partials, order) for partials in folded]
    return folded


def reduce_steps(layout: Layout, columns: Sequence[Array], starts: Array) -> Steps[list[Partials]]:
    """As `Layout.reduce_segments`, in steps.

    Args:
        columns: rows; those of no more than some hundred thousand are one step for an aggregate that is not large.
    """
    ends = np.append(starts[1:], max(map(len, columns)))
    out = []
    for monoid, reads in zip(layout.monoids, layout.reads, strict=True):
        found = []
        for a, b in spans_of(len(starts), at_once(monoid, "reduce_segments")):
            begin, end = int(starts[a]), int(ends[b - 1])
            found.append(monoid.reduce_segments([columns[i][begin:end] for i in reads], starts[a:b] - begin))
            yield
        out.append(joined(found))
    return out


def free_steps(partials: Sequence[Partials]) -> Steps[None]:
    """Free what `fold_buckets` returned, in steps: 80,000 sketches at once take 30 ms."""
    for part in (part for columns in partials for part in columns if part.dtype.hasobject):
        for a, b in spans_of(len(part), _FREED):
            part[a:b] = None
            yield


def at_once(monoid: Monoid, method: str) -> int:
    """How many partials a vectorised method of an aggregate makes in one step of 1 to 2 ms."""
    inner = monoid
    while isinstance(inner, Pane | IgnoresNulls):
        inner = inner.inner
    if inner.large:
        return _LARGE
    return _SCALARS if getattr(type(inner), method) is getattr(Monoid, method) else _COLUMNS


def joined(parts: Sequence[Partials]) -> Partials:
    """Partials of one aggregate, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return tuple([np.concatenate(columns) for columns in zip(*parts, strict=True)])


def fold_runs(monoid: Monoid, partials: Partials, first: Array, length: Array) -> Steps[Partials]:
    """Fold runs of neighbouring partials, which may overlap, in steps.

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
    size = at_once(monoid, "combine_columns")
    table = partials  # row i folds the `width` partials from i on
    while True:
        here = (length & width) != 0
        more, new = np.flatnonzero(here & begun), np.flatnonzero(here & ~begun)
        for a, b in spans_of(len(more), size):
            some = more[a:b]
            put_rows(out, some, monoid.combine_columns(rows_of(out, some), rows_of(table, at[some])))
            yield
        put_rows(out, new, rows_of(table, at[new]))
        at[here] += width
        begun |= here
        if 2 * width > longest:
            return out
        wider = []
        for a, b in spans_of(len(table[0]) - width, size):
            older, newer = [part[a:b] for part in table], [part[a + width : b + width] for part in table]
            wider.append(monoid.combine_columns(tuple(older), tuple(newer)))
            yield
        table = joined(wider)
        width *= 2


def rows_of(partials: Partials, rows: Array) -> Partials:
    """Some rows of partials, copied."""
    return tuple([part[rows] for part in partials])


def put_rows(partials: Partials, rows: Array, those: Partials) -> None:
    """Write partials to some rows of others."""
    for to, source in zip(partials, those, strict=True):
        to[rows] = source


def lowered_steps(monoid: Monoid, partials: Partials) -> Steps[Array]:
    """As `Monoid.lower_columns`, in steps."""
    found = []
    for a, b in spans_of(len(partials[0]), at_once(monoid, "lower_columns")):
        found.append(monoid.lower_columns(tuple([part[a:b] for part in partials])))
        yield
    return found[0] if len(found) == 1 else np.concatenate(found)


def spread_steps(monoid: Monoid, found: Sequence[Array], which: Array, k: int) -> Steps[Array]:
    """The answers of some ranges among k, copied, and those of no entries for the others, in steps."""
    nothing, none = monoid.lower(monoid.identity), k - len(which)
    dtypes = {each.dtype for each in found}
    dtype = dtypes.pop() if len(dtypes) == 1 and (not none or nothing is not None) else np.dtype(object)
    out: Array = np.empty(k, dtype)
    if none and not dtype.hasobject:
        out[:] = nothing
    elif none and nothing is not None:
        empty = np.delete(np.arange(k), which)
        for a, b in spans_of(none, _SCALARS):
            for i in empty[a:b].tolist():
                out[i] = monoid.lower(monoid.identity)  # lists are not shared
            yield
    at = 0
    for each in found:
        out[which[at : at + len(each)]] = each
        at += len(each)
    yield
    return out
