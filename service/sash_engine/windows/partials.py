"""The partials of answers, in the form that they have outside a window."""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.forest import Layout
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import exported

__all__ = ["partials_of", "partials_of_buckets"]

_COUNT: Monoid = Count()


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
