"""Checks a route against its window and a DataFrame, before a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sash_client import InvalidArgument
from sash_spark.keys import fitted_parts
from sash_spark.paths import find

if TYPE_CHECKING:
    from sash_spark.parts import Route

__all__ = ["fitted"]

_FITTING: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "float64": ((DoubleType, FloatType, IntegralType), "double"),
    "int64": ((IntegralType,), "bigint"),
    "string": ((StringType,), "string"),
    "bool": ((BooleanType,), "boolean"),
}
"""Field type -> the Spark types that it takes, and the type to cast others to. Numbers are widened."""


def fitted(route: Route, spec: Mapping[str, Any], schema: StructType, as_rows: bool) -> Route:
    """Return the route with all fields named; takes and raises as `Route.fitted`."""
    known = list(spec["fields"])
    fields = dict(route.fields) if route.fields is not None else {name: name for name in known}
    parts = fitted_parts(spec, route.window, route.key, route.parts)
    if set(fields) != set(known):
        raise InvalidArgument(
            f"window {route.window!r} has the fields {', '.join(known)}, not {', '.join(fields)}", field="fields"
        )
    nullable = tuple(spec.get("nullable") or ())
    if route.nulls == "ignore" and not nullable:
        raise InvalidArgument(
            f"nulls='ignore': no field of window {route.window!r} may be null. A window says which may be when it is "
            f"created, such as nullable: [{', '.join(known)}]",
            field="nulls",
        )
    columns: dict[str, DataType] = {}
    paths: dict[str, tuple[str, ...]] = {}
    keys = [route.key] if route.key else parts.values()
    identity = spec.get("identity") or ""
    if route.op is not None and not identity:
        raise InvalidArgument(
            f"window {route.window!r} has no identity, so its entries cannot be updated and deleted", field="op"
        )
    for wanted in [route.time, *keys, *fields.values(), *route.sort, *([route.op] if route.op else [])]:
        paths[wanted], columns[wanted] = find(schema, wanted)
    kind = columns[route.time]
    if not isinstance(kind, TimestampType | TimestampNTZType | IntegralType):
        raise InvalidArgument(
            f"column {route.time!r} is a {kind.simpleString()}: cast it to a timestamp, or to ticks",
            field=route.time,
        )
    if spec["time_unit"] == "none" and not isinstance(kind, IntegralType):
        raise InvalidArgument(
            f"window {route.window!r} has logical time: column {route.time!r} is a {kind.simpleString()}, "
            "integers are wanted",
            field=route.time,
        )
    for name, column in fields.items() if as_rows else ():
        types, cast = _FITTING[spec["fields"][name]]
        if not isinstance(columns[column], types):
            raise InvalidArgument(
                f"column {column!r} is a {columns[column].simpleString()}, field {name!r} of window "
                f"{route.window!r} takes {spec['fields'][name]}: cast it to {cast}",
                field=column,
            )
    return replace(route, fields=fields, parts=parts, identity=identity, paths=paths, nullable=nullable)
