"""Columns: the types of fields, and rows of values as NumPy arrays and as Python objects.

field type    NumPy        Python
float64       float64      float
int64         int64        int
string        object       str
bool          bool         bool
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FieldType = Literal["float64", "int64", "string", "bool"]
Array = npt.NDArray[Any]
Values = Sequence[Array]
Partial = Any
Partials = tuple[Array, ...]

NUMERIC: tuple[FieldType, ...] = ("float64", "int64")
ORDERED: tuple[FieldType, ...] = ("float64", "int64", "string")
ANY: tuple[FieldType, ...] = ("float64", "int64", "string", "bool")

NUMPY_TYPES: dict[FieldType, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "int64": np.dtype(np.int64),
    "string": np.dtype(object),
    "bool": np.dtype(np.bool_),
}
PYTHON_TYPES: dict[FieldType, type] = {"float64": float, "int64": int, "string": str, "bool": bool}


def rows(values: Values) -> list[Any]:
    """Return the rows of some columns as Python scalars, or as tuples of scalars if there are several columns.

    >>> rows([np.array([1.0, 2.0])]), rows([np.array([1.0, 2.0]), np.array([10, 20])])
    ([1.0, 2.0], [(1.0, 10), (2.0, 20)])
    """
    if len(values) == 1:
        return values[0].tolist()  # type: ignore[no-any-return]
    return list(zip(*(column.tolist() for column in values), strict=True))


def object_array(items: Sequence[Any]) -> Array:
    """Make a one-dimensional object array; `np.array` would unpack items that are sequences."""
    return np.fromiter(items, dtype=object, count=len(items))
