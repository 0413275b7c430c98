"""Aggregations that a window answers by groups of its keys, without an answer for each key.

    sum by (carrier) (flights:total{airport=~"J.*"})     one question: where airport=~J.*, by carrier
    sum(rate(flights:n[5m]))

A sum of sums is the sum over all entries, and so it is with counts, maxima and minima. Other aggregations take an
answer for each key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import promql_parser

from sash.plane import Plane
from sash.prometheus.folded import Folded
from sash.prometheus.matchers import Matchers
from sash.prometheus.names import Metric
from sash.prometheus.selectors import (
    Selectors,
    buckets_of,
    milliseconds,
    series_of,
    shifted,
    spread,
    trailing_of,
)
from sash.prometheus.times import Times
from sash.prometheus.values import NAME, Labels, Vector, check_cells
from sash_engine.errors import InvalidArgument
from sash_engine.windows.questions import ALL_KEYS, Query, SeriesQuery

__all__ = ["by_groups"]

_SAME = {"sum": ("sum", "count"), "max": ("max",), "min": ("min",)}
"""The functions of aggregates that an operator may be applied to before or after keys are put together."""


class _Asked(NamedTuple):
    """An aggregation as one question that groups keys."""

    metric: Metric
    matchers: Matchers
    width_ms: int | None
    at: Times
    by: list[str]
    divisor: float


async def by_groups(
    plane: Plane, selectors: Selectors, expr: Any, by: tuple[str, ...], without: bool, times: Times
) -> Vector | None:
    """Evaluate an aggregation by groups of keys; None where that is not what it means.

    Args:
        expr: the aggregation.
        by, without: its labels.
    """
    asked = _asked(selectors, str(expr.op), expr.expr, by, without, times)
    try:
        return None if asked is None else await _answered(plane, selectors, asked, times)
    except InvalidArgument:
        return None  # the window takes no such conditions, or has too many groups


async def _answered(plane: Plane, selectors: Selectors, asked: _Asked, times: Times) -> Vector | None:
    metric, spec, name = asked.metric, asked.metric.spec, asked.metric.aggregate
    assert name is not None
    where = asked.matchers.where(spec)
    # Keys that are one text have one group: all of them.
    groups: dict[str, Any] = {"by": asked.by} if spec.parts else {"keys": ALL_KEYS}
    if asked.at.count == 1:
        trailing = trailing_of(spec, asked.width_ms, asked.at.start_ms)
        if trailing is None:
            return Vector.empty(times.count)
        now, lookbacks = trailing
        answers = await plane.ask(
            spec.name, Query(None, lookbacks, now, where=where, combine=not spec.parts, aggregates=[name], **groups)
        )
        parts, folded = [answer.parts for answer in answers], Folded.of_answers([name], answers)
    else:
        buckets = buckets_of(spec, asked.width_ms, asked.at)
        if buckets is None:
            return Vector.empty(times.count)
        question = SeriesQuery(*buckets, where=where, aggregates=[name], **groups)
        rows = await series_of(plane, spec.name, question)
        if not rows:
            return Vector.empty(times.count)
        parts, folded = [row.parts for row in rows], Folded.of_series([name], rows)
    check_cells(len(parts), times.count)
    values, there = folded.column(name)
    if np.isnan(values).any():  # max and min pass over NaN between keys, and not within one
        return None
    selectors.warn(metric, name)
    labels: list[Labels] = [{part: value for part, value in (each or {}).items() if value} for each in parts]
    return spread(Vector(labels, values / asked.divisor, there), times)


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
        and spec.algorithm is None
        and matchers.is_of(spec)
        and monoid.commutative
    )
