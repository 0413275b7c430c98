"""Which types of Spark the fields of a window take. Numbers are widened."""

from __future__ import annotations

from pyspark.sql.types import BooleanType, DataType, DecimalType, DoubleType, FloatType, IntegralType, StringType

from sash_client import InvalidArgument

_TAKEN: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "float64": ((DoubleType, FloatType, IntegralType), "double"),
    "int64": ((IntegralType,), "bigint"),
    "string": ((StringType,), "string"),
    "bool": ((BooleanType,), "boolean"),
}
"""Field type -> the types that it takes, and the type to cast others to."""


def check_field(found: DataType, kind: str, column: str, field: str = "its field", decimals: bool = False) -> None:
    """Check that a column has values of a field.

    Args:
        found: the column's type.
        kind: the field's type: float64, int64, string or bool.
        column: its name.
        field: what the error calls the field.
        decimals: whether decimals are cast: to the nearest float, or to integers if all of them fit.

    Raises:
        InvalidArgument: the cast could lose something, or the column has another kind of type.
    """
    types, cast = _TAKEN[kind]
    if decimals and isinstance(found, DecimalType):
        fits = kind == "float64" or (kind == "int64" and found.scale == 0 and found.precision <= 18)
    else:
        fits = isinstance(found, types)
    if not fits:
        raise InvalidArgument(
            f"column {column!r} is a {found.simpleString()}, {field} takes {kind}: cast it to {cast}", field=column
        )
