"""Several monoids as one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from sash_engine.forest import Layout
from sash_engine.monoids import Count, Monoid, Partial
from sash_engine.monoids.base import Array

__all__ = ["Joint"]


class Joint(Monoid):
    """The aggregates of a layout as one monoid: a partial is the count of entries, then a partial of each aggregate.

    Values and answers are joint partials too.

    Args:
        layout: the aggregates, and what they read.
    """

    function = "joint"

    def __init__(self, layout: Layout) -> None:
        self.monoids = (Count(), *layout.monoids)
        self._reads = ((0,), *layout.reads)
        self._lifts = [(m.lift, itemgetter(*reads)) for m, reads in zip(self.monoids, self._reads, strict=True)]
        self._combines = [monoid.combine for monoid in self.monoids]
        self.types = ()
        self.identity = tuple(monoid.identity for monoid in self.monoids)
        self.commutative = layout.commutative
        self.invertible = all(monoid.invertible for monoid in self.monoids)
        self.exact = all(monoid.exact for monoid in self.monoids)

    def of_entry(self, row: Sequence[Any]) -> Partial:
        """Lift one entry: its time, then a scalar per field."""
        return tuple([lift(pick(row)) for lift, pick in self._lifts])

    def of_columns(self, rows: Sequence[Array]) -> list[Partial]:
        """Lift m >= 1 entries: their times, then a column per field."""
        lifted = (
            monoid.unpack(monoid.lift_columns([rows[i] for i in reads]))
            for monoid, reads in zip(self.monoids, self._reads, strict=True)
        )
        return list(zip(*lifted, strict=True))

    def lift(self, value: Any) -> Partial:
        return value

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return tuple([combine(older[slot], newer[slot]) for slot, combine in enumerate(self._combines)])

    def lower(self, partial: Partial) -> Partial:
        return partial

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        return tuple([monoid.uncombine(total[slot], older[slot]) for slot, monoid in enumerate(self.monoids)])

    def __repr__(self) -> str:
        return f"Joint({', '.join(map(repr, self.monoids))})"
