"""Panes: entries combined at write time, where a window has a `granularity`.

    granularity 10   time     3    7   12   25   31   28          a pane's time is its start: time rounded down
                     pane   | 0: 2 |10: 1|20: 2 |30: 1 |          and how many entries it folds
    a row of the engine       time 0, entries 2, and the partial columns of every aggregate, combined

Granularity is the resolution of time: within a window an entry has the time at which its pane starts. Lateness, order,
lookbacks, ranges, buckets, eviction and `now` go by that time, so that a range covers the panes whose start lies in it,
and a pane leaves as a whole. Entries of one pane count as of equal time, so they are in order of arrival, as entries of
equal time always are; an answer is the fold by (pane, arrival). Only what an aggregate *reads* as the time is the
entry's own: the time of an arg max, the points of M4, the slope of a line are as fine as they would be without.

Nothing else changes: a pane is a row of forests and pages as an entry is, whose columns are partials and which `Pane`
aggregates read. A write is folded by key and pane first; then a pane that is there takes the newcomers in
(`replace` in a forest, in place in the pages), and a new one is inserted. The open pane, the newest, is the last row
of the forest's tail. It is kept out of the tail's running fold, so that an entry in it costs one combine per aggregate,
and so does a query afterwards.

Insert: O(1) into the open pane or a new one; into an older one O(B + log n) of n panes.  Bulk insert: O(m), vectorised.
Query, range query, evict: as of a forest, or pages, with n panes for entries.  Space: a partial per aggregate and pane.
Requires: nothing of an aggregate; entries are gone once they are folded, so no new ones can be computed from panes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sash_engine.forest import BLOCK, Forest, Layout
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.forest.series import Rows
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.base import Array, FieldType, object_array
from sash_engine.monoids.pane import Pane
from sash_engine.steps import Steps
from sash_engine.windows.pages import Numbers, Pages, ragged
from sash_engine.windows.spec import WindowSpec, check_time

__all__ = ["PaneForest", "PaneLayout", "PanePages", "Panes"]

_ENTRIES = ""
"""The name of the aggregate that counts entries; nobody else's can be empty."""

_KINDS: dict[np.dtype[Any], FieldType] = {
    np.dtype(np.float64): "float64",
    np.dtype(np.int64): "int64",
    np.dtype(np.bool_): "bool",
    np.dtype(object): "string",  # as a column: of objects
}


