"""The writing side of a window: check everything, then the order policy, the keys, and the slide policy.

Nothing has changed before the first key is created or written to. After that nothing fails, unless a stored block that
is needed cannot be read.

The rows of a write that comes in stages, as the commit of a batch, are never all in one place:

    stages    [ rows ] [ rows ] [ rows ] …        each is sorted by time
    slices    [ 1,048,576 rows ] [ … ] …          by time, over all stages: stages.py
                └─ sorted by key, inserted, then the next one …  then the slide policy, once

A slice is newer than those before it, so each key is sent its entries in order. The window has the same entries as
after one bulk with all rows. One bulk would have the rows twice while it sorts them, and sort them in one long step.

Windows that must see all rows of a write together get one bulk: those with panes, sessions, rollups or cascades,
those that drop entries far ahead, reject others or keep one per time, and those that slide by ADWIN, which
cuts between the blocks that a bulk has made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, ResourceExhausted
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.monoids.base import Array, object_array
from sash_engine.steps import ROWS, Steps, finished, spans_of
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.batches.batch import MAX_COUNTED, AnyBatch, Batch, Coded
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.batches.rows import Rows, grouped, ordered
from sash_engine.windows.batches.stages import joined, time_slices
from sash_engine.windows.derived.derived import Derived
from sash_engine.windows.keys.keys import NEVER, UNKEYED, Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.known import Known, kept_spec
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.sliding.view_keys import ViewSlide
from sash_engine.windows.spec.window import WindowSpec, check_time
from sash_engine.windows.writing.order import Order

_KEYS, _ROWS = 4_096, 65_536
"""Keys and rows that one step inserts: 2 ms of rows of one key in order, 3 ms of small keys. The rows are a multiple of
a block's, so that a forest makes the same blocks as of all rows at once."""
_SLICE_ROWS = 1 << 20
_ROWS_OF_KEY = 512
"""Rows that a slice has on average for each key with a store of its own: each insert of such a key costs 10 us."""
_PANES = 1_024
"""As `_ROWS`, of panes, which may have to be combined one by one."""


