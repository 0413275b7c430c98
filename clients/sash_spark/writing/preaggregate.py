"""Pre-aggregation: Spark combines the rows of a micro-batch into panes, and panes travel instead of rows.

    rows      key  time   delay            panes   key  time   entries  partials
              JFK  10:03    4.0                    JFK  10:00     2     sum 6.0   variance (2, 3.0, 2.0)   …
              JFK  10:07    2.0     ──▶            EWR  10:10     1     sum 9.0   variance (1, 9.0, 0.0)   …
              EWR  10:12    9.0
                                    granularity 10m

A pane folds the rows of one key and one granule of the window's `granularity`. The window keeps panes itself and takes
these in as partials. Spark's own aggregates make them (`aggregates.py`): Spark combines rows within tasks, shuffles the
results and combines them again, so a pane of a micro-batch is one row, however many rows it folds. Sketches are those
of DataSketches, in the binary form that the window reads.

The answers are those of a window that is fed with the rows. Integers, extremes, distinct counts and collections are
equal. Floats differ by the order in which they are added up. Quantiles and frequent items are within the error of their
sketches. Spark does not keep the order of rows, so where the order matters (`first`, `last`, ties of `arg_max` and of
`m4`, `collect`), rows of a micro-batch are ordered by their times, and rows of equal times by their values. Third and
fourth moments lose their digits if the sum of squares is above 1e100 or below 1e-100, as Spark's own moments do.

A row without a time, a key or a value fails the micro-batch, with and without pre-aggregation.

Cost: less for the network and the service, more for Spark. Of 1,000,000 rows of an hour in panes of a minute, 600 rows
(10 keys) or 60,000 rows (1,000 keys) travel, and the service takes 0.01 or 0.05 s for them instead of 0.3 s. On two
cores that Spark shares with the service, sums, extremes and deviations of 10 keys take as long as rows do. Aggregates
that need the order of rows make Spark sort; these and sketches take two to eight times as long.

Source: Gray et al., "Data cube", ICDE 1996, for the aggregates that combine; panes as in the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sash_client import InvalidArgument
from sash_spark.names import named
from sash_spark.writing.aggregates import partial_columns, reads, why_not
from sash_spark.writing.casts import as_field, as_ticks, present
from sash_wire.durations import parse_duration

_ENTRIES = "entries"
_PARTIAL = "partial"


def preaggregate(
    df: DataFrame,
    spec: Mapping[str, Any],
    *,
    time: str,
    key: str | None = None,
    parts: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> DataFrame:
    """Combine rows into panes, one per key and granule.

    Args:
        df: the rows: a micro-batch of a stream, not the stream.
        spec: of a window with a granularity.
        time: the column with the time: a timestamp, or integers (ticks).
        key: the column with the key, for a keyed window; cast to string.
        parts: part -> column, for a window whose keys have parts; cast to string.
        fields: field -> column. By default each field of the window reads the column of its name.

    Returns:
        The columns `time` (long: the tick at which the pane starts), `key` (string, for a keyed window) or `part_NAME`
        for each part, `entries` (long), and `partial:<aggregate>:<part>` for each part of each aggregate except counts.
        `partials_of` turns them into the arguments of `Window.stage`.

    Raises:
        InvalidArgument: Spark cannot combine an aggregate, or a column does not fit its field.
    """
    check_preaggregation(spec)
    kinds = spec["fields"]
    fields = fields or {name: name for name in kinds}
    types = {each.name: each.dataType for each in df.schema.fields}
    names = {field: f"value{i}" for i, field in enumerate(kinds)}
    columns = [as_ticks(time, types[time], spec.get("time_unit", "us"), _granule(spec)).alias("tick")]
    if key is not None:
        columns.append(present(named(key).cast("string"), "string", key).alias("key"))
    for part, name in (parts or {}).items():
        columns.append(present(named(name).cast("string"), "string", name).alias(f"part_{part}"))
    for field, kind in kinds.items():
        name = fields[field]
        columns.append(present(as_field(named(name), types[name], kind, name), kind, name).alias(names[field]))
    since = F.pmod("tick", F.lit(_granule(spec)))
    rows = df.select(*columns).withColumn("since", since).withColumn("time", F.col("tick") - F.col("since"))
    partials = [
        part.alias(f"{_PARTIAL}:{name}:{which}")
        for name, aggregate in spec["aggregates"].items()
        for which, part in partial_columns(aggregate, kinds, names).items()
    ]
    keys = ["time", *(["key"] if key is not None else []), *(f"part_{part}" for part in parts or {})]
    return rows.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ENTRIES), *partials)


def check_preaggregation(spec: Mapping[str, Any]) -> None:
    """Check that Spark can make panes for a window.

    Raises:
        InvalidArgument: the window has no granularity, or Spark cannot combine an aggregate; `field` names it.
    """
    if not spec.get("granularity"):
        raise InvalidArgument(
            f"window {spec['name']!r} has no granularity: it keeps entries and takes no panes", field="granularity"
        )
    if spec.get("nullable"):
        raise InvalidArgument(
            f"window {spec['name']!r} has fields that may be null, whose partials Spark does not make: write rows "
            "instead of panes",
            field="nullable",
        )
    for name, aggregate in spec["aggregates"].items():
        function, (field, _) = aggregate["function"], reads(aggregate, spec["fields"])
        why = why_not(aggregate, spec["fields"].get(field, "int64"))
        if why is not None:
            raise InvalidArgument(
                f"aggregate {name!r}: Spark cannot combine {function}: {why}; write rows instead of panes",
                field=f"aggregates.{name}",
            )


def partials_of(table: pa.Table) -> dict[str, Any]:
    """Make the arguments `partials` and `entries` of `Window.stage`.

    Args:
        table: n >= 1 rows of the result of `preaggregate`.
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


def _granule(spec: Mapping[str, Any]) -> int:
    """Return the window's granularity in ticks. The service has checked that it is a duration."""
    return parse_duration(str(spec["granularity"]).strip(), spec.get("time_unit", "us"), "granularity")


# ---------------------------------------------------------------- what leaves the tasks


def _outside(parts: dict[str, Any]) -> Any:
    """Return partials as they travel: their parts as columns if all are numbers, else one list of bytes."""
    integers = {name: column for name, column in parts.items() if pa.types.is_decimal(column.type)}
    with suppress(pa.ArrowInvalid):  # sums beyond int64 travel as integers of any size
        parts = parts | {name: column.cast(pa.int64()) for name, column in integers.items()}
    if all(_is_number(column.type) for column in parts.values()):
        return parts
    return [_blob(row) for row in zip(*(column.to_pylist() for column in parts.values()), strict=True)]


def _is_number(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def _blob(row: tuple[Any, ...]) -> bytes:
    """Encode a partial as the service does: a sketch as it is, an integer in two's complement, else JSON."""
    alone = row[0] if len(row) == 1 else None
    if isinstance(alone, bytes | bytearray):
        return bytes(alone)
    if isinstance(alone, Decimal):
        return int(alone).to_bytes(int(alone).bit_length() // 8 + 1, "little", signed=True)
    parts = [int(part) if isinstance(part, Decimal) else part for part in row]
    return json.dumps(parts[0] if len(row) == 1 else parts, separators=(",", ":")).encode()
