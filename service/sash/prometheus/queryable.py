"""Windows as what PromQL asks: the leaves of an expression, and aggregations that windows answer by themselves.

window:aggregate                     a fold, over `max_age` or all there is
window:field                         the newest entry of the last five minutes
sum_over_time(window:field[1h])      a fold, where an aggregate of the field has the answer; else from its entries
rate(window:count[1h])               the fold over an hour, by 3600

sum by (carrier) (flights:total{airport=~"J.*"})     one question: where airport=~J.*, by carrier
sum(rate(flights:n[5m]))

A sum of sums is the sum over all entries, and so it is with counts, maxima and minima. Other aggregations take an
answer for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import promql_parser

from sash.calls import each
from sash.plane import Plane
from sash.prometheus.names import Metric
from sash.prometheus.series import (
    Folded,
    Selected,
    Selectors,
    buckets_of,
    conditions,
    floor_ticks,
    is_condition,
    plain,
    series_of,
    ticks_of,
    trailing_of,
)
from sash.promql.errors import Refused
from sash.promql.matchers import Matchers
from sash.promql.ranges import RANGES, Samples
from sash.promql.times import TIME_MAX_MS, Times, milliseconds, shifted
from sash.promql.values import LOOKBACK, NAME, Array, Labels, Vector, check_cells, spread, stacked, without_name
from sash.shard import Parts
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps
from sash_engine.windows.batches.batch import AnyBatch, Batch
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Grouped, Query, SeriesQuery
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, TICK_MAX, TimeUnit
from sash_wire.nulls import mark_of

R = TypeVar("R")

STALE_MS = 300_000
"""An entry is a field's value for so long, as in Prometheus."""

KEEP_NAME = frozenset(("last_over_time", "first_over_time"))

_BY: Mapping[str, str] = {
    "avg_over_time": "mean",
    "sum_over_time": "sum",
    "min_over_time": "min",
    "max_over_time": "max",
    "stddev_over_time": "stddev_population",
    "stdvar_over_time": "variance_population",
    "first_over_time": "first",
    "last_over_time": "last",
}
"""The aggregate that has the answer of a function."""

_PASS_OVER_NAN = ("min_over_time", "max_over_time")
"""The aggregates answer NaN where there is one among the entries."""

_COUNTERS = ("count", "sum")


_SAME = {"sum": ("sum", "count"), "max": ("max",), "min": ("min",)}
"""The functions of aggregates that an operator may be applied to before or after keys are put together."""

ENTRIES_MAX = 2_000_000
"""Entries that one selector may read: 32 MB."""

_KEYS_AT_ONCE = 1000
_NS_PER_MS = 1_000_000

ByKey = dict[str | None, tuple[Array, Array]]
"""Of each key the ticks, ascending, and the values of a field."""


