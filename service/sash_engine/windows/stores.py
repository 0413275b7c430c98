"""Which stores the keys of a window have.

A window has one kind of stores: forests of entries, forests of panes, or one algorithm of the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sash_engine.errors import Unsupported
from sash_engine.forest import Cold, Forest, Layout
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import exported
from sash_engine.windows.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.by_algorithm import ByAlgorithm
from sash_engine.windows.pages import Pages
from sash_engine.windows.pane_forest import PaneForest
from sash_engine.windows.pane_layout import PaneLayout
from sash_engine.windows.pane_pages import PanePages
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.store import KeyStore

__all__ = ["AlgorithmStores", "EntryStores", "PaneStores", "Stores"]


class Stores(Protocol):
    """Makes the stores of one window's keys."""

    def own(self, layout: Layout) -> KeyStore:
        """An empty store for one key."""

    def in_memory(self, layout: Layout) -> KeyStore:
        """An empty store for a while: nothing of it is stored."""

    def around(self, layout: Layout, forest: Forest) -> KeyStore:
        """The store that a forest was stored of."""

    def pages(self, layout: Layout, smallest: int, largest: int) -> Pages:
        """Empty pages for small keys."""

    def batch(self, spec: WindowSpec, columns: Sequence[Array], keys: Coded | None) -> AnyBatch:
        """Rows of the stores as a batch that could be written again."""


class EntryStores:
    """Forests and pages of entries.

    Args:
        cold: where forests keep their sealed blocks; None: in memory.
    """

    def __init__(self, cold: Cold | None = None) -> None:
        self._cold = cold

    def own(self, layout: Layout) -> KeyStore:
        """An empty forest."""
        return Forest(layout, self._cold)

    def in_memory(self, layout: Layout) -> KeyStore:
        """An empty forest in memory."""
        return Forest(layout)

    def around(self, layout: Layout, forest: Forest) -> KeyStore:
        """The forest itself."""
        return forest

    def pages(self, layout: Layout, smallest: int, largest: int) -> Pages:
        """Empty pages."""
        return Pages(layout, smallest, largest)

    def batch(self, spec: WindowSpec, columns: Sequence[Array], keys: Coded | None) -> AnyBatch:
        """Entries as values."""
        fields = {
            name: Coded.of(column.tolist()) if column.dtype.hasobject else column
            for name, column in zip(spec.columns, columns[1:], strict=True)
        }
        return Batch(columns[0], fields, keys)


class PaneStores:
    """Forests and pages of panes.

    Args:
        layout: of the window. Panes have no other one: aggregates cannot be added.
        cold: where forests keep their sealed blocks; None: in memory.
    """

    def __init__(self, layout: PaneLayout, cold: Cold | None = None) -> None:
        self._layout, self._cold = layout, cold

    def own(self, layout: Layout) -> KeyStore:
        """An empty forest of panes."""
        return PaneForest(self._layout, Forest(layout, self._cold))

    def in_memory(self, layout: Layout) -> KeyStore:
        """An empty forest of panes in memory."""
        return PaneForest(self._layout)

    def around(self, layout: Layout, forest: Forest) -> KeyStore:
        """The panes of a forest."""
        return PaneForest(self._layout, forest)

    def pages(self, layout: Layout, smallest: int, largest: int) -> Pages:
        """Empty pages of panes."""
        return PanePages(self._layout, smallest, largest)

    def batch(self, spec: WindowSpec, columns: Sequence[Array], keys: Coded | None) -> AnyBatch:
        """Panes as partials of all aggregates but counts."""
        layout, partials = self._layout, {}
        for name, slot in zip(layout.names, layout.answers[1:], strict=True):
            if slot:  # slot 0 is the number of entries
                monoid, parts = layout.inner(slot), tuple([columns[i] for i in layout.reads[slot]])
                partials[name] = parts if monoid.fixed else exported(monoid, monoid.unpack(parts))
        return PartialBatch(columns[0], partials, columns[1], keys)


class AlgorithmStores(EntryStores):
    """An algorithm of the library for each key.

    Args:
        algorithm: a name in `ALGORITHMS`.
    """

    def __init__(self, algorithm: str) -> None:
        super().__init__()
        self._algorithm = algorithm

    def own(self, layout: Layout) -> KeyStore:
        """The algorithm without entries."""
        return ByAlgorithm(layout, self._algorithm)

    def around(self, layout: Layout, forest: Forest) -> KeyStore:
        """Refuse: no forest is stored."""
        raise Unsupported(f"{self._algorithm} keeps partials and no values: nothing of it is stored", field="algorithm")
