"""pandas, Polars and Arrow, none of which is a dependency: to know their objects, and to import them when asked to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.errors import InvalidArgument


def is_pandas(values: Any) -> bool:
    """Whether an object is one of pandas. This imports nothing."""
    return _package(values) == "pandas"


def is_polars(values: Any) -> bool:
    """Whether an object is one of Polars. This imports nothing."""
    return _package(values) == "polars"


def eager(values: Any) -> Any:
    """Return a LazyFrame of Polars as the DataFrame that it stands for, and any other object as it is."""
    return values.collect() if is_polars(values) and type(values).__name__ == "LazyFrame" else values


def is_arrow(values: Any) -> bool:
    """Whether an object is one of Arrow, or a column of another library that speaks Arrow's C stream."""
    return _package(values) == "pyarrow" or hasattr(values, "__arrow_c_stream__")


def imported(package: str, needed_by: str) -> Any:
    """Import an optional package.

    Raises:
        ModuleNotFoundError: it is not installed; the message names it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{needed_by} needs {package}: pip install {package}", name=package) from None


def shown(progress: bool | Callable[[int, int], None] | None, what: str) -> Callable[[int, int], None]:
    """Return what is told how many are done, and how many there are.

    Args:
        progress: that function itself; or whether to show a bar of tqdm, or lines on stderr where it is not installed.
        what: is counted.
    """
    if callable(progress):
        return progress
    if not progress:
        return lambda done, total: None
    try:
        bar = importlib.import_module("tqdm.auto").tqdm(unit=f" {what}", unit_scale=True)
    except ModuleNotFoundError:
        return lambda done, total: print(f"{done:,} of {total:,} {what}", file=sys.stderr)

    def told(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return told


def refuse_missing(missing: npt.NDArray[np.bool_], name: str) -> None:
    """Raise InvalidArgument if values are missing; the message names the column and the first row."""
    rows = np.flatnonzero(missing)
    if rows.size:
        raise InvalidArgument(
            f"{name} has missing values, the first in row {rows[0]}; fill them, drop these rows, or create the "
            f"window with nullable: [{name}]",
            field=name,
        )


Mask = npt.NDArray[np.bool_]

_NULLS = ("NoneType", "NAType", "NaTType", "MaskedConstant")
"""The types of None, of pandas' NA and NaT, and of NumPy's masked value."""

# What pandas' extension types are read as, by their kind. Unless told, pandas may make objects of them.
_PLAIN: Mapping[str, Any] = {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.bool_}


def present(values: Any, name: str, texts: bool = False) -> tuple[Any, Mask | None]:
    """Return the values that are not null, as their library has them, and which ones these are; None: all.

    None is null, and so are masked values, pandas' NA and NaT, and nulls of Polars and Arrow.

    Args:
        values: n values: NumPy, pandas, Polars, Arrow (or whatever speaks Arrow's C stream), or a sequence.
        name: of the column, for errors.
        texts: NaN is null, too: pandas has it among strings. Elsewhere it is a value.
    """
    if is_polars(values):
        return _kept(values, np.asarray(values.is_not_null().to_numpy(), bool))
    if is_arrow(values):
        return _present_in_arrow(values, name)
    if is_pandas(values):
        if not isinstance(values.dtype, np.dtype):
            return _kept(values, ~np.asarray(values.isna(), bool))  # arrays have no `notna`
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.kind != "O" and values.ndim == 1:
            return _kept(values.data, ~np.ma.getmaskarray(values))
        values = (
            np.where(np.ma.getmaskarray(values), np.array(None), values.data)
            if values.dtype.kind == "O"
            else values.data
        )
    items = values
    if not isinstance(values, list | tuple):
        array = np.asarray(values)
        if array.dtype.kind != "O" or array.ndim != 1:  # texts of a fixed width are not what was given
            return values if array.dtype.kind in "SU" else array, None
        values, items = array, array.tolist()
    odd = {kind for kind in set(map(type, items)) if kind.__name__ in _NULLS or (texts and issubclass(kind, float))}
    if not odd:
        return values, None
    there = np.array([type(item) not in odd or (isinstance(item, float) and item == item) for item in items], bool)
    return values[there] if items is not values else [items[row] for row in np.flatnonzero(there).tolist()], there


def _kept(values: Any, there: Mask) -> tuple[Any, Mask | None]:
    return (values, None) if there.all() else (values.filter(there) if is_polars(values) else values[there], there)


def _present_in_arrow(values: Any, name: str) -> tuple[Any, Mask | None]:
    """As `present`: one Arrow array with one dictionary, whose nulls are all its own."""
    pa = imported("pyarrow", f"the column {name!r}, a {type(values).__name__},")
    if not isinstance(values, pa.Array):
        values = pa.chunked_array(values).unify_dictionaries().combine_chunks()
    if pa.types.is_run_end_encoded(values.type):
        values = imported("pyarrow.compute", f"the column {name!r}").run_end_decode(values)
    is_coded = pa.types.is_dictionary(values.type)
    if not values.null_count and not (is_coded and values.dictionary.null_count):
        return values, None
    if is_coded:
        values = values.dictionary_decode()
    there = values.is_valid()
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    return values.filter(there), there.to_numpy(zero_copy_only=False)


def plain(values: Any) -> npt.NDArray[Any]:
    """Return values without nulls as NumPy has them."""
    if is_polars(values):
        kind = values.dtype
        if kind.is_numeric() or kind.is_temporal() or str(kind) == "Boolean":
            return np.asarray(values.to_numpy())
        return np.fromiter(values.to_list(), dtype=object, count=len(values))
    if is_pandas(values):
        return np.asarray(values.to_numpy(dtype=_PLAIN.get(values.dtype.kind)))
    return np.asarray(values.to_numpy(zero_copy_only=False) if is_arrow(values) else values)


def _package(values: Any) -> str:
    return type(values).__module__.partition(".")[0]
