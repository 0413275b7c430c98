"""Pre-aggregation: Spark combines the rows of a micro-batch into panes, and panes travel instead of rows.

    rows      key  time   delay            panes   key  time   entries  partials
              JFK  10:03    4.0                    JFK  10:00     2     sum 6.0   variance (2, 3.0, 2.0)   …
              JFK  10:07    2.0     ──▶            EWR  10:10     1     sum 9.0   variance (1, 9.0, 0.0)   …
              EWR  10:12    9.0
                                    granularity 10m

A pane folds the rows of one key and one granule of the window's `granularity`. The window, which keeps panes itself,
takes them in as the partials that they are. Spark's own aggregates make them: it combines within tasks, shuffles what
is left, and combines again, so that a pane of a micro-batch is one row whatever the rows. Sketches are those of
DataSketches, in the binary form that the window reads.

The answers are those of the window fed with the rows: integers, extremes, distinct counts and collections exactly;
floats but for the order in which they are added up; quantiles and frequent items within the error of their sketches.
Where the order of rows says something (`first`, `last`, ties of `arg_max` and of `m4`, `collect`), rows of a
micro-batch count as arrived in the order of their times, and equal times in the order of their values: Spark keeps no
other. Third and fourth moments lose their digits where the sum of squares passes 1e100 or is below 1e-100, as Spark's
own do.

A row without a time, a key or a value fails the micro-batch, as it does without pre-aggregation.

Cost: it spares the network and the service, and Spark pays. Of 1,000,000 rows of an hour in panes of a minute, 600 (10
keys) or 60,000 (1,000 keys) travel, and the service takes 0.01 and 0.05 s for them instead of 0.3 s. On two cores that
Spark shares with the service, sums, extremes and deviations of 10 keys take as long as rows do; aggregates that need
the order of rows, for which Spark sorts, and sketches take two to eight times as long.

Source: Gray et al., "Data cube", ICDE 1996, for which aggregates combine; panes as in the service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from sash_client import InvalidArgument

__all__ = ["as_field", "check_preaggregation", "partials_of", "preaggregate"]

_ENTRIES = "entries"
_PARTIAL = "partial"
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_NANOSECONDS |= {"d": 24 * _NANOSECONDS["h"], "w": 168 * _NANOSECONDS["h"]}
_SPARK_TYPES = {"float64": "double", "int64": "bigint", "string": "string", "bool": "boolean"}


def preaggregate(
    df: DataFrame,
    spec: Mapping[str, Any],
    *,
    time: str,
    key: str | None = None,
    fields: Mapping[str, str] | None = None,
) -> DataFrame:
    """Combine rows into panes: one per key and granule.

    Args:
        df: the rows; not a stream, but a micro-batch of one.
        spec: the window's, which has a granularity.
        time: the column with the time: a timestamp, or integers (ticks).
        key: the column with the key, for a keyed window; cast to string.
        fields: field -> column; all of the window's fields, by their own names, where omitted.

    Returns:
        `time` (long: the tick at which the pane starts), `key` (string, where the window is keyed), `entries` (long)
        and for each aggregate but counts its parts, `partial:<aggregate>:<part>`; `partials_of` makes of them what
        `Window.stage` takes.

    Raises:
        InvalidArgument: an aggregate that Spark cannot combine, or a column that does not fit.
    """
    check_preaggregation(spec)
    kinds = spec["fields"]
    fields = fields or {name: name for name in kinds}
    types = {each.name: each.dataType for each in df.schema.fields}
    names = {field: f"value{i}" for i, field in enumerate(kinds)}
    columns = [_ticks(time, types[time], spec.get("time_unit", "us"), _granule(spec)).alias("tick")]
    if key is not None:
        columns.append(_present(_named(key).cast("string"), "string", key).alias("key"))
    for field, kind in kinds.items():
        name = fields[field]
        columns.append(_present(as_field(_named(name), types[name], kind, name), kind, name).alias(names[field]))
    since = F.pmod("tick", F.lit(_granule(spec)))
    rows = df.select(*columns).withColumn("since", since).withColumn("time", F.col("tick") - F.col("since"))
    parts = [
        part.alias(f"{_PARTIAL}:{name}:{which}")
        for name, aggregate in spec["aggregates"].items()
        for which, part in _parts(aggregate, kinds, names).items()
    ]
    keys = ["time", "key"] if key is not None else ["time"]
    return rows.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ENTRIES), *parts)


def check_preaggregation(spec: Mapping[str, Any]) -> None:
    """Check that Spark can make panes for a window.

    Raises:
        InvalidArgument: it has no granularity, or an aggregate that Spark cannot combine; `field` says which.
    """
    if not spec.get("granularity"):
        raise InvalidArgument(
            f"window {spec['name']!r} has no granularity: it keeps entries, and takes no panes", field="granularity"
        )
    for name, aggregate in spec["aggregates"].items():
        function, (field, _) = aggregate["function"], _reads(aggregate, spec["fields"])
        why = _why_not(function, spec["fields"].get(field, "int64"))
        if why is not None:
            raise InvalidArgument(
                f"aggregate {name!r}: Spark cannot combine {function}: {why}; write rows instead of panes",
                field=f"aggregates.{name}",
            )


def partials_of(table: pa.Table) -> dict[str, Any]:
    """What `Window.stage` is to be given of panes, besides times and keys: partials and entries.

    Args:
        table: n >= 1 rows of what `preaggregate` returns.
    """
    parts: dict[str, dict[str, Any]] = {}
    for name in table.column_names:
        if name.startswith(f"{_PARTIAL}:"):
            _, aggregate, part = name.split(":")
            parts.setdefault(aggregate, {})[part] = table[name]
    return {
        "partials": {aggregate: _outside(columns) for aggregate, columns in parts.items()},
        "entries": table[_ENTRIES].to_numpy(),
    }


def as_field(column: Column, found: DataType, kind: str, name: str) -> Column:
    """A column as one for a field of a window: numbers are widened, decimals become the nearest float.

    Args:
        column: of any type.
        found: its type.
        kind: the field's: float64, int64, string or bool.
        name: what to call it in an error.

    Raises:
        InvalidArgument: it would lose something, or is of another kind.
    """
    whole = isinstance(found, IntegralType) or (
        isinstance(found, DecimalType) and found.scale == 0 and found.precision <= 18
    )
    number = isinstance(found, IntegralType | DecimalType | FloatType | DoubleType)
    fits = {
        "float64": number,
        "int64": whole,
        "string": isinstance(found, StringType),
        "bool": isinstance(found, BooleanType),
    }
    if not fits[kind]:
        raise InvalidArgument(f"column {name!r} is a {found.simpleString()}; its field is a {kind}", field=name)
    return column.cast(_SPARK_TYPES[kind])


# ---------------------------------------------------------------- rows as the window has them


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")  # a dot in a name is a dot, not a path


def _refusal(message: str, kind: str) -> Column:
    return F.raise_error(F.lit(message)).cast(_SPARK_TYPES[kind])


def _present(column: Column, kind: str, name: str) -> Column:
    return F.coalesce(column, _refusal(f"{name} has missing values; a window's fields cannot be null", kind))


def _ticks(name: str, found: DataType, unit: str, granule: int) -> Column:
    """The time of each row in ticks; none is so small that its pane would start before all times."""
    column = _named(name)
    if isinstance(found, IntegralType):
        ticks = column.cast("bigint")
    elif unit == "none":
        raise InvalidArgument(f"{name!r} is an instant, but the window counts logical ticks", field=name)
    else:
        ticks = _rescaled(_micros(column, found, name), Fraction(1000, _NANOSECONDS[unit]), unit, name)
    low = F.lit(granule - 2**63)
    ticks = F.when(ticks > low, ticks).otherwise(_refusal(f"{name} is out of range", "int64"))
    return F.when(column.isNull(), _refusal(f"{name} has missing values; drop them first", "int64")).otherwise(ticks)


def _micros(column: Column, found: DataType, name: str) -> Column:
    if isinstance(found, TimestampType):
        return F.unix_micros(column)
    if not isinstance(found, TimestampNTZType):
        raise InvalidArgument(
            f"column {name!r} is a {found.simpleString()}: cast it to a timestamp, or to ticks", field=name
        )
    # Without a zone it is taken for UTC, whatever the session's zone is, as everywhere in Sash.
    days = F.datediff(F.to_date(column), F.lit("1970-01-01")).cast("bigint")
    minutes = F.hour(column) * F.lit(60) + F.minute(column)
    second = F.extract(F.lit("SECOND"), column)
    return (days * F.lit(1440) + minutes) * F.lit(60_000_000) + (second * F.lit(1_000_000)).cast("bigint")


def _rescaled(micros: Column, factor: Fraction, unit: str, name: str) -> Column:
    if factor == 1:
        return micros
    if factor > 1:
        bound = (2**63 - 1) // int(factor)
        return F.when(F.abs(micros) <= bound, micros * F.lit(int(factor))).otherwise(
            _refusal(f"{name} is out of range in {unit}", "int64")
        )
    instant = F.timestamp_micros(micros)
    coarse = F.unix_millis(instant) if unit == "ms" else F.unix_seconds(instant)
    return F.when(micros % F.lit(int(1 / factor)) == 0, coarse).otherwise(
        _refusal(f"{name} is not a whole number of ticks ({unit}); round it first if that is meant", "int64")
    )


def _granule(spec: Mapping[str, Any]) -> int:
    """The window's granularity in ticks; the service has checked that it is a duration."""
    text, unit = str(spec["granularity"]).strip(), spec.get("time_unit", "us")
    if text.isdigit():
        return int(text)
    lengths = re.findall(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d|w)", text)
    return int(sum(Fraction(number) * _NANOSECONDS[each] for number, each in lengths) / _NANOSECONDS[unit])


