"""Lists of JSON as columns of one type.

JSON has one kind of number, and NumPy turns true into 1 and 1.5 into 1. So the types are checked here, value by value,
before anything becomes an array. `set(map(type, …))` does that in 15 ns a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sash.rest.large_json import LongList
from sash.rest.scalars import NowNs, flag, integer, number, text, tick
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import NUMPY_TYPES, FieldType
from sash_engine.steps import ROWS, Steps, spans_of
from sash_engine.windows.batches.batch import Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.nulls import mark_of, split

Values: TypeAlias = "list[Any] | LongList | _Filled"
"""A column as the parser has it."""

Array = npt.NDArray[Any]


def nullable_steps(values: Values, spec: WindowSpec, name: str) -> Steps[dict[str, Array | Coded]]:
    """Return the values of a field, and its mark if it may be null; raises as `column_steps`."""
    kind = spec.fields[name]
    if name not in (spec.nullable or ()):
        return {name: (yield from column_steps(values, kind, name))}
    filled = _Filled(values, kind)
    column = yield from column_steps(filled, kind, name)
    return {name: column, mark_of(name): filled.mark()}


class _Filled:
    """A column with a placeholder in the place of each null."""

    def __init__(self, values: Values, kind: FieldType) -> None:
        self._values, self._kind, self._marks = values, kind, list[Array]()

    def __len__(self) -> int:
        return len(self._values)

    def pieces(self) -> Iterator[list[Any]]:
        """The values in pieces; as they are read, the mark becomes known."""
        for _, some in pieces_of(self._values):
            values, there = split(some, self._kind)
            self._marks.append(np.ones(len(some), np.bool_) if there is None else there)
            yield values

    def mark(self) -> Array:
        """Which rows have a value."""
        return np.concatenate(self._marks) if self._marks else np.ones(0, np.bool_)


def column_steps(values: Values, kind: FieldType, name: str) -> Steps[Array | Coded]:
    """Return values as a column of a type.

    Raises:
        InvalidArgument: a value is of another type; `field` names it: ``delay[17]``.
    """
    if kind == "string":
        return (yield from coded_steps(values, name))
    return (yield from number_steps(values, NUMPY_TYPES[kind], name))


def number_steps(values: Values, dtype: np.dtype[Any], name: str) -> Steps[Array]:
    """Numbers or bools, by the kind of their dtype."""
    read = {"f": numbers, "b": _bools}.get(dtype.kind, _integers)
    return (yield from _array_steps(values, dtype if dtype.kind in "fb" else np.dtype(np.int64), read, name))


def tick_steps(values: Values, name: str, unit: str, now_ns: NowNs) -> Steps[Array]:
    """Times as ticks of a unit; `now_ns` tells wall time."""

    def ticks(some: list[Any], name: str, at: int) -> Array:
        if set(map(type, some)) <= {int}:
            return _integers(some, name, at)
        return np.array([tick(each, f"{name}[{at + i}]", unit, now_ns) for i, each in enumerate(some)], np.int64)

    return (yield from _array_steps(values, np.dtype(np.int64), ticks, name))


def _array_steps(
    values: Values, dtype: np.dtype[Any], read: Callable[[list[Any], str, int], Array], name: str
) -> Steps[Array]:
    if len(values) <= ROWS and type(values) is list:
        return read(values, name, 0)
    found = np.empty(len(values), dtype)
    for at, some in pieces_of(values):
        found[at : at + len(some)] = read(some, name, at)
        yield
    return found


def coded_steps(values: Values, name: str) -> Steps[Coded]:
    if len(values) <= ROWS and type(values) is list:
        return Coded.of(strings(values, name, 0))
    numbers, dictionary, codes = dict[str, int](), list[str](), np.empty(len(values), np.int64)
    for at, some in pieces_of(values):
        for text_ in dict.fromkeys(strings(some, name, at)):
            if numbers.setdefault(text_, len(dictionary)) == len(dictionary):
                dictionary.append(text_)
        codes[at : at + len(some)] = np.fromiter(map(numbers.__getitem__, some), np.int64, len(some))
        yield
    return Coded(dictionary, codes)


def pieces_of(values: Values) -> Iterator[tuple[int, list[Any]]]:
    """The values in pieces, each with the number of its first one."""
    if not isinstance(values, list):
        at = 0
        for some in values.pieces():
            yield at, some
            at += len(some)
    else:
        for start, stop in spans_of(len(values), ROWS):
            yield start, values[start:stop]


def _integers(values: list[Any], name: str, at: int) -> Array:
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass  # find out which one
    raise _first_wrong(values, name, at, integer)


def _bools(values: list[Any], name: str, at: int) -> Array:
    if set(map(type, values)) <= {bool}:
        return np.array(values, np.bool_)
    raise _first_wrong(values, name, at, flag)


def numbers(values: list[Any], name: str, at: int) -> Array:
    if set(map(type, values)) <= {float, int}:
        return np.array(values, np.float64)
    return np.array([number(value, f"{name}[{at + i}]") for i, value in enumerate(values)], np.float64)


def strings(values: list[Any], name: str, at: int) -> list[str]:
    if set(map(type, values)) <= {str}:
        return values
    raise _first_wrong(values, name, at, text)


def _first_wrong(values: list[Any], name: str, at: int, check: Callable[[Any, str], Any]) -> InvalidArgument:
    for i, value in enumerate(values):
        try:
            check(value, f"{name}[{at + i}]")
        except InvalidArgument as error:
            return error
    raise AssertionError("no value is wrong")
