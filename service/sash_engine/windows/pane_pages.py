"""Pages of panes: what shared pages hold where a window has a granularity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.windows.pages import PAGES, Numbers, Pages
from sash_engine.windows.pane_layout import PaneLayout
from sash_engine.windows.ragged import ragged

__all__ = ["PanePages"]


class PanePages(Pages):
    """Pages of panes. Rows are what has to fit in a page; what leaves and what a range has are counted in entries."""

    def __init__(self, layout: PaneLayout, smallest: int = PAGES[0], largest: int = PAGES[1]) -> None:
        super().__init__(layout, smallest, largest)

    @property
    def _panes(self) -> PaneLayout:
        assert isinstance(self.layout, PaneLayout)
        return self.layout

    def weight(self, key: int) -> int:
        start = self._starts.item(key)
        return int(self._columns[1][start : start + self._counts.item(key)].sum())

    def weights(self, keys: Numbers) -> Numbers:
        counts = self._counts[keys]
        ends = np.cumsum(counts)
        running = np.zeros(int(counts.sum()) + 1, np.int64)
        np.cumsum(self._columns[1][ragged(self._starts[keys], counts)], out=running[1:])
        return running[ends] - running[ends - counts]  # type: ignore[no-any-return]

    def insert(self, key: int, time: int, values: Sequence[Any]) -> None:
        """Insert one pane into a key that has less than `largest`: a scalar per column after the time."""
        start, count = self._starts.item(key), self._counts.item(key)
        row = start + int(self._columns[0][start : start + count].searchsorted(time, "left"))
        if row < start + count and self._columns[0].item(row) == time:
            self._panes.join(self._columns, row, values)
            if self.kept is not None:
                self.kept.fresh[key] = False
        else:
            super().insert(key, time, values)

    def bulk_insert(self, keys: Numbers, lengths: Numbers, rows: Sequence[Array]) -> None:
        """As `Pages.bulk_insert`, of panes: of one key no two have one time."""
        if self.kept is not None:
            self.kept.fresh[keys] = False
        targets, sources = self._there(keys, lengths, rows[0])
        if len(targets):
            held = [column[targets] for column in self._columns[1:]]
            joined = self._panes.combine_columns(held, [column[sources] for column in rows[1:]])
            for column, values in zip(self._columns[1:], joined, strict=True):
                column[targets] = values
            new = np.ones(len(rows[0]), np.bool_)
            new[sources] = False
            lengths = np.add.reduceat(new, np.cumsum(lengths) - lengths, dtype=np.int64)
            keys, lengths = keys[lengths > 0], lengths[lengths > 0]
            rows = [column[new] for column in rows]
        if len(keys):
            super().bulk_insert(keys, lengths, rows)

    def _there(self, keys: Numbers, lengths: Numbers, times: Array) -> tuple[Numbers, Numbers]:
        """Where newcomers meet a pane of their key and time: its row, and theirs."""
        counts = self._counts[keys]
        held = ragged(self._starts[keys], counts)
        # Newcomers are seldom older than most of what is there.
        near = self._columns[0][held] >= np.repeat(times[np.cumsum(lengths) - lengths], counts)
        held = held[near]
        number = np.arange(len(keys))
        of = np.concatenate((np.repeat(number, counts)[near], np.repeat(number, lengths)))
        at = np.concatenate((self._columns[0][held], times))
        order = np.lexsort((at, of))  # stable: what is there comes first
        same = (of[order[1:]] == of[order[:-1]]) & (at[order[1:]] == at[order[:-1]])
        return held[order[:-1][same]], order[1:][same] - len(held)

    def bulk_evict(self, key: int, time: int) -> int:
        return int(self.bulk_evict_each(np.array([key]), np.array([time]))[0])

    def bulk_evict_each(self, keys: Numbers, times: Numbers) -> Numbers:
        before = self.weights(keys)
        super().bulk_evict_each(keys, times)
        return before - self.weights(keys)

    def evict_between_each(self, keys: Numbers, start: int, end: int) -> Numbers:
        before = self.weights(keys)
        super().evict_between_each(keys, start, end)
        return before - self.weights(keys)

    def range_totals(self, key: int, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        _, partials = super().range_totals(key, start, end, part)
        return partials[0], partials
