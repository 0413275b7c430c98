"""Panes: entries combined at write time, where a window has a `granularity`.

    granularity 10   time     3    7   12   25   31   28          a pane's time is its start: time rounded down
                     pane   | 0: 2 |10: 1|20: 2 |30: 1 |          and how many entries it folds
    a row of the engine       time 0, entries 2, and the partial columns of every aggregate, combined

Granularity is the resolution of time: within a window an entry has the time at which its pane starts. Lateness, order,
lookbacks, ranges, buckets, eviction and `now` use that time. So a range covers the panes whose start lies in it, and a
pane leaves as a whole. Entries of one pane have equal times, so they are in order of arrival; an answer is the fold by
(pane, arrival). Only an aggregate that *reads* the time reads the entry's own: the time of an arg max, the points of M4
and the slope of a line are as precise as without panes.

A pane is a row of forests and pages, as an entry is. Its columns are partials, which `Pane` aggregates read. A write is
folded by key and pane first. Then a pane that exists is combined with the newcomers (`replace` in a forest, in place in
pages), and a new one is inserted. The open pane, the newest, is the last row of the forest's tail. The tail keeps it
out of its running fold, so that an entry in it costs one combine per aggregate, and so does a query afterwards.

Insert: O(1) into the open pane or a new one; into an older one O(B + log n) of n panes.  Bulk insert: O(m), vectorised.
Query, range query, evict: as of a forest, or pages, with n panes for entries.  Space: a partial per aggregate and pane.
Requires: nothing of an aggregate; entries are gone once they are folded, so no new ones can be computed from panes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import BLOCK, Layout, PaneLayout
from sash_engine.forest.segments import lengths_of_segments
from sash_engine.forest.series import reduce_steps
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import exported
from sash_engine.steps import Steps, finished
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.spec.window import WindowSpec, check_time


class Panes:
    """How the entries of one window become panes.

    Args:
        spec: of a window with a granularity.
        block: panes in a sealed block.

    >>> import numpy as np
    >>> spec = WindowSpec.parse({"name": "w", "aggregates": {"sum": {"function": "sum"}}, "granularity": 10})
    >>> panes = Panes(spec)
    >>> entries = [np.array([0, 0, 10]), np.array([1.0, 2.0, 4.0]), np.array([3, 7, 12])]
    >>> panes.folded(entries, np.array([3]), partials=False)
    (array([2]), [array([ 0, 10]), array([2, 1]), array([3., 4.])])
    """

    def __init__(self, spec: WindowSpec, block: int = BLOCK) -> None:
        assert spec.granularity_ticks is not None
        self.granule = spec.granularity_ticks
        self._entries = Layout(spec.columns, spec.monoids(), block)
        self.layout = PaneLayout(self._entries)
        self._lifts = [
            (monoid.lift, reads, len(monoid.dtypes) == 1)
            for monoid, reads in zip(self._entries.monoids, self._entries.reads, strict=True)
        ]
        self._picked = self._columns_of_slots()

    def _columns_of_slots(self) -> list[int]:
        """Which of the columns that `PartialBatch.checked` gives for partials of all aggregates are wanted."""
        picked, seen, at = [0], -1, 1
        for slot in self._entries.answers:
            if slot < 0:
                continue
            parts = len(self._entries.monoids[slot].dtypes)
            if slot > seen:  # slots are numbered as aggregates come, those written twice are computed once
                seen = slot
                picked += range(at, at + parts)
            at += parts
        return picked

    def floor(self, time: int) -> int:
        """The start of the pane of a time; raises InvalidArgument where there is none before all times."""
        start = time - time % self.granule
        check_time(start, "time")
        return start

    def floors(self, times: Array) -> Array:
        """The starts of the panes of n >= 1 times, int64 (n,); raises as `floor`."""
        self.floor(int(times.min()))
        return times - times % self.granule  # type: ignore[no-any-return]

    def lifted(self, time: int, values: Sequence[Any]) -> list[Any]:
        """A pane of one entry: a scalar per column after the time.

        Args:
            time: the entry's own.
            values: one per field.
        """
        entry, row = (time, *values), [1]
        for lift, reads, single in self._lifts:
            partial = lift(entry[reads[0]] if len(reads) == 1 else tuple([entry[i] for i in reads]))
            if single:
                row.append(partial)
            else:
                row.extend(partial)
        return row

    def rows(self, times: Array, columns: Sequence[Array], partials: bool) -> list[Array]:
        """Return the columns of `checked` in the form that `folded` takes once they are sorted: pane starts first.

        Args:
            times: n >= 1 times.
            columns: one per field and (n,); or entries, and the parts of all aggregates.
        """
        starts = self.floors(times)
        return [starts, *(columns[i] for i in self._picked)] if partials else [starts, *columns, times]

    def folded(self, rows: Sequence[Array], lengths: Numbers, partials: bool) -> tuple[Numbers, list[Array]]:
        """Fold the rows of each key and pane.

        Args:
            rows: n >= 1 of them, sorted by key, then pane, then arrival: pane starts, the fields and the entries' own
                times; or pane starts, entries and the partials' columns.
            lengths: int64 (k,), each >= 1: how many rows each key has.

        Returns:
            how many panes each key has, int64 (k,), and the panes as columns.
        """
        return finished(self.folded_steps(rows, lengths, partials))

    def folded_steps(
        self, rows: Sequence[Array], lengths: Numbers, partials: bool
    ) -> Steps[tuple[Numbers, list[Array]]]:
        """As `folded`, in steps."""
        times = rows[0]
        firsts = np.cumsum(lengths) - lengths
        begins = np.empty(len(times), np.bool_)
        np.not_equal(times[1:], times[:-1], out=begins[1:])
        begins[firsts] = True
        starts = np.flatnonzero(begins)
        if partials:
            folds = yield from reduce_steps(self.layout, rows, starts)
        else:
            entries = lengths_of_segments(starts, len(times))
            of_entries = yield from reduce_steps(self._entries, [rows[-1], *rows[1:-1]], starts)
            folds = [(entries,), *of_entries]
        columns = [times[starts], *(part for fold in folds for part in fold)]
        return lengths_of_segments(starts.searchsorted(firsts), len(starts)), columns


def batch_of(layout: Layout, spec: WindowSpec, columns: Sequence[Array], keys: Coded | None) -> AnyBatch:
    """Rows as a batch that could be written again: entries as values, panes as partials of all but counts."""
    if not isinstance(layout, PaneLayout):
        fields = {
            name: Coded.of(column.tolist()) if column.dtype.hasobject else column
            for name, column in zip(spec.columns, columns[1:], strict=spec.known is None)
        }
        return Batch(columns[0], fields, keys)
    partials = {}
    for name, slot in zip(layout.names, layout.answers[1:], strict=True):
        if slot:  # slot 0 is the number of entries
            monoid, parts = layout.inner(slot), tuple([columns[i] for i in layout.reads[slot]])
            partials[name] = parts if monoid.fixed else exported(monoid, monoid.unpack(parts))
    return PartialBatch(columns[0], partials, columns[1], keys)
