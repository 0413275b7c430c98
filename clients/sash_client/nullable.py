"""Columns of fields that may be null, of many kinds: the values that are there, and a mark for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.columns import to_column
from sash_client.libraries import imported, is_arrow, is_pandas, is_polars
from sash_wire.coded import Coded
from sash_wire.nulls import PLACEHOLDERS

__all__ = ["to_nullable"]

Mask = npt.NDArray[np.bool_]

_NULLS = ("NoneType", "NAType", "NaTType", "MaskedConstant")
"""The types of None, of pandas' NA and NaT, and of NumPy's masked value."""


def to_nullable(values: Any, kind: str, name: str) -> tuple[npt.NDArray[Any] | Coded, Mask | None]:
    """Return a column for a field that may be null, with a placeholder in each row without a value.

    None is null, and so are masked values, pandas' NA and NaT, and nulls of Polars and Arrow. NaN is a value, but
    among strings, where pandas has it for a null.

    Args:
        values, kind, name: as in `to_column`.

    Returns:
        the column, and which rows have a value; None if all have.

    Raises:
        InvalidArgument: values of another type than the field's.
    """
    there = ~_missing(values, kind, name)
    if there.all():
        return to_column(values, kind, name), None
    rows = np.flatnonzero(there)
    found = to_column(_taken(values, there, rows, name) if len(rows) else [], kind, name)
    if isinstance(found, Coded):
        codes = np.full(len(there), len(found.dictionary), np.dtype("<u4"))
        codes[rows] = found.codes
        return Coded([*found.dictionary, ""], codes), there
    column = np.full(len(there), PLACEHOLDERS[kind], found.dtype)
    column[rows] = found
    return column, there


def _missing(values: Any, kind: str, name: str) -> Mask:
    """Which values are null, bool (n,); none of what has another number of dimensions, which `to_column` refuses."""
    if is_polars(values):
        return np.asarray(values.is_null().to_numpy(), dtype=bool)
    if is_pandas(values) and not isinstance(values.dtype, np.dtype):
        return np.asarray(values.isna(), dtype=bool)
    if is_arrow(values):
        nulls = _plain_arrow(values, name).is_null()
        return np.asarray(nulls.to_numpy(zero_copy_only=False) if hasattr(nulls, "buffers") else nulls)
    if isinstance(values, np.ma.MaskedArray) and values.ndim == 1:
        return np.asarray(np.ma.getmaskarray(values), dtype=bool) | _missing(values.data, kind, name)
    if not isinstance(values, list | tuple):
        values = np.asarray(values)
        if not values.dtype.hasobject or values.ndim != 1:
            return np.zeros(len(values) if values.ndim else 0, bool)
    nan = kind == "string"
    return np.array(
        [type(each).__name__ in _NULLS or (nan and isinstance(each, float) and each != each) for each in values], bool
    )


def _plain_arrow(values: Any, name: str) -> Any:
    """An Arrow column whose nulls are all its own: not those of a dictionary, or of runs."""
    pa = imported("pyarrow", f"the column {name!r}, a {type(values).__name__},")
    whole = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.chunked_array(values)
    if pa.types.is_dictionary(whole.type):
        whole = whole.cast(whole.type.value_type)
    elif pa.types.is_run_end_encoded(whole.type):
        whole = imported("pyarrow.compute", f"the column {name!r}").run_end_decode(whole)
    return whole.cast(pa.large_string()) if pa.types.is_string_view(whole.type) else whole


def _taken(values: Any, there: Mask, rows: npt.NDArray[np.intp], name: str) -> Any:
    """The values that are there."""
    if is_polars(values):
        return values.filter(there)
    if is_pandas(values):
        return values[there]
    if is_arrow(values):
        pa = imported("pyarrow", f"the column {name!r}, a {type(values).__name__},")
        return _plain_arrow(values, name).filter(pa.array(there))
    if isinstance(values, np.ma.MaskedArray):
        return values.data[rows]
    if isinstance(values, list | tuple):
        return [values[row] for row in rows.tolist()]
    return np.asarray(values)[rows]