class PaneLayout(Layout):
    """The columns of panes, and the aggregates that read them.

    Column 0 is a pane's start, column 1 how many entries it folds, then come the parts of each distinct aggregate.
    Slot 0 is the number of entries; slot i + 1 is slot i of the layout of entries. `names` and `lower` leave slot 0
    out, `answers` begins with it.

    Args:
        entries: the layout that a window of the same spec without granularity has.
    """

    def __init__(self, entries: Layout) -> None:
        counted: tuple[Monoid, list[str]] = (Pane(Count()), ["entries"])
        fields: dict[str, FieldType] = {"entries": "int64"}
        panes = []
        for slot, monoid in enumerate(entries.monoids):
            columns = {f"{slot}.{part}": _KINDS[dtype] for part, dtype in enumerate(monoid.dtypes)}
            panes.append((Pane(monoid), list(columns)))
            fields |= columns
        aggregates = {_ENTRIES: counted} | {
            name: counted if slot < 0 else panes[slot]
            for name, slot in zip(entries.names, entries.answers, strict=True)
        }
        super().__init__(fields, aggregates, entries.block)
        self.names = self.names[1:]
        self._lowers = self._lowers[1:]
        self.joins = tuple(
            (monoid.combine, reads[0], len(reads))
            for monoid, reads in zip(entries.monoids, self.reads[1:], strict=True)
        )
        """For each slot but the first its combine, its first column and how many it has."""

    def combine_columns(self, older: Sequence[Array], newer: Sequence[Array]) -> list[Array]:
        """Combine k panes with as many: columns after the time, of each."""
        out: list[Array] = []
        for monoid, reads in zip(self.monoids, self.reads, strict=True):
            out += monoid.combine_columns(tuple(older[i - 1] for i in reads), tuple(newer[i - 1] for i in reads))
        return out

    def row(self, columns: Sequence[Array], row: int) -> list[Partial]:
        """The partials of one row, one per slot."""
        return [monoid.take(tuple(columns[i] for i in reads), row) for monoid, reads in self._slots()]

    def join(self, columns: Sequence[Array], row: int, values: Sequence[Any]) -> None:
        """Combine one row in place with `values`, which is newer: a scalar per column after the time."""
        columns[1][row] += values[0]
        for combine, at, parts in self.joins:
            if parts == 1:
                column = columns[at]
                column[row] = combine(column.item(row), values[at - 1])
            else:
                mine = columns[at : at + parts]
                joined = combine(tuple([column.item(row) for column in mine]), tuple(values[at - 1 : at - 1 + parts]))
                for column, part in zip(mine, joined, strict=True):
                    column[row] = part

    def stored(self, columns: Sequence[Array]) -> list[Array]:
        """Columns of panes (the time first) as they are stored: objects as the bytes that `loaded` reads."""
        return self._coded(columns, lambda monoid: monoid.encode, lambda part: json.dumps(part).encode())

    def loaded(self, columns: Sequence[Array]) -> list[Array]:
        """The opposite of `stored`; raises InvalidArgument or ValueError for what is not."""
        return self._coded(columns, lambda monoid: monoid.decode, json.loads)

    def _coded(
        self,
        columns: Sequence[Array],
        whole: Callable[[Monoid], Callable[[Any], Any]],
        part: Callable[[Any], Any],
    ) -> list[Array]:
        """Code objects: by `whole` of the aggregate where they are its partials, by `part` where they are parts."""
        out = list(columns)
        for monoid, reads in self._slots():
            code = whole(monoid) if len(reads) == 1 else part
            for i in reads:
                if self.dtypes[i].hasobject:
                    out[i] = object_array(list(map(code, columns[i].tolist())))
        return out

    def _slots(self) -> zip[tuple[Monoid, tuple[int, ...]]]:
        return zip(self.monoids, self.reads, strict=True)


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
        self._entries = Layout(spec.fields, spec.monoids(), block)
        self.layout = PaneLayout(self._entries)
        self._lifts = [
            (monoid.lift, reads, len(monoid.dtypes) == 1)
            for monoid, reads in zip(self._entries.monoids, self._entries.reads, strict=True)
        ]
        self._picked = self._columns_of_slots()

    def _columns_of_slots(self) -> list[int]:
        """Which of the columns that `Batch.checked` gives for partials of all aggregates are wanted."""
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
        """What `Batch.checked` gives, as `folded` takes it once it is sorted: pane starts first.

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
        times = rows[0]
        firsts = np.cumsum(lengths) - lengths
        begins = np.empty(len(times), np.bool_)
        np.not_equal(times[1:], times[:-1], out=begins[1:])
        begins[firsts] = True
        starts = np.flatnonzero(begins)
        if partials:
            folds = self.layout.reduce_segments(rows, starts)
        else:
            entries = lengths_of_segments(starts, len(times))
            folds = [(entries,), *self._entries.reduce_segments([rows[-1], *rows[1:-1]], starts)]
        columns = [times[starts], *(part for fold in folds for part in fold)]
        return lengths_of_segments(starts.searchsorted(firsts), len(starts)), columns


class PaneForest(Forest):
    """A forest of panes: `len`, what leaves and what a range has are counted in entries.

    It is given panes, and at most one of a time is in it: a second one is combined with the first.
    """

    __slots__ = ()
    _layout: PaneLayout

    def __len__(self) -> int:
        directory = self._directory
        return self._entries_between(directory.head, self._skip, directory.tail, self._tail.rows)

    # ---------------------------------------------------------------- inserting

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one pane: a scalar per column after the time."""
        tail = self._tail
        if time > self._newest:
            if tail.rows and tail.rows + 1 >= self._layout.block:
                self._seal_full()  # so that the open pane stays in the tail
            super().insert(time, values)
        elif time == self._newest and tail.rows:
            self._answers = None
            self._layout.join(tail.columns, tail.rows - 1, values)
        else:
            columns = [_column(value, dtype) for value, dtype in zip(values, self._layout.dtypes[1:], strict=True)]
            self._insert_among(np.array([time]), columns)

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 panes: int64 (m,) strictly increasing starts, and an array (m,) per column after the time."""
        m = len(times)
        if not m:
            return
        newest = m - 1
        cut = 0 if m == 1 and times.item(0) >= self._newest else int(times.searchsorted(self._newest, "right"))
        if cut:
            self._insert_among(times[:cut], [column[:cut] for column in columns])
        if cut < newest:
            super().bulk_insert(times[cut:newest], [column[cut:newest] for column in columns])
        if cut < m:
            self.insert(times.item(newest), [column.item(newest) for column in columns])

    def _insert_among(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert panes, none of which is newer than the newest."""
        rows = Rows(self._directory, self._tail, self._skip)
        at = rows.locate(times)
        there = rows.locate(times + 1) > at
        if there.any():
            held = rows.columns(_runs(at[there]), range(1, len(self._layout.dtypes)))[1:]
            joined = self._layout.combine_columns(held, [column[there] for column in columns])
            self.replace(times[there], joined)
        if not there.all():
            super().bulk_insert(times[~there], [column[~there] for column in columns])

    # ---------------------------------------------------------------- evicting

    def bring(self, time: int) -> None:
        """As `Forest.bring`: what leaves is counted here, for which the first block is read where panes of it left."""
        if self._len and self._skip:
            self._columns(self._directory.head)
        super().bring(time)

    def bulk_evict(self, time: int) -> int:
        """Evict all panes that start at `time` or before; return how many entries that were."""
        if not self._len or time < self.oldest:  # type: ignore[operator]
            return 0
        if time >= self._newest:
            gone = len(self)
        else:
            gone = self._entries_between(self._directory.head, self._skip, *self._locate(time, "right"))
        super().bulk_evict(time)
        return gone

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """As `Forest.evict_while`, in whole panes; `holds` is told, and it returns, how many entries they have."""
        before = len(self)
        _, last = super().evict_while(lambda _, partials: holds(partials[0], partials))
        return before - len(self), last

    # ---------------------------------------------------------------- reading

    def totals(self) -> list[Partial]:
        """The partials over all panes, one per slot."""
        tail = self._tail
        newest = tail.rows - 1
        if newest < 0:
            return super().totals()
        tail.rows = newest  # the open pane changes: what the ends keep is folded without it
        try:
            closed = super().totals()
        finally:
            tail.rows = newest + 1
        return self._layout.combine(closed, self._layout.row(tail.columns, newest))

    def range_totals(self, start: int, end: int) -> tuple[int, list[Partial]]:
        """The number of entries of the panes with start <= time <= end, and their partials."""
        _, partials = super().range_totals(start, end)
        return partials[0], partials

    def series_steps(self, starts: Array, stops: Array) -> Steps[tuple[Array, list[Array]]]:
        """As `Forest.series_steps`, of the panes that start in each range."""
        _, (entries, *answers) = yield from super().series_steps(starts, stops)
        return entries.astype(np.int64), answers

    def _entries_between(self, a: int, first_row: int, b: int, stop_row: int) -> int:
        """How many entries the panes have from place (a, first_row) up to place (b, stop_row)."""
        if a == b:
            return int(self._columns(a)[1][first_row:stop_row].sum())
        entries = 0
        if first_row:
            block = self._directory.block(a)
            entries += int(block.columns[1][first_row : block.rows].sum())
            a += 1
        if a < b:
            _, partials = self._directory.slices(a, b)
            entries += int(partials[0][0].sum())
        if stop_row:
            entries += int(self._columns(b)[1][:stop_row].sum())
        return entries

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool] | None = None) -> None:
        """As `Forest.check_invariants`; and no two panes have one start."""
        super().check_invariants(same)
        times, entries = self.columns()[:2]
        assert (times[1:] > times[:-1]).all(), "there is one pane of a time"
        assert (entries >= 1).all(), "a pane has entries"
        assert entries.sum() == len(self), f"{entries.sum()} entries counted, len says {len(self)}"


