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
from sash_engine.forest import Cold, Forest, Layout, RangeAnswers, RangePartials, combined_steps
from sash_engine.kernels import known_rows, rows_at
from sash_engine.monoids import Max, Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Counts
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.keys.keys import UNKEYED, Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.ragged import ragged, spans_of_lengths
from sash_engine.windows.keys.store import Same, rows_of_slices
from sash_engine.windows.spec.policies import AggregateSpec, OrderPolicy, SlidePolicy
from sash_engine.windows.spec.window import ARRIVAL, PLACED, REMOVED, TICK_MAX, TICK_MIN, WindowSpec, check_time

_NEWEST = (Max("int64"), (ARRIVAL,))
_ROWS = 65_536
"""Rows that one step looks at, unless one range has more."""
_SCANNED = 4_096
"""Rows of a key that are read at once to find entries by their names; of a larger key, those of each time."""
_RANGES = 8_192
"""Ranges of small keys that are answered together."""
_RUN = 16
"""Blocks that one step reads."""
_OPENED, _OPENED_LARGE = 1 << 20, 1 << 14
"""Blocks of ranges that are looked at together; fewer where the fold of a block may be a sketch."""


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
    return kept_spec(spec)


def kept_spec(spec: WindowSpec) -> WindowSpec:
    """The spec by which a window keeps its entries: with the numbers of their arrivals, where it has `known`."""
    if spec.known is None:
        return spec
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
        self._ahead = 0  # of the counts: a window of fewer shards was imported, or of more

    @property
    def layout(self) -> Layout:
        """Of the window."""
        return self._keys.layout

    @property
    def number(self) -> int:
        """The number of the newest arrival, retraction or correction; 0 before the first."""
        counts = self._counts
        return counts.inserted + counts.retracted + counts.corrected + self._ahead

    def resume(self, number: int) -> None:
        """Go on from the number of another window's newest arrival, retraction or correction."""
        self._ahead += number - self.number

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

    def check_loaded(self, columns: Sequence[Array]) -> None:
        """Check the numbers of entries that another window had, with the columns of this one; see `Writer.load`."""
        self._check_order(ARRIVAL, columns[-1], self.number)

    def load(self, batch: Batch) -> None:
        """Take in what was removed of keys of the window, as another window had it.

        Args:
            batch: as of `removed_spec`.

        Raises:
            InvalidArgument: it does not fit the window.
        """
        times, columns = batch.checked(removed_spec(self._spec))
        *_, arrived, placed, removed = columns
        self._check_order(PLACED, placed, arrived)
        self._check_order(ARRIVAL, arrived, removed - 1)
        self._check_order(REMOVED, removed, self.number)
        for time in (times.min(initial=0), times.max(initial=0)):
            check_time(int(time), "time")
        names = [UNKEYED] if batch.keys is None else batch.keys.dictionary
        if (self._keys.find_each(names) < 0).any():
            raise InvalidArgument("what was removed is of a key that is not there", field="key")
        keys = self.removed.keys
        new = np.flatnonzero(keys.find_each(names) < 0)
        keys.create(list(dict.fromkeys([names[i] for i in new.tolist()])))
        codes = np.zeros(len(times), np.int64) if batch.keys is None else batch.keys.codes
        finished(self.removed.feed_steps(keys.find_each(names)[codes], [times, *columns]))

    def _check_order(self, name: str, numbers: Array, most: Array | int) -> None:
        """Raise InvalidArgument unless 1 <= numbers <= most."""
        if ((numbers < 1) | (numbers > most)).any():
            raise InvalidArgument(f"{name} has a number that cannot be", field=name, limit=f"1 to {self.number}")

    def keep(
        self, number: int, times: Array, column: int, identities: Sequence[Any], once: bool, applied: int
    ) -> Array:
        """Keep the rows of a key that are about to be removed or corrected.

        Args:
            times, column, identities: name the rows, as in `Forest.remove`; the times are sorted.
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
        _follow(placed, np.zeros(len(placed), np.int64), earlier, np.zeros(len(earlier[0]), np.int64))
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
        of = (np.cumsum(lengths) + (len(starts) - int(lengths.sum()))).searchsorted(which, "right")
        out = RangeAnswers(shown, len(which))
        yield from self._fold_steps(out, keys, of, starts[which], stops[which], known[which])
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
        out = RangePartials(layout, 1)
        finished(self._fold_steps(out, key, np.array([0]), starts, stops, at))
        if not out.rows[0]:
            return 0, list(layout.identities)
        _, partials = out.partials()
        return out.rows.item(0), [m.unpack(each)[0] for m, each in zip(layout.monoids, partials, strict=True)]

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
        self, out: RangeAnswers, keys: Numbers, of: Array, starts: Array, stops: Array, known: Array
    ) -> Steps[None]:
        """Answer over ranges of what there is and what was removed, in steps.

        Args:
            out: gets the answers.
            keys: int64 (g,).
            of: int64 (k,), sorted: which of the keys each range is of.
            starts, stops, known: int64 (k,).
        """
        starts = np.maximum(starts, np.minimum(self._keys.late_through[keys[of]], TICK_MAX - 1) + 1)
        used = sorted({0, len(self._keys.layout.dtypes) - 1, *out.layout.used})
        begun = np.flatnonzero(np.diff(of, prepend=-1))  # one of each key
        distinct, lengths = keys[of[begun]], np.diff(begun, append=len(of))
        for a, b in spans_of_lengths(lengths, _RANGES):
            places, ends = self._keys.places(distinct[a:b]), begun[a:b] + lengths[a:b]
            yield
            for i, store in places.others.items():
                which = np.arange(begun[a + i], ends[i])
                blocks = _Blocks(self, distinct.item(a + i), store, used)
                yield from blocks.answer(out, which, starts[which], stops[which], known[which])
            here = np.flatnonzero(places.of >= 0)
            runs, ends = begun[a:b][here], ends[here]
            which = ragged(runs, ends - runs)
            if not len(which):
                continue
            firsts = np.cumsum(ends - runs) - (ends - runs)
            oldest = np.minimum.reduceat(starts[which], firsts)
            newest = np.maximum.reduceat(stops[which], firsts)
            bounds = places.rows(here, oldest, newest)
            yield
            for x, y in spans_of_lengths(bounds[1] - bounds[0], _ROWS):
                some = slice(x, y)
                rows = places.gathered(here[some], bounds[0][some], bounds[1][some], used)
                gone, of_gone = yield from self.gone(distinct[a:b][here[some]], oldest[some], newest[some])
                versions = _Versions(rows, np.arange(y - x), (bounds[1] - bounds[0])[some], gone, of_gone)
                yield
                mine = ragged(runs[some], (ends - runs)[some])
                unit = np.repeat(np.arange(y - x), (ends - runs)[some])
                begin, end = versions.bounds(unit, starts[mine], stops[mine])
                yield from versions.put(out, mine, begin, end, known[mine])

    def gone(self, keys: Numbers, starts: Array, stops: Array) -> Steps[tuple[list[Array], Array]]:
        """What was removed of g keys, with start <= time < stop, in columns, and of which of the keys each is."""
        removed = self.removed.keys
        if not self.removed.counts.present:
            return [np.empty(0, dtype) for dtype in removed.layout.dtypes], np.empty(0, np.int64)
        there = removed.find_each([self._keys.name(number) for number in keys.tolist()])
        some = np.flatnonzero(there >= 0)
        places = removed.places(there[some])
        here = np.flatnonzero(places.of >= 0)
        first, stop = places.rows(here, starts[some[here]], stops[some[here]])
        columns = places.gathered(here, first, stop, range(len(removed.layout.dtypes)))
        of = np.repeat(some[here], stop - first)
        yield
        for i in places.others:
            key = some.item(i)
            rows = _rows(removed, there.item(key), starts.item(key), stops.item(key) - 1, self.removed.cold)
            columns = [np.concatenate(pair) for pair in zip(columns, rows, strict=True)]
            of = np.append(of, np.full(len(rows[0]), key))
            yield
        return columns, of

    def trim(self) -> None:
        """Let blocks leave memory that were loaded to be read."""
        if self._cold is not None:
            self._cold.cache.trim()


class _Blocks:
    """A key with sealed blocks: those of which entries came or left later are opened, and those with ends of ranges.

    blocks      [   7 ] [   9 ] [  31 ] [  12 ] [  11 ] [  40 ]      newest arrival or removal; known at 12
    range           |-----------|-------|---------------|---|
    pieces       opened   folded  opened  folded, as one  opened

    Args:
        known: of the window.
        number, forest: the key.
        used: the columns that are read.
    """

    def __init__(self, known: Known, number: int, forest: Forest, used: Sequence[int]) -> None:
        self._known, self._number, self._forest, self._used = known, number, forest, used
        (slot,) = known.layout.answering({ARRIVAL: _NEWEST}).answers
        self._first, self._last, counts, self._newest = forest.block_maxima(slot)
        self._before = np.append(0, np.cumsum(counts))
        self._sealed = forest.whole

    def answer(self, out: RangeAnswers, which: Array, starts: Array, stops: Array, known: Array) -> Steps[None]:
        """Answer over ranges, int64 (m,), in steps; those that are the same are folded once."""
        order = np.lexsort((known, stops, starts))
        columns = starts[order], stops[order], known[order]
        new = np.flatnonzero(np.logical_or.reduce([np.append(True, np.diff(each) != 0) for each in columns]))
        (starts, stops, known), ranges = [each[new] for each in columns], (which[order], new)
        yield
        key, span = np.array([self._number]), (starts.min(keepdims=True), stops.max(keepdims=True))
        gone, _ = yield from self._known.gone(key, *span)
        low, high = self._owners(gone[0])
        newest = self._newest.copy()
        np.maximum.at(newest, ragged(low, high - low + 1), np.repeat(gone[-1], high - low + 1))
        whole = np.zeros(len(newest), np.bool_)
        whole[slice(*self._sealed)] = True
        together = np.zeros(len(newest), np.bool_)  # blocks of which the next one may have what was removed, too
        together[ragged(low, high - low)] = True
        begin, last = self._owners(starts)[0], self._owners(stops - 1)[1]
        # All blocks before `later` are as they were known; one piece are those that are whole.
        later = np.maximum.accumulate(newest).searchsorted(known, "right")
        later = np.maximum(np.minimum(later, last), begin + 1)
        several = later > begin + 1
        lengths = 1 + several + np.maximum(last + 1 - later, 0)
        at_once = _OPENED_LARGE if any(monoid.large for monoid in out.layout.monoids) else _OPENED
        for x, y in spans_of_lengths(lengths, at_once):
            at, place = np.repeat(np.arange(x, y), lengths[x:y]), np.cumsum(lengths[x:y]) - lengths[x:y]
            block = ragged(later[x:y] - 1 - several[x:y], lengths[x:y])
            block[place], piece = begin[x:y], place[several[x:y]] + 1
            block[piece] = begin[x:y][several[x:y]] + 1
            stop = block + 1
            stop[piece] = later[x:y][several[x:y]]
            opens = (newest[block] > known[at]) | ~whole[block]
            opens |= (self._first[block] < starts[at]) | (self._last[block] >= stops[at])
            opens[piece] = False
            yield
            opened = np.flatnonzero(opens)
            folds, fold = RangePartials(out.layout, len(opened)), np.empty(len(opened), np.int64)
            order, done = opened[np.argsort(block[opened], kind="stable")], 0
            back = np.empty(len(block), np.int64)
            back[opened] = np.arange(len(opened))
            distinct, begun = np.unique(block[order], return_index=True)
            begun = np.append(begun, len(order))
            for a, b in _runs_of(distinct, together):
                mine, blocks = order[begun[a] : begun[b]], distinct[a:b]
                rows, counts = self._forest.block_rows(blocks.tolist(), self._used)
                near = (low <= blocks[-1]) & (high >= blocks[0])
                owners = low[near], high[near]
                versions = _Versions(rows, blocks, counts, [column[near] for column in gone], owners)
                yield
                asked = at[mine]
                bounds = versions.bounds(blocks.searchsorted(block[mine]), starts[asked], stops[asked])
                rows_asked, same = versions.distinct(*bounds, known[asked])
                yield from versions.put(folds, np.arange(done, done + len(rows_asked[0])), *rows_asked)
                fold[back[mine]] = done + same
                done += len(rows_asked[0])
                self._known.trim()
            yield from self._join(out, ranges, (block, stop, at, opens), folds, fold)

    def _owners(self, times: Array) -> tuple[Array, Array]:
        """The first block and the last that may have entries of a time, int64 (k,)."""
        low = np.minimum(self._last.searchsorted(times, "left"), len(self._last) - 1)
        return low, np.maximum(low, self._first.searchsorted(times, "right") - 1)

    def _join(
        self,
        out: RangeAnswers,
        ranges: tuple[Array, Array],
        pieces: tuple[Array, Array, Array, Array],
        folds: RangePartials,
        fold: Array,
    ) -> Steps[None]:
        """Combine the pieces of each range.

        Args:
            ranges: their numbers; and where those of each distinct range begin.
            pieces: blocks first..stop; of which range each is, sorted; and whether it is one that is opened.
            folds, fold: of each opened block the fold of its rows.
        """
        block, stop, at, opens = pieces
        which, distinct = ranges
        shared = np.diff(distinct, append=len(which))
        opened, other = np.flatnonzero(opens), np.append(np.diff(at) != 0, True)
        before = np.append(True, other[:-1])
        begins = ~opens & (before | np.append(True, opens[:-1]))
        firsts, ends = np.flatnonzero(begins), np.flatnonzero(~opens & (other | np.append(opens[1:], True)))
        first, behind = block[firsts], stop[ends]
        width = len(self._before)
        runs, run = np.unique(first * width + behind, return_inverse=True)
        of_runs = list[Partials]()
        if len(runs):
            of_runs = yield from self._forest.runs_steps(runs // width, runs % width, out.layout)
        put, partials = folds.partials()
        place = np.full(len(folds.rows), -1)
        place[put] = np.arange(len(put))
        rows = np.zeros(len(block), np.int64)
        rows[opened], rows[firsts] = folds.rows[fold], self._before[behind] - self._before[first]
        begun = np.flatnonzero(before)
        mine, same = at[begun], shared[at[begun]]
        out.rows[which[ragged(distinct[mine], same)]] = np.repeat(np.add.reduceat(rows, begun), same)
        piece = np.full(len(block), -1)
        piece[opened] = place[fold]
        piece[firsts] = len(put) + run.reshape(-1)
        some = np.flatnonzero(piece >= 0)
        yield
        start = np.flatnonzero(np.diff(at[some], prepend=-1))
        if not len(start):
            return
        mine, same = at[some[start]], shared[at[some[start]]]
        joined = list[Partials]()
        for slot, monoid in enumerate(out.layout.monoids):
            parts = [each[slot] for each in (partials, of_runs) if each]
            each = tuple([np.concatenate(columns)[piece[some]] for columns in zip(*parts, strict=True)])
            folded = yield from combined_steps(monoid, each, start, np.diff(start, append=len(some)))
            joined.append(tuple([np.repeat(part, same) for part in folded]))
        yield from out.put_partials(which[ragged(distinct[mine], same)], joined)


class _Versions:
    """Rows of some units, with the numbers between which each was there: the units are keys, or blocks of one key.

    Args:
        rows: of the window, one unit's behind the other's, each sorted by time and place; some columns.
        units: int64 (u,), increasing: numbers of the units.
        lengths: int64 (u,), how many rows each has.
        gone: what was removed.
        owners: of each of these the number of its unit; or the first and the last unit of one key that may have it.
    """

    def __init__(
        self, rows: list[Array], units: Array, lengths: Array, gone: list[Array], owners: Array | tuple[Array, Array]
    ) -> None:
        stop, until = np.cumsum(lengths), np.full(len(rows[0]), TICK_MAX)
        if len(gone[0]):
            alone = not isinstance(owners, tuple)
            low, high = (owners, owners) if isinstance(owners, np.ndarray) else owners
            segment = units.searchsorted(low) if alone else np.zeros(len(low), np.int64)
            begin, end = (stop - lengths, stop) if alone else (np.zeros(1, np.int64), stop[-1:])
            order = np.lexsort((gone[-2], gone[0], segment))
            gone, low, high, segment = [each[order] for each in gone], low[order], high[order], segment[order]
            placed, times, here = rows[-1].copy(), gone[0], np.zeros(len(order), np.int64)
            _follow(placed, np.repeat(np.arange(len(begin)), end - begin), gone, segment)
            first = rows_at([rows[0]], here, begin[segment], end[segment], times)
            behind = rows_at([rows[0]], here, first, end[segment], times + 1)
            at = rows_at([placed], here, first, behind, gone[-2])
            own = np.repeat(units, lengths)
            unit = low if alone or not len(own) else np.clip(own[np.maximum(at - 1, 0)], low, high)
            place = np.minimum(units.searchsorted(unit), len(units) - 1)
            kept = np.flatnonzero(units[place] == unit)
            at, lengths = at[kept], lengths + np.bincount(place[kept], minlength=len(units))
            rows = [
                np.insert(own, at, new[kept]) if len(own) == len(until) else own
                for own, new in zip(rows, gone, strict=False)
            ]
            until, stop = np.insert(until, at, gone[-1][kept]), np.cumsum(lengths)
        self._rows, self._until, self._first, self._stop = rows, until, stop - lengths, stop

    def bounds(self, unit: Array, starts: Array, stops: Array) -> tuple[Array, Array]:
        """The rows of units, int64 (k,) places of them, with start <= time < stop: the first, and behind the last."""
        here, times, first, stop = np.zeros(len(unit), np.int64), [self._rows[0]], self._first[unit], self._stop[unit]
        begin = rows_at(times, here, first, stop, starts)
        return begin, rows_at(times, here, begin, stop, stops)

    def distinct(self, begin: Array, end: Array, known: Array) -> tuple[tuple[Array, Array, Array], Array]:
        """Those of k ranges of rows, known at numbers, that may differ, and which of them each one is."""
        n = len(self._until)
        changes = np.empty(2 * n, np.int64)
        for a, b in zip(self._first.tolist(), self._stop.tolist(), strict=True):
            changes[2 * a : a + b], changes[a + b : 2 * b] = self._rows[-1][a:b], self._until[a:b]
            changes[2 * a : 2 * b].sort()
        unit = np.minimum(self._stop.searchsorted(begin, "right"), len(self._stop) - 1)
        first, stop = 2 * self._first[unit], 2 * self._stop[unit]
        version = rows_at([changes], np.zeros(len(begin), np.int64), first, stop, known + 1)
        _, which, same = np.unique(
            (begin * (n + 1) + end) * (2 * n + 1) + version, return_index=True, return_inverse=True
        )
        return (begin[which], end[which], known[which]), same.reshape(-1)

    def put(self, out: RangeAnswers, which: Array, begin: Array, end: Array, known: Array) -> Steps[None]:
        """Give ranges of rows, int64 (k,), begin <= row < end, their answers, known at numbers."""
        for a, b in spans_of_lengths(end - begin, _ROWS):
            rows, counts = known_rows(self._rows[-1], self._until, begin[a:b], end[a:b], known[a:b])
            columns = [column[:0] for column in self._rows]
            for i in out.layout.used:
                columns[i] = self._rows[i][rows]
            out.rows[which[a:b]] = counts
            ends, some = np.cumsum(counts), counts > 0
            yield
            yield from out.put_rows(which[a:b][some], columns, (ends - counts)[some], ends[some])


def _runs_of(blocks: Array, together: Array) -> list[tuple[int, int]]:
    """Cut distinct blocks into runs that are read at once, but not behind those that are to be read with the next."""
    runs, a = list[tuple[int, int]](), 0
    for b in range(1, len(blocks) + 1):
        if b == len(blocks) or (b - a >= _RUN and not together[blocks[b - 1]]):
            runs.append((a, b))
            a = b
    return runs


def _slices(keys: Keys, number: int, start: int, end: int, cold: Cold | None) -> Iterator[list[Array]]:
    """The rows of a key with start <= time <= end, block by block."""
    for block in keys.store(number).capture(start, end):
        yield from rows_of_slices([block], cold)


def _rows(keys: Keys, number: int, start: int, end: int, cold: Cold | None) -> list[Array]:
    """All rows of a key with start <= time <= end; `cold` loads its blocks."""
    parts = list(_slices(keys, number, start, end, cold))
    if not parts:
        return [np.empty(0, dtype) for dtype in keys.layout.dtypes]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _follow(placed: Array, of: Array, gone: list[Array], of_gone: Array) -> None:
    """Give entries that follow earlier versions the place of these, in place.

    Args:
        placed: int64 (n,), the numbers of their arrivals.
        of: int64 (n,), the key of each. Two keys have the same number where several shards became one.
        gone: removed entries, among them the earlier versions.
        of_gone: the key of each.
    """
    *_, places, removed = gone
    if not len(removed):
        return
    numbers, rank = np.unique(removed, return_inverse=True)
    at = np.minimum(numbers.searchsorted(placed), len(numbers) - 1)
    some = np.flatnonzero(numbers[at] == placed)
    names, wanted = of_gone * len(numbers) + rank.reshape(-1), of[some] * len(numbers) + at[some]
    order = np.argsort(names)
    found = np.minimum(names[order].searchsorted(wanted), len(order) - 1)
    same = names[order][found] == wanted
    placed[some[same]] = places[order[found[same]]]


def _or_0(newest: Array) -> Array:
    """The newest arrivals of ranges; 0 where one has no entries."""
    return newest if newest.dtype == np.int64 else np.array([each or 0 for each in newest.tolist()], np.int64)


def _put(answers: Array, which: Array, new: Array) -> Array:
    """Answers with some others."""
    answers = answers.astype(object) if new.dtype != answers.dtype else answers.copy()
    answers[which] = new
    return answers
