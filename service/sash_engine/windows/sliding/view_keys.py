"""The keys of a window as a view shows them: of each key the entries that are newer than some time.

    Reader, GroupReader, …  ──▶ ReadableKeys    Keys         all entries
                                                ViewKeys     the newest ones of each key
                            ──▶ Now             Slide, or ViewSlide
                            ──▶ ReadableStore   Forest, SmallKey, or Newer: a forest without what is too old

    key "JFK"   source  [ . . . . . . . . . . . ]
                view            after | . . . . ]        time > after: what max_age keeps, whatever the source keeps
                                                         entries and partials stay where they are: in the source

Ranges begin no sooner than behind `after`; everything over a key is a range. Only aggregates of the view are folded.

Each answer costs what the same range costs in the source. The number of filled keys takes a look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sash_engine.forest import Forest, Layout, RowSlice
from sash_engine.forest.series import answers_of, free_steps
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.ragged import sums
from sash_engine.windows.keys.small_key import SmallKey
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.window import WindowSpec

_LAST = 2**63 - 1
"""No row is newer."""


class ViewSlide:
    """The slide of a view: the part of each key that it shows. Now is that of its source.

    Args:
        spec: of the view.
        source: the slide of the window that has the entries; on wall time it evicts from there.
        keys: of that window.
        whole: whether the view has all entries.

    Attributes:
        whole: as it was given.
    """

    def __init__(self, spec: WindowSpec, source: Slide, keys: Keys, whole: bool) -> None:
        self._source, self._keys, self.whole = source, keys, whole
        self._max_age = None if whole else spec.max_age_ticks
        self._every = spec.every_ticks or 1
        self.wall, self.until = source.wall, source.until
        self._rests_at: int | None = None

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final."""
        return self._source.punctuated

    def now(self) -> int:
        """Wall time in ticks."""
        return self._source.now() if self._rests_at is None else self._rests_at

    def rest(self) -> None:
        """Let wall time stand still."""
        self._rests_at = self._source.now()

    def _kept(self, now: Any) -> Any:
        """How far back the view reaches from some now, or nows; see `Slide.through`."""
        assert self._max_age is not None
        return self._max_age - (self._every - 1 - now % self._every)

    def after(self, number: int) -> int:
        """The view has only entries of a key that are newer."""
        if self._max_age is None:
            return NEVER
        now = self.now() if self.wall else self.punctuated if self.until else self._keys.now_of[number]
        return max(int(now) - int(self._kept(now)), NEVER)

    def after_each(self, numbers: Numbers) -> Numbers:
        """As `after`, of many keys."""
        after = np.full(len(numbers), NEVER)
        if self._max_age is None:
            return after
        if self.wall or self.until:
            after[:] = self.after(-1)
            return after
        now = self._keys.now[numbers]
        known = now > NEVER + self._kept(now)
        after[known] = (now - self._kept(now))[known]
        return after

    def late_through(self) -> int:
        """Entries of this time and older are in no key, by wall time; else `NEVER`."""
        if self._max_age is None:
            return self._source.late_through()
        return self.after(-1) if self.wall else NEVER

    def gone_through(self) -> int:
        """Entries of this time and older are in no key; `NEVER` where each key has a now of its own."""
        if self._max_age is None:
            return self._source.gone_through()
        return self.after(-1) if self.wall or self.until else NEVER

    def evicted_through(self) -> int | None:
        """No newer entry has left the view by its slide; None if none has."""
        if self._max_age is None:
            return self._source.evicted_through()
        through = int(self.after_each(self._keys.written()).max(initial=NEVER))
        return None if through == NEVER else through

    def by_age(self, number: int) -> None:
        """Evict entries of one key from the source that are too old there."""
        self._source.by_age(number)

    def by_age_each(self, numbers: Numbers) -> None:
        """As `by_age`, of many keys."""
        self._source.by_age_each(numbers)