class PanePages(Pages):
    """Pages of panes. Rows are what has to fit in a page; what leaves and what a range has are counted in entries."""

    _layout: PaneLayout

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
            self._layout.join(self._columns, row, values)
        else:
            super().insert(key, time, values)

    def bulk_insert(self, keys: Numbers, lengths: Numbers, rows: Sequence[Array]) -> None:
        """As `Pages.bulk_insert`, of panes: of one key no two have one time."""
        targets, sources = self._there(keys, lengths, rows[0])
        if len(targets):
            held = [column[targets] for column in self._columns[1:]]
            joined = self._layout.combine_columns(held, [column[sources] for column in rows[1:]])
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

    def range_totals(self, key: int, start: int, end: int) -> tuple[int, list[Partial]]:
        _, partials = super().range_totals(key, start, end)
        return partials[0], partials

    def totals_each(self, keys: Numbers) -> tuple[Numbers, list[Partials]]:
        return _in_entries(*super().totals_each(keys))

    def range_totals_each(self, keys: Numbers, start: int, end: int) -> tuple[Numbers, list[Partials]]:
        return _in_entries(*super().range_totals_each(keys, start, end))


def _in_entries(panes: Numbers, partials: list[Partials]) -> tuple[Numbers, list[Partials]]:
    """Numbers of panes as numbers of entries: slot 0 has them, for keys with any."""
    entries = np.zeros(len(panes), np.int64)
    entries[panes > 0] = partials[0][0]
    return entries, partials


def _column(value: Any, dtype: np.dtype[Any]) -> Array:
    """One value as a column."""
    column = np.empty(1, dtype)
    column[0] = value
    return column


def _runs(rows: Array) -> list[tuple[int, int]]:
    """Increasing row numbers as runs start..stop."""
    firsts = starts_of_runs(rows - np.arange(len(rows)))
    return [(int(rows[a]), int(rows[b - 1]) + 1) for a, b in pairwise([*firsts.tolist(), len(rows)])]
