"""The leaves of an expression: selectors at an instant, and functions of ranges.

window:aggregate                     a fold, over `max_age` or all there is
window:field                         the newest entry of the last five minutes
sum_over_time(window:field[1h])      a fold, where an aggregate of the field has the answer; else from its entries
rate(window:count[1h])               the fold over an hour, by 3600
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import promql_parser

from sash.plane import Plane
from sash.prometheus.errors import Refused
from sash.prometheus.folded import Folded
from sash.prometheus.matchers import Matchers
from sash.prometheus.names import Metric
from sash.prometheus.ranges import RANGES, Samples
from sash.prometheus.samples import ENTRIES_MAX, bounds, finer, milliseconds_of, samples, second_of
from sash.prometheus.selectors import (
    Selected,
    Selectors,
    milliseconds,
    shifted,
    spread,
    stacked,
)
from sash.prometheus.times import Times
from sash.prometheus.values import LOOKBACK, NAME, Labels, Vector, check_cells, merged, unnamed
from sash_engine.monoids import IgnoresNulls
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.spec import TICK_MAX
from sash_wire.nulls import mark_of

__all__ = ["KEEP_NAME", "STALE_MS", "Fetch"]

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
SAME = "vector cannot contain metrics with the same labelset"


class Fetch:
    """Answers the leaves of one expression.

    Args:
        plane: answers the questions.
        selectors: find the series.
    """

    def __init__(self, plane: Plane, selectors: Selectors) -> None:
        self._plane = plane
        self.selectors = selectors

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
        return spread(stacked(found, at.count), times)

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
        vector = spread(stacked(found, at.count), times)
        if function in KEEP_NAME:
            return vector
        return await self._plane.in_slices(_without_name(vector))

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
        return spread(Vector(labels, values, there), at)

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
        check_cells(selected.count, at.count)
        entries_of = await samples(self._plane, selected, at.start_ms - STALE_MS, at.end_ms)
        unit = selected.metric.spec.time_unit

        def steps() -> Steps[Vector]:
            values = np.zeros((selected.count, at.count))
            taken = np.zeros((selected.count, at.count), np.int64)
            there = np.zeros((selected.count, at.count), np.bool_)
            for row, key in enumerate(selected.each_key):
                if (of_key := entries_of.get(key)) is not None:
                    low, high = bounds(at, STALE_MS, of_key[0], unit)
                    there[row] = high > low
                    last = np.maximum(high - 1, 0)
                    values[row] = of_key[1][last]
                    taken[row] = milliseconds_of(of_key[0][last], unit)
                if not row % 50:
                    yield
            return Vector(selected.labels(), values, there, times_ms=taken)

        return await self._plane.in_slices(steps())

    async def _of_entries(
        self,
        function: str,
        selected: Selected,
        width_ms: int,
        at: Times,
        times: Times,
        parameters: Sequence[Array],
    ) -> Vector:
        check_cells(selected.count, at.count)
        entries_of = await samples(self._plane, selected, at.start_ms - width_ms, at.end_ms)
        unit = selected.metric.spec.time_unit
        second = second_of(unit)
        width = min(width_ms * (second // 1000), TICK_MAX)

        def steps() -> Steps[Vector]:
            values = np.zeros((selected.count, at.count))
            there = np.zeros((selected.count, at.count), np.bool_)
            for row, key in enumerate(selected.each_key):
                if (of_key := entries_of.get(key)) is not None:
                    low, high = bounds(at, width_ms, of_key[0], unit)
                    some = np.flatnonzero(high > low)
                    if len(some):
                        taken, ends = finer(of_key[0], at.ms[some], unit)
                        _, asked = finer(of_key[0], times.ms[some], unit)
                        given = Samples(
                            taken,
                            of_key[1],
                            low[some],
                            high[some],
                            ends,
                            width,
                            asked,
                            second,
                            [each[some] for each in parameters],
                        )
                        with np.errstate(all="ignore"):
                            values[row, some], there[row, some] = yield from RANGES[function](given)
                yield
            return Vector(selected.labels(), values, there)

        return await self._plane.in_slices(steps())

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
            entries_of = await samples(self._plane, selected, at.start_ms - width_ms, at.start_ms)
            for key, labels in zip(selected.each_key, selected.labels(), strict=True):
                if (of_key := entries_of.get(key)) is not None:
                    ms = milliseconds_of(of_key[0], metric.spec.time_unit)
                    found.append((labels, ms, of_key[1]))
                    rows += len(ms)
                    if rows > ENTRIES_MAX:
                        raise Refused(f"more than {ENTRIES_MAX:,} entries", field="query")
        return found


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
            ranks = getattr(monoid.inner if isinstance(monoid, IgnoresNulls) else monoid, "ranks", [])
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


def _without_name(vector: Vector) -> Steps[Vector]:
    labels = yield from unnamed(vector.labels)
    return (yield from merged(Vector(labels, vector.values, vector.there), SAME))
