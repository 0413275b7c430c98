"""Keys: the entries of each key of one window, small keys together, large ones on their own.

    "JFK" ─▶ 0 ─▶ forest              names ─▶ numbers, dense; by number: now, late_through, own
    "LGA" ─▶ 1 ─▶ page of 16          own[i]: key i has a forest, else its entries (if any) are in pages
    "EWR" ─▶ 2 ─▶ page of 4

A key begins in the pages (pages.py), and gets a forest of its own (forest/) with the first entry that no page has
room for; it keeps it. So a million keys of ten entries need a few hundred bytes each, and a bulk over many of them is
a few vectorised passes; a key of any size beyond has what a forest gives: answers that cost the same whatever
its size.

Example: pages of at most 64 rows. 70 entries to key 1: a forest. 60 entries to key 2: a page of 64. Five more to
key 2: its 60 entries move to a forest, the five follow, and its page is free.

Insert of m entries for k small keys: O(m) in vectorised passes; a key with a forest costs a few µs more.
Query: O(entries) of a small key, which are at most 64; else as a forest's.  Space: see pages.py and forest.py.

What slides, and what is late, is the window's to say: `now` and `late_through` are kept here because they are kept
per key. The caller writes `late_through`; `now` is the key's high-water mark, and inserts raise it here.

A key whose entries have all left is remembered with its marks: a mark that goes back would let in entries that were
late before. Such a key is not *filled*, and is neither listed nor counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from typing import Any

import numpy as np

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.windows.by_algorithm import Store
from sash_engine.windows.pages import PAGES, Numbers, Pages, grown
from sash_engine.windows.panes import PaneForest, PaneLayout, PanePages

__all__ = ["NEVER", "UNKEYED", "Keys"]

NEVER = -(2**63)
"""No entry has this time: nothing is late, nothing is newest."""

UNKEYED = ""
"""What the one key of a window without keys is called; no other key can be."""

PAGE_NAMES = 32_768
"""Names that one call of `Keys.page` looks at: 3 ms of a million's 100, where none of them fits the prefix."""

_NAMES_AT_ONCE = 1_024


