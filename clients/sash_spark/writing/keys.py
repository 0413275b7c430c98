"""The columns of a DataFrame that have the keys of a window.

keyed: true                 key       one column, with the key
keys: [airport, carrier]    parts     a column for each part, by the part's name or another one
                            key       or one column, with the parts joined: JFK|AA
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegralType, StringType, StructType

from sash_client import InvalidArgument
from sash_spark.writing.paths import find


def check_keys(schema: StructType, columns: Iterable[str]) -> None:
    """Check that columns have keys, or parts of them; raises InvalidArgument."""
    for column in columns:
        kind = find(schema, column)[1]
        if not isinstance(kind, StringType | IntegralType):
            raise InvalidArgument(f"column {column!r} is a {kind.simpleString()}: cast it to a string", field=column)


def fitted_parts(
    spec: Mapping[str, Any], window: str, key: str | None, parts: Mapping[str, str] | None
) -> Mapping[str, str]:
    """Return the column of each part of a window's keys; nothing where one column has the key, or there are no keys.

    Args:
        spec: the window's.
        window: its name.
        key: the column with the key, if it is given.
        parts: part -> column; other parts have columns of their own names. None: nothing is given.

    Raises:
        InvalidArgument: they do not fit the window; `field` is key or parts.
    """
    known: Sequence[str] = spec.get("keys") or ()
    if parts is not None and key is not None:
        raise InvalidArgument("give either the column of the key or those of its parts", field="parts")
    for name in parts or {}:
        if name not in known:
            has = f"the parts {', '.join(known)}" if known else "no parts"
            raise InvalidArgument(f"keys of window {window!r} have {has}: {name!r} is none of them", field="parts")
    if spec["keyed"] != (key is not None) and not (known and key is None):
        raise InvalidArgument(
            f"window {window!r} is {'keyed: name the key column' if spec['keyed'] else 'not keyed'}", field="key"
        )
    return {} if key is not None else {name: name for name in known} | dict(parts or {})


def key_values(table: pa.Table | pa.RecordBatch, key: str | None, parts: Mapping[str, str]) -> Any:
    """Return the keys of a table's rows as `Window.stage` takes them; None without keys."""
    if key is not None:
        return _texts(table[key])
    return {name: _texts(table[column]) for name, column in parts.items()} or None


def _texts(column: Any) -> Any:
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column