class WindowsQueryable:
    """Answers one expression; it is a `promql.evaluate.Queryable`.

    Args:
        plane: answers the questions.
        selectors: find the series.
    """

    def __init__(self, plane: Plane, selectors: Selectors) -> None:
        self._plane = plane
        self.selectors = selectors
        self.room = selectors.room

    async def in_slices(self, steps: Steps[R]) -> R:
        """Take steps, and give turns to other calls between them."""
        return await self._plane.in_slices(steps)

    def expect(self, expr: Any) -> None:
        """Note which aggregates an expression names, so that they are asked for together."""
        for selector, function in _leaves(expr, ""):
            metric = self.selectors.named(Matchers.of(selector))
            if metric is None:
                continue
            name = metric.aggregate or _aggregate_for(metric, function, ())[0]
            if name is not None:
                self.selectors.expect(metric.spec.name, [name])

    async def instant(self, selector: promql_parser.VectorSelector, times: Times) -> Vector:
        """The values of a selector."""
        matchers, at = Matchers.of(selector), shifted(selector, times)
        found = []
        each = await self.selectors.selected(matchers)
        for selected in each:  # a pattern of names may fit many aggregates of a window
            if selected.metric.aggregate is not None:
                self.selectors.expect(selected.metric.spec.name, [selected.metric.aggregate])
        for selected in each:
            metric = selected.metric
            if metric.aggregate is None:
                _check_no_lookback(matchers, metric)
                if metric.spec.granularity is not None and matchers.equal(NAME) is None:
                    continue  # it has no entries, and nobody named it
                found.append(await self._newest(selected, at))
            else:
                width_ms = self.selectors.width_ms(metric, matchers)
                folded = await self.selectors.folded(selected, width_ms, at, metric.aggregate)
                self.selectors.warn(metric, metric.aggregate)
                found.append(Vector(selected.labels(), *folded.column(metric.aggregate)))
        return spread(stacked(found, at.count), times.count)

    async def over_time(
        self,
        function: str,
        matrix: promql_parser.MatrixSelector,
        times: Times,
        parameters: Sequence[Array] = (),
    ) -> Vector:
        """A function of the ranges behind each time.

        Args:
            parameters: of the function, each float64 (n,).
        """
        selector = matrix.vector_selector
        matchers, at = Matchers.of(selector), shifted(selector, times)
        if parameters and at.count != times.count:  # the same range at each time, and not the same answer
            at = Times(at.start_ms, 0, times.count)
        width_ms = milliseconds(matrix.range)
        found = []
        for selected in await self.selectors.selected(matchers):
            metric = selected.metric
            if metric.aggregate is not None and matchers.equal(NAME) is None:
                continue  # a range is of entries
            found.append(await self._over_time(function, selected, matchers, width_ms, at, times, parameters))
        vector = spread(stacked(found, at.count), times.count)
        return vector if function in KEEP_NAME else await self.in_slices(without_name(vector))

    async def _over_time(
        self,
        function: str,
        selected: Selected,
        matchers: Matchers,
        width_ms: int,
        at: Times,
        times: Times,
        parameters: Sequence[Array],
    ) -> Vector:
        metric, labels = selected.metric, selected.labels()
        if metric.aggregate is not None:
            folded = await self.selectors.folded(selected, width_ms, at, metric.aggregate)
            return Vector(labels, *self._of_aggregate(function, metric, folded, width_ms))
        _check_no_lookback(matchers, metric)
        name, member = _aggregate_for(metric, function, parameters)
        nullable = metric.field in (metric.spec.nullable or ())
        if name is None and (nullable or function not in ("count_over_time", "present_over_time")):
            return await self._of_entries(function, selected, width_ms, at, times, parameters)
        # The range that `@` fixes has one answer, which is not asked for at each time.
        once = at if at.step_ms else Times(at.start_ms, 1, 1)
        folded = await self.selectors.folded(selected, width_ms, once, name)
        self.selectors.warn(metric, name)
        if name is not None:
            values, there = folded.column(name, member)
            if function in _PASS_OVER_NAN and metric.spec.granularity is None and np.isnan(values[there]).any():
                return await self._of_entries(function, selected, width_ms, at, times, parameters)
        else:
            values, there = folded.entries.astype(np.float64), folded.entries > 0
            if function == "present_over_time":
                values = there.astype(np.float64)
        return spread(Vector(labels, values, there), at.count)

    def _of_aggregate(self, function: str, metric: Metric, folded: Folded, width_ms: int) -> tuple[Array, Array]:
        """A function of a range of `window:aggregate`: only rates of what is counted."""
        monoid, name = metric.monoid, metric.aggregate
        assert monoid is not None
        assert name is not None
        if function not in ("rate", "increase") or monoid.function not in _COUNTERS:
            window = metric.spec.name
            fields = ", ".join(f"{window}:{field}" for field in metric.spec.fields)
            raise Refused(
                f"{function}({metric.name}[…]): {metric.name} is an aggregate, and a range is of entries; use "
                f'{metric.name}{{{LOOKBACK}="5m"}} for the aggregate over a range, or {function} of a field '
                f"({fields}); rate and increase take aggregates count and sum",
                field="query",
            )
        self.selectors.warn(metric, name)
        values, there = folded.column(name)
        return (values / (width_ms / 1000) if function == "rate" else values), there

    # ---------------------------------------------------------------- from entries

    async def _newest(self, selected: Selected, at: Times) -> Vector:
        """The newest entry of each key at each time, no older than `STALE_MS`."""
        unit = selected.metric.spec.time_unit
        taken = np.zeros((selected.count, at.count), np.int64)

        def newest(row: int, ticks: Array, values: Array, low: Array, high: Array) -> Steps[tuple[Array, Array]]:
            if not row % 50:
                yield
            last = np.maximum(high - 1, 0)
            taken[row] = milliseconds_of(ticks[last], unit)
            return values[last], high > low

        found = await self._each_key(selected, STALE_MS, at, newest)
        found.times_ms = taken
        return found

    async def _of_entries(
        self,
        function: str,
        selected: Selected,
        width_ms: int,
        at: Times,
        times: Times,
        parameters: Sequence[Array],
    ) -> Vector:
        unit = selected.metric.spec.time_unit
        # What a second is in the finer one of ticks and milliseconds.
        second = 1_000_000_000 // min(NANOSECONDS_PER_TICK[unit], _NS_PER_MS)
        width = min(width_ms * (second // 1000), TICK_MAX)

        def ranged(_: int, ticks: Array, values: Array, low: Array, high: Array) -> Steps[tuple[Array, Array]]:
            result, there = np.zeros(at.count), np.zeros(at.count, np.bool_)
            some = np.flatnonzero(high > low)
            if len(some):
                taken, ends = finer(ticks, at.ms[some], unit)
                asked = finer(ticks, times.ms[some], unit)[1]
                given = [each[some] for each in parameters]
                with np.errstate(all="ignore"):
                    result[some], there[some] = yield from RANGES[function](
                        Samples(taken, values, low[some], high[some], ends, width, asked, second, given)
                    )
            yield
            return result, there

        return await self._each_key(selected, width_ms, at, ranged)

    async def _each_key(
        self,
        selected: Selected,
        width_ms: int,
        at: Times,
        one: Callable[[int, Array, Array, Array, Array], Steps[tuple[Array, Array]]],
    ) -> Vector:
        """A function of the entries of each key behind each time.

        Args:
            one: takes a row, its ticks and values, and for each time the first entry of its range and the first one
                behind it; returns values, and where they are there.
        """
        check_cells(selected.count, at.count)
        unit = selected.metric.spec.time_unit
        entries_of = await self._samples(selected, at.start_ms - width_ms, at.end_ms)

        def steps() -> Steps[Vector]:
            values = np.zeros((selected.count, at.count))
            there = np.zeros((selected.count, at.count), np.bool_)
            for row, key in enumerate(selected.each_key):
                if (of_key := entries_of.get(key)) is not None:
                    ticks = of_key[0]
                    low = ticks.searchsorted(ticks_of(at.ms - width_ms, unit), "right")
                    high = ticks.searchsorted(ticks_of(at.ms, unit), "right")
                    values[row], there[row] = yield from one(row, *of_key, low, high)
                elif not row % 50:
                    yield
            return Vector(selected.labels(), values, there)

        return await self.in_slices(steps())

    async def _samples(self, selected: Selected, start_ms: int, end_ms: int) -> ByKey:
        """The entries of a field with start < time <= end.

        Raises:
            Refused: there are too many, or the window keeps none.
        """
        metric = selected.metric
        spec = metric.spec
        if spec.granularity is not None:
            raise Refused(
                f"window {spec.name!r} keeps panes of {spec.granularity}, and no entries; use one of its aggregates, "
                "or a function that one of them has the answer of",
                field="query",
            )
        assert metric.field is not None
        low = max(floor_ticks(start_ms, spec.time_unit) + 1, 1 - TICK_MAX)
        high = min(floor_ticks(end_ms, spec.time_unit), TICK_MAX - 1)
        if low > high:
            return {}
        keys = selected.keys
        question = EntriesQuery(low, high) if keys is None else EntriesQuery(low, high, None, keys)
        return await _by_key(await self._plane.ask(spec.name, question), metric.field)

    async def entries(self, matrix: promql_parser.MatrixSelector, times: Times) -> list[tuple[Labels, Array, Array]]:
        """The entries of a range that stands alone: labels, times in ms, values."""
        selector = matrix.vector_selector
        matchers, at = Matchers.of(selector), shifted(selector, times)
        width_ms = milliseconds(matrix.range)
        found = list[tuple[Labels, Array, Array]]()
        rows = 0
        for selected in await self.selectors.selected(matchers):
            metric = selected.metric
            if metric.aggregate is not None:
                if matchers.equal(NAME) is None:
                    continue
                raise Refused(
                    f"{metric.name} is an aggregate, and has no entries; ask for it with query_range, or for the range "
                    "of a field",
                    field="query",
                )
            entries_of = await self._samples(selected, at.start_ms - width_ms, at.start_ms)
            for key, labels in zip(selected.each_key, selected.labels(), strict=True):
                if (of_key := entries_of.get(key)) is not None:
                    ms = milliseconds_of(of_key[0], metric.spec.time_unit)
                    found.append((labels, ms, of_key[1]))
                    rows += len(ms)
                    if rows > ENTRIES_MAX:
                        raise Refused(f"more than {ENTRIES_MAX:,} entries", field="query")
        return found

    # ---------------------------------------------------------------- by groups of keys

    async def grouped(self, expr: Any, by: tuple[str, ...], without: bool, times: Times) -> Vector | None:
        """Evaluate an aggregation by groups of keys; None where that is not what it means.

        Args:
            expr: the aggregation.
            by, without: its labels.
        """
        asked = _asked(self.selectors, str(expr.op), expr.expr, by, without, times)
        try:
            return None if asked is None else await self._grouped(asked, times)
        except InvalidArgument:
            return None  # the window takes no such conditions, or has too many groups

    async def _grouped(self, asked: _Asked, times: Times) -> Vector | None:
        metric, spec, name = asked.metric, asked.metric.spec, asked.metric.aggregate
        assert name is not None
        # Keys that are one text have one group: all of them.
        by, keys = (asked.by, ()) if spec.parts else (None, ALL_KEYS)
        selection = Grouped(conditions(asked.matchers, spec), by, aggregates=[name])
        if asked.at.count == 1:
            trailing = trailing_of(spec, asked.width_ms, asked.at.start_ms)
            if trailing is None:
                return Vector.empty(times.count)
            now, lookbacks = trailing
            query = Query(None, lookbacks, now, keys, combine=not spec.parts, selection=selection)
            answers = await self._plane.ask(spec.name, query)
            parts, folded = [answer.parts for answer in answers], Folded.of_answers([name], answers)
        else:
            buckets = buckets_of(spec, asked.width_ms, asked.at)
            if buckets is None:
                return Vector.empty(times.count)
            question = SeriesQuery(*buckets, keys=keys, selection=selection)
            rows = await series_of(self._plane, spec.name, question)
            if not rows:
                return Vector.empty(times.count)
            parts, folded = [row.parts for row in rows], Folded.of_series([name], rows)
        check_cells(len(parts), times.count)
        values, there = folded.column(name)
        if np.isnan(values).any():  # max and min pass over NaN between keys, and not within one
            return None
        self.selectors.warn(metric, name)
        labels: list[Labels] = [{part: value for part, value in (each or {}).items() if value} for each in parts]
        return spread(Vector(labels, values / asked.divisor, there), times.count)


class _Asked(NamedTuple):
    """An aggregation as one question that groups keys."""

    metric: Metric
    matchers: Matchers
    width_ms: int | None
    at: Times
    by: list[str]
    divisor: float


def _leaves(expr: Any, function: str) -> Iterator[tuple[Any, str]]:
    """The selectors of an expression, and the function that each is an argument of."""
    match expr:
        case promql_parser.VectorSelector():
            yield expr, function
        case promql_parser.MatrixSelector():
            yield expr.vector_selector, function
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from _leaves(expr.expr, "")
        case promql_parser.BinaryExpr():
            yield from _leaves(expr.lhs, "")
            yield from _leaves(expr.rhs, "")
        case promql_parser.AggregateExpr():
            yield from _leaves(expr.expr, "")
        case promql_parser.Call():
            for each in expr.args:
                yield from _leaves(each, expr.func.name)


def _aggregate_for(metric: Metric, function: str, parameters: Sequence[Array]) -> tuple[str | None, int | None]:
    """The aggregate of a field that has the answer of a function, and which member of its answer it is."""
    wanted = _BY.get(function)
    for name, (monoid, columns) in metric.spec.monoids().items():
        if columns not in ((metric.field,), (metric.field, mark_of(str(metric.field)))):
            continue
        if wanted is not None and monoid.function == wanted:
            return name, None
        if function == "quantile_over_time" and monoid.function == "quantile" and parameters:
            ranks = getattr(plain(monoid), "ranks", [])
            (q,), asked = parameters, float(parameters[0][0])
            if asked in ranks and (q == asked).all():
                return name, ranks.index(asked) if monoid.answer is list else None
    return None, None


def _check_no_lookback(matchers: Matchers, metric: Metric) -> None:
    if matchers.lookback is not None:
        raise Refused(
            f"{metric.name} is a field, which takes no {LOOKBACK}; use a function of a range, as "
            f"avg_over_time({metric.name}[5m])",
            field="query",
        )


def _asked(
    selectors: Selectors, operator: str, given: Any, by: tuple[str, ...], without: bool, times: Times
) -> _Asked | None:
    rated = ""
    while isinstance(given, promql_parser.ParenExpr):
        given = given.expr
    if isinstance(given, promql_parser.Call) and given.func.name in ("rate", "increase") and operator == "sum":
        rated, given = given.func.name, given.args[0]
        if not isinstance(given, promql_parser.MatrixSelector):
            return None
    selector = given.vector_selector if rated else given
    if not isinstance(selector, promql_parser.VectorSelector) or NAME in by:
        return None
    matchers = Matchers.of(selector)
    metric = selectors.named(matchers)
    if metric is None or not _suits(metric, operator, matchers):
        return None
    width_ms = milliseconds(given.range) if rated else selectors.width_ms(metric, matchers)
    labels = metric.spec.labels
    groups = [name for name in labels if (name not in by) == without]
    at = shifted(selector, times)
    if len(groups) == len(labels):
        return None
    divisor = width_ms / 1000 if rated == "rate" and width_ms is not None else 1.0
    return _Asked(metric, matchers, width_ms, at, groups, divisor)


def _suits(metric: Metric, operator: str, matchers: Matchers) -> bool:
    spec, monoid = metric.spec, metric.monoid
    return (
        monoid is not None
        and monoid.function in _SAME.get(operator, ())
        and spec.keyed
        and matchers.alone is not None
        # The conditions say all that the matchers say.
        and all(is_condition(one) if one.name in spec.labels else one.name == NAME for one in matchers.alone)
        and monoid.commutative
    )


def milliseconds_of(ticks: Array, unit: TimeUnit) -> Array:
    """Ticks as whole milliseconds, int64.

    >>> milliseconds_of(np.array([-1, 1_700_000_000_009_000]), "us").tolist()
    [-1, 1700000000009]
    """
    tick_ns = NANOSECONDS_PER_TICK[unit]
    if tick_ns <= _NS_PER_MS:
        return np.asarray(ticks // (_NS_PER_MS // tick_ns))
    most = TIME_MAX_MS // (tick_ns // _NS_PER_MS)
    return np.clip(ticks, -most, most) * (tick_ns // _NS_PER_MS)


def finer(ticks: Array, ms: Array, unit: TimeUnit) -> tuple[Array, Array]:
    """Ticks of samples, and milliseconds of an expression, both in the finer one of the two."""
    if NANOSECONDS_PER_TICK[unit] <= _NS_PER_MS:
        return ticks, ticks_of(ms, unit)
    return milliseconds_of(ticks, unit), ms


async def _by_key(bulks: Parts[AnyBatch], field: str) -> ByKey:
    rows = 0
    parts = dict[str | None, list[tuple[Array, Array]]]()
    async for bulk in each(bulks):
        assert isinstance(bulk, Batch)
        rows += len(bulk.times)
        if rows > ENTRIES_MAX:
            raise Refused(
                f"more than {ENTRIES_MAX:,} entries; narrow the selector or the range, or give the window an aggregate "
                "that has the answer",
                field="query",
                limit=f"{ENTRIES_MAX} entries",
            )
        values, times = np.asarray(bulk.columns[field], np.float64), bulk.times
        mark = bulk.columns.get(mark_of(field))
        there = slice(None) if mark is None else np.asarray(mark, np.bool_)
        values, times = values[there], times[there]
        if not len(times):
            continue
        if bulk.keys is None:
            parts.setdefault(None, []).append((times, values))
            continue
        codes = np.asarray(bulk.keys.codes)[there]
        for a, b in pairwise([0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]):
            if a < b:
                key = bulk.keys.dictionary[int(codes[a])]
                parts.setdefault(key, []).append((times[a:b], values[a:b]))
    found: ByKey = {}
    for of, pieces in parts.items():
        found[of] = (np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces]))
        if not len(found) % _KEYS_AT_ONCE:
            await asyncio.sleep(0)
    return found
