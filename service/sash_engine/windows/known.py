"""What was known when: the arrival of each entry, and the entries that were retracted or corrected since.

    writes    insert a   insert b, c   retract b   correct a     5 applied: a question now is known at 5
    number        1          2, 3          4           5

    window    a' arrived 5   c arrived 3                              what counts now
    removed   b  2 .. 4      a  1 .. 5 (placed 1)                     what counted before: arrived <= K < removed

The number of an arrival is how many entries the window had inserted, retracted and corrected by then, so it follows
from the counts, and a replay gives the same numbers. It is a column of each entry; the newest one of each block and
node is a partial like others.

An answer known at K is the fold of the entries of the window that arrived at K or before, and of the removed ones that
were there at K. Where no entry of a range arrived later, and none was removed later, it is the answer as it is now.
Else only the blocks with such entries are opened:

    newest      [   7 ] [   9 ] [  31 ] [  12 ] [  40 ]       known at 12
    range           |-----------|-------|------------|
                     folded      opened  folded  opened

A corrected entry stays in its place among those of its time: its earlier versions say by the number by which they were
removed which entry of the window followed them, and all have the number of the first one, `placed`.

Costs: O(log n) more where nothing came later; else O(blocks of the range), and the rows of those that are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.forest import Cold, Forest, Layout, RangeAnswers
from sash_engine.monoids import Max, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Counts
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.ragged import ragged
from sash_engine.windows.keys.store import Same
from sash_engine.windows.spec.policies import AggregateSpec, OrderPolicy, SlidePolicy
from sash_engine.windows.spec.window import ARRIVAL, PLACED, REMOVED, TICK_MAX, TICK_MIN, WindowSpec

__all__ = ["Known", "no_known", "numbered_spec", "removed_spec"]

_NEWEST = (Max("int64"), (ARRIVAL,))
_ROWS = 65_536
"""Rows that one step looks at, unless one range has more."""
_SCANNED = 4_096
"""Rows of a key that are read at once to find entries by their names; of a larger key, those of each time."""
_RANGES = 16
"""Ranges over blocks that one step answers."""
_OPENED = 64
"""Runs of opened blocks that are kept from range to range."""


def removed_spec(spec: WindowSpec) -> WindowSpec:
    """The spec of the window that keeps what was removed; nobody could write it."""
    fields = {**spec.kept_columns, PLACED: "int64", REMOVED: "int64"}
    newest = AggregateSpec(function="max", field=REMOVED)
    others: dict[str, Any] = dict.fromkeys(("nullable", "history", "identity", "known", "durability"))
    others |= {"fields": fields, "aggregates": {REMOVED: newest}, "slide": SlidePolicy(), "order": OrderPolicy()}
    return spec.model_copy(update=others)


def numbered_spec(spec: WindowSpec, known: str) -> WindowSpec:
    """The spec by which entries are shown with their numbers; `known` as of `EntriesQuery`.

    Raises:
        InvalidArgument: `known` is neither "kept" nor "removed".
    """
    if known == "removed":
        return removed_spec(spec)
    if known != "kept":
        raise InvalidArgument(f"known {known[:80]!r} is unknown", field="known", limit="kept or removed")
    return spec.model_copy(update={"fields": spec.kept_columns, "nullable": None, "known": None})


def no_known(name: str) -> Unsupported:
    """The error for a question with `known_at` to a window that does not keep what was known when."""
    return Unsupported(
        f"window {name!r} does not keep what was known when: its spec has no known: arrival", field="known_at"
    )


class Removed(Protocol):
    """The window of what was removed, see `Window`."""

    keys: Keys
    counts: Counts
    layout: Layout
    cold: Cold | None

    def cut(self, number: int, time: int) -> None:
        """Remove entries of a key with time <= `time`, and take no more of them."""

    def feed_steps(self, numbers: Numbers, columns: Sequence[Array]) -> Steps[None]:
        """Insert rows of keys that are there."""

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""


class Known:
    """The arrivals of one window.

    Args:
        spec, keys, counts: of the window.
        removed: the window of what was removed, see `removed_spec`.
        cold: where the window keeps its sealed blocks; None: in memory.
    """

    def __init__(self, spec: WindowSpec, keys: Keys, counts: Counts, removed: Removed, cold: Cold | None) -> None:
        self.removed, self._cold = removed, cold
        self._spec, self._keys, self._counts = spec, keys, counts

    @property
    def number(self) -> int:
        """The number of the newest arrival, retraction or correction; 0 before the first."""
        counts = self._counts
        return counts.inserted + counts.retracted + counts.corrected

    def numbers(self, applied: int, n: int) -> Array:
        """The numbers of n more, int64 (n,), of a write that has applied so many, which are not counted yet."""
        first = self.number + applied + 1
        return np.arange(first, first + n)

    def check(self, known_at: int) -> None:
        """Raise InvalidArgument for a number that has not been given yet."""
        if not 0 <= known_at <= self.number:
            raise InvalidArgument(
                f"known_at {known_at} is no number of an arrival", field="known_at", limit=f"0 to {self.number}"
            )

    def check_invariants(self, same: Same | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same` as in `Keys.check_invariants`."""
        self.removed.check_invariants(same)
        for number in self._keys.numbers().tolist():
            arrived = self._keys.columns(number)[-1]
            assert not len(arrived) or 1 <= arrived.min() <= arrived.max() <= self.number, "arrivals were given"
            assert len(np.unique(arrived)) == len(arrived), "each entry has an arrival of its own"
        for number in self.removed.keys.numbers().tolist():
            *_, arrived, placed, removed = self.removed.keys.columns(number)
            assert ((placed <= arrived) & (arrived < removed) & (removed <= self.number)).all(), "what was, has left"

    # ---------------------------------------------------------------- writing

    def keep(
        self, number: int, times: Array, column: int, identities: Sequence[Any], once: bool, applied: int
    ) -> Array:
        """Keep the rows of a key that are about to be removed or corrected.

        Args:
            times, column, identities: name the rows, as in `KeyStore.remove`; the times are sorted.
            once: whether a row has one name only, as in a retraction.
            applied: how many changes of the write were applied before.

        Returns:
            the numbers of the changes, int64 (m,), by name; those of names that no row has mean nothing.
        """
        first = self.number + applied + 1
        numbers = np.full(len(times), first)
        found: dict[tuple[int, Any], list[list[Array]]] = {}
        wanted, store = np.unique(times), self._keys.store(number)
        if len(store) <= _SCANNED:
            spans = [(int(wanted[0]), int(wanted[-1]))]
        else:
            spans = [(time, time) for time in wanted.tolist()]
        names = set(zip(times.tolist(), identities, strict=True))
        for start, end in spans:
            rows = _rows(self._keys, number, start, end, self._cold)
            for i, name in enumerate(zip(rows[0].tolist(), rows[column].tolist(), strict=True)):
                if name in names:
                    found.setdefault(name, []).append([each[i : i + 1] for each in rows])
        kept, changes, change = list[list[Array]](), list[int](), first
        places: dict[tuple[int, Any], int] = {}
        for i, name in enumerate(zip(times.tolist(), identities, strict=True)):
            rows_of_name = found.get(name)
            if not rows_of_name:
                continue
            if once:
                kept.append(rows_of_name.pop(0))
                changes.append(change)
            elif name in places:
                changes[places[name]] = change
            else:
                places[name] = len(kept)
                kept.append(rows_of_name[0])
                changes.append(change)
            numbers[i] = change
            change += 1
        if kept:
            self._keep(number, [np.concatenate(each) for each in zip(*kept, strict=True)], np.array(changes))
        return numbers

    def _keep(self, number: int, rows: list[Array], changes: Array) -> None:
        """Keep rows of a key, with the numbers of the changes that remove them."""
        removed, name = self.removed, self._keys.name(number)
        there = removed.keys.find(name)
        if there is None:
            there = removed.keys.create([name]).item()
        removed.cut(there, self._keys.late_through_of[number])
        placed = rows[-1].copy()
        earlier = _rows(removed.keys, there, int(rows[0].min()), int(rows[0].max()), removed.cold)
        _follow(placed, earlier)
        finished(removed.feed_steps(np.full(len(changes), there), [*rows, placed, changes]))

    def evict(self, start: int, end: int, name: str | None) -> None:
        """Forget what was removed, with start <= time <= end, of one key or of all: it was evicted by hand."""
        keys = self.removed.keys
        numbers = keys.numbers() if name is None else keys.find_each([name])
        numbers = numbers[numbers >= 0]
        self.removed.counts.evicted += int(keys.evict_between_each(numbers, start, end).sum())

    # ---------------------------------------------------------------- reading

    def wide(self, layout: Layout, names: Sequence[str]) -> Layout:
        """A layout that answers some aggregates, and behind them the newest arrival; `layout` is the window's."""
        monoids = self._spec.monoids()
        shown = {name: monoids[name] for name in names} | {ARRIVAL: _NEWEST}
        return layout.answering(shown).lean()

    def later_steps(self, keys: Numbers, lengths: Numbers, starts: Array, stops: Array, known: Array) -> Steps[Array]:
        """Which ranges have removed entries that were there after `known`, bool (k,); as `Keys.answers_steps`."""
        later = np.zeros(len(starts), np.bool_)
        removed = self.removed
        if not removed.counts.present:
            return later
        there = removed.keys.find_each([self._keys.name(number) for number in keys.tolist()])
        some = np.flatnonzero(there >= 0)
        yield
        if not len(some):
            return later
        ends = np.cumsum(lengths) + (len(starts) - int(lengths.sum()))
        which = ragged((ends - lengths)[some], lengths[some])
        _, (newest,) = yield from removed.keys.answers_steps(
            there[some], lengths[some], starts[which], stops[which], removed.layout
        )
        later[which] = _or_0(newest) > known[which]
        return later

    def answers_steps(
        self, keys: Numbers, lengths: Numbers, starts: Array, stops: Array, known: Array, wide: Layout, shown: Layout
    ) -> Steps[tuple[Array, list[Array]]]:
        """Answer over many ranges of time of many keys, each as known at a number, in steps; see `Keys.answers_steps`.

        Args:
            known: int64 (k,).
            wide: what `wide` made; the same aggregates in the same order as `shown`.
            shown: what is folded and answered.
        """
        entries, (*answers, newest) = yield from self._keys.answers_steps(keys, lengths, starts, stops, wide)
        later = (yield from self.later_steps(keys, lengths, starts, stops, known)) | (_or_0(newest) > known)
        if not later.any():
            return entries, answers
        which = np.flatnonzero(later)
        out, ends = RangeAnswers(shown, len(which)), np.cumsum(lengths) + (len(starts) - int(lengths.sum()))
        of = ends.searchsorted(which, "right")
        for i in np.unique(of).tolist():
            mine = np.flatnonzero(of == i)
            its = which[mine]
            rows, partials = yield from self._fold_steps(keys.item(i), starts[its], stops[its], known[its], shown)
            out.rows[mine] = rows
            if (rows > 0).any():
                yield from out.put_partials(mine[rows > 0], partials)
        rows, found = yield from out.answers_steps()
        entries = entries.copy()
        entries[which] = rows
        return entries, [_put(each, which, new) for each, new in zip(answers, found, strict=True)]

    def range_totals(
        self, number: int, start: int, end: int, known: int, layout: Layout, wide: Layout
    ) -> tuple[int, list[Partial]]:
        """The number of a key's entries with start <= time <= end as known at a number, and their partials."""
        key, starts, stops, at = np.array([number]), np.array([start]), np.array([end + 1]), np.array([known])
        if start > end:
            return 0, list(layout.identities)
        entries, all_partials = self._keys.range_totals(number, start, end, wide)
        newest = all_partials[wide.answers[-1]] or 0
        if newest <= known and not finished(self.later_steps(key, np.array([1]), starts, stops, at))[0]:
            return entries, [each for slot, each in zip(wide.slots, all_partials, strict=True) if slot in layout.slots]
        rows, partials = finished(self._fold_steps(number, starts, stops, at, layout))
        if not rows[0]:
            return 0, list(layout.identities)
        return rows.item(0), [m.unpack(each)[0] for m, each in zip(layout.monoids, partials, strict=True)]

    def removed_from(self, number: int, start: int | None) -> tuple[Numbers, int]:
        """Which key of `removed` has what was removed of a key, and where that begins, at `start` or later.

        What the slide has evicted since is there until more of its key is removed.
        """
        found = self.removed.keys.find_each([self._keys.name(number)])
        return found[found >= 0], max(self._keys.late_through_of[number] + 1, TICK_MIN if start is None else start)

    def oldest(self, number: int, known: int) -> int | None:
        """The time of a key's oldest entry as known at a number; None where there was none."""
        removed, name = self.removed, self._keys.name(number)
        there, start = removed.keys.find(name), max(self._keys.late_through_of[number] + 1, TICK_MIN)
        oldest = None
        if there is not None:
            for rows in _slices(removed.keys, there, start, TICK_MAX - 1, removed.cold):
                seen = np.flatnonzero((rows[-3] <= known) & (rows[-1] > known))
                if len(seen):
                    oldest = int(rows[0][seen[0]])
                    break
        for rows in _slices(self._keys, number, start, TICK_MAX - 1 if oldest is None else oldest, self._cold):
            seen = np.flatnonzero(rows[-1] <= known)
            if len(seen):
                return int(rows[0][seen[0]])
        return oldest

    def _fold_steps(
        self, number: int, starts: Array, stops: Array, known: Array, layout: Layout
    ) -> Steps[tuple[Array, list[Partials]]]:
        """Fold ranges of one key: how many entries each has, int64 (m,), and the partials of those that have some."""
        keys, removed = self._keys, self.removed
        starts = np.maximum(starts, max(keys.late_through_of[number] + 1, TICK_MIN))
        there, store = removed.keys.find(keys.name(number)), keys.store(number)
        first, last = int(starts.min()), int(stops.max()) - 1
        gone = None if there is None or first > last else _rows(removed.keys, there, first, last, removed.cold)
        if isinstance(store, Forest) and store.open_rows() is None:
            blocks = _Blocks(self, number, store, gone, layout)
            found = list[tuple[int, list[Partial]]]()
            for i in range(len(starts)):
                found.append(blocks.fold(int(starts[i]), int(stops[i]) - 1, int(known[i])))
                if i % _RANGES == _RANGES - 1:
                    yield
            rows = np.array([entries for entries, _ in found])
            each = zip(*[partials for entries, partials in found if entries], strict=True)
            return rows, [m.pack(list(some)) for m, some in zip(layout.monoids, each, strict=False)]
        return (yield from _Versions(store.columns(), gone).fold_steps(starts, stops, known, layout))


