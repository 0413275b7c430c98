"""Aggregation operators: many series into one for each group.

    sum by (carrier) (…)      groups by the values of some labels
    topk(3, …)                some of the series themselves, at each time those that are largest

Source: Prometheus' documentation of its operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from sash.promql.errors import Refused
from sash.promql.ranges import exact_mean, exact_sum, is_sure, quantile_of
from sash.promql.values import NAME, Array, Labels, Vector, per_step
from sash_engine.steps import Steps, spans_of

PARAMETERS = frozenset(("topk", "bottomk", "quantile"))
_CALLS = 200
_SORTED = 20_000
"""Values that one step sorts, or adds exactly: 2 ms."""

Fold = Callable[[Array, Array], Array]
"""Of the values of one group (k, n) and where they are there: a value at each time; only where one is there."""


def _sum(values: Array, there: Array) -> Array:
    return np.where(there, values, 0.0).sum(0)  # type: ignore[no-any-return]


def _count(_: Array, there: Array) -> Array:
    return there.sum(0).astype(np.float64)  # type: ignore[no-any-return]


def _mean(values: Array, there: Array) -> Array:
    return np.asarray(_sum(values, there) / np.maximum(there.sum(0), 1))


def _variance(values: Array, there: Array) -> Array:
    return _mean((values - _mean(values, there)) ** 2, there)


AGGREGATIONS: Mapping[str, Fold] = {
    "sum": _sum,
    "avg": _mean,
    "min": lambda values, there: np.fmin.reduce(np.where(there, values, np.nan), 0),
    "max": lambda values, there: np.fmax.reduce(np.where(there, values, np.nan), 0),
    "count": _count,
    "group": lambda _, there: np.ones(there.shape[1]),
    "stddev": lambda values, there: np.sqrt(_variance(values, there)),
    "stdvar": _variance,
}

_EXACT = {"sum": exact_sum, "avg": exact_mean}


def aggregated(
    operator: str, vector: Vector, by: tuple[str, ...], without: bool, parameter: Array | None
) -> Steps[Vector]:
    """Fold the series of each group.

    Args:
        by: the labels that make groups; with `without`, all others do.
        parameter: float64 (n,), of `quantile`.
    """
    labels, groups = yield from _groups(vector, by, without)
    shape = len(groups), vector.there.shape[1]
    values, there = np.zeros(shape), np.zeros(shape, np.bool_)
    for row, group in enumerate(groups):
        some, present = vector.values[group], vector.there[group]
        there[row] = present.any(0)
        with np.errstate(all="ignore"):
            if operator == "quantile":
                assert parameter is not None
                yield from _quantiles(some, present, parameter, values[row])
            else:
                values[row] = AGGREGATIONS[operator](some, present)
                if operator in _EXACT:
                    yield from _corrected(_EXACT[operator], some, present, values[row])
        yield
    return Vector(labels, values, there)


def picked(operator: str, vector: Vector, by: tuple[str, ...], without: bool, parameter: Array) -> Steps[Vector]:
    """Keep the k largest series of each group at each time, or the smallest.

    The series of one time come largest first, or smallest first, as `topk` promises for instant queries.
    """
    if not np.isfinite(parameter).all() or np.abs(parameter).max(initial=0) >= 2**63:
        raise Refused(f"the parameter of {operator} is no number of series", field="query")
    most = parameter.astype(np.int64)
    _, groups = yield from _groups(vector, by, without)
    kept = np.zeros(vector.there.shape, np.bool_)
    order = list[int]()
    sign = -1.0 if operator == "topk" else 1.0
    for group in groups:
        of_group = np.asarray(group)
        for a, b in spans_of(len(most), _at_once(len(group))):
            there = vector.there[of_group, a:b]
            some = sign * vector.values[of_group, a:b]
            some[~there] = np.nan
            # NaN goes last, and what is not there behind it.
            ranks = np.lexsort((some, ~there), axis=0)
            places = np.empty(ranks.shape, np.int64)
            np.put_along_axis(places, ranks, np.arange(len(group))[:, None], 0)
            kept[of_group, a:b] = there & (places < most[a:b])
            if not a:
                order += of_group[ranks[:, 0]].tolist()
            yield
    rows = [row for row in order if kept[row].any()]
    found = vector.with_values(vector.values, kept).picked(rows)
    found.ordered = True
    return found


def _groups(vector: Vector, by: tuple[str, ...], without: bool) -> Steps[tuple[list[Labels], list[list[int]]]]:
    rows = dict[frozenset[tuple[str, str]], list[int]]()
    left_out, at_once = (*by, NAME), per_step(vector.labels)
    for row, labels in enumerate(vector.labels):
        if without:
            group = frozenset(item for item in labels.items() if item[0] not in left_out)
        else:
            group = frozenset((name, labels[name]) for name in by if name in labels)
        rows.setdefault(group, []).append(row)
        if not row % at_once:
            yield
    return [dict(group) for group in rows], list(rows.values())


def _corrected(exact: Callable[[Array], Steps[float]], values: Array, there: Array, into: Array) -> Steps[None]:
    """Fold one by one where NumPy's sum is not sure."""
    given = np.where(there, values, 0.0)
    counts = there.sum(0)
    unsure = (counts > 0) & ~is_sure(given.sum(0), np.abs(given).sum(0), counts)
    read = 0
    for i in np.flatnonzero(unsure).tolist():
        into[i] = yield from exact(values[there[:, i], i])
        read += len(values)
        if read > _SORTED:
            yield
            read = 0


def _at_once(series: int) -> int:
    """For how many times one step sorts the values of so many series."""
    return max(1, _SORTED // series)


def _quantiles(values: Array, there: Array, parameter: Array, into: Array) -> Steps[None]:
    asked = parameter.tolist()
    for a, b in spans_of(len(asked), min(_CALLS, _at_once(len(values)))):
        for i in range(a, b):
            into[i] = quantile_of(values[there[:, i], i], asked[i])
        yield