class Newer:
    """The rows of a forest that are newer than a time; its methods are those of `Forest`."""

    __slots__ = ("_after", "_count", "_layout", "_store")

    def __init__(self, store: Forest, layout: Layout, count: Layout, after: int) -> None:
        self._store, self._layout, self._count, self._after = store, layout, count, after

    def __len__(self) -> int:
        rows = self._layout.rows_are_entries
        return self._store.count_after(self._after) if rows else self.range_totals(NEVER, _LAST, self._count)[0]

    @property
    def oldest(self) -> int | None:
        """Time of the oldest row, in ticks; None where empty."""
        oldest = self._store.oldest
        return oldest if oldest is None or oldest > self._after else self._store.neighbours(self._after)[1]

    @property
    def newest(self) -> int | None:
        """Time of the newest row, in ticks; None where empty."""
        newest = self._store.newest
        return None if newest is None or newest <= self._after else newest

    def totals(self, part: Layout | None = None) -> list[Partial]:
        """The partials over all entries, one per slot."""
        return self.range_totals(NEVER, _LAST, part)[1]

    def range_query(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of entries with start <= time <= end, and the answers over them."""
        part = self._layout if part is None else part
        entries, partials = self.range_totals(start, end, part)
        return entries, part.lower(entries, partials)

    def range_totals(self, start: int, end: int, part: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        part = self._layout if part is None else part
        return self._store.range_totals(max(start, self._after + 1), end, part)

    def series_steps(self, starts: Array, stops: Array, part: Layout | None = None) -> Steps[tuple[Array, list[Array]]]:
        """Answer over many ranges of time, in steps."""
        part = self._layout if part is None else part
        entries, filled, partials = yield from self.fold_steps(starts, stops, part)
        answers = yield from answers_of(part, partials, filled, entries)
        yield from free_steps(partials)
        return part.counted(entries, answers)

    def capture(self, start: int | None, end: int | None) -> list[RowSlice]:
        """The rows with start <= time <= end (None: no bound) as they are now, to be read later."""
        first = self._after + 1 if start is None else max(start, self._after + 1)
        return self._store.capture(first, end) if end is None or first <= end else []

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._store.count_after(self._after)

    def columns(self) -> list[Array]:
        """All rows as columns."""
        rows = self._store.columns()
        first = int(rows[0].searchsorted(self._after, "right"))
        return [column[first:] for column in rows]

    def fold_steps(
        self, starts: Array, stops: Array, part: Layout | None = None
    ) -> Steps[tuple[Array, Array, list[Partials]]]:
        """Fold many ranges of time, in steps."""
        return self._store.fold_steps(np.maximum(starts, self._after + 1), np.maximum(stops, self._after + 1), part)


class ViewKeys:
    """The keys of a view; its methods are those of `Keys`.

    Args:
        keys: of the source.
        layout: of the source, with the answers of the view.
        slide: says which entries the view has.

    Attributes:
        layout: as it was given.
    """

    def __init__(self, keys: Keys, layout: Layout, slide: ViewSlide) -> None:
        self._keys, self._slide = keys, slide
        self.layout, self._lean = layout, layout.lean()
        self._count = layout.only([] if layout.rows_are_entries else [0])
        """What counts entries; the first slot of panes does."""
        # Of the source: names and numbers of keys, and what says where their rows are.
        self.find, self.find_each, self.name = keys.find, keys.find_each, keys.name
        self.names, self.names_of, self.numbers, self.chunks = keys.names, keys.names_of, keys.numbers, keys.chunks
        self.any_own, self.shared_rows = keys.any_own, keys.shared_rows
        self.layout_of, self.kept_totals = keys.layout_of, keys.kept_totals

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def numbered(self) -> int:
        """All numbers of keys are below this one."""
        return self._keys.numbered

    @property
    def now(self) -> Numbers:
        """By number, the newest time that was ever inserted."""
        return self._keys.now

    @property
    def now_of(self) -> Sequence[int]:
        """The same memory for access to one."""
        return self._keys.now_of

    @property
    def touched(self) -> Numbers:
        """By number, when a key was last written."""
        return self._keys.touched

    @property
    def late_through(self) -> Numbers:
        """By number: entries of this time and older would come too late for the view."""
        if self._slide.whole:
            return self._keys.late_through
        through, numbers = np.full(len(self.now), NEVER), self.numbers()
        through[numbers] = self._slide.after_each(numbers)
        return through

    # ---------------------------------------------------------------- one key

    def store(self, number: int) -> Newer:
        """The entries of a key, as far as the view has them."""
        store = self._keys.store(number)
        if not isinstance(store, Forest):
            times, *columns = store.columns()
            store = Forest(self.layout)  # of at most 64 rows
            store.bulk_insert(times, columns)
        return self._newer(number, store)

    def _newer(self, number: int, store: Forest) -> Newer:
        return Newer(store, self._lean, self._count, self._slide.after(number))

    def entries(self, number: int) -> int:
        """How many entries a key has."""
        if self._slide.after(number) == NEVER:
            return self._keys.entries(number)
        return self.range_totals(number, NEVER, _LAST, self._count)[0]

    def query(self, number: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """How many entries a key has, and the answers over them."""
        return self.range_query(number, NEVER, _LAST, some)

    def span(self, number: int) -> tuple[int | None, int | None]:
        """Times of a key's oldest and newest row; None where it has none."""
        oldest, newest = self._keys.span(number)
        after = self._slide.after(number)
        if newest is None or newest <= after:
            return None, None
        if oldest is not None and oldest <= after:
            oldest = self._keys.store(number).neighbours(after)[1]
        return oldest, newest

    def range_query(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Any]]:
        """The number of a key's entries with start <= time <= end, and the answers over them."""
        some = self._lean if some is None else some
        entries, partials = self.range_totals(number, start, end, some)
        return entries, some.lower(entries, partials)

    def totals(self, number: int, some: Layout | None = None) -> list[Partial]:
        """The partials over all entries of a key, one per slot."""
        return self.range_totals(number, NEVER, _LAST, some)[1]

    def range_totals(self, number: int, start: int, end: int, some: Layout | None = None) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end, and their partials."""
        some = self._lean if some is None else some
        return self._keys.range_totals(number, max(start, self._slide.after(number) + 1), end, some)

    def answers_steps(
        self, numbers: Numbers, lengths: Numbers, starts: Array, stops: Array, some: Layout | None = None
    ) -> Steps[tuple[Array, list[Array]]]:
        """Answer over many ranges of time of k keys, in steps."""
        after = np.full(len(starts), NEVER)
        after[len(after) - int(lengths.sum()) :] = np.repeat(self._slide.after_each(numbers) + 1, lengths)
        some = self._lean if some is None else some
        return self._keys.answers_steps(numbers, lengths, np.maximum(starts, after), np.maximum(stops, after), some)

    # ---------------------------------------------------------------- several keys

    @property
    def filled(self) -> int:
        """How many keys have entries: it takes a look at all of them."""
        return int(np.count_nonzero(self.filled_each(self.numbers())))

    def newest(self) -> int | None:
        """Time of the newest entry of all keys; None where there is none."""
        newest = int(self.newest_each(self.numbers()).max(initial=NEVER))
        return None if newest == NEVER else newest

    def with_own_stores(self, numbers: Numbers) -> Iterator[tuple[int, Newer]]:
        """Of some keys those that have a store of their own: number, store."""
        for number, store in self._keys.with_own_stores(numbers):
            yield number, self._newer(number, store)

    def small(self, numbers: Numbers) -> tuple[Numbers, Numbers, list[Array]]:
        """The entries of those of some keys that share pages."""
        numbers, lengths, rows = self._keys.small(numbers)
        inside = rows[0] > np.repeat(self._slide.after_each(numbers), lengths)
        if inside.all():
            return numbers, lengths, rows
        lengths = sums(inside, lengths)
        filled = lengths > 0
        return numbers[filled], lengths[filled], [column[inside] for column in rows]

    def entries_each(self, numbers: Numbers) -> Numbers:
        """How many entries k keys have, int64 (k,)."""
        entries = self._keys.entries_each(numbers)
        shared = np.flatnonzero(self._keys.shared_rows(numbers))
        clipped = shared[~self.whole_each(numbers[shared])]
        some = numbers[clipped]
        found = dict.fromkeys(some.tolist(), 0)
        small, lengths, rows = self.small(some)
        if len(small):
            firsts = np.cumsum(lengths) - lengths
            weights = lengths if self.layout.rows_are_entries else np.add.reduceat(rows[1], firsts)
            found |= dict(zip(small.tolist(), weights.tolist(), strict=True))
        entries[clipped] = [found[number] for number in some.tolist()]
        if not self._slide.whole:
            place = {number: i for i, number in enumerate(numbers.tolist())}
            for number, store in self.with_own_stores(numbers):
                entries[place[number]] = len(store)
        return entries

    def newest_each(self, numbers: Numbers) -> Numbers:
        """Times of the newest rows of k keys, int64 (k,); `NEVER` where a key has none."""
        newest = self._keys.newest_each(numbers)
        newest[newest <= self._slide.after_each(numbers)] = NEVER
        return newest

    def oldest_each(self, numbers: Numbers) -> Numbers:
        """Times of the oldest rows of k keys, int64 (k,); the greatest int64 where a key has none."""
        oldest = self._keys.oldest_each(numbers)
        clipped = np.flatnonzero(oldest <= self._slide.after_each(numbers))
        if len(clipped):
            some = numbers[clipped]
            found = dict.fromkeys(some.tolist(), _LAST)
            small, lengths, rows = self.small(some)
            if len(small):
                found |= dict(zip(small.tolist(), rows[0][np.cumsum(lengths) - lengths].tolist(), strict=True))
            for number, store in self.with_own_stores(some):
                first = store.oldest
                found[number] = _LAST if first is None else first
            oldest[clipped] = [found[number] for number in some.tolist()]
        return oldest

    def filled_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of k keys have entries, bool (k,)."""
        filled: npt.NDArray[np.bool_] = self.newest_each(numbers) > NEVER
        return filled

    def whole_each(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of k keys count with all of their rows, bool (k,)."""
        after = self._slide.after_each(numbers)
        if (after == NEVER).all():
            return self._keys.whole_each(numbers)
        whole: npt.NDArray[np.bool_] = self._keys.oldest_each(numbers) > after
        return whole

    def rows_each(
        self, numbers: Numbers, counts: Numbers, wanted: Sequence[int], start: Numbers | None, end: Numbers | None
    ) -> tuple[Numbers, list[Array]]:
        """The rows of k keys in shared pages, as far as the view has them."""
        after = self._slide.after_each(numbers)
        if start is None and (after == NEVER).all():
            return self._keys.rows_each(numbers, counts, wanted, start, end)
        start = after + 1 if start is None else np.maximum(start, after + 1)
        end = np.full(len(numbers), _LAST) if end is None else end
        return self._keys.rows_each(numbers, counts, wanted, start, end)


ReadableKeys: TypeAlias = Keys | ViewKeys
"""The keys of a window, and their entries, as questions see them."""
ReadableStore: TypeAlias = Forest | SmallKey | Newer
"""The entries of one of these keys."""
Now: TypeAlias = Slide | ViewSlide
"""What questions need of a slide: now, and the entries that leave while nothing is written."""
