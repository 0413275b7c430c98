"""A forest of panes: the rows of one key where a window has a granularity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine.errors import Unsupported
from sash_engine.forest import Forest, Layout
from sash_engine.forest.row_slices import RowSlice
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.pane_layout import PaneLayout
from sash_engine.windows.store import Same

__all__ = ["PaneForest"]

_ENTRIES = 1
"""The column that says how many entries a pane folds; slot 0 is its sum."""


class PaneForest:
    """Panes in a forest; see `KeyStore`.

    It is given panes. A second pane of one time is combined with the first. The newest pane is open: it is the last
    row of the forest's open block, and changes in place.

    Args:
        layout: columns, aggregates and block size.
        forest: the forest for the panes, which belongs to this object; None: an empty one in memory.
    """

    __slots__ = ("_layout", "forest")

    def __init__(self, layout: PaneLayout, forest: Forest | None = None) -> None:
        self._layout = layout
        self.forest = Forest(layout) if forest is None else forest

    def __len__(self) -> int:
        return self.forest.sum_through(None, _ENTRIES, 0)

    @property
    def oldest(self) -> int | None:
        """Start of the oldest pane, in ticks; None where empty."""
        return self.forest.oldest

    @property
    def newest(self) -> int | None:
        """Start of the newest pane, in ticks; None where empty."""
        return self.forest.newest

    # ---------------------------------------------------------------- inserting

    def check_insert(self, times: Array) -> None:
        """Do nothing: panes may come in any order."""

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one pane: a scalar per column after the time."""
        forest, newest = self.forest, self.forest.newest
        if newest is None or time > newest:
            forest.keep_open()
            forest.insert(time, values)
        elif time == newest and (row := forest.open_row()) is not None:
            self._layout.join(*row, values)
        else:
            columns = [_column(value, dtype) for value, dtype in zip(values, self._layout.dtypes[1:], strict=True)]
            self._insert_among(np.array([time]), columns)

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 panes: int64 (m,) strictly increasing starts, and an array (m,) per column after the time."""
        m, newest = len(times), self.forest.newest
        if not m:
            return
        cut, last = 0, m - 1
        if newest is not None and (m > 1 or times.item(0) < newest):
            cut = int(times.searchsorted(newest, "right"))
        if cut:
            self._insert_among(times[:cut], [column[:cut] for column in columns])
        if cut < last:
            self.forest.bulk_insert(times[cut:last], [column[cut:last] for column in columns])
        if cut < m:
            self.insert(times.item(last), [column.item(last) for column in columns])

    def _insert_among(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert panes, none of which is newer than the newest."""
        there, panes = self.forest.find(times)
        if there.any():
            joined = self._layout.combine_columns(panes, [column[there] for column in columns])
            self.forest.replace(times[there], joined)
        if not there.all():
            self.forest.bulk_insert(times[~there], [column[~there] for column in columns])

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Put other panes in the place of some; see `KeyStore.replace`."""
        self.forest.replace(times, columns)

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest panes, or as many as there are; return how many."""
        return self.forest.evict(count)

    def load_evicted(self, time: int) -> None:
        """Load what `bulk_evict(time)` reads, so that it cannot fail afterwards."""
        self.forest.load_evicted(time, counted=True)

    def bulk_evict(self, time: int) -> int:
        """Evict all panes that start at `time` or before; return how many entries they had."""
        oldest = self.forest.oldest
        if oldest is None or time < oldest:
            return 0
        evicted = self.forest.sum_through(time, _ENTRIES, 0)
        self.forest.bulk_evict(time)
        return evicted

    def load_between(self, start: int, end: int) -> None:
        """Load what `evict_between(start, end)` reads, so that it cannot fail afterwards."""
        self.forest.load_between(start, end)
        self.range_totals(start, end)

    def evict_between(self, start: int, end: int) -> int:
        """Remove all panes with start <= time <= end; return how many entries they had."""
        evicted, _ = self.range_totals(start, end)
        self.forest.evict_between(start, end)
        return evicted

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Do nothing: `remove` and `correct` refuse."""

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Refuse, as `remove`.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("panes keep partials, out of which no single entry can be taken")

    def remove(self, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("panes keep partials, out of which no single entry can be taken")

    def correct(self, times: Array, column: int, values: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Refuse, as `remove`.

        Raises:
            Unsupported: always.
        """
        return self.remove(times, column, values)

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest panes for which `holds`, which is asked about numbers of entries."""
        before = len(self)
        _, last = self.forest.evict_while(lambda _, partials: holds(partials[0], partials))
        return before - len(self), last

    def sweep(self, blocks: int = 256) -> bool:
        """Free the memory of up to `blocks` evicted blocks; return whether there are more."""
        return self.forest.sweep(blocks)

    def drop(self) -> None:
        """Evict all panes and release everything that is stored of them."""
        self.forest.drop()

    # ---------------------------------------------------------------- reading

    def query(self, part: Layout | None = None) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        return self.forest.query(part)

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all panes, one per slot."""
        return self.forest.totals(part)

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries of the panes with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(start, end, part)
        return entries, (self._layout if part is None else part).lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries of the panes with start <= time <= end, and their partials."""
        _, partials = self.forest.range_totals(start, end, part)
        return partials[0], partials

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """As `Forest.series`, of the panes that start in each range."""
        return finished(self.series_steps(starts, stops))

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """As `series`, in steps; no pane may come or leave from the first to the last."""
        return self._layout.counted(*(yield from self.forest.series_steps(starts, stops, part)))

    def neighbours(self, time: int) -> tuple[int | None, int | None]:
        """The starts of the panes beside a time; see `KeyStore.neighbours`."""
        return self.forest.neighbours(time)

    def columns(self) -> list[Array]:
        """All panes as columns (copies)."""
        return self.forest.columns()

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """The panes with start <= time <= end as they are now; see `KeyStore.capture`."""
        return self.forest.capture(start, end)

    # ---------------------------------------------------------------- other

    def relayout(self, layout: Layout) -> None:
        """Refuse.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("panes keep partials and no values, of which another aggregate could be made")

    def check_invariants(self, same: Same | None = None) -> None:
        """As `Forest.check_invariants`; and no two panes have one start."""
        self.forest.check_invariants(same)
        times, entries = self.columns()[:2]
        assert (times[1:] > times[:-1]).all(), "there is one pane of a time"
        assert (entries >= 1).all(), "a pane has entries"
        assert entries.sum() == len(self), f"{entries.sum()} entries counted, len says {len(self)}"


def _column(value: Any, dtype: np.dtype[Any]) -> Array:
    """One value as a column."""
    column = np.empty(1, dtype)
    column[0] = value
    return column
