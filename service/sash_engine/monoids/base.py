"""What an aggregate is: a monoid of partials with `lift`, `combine` and `lower`.

    values        v0    v1    v2    v3
                  |     |     |     |        lift
    partials      p0    p1    p2    p3
                   \\   /       \\   /          combine(older, newer)
                   p01         p23
                      \\       /
                        p0123                lower -> answer

An aggregate is *defined* by four scalar members: `identity`, `lift`, `combine`, `lower`. Everything else in
`Monoid` is derived from them and may be overridden with a vectorised form; `monoids.laws` checks that an
override equals what it overrides. The smallest aggregate that is of use:

>>> class AnyTrue(Monoid):
...     function = "any_true"
...     reads = (Read("field", ("bool",)),)
...     commutative = True
...     answer = bool
...     identity = False
...     dtypes = (np.dtype(np.bool_),)
...
...     def lift(self, value):
...         return value
...
...     def combine(self, older, newer):
...         return older or newer
...
...     def lower(self, partial):
...         return partial
>>> any_true = AnyTrue()
>>> any_true.lower(any_true.reduce([np.array([False, True, False])]))
True

Shapes. A *value* is one scalar, or a tuple of scalars where the aggregate reads several columns (`reads`).
*Values* are a tuple of one NumPy array per column read, all of one length n. A *partial* is an opaque Python
object: a scalar where `dtypes` has one element, a tuple where it has several. *Partials* are a tuple of one
array per element of `dtypes`. An aggregate with `dtypes == (object,)` keeps Python objects.

The identity stands for "no entries". Columns of partials never hold it (every row folds at least one entry),
so a fixed-width column needs no room for it and `identity` may be `None`.

Source: the lift/combine/lower split is that of Tangwongsan, Hirzel, Schneider and Wu, "General incremental
sliding-window aggregation", VLDB 2015; the column forms are ours.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial as bound
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument

__all__ = ["ANY", "NUMERIC", "ORDERED", "FieldType", "Monoid", "Partial", "Partials", "Read", "Values"]

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


@dataclass(frozen=True, slots=True)
class Read:
    """One column that an aggregate reads.

    Args:
        option: the key of the aggregate's spec that names the field; the option ``"time"`` is never named and
            always reads the entry's time (int64 ticks).
        accepts: the field types it can read.
        default: the field it reads when the spec does not say, or None where the spec must say (a window with
            a single field needs no ``field`` either way).
    """

    option: str
    accepts: tuple[FieldType, ...]
    default: str | None = None


TIME = Read("time", ("int64",))
FEW = 16
"""Up to so many partials are folded one by one: below, a vectorised halving costs more than it saves."""


class Monoid(ABC):
    """An aggregate: an associative `combine` over partials, with `identity`, `lift` and `lower`.

    Args:
        types: the type of each column it reads, in the order of `reads`; float64 where omitted.

    Subclasses take their parameters as keyword-only arguments, raise `InvalidArgument` (with `field` set to the
    parameter's name) for bad ones, and set `dtypes`.
    """

    function: ClassVar[str]
    """Name in specs and in the catalogue."""
    reads: ClassVar[tuple[Read, ...]] = (Read("field", NUMERIC),)
    commutative: bool = False
    """combine(a, b) == combine(b, a)."""
    invertible: bool = False
    """`uncombine` is there: only Subtract-on-Evict uses it, the engine never subtracts."""
    exact: bool = True
    """The answer does not depend on how combines are grouped (floats round, sketches approximate)."""
    large: bool = False
    """One partial takes as much room as some hundred entries: it is a sketch, or it has a value for each entry.

    Each large partial is a stored value of its own in a tier, while all others stay in memory. A series over large
    partials may have fewer buckets. Only an aggregate with `dtypes == (object,)` can be large."""
    answer: type = float
    """What `lower` returns: float, int, str, bool, list, dict or bytes (and None where there is no answer).
    Lists and dicts hold the same. Some aggregates set it per instance, by the type of the field."""

    identity: Partial = None
    dtypes: tuple[np.dtype[Any], ...] = (np.dtype(object),)
    parts: ClassVar[tuple[str, ...]] = ("partial",)
    """What each element of `dtypes` is called where partials enter and leave as columns. A part named `entries` is how
    many entries a partial folds."""
    blob: ClassVar[str] = "JSON: the part, or a list of the parts"
    """What `encode` writes where a part has no fixed width."""

    def __init__(self, *types: FieldType) -> None:
        if len(types) > len(self.reads):
            raise InvalidArgument(f"{self.function} reads {len(self.reads)} columns, not {len(types)}")
        given = list(types)
        given += [preferred(read) for read in self.reads[len(types) :]]
        for read, kind in zip(self.reads, given, strict=True):
            if kind not in read.accepts:
                raise InvalidArgument(
                    f"{self.function} cannot read a {kind} column; it takes {' or '.join(read.accepts)}",
                    field=read.option,
                )
        self.types: tuple[FieldType, ...] = tuple(given)

    # ---------------------------------------------------------------- the definition: scalars

    @abstractmethod
    def lift(self, value: Any) -> Partial:
        """Make the partial of one value."""

    @abstractmethod
    def combine(self, older: Partial, newer: Partial) -> Partial:
        """Join two partials; neither argument is changed. `identity` is neutral on both sides."""

    @abstractmethod
    def lower(self, partial: Partial) -> Any:
        """Make the answer; `lower(identity)` is the answer over no entries (None where there is none)."""

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        """Return x with combine(older, x) == total; only where `invertible`."""
        raise NotImplementedError(f"{self.function} has no inverse")

    # ---------------------------------------------------------------- derived: columns of values

    def reduce(self, values: Values) -> Partial:
        """Fold all rows of `values` (n >= 0) in order."""
        total = self.identity
        for value in rows(values):
            total = self.combine(total, self.lift(value))
        return total

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        """Fold each segment of rows.

        Args:
            values: n rows.
            starts: int64 (k,), strictly increasing, `starts[0] == 0`; segment i is
                `starts[i] <= row < starts[i + 1]`, the last one runs to n. No segment is empty.

        Returns:
            k partials.
        """
        bounds = [*starts.tolist(), len(values[0])]
        return self.pack([self.reduce([column[a:b] for column in values]) for a, b in pairwise(bounds)])

    def lift_columns(self, values: Values) -> Partials:
        """Lift each of n >= 1 rows. The columns may be the very arrays of `values`: not to be written to."""
        return self.pack([self.lift(value) for value in rows(values)])

    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        """Return for each of n >= 1 rows i the fold of rows i, i + 1, …, n - 1.

        Where `combine_columns` is vectorised, by doubling: after pass j, row i folds the 2^j rows from i on.
        """
        if self._vectorised():
            columns, step, n = self.lift_columns(values), 1, len(values[0])
            while step < n:
                longer = self.combine_columns(
                    tuple(column[:-step] for column in columns), tuple(column[step:] for column in columns)
                )
                columns = tuple(np.concatenate((a, b[n - step :])) for a, b in zip(longer, columns, strict=True))
                step *= 2
            return self.unpack(columns)
        out: list[Partial] = []
        total = self.identity
        for partial in reversed(self.unpack(self.lift_columns(values))):
            total = self.combine(partial, total)
            out.append(total)
        out.reverse()
        return out

    # ---------------------------------------------------------------- derived: columns of partials

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        """Combine row by row; both sides have n >= 0 rows. Neither argument is changed."""
        return self.pack([self.combine(a, b) for a, b in zip(self.unpack(older), self.unpack(newer), strict=True)])

    def fold(self, partials: Partials) -> Partial:
        """Fold n >= 0 partials in order; where `combine_columns` is vectorised, pairwise while they are many."""
        while len(partials[0]) > FEW and self._vectorised():
            even = len(partials[0]) & ~1
            pairs = self.combine_columns(
                tuple(column[0:even:2] for column in partials), tuple(column[1:even:2] for column in partials)
            )
            odd = tuple(column[even:] for column in partials)
            partials = tuple(np.concatenate(both) for both in zip(pairs, odd, strict=True))
        total = self.identity
        for partial in self.unpack(partials):
            total = self.combine(total, partial)
        return total

    def lower_columns(self, partials: Partials) -> Array:
        """Lower row by row to an array of answers (n,), of whatever dtype fits."""
        return object_array([self.lower(partial) for partial in self.unpack(partials)])

    def _vectorised(self) -> bool:
        return type(self).combine_columns is not Monoid.combine_columns and self.fixed

    @property
    def fixed(self) -> bool:
        """Whether every part of a partial has a fixed width, so that it travels as numbers and not as a blob."""
        return not any(dtype.hasobject for dtype in self.dtypes)

    # ---------------------------------------------------------------- between partials and their columns

    def pack(self, partials: Sequence[Partial]) -> Partials:
        """Lay partials (none of them `identity`) out as columns."""
        if self.dtypes == (np.dtype(object),):
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
        """The opposite of `pack`: Python scalars, or tuples of them."""
        if len(partials) == 1:
            return partials[0].tolist()  # type: ignore[no-any-return]
        return list(zip(*(column.tolist() for column in partials), strict=True))

    def take(self, partials: Partials, index: int) -> Partial:
        """Return the partial in row `index`."""
        if len(partials) == 1:
            return partials[0].item(index)
        return tuple([column.item(index) for column in partials])  # half of what a generator costs

    def taker(self, partials: Partials) -> Callable[[int], Partial]:
        """Return `take` of these partials, for somebody who will take many of them one by one."""
        if type(self).take is not Monoid.take:
            return bound(self.take, partials)
        if len(partials) == 1:
            return partials[0].item  # 0.05 us where `take` is 0.2
        if len(partials) == 3:  # moments: 0.25 us where `take` is 0.6
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
        """Return `put` to these partials, for somebody who will put many of them one by one."""
        if type(self).put is not Monoid.put:
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
        """Write one partial (not `identity`) as bytes.

        Fixed-width `dtypes` are written one after the other, little-endian; partials of Python numbers, strings
        and lists or tuples of them as JSON (with NaN and Infinity). Other partials need an override.
        """
        if not self.fixed:
            return json.dumps(partial, separators=(",", ":")).encode()
        parts = (partial,) if len(self.dtypes) == 1 else partial
        return b"".join(
            np.array([part], dtype.newbyteorder("<")).tobytes() for part, dtype in zip(parts, self.dtypes, strict=True)
        )

    def decode(self, data: bytes) -> Partial:
        """The opposite of `encode`, of bytes that anybody may have written.

        Raises:
            InvalidArgument: `data` is not what `encode` writes.
        """
        try:
            if not self.fixed:
                return self._typed(tuples(json.loads(data)))
            dtype = np.dtype([(f"f{i}", part.newbyteorder("<")) for i, part in enumerate(self.dtypes)])
            (row,) = np.frombuffer(data, dtype).tolist()
        except (ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"not a partial of {self.function}: {error}") from None
        return row[0] if len(self.dtypes) == 1 else row

    def restore(self, data: bytes) -> Partial:
        """As `decode`, of bytes that `encode` wrote and whose checksum holds: for aggregates that read those faster."""
        return self.decode(data)

    def _typed(self, partial: Any) -> Partial:
        """Check what was read from JSON, whoever wrote it.

        Raises:
            ValueError: it has not the form of a partial.
        """
        return partial

    def implausible(self, partials: Partials, entries: Array) -> Array:
        """Which of n partials from elsewhere, of the right dtypes, cannot be true: bool (n,).

        Args:
            entries: int64 (n,), how many entries each is said to fold.

        Here: a part named `entries` that says otherwise; and of aggregates that read any JSON, partials that cannot be
        combined and lowered. Aggregates add what they know about their other parts and what costs little; a wrong
        partial may pass, one that would break a later combine or answer may not.
        """
        if self.fixed and "entries" in self.parts:
            return partials[self.parts.index("entries")] != entries  # type: ignore[no-any-return]
        if not self.fixed and type(self)._typed is Monoid._typed and type(self).decode is Monoid.decode:
            return ~np.fromiter(map(self._works, self.unpack(partials)), np.bool_, len(entries))
        return np.zeros(len(entries), np.bool_)

    def _works(self, partial: Partial) -> bool:
        try:
            self.lower(self.combine(partial, partial))
        except Exception:  # whatever it is: it would come up again with every question
            return False
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.types)})"


def preferred(read: Read) -> FieldType:
    """The type a column is taken to have where nobody says."""
    if read.default == "time":
        return "int64"
    return "float64" if "float64" in read.accepts else read.accepts[0]


def tuples(value: Any) -> Any:
    """JSON arrays, however deep, as the tuples they were."""
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def typed(value: Any, kind: FieldType) -> Any:
    """A value read from JSON as one of the type.

    Raises:
        ValueError: it is none.
    """
    if kind == "float64" and type(value) in (float, int):
        return float(value)
    if type(value) is not PYTHON_TYPES[kind]:
        raise ValueError(f"{str(value)[:40]!r} is no {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} is out of range of int64")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is no text, and could not be answered
    return value


def typed_parts(partial: Any, kinds: Sequence[FieldType]) -> tuple[Any, ...]:
    """Parts read from JSON, each of its type; raises as `typed`."""
    if type(partial) is not tuple or len(partial) != len(kinds):
        raise ValueError(f"it has {len(kinds)} parts")
    return tuple(typed(part, kind) for part, kind in zip(partial, kinds, strict=True))


def rows(values: Values) -> list[Any]:
    """The rows of `values` as Python scalars, or as tuples of them where there are several columns."""
    if len(values) == 1:
        return values[0].tolist()  # type: ignore[no-any-return]
    return list(zip(*(column.tolist() for column in values), strict=True))


def object_array(items: Sequence[Any]) -> Array:
    """A one-dimensional object array: `np.array` would open up items that are sequences."""
    return np.fromiter(items, dtype=object, count=len(items))