class Keys:
    """The keys of one window, by number, and their entries.

    Args:
        layout: columns, aggregates and block size.
        pages: rows of the smallest and of the largest page, powers of two; None gives every key a forest.
        make: makes a forest, or what has its methods.

    Attributes:
        now: int64, by number: the newest time ever inserted, `NEVER` before. It does not go back when entries leave.
        late_through: int64, by number: entries of this time and older come too late; `NEVER` at first.
        touched: int64, by number: when a key was last written, as the window says; 0 before.
        top: no entry is newer; an insert of a newer one raises it. `NEVER` at first.
        now_of, late_through_of: the same memory for access to one: Python integers, in half the time.
        find: name -> the number of a key, None where there is no such key.

    Methods named `…_each` take k distinct numbers, int64 (k,), and are vectorised over those of small keys.

    >>> from sash_engine.forest import Layout
    >>> from sash_engine.monoids import Sum
    >>> keys = Keys(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> [jfk] = keys.create(["JFK"]).tolist()
    >>> keys.insert(jfk, 5, (20.0,))
    >>> keys.insert(jfk, 3, (1.0,))
    >>> keys.find("JFK") == jfk, keys.query(jfk), keys.range_query(jfk, 4, 9), keys.span(jfk)
    (True, (2, [21.0]), (1, [20.0]), (3, 5))
    """

    def __init__(
        self,
        layout: Layout,
        pages: tuple[int, int] | None = PAGES,
        make: Callable[[Layout], Store] = Forest,
    ) -> None:
        self._make = make
        self.touched: Numbers = np.empty(0, np.int64)
        self.now: Numbers = np.empty(0, np.int64)
        self.late_through: Numbers = np.empty(0, np.int64)
        self._own = np.empty(0, np.bool_)
        self._layout = layout
        self.now_of, self.late_through_of = self.now.data, self.late_through.data
        self._numbers: dict[str, int] = {}
        self.find: Callable[[str], int | None] = self._numbers.get
        self._names: list[str | None] = []
        self._unused: list[int] = []
        self._forests: dict[int, Store] = {}
        self._pages = (PanePages if isinstance(layout, PaneLayout) else Pages)(layout, *(pages or PAGES))
        self._small = self._pages.largest if pages else 0
        """A key with more entries than this has a forest."""
        self.top, self._top_of = NEVER, -1
        """The second is the key that had an entry of the first's time, and may have it still."""
        self._hollow: set[int] = set()
        """Keys whose forest has lost all entries, and may have got new ones since; `filled` looks."""

    def __len__(self) -> int:
        """How many keys are remembered, with entries or without."""
        return len(self._numbers)

    @property
    def filled(self) -> int:
        """How many keys have entries."""
        self._hollow = {number for number in self._hollow if self._forests[number].newest is None}
        return self._pages.filled + len(self._forests) - len(self._hollow)

    def newest(self) -> int | None:
        """Time of the newest entry of all keys, in ticks; None where there is none.

        O(1) unless the newest entry has left since the last call; then O(keys), 30 ms for a million small ones.
        """
        if self.top != NEVER and self._newest_of(self._top_of) != self.top:
            newest = self.newest_each(np.arange(len(self._names)))
            self._top_of = int(newest.argmax())
            self.top = newest.item(self._top_of)
        return None if self.top == NEVER else self.top

    # ---------------------------------------------------------------- which keys there are

    def find_each(self, names: Sequence[str]) -> Numbers:
        """The numbers of keys, int64 (k,); -1 where there is no such key."""
        return np.fromiter(map(self._numbers.get, names, repeat(-1)), np.int64, len(names))

    def name(self, number: int) -> str:
        """The name of a key."""
        name = self._names[number]
        assert name is not None, f"there is no key {number}"
        return name

    def names(self) -> list[str]:
        """The names of all keys, in the order in which they were created."""
        return list(self._numbers)

    def names_filled(self, floor: int = NEVER) -> list[str]:
        """The names of keys with entries newer than `floor`, in the order in which they were created."""
        there = self.newest_each(self.numbers()) > floor
        return list(compress(self._numbers, there.tolist()))

    def page(self, prefix: str, limit: int, position: int, floor: int = NEVER) -> tuple[list[str], int | None]:
        """Up to `limit` names that start with `prefix`, by number from `position` on, and where to go on.

        Only keys with entries newer than `floor` are named. No more than `PAGE_NAMES` are looked at, so that the time
        this takes does not depend on how many keys there are; None where there are no more.
        """
        stop = min(position + PAGE_NAMES, len(self._names))
        found: list[str] = []
        for start in range(position, stop, _NAMES_AT_ONCE):
            numbers = [
                number
                for number in range(start, min(start + _NAMES_AT_ONCE, stop))
                if (name := self._names[number]) is not None and name.startswith(prefix)
            ]
            there = self.newest_each(np.array(numbers, np.int64)) > floor
            numbers = list(compress(numbers, there.tolist()))
            if len(found) + len(numbers) >= limit:
                numbers = numbers[: limit - len(found)]
                found += map(self.name, numbers)
                stop = numbers[-1] + 1
                break
            found += map(self.name, numbers)
        return found, stop if stop < len(self._names) else None

    def numbers(self) -> Numbers:
        """The numbers of all keys, int64, in the order in which they were created."""
        return np.fromiter(self._numbers.values(), np.int64, len(self._numbers))

    def chunks(self, size: int) -> Iterator[tuple[list[str], Numbers]]:
        """All names and their numbers, int64, in the order in which they were created, `size` at a time.

        Keys may neither come nor go while it is read.
        """
        items = iter(self._numbers.items())
        while chunk := dict(islice(items, size)):
            yield list(chunk), np.fromiter(chunk.values(), np.int64, len(chunk))

    def create(self, names: Sequence[str]) -> Numbers:
        """Create keys, none of which exists; return their numbers, int64 (k,). They have no entries yet."""
        again = min(len(self._unused), len(names))
        first, last = len(self._names), len(self._names) + len(names) - again
        numbers = [*(self._unused.pop() for _ in range(again)), *range(first, last)]
        self._reach(last)
        for number, name in zip(numbers, names, strict=True):
            self._numbers[name] = number
            self._names[number] = name
        return np.array(numbers, np.int64)

    def unused(self, first: int = 0, stop: int | None = None) -> Numbers:
        """Numbers first..stop of those that no key has any more, int64; new keys get the last ones first."""
        return np.array(self._unused[first:stop], np.int64)

    def resume(self, names: Sequence[str], numbers: Numbers, unused: Numbers) -> None:
        """Create keys as they were elsewhere, after all that are there; `unused` as `unused` gave it, or a part.

        A number is named or unused once, and in the end there is no gap.
        """
        both = np.concatenate((numbers, unused))
        self._reach(max(int(both.max(initial=-1)) + 1, len(self._names)))
        self._unused.extend(unused.tolist())
        for number, name in zip(numbers.tolist(), names, strict=True):
            self._numbers[name] = number
            self._names[number] = name

    def forget(self, numbers: Numbers) -> int:
        """Remove keys with all they have; return how many entries that were. Later keys may get their numbers."""
        entries = int(self.entries_each(numbers).sum())
        self._pages.clear(numbers)
        self.now[numbers] = self.late_through[numbers] = NEVER
        self._own[numbers] = False
        for number in numbers.tolist():
            del self._numbers[self.name(number)]
            self._names[number] = None
            forest = self._forests.pop(number, None)
            if isinstance(forest, Forest):
                forest.drop()
            self._hollow.discard(number)
            self._unused.append(number)
        return entries

    def forest(self, number: int) -> Store:
        """A key's forest; a key without is given one. Entries may leave it, but enter it by `insert` only."""
        forest = self._forests.get(number)
        if forest is None:
            forest = self._forests[number] = self._make(self._layout)
            self._own[number] = True
            if self._pages.entries(number):
                times, *columns = self._pages.columns(number)
                forest.bulk_insert(times, columns)
                self._pages.clear(np.array([number]))
        return forest

    def forests(self) -> Iterable[Store]:
        """The forests of all keys that have one."""
        return self._forests.values()

    def with_forests(self, numbers: Numbers) -> Iterator[tuple[int, Store]]:
        """Of some keys those that have a forest: number, forest."""
        return ((number, self._forests[number]) for number in numbers[self._own[numbers]].tolist())

    def give(self, number: int, forest: Store) -> None:
        """Give a key without entries a forest, with what is in it."""
        self._forests[number] = forest
        self._own[number] = True
        newest = forest.newest
        if newest is None:
            self._hollow.add(number)
        elif newest > self.top:
            self.top, self._top_of = newest, number

    def small(self, numbers: Numbers) -> tuple[Numbers, Numbers, list[Array]]:
        """The entries of those of some keys that share pages.

        Returns:
            the numbers of those that have entries, int64 (k,); how many each has, int64 (k,); and their rows as
            columns (copies), as `bulk_insert_each` takes them.
        """
        lengths = self._pages.entries_each(numbers)
        numbers, lengths = numbers[lengths > 0], lengths[lengths > 0]
        return numbers, lengths, self._pages.rows(numbers)

    def _reach(self, n: int) -> None:
        self._names.extend(repeat(None, n - len(self._names)))
        if n > len(self.now):
            self.now = grown(self.now, n, NEVER)
            self.late_through = grown(self.late_through, n, NEVER)
            self.touched = grown(self.touched, n, 0)
            self._own = grown(self._own, n, False)
            self._pages.reach(len(self.now))
            self.now_of, self.late_through_of = self.now.data, self.late_through.data

    # ---------------------------------------------------------------- inserting

    def insert(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Insert one entry: `values` has one scalar per field."""
        forest = self._forests.get(number)
        if forest is not None:
            forest.insert(time, values)
        elif self._pages.entries(number) < self._small:
            self._pages.insert(number, time, values)
        else:
            self.forest(number).insert(time, values)
        if time > self.now_of[number]:
            self.now_of[number] = time
        if time > self.top:
            self.top, self._top_of = time, number

    def bulk_insert(self, number: int, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 1 entries of one key, in any order: int64 (m,) times, and per field an array (m,).

        The arrays are handed over, as in `Forest.bulk_insert`.
        """
        if self._pages.entries(number) + len(times) > self._small:
            self.forest(number)
        forest = self._forests.get(number)
        if forest is None:
            order = np.argsort(times, kind="stable")
            rows = [column[order] for column in (times, *columns)]
            self._pages.bulk_insert(np.array([number]), np.array([len(times)]), rows)
        else:
            forest.bulk_insert(times, columns)
        newest = int(times.max())
        self.now_of[number] = max(self.now_of[number], newest)
        if newest > self.top:
            self.top, self._top_of = newest, number

    def bulk_insert_each(self, numbers: Numbers, lengths: Numbers, rows: Sequence[Array]) -> None:
        """Insert entries of k >= 1 keys.

        Args:
            numbers: int64 (k,).
            lengths: int64 (k,), each >= 1: how many entries each key is sent.
            rows: times, then a column per field, (lengths.sum(),) each: the entries of the first key sorted by
                (time, arrival), then those of the second, and so on. Handed over.
        """
        newest = rows[0][np.cumsum(lengths) - 1]
        self.now[numbers] = np.maximum(self.now[numbers], newest)
        last = int(newest.argmax())
        if newest[last] > self.top:
            self.top, self._top_of = newest.item(last), numbers.item(last)
        own = self._own[numbers] | (self._pages.entries_each(numbers) + lengths > self._small)
        if not own.any():
            self._pages.bulk_insert(numbers, lengths, rows)
            return
        ends = np.cumsum(lengths)
        for number, a, b in zip(numbers[own].tolist(), (ends - lengths)[own].tolist(), ends[own].tolist(), strict=True):
            # Copied: a forest keeps what it is given, and must not keep the other keys' rows with it.
            times, *columns = (column[a:b].copy() for column in rows)
            self.forest(number).bulk_insert(times, columns)
        if not own.all():
            small = ~own
            kept = np.repeat(small, lengths)
            self._pages.bulk_insert(numbers[small], lengths[small], [column[kept] for column in rows])

    def replace(self, number: int, times: Array, columns: Sequence[Array]) -> None:
        """Give entries of a key other values: int64 (m,) distinct times that it has, and per field an array (m,)."""
        self.forest(number).replace(times, columns)

    # ---------------------------------------------------------------- evicting

    def bulk_evict(self, number: int, time: int) -> int:
        """Evict a key's entries with a time <= `time`; return how many."""
        forest = self._forests.get(number)
        if forest is None:
            return self._pages.bulk_evict(number, time)
        evicted = forest.bulk_evict(time)
        self._look_into(number, forest)
        return evicted

    def bulk_evict_each(self, numbers: Numbers, times: Numbers) -> Numbers:
        """Evict the entries of k keys with a time <= the key's of `times`; return how many of each, int64 (k,).

        Raises what loading a block does; then nothing has left.
        """
        forests = self._with_forests(numbers)
        for i, forest in forests:
            if isinstance(forest, Forest):
                forest.bring(times.item(i))  # all blocks that this needs, before anything leaves
        evicted = self._pages.bulk_evict_each(numbers, times)
        for i, forest in forests:
            evicted[i] = forest.bulk_evict(times.item(i))
            self._look_into(numbers.item(i), forest)
        return evicted

    def evict_while(self, number: int, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of a key's oldest entries for which `holds`; see `Forest.evict_while`."""
        forest = self.forest(number)
        evicted = forest.evict_while(holds)
        self._look_into(number, forest)
        return evicted

    def evict(self, number: int, count: int) -> int:
        """Evict a key's oldest `count` >= 1 entries, of which it has as many.

        Returns:
            the time of the newest entry that left.
        """
        forest = self._forests.get(number)
        if forest is None:
            return self._pages.evict(number, count)
        last = _evict(forest, count)
        self._look_into(number, forest)
        return last

    def evict_each(self, numbers: Numbers, counts: Numbers) -> Numbers:
        """Evict the oldest `counts` >= 1 entries of k keys; return the time of each key's newest that left."""
        last = np.empty(len(numbers), np.int64)
        for i, forest in self._with_forests(numbers):
            last[i] = _evict(forest, counts.item(i))
            self._look_into(numbers.item(i), forest)
        small = ~self._own[numbers]
        last[small] = self._pages.evict_each(numbers[small], counts[small])
        return last

    def sweep(self) -> None:
        """Give memory of evicted blocks back, some at a time."""
        for forest in self._forests.values():
            forest.sweep()

    # ---------------------------------------------------------------- reading

    def entries(self, number: int) -> int:
        """How many entries a key has."""
        forest = self._forests.get(number)
        return self._pages.weight(number) if forest is None else len(forest)

    def entries_each(self, numbers: Numbers) -> Numbers:
        """How many entries k keys have, int64 (k,)."""
        entries = self._pages.weights(numbers)
        for i, forest in self._with_forests(numbers):
            entries[i] = len(forest)
        return entries

    def query(self, number: int) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them, in the order of the layout's names."""
        forest = self._forests.get(number)
        if forest is not None:
            return len(forest), forest.query()
        entries = self._pages.weight(number)
        return entries, self._layout.lower(entries, self._pages.totals(number))

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest entry, in ticks; None where it has none."""
        forest = self._forests.get(number)
        if forest is not None:
            return forest.oldest, forest.newest
        return self._pages.oldest(number), self._pages.newest(number)

    def newest_each(self, numbers: Numbers) -> Numbers:
        """Times of the newest entries of k keys, int64 (k,); `NEVER` where a key has none. No block is loaded."""
        newest = self._pages.newest_each(numbers)
        for i, forest in self._with_forests(numbers):
            time = forest.newest
            newest[i] = NEVER if time is None else time
        return newest

    def _newest_of(self, number: int) -> int | None:
        forest = self._forests.get(number)
        return self._pages.newest(number) if forest is None else forest.newest

    def _look_into(self, number: int, forest: Store) -> None:
        """Note where a forest, from which entries have left, has no more."""
        if forest.newest is None:
            self._hollow.add(number)

    def range_query(self, number: int, start: int, end: int) -> tuple[int, list[Any]]:
        """The number of a key's entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(number, start, end)
        return entries, self._layout.lower(entries, partials)

    def totals(self, number: int) -> list[Partial]:
        """The partials over all entries of a key, one per slot."""
        forest = self._forests.get(number)
        return self._pages.totals(number) if forest is None else forest.totals()

    def range_totals(self, number: int, start: int, end: int) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        forest = self._forests.get(number)
        if forest is None:
            return self._pages.range_totals(number, start, end)
        return forest.range_totals(start, end)

    def totals_each(self, numbers: Numbers) -> tuple[Numbers, list[Partials]]:
        """The totals of k keys as columns.

        Returns:
            how many entries each has, int64 (k,); and per slot the partials of those that have any, in the order of
            `numbers`.
        """
        return self._gathered(numbers, self._pages.totals_each, lambda forest: (len(forest), forest.totals()))

    def range_totals_each(self, numbers: Numbers, start: int, end: int) -> tuple[Numbers, list[Partials]]:
        """As `totals_each`, over entries with start <= time <= end only."""
        return self._gathered(
            numbers,
            lambda small: self._pages.range_totals_each(small, start, end),
            lambda forest: forest.range_totals(start, end),
        )

    def series(self, numbers: Numbers, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many time ranges at once, over the entries of k keys together; see `Forest.series`.

        Entries of several keys, and of a small one, are put into a forest for the purpose, those in range only.
        """
        if len(numbers) == 1 and (own := self._forests.get(numbers.item())) is not None:
            return own.series(starts, stops)
        forest = PaneForest(self._layout) if isinstance(self._layout, PaneLayout) else Forest(self._layout)
        first, behind = int(starts.min(initial=NEVER + 1)), int(stops.max(initial=NEVER + 1))
        for number in numbers.tolist():
            times, *columns = self.columns(number)
            a, b = times.searchsorted((first, behind), "left").tolist()
            forest.bulk_insert(times[a:b], [column[a:b] for column in columns])
        return forest.series(starts, stops)

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: the same columns and block size, other aggregates."""
        for forest in self._forests.values():
            forest.relayout(layout)
        self._pages.relayout(layout)
        self._layout = layout

    def columns(self, number: int) -> list[Array]:
        """A key's entries as columns (copies): times, then one array per field."""
        forest = self._forests.get(number)
        return self._pages.columns(number) if forest is None else forest.columns()

    def _gathered(
        self,
        numbers: Numbers,
        of_pages: Callable[[Numbers], tuple[Numbers, list[Partials]]],
        of_forest: Callable[[Store], tuple[int, list[Partial]]],
    ) -> tuple[Numbers, list[Partials]]:
        """Ask the pages once and each forest, and put the partials in the order of `numbers`."""
        entries, columns = of_pages(numbers)  # a key with a forest has nothing there
        places, partials = np.flatnonzero(entries), []
        large = []
        for i, forest in self._with_forests(numbers):
            entries[i], totals = of_forest(forest)
            if entries[i]:
                large.append(i)
                partials.append(totals)
        if not large:
            return entries, columns
        order = np.argsort(np.concatenate((places, large)))
        return entries, [
            tuple(
                np.concatenate(both)[order]
                for both in zip(column, monoid.pack([totals[slot] for totals in partials]), strict=True)
            )
            for slot, (monoid, column) in enumerate(zip(self._layout.monoids, columns, strict=True))
        ]

    def _with_forests(self, numbers: Numbers) -> list[tuple[int, Store]]:
        """The places in `numbers` of keys that have a forest, and it."""
        if not self._forests:
            return []
        places = np.flatnonzero(self._own[numbers])
        found = map(self._forests.__getitem__, numbers[places].tolist())
        return list(zip(places.tolist(), found, strict=True))

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials, for `Forest.check_invariants`; equality where None.
        """
        self._pages.check_invariants()
        named = {number: name for number, name in enumerate(self._names) if name is not None}
        assert {name: number for number, name in named.items()} == self._numbers, "names and numbers are a bijection"
        assert sorted([*named, *self._unused]) == list(range(len(self._names))), "a number is named, or unused, once"
        assert np.flatnonzero(self._own).tolist() == sorted(self._forests), "`own` says which keys have a forest"
        for number in range(len(self.now)):
            entries, now = self._pages.entries(number), self.now.item(number)
            if number not in named:
                assert not entries, f"key {number} does not exist, and has entries"
                assert number not in self._forests, f"key {number} does not exist, and has a forest"
                assert now == self.late_through.item(number) == NEVER, f"key {number} does not exist, and has a past"
            elif number in self._forests:
                assert not entries, f"key {number} has a forest and {entries} entries in the pages"
                self._forests[number].check_invariants(same)
            assert entries <= self._small, f"key {number} has outgrown the pages with {entries} entries"
            _, newest = self.span(number)
            assert newest is None or newest <= now, f"key {number} has an entry at {newest}, newer than its now {now}"
        newest_each = [self.span(number)[1] for number in named]
        there = [newest for newest in newest_each if newest is not None]
        assert self.filled == len(there), f"{self.filled} keys are said to have entries, {len(there)} do"
        assert self.top >= max(there, default=NEVER), f"an entry is newer than {self.top}, which none is said to be"
        assert self.newest() == max(there, default=None), f"the newest entry is of {max(there, default=None)}"


def _evict(forest: Store, count: int) -> int:
    """Evict the oldest `count` >= 1 entries; return the time of the last that left."""
    if count > 1:
        forest.evict(count - 1)
    last = forest.oldest
    assert last is not None, "the forest has as many entries"
    forest.evict()
    return last
