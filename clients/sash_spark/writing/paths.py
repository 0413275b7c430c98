"""Finds columns of a DataFrame by name, as Spark's analyser does: in any case, and into structures by a path.

schema   At timestamp, p struct<amount double, `odd.name` long>, `a.b` string

"At"         ("At",)               an exact name comes first, also one with a dot
"a.b"        ("a.b",)
"AT"         ("At",)               then one in another case, if there is only one
"p.amount"   ("p", "amount")       then a path
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql.types import DataType, StructType

from sash_client import InvalidArgument
from sash_spark.names import meant, named


def find(schema: StructType, name: str, otherwise: str = "") -> tuple[tuple[str, ...], DataType]:
    """Return the path of a column, and its type. `otherwise` ends the error where it is missing.

    Raises:
        InvalidArgument: there is none, or there are several that differ in case only.
    """
    found = _find(schema, name)
    if found is None:
        raise InvalidArgument(f"no column {name!r}; there are {', '.join(schema.names)}{otherwise}", field=name)
    return found


def _find(schema: StructType, name: str) -> tuple[tuple[str, ...], DataType] | None:
    same = meant(name, schema.names)
    if len(same) > 1:
        raise InvalidArgument(f"column {name!r} is one of {', '.join(same)}", field=name)
    if same:
        return (same[0],), schema[same[0]].dataType
    for at in range(len(name)):
        if name[at] != "." or (found := _find(schema, name[:at])) is None or not isinstance(found[1], StructType):
            continue
        if (deeper := _find(found[1], name[at + 1 :])) is not None:
            return found[0] + deeper[0], deeper[1]
    return None


def column_of(path: tuple[str, ...]) -> Column:
    """Return the expression of a path."""
    column = named(path[0])
    for name in path[1:]:
        column = column.getField(name)
    return column


def flat(batch: pa.RecordBatch, paths: Mapping[str, tuple[str, ...]]) -> pa.RecordBatch:
    """Return the columns of a batch under the names that they are asked for by."""
    columns: list[Any] = [
        batch.column(path[0]) if len(path) == 1 else pc.struct_field(batch.column(path[0]), list(path[1:]))
        for path in paths.values()
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(paths))
