"""How an answer is made of partials."""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.forest import Layout
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.pane import exported
from sash_engine.windows.spec import WindowSpec
from sash_wire.labels import split

__all__ = ["parts_of", "partials_of"]

_COUNT: Monoid = Count()


def partials_of(layout: Layout, entries: int, totals: Sequence[Partial]) -> dict[str, Partials]:
    """Each aggregate's partial as it is outside: columns of one row, or of none over no entries."""
    out = {}
    slots = layout.answers[-len(layout.names) :]  # those of panes begin with one that has no name
    for name, slot in zip(layout.names, slots, strict=True):
        monoid, partial = (_COUNT, entries) if slot < 0 else (layout.monoids[slot], totals[slot])
        out[name] = exported(monoid, [partial] if entries else [])
    return out


def parts_of(spec: WindowSpec, key: str | None) -> dict[str, str] | None:
    """The parts of a key by name; None where the window's keys have none."""
    if spec.keys is None or key is None:
        return None
    return dict(zip(spec.keys, split(key, len(spec.keys)), strict=True))
