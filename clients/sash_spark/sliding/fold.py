"""The answers over many windows of many keys, in vectorised passes.

    segments     a: [====]  [====] [==]     b: [======] [====]          runs of rows of one key, with their partials
    windows            |--------|   …            |--------|   …
    atoms        a: [=][===][====] [=][]    b: [==][====][===]          no window's edge divides one

A segment that an edge divides is read, and its rows are folded into atoms, pane by pane. Of all other segments the
partials are enough. Each window is a run of neighbouring atoms; runs are folded by doubling, as in a series
(`sash_engine.forest.series`), for all keys at once.

If an aggregate depends on the order of entries, segments of one key that overlap in time are read as well, and their
rows are merged by (time, arrival).

Cost for n rows that are read, s segments and k windows: O(n + s log s + k log k), in O(log s) vectorised calls.
Requires: associativity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sash_engine.forest.layout import Layout
from sash_engine.forest.segments import starts_of_runs
from sash_engine.forest.series import fold_runs
from sash_engine.monoids import Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import finished
from sash_spark.sliding.plan import Plan

WINDOWS_AT_ONCE = 65_536
"""Windows of one pass: its tables take some 100 bytes for each window and aggregate."""

_ROWS_AT_ONCE = 1_000_000
"""About so many rows are read and folded into atoms at once."""


_PLAIN = ("key", "first", "last", "count", "chunk", "known")


@dataclass(slots=True)
class Segments:
    """Runs of rows, each of one key and in one chunk. All arrays have one place for each segment.

    Args:
        key: int64, numbers of keys.
        first, last: int64, times of the first and the last row.
        count: int64, how many rows; at least one.
        chunk: int64, the number of the chunk by arrival.
        known: bool, whether the partials are known.
        partials: per slot of the layout; any value where they are not known.
    """

    key: Array
    first: Array
    last: Array
    count: Array
    chunk: Array
    known: Array
    partials: list[Partials]

    def take(self, rows: Array) -> Segments:
        """Select some, in a new order."""
        partials = [tuple([part[rows] for part in each]) for each in self.partials]
        return Segments(**{name: getattr(self, name)[rows] for name in _PLAIN}, partials=partials)


@dataclass(slots=True)
class Answers:
    """The answers over k windows of one width.

    Args:
        width: the number of the width.
        key: int64 (k,), numbers of keys.
        start, stop: int64 (k,), start <= time < stop.
        entries: int64 (k,), at least 1.
        answers: (k,) of each aggregate.
    """

    width: int
    key: Array
    start: Array
    stop: Array
    entries: Array
    answers: list[Array]


class Windows(Protocol):
    """Which windows to answer."""

    def touched(self, segments: Segments) -> Array:
        """Whether some window may hold a row of each segment."""

    def divided(self, segments: Segments) -> Array:
        """Whether an edge of a window lies inside each segment."""

    def panes(self, keys: Array, times: Array) -> list[Array]:
        """Numbers that differ between two rows of a key if an edge lies between them."""

    def runs(self, line: Line, width: int) -> Iterator[tuple[Array, Array, Array]]:
        """Yield windows of a width: places of their starts and stops on the line, and their keys; in order.

        A start may be later than the window's own, where no row before it counts.
        """


@dataclass(frozen=True, slots=True)
class Steps:
    """The windows with after < end <= upto, one at each multiple of the plan's step."""

    plan: Plan
    after: int
    upto: int

    def touched(self, segments: Segments) -> Array:
        found = np.zeros(len(segments.key), np.bool_)
        for _, width in self.plan.widths:
            low, high = self._starts(segments.first, segments.last, width)
            found |= low <= high
        return found

    def divided(self, segments: Segments) -> Array:
        found = np.zeros(len(segments.key), np.bool_)
        step = self._step
        for _, width in self.plan.widths:
            lowest, highest = (self.after - width) // step, (self.upto - width) // step
            for edge in (0, width):
                low = np.maximum((segments.first - edge) // step, lowest)
                found |= np.minimum((segments.last - edge) // step, highest) > low
        return found

    def panes(self, keys: Array, times: Array) -> list[Array]:
        step = self._step
        rests = {width % step for _, width in self.plan.widths}
        return [(times - rest) // step for rest in sorted({0, *rests})]

    def runs(self, line: Line, width: int) -> Iterator[tuple[Array, Array, Array]]:
        step = self._step
        low, high = self._starts(line.first, line.last, width)
        some = np.flatnonzero(low <= high)
        keys = line.key[some]
        begin, end = line.place(keys, low[some] * step), line.place(keys, high[some] * step)
        # Atoms share windows: each window counts for the first atom that it holds.
        begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1] + step)
        lengths = np.maximum((end - begin) // step + 1, 0)
        offsets = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        for at in range(0, total, WINDOWS_AT_ONCE):
            numbers = np.arange(at, min(at + WINDOWS_AT_ONCE, total))
            atom = offsets.searchsorted(numbers, "right") - 1
            starts = begin[atom] + (numbers - offsets[atom]) * step
            yield starts, starts + width, keys[atom]

    @property
    def _step(self) -> int:
        assert self.plan.step is not None
        return self.plan.step

    def _starts(self, first: Array, last: Array, width: int) -> tuple[Array, Array]:
        """The first and the last start of a window that may hold a time of each span, in steps."""
        step = self._step
        low = np.maximum((first - width) // step, (self.after - width) // step) + 1
        return low, np.minimum(last // step, (self.upto - width) // step)


@dataclass(frozen=True, slots=True)
class Newest:
    """For some keys the windows that end with their newest rows.

    Args:
        newest: int64, time of each key's newest row.
        wanted: bool, for which keys.
        oldest: older rows do not count, because state may have lost them.
    """

    plan: Plan
    newest: Array
    wanted: Array
    oldest: int

    def touched(self, segments: Segments) -> Array:
        return self.wanted[segments.key] & (segments.last >= self._edges(segments.key, self.plan.longest))

    def divided(self, segments: Segments) -> Array:
        found = np.zeros(len(segments.key), np.bool_)
        for _, width in self.plan.widths:
            edge = self._edges(segments.key, width)
            found |= (segments.first < edge) & (edge <= segments.last)
        return found

    def panes(self, keys: Array, times: Array) -> list[Array]:
        return [times >= self._edges(keys, width) for _, width in self.plan.widths]

    def runs(self, line: Line, width: int) -> Iterator[tuple[Array, Array, Array]]:
        found = line.key[starts_of_runs(line.key)]
        for at in range(0, len(found), WINDOWS_AT_ONCE):
            keys = found[at : at + WINDOWS_AT_ONCE]
            yield line.place(keys, self._edges(keys, width)), line.place(keys, self.newest[keys] + 1), keys

    def _edges(self, keys: Array, width: int) -> Array:
        edges: Array = np.maximum(self.newest[keys] - width + 1, self.oldest)
        return edges


def answers_over(
    layout: Layout, widths: Sequence[int], segments: Segments, read: Callable[[Array], list[Array]], windows: Windows
) -> Iterator[Answers]:
    """Answer over windows that have rows.

    Args:
        layout: the aggregates.
        widths: of the windows.
        segments: all rows, in any order.
        read: returns the rows of some segments, one segment after the other, as columns.
        windows: which windows.
    """
    atoms = _atoms(layout, segments, read, windows)
    if len(atoms.key):
        yield from _answers(layout, widths, atoms, windows)


def _answers(layout: Layout, widths: Sequence[int], atoms: Segments, windows: Windows) -> Iterator[Answers]:
    line = Line(atoms, max(widths))
    if not line.fits:
        half = int(atoms.key.searchsorted(atoms.key[len(atoms.key) // 2]))
        half = half or int(atoms.key.searchsorted(atoms.key[0], "right"))
        for part in (np.arange(half), np.arange(half, len(atoms.key))):
            yield from _answers(layout, widths, atoms.take(part), windows)
        return
    before = np.concatenate(([0], np.cumsum(atoms.count)))
    for number, width in enumerate(widths):
        for starts, stops, keys in windows.runs(line, width):
            first, end = line.places.searchsorted(starts, "left"), line.places.searchsorted(stops, "left")
            low, high = int(first[0]), int(end.max())
            lowered = []
            for monoid, partials in zip(layout.monoids, atoms.partials, strict=True):
                some = tuple([part[low:high] for part in partials])
                folds = finished(fold_runs(monoid, some, first - low, end - first))
                lowered.append(monoid.lower_columns(folds))
            entries = before[end] - before[first]
            answers = [entries if slot < 0 else lowered[slot] for slot in layout.answers]
            stop = line.time(keys, stops)
            yield Answers(number, keys, stop - width, stop, entries, answers)


class Line:
    """All keys' times one behind the other, as one line of int64 places.

    Args:
        atoms: sorted by (key, first).
        margin: so much time before and behind the atoms of a key has places, too.
    """

    def __init__(self, atoms: Segments, margin: int) -> None:
        self.key, self.first, self.last = atoms.key, atoms.first, atoms.last
        self._origin = int(atoms.first.min()) - 2 * margin
        self._length = int(atoms.last.max()) - self._origin + 2 * margin
        self._lowest = int(atoms.key[0])
        keys = int(atoms.key[-1]) - self._lowest + 1
        self.fits = keys * self._length < 2**62 or keys == 1
        """Whether int64 has enough places. One key always has."""
        if self.fits:
            self.places = self.place(atoms.key, atoms.first)

    def place(self, keys: Array, times: Array) -> Array:
        """The places of times of some keys."""
        places: Array = (keys - self._lowest) * self._length + (times - self._origin)
        return places

    def time(self, keys: Array, places: Array) -> Array:
        """The opposite of `place`."""
        times: Array = places - (keys - self._lowest) * self._length + self._origin
        return times


def _atoms(layout: Layout, segments: Segments, read: Callable[[Array], list[Array]], windows: Windows) -> Segments:
    """Cut segments into pieces that no window's edge divides, sorted by (key, first time)."""
    order = np.lexsort((segments.chunk, segments.first, segments.key))
    order = order[windows.touched(segments)[order]]
    segments = segments.take(order)
    if not len(order):
        return segments
    cluster = np.arange(len(order))
    unread = segments.known & ~windows.divided(segments)
    if not layout.commutative:
        cluster = _clusters(segments)
        sizes = np.bincount(cluster)
        unread &= sizes[cluster] == 1
    whole, cut = np.flatnonzero(unread), np.flatnonzero(~unread)
    parts = [segments.take(whole)] if len(whole) else []
    rows = np.cumsum(segments.count[cut])
    at = 0
    while at < len(cut):
        # At least one cluster, and about so many rows.
        stop = int(rows.searchsorted((int(rows[at - 1]) if at else 0) + _ROWS_AT_ONCE, "right"))
        last = cluster[cut[max(stop, at + 1) - 1]]
        stop = int(cluster[cut].searchsorted(last, "right"))
        some = cut[at:stop]
        parts.append(_of_rows(layout, segments.take(some), cluster[some], read(order[some]), windows))
        at = stop
    atoms = parts[0] if len(parts) == 1 else joined(parts)
    return atoms if _in_order(atoms) else atoms.take(np.lexsort((atoms.first, atoms.key)))


def _in_order(segments: Segments) -> bool:
    """Whether segments are sorted by (key, first time)."""
    key, first = segments.key, segments.first
    ordered = key[1:] > key[:-1]
    ordered |= (key[1:] == key[:-1]) & (first[1:] >= first[:-1])
    return bool(ordered.all())


def _clusters(segments: Segments) -> Array:
    """Number the groups of segments of one key that overlap, or touch, in time; they are sorted by (key, first)."""
    new_key = np.ones(len(segments.key), np.bool_)
    new_key[1:] = segments.key[1:] != segments.key[:-1]
    # The ranks of times are small, so that a key and a rank fit into one number.
    _, rank = np.unique(np.concatenate((segments.first, segments.last)), return_inverse=True)
    first, last = rank[: len(new_key)], rank[len(new_key) :]
    line = np.cumsum(new_key) * (int(rank.max()) + 1)
    ends = np.maximum.accumulate(line + last)
    apart = new_key
    apart[1:] |= (line + first)[1:] > ends[:-1]
    return np.cumsum(apart) - 1


def _of_rows(layout: Layout, segments: Segments, cluster: Array, columns: list[Array], windows: Windows) -> Segments:
    """Fold rows into atoms: those of neighbouring rows of one cluster and pane."""
    clusters, keys = np.repeat(cluster, segments.count), np.repeat(segments.key, segments.count)
    if not layout.commutative:
        order = np.lexsort((np.repeat(segments.chunk, segments.count), columns[0], clusters))
        columns = [column[order] for column in columns]
    times = columns[0]
    new = np.ones(len(times), np.bool_)
    new[1:] = clusters[1:] != clusters[:-1]
    for panes in windows.panes(keys, times):
        new[1:] |= panes[1:] != panes[:-1]
    starts = np.flatnonzero(new)
    stops = np.append(starts[1:], len(times))
    return Segments(
        keys[starts],
        times[starts],
        times[stops - 1],
        stops - starts,
        np.zeros(len(starts), np.int64),
        np.ones(len(starts), np.bool_),
        layout.reduce_segments(columns, starts),
    )


def joined(parts: list[Segments]) -> Segments:
    """Put segments one behind the other."""
    partials = [
        tuple([np.concatenate(columns) for columns in zip(*slots, strict=True)])
        for slots in zip(*(part.partials for part in parts), strict=True)
    ]
    plain = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _PLAIN}
    return Segments(**plain, partials=partials)
