"""Totals of many groups as columns of partials, to which more is added in steps; and partials as answers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.forest.series import at_once
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import exported
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.page_allocator import Numbers

__all__ = ["Totals", "partials_of", "partials_of_buckets", "rows_of"]

_COUNT: Monoid = Count()


class Totals:
    """The partials of n groups.

    Args:
        layout: the aggregates.
        n: how many groups.

    Attributes:
        entries: int64 (n,), how many rows each group has.
        there: bool (n,), which groups have any.
        partials: per slot n partials; they mean nothing where a group has no rows.
    """

    def __init__(self, layout: Layout, n: int) -> None:
        self.layout = layout
        self.entries: Numbers = np.zeros(n, np.int64)
        self.there = np.zeros(n, np.bool_)
        self.partials: list[Partials] = [
            tuple([np.empty(n, dtype) for dtype in monoid.dtypes]) for monoid in layout.monoids
        ]

    def add(self, groups: Numbers, entries: Numbers, partials: Sequence[Partials]) -> Steps[None]:
        """Add to k distinct groups: how many rows, and per slot k partials."""
        at: Any = groups
        if len(groups) and groups[-1] - groups[0] == len(groups) - 1 and (groups[1:] > groups[:-1]).all():
            at = slice(int(groups[0]), int(groups[-1]) + 1)  # neighbours: nothing is gathered
        self.entries[at] += entries
        there = self.there[at]
        if not there.any():
            for mine, theirs in zip(self.partials, partials, strict=True):
                for part, column in zip(mine, theirs, strict=True):
                    part[at] = column
                yield
            self.there[at] = True
            return
        both, new = np.flatnonzero(there), np.flatnonzero(~there)
        for monoid, mine, theirs in zip(self.layout.monoids, self.partials, partials, strict=True):
            for a, b in spans_of(len(both), at_once(monoid, "combine_columns")):
                some, places = both[a:b], groups[both[a:b]]
                combined = monoid.combine_columns(rows_of(mine, places), rows_of(theirs, some))
                for part, column in zip(mine, combined, strict=True):
                    part[places] = column
                yield
            for part, column in zip(mine, theirs, strict=True):
                part[groups[new]] = column[new]
            yield
        self.there[at] = True

    def of(self, group: int) -> list[Partial]:
        """The partials of a group that has rows, one per slot."""
        rows = np.array([group])
        pairs = zip(self.layout.monoids, self.partials, strict=True)
        return [monoid.unpack(rows_of(each, rows))[0] for monoid, each in pairs]


def rows_of(partials: Partials, rows: Array) -> Partials:
    """Some of many partials."""
    return tuple([part[rows] for part in partials])


def partials_of(layout: Layout, entries: int, totals: Sequence[Partial]) -> dict[str, Partials]:
    """Return each aggregate's partial: columns of one row, or of none over no entries.

    Args:
        totals: a partial per slot.
    """
    out = {}
    for name, slot in _slots(layout):
        monoid, partial = (_COUNT, entries) if slot < 0 else (layout.monoids[slot], totals[slot])
        out[name] = exported(monoid, [partial] if entries else [])
    return out


def partials_of_buckets(layout: Layout, entries: Array, folds: Sequence[Partials]) -> dict[str, Partials]:
    """Return each aggregate's partials of the buckets that have entries: columns with a row for each.

    Args:
        entries: int64 (n,), how many entries each of n buckets has.
        folds: per slot a row for each bucket that has entries; nothing if none has.
    """
    out = {}
    for name, slot in _slots(layout):
        if slot < 0:
            out[name] = exported(_COUNT, entries[entries > 0].tolist())
        else:
            monoid = layout.monoids[slot]
            out[name] = exported(monoid, monoid.unpack(folds[slot]) if folds else [])
    return out


def _slots(layout: Layout) -> zip[tuple[str, int]]:
    # The slots of panes begin with one that has no name.
    return zip(layout.names, layout.answers[-len(layout.names) :], strict=True)
