"""Answers over many ranges of time, each of which is folded as `Forest.range_totals` folds it, to the last bit.

    rows       | k1  k1  k1 | k2  k2 | k3  k3  k3  k3 |      rows of many keys, or of many blocks, one behind the other
    ranges       |---0---|    |-1-|        |---2---|         a range within a block, or a small key: of rows
                     |-1-|

    blocks     [ . . x x ] [ x x x x ] [ x x x x ] [ x . . ]
    range            older     nodes, and new blocks    newer      a range over several blocks of one key

A series folds panes, which ranges share (series.py): that rounds in other places. Here each range of rows is folded by
itself, by the kernel that a single question takes. The rows of the two blocks where a longer range ends are folded so,
too; what lies between comes from the nodes that a single question takes, combined in the same order: all ranges at
once, level by level.

The ends of all ranges are found first. Then the blocks that have ends in them are read in order of time, a run of them
at once, each of them once.

Costs, for k ranges: O(k log n) + O(rows of ranges within a block, and at both ends of the others) + O(k log n) combines
in O(log n) vectorised calls.  Requires: associativity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.forest.cold import Cold
from sash_engine.forest.directory import Directory
from sash_engine.forest.external import ExternalPartials
from sash_engine.forest.layout import Layout
from sash_engine.forest.level import Level
from sash_engine.forest.levels import Levels
from sash_engine.forest.series import at_once, joined, lowered_steps, put_rows, rows_of, spread_steps
from sash_engine.forest.tail import Tail
from sash_engine.kernels import rows_at
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array, object_array
from sash_engine.steps import Steps, spans_of

_TOUCHED = 32_768
"""Rows that one step looks at, counted for each range that has them: 0.5 ms."""

_RUN = 16
"""Blocks that one step reads."""

_WIDE, _WIDE_LARGE = 16_384, 1_024
"""Ranges over several blocks that are folded together; each has two partials of its own, which may be sketches."""


class Parts(NamedTuple):
    """A forest that has sealed blocks, as ranges are answered from it."""

    directory: Directory
    levels: Levels
    tail: Tail
    skip: int
    """How many rows of the first block have left."""
    stop: int
    """The time behind the newest entry."""
    whole: Callable[[], Sequence[Partial]]
    """Returns the partials over all entries, as a single question gets them."""
    cold: Cold | None
    """Where blocks are kept; None: in memory."""


class RangeAnswers:
    """The answers over k ranges, as they are found.

    Args:
        layout: what is folded and answered.
        k: how many ranges there are.

    Attributes:
        rows: int64 (k,), how many rows each range has; whoever finds answers writes it.
    """

    def __init__(self, layout: Layout, k: int) -> None:
        self.layout, self.rows = layout, np.zeros(k, np.int64)
        self._which: list[list[Array]] = [[] for _ in layout.monoids]
        self._found: list[list[Array]] = [[] for _ in layout.monoids]

    def part(self, slots: Sequence[int]) -> RangeAnswers:
        """The same ranges and answers, of some slots."""
        other = RangeAnswers(self.layout.only(slots), 0)
        other.rows = self.rows
        other._which, other._found = [self._which[slot] for slot in slots], [self._found[slot] for slot in slots]
        return other

    def put(self, which: Array, answers: Sequence[Array]) -> None:
        """Give ranges, int64 (m,), m >= 1, their answers: an array (m,) for each slot. Each range gets them once."""
        for ranges, into, of_slot in zip(self._which, self._found, answers, strict=True):
            ranges.append(which)
            into.append(of_slot)

    def put_partials(self, which: Array, partials: Sequence[Partials]) -> Steps[None]:
        """As `put`, of partials."""
        for a, b in spans_of(len(which), min([at_once(m, "lower_columns") for m in self.layout.monoids], default=1)):
            each = zip(self.layout.monoids, partials, strict=True)
            self.put(which[a:b], [m.lower_columns(tuple([part[a:b] for part in parts])) for m, parts in each])
            yield

    def put_rows(self, which: Array, columns: Sequence[Array], starts: Array, stops: Array) -> Steps[None]:
        """As `put`, of ranges of rows: int64 (m,) starts and stops, start < stop."""
        if not len(which):
            return
        layout, known = self.layout, dict[int, Partials]()
        found: list[Array] = []
        for slot, monoid in enumerate(layout.monoids):
            values = [columns[i] for i in layout.reads[slot]]
            over = monoid.over_ranges(values)
            if over is not None:
                pieces = []
                for a, b in _spans(starts, stops, len(which)):
                    pieces.append(over(starts[a:b], stops[a:b]))
                    yield
                found.append(np.concatenate(pieces))
                continue
            first = layout.first[slot]
            if first not in known:
                known[first] = yield from _reduced(monoid, values, starts, stops)
            found.append((yield from lowered_steps(monoid, known[first])))
        self.put(which, found)

    def reduce_rows(self, columns: Sequence[Array], starts: Array, stops: Array) -> Steps[list[Partials]]:
        """The partials of ranges of rows: per slot those of m >= 1 ranges."""
        found: list[Partials] = []
        for slot, (monoid, reads) in enumerate(zip(self.layout.monoids, self.layout.reads, strict=True)):
            first = self.layout.first[slot]
            if first < slot:
                found.append(found[first])
            else:
                found.append((yield from _reduced(monoid, [columns[i] for i in reads], starts, stops)))
        return found

    def answers_steps(self) -> Steps[tuple[Array, list[Array]]]:
        """The number of entries of each range, int64 (k,), and per name of the layout the answers, an array (k,).

        An array is of objects where answers are, or where a range has no answer (None).
        """
        layout, k = self.layout, len(self.rows)
        answers = []
        for slot in layout.answers:
            if slot < 0:
                answers.append(self.rows)
                continue
            which = np.concatenate(self._which[slot]) if self._which[slot] else np.empty(0, np.int64)
            answers.append((yield from spread_steps(layout.monoids[slot], self._found[slot], which, k)))
        return layout.counted(self.rows, answers)


class RangePartials(RangeAnswers):
    """The partials of k ranges, in the place of their answers."""

    def __init__(self, layout: Layout, k: int) -> None:
        super().__init__(layout, k)
        self._ranges: list[Array] = []
        self._partials: list[list[Partials]] = []

    def put_partials(self, which: Array, partials: Sequence[Partials]) -> Steps[None]:
        """Give ranges, int64 (m,), m >= 1, their partials."""
        self._ranges.append(which)
        self._partials.append(list(partials))
        yield

    def put_rows(self, which: Array, columns: Sequence[Array], starts: Array, stops: Array) -> Steps[None]:
        """As `put_partials`, of ranges of rows."""
        if len(which):
            yield from self.put_partials(which, (yield from self.reduce_rows(columns, starts, stops)))

    def partials(self) -> tuple[Array, list[Partials]]:
        """Which ranges have partials, and these, per slot."""
        if not self._ranges:
            return np.empty(0, np.int64), []
        return np.concatenate(self._ranges), [joined(of_slot) for of_slot in zip(*self._partials, strict=True)]


def forest_steps(out: RangeAnswers, which: Array, starts: Array, stops: Array, forest: Parts) -> Steps[None]:
    """Answer over ranges of one forest.

    Args:
        out: gets the answers.
        which: int64 (m,), the numbers of the ranges there.
        starts, stops: int64 (m,): start <= time < stop. Blocks are read the fewer times the better these are sorted.
    """
    directory, levels, tail, skip, stop_of_all, whole, cold = forest
    if directory.stale:
        levels.freshen()
    head, wide = directory.head, _WIDE_LARGE if any(m.large for m in out.layout.monoids) else _WIDE
    counts, _ = directory.slices(head, directory.tail)
    before = np.zeros(len(counts) + 1, np.int64)  # rows before each block, and before the tail
    np.cumsum(counts, out=before[1:])
    for x, y in spans_of(len(which), wide):
        each = _Ranges(directory, tail, skip, starts[x:y], stops[x:y])
        partials = yield from each.read(out, which[x:y], cold)
        rows = before[each.last] + each.stop - before[each.first] - each.begin
        out.rows[which[x:y]] = np.maximum(rows, 0)
        some = np.flatnonzero(rows > 0)
        all_there = (each.first[some] == 0) & (each.begin[some] == skip) & (stops[x:y][some] >= stop_of_all)
        if all_there.any():
            total = whole()
            packed = [monoid.pack([each_total]) for monoid, each_total in zip(out.layout.monoids, total, strict=True)]
            at = np.zeros(int(all_there.sum()), np.int64)
            yield from out.put_partials(which[x:y][some[all_there]], [rows_of(parts, at) for parts in packed])
        wider = some[~all_there & (each.first[some] < each.last[some])]
        if len(wider):
            older, newer = (end.at[wider] for end in partials)
            start, stop = head + each.first[wider] + (older >= 0), head + each.last[wider]
            ends = (older, partials[0]), (newer, partials[1])
            folded = yield from blocks_steps(out.layout, levels, directory, start, stop, ends)
            yield from out.put_partials(which[x:y][wider], folded)
        if cold is not None:
            cold.cache.trim()


class _Ranges:
    """Where ranges begin and end in a forest: block numbers from its head on, and rows in these.

    first, begin ──▶ [ . . x x ] [ x x x x ] [ x x . . ] ◀── last, stop
    """

    def __init__(self, directory: Directory, tail: Tail, skip: int, starts: Array, stops: Array) -> None:
        self._directory, self._tail, self._skip = directory, tail, skip
        self._starts, self._stops = starts, stops
        self._times = directory.spans(directory.head, directory.tail)
        _, last = self._times
        self.first, self.last = last.searchsorted(starts, "left"), last.searchsorted(stops, "left")
        self.begin, self.stop = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)

    def read(self, out: RangeAnswers, which: Array, cold: Cold | None) -> Steps[tuple[_Ends, _Ends]]:
        """Find the rows, put the answers over ranges of one block, and fold the ends of the others."""
        older, newer = _Ends(len(which)), _Ends(len(which))
        inside = self._inside()
        for a, b in spans_of(len(inside), _RUN):
            run = inside[a:b]
            found = self._blocks(run)
            lengths = np.array([block.rows for block in found])
            ends = np.cumsum(lengths)
            columns = list(self._tail.columns)
            for i in out.layout.used:
                columns[i] = np.concatenate([block.columns[i][: block.rows] for block in found])
            first, last = (_among(run, blocks) for blocks in (self.first, self.last))
            for blocks, times, rows in ((first, self._starts, self.begin), (last, self._stops, self.stop)):
                some = np.flatnonzero(blocks >= 0)
                at = blocks[some]
                skips = np.where(run[at] == 0, self._skip, 0)
                rows[some] = rows_at([block.columns[0] for block in found], at, skips, lengths[at], times[some])
            yield
            # Whoever begins in a block that ends in a later run folds its rows there now, and those behind it later.
            same = (first >= 0) & (self.first == self.last)
            of = np.flatnonzero(same & (self.begin < self.stop))
            whole = (self.first[of] == 0) & (self.begin[of] == self._skip) & (self._stops[of] > self._newest())
            of = of[~whole]
            begin = ends[first[of]] - lengths[first[of]]
            yield from out.put_rows(which[of], columns, begin + self.begin[of], begin + self.stop[of])
            of = np.flatnonzero((first >= 0) & ~same & (self.begin > 0))
            if len(of):
                begin = ends[first[of]] - lengths[first[of]]
                yield from older.fold(out, of, columns, begin + self.begin[of], ends[first[of]])
            of = np.flatnonzero((last >= 0) & ~same & (self.stop > 0))
            if len(of):
                begin = ends[last[of]] - lengths[last[of]]
                yield from newer.fold(out, of, columns, begin, begin + self.stop[of])
            if cold is not None:
                cold.cache.trim()
        return older, newer

    def _newest(self) -> int:
        """The time of the newest entry."""
        tail = self._tail
        return int(tail.columns[0][tail.rows - 1]) if tail.rows else int(self._times[1][-1])

    def _inside(self) -> Array:
        """The blocks that ends of ranges lie in, behind their first row; and the head if some rows of it have left."""
        first, last = self._times
        sealed, found = len(last), []
        for blocks, times in ((self.first, self._starts), (self.last, self._stops)):
            inside = blocks == sealed
            inside[~inside] = times[~inside] > first[blocks[~inside]]
            if self._skip:
                inside |= blocks == 0
            found.append(blocks[inside])
        return np.unique(np.concatenate(found))

    def _blocks(self, run: Array) -> list[Block]:
        directory, head = self._directory, self._directory.head
        positions = [head + block for block in run.tolist() if head + block < directory.tail]
        directory.fetch(positions)
        found: list[Block] = [directory.block(position) for position in positions]
        return found if len(found) == len(run) else [*found, self._tail]


class _Ends:
    """The folds of the rows at one end of some ranges.

    Args:
        m: how many ranges there are.
    """

    def __init__(self, m: int) -> None:
        self.at = np.full(m, -1)
        """For each range where its fold is, -1 where it has none."""
        self._count = 0
        self._parts: list[list[Partials]] = []

    def fold(
        self, out: RangeAnswers, ranges: Array, columns: Sequence[Array], starts: Array, stops: Array
    ) -> Steps[None]:
        """Fold rows for some ranges; those that many of them share are folded once."""
        _, firsts, at = np.unique(starts << 32 | stops, return_index=True, return_inverse=True)
        self._parts.append((yield from out.reduce_rows(columns, starts[firsts], stops[firsts])))
        self.at[ranges] = self._count + at.reshape(-1)
        self._count += len(firsts)

    def partials(self, slot: int) -> Partials:
        """The folds of a slot."""
        return joined([part[slot] for part in self._parts])


def blocks_steps(
    layout: Layout,
    levels: Levels,
    directory: Directory,
    start: Array,
    stop: Array,
    ends: tuple[tuple[Array, _Ends], tuple[Array, _Ends]] | None = None,
) -> Steps[list[Partials]]:
    """Fold runs of sealed blocks start..stop, int64 (k,), in steps: per slot k partials.

    Args:
        ends: which of some folds each run has before it, and behind it: int64 (k,), -1 for none.
    """
    yield from levels.pair_steps(start, stop)
    terms, paired, nodes = levels.covers(start, stop)
    flat, news = np.unique(np.stack((paired, stop), 1)[paired < stop], axis=0, return_inverse=True)
    unpaired = np.full(len(start), -1)
    unpaired[paired < stop] = news.reshape(-1)
    if directory.has_external:
        nodes.update((0, position) for first, last in flat.tolist() for position in range(first, last))
        levels.fetch((), sorted(nodes), layout.slots)
        yield
    slots = None if len(layout.slots) == len(directory.monoids) else layout.slots
    folds = list[list[Partial]]()
    for first, last in flat.tolist():
        folds.append(directory.fold(first, last, slots))
        yield
    out = []
    for at_slot, (slot, monoid) in enumerate(zip(layout.slots, layout.monoids, strict=True)):
        total = _Total(monoid, len(start))
        if ends is not None:
            yield from total.add(ends[0][0], partial(ends[0][1].partials, at_slot))
        for ranges, level, rows in terms:
            taken, back = np.unique(rows, return_inverse=True)
            which = np.full(len(start), -1)
            which[ranges] = back.reshape(-1)
            yield from total.add(which, partial(_inline, level, slot, taken))
        yield from total.add(unpaired, partial(monoid.pack, [fold[at_slot] for fold in folds]))
        if ends is not None:
            yield from total.add(ends[1][0], partial(ends[1][1].partials, at_slot))
        out.append(total.partials)
    return out


class _Total:
    """The folds of k ranges, which grow at their newer end."""

    def __init__(self, monoid: Monoid, k: int) -> None:
        self.partials: Partials = tuple([np.empty(k, dtype) for dtype in monoid.dtypes])
        self._monoid, self._begun = monoid, np.zeros(k, np.bool_)
        self._at_once = at_once(monoid, "combine_columns")

    def add(self, which: Array, partials: Callable[[], Partials]) -> Steps[None]:
        """Combine each range with one of some partials: int64 (k,), -1 for none."""
        more, new = np.flatnonzero((which >= 0) & self._begun), np.flatnonzero((which >= 0) & ~self._begun)
        if not len(more) and not len(new):
            return
        given = partials()
        for a, b in spans_of(len(more), self._at_once):
            some = more[a:b]
            put_rows(
                self.partials,
                some,
                self._monoid.combine_columns(rows_of(self.partials, some), rows_of(given, which[some])),
            )
            yield
        put_rows(self.partials, new, rows_of(given, which[new]))
        self._begun[new] = True


def combined_steps(monoid: Monoid, partials: Partials, first: Array, length: Array) -> Steps[Partials]:
    """Fold runs of neighbouring partials, the older ones first, in steps.

    Args:
        first, length: int64 (k,), where each run begins, and how long it is, >= 1.

    Returns:
        k partials.
    """
    total, at = rows_of(partials, first), 1
    more, most = np.flatnonzero(length > 1), at_once(monoid, "combine_columns")
    while len(more):
        for a, b in spans_of(len(more), most):
            some = more[a:b]
            put_rows(total, some, monoid.combine_columns(rows_of(total, some), rows_of(partials, first[some] + at)))
            yield
        at += 1
        more = more[length[more] > at]
    return total


def _reduced(monoid: Monoid, values: Sequence[Array], starts: Array, stops: Array) -> Steps[Partials]:
    """As `Monoid.reduce_ranges`, in steps."""
    found = []
    for a, b in _spans(starts, stops, at_once(monoid, "reduce_ranges")):
        found.append(monoid.reduce_ranges(values, starts[a:b], stops[a:b]))
        yield
    return joined(found)


def _spans(starts: Array, stops: Array, most: int) -> list[tuple[int, int]]:
    """Ranges in spans of at most `most`, which together have no more rows than one step looks at, or one range."""
    behind, spans, a = np.cumsum(stops - starts), list[tuple[int, int]](), 0
    while a < len(starts):
        rows = int(behind[a - 1]) if a else 0
        b = max(min(int(behind.searchsorted(rows + _TOUCHED, "right")), a + most), a + 1)
        spans.append((a, b))
        a = b
    return spans


def _among(run: Array, blocks: Array) -> Array:
    """Where each of some blocks is in a run of increasing ones; -1 where it is not."""
    at = np.minimum(run.searchsorted(blocks), len(run) - 1)
    return np.where(run[at] == blocks, at, -1)


def _inline(level: Level, slot: int, rows: Array) -> Partials:
    """Partials of a level, as the aggregate has them."""
    some, monoid = rows_of(level.columns[slot], rows), level.monoids[slot]
    return (object_array(monoid.unpack(some)),) if isinstance(monoid, ExternalPartials) else some
