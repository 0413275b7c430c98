"""The entries of each key of one window, and what is asked about them; keys.py explains where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from typing import Any

import numpy as np

from sash_engine.forest import Layout
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.windows.key_table import NEVER, KeyTable
from sash_engine.windows.pages import PAGES, Numbers
from sash_engine.windows.small_key import SmallKey
from sash_engine.windows.store import KeyStore
from sash_engine.windows.stores import EntryStores, Stores

__all__ = ["KeyReader"]

PAGE_NAMES = 32_768
"""Names that one call of `KeyReader.page` looks at: 3 ms of a million's 100, where none of them fits the prefix."""

_NAMES_AT_ONCE = 1_024


class KeyReader(KeyTable):
    """The keys of one window, by number, and their entries.

    Args:
        layout: columns, aggregates and block size.
        pages: rows of the smallest and of the largest page, powers of two; None gives every key its own store.
        stores: makes the stores and the pages; None: forests and pages of entries, in memory.

    Attributes:
        top: no entry is newer; an insert of a newer one raises it. `NEVER` at first.

    Methods named `…_each` take k distinct numbers, int64 (k,), and are vectorised over those of small keys.
    """

    def __init__(self, layout: Layout, pages: tuple[int, int] | None = PAGES, stores: Stores | None = None) -> None:
        super().__init__()
        self._stores = EntryStores() if stores is None else stores
        self._layout = layout
        self._own = np.empty(0, np.bool_)
        self._own_stores: dict[int, KeyStore] = {}
        self._pages = self._stores.pages(layout, *(pages or PAGES))
        self._small = self._pages.largest if pages else 0
        """A key with more rows than this has its own store."""
        self.top, self._top_of = NEVER, -1
        """The second is the key that had an entry of the first's time, and may have it still."""
        self._hollow: set[int] = set()
        """Keys whose own store has lost all rows, and may have got new ones since; `filled` looks."""

    def _reach(self, n: int) -> None:
        super()._reach(n)
        if len(self.now) > len(self._own):
            self._own = np.concatenate((self._own, np.zeros(len(self.now) - len(self._own), np.bool_)))
            self._pages.reach(len(self.now))

    @property
    def filled(self) -> int:
        """How many keys have entries."""
        self._hollow = {number for number in self._hollow if self._own_stores[number].newest is None}
        return self._pages.filled + len(self._own_stores) - len(self._hollow)

    def newest(self) -> int | None:
        """Time of the newest entry of all keys, in ticks; None where there is none.

        O(1) unless the newest entry has left since the last call; then O(keys), 30 ms for a million small ones.
        """
        if self.top != NEVER and self.store(self._top_of).newest != self.top:
            newest = self.newest_each(np.arange(len(self._names)))
            self._top_of = int(newest.argmax())
            self.top = newest.item(self._top_of)
        return None if self.top == NEVER else self.top

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

    # ---------------------------------------------------------------- stores

    def store(self, number: int) -> KeyStore:
        """What keeps the entries of a key: its own store, or a view of the pages.

        Entries may leave it, but enter it by `insert` and `bulk_insert` of the keys only.
        """
        store = self._own_stores.get(number)
        return SmallKey(self._pages, number, self._in_memory) if store is None else store

    def own_stores(self) -> Iterable[KeyStore]:
        """The stores of all keys that have their own."""
        return self._own_stores.values()

    def with_own_stores(self, numbers: Numbers) -> Iterator[tuple[int, KeyStore]]:
        """Of some keys those that have a store of their own: number, store."""
        return ((number, self._own_stores[number]) for number in numbers[self._own[numbers]].tolist())

    def small(self, numbers: Numbers) -> tuple[Numbers, Numbers, list[Array]]:
        """The entries of those of some keys that share pages.

        Returns:
            the numbers of those that have entries, int64 (k,); how many each has, int64 (k,); and their rows as
            columns (copies), as `bulk_insert_each` takes them.
        """
        lengths = self._pages.entries_each(numbers)
        numbers, lengths = numbers[lengths > 0], lengths[lengths > 0]
        return numbers, lengths, self._pages.rows(numbers)

    def _own_among(self, numbers: Numbers) -> list[tuple[int, KeyStore]]:
        """The places in `numbers` of keys that have their own store, and it."""
        if not self._own_stores:
            return []
        places = np.flatnonzero(self._own[numbers])
        found = map(self._own_stores.__getitem__, numbers[places].tolist())
        return list(zip(places.tolist(), found, strict=True))

    def _in_memory(self) -> KeyStore:
        return self._stores.in_memory(self._layout)

    # ---------------------------------------------------------------- one key

    def entries(self, number: int) -> int:
        """How many entries a key has."""
        store = self._own_stores.get(number)
        return self._pages.weight(number) if store is None else len(store)

    def query(self, number: int) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them, in the order of the layout's names."""
        store = self.store(number)
        return len(store), store.query()

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest row, in ticks; None where it has none."""
        store = self.store(number)
        return store.oldest, store.newest

    def range_query(self, number: int, start: int, end: int) -> tuple[int, list[Any]]:
        """The number of a key's entries with start <= time <= end, and the answers over them."""
        return self.store(number).range_query(start, end)

    def totals(self, number: int) -> list[Partial]:
        """The partials over all entries of a key, one per slot."""
        return self.store(number).totals()

    def range_totals(self, number: int, start: int, end: int) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        return self.store(number).range_totals(start, end)

    def columns(self, number: int) -> list[Array]:
        """A key's rows as columns (copies): times, then one array per column after."""
        return self.store(number).columns()

    # ---------------------------------------------------------------- several keys

    def entries_each(self, numbers: Numbers) -> Numbers:
        """How many entries k keys have, int64 (k,)."""
        entries = self._pages.weights(numbers)
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

    def totals_each(self, numbers: Numbers) -> tuple[Numbers, list[Partials]]:
        """The totals of k keys as columns.

        Returns:
            how many entries each has, int64 (k,); and per slot the partials of those that have any, in the order of
            `numbers`.
        """
        return self._gathered(numbers, self._pages.totals_each, lambda store: (len(store), store.totals()))

    def range_totals_each(self, numbers: Numbers, start: int, end: int) -> tuple[Numbers, list[Partials]]:
        """As `totals_each`, over entries with start <= time <= end only."""
        return self._gathered(
            numbers,
            lambda small: self._pages.range_totals_each(small, start, end),
            lambda store: store.range_totals(start, end),
        )

    def _gathered(
        self,
        numbers: Numbers,
        of_pages: Callable[[Numbers], tuple[Numbers, list[Partials]]],
        of_store: Callable[[KeyStore], tuple[int, list[Partial]]],
    ) -> tuple[Numbers, list[Partials]]:
        """Ask the pages once and each own store, and put the partials in the order of `numbers`."""
        entries, columns = of_pages(numbers)  # a key with its own store has nothing there
        places, partials = np.flatnonzero(entries), []
        large = []
        for i, store in self._own_among(numbers):
            entries[i], totals = of_store(store)
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

    def series(self, numbers: Numbers, starts: Array, stops: Array) -> tuple[Array, list[Array]]:
        """Answer over many time ranges at once, over the entries of k keys together; see `Forest.series`.

        The rows in range of several keys are copied into one store first.
        """
        if len(numbers) == 1:
            return self.store(numbers.item()).series(starts, stops)
        together = self._in_memory()
        first, behind = int(starts.min(initial=NEVER + 1)), int(stops.max(initial=NEVER + 1))
        for number in numbers.tolist():
            times, *columns = self.columns(number)
            a, b = times.searchsorted((first, behind), "left").tolist()
            together.bulk_insert(times[a:b], [column[a:b] for column in columns])
        return together.series(starts, stops)