class _Blocks:
    """A key with sealed blocks, folded as known at some numbers: blocks with later arrivals are opened.

    Args:
        known: of the window.
        number, forest: the key.
        gone: its removed entries in the ranges that are folded; None: there are none.
        layout: what is folded.
    """

    def __init__(self, known: Known, number: int, forest: Forest, gone: list[Array] | None, layout: Layout) -> None:
        self._keys, self._cold, self._number, self._forest = known._keys, known._cold, number, forest
        self._gone, self._layout = gone, layout
        (slot,) = self._keys.layout.answering({ARRIVAL: _NEWEST}).answers
        self._first, self._last, self._newest = forest.block_maxima(slot)
        self._opened: dict[tuple[int, int], _Versions] = {}

    def fold(self, start: int, end: int, known: int) -> tuple[int, list[Partial]]:
        """The number of entries with start <= time <= end, and their partials."""
        layout, entries = self._layout, 0
        total: list[Partial] | None = None
        for a, b in self._runs(start, end, known):
            if start < a:
                entries, total = self._add(entries, total, self._forest.range_totals(start, a - 1, layout))
            rows = self._versions(a, b).fold(max(start, a), min(end, b), known, layout)
            entries, total = self._add(entries, total, rows)
            start = b + 1
        if start <= end:
            entries, total = self._add(entries, total, self._forest.range_totals(start, end, layout))
        return entries, list(layout.identities) if total is None else total

    def _add(
        self, entries: int, total: list[Partial] | None, more: tuple[int, list[Partial]]
    ) -> tuple[int, list[Partial] | None]:
        rows, partials = more
        if not rows:
            return entries, total
        return entries + rows, partials if total is None else self._layout.combine(total, partials)

    def _runs(self, start: int, end: int, known: int) -> list[tuple[int, int]]:
        """The spans of time of blocks to open, in order; none has a time of another one."""
        a, b = int(self._last.searchsorted(start, "left")), int(self._first.searchsorted(end, "right"))
        opened = self._newest[a:b] > known
        spans = list[tuple[int, int]]()
        if self._gone is not None:
            gone, removed = self._gone[0], self._gone[-1]
            x, y = int(gone.searchsorted(start, "left")), int(gone.searchsorted(end, "right"))
            times = gone[x:y][removed[x:y] > known]
            at = self._last[a:b].searchsorted(times, "left")
            inside = at < b - a
            inside[inside] = self._first[a:b][at[inside]] <= times[inside]
            opened[at[inside]] = True
            spans += [(time, time) for time in times[~inside].tolist()]
        places = np.flatnonzero(opened) + a
        if len(places):
            for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                spans.append((int(self._first[run[0]]), int(self._last[run[-1]])))
        spans = [(x, y) for x, y in spans if x <= end and y >= start]
        spans.sort()
        out = list[tuple[int, int]]()
        for x, y in spans:
            if out and x <= out[-1][1]:
                out[-1] = out[-1][0], max(y, out[-1][1])
            else:
                out.append((x, y))
        return out

    def _versions(self, start: int, end: int) -> _Versions:
        """All that there is and was with start <= time <= end."""
        found = self._opened.get((start, end))
        if found is None:
            if len(self._opened) >= _OPENED:
                self._opened.clear()
            gone = self._gone
            if gone is not None:
                inside = slice(int(gone[0].searchsorted(start, "left")), int(gone[0].searchsorted(end, "right")))
                gone = [column[inside] for column in gone]
            rows = _rows(self._keys, self._number, start, end, self._cold)
            found = self._opened[start, end] = _Versions(rows, gone)
        return found


