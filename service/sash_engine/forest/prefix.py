"""The longest prefix of a window for which a monotone predicate holds: what a slide policy evicts.

    entries    e0  e1  e2  e3  e4  e5  e6  e7  e8 …
    asked      1   |       |               |           widths double while it holds, so that the usual
               2 --'       |               |           answer, "nothing goes", takes one question,
               4 ----------'               |           then the last width is halved until the place
               8 --------------------------'           is found; whole nodes are asked for where there are

Source: AMTA's window slide policy (Villalba, Berral, Carrera, TPDS 2019, section 4.4) descends the levels in the same
way; the doubling from the front is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sash_engine.forest.layout import Layout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array

__all__ = ["Prefix"]


class Prefix:
    """The oldest entries that were taken so far, and their fold.

    Args:
        layout: the aggregates.
        holds: asked with a number of entries and the partials over so many oldest ones; monotone.
    """

    __slots__ = ("_holds", "_layout", "_partials", "entries")

    def __init__(self, layout: Layout, holds: Callable[[int, Sequence[Partial]], bool]) -> None:
        self._layout = layout
        self._holds = holds
        self._partials: Sequence[Partial] = layout.identities
        self.entries = 0
        """How many were taken."""

    def take(self, entries: int, partials: Sequence[Partial]) -> bool:
        """Take the next `entries` entries, whose fold is `partials`, if the predicate still holds with them."""
        longer = self._layout.combine(self._partials, partials)
        if not self._holds(self.entries + entries, longer):
            return False
        self._partials = longer
        self.entries += entries
        return True

    def take_rows(self, columns: Sequence[Array], start: int, stop: int) -> int:
        """Take as many as possible of rows start..stop, which are next; return the first row that was not taken."""
        width, bound = 1, stop + 1  # it does not hold for the rows up to `bound`
        while True:
            if bound > stop:
                middle = min(start + width, stop)
                width *= 2
            else:
                middle = (start + bound) // 2
            if middle == start:
                return start
            if self.take(middle - start, self._layout.reduce_rows(columns, start, middle)):
                start = middle
            else:
                bound = middle
