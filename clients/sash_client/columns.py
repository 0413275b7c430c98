"""Columns of many kinds into what travels: NumPy arrays, and strings as a dictionary with codes.

    ["UA", "AA", "UA"]   ->   dictionary ["UA", "AA"], codes [0, 1, 0]

A window's fields are never null: a missing value is refused, except NaN in a float64 column, which is a value.
Numbers are widened (int32 to int64, float32 and integers to float64), never narrowed or guessed.

Cost: no copy for contiguous arrays of the field's own type; about 60 ns a row to code Python strings, 20 for Arrow
ones; pandas categoricals and Arrow dictionaries are coded already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.errors import InvalidArgument
from sash_client.times import _is_arrow, _is_pandas
from sash_wire.coded import Coded
from sash_wire.columns import Column

__all__ = ["to_coded", "to_column", "to_part"]

_ACCEPTS: Mapping[str, str] = {"float64": "fiu", "int64": "iu", "bool": "b"}
# What a pandas extension type is read as, by its kind: left alone, it may come out as objects.
_PLAIN: Mapping[str, str] = {"f": "f8", "i": "i8", "u": "u8", "b": "?"}
_DTYPES: Mapping[str, str] = {"float64": "<f8", "int64": "<i8", "bool": "|b1"}


def to_column(values: Any, kind: str, name: str) -> npt.NDArray[Any] | Coded:
    """Return a column for a field.

    Args:
        values: n values: NumPy, pandas, Arrow (or whatever speaks Arrow's C stream), or a sequence.
        kind: the field's type: "float64", "int64", "bool" or "string".
        name: the field's name, for errors.

    Returns:
        an array (n,) of the field's type, little-endian, or `Coded` for strings.

    Raises:
        InvalidArgument: a missing value, or values of another type than the field's.
    """
    if kind == "string":
        return to_coded(values, name)
    array = _plain(values, name)
    if array.ndim != 1:
        raise InvalidArgument(f"{name} must be one-dimensional, not of shape {array.shape}", field=name)
    if array.dtype == object:
        array = _from_objects(array, name)
    if array.dtype.kind not in _ACCEPTS[kind] and array.size:
        raise InvalidArgument(f"{name} is a {kind} field; these values are {array.dtype}", field=name)
    if kind == "int64" and array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InvalidArgument(f"{name}: {array.max()} is out of range", field=name, limit="2^63 - 1")
    return np.ascontiguousarray(array, dtype=_DTYPES[kind])


def to_part(values: Any, name: str) -> Column:
    """Return a column for one part of n partials, of the type that its values have.

    Args:
        values: n numbers, strings, or `bytes` (partials that are no numbers, as the service encodes them).
        name: what to call it in an error.

    Raises:
        InvalidArgument: a missing value, or values of several types.
    """
    # NumPy would read a list of bytes as strings of a fixed width, which lose their trailing zeros.
    array = values if isinstance(values, list | tuple) and _all_bytes(values) else _plain(values, name)
    if not isinstance(array, np.ndarray) or array.dtype == object:
        if _all_bytes(items := list(array)):
            return items
        array = _from_objects(np.asarray(array), name)
    for kind, accepted in (("bool", "b"), ("int64", "iu"), ("float64", "f")):
        if array.dtype.kind in accepted:
            return to_column(array, kind, name)
    return to_coded(values, name)


def to_coded(values: Any, name: str) -> Coded:
    """Return n strings, dictionary-coded; takes and raises as `to_column`."""
    import pyarrow as pa  # here and below: a question needs none of it, and it takes a tenth of a client's start

    if _is_pandas(values) and getattr(values.dtype, "categories", None) is not None:
        return _from_categorical(values, name)
    try:
        array = _to_arrow_strings(values)
    except (pa.ArrowException, UnicodeEncodeError):
        raise InvalidArgument(f"{name} holds strings; these values are not all strings", field=name) from None
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    if array.null_count or coded.dictionary.null_count:
        raise _missing(name)
    return Coded(coded.dictionary.to_pylist(), coded.indices.to_numpy().astype("<u4"))


def _to_arrow_strings(values: Any) -> Any:
    import pyarrow as pa

    if _is_pandas(values):
        values = values.to_numpy(dtype=object)
    if isinstance(values, np.ndarray) and values.dtype.kind == "T":
        values = values.astype(object)
    if hasattr(values, "__arrow_c_stream__"):
        values = pa.chunked_array(values).unify_dictionaries().combine_chunks()
    if not isinstance(values, pa.Array):
        return pa.array(values, type=pa.large_string())
    held = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held)):
        raise pa.ArrowTypeError(str(held))  # bytes would otherwise pass for text
    return values


def _from_categorical(values: Any, name: str) -> Coded:
    codes = (values.cat if hasattr(values, "cat") else values).codes
    codes = np.asarray(codes)
    if codes.size and int(codes.min()) < 0:
        raise _missing(name)
    dictionary = values.dtype.categories.tolist()
    if not all(isinstance(item, str) for item in dictionary):
        raise InvalidArgument(f"{name} holds strings; these categories are not all strings", field=name)
    return Coded(dictionary, codes.astype("<u4"))


def _plain(values: Any, name: str) -> npt.NDArray[Any]:
    if _is_pandas(values):
        if isinstance(values.dtype, np.dtype):
            return np.asarray(values.to_numpy())
        if values.isna().any():
            raise _missing(name)
        kind = values.dtype.kind
        return np.asarray(
            values.to_numpy(dtype={"f": np.float64, "b": np.bool_}.get(kind, np.int64) if kind in "fbiu" else None)
        )
    if _is_arrow(values):
        import pyarrow as pa

        array = values if isinstance(values, pa.Array) else pa.chunked_array(values).combine_chunks()
        if array.null_count:
            raise _missing(name)
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return np.asarray(values)


def _from_objects(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    import pyarrow as pa

    # NumPy would read None as NaN and True as 1; infer the type from the values instead.
    try:
        inferred = pa.array(array, from_pandas=False)
    except pa.ArrowException:
        raise InvalidArgument(f"{name}: these values are not all of one type", field=name) from None
    return _plain(inferred, name)


def _all_bytes(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(item, bytes) for item in values)


def _missing(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name} has missing values; a window's fields cannot be null", field=name)