class _Versions:
    """Rows of a key, sorted by time and place, with the numbers between which each was there.

    Args:
        rows: of the window.
        gone: of what was removed, of the same times; None: nothing.
    """

    def __init__(self, rows: list[Array], gone: list[Array] | None) -> None:
        until = np.full(len(rows[0]), TICK_MAX)
        if gone is not None and len(gone[0]):
            placed = rows[-1].copy()
            _follow(placed, gone)
            *others, of_gone, removed = gone
            rows = [np.concatenate(pair) for pair in zip(rows, others, strict=True)]
            order = np.lexsort((np.concatenate([placed, of_gone]), rows[0]))
            rows, until = [column[order] for column in rows], np.concatenate([until, removed])[order]
        self._rows, self._until = rows, until

    def fold(self, start: int, end: int, known: int, layout: Layout) -> tuple[int, list[Partial]]:
        """The entries with start <= time <= end as known at a number, and their partials."""
        times = self._rows[0]
        a, b = int(times.searchsorted(start, "left")), int(times.searchsorted(end, "right"))
        there = np.flatnonzero((self._rows[-1][a:b] <= known) & (self._until[a:b] > known)) + a
        rows = list(self._rows)
        for i in layout.used:
            rows[i] = rows[i][there]
        if 0 not in layout.used:
            rows[0] = times[there]
        return len(there), layout.reduce(rows) if len(there) else list(layout.identities)

    def fold_steps(
        self, starts: Array, stops: Array, known: Array, layout: Layout
    ) -> Steps[tuple[Array, list[Partials]]]:
        """As of `Known`, of many ranges."""
        times, out = self._rows[0], RangeAnswers(layout, len(starts))
        first = times.searchsorted(starts, "left")
        lengths = np.maximum(times.searchsorted(stops, "left") - first, 0)
        counts, parts = np.zeros(len(starts), np.int64), list[list[Partials]]()
        behind, a = np.cumsum(lengths), 0
        while a < len(starts):
            b = max(int(behind.searchsorted((behind[a - 1] if a else 0) + _ROWS, "right")), a + 1)
            which = ragged(first[a:b], lengths[a:b])
            of = np.repeat(np.arange(b - a), lengths[a:b])
            at = known[a:b][of]
            there = (self._rows[-1][which] <= at) & (self._until[which] > at)
            counts[a:b] = np.bincount(of[there], minlength=b - a)
            which, some = which[there], counts[a:b]
            rows = list(self._rows)
            for i in {0, *layout.used}:
                rows[i] = rows[i][which]
            ends = np.cumsum(some)
            if len(which):
                parts.append((yield from out.reduce_rows(rows, (ends - some)[some > 0], ends[some > 0])))
            yield
            a = b
        return counts, [
            tuple([np.concatenate(each) for each in zip(*of_slot, strict=True)]) for of_slot in zip(*parts, strict=True)
        ]


