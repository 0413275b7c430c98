"""JSON values to the plane's: one entry, or columns of entries, typed by the window's spec.

JSON has one kind of number, so the types are checked here, value by value, before anything becomes an array:
NumPy would turn true into 1 and 1.5 into 1. `set(map(type, …))` makes that check cost 15 ns a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash.errors import InvalidArgument, TooLarge
from sash.monoids.base import FieldType
from sash.windows.batch import Batch, Coded
from sash.windows.spec import WindowSpec

__all__ = ["batch_of", "entry_of", "integer", "taken_question", "text"]

TICK_MIN, TICK_MAX = -(2**63), 2**63 - 1
QUESTION = ("answer", "lookbacks")
INT64_RANGE = "-2^63 to 2^63 - 1"
# As proto3's JSON mapping writes them.
SPECIALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NAMES = {bool: "a bool", int: "an integer", float: "a float", str: "a string", dict: "an object", list: "a list"}

Array = npt.NDArray[Any]


# ---------------------------------------------------------------- one entry


def entry_of(document: Mapping[str, Any], spec: WindowSpec) -> tuple[int, dict[str, Any], str | None]:
    """Time, fields and key of one entry; the document has nothing else.

    Raises:
        InvalidArgument: names the member that is missing, unknown or of the wrong type.
    """
    time = integer(_member(document, "time"), "time")
    key = text(document["key"], "key") if "key" in document else None
    fields = {
        name: _scalar(value, spec.fields[name], name) if name in spec.fields else value
        for name, value in _named(document, spec).items()
    }
    return time, fields, key


def taken_question(document: dict[str, Any], spec: WindowSpec) -> tuple[bool, list[str | int]]:
    """Take ``"answer"`` and ``"lookbacks"`` out of an entry's document: whether to answer, and over what.

    Where a field is called so, it is the field that stands beside time and key; with ``"fields"`` both have a place.

    Raises:
        InvalidArgument: one of them is of the wrong type.
    """
    nested = "fields" in document and "fields" not in spec.fields
    taken = {name: document.pop(name) for name in QUESTION if name in document and (nested or name not in spec.fields)}
    answer = _bool(taken.get("answer", False), "answer")
    lookbacks = _list(taken.get("lookbacks", []), "lookbacks")
    for i, lookback in enumerate(lookbacks):
        if type(lookback) is not str and type(lookback) is not int:
            raise InvalidArgument(
                f"lookbacks[{i}] must be a duration or ticks, not {_kind(lookback)}", field=f"lookbacks[{i}]"
            )
    return answer, lookbacks


def integer(value: Any, path: str) -> int:
    """An int64.

    Raises:
        InvalidArgument: it is none: a float (1.0 too), a bool, a string, null, or out of range.
    """
    if type(value) is not int:
        # The parser makes a float of an integer of more than 64 bits.
        if isinstance(value, float) and abs(value) >= 2.0**63:
            raise InvalidArgument(f"{path} is out of range", field=path, limit=INT64_RANGE)
        raise InvalidArgument(f"{path} must be an integer, not {_kind(value)}", field=path)
    if not TICK_MIN <= value <= TICK_MAX:
        raise InvalidArgument(f"{path} {value} is out of range", field=path, limit=INT64_RANGE)
    return value


def text(value: Any, path: str) -> str:
    """A string.

    Raises:
        InvalidArgument: it is none.
    """
    if type(value) is not str:
        raise InvalidArgument(f"{path} must be a string, not {_kind(value)}", field=path)
    return value


def _float(value: Any, path: str) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is str and value in SPECIALS:
        return SPECIALS[value]
    what = f'the string "{value[:40]}"' if type(value) is str else _kind(value)
    raise InvalidArgument(
        f'{path} must be a number, "NaN", "Infinity" or "-Infinity", not {what}',
        field=path,
    )


def _bool(value: Any, path: str) -> bool:
    if type(value) is not bool:
        raise InvalidArgument(f"{path} must be true or false, not {_kind(value)}", field=path)
    return value


_SCALARS: Mapping[FieldType, Callable[[Any, str], Any]] = {
    "float64": _float,
    "int64": integer,
    "string": text,
    "bool": _bool,
}


def _scalar(value: Any, kind: FieldType, path: str) -> Any:
    return _SCALARS[kind](value, path)


# ---------------------------------------------------------------- columns


def batch_of(document: Mapping[str, Any], spec: WindowSpec, entries_max: int) -> Batch:
    """The columns of a bulk: a list of as many values for each.

    Raises:
        InvalidArgument: names the column, or the value in it (``delay[17]``), that is wrong.
        TooLarge: more than `entries_max` entries.
    """
    times = _list(_member(document, "time"), "time")
    if len(times) > entries_max:
        raise TooLarge(f"a write of {len(times)} entries is too large", field="time", limit=f"{entries_max} entries")
    named = _named(document, spec)
    columns: dict[str, Array | Coded] = {}
    for name, values in named.items():
        if name not in spec.fields:
            known = ", ".join(spec.fields)
            raise InvalidArgument(f"window {spec.name!r} has no field {name!r}; it has {known}", field=name)
        columns[name] = _column(_list(values, name), spec.fields[name], name)
    keys = Coded.of(_strings(_list(document["key"], "key"), "key")) if "key" in document else None
    return Batch(_integers(times, "time"), columns, keys)


def _column(values: list[Any], kind: FieldType, name: str) -> Array | Coded:
    if kind == "float64":
        return _floats(values, name)
    if kind == "int64":
        return _integers(values, name)
    if kind == "string":
        return Coded.of(_strings(values, name))
    if set(map(type, values)) <= {bool}:
        return np.array(values, np.bool_)
    raise _first_wrong(values, name, _bool)


def _integers(values: list[Any], name: str) -> Array:
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass  # below: which one
    raise _first_wrong(values, name, integer)


def _floats(values: list[Any], name: str) -> Array:
    if set(map(type, values)) <= {float, int}:
        return np.array(values, np.float64)
    return np.array([_float(value, f"{name}[{i}]") for i, value in enumerate(values)], np.float64)


def _strings(values: list[Any], name: str) -> list[str]:
    if set(map(type, values)) <= {str}:
        return values
    raise _first_wrong(values, name, text)


def _first_wrong(values: list[Any], name: str, check: Callable[[Any, str], Any]) -> InvalidArgument:
    for i, value in enumerate(values):
        try:
            check(value, f"{name}[{i}]")
        except InvalidArgument as error:
            return error
    raise AssertionError("no value is wrong")


# ---------------------------------------------------------------- both


def _member(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        raise InvalidArgument(f"{name} is missing", field=name)
    return document[name]


def _named(document: Mapping[str, Any], spec: WindowSpec) -> Mapping[str, Any]:
    """What a document says of the window's fields.

    They stand in ``"fields"``, or beside time and key under their own names; ``"value"`` is the only field
    of a window that has one, whatever its name.
    """
    found = {name: value for name, value in document.items() if name not in ("time", "key")}
    if "fields" in found and "fields" not in spec.fields:
        fields = found.pop("fields")
        if type(fields) is not dict:
            raise InvalidArgument(f"fields must be an object, not {_kind(fields)}", field="fields")
        for name in found:
            raise InvalidArgument(f"{name!r} stands beside fields, where only time and key do", field=name)
        return fields
    if "value" in found and "value" not in spec.fields and len(spec.fields) == 1:
        found[next(iter(spec.fields))] = found.pop("value")
    return found


def _list(value: Any, path: str) -> list[Any]:
    if type(value) is not list:
        raise InvalidArgument(f"{path} must be a list, not {_kind(value)}", field=path)
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else _NAMES[type(value)]
