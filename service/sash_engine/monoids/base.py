"""Aggregates: monoids of partials with `lift`, `combine` and `lower`.

    values        v0    v1    v2    v3
                  |     |     |     |        lift
    partials      p0    p1    p2    p3
                   \\   /       \\   /          combine(older, newer)
                   p01         p23
                      \\       /
                        p0123                lower -> answer

Four scalar members define an aggregate: `identity`, `lift`, `combine`, `lower`. All other methods of `Monoid` are
derived from them. A subclass may override these with vectorised forms; `monoids.laws` checks that an override gives the
same results. A small aggregate:

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

Shapes. A *value* is a scalar, or a tuple of scalars if the aggregate reads several columns (`reads`). *Values* are a
tuple of NumPy arrays, one for each column read, all of one length n. A *partial* is an opaque Python object: a scalar
if `dtypes` has one element, a tuple if it has several. *Partials* are a tuple of arrays, one for each element of
`dtypes`. An aggregate with `dtypes == (object,)` keeps Python objects.

The identity stands for "no entries". Columns of partials never have it, because every row folds at least one entry. So
a column of numbers needs no value for it, and `identity` may be `None`.

Source: lift, combine and lower are those of Tangwongsan, Hirzel, Schneider and Wu, "General incremental sliding-window
aggregation", VLDB 2015; the column forms are ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.kernels import RANGED, quiet
from sash_engine.monoids.columns import (
    ANY,
    NUMERIC,
    NUMPY_TYPES,
    ORDERED,
    PYTHON_TYPES,
    Array,
    FieldType,
    Partial,
    Partials,
    Values,
    object_array,
    rows,
)
from sash_engine.monoids.forms import PartialForm, typed, typed_parts, whole
from sash_engine.monoids.suffixes import Suffixes
from sash_engine.steps import Steps

__all__ = [
    "ANY",
    "NUMERIC",
    "NUMPY_TYPES",
    "ORDERED",
    "PYTHON_TYPES",
    "TIME",
    "Array",
    "FieldType",
    "Joined",
    "JoinedNumbers",
    "Monoid",
    "OneValue",
    "Partial",
    "Partials",
    "Read",
    "Schema",
    "Values",
    "object_array",
    "rows",
    "typed",
    "typed_parts",
    "whole",
]

Schema: TypeAlias = "str | list[Schema] | dict[str, Schema]"
"""The form of an answer: a field type or "bytes"; a list with the schema of its items; a dict of members."""

_SCHEMAS: dict[type, Schema] = {float: "float64", int: "int64", str: "string", bool: "bool", bytes: "bytes"}


@dataclass(frozen=True, slots=True)
class Read:
    """One column that an aggregate reads.

    Args:
        option: the key of the aggregate's spec that names the field. The option ``"time"`` is not a key: it always
            reads the entry's time (int64 ticks).
        accepts: the field types that the aggregate can read.
        default: the field it reads if the spec names none; None if the spec must name one. A window with a single
            field needs no name either way.
        many: the option names a list of so many fields at most; 0: it names one field. Only the last `Read` of an
            aggregate can have a list. Its columns come last in the rows.
    """

    option: str
    accepts: tuple[FieldType, ...]
    default: str | None = None
    many: int = 0


TIME = Read("time", ("int64",))
_FEW = 16
"""Up to so many partials are folded one by one, which is faster than vectorised passes over pairs."""


class Monoid(PartialForm, ABC):
    """An aggregate: an associative `combine` over partials, with `identity`, `lift` and `lower`.

    The attributes describe the aggregate to the rest of Sash, which never asks for a function by its name.

    Args:
        types: the type of each column it reads, in the order of `reads`; float64 by default.

    Subclasses take their parameters as keyword-only arguments and set `dtypes`. For a bad parameter they raise
    `InvalidArgument` with `field` set to the parameter's name.
    """

    reads: ClassVar[tuple[Read, ...]] = (Read("field", NUMERIC),)
    durations: ClassVar[Mapping[str, str | None]] = {}
    """Parameters that a spec gives as durations, with their defaults. The constructor gets them as ticks. In logical
    time, a default is 1 tick."""
    example: ClassVar[Mapping[str, Any]] = {}
    """Parameters that make an instance, for an aggregate with required ones. Lists of aggregates in tests and
    documentation use them."""

    commutative: bool = False
    """combine(a, b) == combine(b, a): the answer does not depend on the order of entries. Only commutative aggregates
    answer over several keys together."""
    invertible: bool = False
    """`uncombine` is implemented. Only the algorithm Subtract-on-Evict uses it; the engine never subtracts."""
    exact: bool = True
    """The answer does not depend on how combines are grouped. Floats round and sketches approximate, so they differ."""
    counts_entries: bool = False
    """The partial is the number of entries. Windows know that number anyway, so they keep no partials for it."""
    joins: ClassVar[tuple[np.ufunc, ...]] = ()
    """For each part of a partial the ufunc that combines it, where each part combines by itself; else none. A subclass
    does not inherit it: it may combine otherwise."""
    sparse_suffixes: bool = False
    """`scan_suffix` keeps every 32nd fold and makes the others when they are asked for: for large partials that are
    cheap to make of some values, such as sketches."""

    partials_as: str = ""
    """Aggregates with the same name here, the same parameters and columns have the same partials, and differ in `lower`
    alone: a row or a block is folded once for all of them. Empty: no other aggregate has these partials."""

    answer: type = float
    """What `lower` returns: float, int, str, bool, list, dict or bytes (and None if there is no answer). Lists and
    dicts hold the same types. Some aggregates set it per instance, by the type of the field."""
    values_per_entry: int | None = None
    """How many values an answer has at most for each entry it covers. None: the size of the answer is bounded by the
    parameters, not by the entries. It bounds the memory of a series of lists."""

    identity: Partial = None

    def __init__(self, *types: FieldType) -> None:
        most = sum(max(read.many, 1) for read in self.reads)
        if len(types) > most:
            raise InvalidArgument(f"{self.function} reads {most} columns, not {len(types)}")
        given = list(types)
        given += [default_type(read) for read in self.reads[len(types) :]]
        reads = [*self.reads, *self.reads[-1:] * (len(given) - len(self.reads))]
        for read, kind in zip(reads, given, strict=True):
            if kind not in read.accepts:
                raise InvalidArgument(
                    f"{self.function} cannot read a {kind} column; it takes {' or '.join(read.accepts)}",
                    field=read.option,
                )
        self.types: tuple[FieldType, ...] = tuple(given)

    @property
    def schema(self) -> Schema | None:
        """The form of an answer, for consumers with typed columns such as Spark.

        By default it follows from `answer`. An aggregate that answers a list or a dict overrides it; None: unknown.
        """
        return _SCHEMAS.get(self.answer)

    # ---------------------------------------------------------------- the definition: scalars

    @abstractmethod
    def lift(self, value: Any) -> Partial:
        """Return the partial of one value: a scalar, or a tuple of scalars where several columns are read."""

    @abstractmethod
    def combine(self, older: Partial, newer: Partial) -> Partial:
        """Return the fold of both. It must not change its arguments; `identity` must be neutral on both sides."""

    @abstractmethod
    def lower(self, partial: Partial) -> Any:
        """Return the answer; `lower(identity)` is the answer over no entries, None if there is none."""

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        """Return x with combine(older, x) == total.

        Raises:
            NotImplementedError: the aggregate is not `invertible`.
        """
        raise NotImplementedError(f"{self.function} has no inverse")

    # ---------------------------------------------------------------- derived: columns of values

    def reduce(self, values: Values) -> Partial:
        """Fold all rows of `values` (n >= 0) in order."""
        total = self.identity
        for value in rows(values):
            total = self.combine(total, self.lift(value))
        return total

    def reducer(self) -> Callable[[Array, int, int], Partial] | None:
        """Return a function that folds rows start..stop of the one column it reads, as `reduce` does.

        It saves callers the slice. None, as here: there is no such function. An aggregate that derives from another
        and has a `reduce` of its own must not inherit the other's `reducer`.
        """
        return None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        """Fold each segment of rows.

        Args:
            values: n rows.
            starts: int64 (k,), strictly increasing, `starts[0] == 0`. Segment i has the rows
                `starts[i] <= row < starts[i + 1]`; the last one ends with row n - 1. No segment is empty.

        Returns:
            k partials, one array (k,) per element of `dtypes`.
        """
        bounds = [*starts.tolist(), len(values[0])]
        return self.pack([self.reduce([column[a:b] for column in values]) for a, b in pairwise(bounds)])

    def reduce_ranges(self, values: Values, starts: Array, stops: Array) -> Partials:
        """Fold each of k ranges of rows, which may overlap, as `reduce` folds it, to the last bit.

        Args:
            values: n rows.
            starts, stops: int64 (k,), 0 <= start < stop <= n.

        Returns:
            k partials.
        """
        reducer, bounds = self.reducer(), zip(starts.tolist(), stops.tolist(), strict=True)
        if reducer is not None:
            column = values[0]
            ranged = RANGED.get(reducer)
            if ranged is not None and column.dtype == self.dtypes[0] and column.dtype.kind in "fi":
                return (ranged(column, starts, stops),)
            return self.pack([reducer(column, start, stop) for start, stop in bounds])
        return self.pack([self.reduce([column[start:stop] for column in values]) for start, stop in bounds])

    def over_ranges(self, values: Values) -> Callable[[Array, Array], Array] | None:
        """Return a function of starts and stops, as of `reduce_ranges`, that answers over ranges of these rows.

        It is for aggregates that answer without making partials. What it answers is what `lower` makes of `reduce`.
        None, as here: there is no such function.
        """
        return None

    @property
    def slides(self) -> bool:
        """Whether it has `over_sliding`."""
        return False

    def over_sliding(self, values: Values, starts: Array, stops: Array) -> Steps[Array]:
        """Answer over ranges that mostly overlap: each costs the rows in which it differs from the last one; in steps.

        Arguments as of `reduce_ranges`. It is for aggregates that are exact, and that say that they do it: `slides`.
        """
        raise NotImplementedError

    def lift_columns(self, values: Values) -> Partials:
        """Lift each of n >= 1 rows. The result may share memory with `values`, so callers must not write to it."""
        return self.pack([self.lift(value) for value in rows(values)])

    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        """Return for each of n >= 1 rows i the fold of rows i, i + 1, …, n - 1.

        With a vectorised `combine_columns` it doubles: after pass j, row i folds the 2^j rows from i on.
        """
        if self.sparse_suffixes:
            return Suffixes(self, values)
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
        """Combine row by row; both sides have n >= 0 rows. It must not change its arguments."""
        return self.pack([self.combine(a, b) for a, b in zip(self.unpack(older), self.unpack(newer), strict=True)])

    def fold(self, partials: Partials) -> Partial:
        """Fold n >= 0 partials in order. With a vectorised `combine_columns` it combines pairs while there are many."""
        while len(partials[0]) > _FEW and self._vectorised():
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
        """Lower row by row to an array of answers (n,), of a dtype that fits them."""
        return object_array([self.lower(partial) for partial in self.unpack(partials)])

    def _vectorised(self) -> bool:
        return type(self).combine_columns is not Monoid.combine_columns and self.fixed

    # ---------------------------------------------------------------- checks

    def implausible(self, partials: Partials, entries: Array) -> Array:
        """Find the partials that cannot be right, among n partials of any origin with the right dtypes.

        By default it compares a part named `entries` with the claim, and tries to combine and lower partials that
        `decode` read without checks of their form. Aggregates override it to check their other parts, where that is
        cheap. A wrong partial may pass, but one that would break a later combine or answer must not.

        Args:
            partials: n partials.
            entries: int64 (n,), how many entries each is claimed to fold.

        Returns:
            bool (n,): True for a partial that cannot be right.
        """
        if self.fixed and "entries" in self.parts:
            return partials[self.parts.index("entries")] != entries  # type: ignore[no-any-return]
        if not self.fixed and type(self)._typed is Monoid._typed and type(self).decode is Monoid.decode:
            return ~np.fromiter(map(self._works, self.unpack(partials)), np.bool_, len(entries))
        return np.zeros(len(entries), np.bool_)

    def _works(self, partial: Partial) -> bool:
        try:
            self.lower(self.combine(partial, partial))
        except Exception:  # of any kind: every later query would raise it again
            return False
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.types)})"


class OneValue(Monoid):
    """An aggregate that answers one of the values. Partial: the value itself, of the field's type."""

    reads = (Read("field", ANY),)

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.answer = PYTHON_TYPES[self.types[0]]
        self.dtypes = (NUMPY_TYPES[self.types[0]],)

    def lift(self, value: Any) -> Partial:
        return value

    def lower(self, partial: Partial) -> float | int | str | bool | None:
        return partial  # type: ignore[no-any-return]

    def lift_columns(self, values: Values) -> Partials:
        return (values[0],)

    def fold(self, partials: Partials) -> Partial:
        return self.reduce(partials)

    def lower_columns(self, partials: Partials) -> Array:
        return partials[0]

    def _typed(self, partial: Any) -> Partial:
        return typed(partial, self.types[0])


class Joined(Monoid):
    """An aggregate whose partial over no entries is None; others are joined."""

    @abstractmethod
    def join(self, older: Any, newer: Any) -> Any:
        """Join two partials over some entries."""

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        return self.join(older, newer)


class JoinedNumbers(Joined):
    """All parts of its partials are numbers: `join` also joins arrays of them row by row."""

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return self.join(older, newer)  # type: ignore[no-any-return]


def default_type(read: Read) -> FieldType:
    """Return the type that a column is assumed to have if the caller names none."""
    if read.default == "time":
        return "int64"
    return "float64" if "float64" in read.accepts else read.accepts[0]
