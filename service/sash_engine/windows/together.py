"""Answers over the entries of several keys together, in steps.

    keys     | 1,024 small ones | store | store | 1,024 small ones | …     a step for each
    fold     each piece on its own, then combined                            commutative aggregates only

    series   rows of small keys ──▶ sorted by pane, piece by piece ──▶ a fold for each pane ──┐
             each large forest ─────────────────────────────────────▶ a fold for each pane ──┴─▶ runs of panes

A pane lies between two neighbouring bounds of buckets. Small keys give their rows: each piece is sorted by pane, then
all pieces are put into one column, as a distribution sort does. A forest of many rows folds its own panes from nodes.

Fold: O(rows of small keys + forests · log n).  Series over p panes: O(rows of small keys + forests · p) + O(p log p).
Requires: commutativity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.forest.series import answers_of, at_once, fold_runs, reduce_steps, sorted_unique
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys import Keys
from sash_engine.windows.page_allocator import Numbers
from sash_engine.windows.ragged import ragged

__all__ = ["KEYS", "PaneFolds", "fold_steps", "series_steps"]

KEYS = 1_024
"""Small keys that one step looks at, at most: with a sum, 0.5 ms at ten entries each, 2 ms at 64."""

_ROWS = 65_536
_ROWS_OF_FOREST = 8_192
"""A forest of no more rows gives these; a larger one folds panes. So many rows are sorted in 1 ms."""


def keys_per_step(layout: Layout) -> int:
    """How many small keys one step folds: the fewer, the more an aggregate costs."""
    # What a step makes of an aggregate takes about as long for each: as many partials as `at_once` says.
    share = sum(1 / at_once(monoid, "reduce_segments") for monoid in layout.monoids)
    return max(min(int(1 / share), KEYS), 1) if share else KEYS


def fold_steps(keys: Keys, layout: Layout, numbers: Numbers, start: int, end: int) -> Steps[tuple[int, list[Partial]]]:
    """Fold the entries of k keys with start <= time <= end: how many there are, and a partial per slot."""
    count, totals = 0, list(layout.identities)
    for a, b in spans_of(len(numbers), keys_per_step(layout)):
        some = numbers[a:b]
        stores = list(keys.with_own_stores(some))
        for _, store in stores:
            entries, partials = store.range_totals(start, end)
            if entries:
                count, totals = count + entries, layout.combine(totals, partials)
            yield
        if stores:
            some = np.setdiff1d(some, [number for number, _ in stores], assume_unique=True)
        entries_each, columns = keys.range_totals_each(some, start, end)
        entries = int(entries_each.sum())
        if entries:
            folds = [monoid.fold(column) for monoid, column in zip(layout.monoids, columns, strict=True)]
            count, totals = count + entries, layout.combine(totals, folds)
        yield
    return count, totals


def series_steps(
    keys: Keys, layout: Layout, numbers: Numbers, starts: Array, stops: Array
) -> Steps[tuple[Array, list[Array], list[Partials]]]:
    """Answer over k >= 1 ranges start <= time < stop, over the entries of several keys; as `Forest.series`.

    Returns:
        the entries, the answers, and per slot the partials of the ranges that have entries.
    """
    cuts = sorted_unique(np.concatenate((starts, stops)))
    yield
    panes = PaneFolds(layout, cuts)
    for a, b in spans_of(len(numbers), KEYS):
        some = numbers[a:b]
        _, _, rows = keys.small(some)
        panes.take(rows)
        yield
        for _, store in keys.with_own_stores(some):
            forest = store.forest
            if len(forest) <= _ROWS_OF_FOREST:
                panes.take(forest.columns())
                yield
            else:
                entries, filled, partials = yield from forest.fold_steps(cuts[:-1], cuts[1:])
                yield from panes.add(filled, entries[filled], partials)
    yield from panes.fold()
    begin, end = cuts.searchsorted(starts), cuts.searchsorted(stops)
    yield
    held, answers, partials = yield from panes.answers(begin, end)
    return (*layout.counted(held, answers), partials)


class PaneFolds:
    """The entries of several keys by pane.

    Args:
        layout: the aggregates.
        cuts: int64 (p + 1,), strictly increasing times: pane i is cuts[i] <= time < cuts[i + 1].
    """

    def __init__(self, layout: Layout, cuts: Array) -> None:
        self._layout, self._cuts = layout, cuts
        panes = len(cuts) - 1
        self._entries = np.zeros(panes, np.int64)  # by pane, as all below
        self._there = np.zeros(panes, np.bool_)
        self._partials: list[Partials] = [
            tuple([np.empty(panes, dtype) for dtype in monoid.dtypes]) for monoid in layout.monoids
        ]
        self._read = sorted({i for reads in layout.reads for i in reads})
        self._rows = np.zeros(panes, np.int64)  # of the pieces
        self._pieces: list[tuple[Numbers, Numbers, list[Array]]] = []

    def take(self, rows: Sequence[Array]) -> None:
        """Take rows: times, then a column per field; they may be in any order."""
        of = self._cuts.searchsorted(rows[0], "right") - 1
        order = np.argsort(of, kind="stable")
        of = of[order]
        a, b = of.searchsorted((0, len(self._rows))).tolist()
        order, of = order[a:b], of[a:b]
        if not len(of):
            return
        firsts = starts_of_runs(of)
        panes, lengths = of[firsts], lengths_of_segments(firsts, len(of))
        self._rows[panes] += lengths
        self._pieces.append((panes, lengths, [rows[i][order] for i in self._read]))

    def fold(self) -> Steps[None]:
        """Fold the rows that were taken."""
        panes = np.flatnonzero(self._rows)
        if not len(panes):
            return
        behind = np.cumsum(self._rows)
        places = behind - self._rows
        columns: list[Any] = [np.empty(0)] * len(self._layout.dtypes)
        for i in self._read:
            columns[i] = np.empty(int(behind[-1]), self._layout.dtypes[i])
        self._pieces.reverse()
        while self._pieces:
            some, lengths, rows = self._pieces.pop()
            into = ragged(places[some], lengths)
            for i, column in zip(self._read, rows, strict=True):
                columns[i][into] = column
            places[some] += lengths
            yield
        stops = behind[panes]
        at = before = 0
        while at < len(panes):
            stop = max(int(stops.searchsorted(before + _ROWS, "right")), at + 1)
            here, end = panes[at:stop], int(stops[stop - 1])
            firsts = stops[at:stop] - self._rows[here] - before
            folds = yield from reduce_steps(self._layout, [column[before:end] for column in columns], firsts)
            yield from self.add(here, self._rows[here], folds)
            at, before = stop, end

    def add(self, panes: Numbers, entries: Numbers, partials: Sequence[Partials]) -> Steps[None]:
        """Add k panes: how many entries each has, and per slot k partials."""
        self._entries[panes] += entries
        there = self._there[panes]
        both, new = np.flatnonzero(there), np.flatnonzero(~there)
        for monoid, mine, theirs in zip(self._layout.monoids, self._partials, partials, strict=True):
            for a, b in spans_of(len(both), at_once(monoid, "combine_columns")):
                some, at = both[a:b], panes[both[a:b]]
                combined = monoid.combine_columns(_rows(mine, at), _rows(theirs, some))
                for part, column in zip(mine, combined, strict=True):
                    part[at] = column
                yield
            for part, column in zip(mine, theirs, strict=True):
                part[panes[new]] = column[new]
            yield
        self._there[panes] = True

    def answers(self, begin: Numbers, end: Numbers) -> Steps[tuple[Array, list[Array], list[Partials]]]:
        """The entries, answers and partials over panes begin..end, of each of k ranges."""
        behind = np.append(0, np.cumsum(self._entries))
        entries = behind[end] - behind[begin]
        filled, there = np.flatnonzero(entries), np.flatnonzero(self._there)
        partials: list[Partials] = []
        if len(filled):
            # Runs over panes that have entries: the others are left out.
            first, stop = there.searchsorted(begin[filled]), there.searchsorted(end[filled])
            yield
            for monoid, column in zip(self._layout.monoids, self._partials, strict=True):
                partials.append((yield from fold_runs(monoid, _rows(column, there), first, stop - first)))
        return entries, (yield from answers_of(self._layout, partials, filled, entries)), partials


def _rows(partials: Partials, rows: Array) -> Partials:
    return tuple([part[rows] for part in partials])
