"""The form of partials: as columns in memory, and as bytes outside.

    partials     (2, 4.0, 2.0)  (3, 2.0, 6.0)         Python objects, one per fold
    columns      [2 3]  [4.0 2.0]  [2.0 6.0]          `pack` and `unpack`; one array per element of `dtypes`
    bytes        02 00 … 40   03 00 … 40              `encode` and `decode`; one value per partial

A partial of numbers has one column of a fixed width for each part. Any other partial is a Python object in a column of
objects, and its bytes are JSON unless the aggregate overrides `encode` and `decode`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial as bound
from typing import Any, ClassVar

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.columns import PYTHON_TYPES, FieldType, Partial, Partials, object_array

_OBJECT: tuple[np.dtype[Any], ...] = (np.dtype(object),)


class PartialForm:
    """How the partials of an aggregate are laid out. `Monoid` inherits it."""

    function: ClassVar[str]
    """Name in specs and in the catalogue."""
    dtypes: tuple[np.dtype[Any], ...] = _OBJECT
    """The type of each part of a partial, and so of each column of partials."""
    parts: tuple[str, ...] = ("partial",)
    """The names of the parts, where partials enter and leave the window as columns. A part named `entries` must be the
    number of entries that the partial folds."""
    blob: ClassVar[str] = "JSON: the part, or a list of the parts"
    """Describes what `encode` writes, for partials that have a part without a fixed width."""
    large: bool = False
    """Whether one partial takes as much memory as some hundred entries: a sketch, or one value for each entry.

    A tier stores each large partial as a value of its own; all others stay in memory. A series over large partials may
    have fewer buckets. Large partials must have `dtypes == (object,)`."""
    integers: bool = False
    """Whether the parts with the dtype object are integers of any size. Such partials may enter as columns of int64."""

    @property
    def external(self) -> bool:
        """Whether a tier stores each partial as a value of its own: it is `large`, and one object."""
        return self.large and self.dtypes == _OBJECT

    @property
    def fixed(self) -> bool:
        """Whether every part of a partial has a fixed width, so that it travels as numbers and not as a blob."""
        return not any(dtype.hasobject for dtype in self.dtypes)

    # ---------------------------------------------------------------- columns

    def pack(self, partials: Sequence[Partial]) -> Partials:
        """Lay out n >= 0 partials, none of them `identity`, as columns by `dtypes`."""
        if self.dtypes == _OBJECT:
            return (object_array(partials),)
        if len(self.dtypes) == 1:
            return (np.array(partials, self.dtypes[0]),)
        if not partials:
            return tuple(np.empty(0, dtype) for dtype in self.dtypes)
        return tuple(
            object_array(column) if dtype.hasobject else np.array(column, dtype)
            for column, dtype in zip(zip(*partials, strict=True), self.dtypes, strict=True)
        )

    def unpack(self, partials: Partials) -> list[Partial]:
        """Undo `pack`: return Python scalars, or tuples of them."""
        if len(partials) == 1:
            return partials[0].tolist()  # type: ignore[no-any-return]
        return list(zip(*(column.tolist() for column in partials), strict=True))

    def take(self, partials: Partials, index: int) -> Partial:
        """Return the partial in row `index`."""
        if len(partials) == 1:
            return partials[0].item(index)
        return tuple([column.item(index) for column in partials])  # half the cost of a generator

    def taker(self, partials: Partials) -> Callable[[int], Partial]:
        """Return `take` of these columns as a function of the row, for callers that take many rows one by one."""
        if type(self).take is not PartialForm.take:
            return bound(self.take, partials)
        if len(partials) == 1:
            return partials[0].item  # 0.05 µs; `take` costs 0.2 µs
        if len(partials) == 3:  # moments: 0.25 µs; `take` costs 0.6 µs
            one, two, three = [column.item for column in partials]
            return lambda index: (one(index), two(index), three(index))
        return bound(self.take, partials)

    def put(self, partials: Partials, index: int, partial: Partial) -> None:
        """Write `partial` to row `index`."""
        if len(partials) == 1:
            partials[0][index] = partial
        else:
            for i, column in enumerate(partials):
                column[index] = partial[i]

    def putter(self, partials: Partials) -> Callable[[int, Partial], None]:
        """Return `put` to these columns as a function of row and partial, for callers that write many one by one."""
        if type(self).put is not PartialForm.put:
            return bound(self.put, partials)
        if len(partials) == 1:
            return partials[0].__setitem__
        if len(partials) == 3:
            one, two, three = partials

            def put(index: int, partial: Partial) -> None:
                one[index], two[index], three[index] = partial

            return put
        return bound(self.put, partials)

    # ---------------------------------------------------------------- bytes

    def encode(self, partial: Partial) -> bytes:
        """Write one partial, not `identity`, as bytes.

        Parts of a fixed width are written one after the other, little-endian. Other partials must be Python numbers,
        strings, or lists and tuples of them; they are written as JSON (with NaN and Infinity). Aggregates with other
        partials override `encode` and `decode`.
        """
        if not self.fixed:
            return json.dumps(partial, separators=(",", ":")).encode()
        parts = (partial,) if len(self.dtypes) == 1 else partial
        return b"".join(
            np.array([part], dtype.newbyteorder("<")).tobytes() for part, dtype in zip(parts, self.dtypes, strict=True)
        )

    def decode(self, data: bytes) -> Partial:
        """Read a partial from bytes of any origin.

        Raises:
            InvalidArgument: `encode` would not write `data`.
        """
        try:
            if not self.fixed:
                return self._typed(_tuples(json.loads(data)))
            dtype = np.dtype([(f"f{i}", part.newbyteorder("<")) for i, part in enumerate(self.dtypes)])
            (row,) = np.frombuffer(data, dtype).tolist()
        except (ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"not a partial of {self.function}: {error}") from None
        return row[0] if len(self.dtypes) == 1 else row

    def restore(self, data: bytes) -> Partial:
        """Read a partial from bytes that `encode` wrote and whose checksum is right; may check less than `decode`."""
        return self.decode(data)

    def _typed(self, partial: Any) -> Partial:
        """Check a partial that was read from JSON of any origin, and return it with its proper types.

        Raises:
            ValueError: it does not have the form of a partial.
        """
        return partial


def typed(value: Any, kind: FieldType) -> Any:
    """Check that a value read from JSON is of a type, and return it as that type.

    Raises:
        ValueError: the value has another type or is out of range.
    """
    if kind == "float64" and type(value) in (float, int):
        return float(value)
    if type(value) is not PYTHON_TYPES[kind]:
        raise ValueError(f"{str(value)[:40]!r} is no {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} is out of range of int64")
    if isinstance(value, str):
        value.encode()  # raises for half a surrogate pair, which no answer could carry
    return value


def whole(name: str, number: Any, least: int, most: int, limit: str = "") -> int:
    """Check a parameter that is an integer, and return it.

    Args:
        limit: says in an error what is allowed, where it is not written as elsewhere.

    Raises:
        InvalidArgument: it is no integer, or less than `least` or more than `most`.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        limit = limit or f"{least} to {most:,}"
        raise InvalidArgument(f"{name} must be an integer in range", field=name, limit=limit)
    return number


def ticks(name: str, number: Any) -> int:
    """Check a parameter that is a duration in ticks, and return it; raises InvalidArgument."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63:
        raise InvalidArgument(f"{name} must be a duration", field=name, limit="more than 0, less than 2^63 ticks")
    return number


def typed_parts(partial: Any, kinds: Sequence[FieldType]) -> tuple[Any, ...]:
    """Check a tuple of values read from JSON, each of its own type; raises as `typed` does."""
    if type(partial) is not tuple or len(partial) != len(kinds):
        raise ValueError(f"it has {len(kinds)} parts")
    return tuple(typed(part, kind) for part, kind in zip(partial, kinds, strict=True))


def _tuples(value: Any) -> Any:
    """Turn JSON arrays, at any depth, back into tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
