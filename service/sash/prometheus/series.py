"""From matchers to series: which windows and keys a selector means, and their values at all times of an expression.

{matchers} ──▶ metrics ──▶ keys ──▶ labels
                             └────▶ a question about all of them: a query at one time, else a series
                             └────▶ the entries, where no aggregate has the answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from sash.calls import key_names
from sash.plane import Plane
from sash.prometheus.names import Metric, MetricNames, key_of, labels_of
from sash.promql.errors import Refused
from sash.promql.matchers import Matcher, Matchers
from sash.promql.times import Times, duration_ms
from sash.promql.values import CELLS_MAX, LOOKBACK, NAME, Array, Labels, Room, check_cells
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import IgnoresNulls, Monoid
from sash_engine.monoids.base import object_array
from sash_engine.monoids.sketches import DistinctCount, Quantile
from sash_engine.steps import Steps
from sash_engine.windows.answers import Answer, Page, Series
from sash_engine.windows.questions import Grouped, KeysQuery, Query, SeriesQuery, Where
from sash_engine.windows.reading.conditions import MAX_PATTERN
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, TICK_MAX, TimeUnit, WindowSpec

_EVERYTHING = 2**61
"""Ticks that reach back before all entries, and leave room for all times behind 1970."""

_KEYS_AT_ONCE = 1000

_KEPT_CELLS = 2 * CELLS_MAX
"""Numbers of answers that are kept for the expression's other selectors: of entries, and of each aggregate."""

_CELL_BYTES = 32
"""Of a number that may be missing."""

_BUCKETS, _BUCKETS_LARGE = 500_000, 5_000
"""Of one question; half of what a window answers."""

_NUMBERS = (float, int, bool)
_APPROXIMATE = (Quantile, DistinctCount)


_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Folded:
    """Answers of a window for s series at n times: the numbers of entries, int64 (s, n), and the aggregates."""

    entries: Array
    aggregates: dict[str, list[Any]]

    @classmethod
    def of_answers(cls, names: Sequence[str], answers: Sequence[Answer]) -> Folded:
        """Answers at one time, of some aggregates."""
        entries = np.array([[answer.entries] for answer in answers], np.int64).reshape(-1, 1)
        return cls(entries, {name: [[answer.aggregates[name]] for answer in answers] for name in names})

    @classmethod
    def of_series(cls, names: Sequence[str], rows: Sequence[Series]) -> Folded:
        """Series of some aggregates, all of the same times."""
        entries = np.stack([row.entries for row in rows])
        return cls(entries, {name: [row.aggregates[name] for row in rows] for name in names})

    @classmethod
    def nothing(cls, names: Sequence[str], series: int, count: int) -> Folded:
        """The answers where there is no entry, for so many series at `count` times."""
        return cls(
            np.zeros((series, count), np.int64), {name: [[None] * count for _ in range(series)] for name in names}
        )

    @property
    def cells(self) -> int:
        """How many numbers there are."""
        return int(self.entries.size) * (1 + len(self.aggregates))

    def column(self, name: str, member: int | None = None) -> tuple[Array, Array]:
        """An aggregate as numbers, and where it has one.

        Args:
            member: of an answer that is a list.
        """
        values = np.zeros(self.entries.shape)
        there = self.entries > 0
        for row, answers in enumerate(self.aggregates[name]):
            column = np.asarray(answers) if member is None else object_array(list(answers))
            if column.dtype.hasobject:
                missing = np.fromiter((each is None for each in answers), np.bool_, len(answers))
                there[row] &= ~missing
                column = np.array(
                    [0.0 if each is None else float(each if member is None else each[member]) for each in answers]
                )
            values[row] = column
        return values, there


@dataclass(frozen=True)
class Selected:
    """Some series of one metric: the keys; None where the window has no keys."""

    metric: Metric
    keys: list[str] | None

    @property
    def each_key(self) -> Sequence[str | None]:
        """The key of each series."""
        return [None] if self.keys is None else self.keys

    @property
    def count(self) -> int:
        """How many series there are."""
        return 1 if self.keys is None else len(self.keys)

    def labels(self) -> list[Labels]:
        """The labels of all series."""
        if self.keys is None:
            return [{NAME: self.metric.name}]
        spec = self.metric.spec
        return [{NAME: self.metric.name, **labels_of(spec, key)} for key in self.keys]


