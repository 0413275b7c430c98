"""Pages: the entries of many small keys in shared columns, so that one pass serves thousands of keys.

    rows   0     4     8           16                      32
          |a a . .|b b b b|c c c c c . . .|. . d d d d d d d d d . . . . .|     pages of 4, 4, 8 and 16 rows
                                              ^start of d, count 9

A row is an entry or, where the layout is one of panes, a pane (forest/pane_layout.py). A second pane of a key and time
is combined with the first. What leaves and what a range has are counted in the entries that the panes fold.

A key's rows are consecutive rows of one page, sorted by (time, arrival). Pages have power-of-two sizes and lie
at multiples of their size (allocator.py), so a key's start tells where its page begins. Eviction moves the start.
A key whose entries reach the end of its page moves: to the page's front, or to the smallest page that holds them. An
empty key has no page.

Example: c (5 entries in the page at 8) is sent three entries, then one. The three go to rows 13 to 15. For the one
c moves to a page of 16, say at 32; rows 8 to 15 are free, and serve one key of up to 8 entries or two of up to 4.

Insert or evict for k keys: O(k + rows of keys that move or are out of order), in a fixed number of vectorised passes.
Query of a key: O(its entries), from the raw rows: no partials are stored.
Space: a key that only grows fills more than half of its page (a key of one entry has a page of four); one that slides
stays in a page of up to four times its entries. Each key costs 17 bytes more.

Keys are numbers here, dense from 0. Where a method takes several, they are distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Layout, PaneLayout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.windows.keys.allocator import Numbers, PageAllocator, copied
from sash_engine.windows.keys.ragged import grown, ragged, sums
from sash_engine.windows.keys.totals import KeyTotals

__all__ = ["PAGES", "Numbers", "Pages", "pages_of"]

PAGES = (4, 64)
"""Rows of the smallest and of the largest page. A page smaller than 4 would save less than a key's name takes."""


