"""The reading side of a window: lookbacks, ranges and series, of one key, of several, or over several together.

as_of - lookback < time <= as_of        a lookback; without as_of: now - lookback < time
start <= time <= end                    a range; where its end is exclusive: start <= time < end
t <= time < t + width                   a bucket of a series, t = start, start + step, …

Without as_of nothing is cut off at the newer end of a lookback. In event time now is the high-water mark, and no entry
is newer. On wall time entries may be ahead of now, as clocks differ: the whole window has them, and so have lookbacks,
so that a window with a `max_age` of an hour is its own lookback of an hour on both clocks. The alternative, to leave
such entries out of both, would make a whole-window query of a window with one fast clock a range query, and the slide
policies would count entries that no answer shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.forest import Cold, Layout
from sash_engine.monoids import Count, Monoid, Partial, Partials
from sash_engine.monoids.pane import exported
from sash_engine.windows.algorithms import check_ranges
from sash_engine.windows.answers import Answer, Series
from sash_engine.windows.batch import check_key
from sash_engine.windows.costs import Costs
from sash_engine.windows.entries import BULK_ROWS, Entries
from sash_engine.windows.keys import UNKEYED, Keys
from sash_engine.windows.questions import AllKeys, EntriesQuery, KeyList, Query, RangeQuery, SeriesQuery
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import TICK_MAX, TICK_MIN, WindowSpec, check_time, parse_duration

__all__ = ["MAX_LOOKBACKS", "Reader"]

MAX_LOOKBACKS = 64

_COUNT: Monoid = Count()
_ENTRY_BYTES = 100
"""What an answer with lists takes for each entry: the value in Python, and what is sent of it."""

Numbers = npt.NDArray[np.int64]
Span = tuple[str, int]


class Reader:
    """Answers questions about one window's keys.

    Args:
        spec, layout: what they hold.
        keys: the entries.
        slide: tells now where that is wall time, by which entries also leave while nothing is written.
        cold: where forests keep their sealed blocks; None: in memory.
    """

    def __init__(self, spec: WindowSpec, layout: Layout, keys: Keys, slide: Slide, cold: Cold | None = None) -> None:
        self._cold = cold
        self._spec = spec
        self._layout = layout
        self._keys = keys
        self._slide = slide
        self._costs = Costs({name: monoid for name, (monoid, _) in spec.monoids().items()})
        self.check_memory: Callable[[int], None] = _ignore
        """Called with the bytes that an answer may take, before it is made; raises where that is too much."""

    def query(self, question: Query) -> list[Answer]:
        """Answer a query.

        Raises:
            InvalidArgument: the question is wrong, or its answers would be larger than the limit.
            Unsupported: `combine` where an aggregate depends on the order of entries.
        """
        key, keys, as_of, partials = question.key, question.keys, question.as_of, question.partials
        spans = self.spans(question.lookbacks)
        if as_of is not None:
            check_time(as_of, "as_of")
            check_ranges(self._spec.algorithm)
        if not keys:
            if question.combine:
                raise InvalidArgument("combine is for several keys: name them, or all of them", field="combine")
            return self._answers(self.checked_key(key), key, spans, as_of, partials)
        names = self._several(key, keys, filled=not question.combine)
        if question.combine:
            return self._combined(names, spans, as_of, partials)
        self._costs.check_answers(len(names), len(spans))
        answers, values = list[Answer](), 0
        for name in names:
            of_key = self._answers(name, name, spans, as_of, partials)
            if partials or self._costs.sized:
                values += sum(map(self._costs.values_of, of_key))
                self._costs.check_values(values)
            answers += of_key
        return answers

    def range_query(self, question: RangeQuery) -> Answer:
        """Answer a range query.

        Raises:
            InvalidArgument: start > end; or start >= end, where the end is exclusive.
            Unsupported: several keys where an aggregate depends on the order of entries.
        """
        start, key, keys, partials = question.start, question.key, question.keys, question.partials
        check_time(start, "start")
        last = _last(start, question.end, question.end_exclusive)
        check_ranges(self._spec.algorithm)
        if keys:
            return self._together(self._found(self._several(key, keys)), start, last, None, partials)
        return self._range(self._find(self.checked_key(key)), key, start, last, None, partials)

    def series(self, question: SeriesQuery) -> Series:
        """Answer a series.

        Raises:
            InvalidArgument: start >= end, or more buckets than the limit.
            Unsupported: several keys where an aggregate depends on the order of entries.
        """
        start, end, key, keys = question.start, question.end, question.key, question.keys
        check_time(start, "start")
        check_time(end, "end")
        if start >= end:
            raise InvalidArgument(f"start {start} is not before end {end}", field="start", limit=str(end - 1))
        check_ranges(self._spec.algorithm)
        unit = self._spec.time_unit
        every = parse_duration(question.step, unit, "step")
        wide = every if question.width is None else parse_duration(question.width, unit, "width")
        n = -((start - end) // every)
        self._costs.check_buckets(n)
        # The last bucket starts before `end`, so only where it stops can be out of range.
        starts = np.array([start], np.int64) + np.arange(n) * (every if n > 1 else 0)
        stops = np.minimum(starts, TICK_MAX - wide) + wide
        if keys:
            self._check_series_of_several()
            numbers = self._found(self._several(key, keys))
        else:
            number = self._find(self.checked_key(key))
            numbers = np.array([] if number is None else [number], np.int64)
        if self._costs.sized and n > 1 and len(numbers):
            self._costs.check_series(*self._whole(numbers, start, int(stops[-1]) - 1), n, -(-wide // every))
        entries, answers = self._keys.series(numbers, starts, stops)
        return Series(key, starts, wide, entries, dict(zip(self._layout.names, answers, strict=True)))

    def entries(self, question: EntriesQuery, rows: int = BULK_ROWS) -> Entries:
        """The entries as of now, in bulks of up to `rows` rows.

        Raises:
            InvalidArgument: start > end; or start >= end, where the end is exclusive.
            Unsupported: the window's algorithm keeps no values.
        """
        start, end, key, keys = question.start, question.end, question.key, question.keys
        if start is not None:
            check_time(start, "start")
        last = None if end is None else _last(start, end, question.end_exclusive)
        if keys:
            numbers = self._found(self._several(key, keys))
        else:
            number = self._find(self.checked_key(key))
            numbers = np.array([] if number is None else [number], np.int64)
        return Entries(self._spec, self._layout, self._keys, numbers, start, last, self._cold, rows)

    # ---------------------------------------------------------------- which keys

    def checked_key(self, key: str | None) -> str:
        """The name of the one key that is meant."""
        if not self._spec.keyed:
            if key is not None:
                raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="key")
            return UNKEYED
        if key is None:
            raise InvalidArgument(f"window {self._spec.name!r} is keyed: say which key", field="key")
        check_key(key)
        return key

    def spans(self, lookbacks: Sequence[str | int]) -> list[Span]:
        """Lookbacks as they were asked for, and in ticks."""
        if len(lookbacks) > MAX_LOOKBACKS:
            raise InvalidArgument(
                f"{len(lookbacks)} lookbacks in one query", field="lookbacks", limit=f"{MAX_LOOKBACKS}"
            )
        if lookbacks:
            check_ranges(self._spec.algorithm)
        return [(str(text), parse_duration(text, self._spec.time_unit, "lookback")) for text in lookbacks]

    def _several(self, key: str | None, keys: KeyList, filled: bool = False) -> list[str]:
        """The names of the keys that are meant; of all keys only those that have entries, where `filled` says so.

        A question over several keys together takes the others, too: their marks have a say in its now.
        """
        if key is not None:
            raise InvalidArgument("give either one key or several", field="key")
        if not self._spec.keyed:
            raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="keys")
        if isinstance(keys, AllKeys):
            return self._keys.names_filled(self._slide.late_through()) if filled else self._keys.names()
        for name in keys:
            check_key(name)
        return list(dict.fromkeys(keys))

    def _found(self, names: Sequence[str]) -> Numbers:
        numbers = self._keys.find_each(names)
        numbers = numbers[numbers >= 0]
        if self._slide.wall:
            self._slide.by_age_each(numbers)
        return numbers

    def _find(self, name: str) -> int | None:
        number = self._keys.find(name)
        if number is not None and self._slide.wall:
            self._slide.by_age(number)
        return number

    # ---------------------------------------------------------------- answers

    def _answers(
        self, name: str, key: str | None, spans: Iterable[Span], as_of: int | None, partials: bool
    ) -> list[Answer]:
        """The answers of one key: one for each lookback, or one over everything (up to `as_of`)."""
        keys = self._keys
        number = self._find(name)
        if spans:
            bounds = self._trailing(as_of, None if number is None else keys.now_of[number])
            if bounds is None:
                return [self._nothing(key, None, None, text, partials) for text, _ in spans]
            now, end = bounds
            return [
                self._range(number, key, max(now - span + 1, TICK_MIN), end, text, partials) for text, span in spans
            ]
        if number is None:
            return [self._nothing(key, None, as_of, None, partials)]
        if as_of is not None:
            answer = self._range(number, key, TICK_MIN, as_of, None, partials)
            answer.start = keys.span(number)[0] if answer.entries else None
            return [answer]
        self._check_memory(keys.entries(number))
        entries, answers = keys.query(number)
        answer = Answer(key, *keys.span(number), entries, self._named(answers))
        if partials:
            answer.partials = self._exported(entries, keys.totals(number))
        return [answer]

    def _combined(self, names: Sequence[str], spans: Sequence[Span], as_of: int | None, partials: bool) -> list[Answer]:
        numbers = self._found(names)
        if spans:
            bounds = self._trailing(as_of, int(self._keys.now[numbers].max()) if len(numbers) else None)
            if bounds is None:
                return [self._nothing(None, None, None, text, partials) for text, _ in spans]
            now, end = bounds
            return [self._together(numbers, max(now - span + 1, TICK_MIN), end, text, partials) for text, span in spans]
        answer = self._together(numbers, TICK_MIN, TICK_MAX - 1 if as_of is None else as_of, None, partials)
        oldest = [self._keys.span(number)[0] for number in numbers.tolist()] if answer.entries else []
        answer.start = min((time for time in oldest if time is not None), default=None)
        newest = int(self._keys.newest_each(numbers).max()) if answer.entries else None
        answer.end = as_of if as_of is not None else newest
        return [answer]

    def _trailing(self, as_of: int | None, mark: int | None) -> tuple[int, int] | None:
        """Now, from which lookbacks go back, and their newer end; None where there is no now yet.

        Args:
            mark: the newest time that was ever inserted into the keys that are asked about; None before.
        """
        if as_of is not None:
            return as_of, as_of
        if self._slide.wall:
            now = self._slide.now()
            return now, now if mark is None else max(now, mark)
        return None if mark is None else (mark, mark)

    def _range(
        self, number: int | None, key: str | None, start: int, end: int, lookback: str | None, partials: bool
    ) -> Answer:
        if number is None:
            return self._nothing(key, start, end, lookback, partials)
        entries, totals = self._keys.range_totals(number, start, end)
        return self._answer(key, start, end, entries, totals, lookback, partials)

    def _together(self, numbers: Numbers, start: int, end: int, lookback: str | None, partials: bool) -> Answer:
        """The answer over the entries of many keys."""
        self._check_commutative()
        entries, columns = self._keys.range_totals_each(numbers, start, end)
        count = int(entries.sum())
        totals = self._fold(columns) if count else self._layout.identities
        return self._answer(None, start, end, count, totals, lookback, partials)

    def _whole(self, numbers: Numbers, start: int, end: int) -> tuple[int, dict[str, Any]]:
        """The entries and answers over start <= time <= end of k >= 1 keys."""
        if len(numbers) == 1:
            entries, answers = self._keys.range_query(numbers.item(), start, end)
            return entries, self._named(answers)
        answer = self._together(numbers, start, end, None, False)
        return answer.entries, answer.aggregates

    def _check_series_of_several(self) -> None:
        """A series puts the entries of several keys together, and so needs them."""
        self._check_commutative()
        if self._spec.algorithm is not None:
            raise Unsupported(
                f"{self._spec.algorithm} keeps no values, of which a series over several keys is made; ask for one "
                "key at a time",
                field="keys",
            )

    def _fold(self, columns: Sequence[Partials]) -> list[Partial]:
        return [monoid.fold(column) for monoid, column in zip(self._layout.monoids, columns, strict=True)]

    def _check_commutative(self) -> None:
        for monoid in self._layout.monoids:
            if not monoid.commutative:
                raise Unsupported(
                    f"{monoid.function} depends on the order of entries, and keys have none between them: "
                    f"window {self._spec.name!r} cannot answer over several keys together",
                    field="keys",
                )

    def _check_memory(self, entries: int) -> None:
        if self._costs.sized:
            self.check_memory(_ENTRY_BYTES * entries)

    def _nothing(
        self, key: str | None, start: int | None, end: int | None, lookback: str | None, partials: bool
    ) -> Answer:
        return self._answer(key, start, end, 0, self._layout.identities, lookback, partials)

    def _answer(
        self,
        key: str | None,
        start: int | None,
        end: int | None,
        entries: int,
        totals: Sequence[Partial],
        lookback: str | None,
        partials: bool,
    ) -> Answer:
        self._check_memory(entries)
        answers = self._named(self._layout.lower(entries, totals))
        out = self._exported(entries, totals) if partials else None
        return Answer(key, start, end, entries, answers, lookback, out)

    def _exported(self, entries: int, totals: Sequence[Partial]) -> dict[str, Partials]:
        """Each aggregate's partial as it is outside: columns of one row, or of none over no entries."""
        layout, out = self._layout, {}
        slots = layout.answers[-len(layout.names) :]  # those of panes begin with one that has no name
        for name, slot in zip(layout.names, slots, strict=True):
            monoid, partial = (_COUNT, entries) if slot < 0 else (layout.monoids[slot], totals[slot])
            out[name] = exported(monoid, [partial] if entries else [])
        return out

    def _named(self, answers: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._layout.names, answers, strict=True))


def _ignore(needed: int) -> None:
    """Takes what no service limits."""


def _last(start: int | None, end: int, end_exclusive: bool) -> int:
    """The last time of a range.

    Raises:
        InvalidArgument: `end` cannot be a time, or no time is in the range.
    """
    check_time(end, "end")
    last = end - 1 if end_exclusive else end
    if start is not None and start > last:
        wrong = "is not before" if end_exclusive else "is after"
        raise InvalidArgument(f"start {start} {wrong} end {end}", field="start", limit=str(last))
    return last
