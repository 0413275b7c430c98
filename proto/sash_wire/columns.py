"""Columns and the messages `Column`, `Strings` and `PartialColumns`: little-endian bytes, and strings coded.

Reading copies nothing: `np.frombuffer` looks at the bytes that protobuf holds. Repeated fields lost: turning 16,384
doubles into an array costs more than aggregating them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.errors import WireError
from sash_wire.values import fill_value

Array: TypeAlias = npt.NDArray[Any]
Column: TypeAlias = Array | Coded | list[bytes]
"""n values: numbers, strings, or blobs."""

_DICTIONARY_MAX = 4_096
"""A dictionary with more strings than these and four for each row is not read whole."""

_INT64, _FLOAT64, _CODE = np.dtype("<i8"), np.dtype("<f8"), np.dtype("<u4")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def read_column(column: pb.Column, name: str) -> Column:
    """Return the values of a column, over the bytes that protobuf holds.

    Args:
        column: the message.
        name: what to call the column in an error.

    Raises:
        WireError: no data, bytes that are no whole number of values, or a bool that is neither 0 nor 1 and not null.
    """
    match column.WhichOneof("data"):
        case "float64":
            return _read(column.float64, _FLOAT64, name)
        case "int64":
            return _read(column.int64, _INT64, name)
        case "string":
            return read_strings(column.string, name, column.valid)
        case "bool":
            return _bools(column.bool, name, column.valid)
        case "blob":
            return list(column.blob.items)
        case _:
            raise WireError(f"column {name!r} has no data", field=name)


def read_valid(column: pb.Column, name: str, n: int) -> npt.NDArray[np.bool_]:
    """Return which of n values of a column are there; raises WireError if they are no n bools."""
    if column.valid and len(column.valid) != n:
        raise WireError(f"column {name!r} has {n} values, and {len(column.valid)} in valid", field=name, limit=str(n))
    return _bools(column.valid, name) if column.valid else np.ones(n, np.bool_)


def read_int64(data: bytes, name: str) -> npt.NDArray[np.int64]:
    """Return int64 (n,) over its bytes; raises WireError if they are no whole number of values."""
    return _read(data, _INT64, name)


def read_strings(strings: pb.Strings, name: str, valid: bytes = b"") -> Coded:
    """Return n strings; each string has one code, also if the message has it twice. Codes are not checked.

    Args:
        valid: as of `Column`; a null has the code 0.

    Raises:
        WireError: bytes that are no whole number of codes.
    """
    codes = _zeroed(_read(strings.codes, _CODE, name), valid)
    if len(strings.dictionary) > _DICTIONARY_MAX + 4 * len(codes):
        return _used(strings, codes)
    dictionary = list(strings.dictionary)
    if len(set(dictionary)) == len(dictionary):
        return Coded(dictionary, codes)
    # Give both codes of a string one number, so that grouping by code is grouping by string.
    index: dict[str, int] = {}
    recoded = np.array([index.setdefault(text, len(index)) for text in dictionary], _CODE)
    if len(codes) and codes.max() >= len(recoded):
        return Coded(dictionary, codes)  # the check of codes that follows refuses it
    return Coded(list(index), recoded[codes])


def _used(strings: pb.Strings, codes: Array) -> Coded:
    """Return n strings of a large dictionary, without those that no code names."""
    used, recoded = np.unique(codes, return_inverse=True)
    if len(used) and used[-1] >= len(strings.dictionary):
        return Coded([], codes)  # the check of codes that follows refuses it
    found = Coded.of([strings.dictionary[code] for code in used.tolist()])
    return Coded(found.dictionary, found.codes[recoded])


def fill_column(message: pb.Column, column: Array | Coded | Iterable[bytes]) -> None:
    """Write a column into an empty message: floats, integers, bools, strings or blobs."""
    if isinstance(column, Coded):
        fill_strings(message.string, column)
    elif not isinstance(column, np.ndarray):
        message.blob.SetInParent()
        message.blob.items.extend(column)
    elif column.dtype.kind == "f":
        message.float64 = to_bytes(column, _FLOAT64)
    elif column.dtype.kind == "i":
        message.int64 = to_bytes(column, _INT64)
    elif column.dtype.kind == "b":
        message.bool = column.tobytes()
    else:
        fill_strings(message.string, Coded.of(column.tolist()))


def fill_strings(message: pb.Strings, column: Coded) -> None:
    """Write strings into an empty message."""
    message.SetInParent()
    message.dictionary.extend(column.dictionary)
    message.codes = to_bytes(column.codes, _CODE)


def fill_answers(message: pb.SeriesColumn, answers: Array) -> None:
    """Write n answers of one aggregate into an empty message; a missing one is None."""
    if answers.dtype.kind == "f":
        message.float64 = to_bytes(answers, _FLOAT64)
        return
    if answers.dtype.kind == "i":
        message.int64 = to_bytes(answers)
        return
    values = answers.tolist()
    # Numbers of one kind travel as bytes, also if some are missing.
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {float} or (kinds == {int} and all(v is None or _INT64_MIN <= v <= _INT64_MAX for v in values)):
        numbers = [0 if value is None else value for value in values]
        if kinds == {float}:
            message.float64 = np.array(numbers, _FLOAT64).tobytes()
        else:
            message.int64 = np.array(numbers, np.int64).tobytes()
        if None in values:
            message.valid = bytes(value is not None for value in values)
        return
    message.values.SetInParent()
    items = message.values.items
    for value in values:
        fill_value(items.add(), value)


def to_bytes(array: Array, dtype: npt.DTypeLike = _INT64) -> bytes:
    """Return the bytes of an array, as `dtype`."""
    return array.astype(dtype, copy=False).tobytes()


def _zeroed(values: Array, valid: bytes) -> Array:
    """Return values with 0 in the place of each null; the message may have anything there."""
    if len(valid) != len(values):
        return values  # none is null, or `read_valid` refuses it
    return np.where(np.frombuffer(valid, np.uint8) > 0, values, values.dtype.type(0))


def _bools(data: bytes, name: str, valid: bytes = b"") -> npt.NDArray[np.bool_]:
    bits = _zeroed(np.frombuffer(data, np.uint8), valid)
    if len(bits) and bits.max() > 1:
        raise WireError(f"column {name!r} has a bool that is not 0 or 1", field=name, limit="0 to 1")
    return bits.view(np.bool_)


def _read(data: bytes, dtype: np.dtype[Any], name: str) -> Array:
    try:
        return np.frombuffer(data, dtype)
    except ValueError:
        raise WireError(
            f"column {name!r} has {len(data)} bytes, which is no whole number of values",
            field=name,
            limit=f"{dtype.itemsize} bytes a value",
        ) from None