class Writer:
    """Writes to the keys of one window.

    Args:
        spec: of the window.
        keys: what is written to.
        slide: evicts after each write.
        counts: what the window has counted; the caller counts the results.
        clock: tells wall time.
        max_keys: how many keys there may be.
        panes: folds entries into panes, where the window has a granularity.
        derived: has rollups, which take in what the keys take in, and cascades, which are given what is sent.
        shown: tells what is in the slide, of a window with a history.
        known: numbers the arrivals, of a window with `known`.

    Attributes:
        order: the order policy.
    """

    def __init__(
        self,
        spec: WindowSpec,
        keys: Keys,
        slide: Slide,
        counts: Counts,
        clock: Clock,
        max_keys: int,
        panes: Panes | None,
        derived: Derived[Any],
        shown: ViewSlide | None = None,
        known: Known | None = None,
    ) -> None:
        self._spec, self._keys, self._slide, self._counts = spec, keys, slide, counts
        self._clock, self._max_keys, self._panes = clock, max_keys, panes
        self._derived, self._shown, self._known = derived, shown, known
        self.order = Order(spec, keys, clock)
        self._idle_ns = spec.idle_expiry_ns
        self._rows_at_once = _ROWS if panes is None else _PANES

    def insert(self, name: str, time: int, values: Sequence[Any]) -> WriteResult:
        """Insert one entry of a key and slide."""
        if self._panes is not None:
            values = self._panes.lifted(time, values)
            time = self._panes.floor(time)
        keys, order = self._keys, self.order
        if order.guards and order.is_ahead(time):
            return WriteResult(ahead=1)
        number = keys.find(name)
        if self._slide.refuses and time <= (through := self._slide.refused_through()):
            return WriteResult(late=order.refuse_late(1, through))
        if number is None:
            self.check_room(1)
            number = keys.create([name]).item()
        else:
            if order.in_order_only:
                order.check_next(number, time)
            if time <= (through := keys.late_through_of[number]):
                return WriteResult(late=order.refuse_late(1, through))
        replaces = order.replaces(number, time) if order.one_per_time else None
        if self._idle_ns is not None:
            keys.touched[number] = self._clock.now_ns()
        if replaces is None:
            sessions = self._slide.sessions
            ended = NEVER if sessions is None else sessions.end_of_entry(number, time)
            behind = int(self._shown is not None and time <= self._shown.after(number))
            self._derived.insert(number, time, values)
            keys.insert(number, time, values if self._known is None else (*values, self._known.number + 1))
            return WriteResult(1, 0, self._slide.after(number, ended=ended), history=behind)
        if replaces:
            keys.store(number).replace(np.array([time]), [_column(value) for value in values])
        return WriteResult(duplicates=1, evicted=self._slide.after(number) if replaces else 0)

    def bulk_insert_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """Insert many entries, those of each key as one, and slide, in steps.

        Nobody may read or write the window from the first to the last.
        """
        columns, partials, keys, ahead = self.checked_columns(batch), batch.of_partials, batch.keys, 0
        del batch
        if not len(columns[0]):
            return WriteResult()
        many = len(columns[0]) > ROWS
        if many:
            yield
        if partials:
            self._check_countable(columns[1])
        if self.order.guards:
            columns, keys, ahead = self.order.drop_ahead(columns, keys, partials)
            if not len(columns[0]):
                return WriteResult(ahead=ahead)
        rows = yield from self._rows(keys, columns)
        del keys, columns
        if partials:
            rows.entries = rows.columns[1]
        if many:
            yield
        result = yield from self.insert_rows(rows, partials)
        result.ahead = ahead
        return result

    def check(self, batch: AnyBatch) -> None:
        """Check all of a bulk that can be checked before it is inserted; raises what `bulk_insert` would."""
        times, *_ = self.checked_columns(batch)
        if self.order.rejects_ahead:
            self.order.check_ahead([times])

    def check_ahead(self, time: int) -> None:
        """Raise FailedPrecondition for an entry too far ahead, where the policy rejects it."""
        if self.order.rejects_ahead:
            self.order.is_ahead(time if self._panes is None else self._panes.floor(time))

    def load(self, batch: AnyBatch) -> None:
        """Take in entries of existing keys as another window had them: none is late or counted, and none leaves.

        Raises:
            InvalidArgument: they do not fit the window.
        """
        columns = self.checked_columns(batch, kept_spec(self._spec))
        if not len(columns[0]):
            return
        if self._known is not None:
            self._known.check_loaded(columns)
        rows = finished(self._rows(batch.keys, columns))
        if self._panes is not None:
            rows.lengths, rows.columns = self._panes.folded(rows.columns, rows.lengths, batch.of_partials)
        if (rows.numbers < 0).any():
            raise InvalidArgument("an entry is of a key that is not there", field="key")
        if self.order.one_per_time:
            self.order.check_loaded(rows)
        finished(self._derived.insert_steps(rows))
        if len(rows.numbers) == 1:
            self._keys.bulk_insert(rows.numbers.item(), rows.columns[0], rows.columns[1:])
        else:
            self._keys.bulk_insert_each(rows.numbers, rows.lengths, rows.columns)

    def feed(self, number: int, time: int, values: Sequence[Any]) -> int:
        """Insert one row of a key that another window has taken; return how many entries it is, 0 if it is late.

        Args:
            number: of a key that is there.
            time: of an entry, or the start of a pane.
            values: a scalar per column after the time.
        """
        if time <= self._keys.late_through_of[number]:
            return 0
        self._keys.insert(number, time, values)
        self._slide.after(number)
        return 1 if self._panes is None else values[0]

    def feed_steps(self, numbers: Numbers, columns: Sequence[Array]) -> Steps[int]:
        """Insert rows that another window has taken; return how many entries they are, without late ones.

        Args:
            numbers: int64 (n,), the key of each row; all are there.
            columns: times, then a column per field; or panes.
        """
        keys, times = self._keys, columns[0]
        on_time = np.flatnonzero(times > keys.late_through[numbers])
        order = on_time[np.lexsort((times[on_time], numbers[on_time]))]
        if not len(order):
            return 0
        of = numbers[order]
        starts = starts_of_runs(of)
        rows = Rows([], of[starts], lengths_of_segments(starts, len(of)), [column[order] for column in columns])
        entries = len(order)
        if self._panes is not None:
            rows.lengths, rows.columns = yield from self._panes.folded_steps(rows.columns, rows.lengths, True)
            entries = int(rows.columns[1].sum())
        yield from self._insert_sorted(rows)
        self._slide.after_each(rows.numbers)
        return entries

    def check_room(self, more: int) -> None:
        """Raise ResourceExhausted if so many more keys would be too many."""
        if more and len(self._keys) + more > self._max_keys:
            raise ResourceExhausted(
                f"window {self._spec.name!r} remembers {len(self._keys)} keys, and this write brings {more} more",
                field="key",
                limit=f"{self._max_keys} keys",
            )

    # ---------------------------------------------------------------- writes that come in stages

    def bulk_insert_stages_steps(self, stages: list[AnyBatch]) -> Steps[WriteResult]:
        """Insert the entries of stages, in steps, as `bulk_insert_steps` inserts those of one bulk.

        Args:
            stages: bulks that `check` takes, in the order of arrival; a column of strings has one dictionary in all of
                them. Emptied as they are taken in.
        """
        rows = sum(len(stage.times) for stage in stages)
        for i, stage in enumerate(stages):
            stages[i] = self._uniform(stage)
        if rows > _SLICE_ROWS and self._takes_slices() and not any(stage.of_partials for stage in stages):
            some = yield from self._rows_of_slice(stages)
            if some < rows:
                return (yield from self._insert_slices(stages, some))
        whole = joined(_taken(stages), rows)
        if whole is None:
            return WriteResult()
        steps = self.bulk_insert_steps(whole)
        del whole
        return (yield from steps)

    def _uniform(self, stage: AnyBatch) -> AnyBatch:
        """A stage with the columns that all stages have."""
        if isinstance(stage, Batch):
            uniform = stage.columns.keys() == self._spec.columns.keys()
            return stage if uniform else replace(stage, columns=self._with_marks(stage))
        counts = [name for name, (monoid, _) in self._spec.monoids().items() if monoid.counts_entries]
        return replace(stage, partials={name: each for name, each in stage.partials.items() if name not in counts})

    def _with_marks(self, stage: Batch) -> dict[str, Array | Coded]:
        """The columns of a stage, all with a mark of what is null that may be: a stage without nulls may lack it."""
        there = np.ones(len(stage.times), np.bool_)
        return {name: stage.columns.get(name, there) for name in self._spec.columns}

    def _takes_slices(self) -> bool:
        """Whether the window may take some rows of a write before it has seen the others."""
        order = self.order
        drops = order.guards and not order.rejects_ahead
        decides = drops or order.in_order_only or order.one_per_time or order.rejects_late
        gathers = self._panes is not None or self._slide.sessions is not None or self._spec.slide.adaptive is not None
        return not (decides or gathers or self._derived.rollups or self._derived.cascades)

    def _rows_of_slice(self, stages: list[AnyBatch]) -> Steps[int]:
        """How many rows a slice should have: enough for every key that does not share pages with others."""
        if stages[0].keys is None:
            return _SLICE_ROWS
        names = stages[0].keys.dictionary
        sent = np.zeros(len(names), np.int64)
        for stage in stages:
            assert stage.keys is not None
            sent += np.bincount(stage.keys.codes, minlength=len(names))
            yield
        return max(_SLICE_ROWS, _ROWS_OF_KEY * self._keys.count_large(self._keys.find_each(names), sent))

    def _insert_slices(self, stages: list[AnyBatch], slice_rows: int) -> Steps[WriteResult]:
        """Insert the rows in slices of about so many rows, and slide."""
        if self.order.guards:
            self.order.check_ahead([stage.times for stage in stages])
        names, texts = self._dictionaries(stages[0])
        columns = yield from self._columns_of(stages)
        floor = self._slide.refused_through()
        numbers = None if names is None else (yield from self._prepared(names, columns, floor))
        result, written_each, lengths = WriteResult(), list[Array](), list[Array]()
        for some in time_slices(columns, slice_rows, names is not None):
            codes = None if numbers is None else some.pop(1)
            for i, table in texts.items():
                some[i] = table[some[i]]
            if numbers is None or codes is None:
                rows = yield from self._rows(None, some)
            else:
                present, sent, order = yield from ordered(codes, len(numbers), some[0])
                rows = Rows([], numbers[present], sent, _sorted(some, order))
                del order
            del codes, some
            self.order.drop_late(rows, floor)
            self._number(rows, result.inserted)
            result.late += rows.late
            result.inserted += len(rows.columns[0])
            result.history += self._behind(rows)
            yield from self._create(rows)
            yield from self._insert_sorted(rows)
            written_each.append(rows.numbers)
            lengths.append(rows.lengths)
            del rows
            yield
        written, of = np.unique(np.concatenate(written_each), return_inverse=True)
        sent = np.bincount(of, np.concatenate(lengths), len(written)).astype(np.int64)
        self._touch(written)
        result.evicted = yield from self._slid(written, sent)
        return result

    def _dictionaries(self, stage: AnyBatch) -> tuple[list[str] | None, dict[int, Array]]:
        """The keys that codes stand for, None where there are none; and of each column of strings its texts."""
        assert isinstance(stage, Batch)
        columns = [stage.columns[name] for name in self._spec.columns]
        texts = {i: object_array(each.dictionary) for i, each in enumerate(columns, 1) if isinstance(each, Coded)}
        return (None if stage.keys is None else stage.keys.dictionary), texts

    def _columns_of(self, stages: list[AnyBatch]) -> Steps[list[list[Array]]]:
        """Of each stage the times, the codes of the keys, and the columns of the fields, sorted by time."""
        found = []
        for stage in _taken(stages):
            assert isinstance(stage, Batch)
            fields = [stage.columns[name] for name in self._spec.columns]
            columns = [stage.times, *([] if stage.keys is None else [stage.keys.codes])]
            columns += [each.codes if isinstance(each, Coded) else each for each in fields]
            if np.count_nonzero(stage.times[1:] < stage.times[:-1]):
                order = np.argsort(stage.times, kind="stable")
                columns = [column[order] for column in columns]
            if len(stage.times):
                found.append(columns)
            del stage, fields, columns
            yield
        return found

    def _prepared(self, names: list[str], stages: list[list[Array]], floor: int) -> Steps[Numbers]:
        """Create the keys of the rows that are on time, and have room for these rows.

        Returns:
            the number of each name, int64 (k,); -1 where there is no such key, as none of its rows is on time.

        Raises:
            InvalidArgument: two codes stand for one key.
            ResourceExhausted: the keys of these rows are too many.
        """
        keys, numbers, seen = self._keys, np.empty(len(names), np.int64), set[str]()
        for a, b in spans_of(len(names), _KEYS):
            numbers[a:b] = keys.find_each(names[a:b])
            seen.update(names[a:b])
            yield
        if len(seen) < len(names):
            raise InvalidArgument("the dictionary of column 'key' repeats a key", field="key")
        late, sent = self.order.late_through_each(numbers, floor), np.zeros(len(names), np.int64)
        any_late = late.max(initial=NEVER) > NEVER
        for times, codes, *_ in stages:
            sent += np.bincount(codes[times > late[codes]] if any_late else codes, minlength=len(names))
            yield
        new, there = np.flatnonzero((sent > 0) & (numbers < 0)), np.flatnonzero(sent)
        self.check_room(len(new))
        # Nothing was changed so far.
        for a, b in spans_of(len(new), _KEYS):
            numbers[new[a:b]] = keys.create([names[code] for code in new[a:b].tolist()])
            yield
        for a, b in spans_of(len(there), _KEYS):
            keys.reserve(numbers[there[a:b]], sent[there[a:b]])
            yield
        return numbers

    # ---------------------------------------------------------------- rows

    def checked_columns(self, batch: AnyBatch, spec: WindowSpec | None = None) -> list[Array]:
        """The times of a bulk and its columns, as of a spec; with panes, what `Panes.rows` makes of them."""
        times, columns = batch.checked(spec or self._spec)
        if len(times):
            for time in {times.item(0)} if len(times) == 1 else (int(times.min()), int(times.max())):
                check_time(time, "time")
            if self._panes is not None:
                return self._panes.rows(times, columns, batch.of_partials)
        return [times, *columns]

    def _check_countable(self, entries: Array) -> None:
        """Refuse rows of partials, int64 (n,) entries each, that stand for more entries than a window can count."""
        counts = self._counts
        counted = counts.inserted + counts.late + counts.ahead
        if counted + entries.sum(dtype=np.float64) >= MAX_COUNTED:
            raise ResourceExhausted(
                f"window {self._spec.name!r} was sent {counted} entries, and cannot count those of this write besides",
                field="entries",
                limit=f"{MAX_COUNTED} entries",
            )

    def _rows(self, coded: Coded | None, columns: list[Array]) -> Steps[Rows]:
        """Sort the rows of a write by key, then time, then arrival; refuse rows out of order where the spec says so.

        Args:
            columns: changed in place.
        """
        keys, times = self._keys, columns[0]
        if coded is None:
            number = keys.find(UNKEYED)
            rows = Rows([UNKEYED], np.array([-1 if number is None else number]), np.array([len(times)]), columns)
            if self.order.in_order_only:
                self.order.check_arrival(np.zeros(len(times), np.int64), times, rows.numbers)
            sorted_rows = self.order.one_per_time or self._panes is not None
            if sorted_rows and np.count_nonzero(times[1:] < times[:-1]):
                order = np.argsort(times, kind="stable")
                rows.columns = [column[order] for column in columns]
            return rows  # unsorted: the store sorts them if it must
        names, lengths, order = yield from grouped(coded, times)
        numbers = np.empty(len(names), np.int64)
        for a, b in spans_of(len(names), _KEYS):
            numbers[a:b] = keys.find_each(names[a:b])
            if len(times) > ROWS:
                yield
        if self.order.in_order_only:
            of = np.empty(len(times), np.int64)
            of[order] = np.repeat(np.arange(len(names)), lengths)
            self.order.check_arrival(of, times, numbers)
        del times
        return Rows(names, numbers, lengths, _sorted(columns, order))

    def insert_rows(self, rows: Rows, partials: bool) -> Steps[WriteResult]:
        """Insert the rows of a write and slide.

        Args:
            partials: whether they are partials, in the place of values.
        """
        keys, order, derived = self._keys, self.order, self._derived
        derived.check(rows)
        sent = replace(rows) if derived.cascades else rows
        order.drop_late(rows, self._slide.refused_through())
        entries = len(rows.columns[0])
        if self._panes is not None and entries:
            rows.lengths, rows.columns = yield from self._panes.folded_steps(rows.columns, rows.lengths, partials)
            entries = int(rows.columns[1].sum())
        if order.one_per_time:
            yield from order.settle_equal(rows)
            entries = len(rows.columns[0])
        self.check_room(int(np.count_nonzero(rows.numbers < 0)))
        behind = self._behind(rows)
        # Nothing was changed so far, and nothing below can fail.
        yield from self._create(rows)
        yield from derived.send_steps(sent, partials)
        if entries:
            yield from derived.insert_steps(rows)
        for number, (times, *columns) in rows.replaced:
            keys.store(number).replace(times, columns)
        written, sessions = rows.numbers, self._slide.sessions
        if sessions is not None:
            ended = sessions.ends_of_rows(rows.numbers, rows.lengths, rows.columns[0])
        self._number(rows, 0)
        yield from self._insert_sorted(rows)
        lengths = rows.lengths
        if rows.replaced:
            written = np.union1d(written, [number for number, _ in rows.replaced])
            lengths = np.full(len(written), entries)
        self._touch(written)
        before = self._counts.evicted
        if sessions is not None:
            sessions.evict(rows.numbers, ended)
        evicted = self._counts.evicted - before
        evicted += yield from self._slid(written, np.array([entries]) if len(written) == 1 else lengths)
        return WriteResult(entries, rows.late, evicted, rows.duplicates, history=behind)

    def _number(self, rows: Rows, inserted: int) -> None:
        """Give rows that are inserted the numbers of their arrival; so many of the write were inserted before."""
        if self._known is not None:
            rows.columns = [*rows.columns, self._known.numbers(inserted, len(rows.columns[0]))]

    def _behind(self, rows: Rows) -> int:
        """How many entries of a write are too old for the slide, as it is before the write."""
        if self._shown is None:
            return 0
        known, after = rows.numbers >= 0, np.full(len(rows.numbers), self._shown.gone_through())
        after[known] = self._shown.after_each(rows.numbers[known])
        old = rows.columns[0] <= np.repeat(after, rows.lengths)
        return int(np.count_nonzero(old) if self._panes is None else rows.columns[1][old].sum())

    def _touch(self, written: Numbers) -> None:
        """Note when keys were written."""
        if self._idle_ns is not None:
            self._keys.touched[written] = self._clock.now_ns()

    def _slid(self, written: Numbers, lengths: Numbers) -> Steps[int]:
        """Evict what the policy says from keys that were sent so many entries each; return how many left."""
        if len(written) == 1:
            return self._slide.after(written.item(), lengths.item())
        evicted = 0
        for a, b in spans_of(len(written), _KEYS):
            evicted += self._slide.after_each(written[a:b], lengths[a:b])
            yield
        return evicted

    def _create(self, rows: Rows) -> Steps[None]:
        """Create the keys that are not there yet."""
        new = rows.numbers < 0
        names, places = list(compress(rows.names, new.tolist())), np.flatnonzero(new)
        for a, b in spans_of(len(names), _KEYS):
            rows.numbers[places[a:b]] = self._keys.create(names[a:b])
            yield

    def _insert_of_key(self, number: int, columns: Sequence[Array]) -> Steps[None]:
        """Insert the rows of one key: times, then a column per field."""
        times = columns[0]
        if len(times) <= self._rows_at_once:
            self._keys.bulk_insert(number, times, columns[1:])
            return
        if np.count_nonzero(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            columns = [column[order] for column in columns]
            yield
        for a, b in spans_of(len(times), self._rows_at_once):
            some = [column[a:b] for column in columns]
            self._keys.bulk_insert(number, some[0], some[1:])
            yield

    def _insert_sorted(self, rows: Rows) -> Steps[None]:
        """Insert rows that are on time, of some keys that are there at a time, or many rows of one."""
        if len(rows.numbers) == 1:
            yield from self._insert_of_key(rows.numbers.item(), rows.columns)
            return
        ends = np.cumsum(rows.lengths)
        key = row = 0
        while key < len(ends):
            stop = max(int(ends.searchsorted(row + self._rows_at_once, "right")), key + 1)
            stop = min(stop, key + _KEYS)
            behind = int(ends[stop - 1])
            some = [column[row:behind] for column in rows.columns]
            if stop == key + 1:
                yield from self._insert_of_key(rows.numbers.item(key), some)
            else:
                self._keys.bulk_insert_each(rows.numbers[key:stop], rows.lengths[key:stop], some)
                yield
            key, row = stop, behind


def _column(value: Any) -> Array:
    """One value as a column."""
    column = np.empty(1, object)
    column[0] = value
    return column


def _sorted(columns: list[Array], order: Array) -> list[Array]:
    """Columns in another order, in place: the unsorted column is let go, where nobody else holds it."""
    for i, column in enumerate(columns):
        columns[i] = column[order]
    return columns


def _taken(stages: list[AnyBatch]) -> Iterator[AnyBatch]:
    """Yield the stages; each is let go before the next one is taken."""
    stages.reverse()
    while stages:
        yield stages.pop()
