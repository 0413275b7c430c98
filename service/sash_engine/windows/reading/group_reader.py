"""Answers about keys that conditions select, and about groups of them: `where`, `by`, `top`, `having`, pages.

    select   where, keys            ──▶ numbers of keys        labels.py
    group    by; or each key alone  ──▶ a group for each key   labels.py
    choose   having, top            ──▶ some of the groups     by a fold of what these compare only
    answer   the groups of a page   ──▶ answers                group_folds.py, one vectorised pass for all aggregates

The answer of a group is the one that `combine` gives for its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.forest import Layout
from sash_engine.forest.series import answers_of, rows_of
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import Pane
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import Answer, Page, Series, parts_of
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.totals import partials_of, partials_of_buckets
from sash_engine.windows.questions import (
    AllKeys,
    Grouped,
    GroupedQuestion,
    KeyList,
    Query,
    RangeQuery,
    SeriesQuery,
    Where,
)
from sash_engine.windows.reading.bounds import trailing, trailing_each
from sash_engine.windows.reading.choosing import Compared, check_choice, chosen, names_compared, passing
from sash_engine.windows.reading.costs import MAX_ANSWERS
from sash_engine.windows.reading.group_folds import Bounds, fold_groups, nothing_of
from sash_engine.windows.reading.group_series import series_steps
from sash_engine.windows.reading.key_finder import KeyFinder
from sash_engine.windows.reading.labels import Groups, Labels
from sash_engine.windows.sliding.view_keys import ReadableKeys
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN
from sash_wire.errors import WireError
from sash_wire.labels import join, split

_KEYS = 65_536
"""Keys that one step looks at."""
_SPANS = 16_384
"""Keys of which one step reads the oldest and the newest time: 2 ms."""
_ANSWERS = 256
"""Answers that one step makes: 1 ms."""

Span = tuple[str, int]
T = TypeVar("T")


@dataclass(slots=True)
class Chosen:
    """The keys of a question, by group.

    Args:
        numbers: int64 (k,), the keys.
        of: int64 (k,), the group of each.
        groups: what the groups are called; None: each key is one.
        names: the groups that are answered, in order, as numbers of `groups`; `of` counts in these.
        among: int64, rising: the keys of all groups that there were to choose from; None where each key is a group.
        position: where the next page begins; None after the last.
        empty: the groups that have no entries, as numbers of `groups`.
        is_one: whether all keys are one group, which is called nothing.
    """

    numbers: Numbers
    of: Numbers
    groups: Groups | None
    names: Numbers
    among: Numbers | None = None
    position: str | None = None
    empty: frozenset[int] = frozenset()
    is_one: bool = False

    @classmethod
    def together(cls, numbers: Numbers) -> Chosen:
        """Some keys as one group."""
        return cls(numbers, np.zeros(len(numbers), np.int64), None, np.zeros(1, np.int64), numbers, is_one=True)

    def __len__(self) -> int:
        return len(self.names)

    def only(self, groups: Numbers) -> Chosen:
        """Some of the groups, in this order."""
        if self.groups is None:  # each is a key
            numbers = self.numbers[groups]
            return Chosen(numbers, np.arange(len(numbers)), None, numbers, None, self.position)
        to = np.full(len(self.names), -1)
        to[groups] = np.arange(len(groups))
        of = to[self.of]
        there = of >= 0
        numbers, of, names = self.numbers[there], of[there], self.names[groups]
        return Chosen(numbers, of, self.groups, names, self.among, self.position, self.empty)

    def first(self, n: int) -> Chosen:
        """The first groups, and where the next ones begin."""
        if len(self) <= n:
            return self
        found = self.only(np.arange(n))
        if self.groups is None:
            found.position = str(self.names[n])
        else:
            found.position = join(self.groups.texts(int(self.names[n - 1])))
        return found

    def key(self, group: int, keys: ReadableKeys) -> str | None:
        """The name of a group that is one key."""
        number = int(self.names[group])
        if self.groups is not None:
            return self.groups.key(number)
        return None if self.is_one else keys.name(number)

    def texts(self, keys: ReadableKeys) -> list[str]:
        """The names of groups each of which is one key."""
        return [keys.name(number) for number in self.names.tolist()]

    def page(self, answers: Sequence[T]) -> Page[T]:
        """Some answers, with where the next ones begin."""
        page = Page(answers)
        page.position = self.position
        return page


class GroupReader:
    """Answers questions about groups of one window's keys.

    Args:
        asked: finds keys by name.
        labels: finds keys by label.
        whole: the layout of all aggregates, which `top` and `having` may compare.
        layout: those that are answered.
    """

    def __init__(self, asked: KeyFinder, labels: Labels, whole: Layout, layout: Layout) -> None:
        self._asked, self._labels, self._whole, self._layout = asked, labels, whole, layout
        self._spec, self._keys, self._slide, self._costs = asked.spec, asked.keys, asked.slide, asked.costs
        self._monoids = {name: monoid for name, (monoid, _) in self._spec.monoids().items()}

    # ---------------------------------------------------------------- checking

    def check(self, selection: Grouped) -> None:
        """Check all of a question about several keys that takes no look at the keys.

        Raises:
            InvalidArgument: names the field and the limit.
            Unsupported: groups where an aggregate depends on the order of entries.
        """
        self._labels.check(selection.where, selection.by)
        check_choice(selection, self._monoids)
        if selection.by is not None and set(selection.by) != set(self._spec.labels):
            self.check_commutative(selection)
        if selection.limit is not None and not 1 <= selection.limit <= MAX_ANSWERS:
            raise InvalidArgument(
                f"limit {selection.limit} is out of range", field="limit", limit=f"1 to {MAX_ANSWERS}"
            )
        if selection.position and selection.limit is None:
            raise InvalidArgument("position is for pages: say a limit", field="position")
        if selection.top is not None and selection.limit is not None:
            raise InvalidArgument("top says how many answers there are: leave limit out", field="limit")

    def check_commutative(self, selection: Grouped | None = None) -> None:
        """Refuse answers over several keys where an aggregate that is answered or compared depends on the order."""
        compared = [self._monoids[name] for name in names_compared(selection) if name in self._monoids]
        for monoid in (*self._layout.answering_monoids, *compared):
            if not monoid.commutative:
                function = monoid.inner.function if isinstance(monoid, Pane) else monoid.function
                others = sorted([name for name, other in self._monoids.items() if other.commutative])
                way_out = f"; ask for other aggregates: {', '.join(others)}" if others else ""
                raise Unsupported(
                    f"{function} depends on the order of entries, and keys have none between them: "
                    f"window {self._spec.name!r} cannot answer over several keys together{way_out}",
                    field="keys",
                )

    # ---------------------------------------------------------------- choosing

    def together(self, where: Sequence[Where], keys: KeyList) -> Steps[Chosen]:
        """The keys that a question selects, as one group; raises as `check_commutative`."""
        self.check_commutative()
        return Chosen.together((yield from self.numbers(where, keys)))

    def numbers(self, where: Sequence[Where], keys: KeyList) -> Steps[Numbers]:
        """The numbers of the keys that a question selects, those without entries, too."""
        among = None
        if not isinstance(keys, AllKeys) and keys:
            among = yield from self._asked.numbers(keys)
        numbers = yield from self._labels.select(where, among)
        if self._slide.wall and among is None:
            for a, b in spans_of(len(numbers), _KEYS):
                self._slide.by_age_each(numbers[a:b])
                yield
        return numbers

    def choose(
        self, question: GroupedQuestion, lookbacks: int, bounds_of: Callable[[Chosen], Bounds | None]
    ) -> Steps[Chosen]:
        """The groups that a question is about, and their keys.

        Args:
            lookbacks: how many; each is an answer of each group.
            bounds_of: groups -> the bounds of what `top` and `having` compare.
        """
        selection = question.selection
        numbers = yield from self.numbers(selection.where, question.keys)
        found = yield from self._grouped(selection, numbers, isinstance(question, Query) and question.nows is not None)
        having, top = selection.having, selection.top
        lowest = self._after(selection, found)
        if lowest:
            found = found.only(np.arange(lowest, len(found)))
            yield
        if selection.limit is not None and not having:
            found = found.first(selection.limit)
        elif having or top is not None:
            found = yield from self._compared(selection, found, bounds_of(found))
            if selection.limit is not None:
                found = found.first(selection.limit)
        self._costs.check_answers(len(found), lookbacks)
        return found

    def _grouped(self, selection: Grouped, numbers: Numbers, empty_too: bool) -> Steps[Chosen]:
        """All groups that have entries, or `empty_too`."""
        if selection.by is not None and (numbers[1:] < numbers[:-1]).any():
            numbers = np.sort(numbers)
        filled = np.empty(len(numbers), np.bool_)
        for a, b in spans_of(len(numbers), _KEYS):
            filled[a:b] = self._keys.filled_each(numbers[a:b])
            yield
        if selection.by is None:
            numbers = numbers[filled]
            if selection.limit is not None:
                numbers = np.sort(numbers)  # pages go on behind a number
            return Chosen(numbers, np.arange(len(numbers)), None, numbers)
        of, groups = yield from self._labels.group(selection.by, numbers)
        names = np.arange(len(groups)) if len(numbers) else np.empty(0, np.int64)
        found = Chosen(numbers, of, groups, names, numbers)
        if filled.all():
            return found
        there = np.zeros(len(found), np.bool_)
        there[of[filled]] = True
        if empty_too:
            found.empty = frozenset(np.flatnonzero(~there).tolist())
            return found
        return found if there.all() else found.only(np.flatnonzero(there))

    def _after(self, selection: Grouped, found: Chosen) -> int:
        """The first group behind the question's position."""
        if not selection.position:
            return 0
        try:
            if found.groups is None:
                return int(found.names.searchsorted(int(selection.position), "left"))
            wanted = found.groups.behind(split(selection.position, len(found.groups.names)))
        except (WireError, ValueError, OverflowError):
            raise InvalidArgument(
                f"position {selection.position[:100]!r} is none that an answer gave", field="position"
            ) from None
        return int(found.names.searchsorted(wanted, "left"))

    def _compared(self, selection: Grouped, found: Chosen, bounds: Bounds | None) -> Steps[Chosen]:
        """Return the groups that pass `having` and `top`."""
        compared = Compared(selection, self._whole, self._monoids)
        self._costs.check_compared(len(found), [self._whole.monoids[slot] for slot in compared.slots])
        totals = yield from fold_groups(
            self._keys, self._whole, found.numbers, found.of, len(found), bounds, compared.slots, found.among
        )
        columns = yield from compared.columns(totals)
        left = yield from passing(selection.having, columns, len(found))
        if selection.top is not None:
            named = (lambda place: found.key(place, self._keys)) if found.groups is None else None
            left = yield from chosen(selection.top, columns[selection.top.by], left, named)
        return found.only(left)

    # ---------------------------------------------------------------- answering

    def _trailing(self, found: Chosen, question: Query, span: int) -> Bounds | None:
        """A lookback of each group, from its now on; None where there is no now yet. See `Reader`."""
        marks = np.full(len(found), NEVER)
        np.maximum.at(marks, found.of, self._keys.now[found.numbers])
        if question.nows and found.groups is not None:
            nows = [question.nows.get(join(found.groups.texts(name)), NEVER) for name in found.names.tolist()]
            marks = np.maximum(marks, nows)
        bounds = trailing_each(self._slide, question.as_of, marks)
        return None if bounds is None else (np.maximum(bounds[0], TICK_MIN + span - 1) - (span - 1), bounds[1])

    def _everything(self, as_of: int | None, n: int) -> Bounds | None:
        """All entries, or those up to a time."""
        return None if as_of is None else (np.full(n, TICK_MIN), np.full(n, as_of))

    def answers(
        self, found: Chosen, bounds: Bounds | None, lookback: str | None, partials: bool
    ) -> Steps[list[Answer]]:
        """The answer of each group over some time; None: over all entries."""
        n, layout = len(found), self._layout
        self._costs.need_answers(n, partials, True)
        totals = yield from fold_groups(self._keys, layout, found.numbers, found.of, n, bounds, among=found.among)
        self._costs.check_entries(int(totals.entries.sum()))
        filled = np.flatnonzero(totals.there)
        columns = [rows_of(each, filled) for each in totals.partials]
        yield
        answers = yield from answers_of(layout, columns if len(filled) else [], filled, totals.entries)
        entries, answers = layout.counted(totals.entries, answers)
        listed, counts = [column.tolist() for column in answers], entries.tolist()
        if bounds is None:
            starts, ends = yield from self._spans(found)
        else:
            starts, ends = bounds[0].tolist(), bounds[1].tolist()
        out, values = list[Answer](), 0
        for i in range(n):
            aggregates = dict(zip(layout.names, [column[i] for column in listed], strict=True))
            answer = Answer(found.key(i, self._keys), starts[i], ends[i], counts[i], aggregates, lookback)
            answer.parts = self.parts_of(found, i)
            if partials:
                answer.partials = partials_of(layout, counts[i], totals.of(i) if counts[i] else layout.identities)
            if (partials or self._costs.sized) and not found.is_one:
                values = self._costs.check_values(values, self._costs.values_of(answer))
            out.append(answer)
            if i % _ANSWERS == _ANSWERS - 1:
                yield
        return out

    def parts_of(self, found: Chosen, group: int) -> dict[str, str] | None:
        """The labels of a group, or of a key."""
        if found.groups is not None:
            return found.groups.labels(int(found.names[group]))
        return parts_of(self._spec, found.key(group, self._keys))

    def _spans(self, found: Chosen) -> Steps[tuple[list[int], list[int]]]:
        """The times of the oldest and the newest row of each group."""
        oldest, newest = np.full(len(found), TICK_MAX), np.full(len(found), NEVER)
        for a, b in spans_of(len(found.numbers), _SPANS):
            some, of = found.numbers[a:b], found.of[a:b]
            np.minimum.at(oldest, of, self._keys.oldest_each(some))
            np.maximum.at(newest, of, self._keys.newest_each(some))
            yield
        return oldest.tolist(), newest.tolist()

    def _over(self, found: Chosen, question: Query, span: Span | None) -> Bounds | None:
        """The times that a query asks about, of each group: a lookback, or everything."""
        if span is None:
            return self._everything(question.as_of, len(found))
        return self._trailing(found, question, span[1]) or nothing_of(len(found))

    def keys(self, question: Query, spans: Sequence[Span]) -> Steps[Chosen]:
        """The keys that a query without `by` chooses."""
        first = spans[0] if spans else None
        return (yield from self.choose(question, len(spans), lambda found: self._over(found, question, first)))

    def queries(self, question: Query, spans: Sequence[Span]) -> Steps[Page[Answer]]:
        """The answers of a query: those of a group one after the other, one for each lookback."""
        found = yield from self.keys(question, spans)
        return found.page((yield from self.over_each(found, question, spans)))

    def over_each(self, found: Chosen, question: Query, spans: Sequence[Span]) -> Steps[list[Answer]]:
        """The answers of groups over each lookback, or over everything; those of a group one after the other."""
        as_of, answers = question.as_of, list[list[Answer]]()
        for span in spans or (None,):
            text = None if span is None else span[0]
            answers.append((yield from self.answers(found, self._over(found, question, span), text, question.partials)))
        if not spans and as_of is not None:
            oldest, _ = yield from self._spans(found)
            for answer, start in zip(answers[0], oldest, strict=True):
                answer.start = start if answer.entries else None
        elif not spans and found.is_one and not answers[0][0].entries:
            answers[0][0].start = answers[0][0].end = None
        elif spans and trailing(self._slide, as_of, int(self._keys.now[found.numbers].max(initial=NEVER))) is None:
            for answer in chain.from_iterable(answers):
                answer.start = answer.end = None
        for group in np.flatnonzero(np.isin(found.names, list(found.empty))).tolist() if found.empty else ():
            for of_span in answers:
                of_span[group].start = None
        return [answer for of_group in zip(*answers, strict=True) for answer in of_group]

    def ranges(self, question: RangeQuery, last: int) -> Steps[Page[Answer]]:
        """The answers over start <= time <= last, one for each group."""

        def bounds(found: Chosen) -> Bounds:
            return np.full(len(found), question.start), np.full(len(found), last)

        found = yield from self.choose(question, 1, bounds)
        return found.page((yield from self.answers(found, bounds(found), None, question.partials)))

    def series(self, question: SeriesQuery, starts: Array, stops: Array, wide: int) -> Steps[Page[Series]]:
        """A series of each group over the buckets start <= time < stop."""
        found = yield from self.choose(question, 1, lambda found: self._within(found, starts, stops))
        return found.page((yield from self.series_of(found, starts, stops, wide, question.partials)))

    def _within(self, found: Chosen, starts: Array, stops: Array) -> Bounds:
        return np.full(len(found), int(starts[0])), np.full(len(found), int(stops[-1]) - 1)

    def series_of(self, found: Chosen, starts: Array, stops: Array, wide: int, partly: bool) -> Steps[list[Series]]:
        """A series of each of some groups.

        Args:
            partly: answer with partials, too.
        """
        layout, n = self._layout, len(starts)
        self._costs.check_buckets(len(found) * n)
        self._costs.need_buckets(len(found) * n)
        if self._costs.sized and len(found.numbers) and (n > 1 or not found.is_one):
            values, overlap = 0, -(-wide // int(starts[1] - starts[0])) if n > 1 else 1
            for answer in (yield from self.answers(found, self._within(found, starts, stops), None, False)):
                values = self._costs.check_series(answer.entries, answer.aggregates, n, overlap, values)
        entries, answers, folds = yield from series_steps(
            self._keys, layout, found.numbers, starts, stops, found.of, len(found)
        )
        partials = partials_of_buckets(layout, entries, folds) if partly else None
        filled = np.concatenate(([0], np.cumsum(entries > 0)))
        out = list[Series]()
        for i in range(len(found)):
            rows = slice(i * n, (i + 1) * n)
            columns = {name: column[rows] for name, column in zip(layout.names, answers, strict=True)}
            of_group = Series(found.key(i, self._keys), starts, wide, entries[rows], columns)
            of_group.parts = self.parts_of(found, i)
            if partials is not None:
                some = slice(int(filled[i * n]), int(filled[(i + 1) * n]))
                of_group.partials = {name: tuple(part[some] for part in parts) for name, parts in partials.items()}
            out.append(of_group)
            if i % _ANSWERS == _ANSWERS - 1:
                yield
        return out