# ---------------------------------------------------------------- what each aggregate makes of them


@dataclass(frozen=True)
class _Entry:
    """What an aggregate reads of each row.

    Args:
        value: its field.
        kind: the field's type.
        returned: what `returns` names, or the time.
        parameters: of the function, among others.
    """

    value: Column
    kind: str
    returned: Column
    parameters: Mapping[str, Any]

    @property
    def number(self) -> Column:
        """The value as a double."""
        return self.value.cast("double")


def _reads(aggregate: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[str, str]:
    """The names of the field and of what is returned: a window's only field need not be named."""
    only = next(iter(kinds)) if len(kinds) == 1 else "time"
    return aggregate.get("field") or only, aggregate.get("returns") or "time"


def _why_not(function: str, kind: str) -> str | None:
    """Why Spark cannot combine an aggregate over a field of a type; None where it can."""
    if function not in _FUNCTIONS:
        return _WHY_NOT.get(function, "Spark has no such aggregate")
    if function in _SKETCHES and not hasattr(F, "kll_sketch_agg_double"):
        return "it can from Spark 4.1 on"
    if function == "distinct_count" and kind == "float64":
        return "its HLL sketches take no floats"
    return None


def _parts(aggregate: Mapping[str, Any], kinds: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Column]:
    """The parts of an aggregate's partial over a pane, by name and in order, as the service has them."""
    types, columns = {**kinds, "time": "int64"}, {**names, "time": "tick"}
    field, returned = _reads(aggregate, kinds)
    entry = _Entry(F.col(columns[field]), types[field], F.col(columns[returned]), aggregate)
    return _FUNCTIONS[aggregate["function"]](entry)


def _rows() -> Column:
    return F.count(F.lit(1))


def _sum(entry: _Entry) -> dict[str, Column]:
    if entry.kind == "float64":
        return {"sum": F.sum(entry.value)}
    # In two halves of 32 bits, none of which can overflow below 2^31 rows: int64 values have sums of any size.
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
    # The average of equal values may round, and their mean may not: it would differ from that of the next pane.
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


def _least(entry: _Entry) -> Column:
    # To Spark NaN is the largest of all; here it is more extreme than any number on both sides.
    least = F.min(entry.value)
    if entry.kind != "float64":
        return least
    return F.when(F.isnan(F.max(entry.value)), float("nan")).otherwise(least)


def _lowest(entry: _Entry, *rest: Column) -> Column:
    """The row with the smallest value, of several the first in time."""
    number = ~F.isnan(entry.value) if entry.kind == "float64" else F.lit(True)
    return F.min(F.struct(number.alias("number"), entry.value.alias("value"), F.col("tick").alias("time"), *rest))


def _highest(entry: _Entry, *rest: Column) -> Column:
    """The row with the largest value, of several the first in time."""
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
    # Times count from the start of the pane, so that nanoseconds since 1970 do not blur.
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
    value = entry.value.cast("bigint") if entry.kind == "bool" else entry.value
    if entry.kind == "string":  # Spark leaves out the empty string, and the service counts the int64 -1 in its place
        minus_one = F.unhex(F.lit("FF" * 8))
        value = F.when(value == "", minus_one).otherwise(F.encode(value, "UTF-8"))
    return {"sketch": F.hll_sketch_agg(value, int(entry.parameters.get("lg_k", 12)))}


def _quantile(entry: _Entry) -> dict[str, Column]:
    return {"sketch": F.kll_sketch_agg_double(entry.number, int(entry.parameters.get("k", 200)))}


def _frequent_items(entry: _Entry) -> dict[str, Column]:
    items = 3 * 2 ** int(entry.parameters.get("lg_max_map_size", 10)) // 4  # of which Spark takes this size of map
    return {"sketch": F.call_function("approx_top_k_accumulate", entry.value, F.lit(items))["sketch"]}


_FUNCTIONS: Mapping[str, Callable[[_Entry], dict[str, Column]]] = {
    "count": lambda entry: {},  # the service counts by `entries`
    "sum": _sum,
    "mean": _mean,
    "geometric_mean": _geometric_mean,
    **dict.fromkeys(("variance", "variance_population", "stddev", "stddev_population", "relative_variation"), _moments),
    "skewness": _third,
    "kurtosis": _fourth,
    "min": lambda entry: {"min": _least(entry)},
    "max": lambda entry: {"max": F.max(entry.value)},
    "range": lambda entry: {"min": _least(entry), "max": F.max(entry.value)},
    "arg_min": _arg_min,
    "arg_max": _arg_max,
    "first": lambda entry: {"first": F.min(_in_time(entry))["value"]},
    "last": lambda entry: {"last": F.max(_in_time(entry))["value"]},
    "m4": _m4,
    "linear_slope": _linear_slope,
    "histogram": _histogram,
    "collect": lambda entry: {"values": _collected(entry)},
    "collect_distinct": lambda entry: {"values": F.array_distinct(_collected(entry))},
    "distinct_count": _distinct_count,
    "quantile": _quantile,
    "frequent_items": _frequent_items,
}

_SKETCHES = ("quantile", "frequent_items")
"""What Spark has learnt lately."""

_WHY_NOT = {
    "bloom": "its Bloom filters hash in another way",
    "longest_increasing_run": "it would have to hold all rows of a pane, in order",
    "min_count": "it has no aggregate that counts how often the extreme occurs",
    "max_count": "it has no aggregate that counts how often the extreme occurs",
}


# ---------------------------------------------------------------- what leaves the tasks


def _outside(parts: dict[str, Any]) -> Any:
    """Partials as they travel: their parts as columns where all are numbers, else as one list of bytes."""
    integers = {name: column for name, column in parts.items() if pa.types.is_decimal(column.type)}
    with suppress(pa.ArrowInvalid):  # a sum that no int64 holds: they travel as integers of any size
        parts = parts | {name: column.cast(pa.int64()) for name, column in integers.items()}
    if all(_is_number(column.type) for column in parts.values()):
        return parts
    return [_blob(row) for row in zip(*(column.to_pylist() for column in parts.values()), strict=True)]


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def _blob(row: tuple[Any, ...]) -> bytes:
    """A partial as the service decodes it: a sketch as it is, an integer in two's complement, else JSON."""
    alone = row[0] if len(row) == 1 else None
    if isinstance(alone, bytes | bytearray):
        return bytes(alone)
    if isinstance(alone, Decimal):
        return int(alone).to_bytes(int(alone).bit_length() // 8 + 1, "little", signed=True)
    parts = [int(part) if isinstance(part, Decimal) else part for part in row]
    return json.dumps(parts[0] if len(row) == 1 else parts, separators=(",", ":")).encode()
