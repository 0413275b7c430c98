"""Changes in the middle of a window: ranges of time that leave, and single entries that leave or are corrected.

Single entries are named by key, time and identity.

    identity: order_id                 order_id   1    7    7    9
                                       time      10   11   12   12
    retract  (time 12, order_id 7)                         x            one entry leaves, from any place
    update   (time 12, order_id 9, …)                           ✎       one entry gets other values, and stays in place

The time says where an entry is, so there is no index of identities, and an insert costs what it costs without one. A
name that no entry has is counted as missing and changes nothing. So both can be repeated: a second retraction finds
nothing, and a second correction writes the same values again.

A batch without times is looked up first: its keys are read from the newest entry to the oldest until every identity is
found, and it goes on with the times of those entries (`Changes.timed_steps`). A journal has these times.

m names of one key in k blocks: O(m + k (B + log n)). All blocks are loaded before anything changes.  Without times:
O(n log m) for n entries of the keys, in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, SashError, TooLarge, Unsupported
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.answers import Counts, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Batch, untimed
from sash_engine.windows.batches.rows import grouped
from sash_engine.windows.keys.allocator import Numbers
from sash_engine.windows.keys.keys import NEVER, UNKEYED, Keys
from sash_engine.windows.known import Known
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.window import WindowSpec, check_time

SCANNED_MAX = 2**26
"""Entries that a change without times may have to look through: 0.1 to 2 s, during which the window is held."""
_NAMES = 1_024
"""Names of one key that one step loads, or changes: 1 to 3 ms if each is in a block of its own, and now and then 10 ms
more, when blocks that wait are folded (`sash_engine.forest.levels`)."""


def named(spec: WindowSpec) -> WindowSpec:
    """Return the spec as a retraction sees it: its only field is the identity.

    Raises:
        Unsupported: the window has no identity.
    """
    if spec.identity is None:
        raise Unsupported(
            f"window {spec.name!r} has no identity: only a spec that names one has entries that can be told apart",
            field="identity",
        )
    return spec.model_copy(update={"fields": {spec.identity: spec.fields[spec.identity]}, "nullable": None})


def times_of(given: Array | None, rows: int) -> Array:
    """Return the times that name entries: those that are given, or `UNKNOWN_TIME` for each where none are.

    Args:
        given: int64 (rows,).

    Raises:
        InvalidArgument: they are given as `UNKNOWN_TIME`.
    """
    if given is None:
        return untimed(rows)
    if len(given):
        check_time(int(given.max()), "time")
    return given


def checked(spec: WindowSpec, batch: AnyBatch, retracts: bool) -> list[Array]:
    """Check a batch that names entries; return its times and columns.

    Args:
        retracts: its only column is the identity; else it has all fields.

    Raises:
        InvalidArgument, Unsupported: no window of the spec takes it.
    """
    identity = named(spec)
    if batch.of_partials:
        raise InvalidArgument("partials name no entries", field="partials")
    times, columns = batch.checked(identity if retracts else spec)
    if len(times) and not batch.is_untimed:
        check_time(int(times.min()), "time")
        check_time(int(times.max()), "time")
    return [times, *columns]


@dataclass(slots=True)
class _Names:
    """The names of a write by key, then time, then arrival; those of keys that are not there are counted only."""

    numbers: Numbers
    lengths: Numbers
    columns: list[Array]
    missing: int


class Changes:
    """Removes and corrects the entries of one window.

    Args:
        spec: of the window.
        keys: the entries.
        slide: evicts after each write.
        counts: counts evicted entries; the caller counts the results of writes.
        clock: tells wall time.
        known: keeps what is removed, of a window with `known`.
    """

    def __init__(
        self, spec: WindowSpec, keys: Keys, slide: Slide, counts: Counts, clock: Clock, known: Known | None = None
    ) -> None:
        self._spec, self._keys, self._slide, self._counts, self._clock = spec, keys, slide, counts, clock
        self._known = known

    def evict_range(self, start: int, end: int, name: str | None) -> int:
        """Remove entries with start <= time <= end, of one key or of all; return how many.

        Raises:
            InvalidArgument: start > end.
        """
        check_time(start, "start")
        check_time(end, "end")
        if start > end:
            raise InvalidArgument(f"start {start} is after end {end}", field="start", limit=str(end))
        numbers = self._keys.numbers() if name is None else self._keys.find_each([name])
        numbers, before = numbers[numbers >= 0], self._counts.evicted
        evicted = self._keys.evict_between_each(numbers, start, end)
        self._counts.evicted += int(evicted.sum())
        if self._slide.sessions is not None:
            for number in numbers[evicted > 0].tolist():
                self._slide.sessions.after_removal(number, np.array([start]))
        return self._counts.evicted - before

    def reset_marks(self, start: int, end: int, name: str | None) -> None:
        """Take back the high-water marks with start <= mark <= end, of one key or of all, once their entries have left.

        A key goes on as if it had been sent only the entries that it has: what left because of the marks is not late.
        """
        keys = self._keys
        numbers = keys.numbers() if name is None else keys.find_each([name])
        numbers = numbers[numbers >= 0]
        wrong = numbers[(keys.now[numbers] >= start) & (keys.now[numbers] <= end)]
        keys.reset_marks(wrong)
        self._slide.by_age_each(wrong)

    def punctuate(self, time: int) -> int:
        """Note that entries of a time and older are final, and evict what has become too old; return how many.

        Of panes those are final that end by then: others may still get entries.

        Raises:
            Unsupported: the window does not wait for punctuation.
        """
        check_time(time, "time")
        if not self._slide.until:
            raise Unsupported(
                f"window {self._spec.name!r} does not wait for punctuation: its spec has no slide.until", field="time"
            )
        if (granule := self._spec.granularity_ticks) is not None:
            time = max(time - (time + 1) % granule, NEVER)
        before = self._counts.evicted
        if time > self._slide.punctuated:
            last, self._slide.punctuated = self._slide.punctuated, time
            try:
                self._slide.by_age_each(self._keys.numbers())
            except SashError:  # a block cannot be read, and nothing has left
                self._slide.punctuated = last
                raise
        return self._counts.evicted - before

    def timed_steps(self, batch: AnyBatch, retracts: bool) -> Steps[tuple[AnyBatch, int]]:
        """Find the times of the entries that a batch names without them, in steps. Nothing changes.

        Of several entries of a key with one identity the newest is meant; a retraction that names it twice means the
        two newest.

        Returns:
            the batch with times, of those that are there; and how many are not.

        Raises:
            InvalidArgument, Unsupported: no window of the spec takes the batch.
            TooLarge: its keys have too many entries to look through.
        """
        if not isinstance(batch, Batch) or not batch.is_untimed:
            return batch, 0
        rows = checked(self._spec, batch, retracts)
        n, values = len(rows[0]), rows[1 if retracts else self._column]
        numbers, lengths, order = yield from self._by_key(batch, rows[0])
        ends = np.cumsum(lengths)
        spans = [
            (self._keys.store(number), order[a:b])
            for number, a, b in zip(numbers.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
            if number >= 0
        ]
        looked = sum(len(store) for store, _ in spans)
        if looked > SCANNED_MAX:
            raise TooLarge(
                f"without times, {looked} entries would have to be looked through: give the times, or name fewer keys",
                field="time",
                limit=f"{SCANNED_MAX} entries of the keys",
            )
        times = untimed(n)
        for store, some in spans:
            times[some] = yield from store.newest_steps(self._column, values[some].tolist(), retracts)
        found = batch.timed(times)
        return found, n - len(found.times)

    def retract_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """Remove the entries that a batch names, in steps; see `Plane.retract`."""
        batch, absent = yield from self.timed_steps(batch, True)
        names = yield from self._names(batch, True)
        result, removed = WriteResult(missing=absent + names.missing), list[tuple[int, Array]]()
        for number, a, b in self._parts(names):
            times, identities = names.columns[0][a:b], names.columns[1][a:b].tolist()
            if self._known is not None:
                self._known.keep(number, times, self._column, identities, True, result.retracted)
            found = self._keys.remove(number, times, self._column, identities)
            result.retracted += int(np.count_nonzero(found))
            result.missing += int(np.count_nonzero(~found))
            removed.append((number, times[found]))
            yield
        result.evicted = self._slid(names.numbers, removed)
        return result

    def update_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """Give the entries that a batch names its values, in steps; see `Plane.update`."""
        batch, absent = yield from self.timed_steps(batch, False)
        names = yield from self._names(batch, False)
        result = WriteResult(missing=absent + names.missing)
        for number, a, b in self._parts(names):
            times, *columns = (column[a:b] for column in names.columns)
            identities = columns[self._column - 1].tolist()
            if self._known is not None:
                numbers = self._known.keep(number, times, self._column, identities, False, result.corrected)
                columns.append(numbers)
            found = self._keys.store(number).correct(times, self._column, identities, columns)
            result.corrected += int(np.count_nonzero(found))
            result.missing += int(np.count_nonzero(~found))
            yield
        result.evicted = self._slid(names.numbers)
        return result

    @property
    def _column(self) -> int:
        """The number of the column of identities in a row of the window."""
        return 1 + list(self._spec.fields).index(str(self._spec.identity))

    def _names(self, batch: AnyBatch, retracts: bool) -> Steps[_Names]:
        """Check and sort a batch, and load what it needs; nothing changes but what wall time evicts.

        Args:
            retracts: as of `checked`.
        """
        rows = checked(self._spec, batch, retracts)
        times = rows[0]
        if not len(times):
            return _Names(np.array([], np.int64), np.array([], np.int64), rows, 0)
        numbers, lengths, order = yield from self._by_key(batch, times)
        rows = [each[order] for each in rows]
        there = numbers >= 0
        if not there.all():
            kept = np.repeat(there, lengths)
            rows, numbers, lengths = [each[kept] for each in rows], numbers[there], lengths[there]
        if self._slide.wall:
            self._slide.by_age_each(numbers)
        if len(numbers):
            identities = rows[1 if retracts else self._column].tolist()
            yield from self._keys.load_named_steps(numbers, lengths, rows[0], self._column, identities, _NAMES)
        return _Names(numbers, lengths, rows, len(times) - len(rows[0]))

    def _by_key(self, batch: AnyBatch, times: Array) -> Steps[tuple[Numbers, Numbers, Array]]:
        """The keys of a batch, -1 for those that are not there; the rows of each; and all rows by key, then time."""
        if batch.keys is None:
            number = self._keys.find(UNKEYED)
            numbers = np.array([-1 if number is None else number])
            return numbers, np.array([len(times)]), np.argsort(times, kind="stable")
        keys, lengths, order = yield from grouped(batch.keys, times)
        return self._keys.find_each(keys), lengths, order

    def _parts(self, names: _Names) -> list[tuple[int, int, int]]:
        """A key's number and its rows, at most `_NAMES`: the first, and the one behind the last."""
        ends = np.cumsum(names.lengths)
        return [
            (number, at, min(at + _NAMES, b))
            for number, a, b in zip(names.numbers.tolist(), (ends - names.lengths).tolist(), ends.tolist(), strict=True)
            for at in range(a, b, _NAMES)
        ]

    def _slid(self, numbers: Numbers, removed: Sequence[tuple[int, Array]] = ()) -> int:
        """Note the write, and evict what the policy says; return how many entries left.

        Args:
            removed: keys, with times of entries that were removed.
        """
        before = self._counts.evicted
        if self._slide.sessions is not None:
            for number, times in removed:
                self._slide.sessions.after_removal(number, times)
        if self._spec.idle_expiry is not None:
            self._keys.touched[numbers] = self._clock.now_ns()
        self._slide.after_each(numbers)
        return self._counts.evicted - before
