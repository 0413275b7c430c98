"""One key of some pages as a store: a view that costs nothing to make.

pages    | a a . . | b b b . | c c c c c . . . |
                     ~~~~~                         SmallKey(pages, b)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Forest, Layout, RowSlice
from sash_engine.forest.finder import Wanted
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.keys.pages import Pages
from sash_engine.windows.keys.store import Same


class SmallKey:
    """The rows of one key that shares pages; see `Forest`.

    Args:
        pages: have the rows. The caller of inserts keeps every key within `Pages.largest` rows.
        key: its number.
    """

    __slots__ = ("_key", "_pages")

    def __init__(self, pages: Pages, key: int) -> None:
        self._pages, self._key = pages, key

    def __len__(self) -> int:
        return self._pages.entries(self._key)

    @property
    def oldest(self) -> int | None:
        """Time of the oldest row, in ticks; None where empty."""
        return self._pages.oldest(self._key)

    @property
    def newest(self) -> int | None:
        """Time of the newest row, in ticks; None where empty."""
        return self._pages.newest(self._key)

    # ---------------------------------------------------------------- inserting

    def insert(self, time: int, values: Sequence[Any]) -> None:
        """Insert one row: a scalar per column after the time."""
        self._pages.insert(self._key, time, values)

    def bulk_insert(self, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 0 rows: int64 (m,) times, and an array (m,) per column after the time."""
        if len(times):
            order = np.argsort(times, kind="stable")
            rows = [column[order] for column in (times, *columns)]
            self._pages.bulk_insert(np.array([self._key]), np.array([len(times)]), rows)

    def replace(self, times: Array, columns: Sequence[Array]) -> None:
        """Give rows other values; see `Forest.replace`."""
        copy = self._copy()
        copy.replace(times, columns)
        self.drop()
        times, *columns = copy.columns()
        self.bulk_insert(times, columns)

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest rows, or as many as there are; return how many."""
        count = min(count, self._pages.rows_of(self._key))
        if count:
            self._pages.evict(self._key, count)
        return count

    def load_evicted(self, time: int) -> None:
        """Do nothing: all rows are in memory."""

    def bulk_evict(self, time: int) -> int:
        """Evict all rows with a time <= `time`; return how many entries they had."""
        return self._pages.bulk_evict(self._key, time)

    def load_between(self, start: int, end: int) -> None:
        """Do nothing: all rows are in memory."""

    def evict_between(self, start: int, end: int) -> int:
        """Remove all rows with start <= time <= end; return how many entries they had."""
        return int(self._pages.evict_between_each(np.array([self._key]), start, end)[0])

    def load_named(self, times: Array, column: int, values: Sequence[Any]) -> None:
        """Do nothing: all rows are in memory."""

    def newest_steps(self, column: int, values: Sequence[Any], once: bool) -> Steps[Array]:
        """Find the times of the newest rows with some values; see `Forest.newest_steps`."""
        columns, wanted = self.columns(), Wanted(values, once)
        yield from wanted.prepared()
        wanted.take(columns[0], columns[column], 0, len(columns[0]), ())
        return wanted.times

    def remove(self, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Remove single rows; see `Forest.remove`."""
        rows = self._search(times, column, values, True)
        gone = np.zeros(self._pages.rows_of(self._key), np.bool_)
        gone[rows[rows >= 0]] = True
        self._pages.remove_each(np.array([self._key]), gone)
        return rows >= 0

    def correct(self, times: Array, column: int, values: Sequence[Any], columns: Sequence[Array]) -> Array:
        """Give single rows other values; see `Forest.correct`."""
        rows = self._search(times, column, values, False)
        there = rows >= 0
        self._pages.give(self._key, rows[there], [each[there] for each in columns])
        return there

    def _search(self, times: Array, column: int, values: Sequence[Any], once: bool) -> Array:
        """The rows that are named, int64 (m,), -1 where there is none; `once`: each row for one name only."""
        columns = self.columns()
        held, names = columns[0].tolist(), columns[column].tolist()
        rows, taken = np.full(len(times), -1), set[int]()
        for i, (time, name) in enumerate(zip(times.tolist(), values, strict=True)):
            for row in range(bisect_left(held, time), bisect_right(held, time)):
                if names[row] == name and row not in taken:
                    rows[i] = row
                    if once:
                        taken.add(row)
                    break
        return rows

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest rows for which `holds`; see `Forest.evict_while`."""
        copy = self._copy()
        evicted, last = copy.evict_while(holds)
        self.evict(self._pages.rows_of(self._key) - copy.rows)
        return evicted, last

    def sweep(self, blocks: int = 256) -> bool:
        """Do nothing, as evicted rows leave nothing behind; return False."""
        return False

    def drop(self) -> None:
        """Evict all rows."""
        self._pages.clear(np.array([self._key]))

    # ---------------------------------------------------------------- reading

    def query(self, part: Layout | None = None) -> list[Any]:
        """The answers over all entries, in the order of the layout's names."""
        return (self._pages.layout if part is None else part).lower(len(self), self.totals(part))

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries, one per slot."""
        return self._pages.totals(self._key, part)

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(start, end, part)
        return entries, (self._pages.layout if part is None else part).lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        return self._pages.range_totals(self._key, start, end, part)

    def series(self, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many ranges of time at once; see `Forest.series`."""
        return self._copy().series(starts, stops)

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """As `series`, in steps."""
        return self._copy().series_steps(starts, stops, part)

    def neighbours(self, time: int) -> tuple[int | None, int | None]:
        """The times of the rows beside a time; see `Forest.neighbours`."""
        times = self.columns()[0].tolist()
        at = bisect_right(times, time)
        return times[at - 1] if at else None, times[at] if at < len(times) else None

    def columns(self) -> list[Array]:
        """All rows as columns (copies)."""
        return self._pages.columns(self._key)

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """The rows with start <= time <= end as they are now; see `Forest.capture`."""
        columns = self.columns()
        first = 0 if start is None else int(columns[0].searchsorted(start, "left"))
        stop = len(columns[0]) if end is None else int(columns[0].searchsorted(end, "right"))
        return [RowSlice(columns, -1, first, stop)] if first < stop else []

    # ---------------------------------------------------------------- other

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates, of all keys of the pages."""
        self._pages.relayout(layout)

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant of the pages that does not hold."""
        self._pages.check_invariants()

    def _copy(self) -> Forest:
        """A forest of the same rows, for what pages cannot do themselves."""
        copy = Forest(self._pages.layout)
        times, *columns = self.columns()
        copy.bulk_insert(times, columns)
        return copy
