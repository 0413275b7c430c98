"""Keys: the entries of each key of one window, small keys together, large ones on their own.

    "JFK" ─▶ 0 ─▶ its own store       names ─▶ numbers and marks: key_table.py
    "LGA" ─▶ 1 ─▶ page of 16          own[i]: key i has a store of its own, else its rows (if any) are in pages
    "EWR" ─▶ 2 ─▶ page of 4

A key begins in the pages (pages.py). It gets a store of its own (store.py), a forest unless the window names an
algorithm, with the first entry that no page has room for, and keeps it. So a million keys of ten entries need a few
hundred bytes each, and a bulk over many of them is a few vectorised passes. For a larger key an answer costs the same
whatever its size.

Example: pages of at most 64 rows. 70 entries to key 1: a forest. 60 entries to key 2: a page of 64. Five more to
key 2: its 60 entries move to a forest, the five follow, and its page is free.

Insert of m entries for k small keys: O(m) in vectorised passes; a key with its own store costs a few µs more.
Query: O(entries) of a small key, which are at most 64; else as the store's.  Space: see pages.py and forest.py.

A key without entries is remembered with its marks, but it is not *filled*: it is neither listed nor counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.key_reader import KeyReader
from sash_engine.windows.key_table import NEVER, UNKEYED
from sash_engine.windows.pages import Numbers
from sash_engine.windows.store import KeyStore, Same

__all__ = ["NEVER", "UNKEYED", "Keys"]


class Keys(KeyReader):
    """The keys of one window, with what changes their entries; the arguments are those of `KeyReader`.

    >>> from sash_engine.forest import Layout
    >>> from sash_engine.monoids import Sum
    >>> keys = Keys(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> [jfk] = keys.create(["JFK"]).tolist()
    >>> keys.insert(jfk, 5, (20.0,))
    >>> keys.insert(jfk, 3, (1.0,))
    >>> keys.find("JFK") == jfk, keys.query(jfk), keys.range_query(jfk, 4, 9), keys.span(jfk)
    (True, (2, [21.0]), (1, [20.0]), (3, 5))
    """

    # ---------------------------------------------------------------- stores

    def own_store(self, number: int) -> KeyStore:
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
        """Give a key without entries a forest, with what is in it: see `KeyStore.forest`."""
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
        self._forget(numbers)
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
        """Insert m >= 1 rows of one key: see `KeyStore.bulk_insert`."""
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

    def count_large(self, numbers: Numbers, lengths: Numbers) -> int:
        """How many of k keys, -1 for new ones, have a store of their own after they are sent so many entries each."""
        there = numbers >= 0
        entries, own = lengths.copy(), np.zeros(len(numbers), np.bool_)
        entries[there] += self._pages.rows_of_each(numbers[there])
        own[there] = self._own[numbers[there]]
        return int(np.count_nonzero((own | (entries > self._small)) & (lengths > 0)))

    def replace(self, number: int, times: Array, columns: Sequence[Array]) -> None:
        """Give rows of a key other values: see `KeyStore.replace`."""
        self.store(number).replace(times, columns)

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

    def remove(self, number: int, times: Array, column: int, values: Sequence[Any]) -> Array:
        """Remove named rows of a key; see `KeyStore.remove`."""
        store = self.store(number)
        found = store.remove(times, column, values)
        self._note_evicted(number, store)
        return found

    def evict_while(self, number: int, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of a key's oldest rows for which `holds`; see `KeyStore.evict_while`."""
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

    def _note_evicted(self, number: int, store: KeyStore) -> None:
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
        """As `relayout`, in steps, where all stores are forests; nobody may use the keys from the first to the last."""
        for store in list(self._own_stores.values()):
            yield from store.forest.relayout_steps(layout)
            yield
        self._use(layout)

    def _use(self, layout: Layout) -> None:
        self._pages.relayout(layout)
        self._layout = layout

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials, for `KeyStore.check_invariants`; equality where None.
        """
        super().check_invariants()
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


def _evict(store: KeyStore, count: int) -> int:
    """Evict the oldest `count` >= 1 rows; return the time of the last that left."""
    if count > 1:
        store.evict(count - 1)
    last = store.oldest
    assert last is not None, "the store has as many rows"
    store.evict()
    return last
