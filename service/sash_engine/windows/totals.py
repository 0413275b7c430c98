"""Totals of many groups as columns of partials, to which more is added in steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.forest.series import at_once
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.page_allocator import Numbers

__all__ = ["Totals", "rows_of"]


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
