"""The reading side of a window: lookbacks, ranges and series, of one key, of several, or over several together.

as_of - lookback < time <= as_of        a lookback; without as_of: now - lookback < time
start <= time <= end                    a range; where its end is exclusive: start <= time < end
t <= time < t + width                   a bucket of a series, t = start, start + step, …

With `until: punctuation`, now is the punctuated time, and lookbacks end there, so that their answers are final. Else,
without as_of nothing is cut off at the newer end of a lookback. In event time now is the high-water mark, and no entry
is newer. On wall time entries may be ahead of now, as clocks differ: the whole window has them, and so have lookbacks,
so that a window with a `max_age` of an hour is its own lookback of an hour on both clocks. The alternative, to leave
such entries out of both, would make a whole-window query of a window with one fast clock a range query, and the slide
policies would count entries that no answer shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.forest import Cold, Forest, Layout
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Answer, AnswerColumns, Page, Series, parts_of
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.keys.totals import partials_of
from sash_engine.windows.known import Known, no_known, numbered_spec
from sash_engine.windows.questions import (
    EVERYTHING,
    AllKeys,
    AnswersAt,
    EntriesQuery,
    Grouped,
    GroupedQuestion,
    KeysQuery,
    Query,
    Question,
    RangeQuery,
    SeriesQuery,
    Where,
)
from sash_engine.windows.reading.bounds import buckets_of, check_sessions, last_of, trailing
from sash_engine.windows.reading.choosing import chosen_answers
from sash_engine.windows.reading.conditions import names_steps
from sash_engine.windows.reading.costs import costs_of
from sash_engine.windows.reading.entries import BULK_ROWS, Entries
from sash_engine.windows.reading.group_reader import Chosen, GroupReader, Span
from sash_engine.windows.reading.key_finder import KeyFinder, Numbers
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.reading.pairs import Pairs
from sash_engine.windows.reading.session_series import sessions_steps
from sash_engine.windows.sliding.view_keys import Now, ReadableKeys
from sash_engine.windows.spec.window import TICK_MIN, WindowSpec, check_time, parse_duration
from sash_wire.meant import instead

Q = TypeVar("Q", bound=GroupedQuestion)
R = TypeVar("R")
Answers = TypeVar("Answers", list[Answer], Page[Answer], Page[Series])

MAX_LOOKBACKS = 64
MAX_KEY_NAMES = 100_000

RollupFor = Callable[[GroupedQuestion, Callable[[Numbers], "Numbers | int"]], "Reader | None"]
"""The reader of a rollup that can answer a question about groups of keys; None where the keys have to."""

_KEPT = 64
"""Readers of so many sets of aggregates are kept: some KiB each."""


def narrowed(method: Callable[[Reader, Q], R]) -> Callable[[Reader, Q], R]:
    """Have the reader answer that is for the aggregates that the question names."""

    @wraps(method)
    def call(self: Reader, question: Q) -> R:
        names = question.selection.aggregates
        return method(self._for(names) if names else self, question)

    return call


class Reader:
    """Answers questions about one window's keys.

    Args:
        spec, layout: what they hold.
        keys: the entries.
        slide: tells now where that is wall time, by which entries also leave while nothing is written.
        labels: finds keys by their labels.
        cold: where forests keep their sealed blocks; None: in memory.
        rollup_for: finds the rollup that answers about groups; None: there are none.
        names: the aggregates that it answers; None: all.
        known: what was known when; None where the window does not keep it.
    """

    def __init__(
        self,
        spec: WindowSpec,
        layout: Layout,
        keys: ReadableKeys,
        slide: Now,
        labels: Labels,
        cold: Cold | None = None,
        rollup_for: RollupFor | None = None,
        names: Sequence[str] | None = None,
        known: Known | None = None,
    ) -> None:
        self._given = spec, layout, keys, slide, labels, cold, rollup_for
        self._spec, self._cold, self._keys, self._slide, self._labels = spec, cold, keys, slide, labels
        self._all, self._layout = layout, (layout if names is None else layout.named(names)).lean()
        self._costs = costs_of(spec, names)
        self._rollup_for, self._narrower = rollup_for, dict[tuple[str, ...], Reader]()
        self._asked = KeyFinder(spec, keys, slide, self._costs)
        self._known = known
        self._wide = None if known is None else known.wide(layout, self._layout.names)
        self._pairs = Pairs(self._asked, labels, self._layout, known, self._wide)
        self._groups = GroupReader(self._asked, labels, layout, self._layout)

    def _for(self, names: Sequence[str]) -> Reader:
        """A reader that folds and answers only the aggregates that a question names; raises as `named`.

        window   n  sum  mean  p50  p99  distinct  …        this reader has all
        asked    [n, p99]  ──▶  one for (n, p99)            kept for the next question that names these two
        """
        known = self._spec.aggregates
        wanted = named(names, known, self._spec.name)
        if len(wanted) == len(known):
            return self
        found = self._narrower.get(wanted)
        if found is None:
            if len(self._narrower) >= _KEPT:
                self._narrower.clear()
            found = Reader(*self._given, wanted, self._known)
            found.limit_memory(self._costs.need)
            self._narrower[wanted] = found
        return found

    def limit_memory(self, need: Callable[[int], None]) -> None:
        """Have `need` called with the bytes that an answer may take, before it is made.

        It raises if there is no room for them.
        """
        if need != self._costs.need:
            self._costs.need = need
            self._narrower.clear()

    def checked_key(self, key: str | None) -> str:
        """Return the name of the key of an entry."""
        if key is None and self._spec.keyed:
            parts = f", or its parts: {', '.join(self._spec.keys)}" if self._spec.keys else ""
            raise InvalidArgument(f"window {self._spec.name!r} is keyed: give the entry's key{parts}", field="key")
        return self._asked.name(key)

    def steps(self, question: Question[Any]) -> Steps[Any]:
        """Answer a question, in steps."""
        match question:
            case Query():
                return self.query_steps(question)
            case RangeQuery():
                return self.range_groups(question) if question.selection.is_grouped else self.range_steps(question)
            case SeriesQuery():
                return self.series_groups(question) if question.selection.is_grouped else self.series_steps(question)
            case EntriesQuery():
                return self.entries_steps(question)
            case KeysQuery():
                return self.key_names_steps(question.prefix, question.limit, question.position, question.where)
            case AnswersAt():
                return self.answers_at_steps(question)
        raise NotImplementedError(question.name)

    def query(self, question: Query) -> list[Answer]:
        """Answer a query.

        Raises:
            InvalidArgument: the question is wrong, or its answers would be larger than the limit.
            Unsupported: `combine` where an aggregate depends on the order of entries.
        """
        selection = question.selection
        reader = self._for(selection.aggregates) if selection.aggregates else self
        if question.keys or (selection is not EVERYTHING and selection.selects):
            return finished(reader._of_several(question))
        spans = reader._checked(question)
        return reader._answers(reader._asked.name(question.key), question.key, spans, question)

    def is_quick(self, question: Query) -> bool:
        """Whether a query takes no longer than a step, so that nobody needs a turn before it is answered."""
        selection, keys = question.selection, question.keys
        costs = self._for(selection.aggregates)._costs if selection.aggregates else self._costs
        if selection is not EVERYTHING and selection.selects:
            return False
        if not keys and not question.lookbacks:
            return True
        count = len(self._keys) if isinstance(keys, AllKeys) else max(len(keys), 1)
        return costs.takes_a_step(count * max(len(question.lookbacks), 1))

    @narrowed
    def query_steps(self, question: Query) -> Steps[list[Answer]]:
        """As `query`, in steps."""
        if question.keys or question.selection.selects:
            return (yield from self._of_several(question))
        spans, key = self._checked(question), question.key
        name, answers = self._asked.name(key), list[Answer]()
        for i in range(max(len(spans), 1)):
            answers += self._answers(name, key, spans[i : i + 1], question)
            yield
        return answers

    def _checked(self, question: Query) -> list[Span]:
        """The lookbacks of a query; all else is checked that takes no look at the keys."""
        spans = self.spans(question.lookbacks) if question.lookbacks else []
        if question.as_of is not None:
            check_time(question.as_of, "as_of")
        if question.known_at is not None:
            if question.as_of is None:
                raise InvalidArgument("known_at is for questions about the past: say as_of", field="known_at")
            self.known_of().check(question.known_at)
        if question.combine and not question.keys and not question.selection.where:
            raise InvalidArgument("combine is for several keys: name them, or all of them", field="combine")
        if question.combine and question.selection.is_grouped:
            raise InvalidArgument(
                "combine is for one answer over all keys: leave it out, or by, top, having and limit", field="combine"
            )
        return spans

    def known_of(self) -> Known:
        """What was known when; raises Unsupported where the window does not keep it."""
        if self._known is None:
            raise no_known(self._spec.name)
        return self._known

    def _of_rollup(self, question: GroupedQuestion, oldest: Callable[[Numbers], Numbers | int]) -> Reader | None:
        """The reader of a rollup that can answer a question about groups of keys; None: this one answers from the keys.

        The answer is the same: a rollup is asked only about times from which on it has all entries.

        Args:
            oldest: nows of groups -> the oldest times that it is about.
        """
        found = None if self._rollup_for is None else self._rollup_for(question, oldest)
        if found is not None:
            found.limit_memory(self._costs.need)
        return found

    def _oldest(self, question: Query, now: Numbers) -> Numbers | int:
        spans = [span for _, span in self.spans(question.lookbacks)]
        if not spans:
            return NEVER
        longest = max(spans)
        if question.as_of is not None:
            return question.as_of - longest + 1
        return np.maximum(now, TICK_MIN + longest) - longest + 1

    def _of_several(self, question: Query) -> Steps[list[Answer]]:
        if question.known_at is not None:
            raise InvalidArgument(
                "known_at is for one key: ask for each, or for pairs with answers_at", field="known_at"
            )
        if question.selection.by is not None or question.combine:
            rollup = self._of_rollup(question, lambda now: self._oldest(question, now))
            if rollup is not None:
                return _of_groups((yield from rollup.query_steps(question)))
        key, keys, partials = question.key, question.keys, question.partials
        spans = self._checked(question)
        self._asked.check_several(key)
        self._groups.check(question.selection)
        if question.combine:
            together = yield from self._groups.together(question.selection.where, keys)
            return (yield from self._groups.over_each(together, question, spans))
        if question.selection.where or question.selection.by is not None:
            return (yield from self._groups.queries(question, spans))
        found: Chosen | None = None
        if question.selection.selects:
            found = yield from self._groups.keys(question, spans)
            names = found.texts(self._keys)
        else:
            names = yield from self._asked.names(keys, len(spans))
        lookbacks = max(len(spans), 1)
        self._costs.need_answers(
            len(names) * lookbacks, partials, bool(self._spec.parts), sum(map(len, names)) * lookbacks
        )
        answers, values = list[Answer](), 0
        for name in names:
            of_key = self._answers(name, name, spans, question)
            if partials or self._costs.sized:
                values = self._costs.check_values(values, sum(map(self._costs.values_of, of_key)))
            answers += of_key
            yield
        if found is None:
            return answers
        # Each key is answered as without a choice. What compared them all may have rounded other than that.
        return found.page((yield from chosen_answers(self._shown(question.selection), answers, max(len(spans), 1))))

    def _shown(self, selection: Grouped) -> Grouped:
        """A selection that compares only what is answered."""
        shown = {"entries", *self._layout.names}
        top = selection.top if selection.top is not None and selection.top.by in shown else None
        return replace(selection, top=top, having=[each for each in selection.having if each.aggregate in shown])

    @narrowed
    def range_query(self, question: RangeQuery) -> Answer:
        """Answer a range query.

        Raises:
            InvalidArgument: start > end; or start >= end, where the end is exclusive.
            Unsupported: several keys where an aggregate depends on the order of entries.
        """
        if question.keys or question.selection.where:
            return finished(self.range_steps(question))
        last = self._checked_range(question)
        key = question.key
        return self._range(self._asked.find(self._asked.name(key)), key, question.start, last, None, question.partials)

    @narrowed
    def range_steps(self, question: RangeQuery) -> Steps[Answer]:
        """As `range_query`, in steps."""
        if not question.keys and not question.selection.where:
            return self.range_query(question)
        if (rollup := self._of_rollup(question, lambda _: question.start)) is not None:
            return (yield from rollup.range_steps(question))
        last = self._checked_range(question)
        self._asked.check_several(question.key)
        self._groups.check(question.selection)
        found = yield from self._groups.together(question.selection.where, question.keys)
        bounds = np.array([question.start]), np.array([last])
        (answer,) = yield from self._groups.answers(found, bounds, None, question.partials)
        return answer

    @narrowed
    def range_groups(self, question: RangeQuery) -> Steps[Page[Answer]]:
        """The answers of a range query that groups keys, in steps."""
        if (rollup := self._of_rollup(question, lambda _: question.start)) is not None:
            return _of_groups((yield from rollup.range_groups(question)))
        last = self._checked_range(question)
        self._check_grouped(question)
        return (yield from self._groups.ranges(question, last))

    def _check_grouped(self, question: RangeQuery | SeriesQuery) -> None:
        self._asked.check_several(question.key)
        self._groups.check(question.selection)
        if question.selection.by is None:
            raise InvalidArgument("top, having and limit are for groups: say by", field="by")

    def _checked_range(self, question: RangeQuery) -> int:
        """The last time of a range."""
        check_time(question.start, "start")
        return last_of(question.start, question.end, question.end_exclusive)

    def series(self, question: SeriesQuery) -> Series:
        """Answer a series.

        Raises:
            InvalidArgument: start >= end, or more buckets than the limit.
            Unsupported: several keys where an aggregate depends on the order of entries.
        """
        return finished(self.series_steps(question))

    @narrowed
    def series_steps(self, question: SeriesQuery) -> Steps[Series]:
        """As `series`, in steps."""
        key, keys = question.key, question.keys
        if question.gap is not None:
            check_sessions(question)
            number = self._asked.find(self._asked.name(key))
            store = Forest(self._all) if number is None else self._keys.store(number)
            return (yield from sessions_steps(question, self._spec, self._layout, store, self._cold, self._costs))
        if (rollup := self._of_rollup(question, lambda _: question.start)) is not None:
            return (yield from rollup.series_steps(question))
        starts, stops, every, wide = buckets_of(question, self._spec, self._costs)
        if keys or question.selection.where:
            self._asked.check_several(key)
            self._groups.check(question.selection)
            found = yield from self._groups.together(question.selection.where, keys)
        else:
            number = self._asked.find(self._asked.name(key))
            found = Chosen.together(np.array([] if number is None else [number], np.int64))
        if not question.partials and len(found.numbers) == 1:
            number, n = found.numbers.item(), len(starts)
            if self._costs.sized and n > 1:
                entries, answers = self._keys.range_query(number, question.start, int(stops[-1]) - 1, self._layout)
                self._costs.check_series(entries, self._named(answers), n, -(-wide // every))
            each, columns = yield from self._keys.store(number).series_steps(starts, stops, self._layout)
            return Series(key, starts, wide, each, self._named(columns), parts=parts_of(self._spec, key))
        (series,) = yield from self._groups.series_of(found, starts, stops, wide, question.partials)
        series.key, series.parts = key, parts_of(self._spec, key)
        return series

    @narrowed
    def series_groups(self, question: SeriesQuery) -> Steps[Page[Series]]:
        """The series of a question that groups keys, in steps."""
        if (rollup := self._of_rollup(question, lambda _: question.start)) is not None:
            return _of_groups((yield from rollup.series_groups(question)))
        starts, stops, _, wide = buckets_of(question, self._spec, self._costs)
        self._check_grouped(question)
        return (yield from self._groups.series(question, starts, stops, wide))

    def answers_at_steps(self, question: AnswersAt) -> Steps[list[AnswerColumns]]:
        """The answers about many pairs of a key and a time, in steps.

        Raises:
            InvalidArgument: the question is wrong, or its answers would be larger than the limit.
        """
        reader = self._for(question.aggregates) if question.aggregates else self
        return (yield from reader._pairs.answers(question, self.spans(question.lookbacks)))

    def entries(self, question: EntriesQuery, rows: int = BULK_ROWS) -> Entries:
        """The entries as of now, in bulks of up to `rows` rows.

        Raises:
            InvalidArgument: start > end; or start >= end, where the end is exclusive; or limit < 1; or `known` with
                several keys.
            Unsupported: the window does not keep what was known when.
        """
        return finished(self.entries_steps(question, rows))

    def entries_steps(self, question: EntriesQuery, rows: int = BULK_ROWS) -> Steps[Entries]:
        """As `entries`; the keys are found in steps."""
        start, end, key, keys = question.start, question.end, question.key, question.keys
        if start is not None:
            check_time(start, "start")
        if question.limit is not None and question.limit < 1:
            raise InvalidArgument(f"limit {question.limit} is out of range", field="limit", limit="1 and more")
        last = None if end is None else last_of(start, end, question.end_exclusive)
        if keys or question.where:
            self._asked.check_several(key)
            self._labels.check(question.where, None)
            numbers = yield from self._groups.numbers(question.where, keys)
        else:
            number = self._asked.find(self._asked.name(key))
            numbers = np.array([] if number is None else [number], np.int64)
        spec, of, cold = self._spec, self._keys, self._cold
        if question.known:
            spec = numbered_spec(spec, question.known)
            known = self.known_of()
            if keys or question.where:
                raise InvalidArgument("known is for the entries of one key", field="known")
            if question.known == "removed":
                of, cold = known.removed.keys, known.removed.cold
                if len(numbers):
                    numbers, start = known.removed_from(numbers.item(), start)
        limit, reverse = question.limit, question.reverse
        return (yield from Entries(spec, of, numbers, start, last, cold, rows, limit, reverse).captured())

    def key_names_steps(
        self, prefix: str, limit: int, position: int, where: Sequence[Where]
    ) -> Steps[tuple[list[str], int | None]]:
        """A page of the names of keys, and where to go on; see `Plane.keys`."""
        if not self._spec.keyed:
            raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="window")
        if not 1 <= limit <= MAX_KEY_NAMES:
            raise InvalidArgument(f"limit {limit} is out of range", field="limit", limit=f"1 to {MAX_KEY_NAMES}")
        if position < 0:
            raise InvalidArgument(f"position {position} is negative", field="position", limit="0 and more")
        self._labels.check(where, None)
        conditions = yield from self._labels.conditions(where)
        return (yield from names_steps(self._keys, prefix, limit, position, self._slide.late_through(), conditions))

    def spans(self, lookbacks: Sequence[str | int]) -> list[Span]:
        """Lookbacks as they were asked for, and in ticks."""
        if len(lookbacks) > MAX_LOOKBACKS:
            raise InvalidArgument(
                f"{len(lookbacks)} lookbacks in one query", field="lookbacks", limit=f"{MAX_LOOKBACKS}"
            )
        return [(str(text), parse_duration(text, self._spec.time_unit, "lookback")) for text in lookbacks]

    # ---------------------------------------------------------------- answers

    def _answers(self, name: str, key: str | None, spans: Sequence[Span], question: Query) -> list[Answer]:
        """The answers of one key: one for each lookback, or one over everything (up to `as_of`)."""
        keys, as_of, known_at, partials = self._keys, question.as_of, question.known_at, question.partials
        number = self._asked.find(name)
        if spans:
            now, end = trailing(self._slide, as_of, None if number is None else keys.now_of[number]) or (None, None)
            answers = []
            for text, span in spans:
                start = None if now is None else max(now - span + 1, TICK_MIN)
                answers.append(self._range(number, key, start, end, text, partials, known_at))
        elif number is None:
            answers = [self._range(None, key, None, as_of, None, partials)]
        elif as_of is not None:
            answer = self._range(number, key, TICK_MIN, as_of, None, partials, known_at)
            answer.start = keys.span(number)[0] if answer.entries else None
            if answer.entries and known_at is not None:
                answer.start = self.known_of().oldest(number, known_at)
            answers = [answer]
        else:
            self._costs.check_entries(keys.entries(number))
            entries, named = keys.query(number, self._layout)
            answer = Answer(key, *keys.span(number), entries, self._named(named), parts=parts_of(self._spec, key))
            if partials:
                answer.partials = partials_of(self._layout, entries, keys.totals(number, self._layout))
            answers = [answer]
        if self._known is not None:
            for answer in answers:
                answer.known_at = self._known.number if known_at is None else known_at
        return answers

    def _range(
        self,
        number: int | None,
        key: str | None,
        start: int | None,
        end: int | None,
        lookback: str | None,
        partials: bool,
        known_at: int | None = None,
    ) -> Answer:
        """The answer over a range of a key; over no entries where there is no key, or no now."""
        if number is None or start is None or end is None:
            entries, totals = 0, list(self._layout.identities)
        elif known_at is None or self._wide is None:
            entries, totals = self._keys.range_totals(number, start, end, self._layout)
        else:
            entries, totals = self.known_of().range_totals(number, start, end, known_at, self._layout, self._wide)
        self._costs.check_entries(entries)
        answers = self._named(self._layout.lower(entries, totals))
        out = partials_of(self._layout, entries, totals) if partials else None
        return Answer(key, start, end, entries, answers, lookback, out, parts_of(self._spec, key))

    def _named(self, answers: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._layout.names, answers, strict=True))


def named(names: Sequence[str], known: Collection[str], window: str) -> tuple[str, ...]:
    """The aggregates that a question names, each once, in the order of the spec.

    Raises:
        InvalidArgument: the window has no such aggregate, or the names are one text.
    """
    if isinstance(names, str):
        raise InvalidArgument("aggregates is a list of names", field="aggregates")
    asked = frozenset(names)
    if unknown := asked.difference(known):
        wrong, there = next(name for name in names if name in unknown), ", ".join(known)
        no = f"no aggregate {str(wrong)[:140]!r}{instead(wrong, known, 'it has')}"
        refuse("aggregates", f"window {window!r} has {no}", limit=there)
    return tuple([name for name in known if name in asked])


def _of_groups(answers: Answers) -> Answers:
    """Answers about groups, which are keys of a rollup only."""
    for answer in answers:
        answer.key = None
    return answers
