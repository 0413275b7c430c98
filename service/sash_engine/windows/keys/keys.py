"""Keys: the entries of each key of one window, small keys together, large ones on their own.

    "JFK" ─▶ 0 ─▶ its own store       by number:  name, now, late_through, touched; numbers are dense from 0
    "LGA" ─▶ 1 ─▶ page of 16          own[i]: key i has a store of its own, else its rows (if any) are in pages
    "EWR" ─▶ 2 ─▶ page of 4

A key begins in the pages (pages.py). It gets a store of its own, a forest, with the first entry that no page has room
for, and keeps it. So a million keys of ten entries need a few hundred bytes each, and a bulk over many of them is a few
vectorised passes. For a larger key an answer costs the same whatever its size.

Example: pages of at most 64 rows. 70 entries to key 1: a forest. 60 entries to key 2: a page of 64. Five more to
key 2: its 60 entries move to a forest, the five follow, and its page is free.

Insert of m entries for k small keys: O(m) in vectorised passes; a key with its own store costs a few µs more.
Query: O(entries) of a small key, which are at most 64; else as the store's.  Space: see pages.py and forest.py.

A key without entries is remembered with its marks, because a mark that goes back would let in entries that were late
before. But it is not *filled*: it is neither listed nor counted. The number of a key that was forgotten serves another
key. The window decides what the marks mean: it writes `late_through`, and inserts raise `now`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Forest, Layout
from sash_engine.kernels import find_each
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.keys.pages import PAGES, Numbers, Pages
from sash_engine.windows.keys.ragged import grown
from sash_engine.windows.keys.range_answers import Places, range_answers_steps
from sash_engine.windows.keys.small_key import SmallKey
from sash_engine.windows.keys.store import Same
from sash_engine.windows.keys.totals import KeyTotals

Own = Callable[[Layout], Forest]
"""Makes an empty store for one key."""

NEVER = -(2**63)
"""No entry has this time: nothing is late, nothing is newest."""

UNKEYED = ""
"""The name of the one key of a window without keys; no other key can have it."""

_KEPT_BYTES = 40


class Keys:
    """The keys of one window, by number, and their entries.

    Args:
        layout: columns, aggregates and block size.
        pages: rows of the smallest and of the largest page, powers of two; None gives every key its own store.
        own: makes the store of a key that has its own.

    Attributes:
        kept_bytes: how many bytes of totals of a key may be kept between questions.
        top: no entry is newer; an insert of a newer one raises it. `NEVER` at first.
        now: int64, by number: the newest time ever inserted, `NEVER` before. Only `reset_marks` takes it back.
        late_through: int64, by number: entries of this time and older come too late; `NEVER` at first.
        touched: int64, by number: when a key was last written, as the window says; 0 before.
        now_of, late_through_of: the same memory for access to one: Python integers, in half the time.
        find: name -> the number of a key, None where there is no such key.
        news: the numbers of keys that were created since they were taken last, for whoever set it; None: nobody.
        gone: how many keys were ever forgotten.

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

    def __init__(self, layout: Layout, pages: tuple[int, int] | None = PAGES, own: Own = Forest) -> None:
        self.touched: Numbers = np.empty(0, np.int64)
        self.now: Numbers = np.empty(0, np.int64)
        self.late_through: Numbers = np.empty(0, np.int64)
        self.now_of, self.late_through_of = self.now.data, self.late_through.data
        self._numbers: dict[str, int] = {}
        self.find: Callable[[str], int | None] = self._numbers.get
        self._names: list[str | None] = []
        self._unused: list[int] = []
        self.news: list[Sequence[int]] | None = None
        self.gone = 0
        self._layout = layout
        self._new_store = own
        self.kept_bytes = _KEPT_BYTES
        self._own = np.empty(0, np.bool_)
        self._own_stores: dict[int, Forest] = {}
        self._pages = Pages(layout, *(pages or PAGES))
        self._small = self._pages.largest if pages else 0
        """A key with more rows than this has its own store."""
        self.top, self._top_of = NEVER, -1
        """The second is the key that had an entry of the first's time, and may have it still."""
        self._maybe_empty: set[int] = set()
        """Keys whose own store has lost all rows, and may have got new ones since; `filled` looks."""

    # ---------------------------------------------------------------- names and numbers

    def __len__(self) -> int:
        """How many keys are remembered, with entries or without."""
        return len(self._numbers)

    def find_each(self, names: Sequence[str]) -> Numbers:
        """The numbers of keys, int64 (k,); -1 where there is no such key."""
        return find_each(self._numbers, names)

    def name(self, number: int) -> str:
        """The name of a key."""
        name = self._names[number]
        assert name is not None, f"there is no key {number}"
        return name

    @property
    def numbered(self) -> int:
        """All numbers of keys are below this one."""
        return len(self._names)

    def names_of(self, numbers: Iterable[int]) -> list[str | None]:
        """The names of some keys; None for a number that no key has."""
        return list(map(self._names.__getitem__, numbers))

    def written(self) -> Numbers:
        """The numbers of all keys that were ever written, sorted: 1 ms for a million."""
        return np.flatnonzero(self.now[: len(self._names)] > NEVER)

    def names(self) -> list[str]:
        """The names of all keys, in the order in which they were created."""
        return list(self._numbers)

    def numbers(self) -> Numbers:
        """The numbers of all keys, int64, in the order in which they were created."""
        return np.fromiter(self._numbers.values(), np.int64, len(self._numbers))

    def chunks(self, size: int) -> Iterator[tuple[list[str], Numbers]]:
        """All names and their numbers, int64, in the order in which they were created, `size` at a time.

        Keys may neither come nor go while it is read.
        """
        names, numbers = iter(self._numbers), iter(self._numbers.values())
        while chunk := list(islice(names, size)):
            yield chunk, np.fromiter(islice(numbers, size), np.int64, len(chunk))

    def create(self, names: Sequence[str]) -> Numbers:
        """Create keys, none of which exists; return their numbers, int64 (k,). They have no entries yet."""
        again = min(len(self._unused), len(names))
        first, last = len(self._names), len(self._names) + len(names) - again
        numbers = [*(self._unused.pop() for _ in range(again)), *range(first, last)]
        self._reach(last)
        self._numbers.update(zip(names, numbers, strict=True))
        for number, name in zip(numbers[:again], names, strict=False):
            self._names[number] = name
        self._names[first:last] = names[again:]
        if self.news is not None:
            self.news.append(numbers)
        return np.array(numbers, np.int64)

    def unused(self, first: int = 0, stop: int | None = None) -> Numbers:
        """Numbers first..stop of those that no key has any more, int64; new keys get the last ones first."""
        return np.array(self._unused[first:stop], np.int64)

    def resume(self, names: Sequence[str], numbers: Numbers, unused: Numbers) -> None:
        """Create keys as they were elsewhere, after all that are there; `unused` as `unused` gave it, or some of it.

        A number is named or unused once, and in the end there is no gap.
        """
        both = np.concatenate((numbers, unused))
        self._reach(max(int(both.max(initial=-1)) + 1, len(self._names)))
        self._unused.extend(unused.tolist())
        for number, name in zip(numbers.tolist(), names, strict=True):
            self._numbers[name] = number
            self._names[number] = name
        if self.news is not None:
            self.news.append(numbers.tolist())

    def _reach(self, n: int) -> None:
        self._names.extend(repeat(None, n - len(self._names)))
        if n > len(self.now):
            self.now = grown(self.now, n, NEVER)
            self.late_through = grown(self.late_through, n, NEVER)
            self.touched = grown(self.touched, n, 0)
            self.now_of, self.late_through_of = self.now.data, self.late_through.data
            self._own = np.concatenate((self._own, np.zeros(len(self.now) - len(self._own), np.bool_)))
            self._pages.reach(len(self.now))

    @property
    def layout(self) -> Layout:
        """The columns of all rows, and the aggregates."""
        return self._layout

    @property
    def filled(self) -> int:
        """How many keys have entries."""
        self._maybe_empty = {number for number in self._maybe_empty if self._own_stores[number].newest is None}
        return self._pages.filled + len(self._own_stores) - len(self._maybe_empty)

    def newest(self) -> int | None:
        """Time of the newest entry of all keys, in ticks; None where there is none.

        O(1) unless the newest entry has left since the last call; then O(keys), 30 ms for a million small ones.
        """
        if self.top != NEVER and self.store(self._top_of).newest != self.top:
            newest = self.newest_each(np.arange(len(self._names)))
            self._top_of = int(newest.argmax())
            self.top = newest.item(self._top_of)
        return None if self.top == NEVER else self.top

    # ---------------------------------------------------------------- stores

    def store(self, number: int) -> Forest | SmallKey:
        """Return the store of a key: its own, or a view of the pages.

        Entries may leave it, but enter it by `insert` and `bulk_insert` of the keys only.
        """
        store = self._own_stores.get(number)
        return SmallKey(self._pages, number) if store is None else store

    def own_stores(self) -> Collection[Forest]:
        """The stores of all keys that have their own."""
        return self._own_stores.values()

    def any_own(self, numbers: Numbers) -> bool:
        """Whether one of some keys has a store of its own."""
        return bool(self._own_stores) and bool(self._own[numbers].any())

    def with_own_stores(self, numbers: Numbers) -> Iterator[tuple[int, Forest]]:
        """Of some keys those that have a store of their own: number, store."""
        return ((number, self._own_stores[number]) for number in numbers[self._own[numbers]].tolist())

    def small(self, numbers: Numbers) -> tuple[Numbers, Numbers, list[Array]]:
        """The entries of those of some keys that share pages.

        Returns:
            the numbers of those that have entries, int64 (k,); how many each has, int64 (k,); and their rows as
            columns (copies), as `bulk_insert_each` takes them.
        """
        lengths = self._pages.rows_of_each(numbers)
        numbers, lengths = numbers[lengths > 0], lengths[lengths > 0]
        return numbers, lengths, self._pages.rows(numbers)

    def _own_among(self, numbers: Numbers) -> list[tuple[int, Forest]]:
        """The places in `numbers` of keys that have their own store, and it."""
        if not self._own_stores:
            return []
        places = np.flatnonzero(self._own[numbers])
        found = map(self._own_stores.__getitem__, numbers[places].tolist())
        return list(zip(places.tolist(), found, strict=True))

    # ---------------------------------------------------------------- one key

    # What is asked most reads the pages directly: to make a `SmallKey` costs a tenth of a query.

    def entries(self, number: int) -> int:
        """How many entries a key has."""
        store = self._own_stores.get(number)
        return self._pages.entries(number) if store is None else len(store)

    def query(self, number: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them, in the order of the layout's names."""
        store = self._own_stores.get(number)
        if store is not None:
            return len(store), store.query(some)
        entries, partials = self._pages.entries(number), self._pages.totals(number, some)
        return entries, (self._layout if some is None else some).lower(entries, partials)

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest row, in ticks; None where it has none."""
        store = self._own_stores.get(number)
        if store is not None:
            return store.oldest, store.newest
        return self._pages.oldest(number), self._pages.newest(number)

    def range_query(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of a key's entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(number, start, end, some)
        return entries, (self._layout if some is None else some).lower(entries, partials)

    def totals(self, number: int, some: Layout | None = None) -> list[Partial]:
        """The partials over all entries of a key, one per slot."""
        return self.store(number).totals(some)

    def range_totals(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        store = self._own_stores.get(number)
        if store is None:
            return self._pages.range_totals(number, start, end, some)
        return store.range_totals(start, end, some)

    def columns(self, number: int) -> list[Array]:
        """A key's rows as columns (copies): times, then one array per column after."""
        return self.store(number).columns()

    # ---------------------------------------------------------------- several keys

    def entries_each(self, numbers: Numbers) -> Numbers:
        """How many entries k keys have, int64 (k,)."""
        entries = self._pages.entries_each(numbers)
        for i, store in self._own_among(numbers):
            entries[i] = len(store)
        return entries

    def newest_each(self, numbers: Numbers) -> Numbers:
        """Times of the newest rows of k keys, int64 (k,); `NEVER` where a key has none. No block is loaded."""
        newest = self._pages.newest_each(numbers)
        for i, store in self._own_among(numbers):
            time = store.newest
            newest[i] = NEVER if time is None else time
        return newest

    def filled_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of k keys have entries, bool (k,)."""
        filled: npt.NDArray[np.bool_] = self._pages.rows_of_each(numbers) > 0
        for i, store in self._own_among(numbers):
            filled[i] = store.newest is not None
        return filled

    def whole_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of k keys count with all of their rows, bool (k,): here, each."""
        return np.ones(len(numbers), np.bool_)

    def oldest_each(self, numbers: Numbers) -> Numbers:
        """Times of the oldest rows of k keys, int64 (k,); the greatest int64 where a key has none."""
        oldest = self._pages.oldest_each(numbers)
        for i, store in self._own_among(numbers):
            time = store.oldest
            oldest[i] = np.iinfo(np.int64).max if time is None else time
        return oldest

    def shared_rows(self, numbers: Numbers) -> Numbers:
        """How many rows k keys have in shared pages, int64 (k,)."""
        return self._pages.rows_of_each(numbers)

    def layout_of(self, slots: Sequence[int]) -> Layout:
        """A layout of some aggregates."""
        return self._layout.only(slots)

    def kept_totals(self, slots: Sequence[int]) -> KeyTotals | None:
        """Totals of keys in shared pages that are kept of some aggregates; None where they are not."""
        kept = self._pages.keep_totals(self.kept_bytes)
        return kept if kept.keeps(slots) else None

    def rows_each(
        self, numbers: Numbers, counts: Numbers, wanted: Sequence[int], start: Numbers | None, end: Numbers | None
    ) -> tuple[Numbers, list[Array]]:
        """The rows of k keys in shared pages: see `Pages.rows_each`."""
        return self._pages.rows_each(numbers, counts, wanted, start, end)

    def answers_steps(
        self, numbers: Numbers, lengths: Numbers, starts: Array, stops: Array, some: Layout | None = None
    ) -> Steps[tuple[Array, list[Array]]]:
        """Answer over many ranges of time of k keys, in steps: see `range_answers_steps`."""
        layout = self._layout if some is None else some
        return range_answers_steps(self._pages, self._own_stores.get, layout, numbers, lengths, starts, stops)

    def places(self, numbers: Numbers) -> Places:
        """Where the rows of keys are."""
        return Places(self._pages, self._own_stores.get, numbers)

    # ---------------------------------------------------------------- stores that keys get

    def own_store(self, number: int) -> Forest:
        """A key's own store; a key without one is given one, and its entries move there from the pages."""
        store = self._own_stores.get(number)
        if store is None:
            store = self._own_stores[number] = self._new_store(self._layout)
            self._own[number] = True
            if self._pages.rows_of(number):
                times, *columns = self._pages.columns(number)
                store.bulk_insert(times, columns)
                self._pages.clear(np.array([number]))
        return store

    def adopt(self, number: int, forest: Forest) -> None:
        """Give a key without entries a forest that was stored, with what is in it."""
        self._own_stores[number] = forest
        self._own[number] = True
        newest = forest.newest
        if newest is None:
            self._maybe_empty.add(number)
        elif newest > self.top:
            self.top, self._top_of = newest, number

    def forget(self, numbers: Numbers) -> int:
        """Remove keys with all they have; return how many entries that were. Later keys may get their numbers."""
        entries = int(self.entries_each(numbers).sum())
        self._pages.clear(numbers)
        for number in numbers[self._own[numbers]].tolist():
            self._own_stores.pop(number).drop()
            self._maybe_empty.discard(number)
        self._own[numbers] = False
        self.now[numbers] = self.late_through[numbers] = NEVER
        self.gone += len(numbers)
        for number in numbers.tolist():
            del self._numbers[self.name(number)]
            self._names[number] = None
            self._unused.append(number)
        return entries

    # ---------------------------------------------------------------- inserting

    def insert(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Insert one row: `values` has one scalar per column after the time."""
        store = self._own_stores.get(number)
        if store is not None:
            store.insert(time, values)
        elif self._pages.rows_of(number) < self._small:
            self._pages.insert(number, time, values)
        else:
            self.own_store(number).insert(time, values)
        if time > self.now_of[number]:
            self.now_of[number] = time
        if time > self.top:
            self.top, self._top_of = time, number

    def bulk_insert(self, number: int, times: Array, columns: Sequence[Array]) -> None:
        """Insert m >= 1 rows of one key: see `Forest.bulk_insert`."""
        large = self._pages.rows_of(number) + len(times) > self._small
        store = self.own_store(number) if large else self.store(number)
        store.bulk_insert(times, columns)
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
        own = self._own[numbers] | (self._pages.rows_of_each(numbers) + lengths > self._small)
        if not own.any():
            self._pages.bulk_insert(numbers, lengths, rows)
            return
        ends = np.cumsum(lengths)
        for number, a, b in zip(numbers[own].tolist(), (ends - lengths)[own].tolist(), ends[own].tolist(), strict=True):
            # Copied: a forest keeps what it is given, and must not keep the other keys' rows alive with it.
            times, *columns = (column[a:b].copy() for column in rows)
            self.own_store(number).bulk_insert(times, columns)
        if not own.all():
            small = ~own
            rest = np.repeat(small, lengths)
            self._pages.bulk_insert(numbers[small], lengths[small], [column[rest] for column in rows])

    def reserve(self, numbers: Numbers, lengths: Numbers) -> None:
        """Have room for half of the entries that k keys are sent next, lengths >= 1 of each.

        So a key moves twice at most, and the memory for all of them is not taken beside what they come from.
        """
        small = ~self._own[numbers] & (self._pages.rows_of_each(numbers) + lengths <= self._small)
        self._pages.reserve(numbers[small], (lengths[small] + 1) // 2)

    def count_large(self, numbers: Numbers, lengths: Numbers) -> int:
        """How many of k keys, -1 for new ones, have a store of their own after they are sent so many entries each."""
        there = numbers >= 0
        entries, own = lengths.copy(), np.zeros(len(numbers), np.bool_)
        entries[there] += self._pages.rows_of_each(numbers[there])
        own[there] = self._own[numbers[there]]
        return int(np.count_nonzero((own | (entries > self._small)) & (lengths > 0)))

    # ---------------------------------------------------------------- evicting

    def bulk_evict(self, number: int, time: int) -> int:
        """Evict a key's rows with a time <= `time`; return how many entries they had."""
        store = self._own_stores.get(number)
        if store is None:
            return self._pages.bulk_evict(number, time)
        evicted = store.bulk_evict(time)
        self._note_evicted(number, store)
        return evicted

    def bulk_evict_each(self, numbers: Numbers, times: Numbers) -> Numbers:
        """Evict the rows of k keys with a time <= the key's of `times`; return how many entries of each, int64 (k,).

        Raises what loading a block does; then nothing has left.
        """
        stores = self._own_among(numbers)
        for i, store in stores:
            store.load_evicted(times.item(i))  # all blocks that are needed, before anything leaves
        evicted = self._pages.bulk_evict_each(numbers, times)
        for i, store in stores:
            evicted[i] = store.bulk_evict(times.item(i))
            self._note_evicted(numbers.item(i), store)
        return evicted

    def evict_between_each(self, numbers: Numbers, start: int, end: int) -> Numbers:
        """Remove the rows of k keys with start <= time <= end; return how many entries of each, int64 (k,).

        Raises what loading a block does; then nothing has left.
        """
        stores = self._own_among(numbers)
        for _, store in stores:
            store.load_between(start, end)  # all blocks that are needed, before anything leaves
        evicted = self._pages.evict_between_each(numbers, start, end)
        for i, store in stores:
            evicted[i] = store.evict_between(start, end)
            self._note_evicted(numbers.item(i), store)
        return evicted

    def load_named_steps(
        self, numbers: Numbers, lengths: Numbers, times: Array, column: int, values: Sequence[Any], most: int
    ) -> Steps[None]:
        """Load what `remove` and `correct` of named rows of k keys read: of key i the next lengths[i] names.

        Raises what loading a block does; nothing has changed then.

        Args:
            most: names of one step.
        """
        ends = np.cumsum(lengths)
        for i, store in self._own_among(numbers):
            stop = int(ends[i])
            for a in range(stop - int(lengths[i]), stop, most):
                b = min(a + most, stop)
                store.load_named(times[a:b], column, values[a:b])
                yield

    def reset_marks(self, numbers: Numbers) -> None:
        """Take the marks of k keys back to those of their newest rows, as if they had got only what they have."""
        self.now[numbers] = self.newest_each(numbers)
        self.late_through[numbers] = NEVER
        self.newest()  # `top` may have been of one of them

    def remove(self, number: int, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Remove named rows of a key; see `Forest.remove`."""
        store = self.store(number)
        found = store.remove(times, column, values)
        self._note_evicted(number, store)
        return found

    def evict_while(self, number: int, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of a key's oldest rows for which `holds`; see `Forest.evict_while`."""
        store = self.store(number)
        evicted = store.evict_while(holds)
        self._note_evicted(number, store)
        return evicted

    def evict(self, number: int, count: int) -> int:
        """Evict a key's oldest `count` >= 1 rows, of which it has as many.

        Returns:
            the time of the newest row that left.
        """
        store = self._own_stores.get(number)
        if store is None:
            return self._pages.evict(number, count)
        last = _evict(store, count)
        self._note_evicted(number, store)
        return last

    def evict_each(self, numbers: Numbers, counts: Numbers) -> Numbers:
        """Evict the oldest `counts` >= 1 rows of k keys; return the time of each key's newest that left."""
        last = np.empty(len(numbers), np.int64)
        for i, store in self._own_among(numbers):
            last[i] = _evict(store, counts.item(i))
            self._note_evicted(numbers.item(i), store)
        small = ~self._own[numbers]
        last[small] = self._pages.evict_each(numbers[small], counts[small])
        return last

    def _note_evicted(self, number: int, store: Forest | SmallKey) -> None:
        """Note a key from which rows have left and which has no more, if it has a store of its own."""
        if store.newest is None and self._own.item(number):
            self._maybe_empty.add(number)

    def sweep(self) -> None:
        """Free the memory of evicted blocks, some at a time."""
        for store in self._own_stores.values():
            store.sweep()

    # ---------------------------------------------------------------- other aggregates

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: the same columns and block size, other aggregates."""
        for store in self._own_stores.values():
            store.relayout(layout)
        self._use(layout)

    def relayout_steps(self, layout: Layout) -> Steps[None]:
        """As `relayout`, in steps; nobody may use the keys from the first to the last."""
        for store in list(self._own_stores.values()):
            yield from store.relayout_steps(layout)
            yield
        self._use(layout)

    def _use(self, layout: Layout) -> None:
        self._pages.relayout(layout)
        self._layout = layout

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials, for `Forest.check_invariants`; equality where None.
        """
        self._check_names()
        self._pages.check_invariants()
        named = set(self._numbers.values())
        assert np.flatnonzero(self._own).tolist() == sorted(self._own_stores), "`own` says which keys have a store"
        newest_each = []
        for number in range(len(self.now)):
            entries, now = self._pages.rows_of(number), self.now.item(number)
            if number not in named:
                assert not entries, f"key {number} does not exist, and has entries"
                assert number not in self._own_stores, f"key {number} does not exist, and has a store"
            elif number in self._own_stores:
                assert not entries, f"key {number} has its own store and {entries} rows in the pages"
                self._own_stores[number].check_invariants(same)
            assert entries <= self._small, f"key {number} has outgrown the pages with {entries} rows"
            _, newest = self.span(number)
            assert newest is None or newest <= now, f"key {number} has an entry at {newest}, newer than its now {now}"
            newest_each += [] if newest is None else [newest]
        assert self.filled == len(newest_each), f"{self.filled} keys are said to have entries, {len(newest_each)} do"
        latest = max(newest_each, default=NEVER)
        assert self.top >= latest, f"top is {self.top}, and an entry is of {latest}"
        assert self.newest() == max(newest_each, default=None), f"the newest entry is of {latest}"

    def _check_names(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        named = {number: name for number, name in enumerate(self._names) if name is not None}
        assert named == {number: name for name, number in self._numbers.items()}, "names and numbers are a bijection"
        assert sorted([*named, *self._unused]) == list(range(len(self._names))), "a number is named, or unused, once"
        for number in range(len(self.now)):
            if number not in named:
                marks = self.now.item(number), self.late_through.item(number)
                assert marks == (NEVER, NEVER), f"key {number} does not exist, and has marks"


def _evict(store: Forest | SmallKey, count: int) -> int:
    """Evict the oldest `count` >= 1 rows; return the time of the last that left."""
    if count > 1:
        store.evict(count - 1)
    last = store.oldest
    assert last is not None, "the store has as many rows"
    store.evict()
    return last
