"""The entries of each key of one window, and what is asked about them; keys.py explains where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.conditions import Condition, only_of
from sash_engine.windows.key_table import NEVER, KeyTable
from sash_engine.windows.key_totals import KeyTotals
from sash_engine.windows.pages import PAGES, Numbers, Pages
from sash_engine.windows.small_key import SmallKey
from sash_engine.windows.store import KeyStore

__all__ = ["KeyReader", "Own"]

Own = Callable[[Layout], KeyStore]
"""Makes an empty store for one key."""

PAGE_NAMES = 32_768
"""Names that one page of a listing looks at: 3 ms of a million's 100, where none of them fits the prefix."""

_NAMES_AT_ONCE = 1_024
_KEPT_BYTES = 40


class KeyReader(KeyTable):
    """The keys of one window, by number, and their entries.

    Args:
        layout: columns, aggregates and block size.
        pages: rows of the smallest and of the largest page, powers of two; None gives every key its own store.
        own: makes the store of a key that has its own.

    Attributes:
        kept_bytes: how many bytes of totals of a key may be kept between questions.
        top: no entry is newer; an insert of a newer one raises it. `NEVER` at first.

    Methods named `…_each` take k distinct numbers, int64 (k,), and are vectorised over those of small keys.
    """

    def __init__(self, layout: Layout, pages: tuple[int, int] | None = PAGES, own: Own = Forest) -> None:
        super().__init__()
        self._layout = layout
        self._new_store = own
        self.kept_bytes = _KEPT_BYTES
        self._own = np.empty(0, np.bool_)
        self._own_stores: dict[int, KeyStore] = {}
        self._pages = Pages(layout, *(pages or PAGES))
        self._small = self._pages.largest if pages else 0
        """A key with more rows than this has its own store."""
        self.top, self._top_of = NEVER, -1
        """The second is the key that had an entry of the first's time, and may have it still."""
        self._maybe_empty: set[int] = set()
        """Keys whose own store has lost all rows, and may have got new ones since; `filled` looks."""

    def _reach(self, n: int) -> None:
        super()._reach(n)
        if len(self.now) > len(self._own):
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

    def names_filled(self, floor: int = NEVER) -> list[str]:
        """The names of keys with entries newer than `floor`, in the order in which they were created."""
        there = self.newest_each(self.numbers()) > floor
        return list(compress(self._numbers, there.tolist()))

    def page(self, prefix: str, limit: int, position: int, floor: int = NEVER) -> tuple[list[str], int | None]:
        """As `page_steps`, of all keys, at once: the time does not depend on how many keys there are."""
        return finished(self.page_steps(prefix, limit, position, floor))

    def page_steps(
        self,
        prefix: str,
        limit: int,
        position: int,
        floor: int = NEVER,
        conditions: Sequence[Condition] = (),
        newest_each: Callable[[Numbers], Numbers] | None = None,
    ) -> Steps[tuple[list[str], int | None]]:
        """Up to `limit` names that start with `prefix`, by number from `position` on, and where to go on.

        Only keys with entries newer than `floor` are named. No more than `PAGE_NAMES` are looked at, whatever was asked
        for; None where there are no more.

        Args:
            conditions: only keys for which all of these hold are named. They are asked about keys with the prefix.
            newest_each: the times of the newest rows of keys, of those rows that count; None: all do.
        """
        newest_each, among = newest_each or self.newest_each, only_of(conditions)
        candidates = range(position, len(self._names)) if among is None else among[among.searchsorted(position) :]
        looked = candidates[:PAGE_NAMES]
        stop, found = int(looked[-1]) + 1 if len(looked) else 0, list[str]()
        for start in range(0, len(looked), _NAMES_AT_ONCE):
            fit = [
                number
                for number in map(int, looked[start : start + _NAMES_AT_ONCE])
                if (name := self._names[number]) is not None and name.startswith(prefix)
            ]
            numbers = np.array(fit, np.int64)
            numbers = numbers[newest_each(numbers) > floor]
            for condition in conditions:
                numbers = yield from condition.kept(numbers)
            if len(found) + len(numbers) >= limit:
                numbers = numbers[: limit - len(found)]
                stop = int(numbers[-1]) + 1
                found += map(self.name, numbers.tolist())
                break
            found += map(self.name, numbers.tolist())
            yield
        return found, stop if len(candidates) and stop <= candidates[-1] else None

    # ---------------------------------------------------------------- stores

    def store(self, number: int) -> KeyStore:
        """What keeps the entries of a key: its own store, or a view of the pages.

        Entries may leave it, but enter it by `insert` and `bulk_insert` of the keys only.
        """
        store = self._own_stores.get(number)
        return SmallKey(self._pages, number) if store is None else store

    def own_stores(self) -> Iterable[KeyStore]:
        """The stores of all keys that have their own."""
        return self._own_stores.values()

    def any_own(self, numbers: Numbers) -> bool:
        """Whether one of some keys has a store of its own."""
        return bool(self._own_stores) and bool(self._own[numbers].any())

    def with_own_stores(self, numbers: Numbers) -> Iterator[tuple[int, KeyStore]]:
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

    def _own_among(self, numbers: Numbers) -> list[tuple[int, KeyStore]]:
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

    def query(self, number: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them, in the order of the layout's names."""
        store = self._own_stores.get(number)
        if store is not None:
            return len(store), store.query(part)
        entries, layout = self._pages.entries(number), self._layout if part is None else part
        return entries, layout.lower(entries, self._pages.totals(number, part))

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest row, in ticks; None where it has none."""
        store = self._own_stores.get(number)
        if store is not None:
            return store.oldest, store.newest
        return self._pages.oldest(number), self._pages.newest(number)

    def range_query(self, number: int, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of a key's entries with start <= time <= end, and the answers over them."""
        entries, partials = self.range_totals(number, start, end, part)
        return entries, (self._layout if part is None else part).lower(entries, partials)

    def totals(self, number: int, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries of a key, one per slot."""
        return self.store(number).totals(part)

    def range_totals(self, number: int, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        store = self._own_stores.get(number)
        if store is None:
            return self._pages.range_totals(number, start, end, part)
        return store.range_totals(start, end, part)

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