def _slices(keys: Keys, number: int, start: int, end: int, cold: Cold | None) -> Iterator[list[Array]]:
    """The rows of a key with start <= time <= end, block by block."""
    for each in keys.store(number).capture(start, end):
        columns = each.columns
        if columns is None:
            assert cold is not None, "without a tier all blocks are in memory"
            (columns,) = cold.columns([each.block_id])
        yield [column[each.first : each.stop] for column in columns]


def _rows(keys: Keys, number: int, start: int, end: int, cold: Cold | None) -> list[Array]:
    """All rows of a key with start <= time <= end; `cold` loads its blocks."""
    parts = list(_slices(keys, number, start, end, cold))
    if not parts:
        return [np.empty(0, dtype) for dtype in keys.layout.dtypes]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _follow(placed: Array, gone: list[Array]) -> None:
    """Give entries that follow earlier versions the place of these, in place.

    Args:
        placed: int64 (n,), the numbers of their arrivals.
        gone: removed entries, among them the earlier versions.
    """
    *_, places, removed = gone
    if not len(removed):
        return
    order = np.argsort(removed)
    at = np.minimum(removed[order].searchsorted(placed), len(order) - 1)
    follows = removed[order][at] == placed
    placed[follows] = places[order][at[follows]]


def _or_0(newest: Array) -> Array:
    """The newest arrivals of ranges; 0 where one has no entries."""
    return newest if newest.dtype == np.int64 else np.array([each or 0 for each in newest.tolist()], np.int64)


def _put(answers: Array, which: Array, new: Array) -> Array:
    """Answers with some others."""
    answers = answers.astype(object) if new.dtype != answers.dtype else answers.copy()
    answers[which] = new
    return answers