def pages_of(block: int) -> tuple[int, int]:
    """Rows of the smallest and of the largest page in a window with blocks of so many rows.

    A forest of its own costs a key 2 to 3 KiB and 15 us before its first entry. A page of 128 rows of time and float64,
    an eighth of the usual block, costs 2 KiB. A bulk of 100 entries for each of 100,000 keys takes 1.9 s in such pages,
    and 3.4 s where each key gets a forest.
    """
    return PAGES[0], max(PAGES[1], 1 << (block // 8).bit_length() >> 1)


class Pages:
    """The entries of keys 0, 1, 2, …, each of which has at most `largest`.

    Args:
        layout: columns and aggregates.
        smallest: rows of the smallest page, a power of two.
        largest: rows of the largest page, a power of two.

    >>> import numpy as np
    >>> from sash_engine.forest import Layout
    >>> from sash_engine.monoids import Sum
    >>> pages = Pages(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> pages.reach(2)
    >>> pages.bulk_insert(np.array([0, 1]), np.array([2, 1]), [np.array([5, 9, 7]), np.array([1.0, 2.0, 4.0])])
    >>> pages.insert(0, 6, (8.0,))
    >>> pages.totals(0), pages.range_totals(0, 6, 9), pages.totals(1)
    ([11.0], (2, [10.0]), [4.0])
    """

    def __init__(self, layout: Layout, smallest: int = PAGES[0], largest: int = PAGES[1]) -> None:
        self.largest = largest
        self.layout = layout
        self._panes = layout if isinstance(layout, PaneLayout) else None
        self._columns = [np.empty(0, dtype) for dtype in layout.dtypes]
        self._objects = [i for i, dtype in enumerate(layout.dtypes) if dtype.hasobject]
        self._allocator = PageAllocator(smallest, largest, self._lengthen)
        self._sizes = self._allocator.sizes
        self._starts = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._classes = np.empty(0, np.int8)
        self.kept: KeyTotals | None = None
        """Totals of keys, once they are asked for often."""

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: the same columns, other aggregates."""
        self.layout, self.kept = layout, None

    def keep_totals(self, most_bytes: int) -> KeyTotals:
        """Totals of keys that are kept from now on, in at most so many bytes of a key."""
        if self.kept is None:
            self.kept = KeyTotals(self.layout, most_bytes)
            self.kept.reach(len(self._starts))
        return self.kept

    def reach(self, keys: int) -> None:
        """Make room for keys 0 to `keys` - 1; new ones are empty."""
        if keys > len(self._starts):
            self._starts = grown(self._starts, keys, 0)
            self._counts = grown(self._counts, keys, 0)
            self._classes = grown(self._classes, keys, 0)
            if self.kept is not None:
                self.kept.reach(keys)

    # ---------------------------------------------------------------- inserting

    def insert(self, key: int, time: int, values: Sequence[Any]) -> None:
        """Insert one row into a key that has less than `largest`: a scalar per column after the time."""
        if self._panes is not None and self._joined(key, time, values, self._panes):
            return
        start, count = self._starts.item(key), self._counts.item(key)
        size = self._sizes.item(self._classes.item(key))
        row = start + count
        if row == (start & -size) + size:
            self._make_room(np.array([key]), np.array([count + 1]))
            start = self._starts.item(key)
            row = start + count
        if count and time < self._columns[0].item(row - 1):
            row = self._open_gap(start, row, time)
        self._columns[0][row] = time
        for column, value in zip(self._columns[1:], values, strict=True):
            column[row] = value
        self._counts[key] = count + 1
        if self.kept is not None:
            self.kept.fresh[key] = False

    def _open_gap(self, start: int, end: int, time: int) -> int:
        """Move the rows that are newer than `time` one on; return the row between."""
        row = start + int(self._columns[0][start:end].searchsorted(time, "right"))
        for column in self._columns:
            column[row + 1 : end + 1] = column[row:end]
        return row

    def bulk_insert(self, keys: Numbers, lengths: Numbers, rows: Sequence[Array]) -> None:
        """Insert rows into k keys, none of which has more than `largest` afterwards. Times of a key's panes differ.

        Args:
            keys: int64 (k,).
            lengths: int64 (k,): how many rows each is sent, >= 1.
            rows: times, then the other columns, (lengths.sum(),) each: the rows of the first key sorted by
                (time, arrival), then those of the second, and so on.
        """
        if self._panes is not None:
            keys, lengths, rows = self._join_each(keys, lengths, rows, self._panes)
            if not len(keys):
                return
        self.reserve(keys, lengths)
        counts, ends = self._counts[keys], self._starts[keys] + self._counts[keys]
        firsts = rows[0][np.cumsum(lengths) - lengths]
        # Where a key is empty, `ends - 1` is some other row: what it says is not used.
        disordered = (firsts < self._columns[0][ends - 1]) & (counts > 0)
        targets = ragged(ends, lengths)
        for column, newcomers in zip(self._columns, rows, strict=True):
            column[targets] = newcomers
        self._counts[keys] = counts + lengths
        if self.kept is not None:
            self.kept.fresh[keys] = False
        if disordered.any():
            self._sort(keys[disordered])

    def _joined(self, key: int, time: int, values: Sequence[Any], panes: PaneLayout) -> bool:
        """Combine a pane with the one of its key and time; False where there is none."""
        start, count = self._starts.item(key), self._counts.item(key)
        row = start + int(self._columns[0][start : start + count].searchsorted(time, "left"))
        if row == start + count or self._columns[0].item(row) != time:
            return False
        panes.join(self._columns, row, values)
        if self.kept is not None:
            self.kept.fresh[key] = False
        return True

    def _join_each(
        self, keys: Numbers, lengths: Numbers, rows: Sequence[Array], panes: PaneLayout
    ) -> tuple[Numbers, Numbers, Sequence[Array]]:
        """Combine panes with those of their keys and times; return the others, as `bulk_insert` takes them."""
        if self.kept is not None:
            self.kept.fresh[keys] = False
        targets, sources = self._same_times(keys, lengths, rows[0])
        if not len(targets):
            return keys, lengths, rows
        held = [column[targets] for column in self._columns[1:]]
        joined = panes.combine_columns(held, [column[sources] for column in rows[1:]])
        for column, values in zip(self._columns[1:], joined, strict=True):
            column[targets] = values
        new = np.ones(len(rows[0]), np.bool_)
        new[sources] = False
        lengths = sums(new, lengths)
        return keys[lengths > 0], lengths[lengths > 0], [column[new] for column in rows]

    def _same_times(self, keys: Numbers, lengths: Numbers, times: Array) -> tuple[Numbers, Numbers]:
        """Where newcomers meet a row of their key and time: that row, and theirs."""
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

    def _sort(self, keys: Numbers) -> None:
        """Sort the rows of each key by time; equal times stay as they are.

        Page by page in a matrix per size: one sort of all rows by (key, time) takes 21 ms where this takes 8
        (16,384 keys of about 9 entries).
        """
        for size_class in np.unique(self._classes[keys]).tolist():
            some = keys[self._classes[keys] == size_class]
            starts, counts = self._starts[some, None], self._counts[some, None]
            place = np.arange(int(counts.max()))
            used = place < counts
            rows = np.where(used, starts + place, starts)
            # The filling is newer than any entry, so that it stays behind.
            times = np.where(used, self._columns[0][rows], np.iinfo(np.int64).max)
            order = np.argsort(times, axis=1, kind="stable")
            into, source = rows[used], (starts + order)[used]
            for column in self._columns:
                column[into] = column[source]

    # ---------------------------------------------------------------- evicting

    def bulk_evict(self, key: int, time: int) -> int:
        """Evict the rows of one key with a time <= `time`; return how many entries they had."""
        start, count = self._starts.item(key), self._counts.item(key)
        if not count or self._columns[0].item(start) > time:
            return 0
        gone = int(self._columns[0][start : start + count].searchsorted(time, "right"))
        entries = gone if self._panes is None else int(self._columns[1][start : start + gone].sum())
        self._evict(key, start, count, gone)
        return entries

    def bulk_evict_each(self, keys: Numbers, times: Numbers) -> Numbers:
        """Evict the rows of k keys with a time <= the key's of `times`; return how many entries each had."""
        entries = np.zeros(len(keys), np.int64)
        some = np.flatnonzero(self._counts[keys])
        some = some[self._columns[0][self._starts[keys[some]]] <= times[some]]
        if not len(some):
            return entries
        counts = self._counts[keys[some]]
        rows = ragged(self._starts[keys[some]], counts)
        leaving = self._columns[0][rows] <= np.repeat(times[some], counts)
        gone = sums(leaving, counts)
        entries[some] = gone if self._panes is None else sums(leaving * self._columns[1][rows], counts)
        self._evict_each(keys[some], gone)
        return entries

    def evict_between_each(self, keys: Numbers, start: int, end: int) -> Numbers:
        """Remove the rows of k keys with start <= time <= end; return how many entries each had, int64 (k,)."""
        counts = self._counts[keys]
        times = self._columns[0][ragged(self._starts[keys], counts)]
        return self.remove_each(keys, (times >= start) & (times <= end))

    def remove_each(self, keys: Numbers, gone: Array) -> Numbers:
        """Remove some of the rows of k keys, which are sorted by key; return how many entries they had, int64 (k,)."""
        starts, counts = self._starts[keys], self._counts[keys]
        leaving = entries = sums(gone, counts)
        if self._panes is not None:
            entries = sums(gone * self._columns[1][ragged(starts, counts)], counts)
        some = leaving > 0
        if some.any():
            gone = gone[np.repeat(some, counts)]
            keys, starts, counts, left = keys[some], starts[some], counts[some], (counts - leaving)[some]
            rows, targets = ragged(starts, counts), ragged(starts, left)
            for column in self._columns:
                column[targets] = column[rows[~gone]]
            self._forget_objects(starts + left, counts - left)
            self._counts[keys] = left
            if self.kept is not None:
                self.kept.fresh[keys] = False
            if not left.all():
                self._release(keys[left == 0], starts[left == 0])
        return entries

    def give(self, key: int, rows: Numbers, columns: Sequence[Array]) -> None:
        """Give rows of a key, int64 (m,), other values: an array (m,) per column after the time."""
        for column, values in zip(self._columns[1:], columns, strict=True):
            column[self._starts[key] + rows] = values
        if self.kept is not None:
            self.kept.fresh[key] = False

    def evict(self, key: int, count: int) -> int:
        """Evict the oldest `count` >= 1 entries, of which there are as many; return the time of the last that left."""
        start = self._starts.item(key)
        last: int = self._columns[0].item(start + count - 1)
        self._evict(key, start, self._counts.item(key), count)
        return last

    def evict_each(self, keys: Numbers, counts: Numbers) -> Numbers:
        """Evict the oldest `counts` >= 1 entries of k keys; return the time of the last that left, int64 (k,)."""
        last: Numbers = self._columns[0][self._starts[keys] + counts - 1]
        self._evict_each(keys, counts)
        return last

    def clear(self, keys: Numbers) -> None:
        """Evict all entries of k keys."""
        keys = keys[self._counts[keys] > 0]
        self._evict_each(keys, self._counts[keys])

    def _evict(self, key: int, start: int, count: int, gone: int) -> None:
        if gone == count:
            self._evict_each(np.array([key]), np.array([gone]))
            return
        for i in self._objects:
            self._columns[i][start : start + gone] = None
        self._starts[key] = start + gone
        self._counts[key] = count - gone
        if self.kept is not None:
            self.kept.fresh[key] = False

    def _evict_each(self, keys: Numbers, gone: Numbers) -> None:
        starts, counts = self._starts[keys], self._counts[keys] - gone
        self._forget_objects(starts, gone)
        self._counts[keys] = counts
        self._starts[keys] = starts + gone
        if self.kept is not None:
            self.kept.fresh[keys] = False
        emptied = counts == 0
        if emptied.any():
            self._release(keys[emptied], starts[emptied])

    def _release(self, keys: Numbers, starts: Numbers) -> None:
        """Free the pages of keys whose rows begin at `starts`, and leave the keys without."""
        self._allocator.release(starts, self._classes[keys])
        self._classes[keys] = 0
        self._starts[keys] = 0

    def _forget_objects(self, starts: Numbers, counts: Numbers) -> None:
        """Let strings go with their rows."""
        if self._objects:
            rows = ragged(starts, counts)
            for i in self._objects:
                self._columns[i][rows] = None

    # ---------------------------------------------------------------- reading

    def rows_of(self, key: int) -> int:
        """How many rows a key has."""
        return self._counts.item(key)

    def rows_of_each(self, keys: Numbers) -> Numbers:
        """How many rows k keys have, int64 (k,)."""
        return self._counts[keys]

    @property
    def all_columns(self) -> list[Array]:
        """The columns that all keys share; the next write may put others in their place."""
        return self._columns

    def places_each(self, keys: Numbers) -> tuple[Numbers, Numbers]:
        """Where the rows of k keys are in these columns: their first rows, and those behind their last, int64 (k,)."""
        starts = self._starts[keys]
        return starts, starts + self._counts[keys]

    def entries(self, key: int) -> int:
        """How many entries a key has."""
        count = self._counts.item(key)
        if self._panes is None:
            return count
        start = self._starts.item(key)
        return int(self._columns[1][start : start + count].sum())

    def entries_each(self, keys: Numbers) -> Numbers:
        """How many entries k keys have, int64 (k,)."""
        counts = self._counts[keys]
        return counts if self._panes is None else sums(self._columns[1][ragged(self._starts[keys], counts)], counts)

    def oldest(self, key: int) -> int | None:
        """Time of a key's oldest entry; None where it has none."""
        return self._columns[0].item(self._starts.item(key)) if self._counts.item(key) else None

    def newest(self, key: int) -> int | None:
        """Time of a key's newest entry; None where it has none."""
        count = self._counts.item(key)
        return self._columns[0].item(self._starts.item(key) + count - 1) if count else None

    def newest_each(self, keys: Numbers) -> Numbers:
        """Times of the newest entries of k keys, int64 (k,); the least int64 where a key has none."""
        newest = np.full(len(keys), np.iinfo(np.int64).min)
        some = np.flatnonzero(self._counts[keys])
        if self.kept is not None:
            some = self.kept.take(self.kept.newest, keys, some, newest)
        newest[some] = self._columns[0][self._starts[keys[some]] + self._counts[keys[some]] - 1]
        return newest

    @property
    def filled(self) -> int:
        """How many keys have entries: 0.3 ms for a million keys."""
        return int(np.count_nonzero(self._counts))

    def totals(self, key: int, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries of a key, one per slot; `part` as store.py says."""
        start, layout = self._starts.item(key), self.layout if part is None else part
        return layout.reduce_rows(self._columns, start, start + self._counts.item(key))

    def range_totals(self, key: int, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        layout = self.layout if part is None else part
        first = self._starts.item(key)
        times = self._columns[0][first : first + self._counts.item(key)]
        a, b = int(times.searchsorted(start, "left")), int(times.searchsorted(end, "right"))
        partials = layout.reduce_rows(self._columns, first + a, first + b)
        return (max(b - a, 0) if self._panes is None else partials[0]), partials

    def rows_each(
        self, keys: Numbers, counts: Numbers, wanted: Sequence[int], start: Numbers | None, end: Numbers | None
    ) -> tuple[Numbers, list[Array]]:
        """The rows of k keys, one key's after the other's.

        Args:
            counts, wanted: as of `rows_of_each`; the columns that are read.
            start, end: int64 (k,): of each key only rows with start <= time <= end; None: all.

        Returns how many rows of each key there are, and copies of the columns; empty where not wanted.
        """
        rows = ragged(self._starts[keys], counts)
        if start is not None and end is not None:
            times = self._columns[0][rows]
            inside = (times >= np.repeat(start, counts)) & (times <= np.repeat(end, counts))
            counts, rows = sums(inside, counts), rows[inside]
        return counts, [column[rows] if i in wanted else column[:0] for i, column in enumerate(self._columns)]

    def oldest_each(self, keys: Numbers) -> Numbers:
        """Times of the oldest entries of k keys, int64 (k,); the greatest int64 where a key has none."""
        oldest = np.full(len(keys), np.iinfo(np.int64).max)
        some = np.flatnonzero(self._counts[keys])
        if self.kept is not None:
            some = self.kept.take(self.kept.oldest, keys, some, oldest)
        oldest[some] = self._columns[0][self._starts[keys[some]]]
        return oldest

    def columns(self, key: int) -> list[Array]:
        """A key's entries as columns (copies): times, then one array per field."""
        return self.rows(np.array([key]))

    def rows(self, keys: Numbers) -> list[Array]:
        """The entries of k keys, one key's after the other's, as columns (copies)."""
        rows = ragged(self._starts[keys], self._counts[keys])
        return [column[rows] for column in self._columns]

    # ---------------------------------------------------------------- room

    def reserve(self, keys: Numbers, more: Numbers) -> None:
        """Have room for so many more entries in each of k keys, which has at most `largest` then, and gets one soon."""
        starts, wanted = self._starts[keys], self._counts[keys] + more
        sizes = self._sizes[self._classes[keys]]
        full = starts + wanted > (starts & -sizes) + sizes
        if full.any():
            self._make_room(keys[full], wanted[full])

    def _make_room(self, keys: Numbers, wanted: Numbers) -> None:
        """Move each key to the front of a page that has room for `wanted` entries: its own, or another."""
        starts, counts, classes = self._starts[keys], self._counts[keys], self._classes[keys]
        old_rows = ragged(starts, counts)
        held = [column[old_rows] for column in self._columns]
        self._forget_objects(starts, counts)
        fitting = np.searchsorted(self._sizes, wanted)
        # A key that hovers about a page's size would move to and fro: it keeps a page twice the size it needs.
        moving = (fitting != classes) & (fitting != classes - 1)
        pages = starts & -self._sizes[classes]
        self._release(keys[moving], starts[moving])
        pages[moving] = self._allocator.allocate(fitting[moving])
        self._starts[keys] = pages
        self._classes[keys] = np.where(moving, fitting, classes)
        new_rows = ragged(pages, counts)
        for column, values in zip(self._columns, held, strict=True):
            column[new_rows] = values

    def _lengthen(self, rows: int, used: int) -> None:
        columns = self._columns
        for i in range(len(columns)):
            if i not in self._objects:
                try:
                    # In place, a large column grows without a copy: 3 to 10 times faster. No variable
                    # may stand for the column here, or NumPy takes it for somebody else's hold on the memory.
                    columns[i].resize(rows)
                    continue
                except ValueError:  # an aggregate kept a view of values that it was shown
                    pass
            columns[i] = copied(columns[i], rows, used)

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        sizes = self._sizes[self._classes]
        starts, counts = self._starts, self._counts
        pages = starts & -sizes
        assert ((counts > 0) == (sizes > 0)).all(), "a key has a page just where it has entries"
        assert (counts >= 0).all(), f"a count is negative: {counts.tolist()}"
        assert (starts + counts <= pages + sizes).all(), "entries lie inside their page"
        held = [(page, size) for page, size in zip(pages.tolist(), sizes.tolist(), strict=True) if size]
        at = 0
        for page, size in sorted(held + self._allocator.free_pages()):
            assert page % size == 0, f"the page of {size} at {page} lies at a multiple of its size"
            assert page == at, f"pages cover the rows without gap or overlap: one ends at {at}, the next is at {page}"
            at += size
        allocator, there = self._allocator, len(self._columns[0])
        assert at == allocator.end <= there, f"pages end at {at}, {allocator.end} rows were handed out"
        assert allocator.rows == there, f"there are {there} rows, the allocator has {allocator.rows}"
        rows = ragged(starts, counts)
        times, first = self._columns[0][rows], np.zeros(len(rows) + 1, bool)
        first[np.cumsum(counts) - counts] = True
        assert ((times[1:] >= times[:-1]) | first[1:-1]).all(), "each key's entries are sorted by time"
        vacant = np.ones(len(self._columns[0]), bool)
        vacant[rows] = False
        for i in self._objects:
            left = [value for value in self._columns[i][vacant].tolist() if value is not None]
            assert not left, f"column {i} holds on to {left[:3]} in rows that no key has"
