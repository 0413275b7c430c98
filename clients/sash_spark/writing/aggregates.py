"""Spark's list: how Spark makes the partial of each aggregate over a pane.

    function     parts of the partial      Spark's expressions
    sum          sum                       sum(value)
    variance     entries, mean, m2         count(1), avg(value), var_pop(value) * count(1)
    quantile     sketch                    kll_sketch_agg_double(value, k)

The names of the parts, and their order, are those of the aggregate in Sash (`parts` of its class). An aggregate that
Spark has no expression for is in `_REASONS` with the reason, or in no list at all.

The rows that the expressions see have the columns of the fields, `tick` (the time) and `since` (ticks since the pane's
start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, pairwise
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F


def why_not(aggregate: Mapping[str, Any], kind: str) -> str | None:
    """Say why Spark cannot combine an aggregate over a field of a type; None if it can."""
    function = aggregate["function"]
    combined = _SPARK.get(function)
    if combined is None:
        return _REASONS.get(function, "Spark has no such aggregate")
    if combined.needs is not None and not hasattr(F, combined.needs):
        return "it can from Spark 4.1 on"
    if aggregate.get("accuracy") == "tail":
        return "it has no t-digests"
    return combined.refuses.get(kind)


def reads(aggregate: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[str, str]:
    """Return the names of the field that an aggregate reads and of what it returns.

    Args:
        aggregate: its part of the spec.
        kinds: field -> type. The only field of a window need not be named in the spec.
    """
    only = next(iter(kinds)) if len(kinds) == 1 else "time"
    return aggregate.get("field") or only, aggregate.get("returns") or "time"


def partial_columns(
    aggregate: Mapping[str, Any], kinds: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, Column]:
    """Make the expressions of an aggregate's partial over a pane: part -> column, in the service's order.

    Args:
        aggregate: its part of the spec; `why_not` is None for it.
        kinds: field -> type.
        names: field -> the column of the rows that has it.
    """
    types, columns = {**kinds, "time": "int64"}, {**names, "time": "tick"}
    value, returned = reads(aggregate, kinds)
    others = [aggregate["with"]] if "with" in aggregate else aggregate.get("features", [])
    if aggregate["function"] in _OF_SEVERAL_FIELDS and not others:
        others = [next(iter(kinds))]
    entry = _Entry(
        F.col(columns[value]),
        types[value],
        F.col(columns[returned]),
        tuple(F.col(columns[other]).cast("double") for other in others),
        aggregate,
    )
    return _SPARK[aggregate["function"]].parts(entry)


@dataclass(frozen=True)
class _Entry:
    """What an aggregate reads of each row.

    Args:
        value: its field.
        kind: the field's type.
        returned: the field that `returns` names, or the time.
        others: the fields that `with` or `features` name, as doubles.
        parameters: the aggregate's part of the spec.
    """

    value: Column
    kind: str
    returned: Column
    others: tuple[Column, ...]
    parameters: Mapping[str, Any]

    @property
    def number(self) -> Column:
        """The value as a double."""
        return self.value.cast("double")


@dataclass(frozen=True)
class _Combined:
    """An aggregate that Spark can combine.

    Args:
        parts: makes the columns of the parts, by name.
        needs: a function of `pyspark.sql.functions` that older releases lack.
        refuses: field type -> why Spark cannot combine the aggregate over it.
    """

    parts: Callable[[_Entry], dict[str, Column]]
    needs: str | None = None
    refuses: Mapping[str, str] = field(default_factory=dict)


def _rows() -> Column:
    return F.count(F.lit(1))


def _sum(entry: _Entry) -> dict[str, Column]:
    if entry.kind == "float64":
        return {"sum": F.sum(entry.value)}
    # Sums of int64 can have any size. Sums of halves of 32 bits do not overflow below 2^31 rows.
    high = F.sum(F.shiftright(entry.value, 32)).cast("decimal(19,0)")
    low = F.sum(entry.value.bitwiseAND(F.lit(0xFFFFFFFF))).cast("decimal(19,0)")
    return {"sum": high * F.lit(2**32).cast("decimal(10,0)") + low}


def _mean(entry: _Entry) -> dict[str, Column]:
    return {"entries": _rows(), **_sum(entry)}


def _geometric_mean(entry: _Entry) -> dict[str, Column]:
    value = entry.number
    logarithm = F.when(value > 0, F.ln(value)).when(value == 0, -float("inf")).otherwise(float("nan"))
    return {"entries": _rows(), "log_sum": F.sum(logarithm)}


def _moments(entry: _Entry) -> dict[str, Column]:
    value, variance = entry.number, F.var_pop(entry.number)
    # The average of equal values may round. The mean must not: it would differ from the mean of the next pane.
    mean = F.when(variance == 0, F.min(value)).otherwise(F.avg(value))
    return {"entries": _rows(), "mean": mean, "m2": variance * _rows()}


def _third(entry: _Entry) -> dict[str, Column]:
    parts = _moments(entry)
    m2 = parts["m2"]
    return parts | {"m3": _unless_equal(m2, F.skewness(entry.number) * m2 * F.sqrt(m2 / _rows()))}


def _fourth(entry: _Entry) -> dict[str, Column]:
    parts = _third(entry)
    m2 = parts["m2"]
    return parts | {"m4": _unless_equal(m2, (F.kurtosis(entry.number) + 3) * m2 * (m2 / _rows()))}


def _unless_equal(m2: Column, moment: Column) -> Column:
    return F.when(m2 == 0, 0.0).otherwise(moment)


def _covariance(entry: _Entry) -> dict[str, Column]:
    x, (y,) = entry.number, entry.others
    return {
        "entries": _rows(),
        "mean_x": _average(x),
        "mean_y": _average(y),
        "s_xx": F.var_pop(x) * _rows(),
        "s_yy": F.var_pop(y) * _rows(),
        "s_xy": F.covar_pop(x, y) * _rows(),
    }


def _regression(entry: _Entry) -> dict[str, Column]:
    fields = {"y": entry.number} | {f"x{i}": column for i, column in enumerate(entry.others, 1)}
    means = {f"mean_{name}": _average(column) for name, column in fields.items()}
    pairs = combinations_with_replacement(fields.items(), 2)
    sums = {f"s_{i}_{j}": (F.var_pop(x) if i == j else F.covar_pop(x, y)) * _rows() for (i, x), (j, y) in pairs}
    return {"entries": _rows()} | means | sums


def _average(value: Column) -> Column:
    # As in `_moments`.
    return F.when(F.var_pop(value) == 0, F.min(value)).otherwise(F.avg(value))


def _theta_sketch(entry: _Entry) -> dict[str, Column]:
    return {"sketch": F.theta_sketch_agg(_hashed(entry), int(entry.parameters.get("lg_k", 12)))}


def _hashed(entry: _Entry) -> Column:
    """The value as the service hashes it. Spark leaves out the empty string; the service has the int64 -1 instead."""
    if entry.kind == "bool":
        return entry.value.cast("bigint")
    if entry.kind == "string":
        minus_one = F.unhex(F.lit("FF" * 8))
        return F.when(entry.value == "", minus_one).otherwise(F.encode(entry.value, "UTF-8"))
    return entry.value


def _least(entry: _Entry) -> Column:
    # In Spark NaN is larger than any number; in Sash it is more extreme on both sides.
    least = F.min(entry.value)
    if entry.kind != "float64":
        return least
    return F.when(F.isnan(F.max(entry.value)), float("nan")).otherwise(least)


def _lowest(entry: _Entry, *rest: Column) -> Column:
    """The row with the smallest value; of several, the first in time."""
    number = ~F.isnan(entry.value) if entry.kind == "float64" else F.lit(True)
    return F.min(F.struct(number.alias("number"), entry.value.alias("value"), F.col("tick").alias("time"), *rest))


def _highest(entry: _Entry, *rest: Column) -> Column:
    """The row with the largest value; of several, the first in time."""
    return F.max(F.struct(entry.value.alias("value"), (-F.col("tick")).alias("ago"), *rest))


def _arg_min(entry: _Entry) -> dict[str, Column]:
    row = _lowest(entry, entry.returned.alias("returned"))
    return {"min": row["value"], "returned": row["returned"]}


def _arg_max(entry: _Entry) -> dict[str, Column]:
    row = _highest(entry, entry.returned.alias("returned"))
    return {"max": row["value"], "returned": row["returned"]}


def _in_time(entry: _Entry) -> Column:
    return F.struct(F.col("tick").alias("time"), entry.value.alias("value"))


def _m4(entry: _Entry) -> dict[str, Column]:
    first, last = F.min(_in_time(entry)), F.max(_in_time(entry))
    low, high = _lowest(entry), _highest(entry)
    return {
        "first_time": first["time"],
        "first_value": first["value"],
        "last_time": last["time"],
        "last_value": last["value"],
        "min_time": low["time"],
        "min_value": low["value"],
        "max_time": -high["ago"],
        "max_value": high["value"],
    }


def _linear_slope(entry: _Entry) -> dict[str, Column]:
    # Times count from the start of the pane: nanoseconds since 1970 would lose digits as doubles.
    since, value = F.col("since").cast("double"), entry.number
    return {
        "entries": _rows(),
        "origin": F.min(F.col("tick") - F.col("since")),
        "mean_time": F.avg(since),
        "mean_value": F.avg(value),
        "s_tt": F.var_pop(since) * _rows(),
        "s_tv": F.covar_pop(since, value) * _rows(),
    }


def _histogram(entry: _Entry) -> dict[str, Column]:
    value, bounds = entry.number, [float(bound) for bound in entry.parameters["bounds"]]
    below = [F.count_if((value < bound) & ~F.isnan(value)) for bound in bounds]
    nan = F.count_if(F.isnan(value))
    bins = [below[0], *(b - a for a, b in pairwise(below)), _rows() - nan - below[-1], nan]
    return {"counts": F.array(*bins)}


def _collected(entry: _Entry) -> Column:
    return F.transform(F.array_sort(F.collect_list(_in_time(entry))), lambda row: row["value"])


def _distinct_count(entry: _Entry) -> dict[str, Column]:
    return {"sketch": F.hll_sketch_agg(_hashed(entry), int(entry.parameters.get("lg_k", 12)))}


def _quantile(entry: _Entry) -> dict[str, Column]:
    return {"sketch": F.kll_sketch_agg_double(entry.number, int(entry.parameters.get("k", 200)))}


def _frequent_items(entry: _Entry) -> dict[str, Column]:
    # Spark takes the number of items and makes a map of this size for them.
    items = 3 * 2 ** int(entry.parameters.get("lg_max_map_size", 10)) // 4
    return {"sketch": F.call_function("approx_top_k_accumulate", entry.value, F.lit(items))["sketch"]}


_SPARK: Mapping[str, _Combined] = {
    "count": _Combined(lambda entry: {}),  # the service counts by `entries`
    "sum": _Combined(_sum),
    "mean": _Combined(_mean),
    "geometric_mean": _Combined(_geometric_mean),
    "variance": _Combined(_moments),
    "variance_population": _Combined(_moments),
    "stddev": _Combined(_moments),
    "stddev_population": _Combined(_moments),
    "relative_variation": _Combined(_moments),
    "skewness": _Combined(_third),
    "kurtosis": _Combined(_fourth),
    "min": _Combined(lambda entry: {"min": _least(entry)}),
    "max": _Combined(lambda entry: {"max": F.max(entry.value)}),
    "range": _Combined(lambda entry: {"min": _least(entry), "max": F.max(entry.value)}),
    "arg_min": _Combined(_arg_min),
    "arg_max": _Combined(_arg_max),
    "first": _Combined(lambda entry: {"first": F.min(_in_time(entry))["value"]}),
    "last": _Combined(lambda entry: {"last": F.max(_in_time(entry))["value"]}),
    "m4": _Combined(_m4),
    "linear_slope": _Combined(_linear_slope),
    "histogram": _Combined(_histogram),
    "collect": _Combined(lambda entry: {"values": _collected(entry)}),
    "collect_distinct": _Combined(lambda entry: {"values": F.array_distinct(_collected(entry))}),
    "distinct_count": _Combined(_distinct_count, refuses={"float64": "its HLL sketches take no floats"}),
    "quantile": _Combined(_quantile, needs="kll_sketch_agg_double"),
    "frequent_items": _Combined(_frequent_items, needs="kll_sketch_agg_double"),  # no function of its own; also new
    "covariance": _Combined(_covariance),
    "covariance_population": _Combined(_covariance),
    "correlation": _Combined(_covariance),
    "linear_regression": _Combined(_regression),
    "theta_sketch": _Combined(_theta_sketch, needs="theta_sketch_agg"),
}

_OF_SEVERAL_FIELDS = ("covariance", "covariance_population", "correlation")
"""Aggregates whose `with` need not be given in a window with one field."""

_REASONS = {
    "bloom": "its Bloom filters hash in another way",
    "count_min": "its CountMin sketches hash in another way",
    "longest_increasing_run": "it would have to hold all rows of a pane, in order",
    "min_count": "it has no aggregate that counts how often the extreme occurs",
    "max_count": "it has no aggregate that counts how often the extreme occurs",
}
