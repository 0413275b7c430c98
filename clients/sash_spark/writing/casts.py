"""Columns of a DataFrame as the times and fields of a window.

A timestamp becomes ticks. Numbers are widened. A null, a time out of range and a time between two ticks fail the job
when Spark meets them.
"""

from __future__ import annotations

from fractions import Fraction

from pyspark.sql import Column
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
from sash_spark.names import named
from sash_wire.durations import NANOSECONDS

_SPARK_TYPES = {"float64": "double", "int64": "bigint", "string": "string", "bool": "boolean"}


def present(column: Column, kind: str, name: str) -> Column:
    """Return the column; the job fails at a null.

    Args:
        column: of any type.
        kind: the field's type.
        name: the column's name for the error.
    """
    return F.coalesce(column, _refusal(f"{name} has missing values; a window's fields cannot be null", kind))


def as_field(column: Column, found: DataType, kind: str, name: str) -> Column:
    """Cast a column to the type of a window's field: numbers are widened, decimals become the nearest float.

    Args:
        column: of any type.
        found: its type.
        kind: the field's type: float64, int64, string or bool.
        name: the column's name for the error.

    Raises:
        InvalidArgument: the cast could lose something, or the column has another kind of type.
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


def as_ticks(name: str, found: DataType, unit: str, granule: int) -> Column:
    """Return the time of each row in ticks.

    Args:
        name: the column.
        found: its type.
        unit: of a tick.
        granule: ticks per pane; a time so small that its pane would start before the first tick fails the job.

    Raises:
        InvalidArgument: the column is not a time, or the window counts logical ticks.
    """
    column = named(name)
    if isinstance(found, IntegralType):
        ticks = column.cast("bigint")
    elif unit == "none":
        raise InvalidArgument(f"{name!r} is an instant, but the window counts logical ticks", field=name)
    else:
        ticks = _rescaled(_micros(column, found, name), Fraction(1000, NANOSECONDS[unit]), unit, name)
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
    # A time without a zone is UTC, as everywhere in Sash, whatever the session's zone is.
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


def _refusal(message: str, kind: str) -> Column:
    return F.raise_error(F.lit(message)).cast(_SPARK_TYPES[kind])
