"""Series over the entries of several keys together, or of each group of them, in steps.

    keys     | 1,024 small ones | store | store | 1,024 small ones | …     a step for each

    series   rows of small keys ──▶ sorted by pane, piece by piece ──▶ a fold for each pane ──┐
             each large forest ─────────────────────────────────────▶ a fold for each pane ──┴─▶ runs of panes

A pane lies between two neighbouring bounds of buckets. Small keys give their rows: each piece is sorted by pane, then
all pieces are put into one column, as a distribution sort does. A forest of many rows folds its own panes from nodes.

Series over p panes: O(rows of small keys + forests · p) + O(p log p).
Requires: commutativity where a group has several keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.forest.series import answers_of, fold_runs, reduce_steps, rows_of, sorted_unique
from sash_engine.monoids import Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.ragged import ragged, spans_of_lengths
from sash_engine.windows.keys.totals import Totals
from sash_engine.windows.sliding.view_keys import ReadableKeys

KEYS = 1_024
"""Small keys that one step looks at, at most: with a sum, 0.5 ms at ten entries each, 2 ms at 64."""

_ROWS = 65_536
_ROWS_OF_FOREST = 8_192
"""A forest of no more rows gives these; a larger one folds panes. So many rows are sorted in 1 ms."""


def series_steps(
    keys: ReadableKeys,
    layout: Layout,
    numbers: Numbers,
    starts: Array,
    stops: Array,
    of: Numbers | None = None,
    groups: int = 1,
) -> Steps[tuple[Array, list[Array], list[Partials]]]:
    """Answer over k >= 1 ranges start <= time < stop, over the entries of several keys; as `Forest.series`.

    Args:
        of: int64, the group of each key, below `groups`; None: all are one. The answers are those of the first group,
            k of them, then those of the second, and so on. A group of one key needs no commutativity.

    Returns:
        the entries, the answers, and per slot the partials of the ranges that have entries.
    """
    cuts = sorted_unique(np.concatenate((starts, stops)))
    yield
    panes = PaneFolds(layout, cuts, groups)
    group_of = np.zeros(len(numbers), np.int64) if of is None else of
    for a, b in spans_of(len(numbers), KEYS):
        groups_of = dict(zip(numbers[a:b].tolist(), group_of[a:b].tolist(), strict=True))
        small, lengths, rows = keys.small(numbers[a:b])
        panes.take(rows, np.repeat([groups_of[number] for number in small.tolist()], lengths).astype(np.int64))
        yield
    # Behind all small keys: a pane has its rows in the same order, whichever keys of other groups are asked about.
    for a, b in spans_of(len(numbers), KEYS):
        groups_of = dict(zip(numbers[a:b].tolist(), group_of[a:b].tolist(), strict=True))
        for number, forest in keys.with_own_stores(numbers[a:b]):
            group = groups_of[number]
            if forest.rows <= _ROWS_OF_FOREST:
                columns = forest.columns()
                panes.take(columns, np.full(len(columns[0]), group))
                yield
            else:
                entries, filled, partials = yield from forest.fold_steps(cuts[:-1], cuts[1:], layout)
                if len(filled):
                    yield from panes.totals.add(filled + group * panes.each, entries[filled], partials)
        yield
    yield from panes.fold()
    begin, end = cuts.searchsorted(starts), cuts.searchsorted(stops)
    if groups != 1:
        firsts = np.repeat(np.arange(groups) * panes.each, len(starts))
        begin, end = np.tile(begin, groups) + firsts, np.tile(end, groups) + firsts
    yield
    held, answers, partials = yield from panes.answers(begin, end)
    return (*layout.counted(held, answers), partials)


class PaneFolds:
    """The entries of several keys by pane, and by group of keys.

    Args:
        layout: the aggregates.
        cuts: int64 (p + 1,), strictly increasing times: pane i is cuts[i] <= time < cuts[i + 1].
        groups: how many. Pane i of group g is number g · p + i.

    Attributes:
        each: p, the panes of each group.
    """

    def __init__(self, layout: Layout, cuts: Array, groups: int = 1) -> None:
        self._layout, self._cuts = layout, cuts
        self.each = len(cuts) - 1
        panes = self.each * groups
        self.totals = Totals(layout, panes)
        self._read = sorted({i for reads in layout.reads for i in reads})
        self._rows = np.zeros(panes, np.int64)  # of the pieces
        self._pieces: list[tuple[Numbers, Numbers, list[Array]]] = []

    def take(self, rows: Sequence[Array], groups: Numbers) -> None:
        """Take rows: times, then a column per field, and the group of each; they may be in any order."""
        of = self._cuts.searchsorted(rows[0], "right") - 1
        inside = np.flatnonzero((of >= 0) & (of < self.each))
        of = of[inside] + groups[inside] * self.each
        order = np.argsort(of, kind="stable")
        of, order = of[order], inside[order]
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
        for a, b in spans_of_lengths(self._rows[panes], _ROWS):
            here = panes[a:b]
            firsts, end = behind[here] - self._rows[here], int(behind[here[-1]])
            mine = [column[firsts[0] : end] for column in columns]
            folds = yield from reduce_steps(self._layout, mine, firsts - firsts[0])
            yield from self.totals.add(here, self._rows[here], folds)

    def answers(self, begin: Numbers, end: Numbers) -> Steps[tuple[Array, list[Array], list[Partials]]]:
        """The entries, answers and partials over panes begin..end, of each of k ranges."""
        behind = np.append(0, np.cumsum(self.totals.entries))
        entries = behind[end] - behind[begin]
        filled, there = np.flatnonzero(entries), np.flatnonzero(self.totals.there)
        partials: list[Partials] = []
        if len(filled):
            # Runs over panes that have entries: the others are left out.
            first, stop = there.searchsorted(begin[filled]), there.searchsorted(end[filled])
            yield
            for monoid, column in zip(self._layout.monoids, self.totals.partials, strict=True):
                partials.append((yield from fold_runs(monoid, rows_of(column, there), first, stop - first)))
        return entries, (yield from answers_of(self._layout, partials, filled, entries)), partials