class Selectors:
    """Finds series for one expression.

    Args:
        plane: answers the questions.
        names: the metrics of all windows.
        room: the expression's memory.
    """

    def __init__(self, plane: Plane, names: MetricNames, room: Room) -> None:
        self._plane = plane
        self._names = names
        self.room = room
        self._folded = dict[Any, list[Folded]]()
        self._kept_cells = 0
        self._expected = dict[str, dict[str, None]]()
        self.warnings: dict[str, None] = {}
        """What the caller should know of the answers, each once, in order."""

    # ---------------------------------------------------------------- which series

    def named(self, matchers: Matchers) -> Metric | None:
        """The metric that a selector names; None where it names none, or there is none."""
        name = matchers.equal(NAME)
        return None if name is None else self._names.named(name, self._spec)

    async def metrics(self, matchers: Matchers) -> list[Metric]:
        """The metrics that a selector may mean, of the windows that the caller may read."""
        if matchers.equal(NAME) is not None:
            found = self.named(matchers)
            return [] if found is None else [found]
        metrics = [
            metric
            for info in self._plane.list()
            if info.problem is None
            for metric in self._names.of(info.spec).values()
            if matchers.lookback is None or metric.aggregate is not None  # fields have no lookback
        ]
        which = await self._plane.in_slices(matchers.which_names([metric.name for metric in metrics]))
        return list(compress(metrics, which))

    def _spec(self, window: str) -> WindowSpec:
        return self._plane.spec(window, "query")

    async def selected(self, matchers: Matchers) -> list[Selected]:
        """The series that match, of each metric.

        Raises:
            Refused: there are too many.
        """
        found, count = list[Selected](), 0
        for metric in await self.metrics(matchers):
            found.append(await self.of_metric(metric, matchers, None))
            count += found[-1].count
            check_cells(count, 1)
        return [each for each in found if each.count]

    async def of_metric(self, metric: Metric, matchers: Matchers, most: int | None) -> Selected:
        """The series of a metric that match; the first `most` of them.

        Raises:
            Refused: there are too many, and `most` is None.
        """
        spec = metric.spec
        if not spec.keyed:
            return Selected(metric, None if matchers.matches({NAME: metric.name}) else [])
        if (key := key_of(spec, matchers.equal)) is None:
            return Selected(metric, await self._keys(metric, matchers, most))
        return Selected(metric, [key] if matchers.matches({NAME: metric.name, **labels_of(spec, key)}) else [])

    async def _keys(self, metric: Metric, matchers: Matchers, most: int | None) -> list[str]:
        """The keys of a window that match, by whatever the matchers say of the key; the first `most` of them.

        Raises:
            Refused: there are too many, and `most` is None.
        """
        spec = metric.spec
        # Each page asks the conditions anew: cheap for parts, of which a window has the distinct values.
        where = conditions(matchers, spec) if spec.parts else []
        found, at = list[str](), 0
        while True:
            try:
                some, next_ = await key_names(self._plane, spec.name, KeysQuery("", _KEYS_AT_ONCE, at, where))
            except InvalidArgument:
                if not where:
                    raise
                where = []  # the window takes no such condition
                continue
            found += await self._plane.in_slices(_matching(metric, matchers, some))
            if most is None:
                check_cells(len(found), 1)
            elif len(found) >= most:
                return found[:most]
            if next_ is None:
                return found
            at = next_
            await asyncio.sleep(0)

    # ---------------------------------------------------------------- aggregates

    def width_ms(self, metric: Metric, matchers: Matchers) -> int | None:
        """How far back `window:aggregate` looks: as the matchers say, or as the window's `max_age`; None: no limit."""
        if matchers.lookback is not None:
            return duration_ms(matchers.lookback, LOOKBACK)
        age = metric.spec.max_age_ticks
        return None if age is None else max(age * NANOSECONDS_PER_TICK[metric.spec.time_unit] // 1_000_000, 1)

    def expect(self, window: str, aggregates: Iterable[str]) -> None:
        """Note aggregates that will be asked for: the next question about the window is about all of them."""
        self._expected.setdefault(window, {}).update(dict.fromkeys(aggregates))

    async def folded(self, selected: Selected, width_ms: int | None, times: Times, name: str | None) -> Folded:
        """An aggregate over the trailing range at each time, with others that are expected: each is asked for once, and
        `w:total / w:n` is one question. None: only the numbers of entries."""
        check_cells(selected.count, times.count)
        cells = selected.count * times.count
        spec, keys = selected.metric.spec, None if selected.keys is None else tuple(selected.keys)
        asked = spec.name, keys, width_ms, times
        known = self._folded.get(asked, [])
        for each in known:
            if name is None or name in each.aggregates:
                return each
        names = [name or _simplest(spec)]
        for more in self._expected.get(spec.name, {}):
            there = more in names or any(more in each.aggregates for each in known)
            if not there and (len(names) + 2) * cells <= _KEPT_CELLS:
                names.append(more)
        check_cells(selected.count * max(_members(spec, each) for each in names), times.count)
        with self.room.promised(cells * (len(names) + 1) * _CELL_BYTES):
            if times.count == 1:
                found = await self._at_once(selected, width_ms, times.start_ms, names)
            else:
                found = await self._series(selected, width_ms, times, names)
        self._kept_cells += found.cells
        if self._kept_cells > _KEPT_CELLS:
            self._folded.clear()
            self._kept_cells = found.cells
        self._folded.setdefault(asked, []).append(found)
        return found

    async def _at_once(self, selected: Selected, width_ms: int | None, at_ms: int, names: Sequence[str]) -> Folded:
        spec, keys = selected.metric.spec, selected.keys
        trailing = trailing_of(spec, width_ms, at_ms)
        if trailing is None:
            return Folded.nothing(names, selected.count, 1)
        now, lookbacks = trailing
        if keys is None or len(keys) == 1:
            question = Query(keys[0] if keys else None, lookbacks, now, selection=Grouped(aggregates=names))
        else:
            question = Query(None, lookbacks, now, keys, selection=Grouped(aggregates=names))
        return Folded.of_answers(names, await self._plane.ask(spec.name, question))

    async def _series(self, selected: Selected, width_ms: int | None, times: Times, names: Sequence[str]) -> Folded:
        spec, keys = selected.metric.spec, selected.keys
        buckets = buckets_of(spec, width_ms, times)
        if buckets is None:
            return Folded.nothing(names, selected.count, times.count)
        start, end, step, width = buckets
        at_once = _series_at_once(spec, names, times.count)
        if keys is None or len(keys) == 1 or at_once == 1:
            each = selected.each_key
            asked = [SeriesQuery(start, end, step, width, key, selection=Grouped(aggregates=names)) for key in each]
            rows = [row for question in asked for row in await series_of(self._plane, spec.name, question)]
            return Folded.of_series(names, rows)
        found = dict[str | None, Series]()
        for a in range(0, len(keys), at_once):
            some = keys[a : a + at_once]
            of_some = SeriesQuery(
                start, end, step, width, keys=some, selection=Grouped(by=spec.labels, aggregates=names)
            )
            found |= {row.key: row for row in await series_of(self._plane, spec.name, of_some)}
        # A key whose entries have left since it was listed has no series.
        zeros, none = np.zeros(times.count, np.int64), np.full(times.count, None)
        empty = Series(None, zeros, 0, zeros, dict.fromkeys(names, none))
        return Folded.of_series(names, [found.get(key, empty) for key in keys])

    def warn(self, metric: Metric, aggregate: str | None) -> None:
        """Note that an answer is approximate."""
        spec = metric.spec
        monoid = None if aggregate is None else spec.monoids()[aggregate][0]
        if monoid is not None and isinstance(plain(monoid), _APPROXIMATE):
            self.warnings[f"{spec.name}:{aggregate} is approximate: a sketch answers {monoid.function}"] = None
        if spec.granularity is not None:
            self.warnings[f"{spec.name} keeps panes of {spec.granularity}: ranges take whole panes, by their start"] = (
                None
            )


def trailing_of(spec: WindowSpec, width_ms: int | None, at_ms: int) -> tuple[int, list[str | int]] | None:
    """The end and the lookbacks of a query about a trailing range; None where the range has no ticks."""
    now = min(floor_ticks(at_ms, spec.time_unit), TICK_MAX - 1)
    if width_ms is None:
        return now, []
    width = now - floor_ticks(at_ms - width_ms, spec.time_unit)
    return (now, [width]) if width > 0 else None


def buckets_of(spec: WindowSpec, width_ms: int | None, times: Times) -> tuple[int, int, int, int] | None:
    """The start, end, step and width of a series of trailing ranges; None where they have no ticks.

    Raises:
        Refused: the step is no whole number of ticks.
    """
    unit = spec.time_unit
    step, rest = divmod(times.step_ms * 1_000_000, NANOSECONDS_PER_TICK[unit])
    if rest:
        raise Refused(
            f"window {spec.name!r} counts in units of {unit}: the step must be a whole number of them",
            field="step",
            limit=f"multiples of 1{unit}",
        )
    first = floor_ticks(times.start_ms, unit)
    width = _EVERYTHING if width_ms is None else first - floor_ticks(times.start_ms - width_ms, unit)
    start = first - width + 1
    return (start, start + step * (times.count - 1) + 1, step, width) if width > 0 else None


def _matching(metric: Metric, matchers: Matchers, keys: Sequence[str]) -> Steps[list[str]]:
    each = ({NAME: metric.name, **labels_of(metric.spec, key)} for key in keys)
    return list(compress(keys, (yield from matchers.which(each))))


def _members(spec: WindowSpec, aggregate: str) -> int:
    """How many numbers an answer of an aggregate has."""
    monoid = spec.monoids()[aggregate][0]
    return len(getattr(plain(monoid), "ranks", ())) if monoid.answer is list else 1


def _simplest(spec: WindowSpec) -> str:
    """An aggregate that costs little, to name where only the number of entries is wanted."""
    cost = {name: (not each.counts_entries, not each.fixed) for name, (each, _) in spec.monoids().items()}
    return min(cost, key=cost.__getitem__)


def _series_at_once(spec: WindowSpec, names: Sequence[str], count: int) -> int:
    """How many series one question about some aggregates may be about."""
    monoids = [monoid for name, (monoid, _) in spec.monoids().items() if name in names]
    if any(monoid.answer not in _NUMBERS for monoid in monoids):
        return 1
    return max(1, (_BUCKETS_LARGE if any(monoid.external for monoid in monoids) else _BUCKETS) // count)


def plain(monoid: Monoid) -> Monoid:
    """Return the aggregate of the values that are not null."""
    return monoid.inner if isinstance(monoid, IgnoresNulls) else monoid


def conditions(matchers: Matchers, spec: WindowSpec) -> list[Where]:
    """Conditions that all keys of a window meet that match; those that match may be fewer."""
    return [
        Where(each.name, each.operator, [each.value])
        for each in matchers.alone or ()
        if each.name in spec.labels and is_condition(each)
    ]


def is_condition(matcher: Matcher) -> bool:
    """Whether a window takes a matcher as a condition."""
    return matcher.operator in ("=", "!=") or len(matcher.value) <= MAX_PATTERN


def floor_ticks(ms: int, unit: TimeUnit) -> int:
    """Return the last tick that is not behind a time in milliseconds.

    >>> floor_ticks(1999, "s"), floor_ticks(-1, "s"), floor_ticks(5, "us")
    (1, -1, 5000)
    """
    return ms * _NS_PER_MS // NANOSECONDS_PER_TICK[unit]


def ticks_of(ms: Array, unit: TimeUnit) -> Array:
    """As `floor_ticks`, of int64 (n,); times beyond int64 become its ends."""
    tick_ns = NANOSECONDS_PER_TICK[unit]
    if tick_ns >= _NS_PER_MS:
        return ms // (tick_ns // _NS_PER_MS)
    factor = _NS_PER_MS // tick_ns
    most = TICK_MAX // factor
    return np.clip(ms, -most, most) * factor


async def series_of(plane: Plane, window: str, question: SeriesQuery) -> Sequence[Series]:
    """The series that a window answers: one, or one for each group."""
    found = await plane.ask(window, question)
    return found if isinstance(found, Page) else [found]
