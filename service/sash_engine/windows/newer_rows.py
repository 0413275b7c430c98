"""The rows of a key that are newer than a time, as a view shows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sash_engine.forest import Forest, Layout, RowSlice
from sash_engine.forest.series import answers_of, free_steps
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.key_table import NEVER
from sash_engine.windows.store import KeyStore, ReadableForest, ReadableStore

__all__ = ["Newer", "NewerRows"]

_LAST = 2**63 - 1
"""No row is newer."""


class Newer(ReadableStore):
    """The rows of a store that are newer than a time; see `ReadableStore`."""

    __slots__ = ("_after", "_count", "_layout", "_store")

    def __init__(self, store: KeyStore, layout: Layout, count: Layout, after: int) -> None:
        self._store, self._layout, self._count, self._after = store, layout, count, after

    def __len__(self) -> int:
        rows = self._layout.rows_are_entries
        return self._store.forest.count_after(self._after) if rows else self.range_totals(NEVER, _LAST, self._count)[0]

    @property
    def oldest(self) -> int | None:
        oldest = self._store.oldest
        return oldest if oldest is None or oldest > self._after else self._store.neighbours(self._after)[1]

    @property
    def newest(self) -> int | None:
        newest = self._store.newest
        return None if newest is None or newest <= self._after else newest

    @property
    def forest(self) -> NewerRows:
        return NewerRows(self._store.forest, self._after)

    def totals(self, part: Layout | None = None) -> list[Partial]:
        return self.range_totals(NEVER, _LAST, part)[1]

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        part = self._layout if part is None else part
        entries, partials = self.range_totals(start, end, part)
        return entries, part.lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        part = self._layout if part is None else part
        return self._store.range_totals(max(start, self._after + 1), end, part)

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        part = self._layout if part is None else part
        entries, filled, partials = yield from self.forest.fold_steps(starts, stops, part)
        answers = yield from answers_of(part, partials, filled, entries)
        yield from free_steps(partials, answers)
        return part.counted(entries, answers)

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        first = self._after + 1 if start is None else max(start, self._after + 1)
        return self._store.capture(first, end) if end is None or first <= end else []


class NewerRows(ReadableForest):
    """The rows of a forest that are newer than a time; see `ReadableForest`."""

    __slots__ = ("_after", "_forest")

    def __init__(self, forest: Forest, after: int) -> None:
        self._forest, self._after = forest, after

    @property
    def rows(self) -> int:
        return self._forest.count_after(self._after)

    def columns(self) -> list[Array]:
        rows = self._forest.columns()
        first = int(rows[0].searchsorted(self._after, "right"))
        return [column[first:] for column in rows]

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        return self._forest.fold_steps(np.maximum(starts, self._after + 1), np.maximum(stops, self._after + 1), part)
