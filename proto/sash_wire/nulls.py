"""Columns whose values may be null: a column with a placeholder in each such row, and a mark for each row.

    given      7    null   5
    column     7    0      5        of the type of the field: 0, "" or false in the place of a null
    mark       T    F      T        whether the row has a value

The mark of a column stands beside it under `mark_of` of its name, which nobody can give to a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_wire.coded import Coded

MARK = "?"
PLACEHOLDERS: Mapping[str, Any] = {"float64": 0.0, "int64": 0, "string": "", "bool": False}

Mask = npt.NDArray[np.bool_]


def mark_of(name: str) -> str:
    """Return the name of the mark of a column."""
    return name + MARK


def is_mark(name: str) -> bool:
    """Whether a column of this name is a mark."""
    return name.endswith(MARK)


def named_by(mark: str) -> str:
    """Return the name of the column that a mark is of."""
    return mark[: -len(MARK)]


def split(values: Any, kind: str) -> tuple[Any, Mask | None]:
    """Replace nulls by the placeholder of a type: None in a list or an array of objects, and masked values.

    Returns:
        the values, and which rows have one; None if all have.
    """
    placeholder = PLACEHOLDERS[kind]
    if isinstance(values, np.ma.MaskedArray):
        there = ~np.ma.getmaskarray(values)
        return (values.data, None) if there.all() else (values.filled(placeholder), there)
    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        values = values.tolist()
    if not isinstance(values, list | tuple) or None not in values:
        return values, None
    there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return [placeholder if value is None else value for value in values], there


def without_nulls(column: Any, there: Mask) -> Any:
    """Return a column with a placeholder in each row that has no value, whatever is there."""
    if isinstance(column, Coded):
        if there.all() or (column.codes[there] >= len(column.dictionary)).any():
            return column  # the check of codes that follows refuses the latter
        try:
            empty = column.dictionary.index("")
            dictionary = column.dictionary
        except ValueError:
            empty, dictionary = len(column.dictionary), [*column.dictionary, ""]
        codes = np.where(there, column.codes.astype(np.int64), empty)
        return Coded(dictionary, codes)
    return column if there.all() else np.where(there, column, column.dtype.type(0))


def with_nulls(column: Any, there: Mask | None) -> list[Any]:
    """Return the values of a column as a list, with None in each row that has none."""
    values: list[Any] = (column.decode() if isinstance(column, Coded) else column).tolist()
    if there is None:
        return values
    return [value if one else None for value, one in zip(values, there.tolist(), strict=True)]
