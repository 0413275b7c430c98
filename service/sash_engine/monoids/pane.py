"""Panes: aggregates over columns of partials instead of columns of values; export and import of partials.

    values     3.0   5.0 | 1.0   1.0   4.0        two granules of time
    partials   (2, 4.0, 2.0) | (3, 2.0, 6.0)      of variance: entries, mean, m2
    columns    entries  2    3                    `Pane(Variance())` reads these three,
               mean     4.0  2.0                  as `Variance` reads the values
               m2       2.0  6.0

Outside the window, partials are columns with the names in `parts` if all parts have a fixed width. Otherwise they are
one column of blobs, as `Monoid.encode` writes them: for sketches, the binary form of DataSketches. `partials_table`
lists the forms of all aggregates.

A fold of n panes costs n - 1 combines. With a vectorised `combine_columns` it takes log2 n passes over pairs.
Requires: associativity only, because panes are folded in order.
Source: Li, Maier, Tufte, Papadimos, Tucker, "No pane, no gain", SIGMOD Record 34(1), 2005.  Differs: panes have a
width of the user's choice, which need not divide any window's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Array, Monoid, Partial, Partials, Values, object_array
from sash_engine.monoids.numerics import lengths, quiet


class Pane(Monoid):
    """An aggregate over panes: the values that it reads are partials of another aggregate, as columns by its `dtypes`.

    Args:
        inner: the other aggregate.

    >>> import numpy as np
    >>> from sash_engine.monoids import Variance
    >>> panes = Pane(Variance())
    >>> panes.lower(panes.reduce([np.array([2, 3]), np.array([4.0, 2.0]), np.array([2.0, 6.0])]))
    3.2
    """

    function = "pane"
    reads = ()

    def __init__(self, inner: Monoid) -> None:
        super().__init__()
        self.inner = inner
        self.commutative = inner.commutative
        self.exact = inner.exact
        self.large = inner.large
        self.sparse_suffixes = inner.sparse_suffixes
        self.answer = inner.answer
        self.identity = inner.identity
        self.dtypes = inner.dtypes

    def lift(self, value: Any) -> Partial:
        return value

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return self.inner.combine(older, newer)

    def lower(self, partial: Partial) -> Any:
        return self.inner.lower(partial)

    def reduce(self, values: Values) -> Partial:
        return self.inner.fold(tuple(values))

    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        if len(starts) == len(values[0]):
            return tuple(values)
        joins = vars(type(self.inner)).get("joins")
        if joins and not any(part.dtype.hasobject for part in values):
            return tuple([join.reduceat(part, starts) for join, part in zip(joins, values, strict=True)])
        if not self._vectorised():
            return super().reduce_segments(values, starts)
        partials, sizes = tuple(values), lengths(starts, len(values[0]))
        while (sizes > 1).any():
            partials, sizes = self._halved(partials, sizes)
        return partials

    def _halved(self, partials: Partials, sizes: Array) -> tuple[Partials, Array]:
        """Combine the first partial of each segment with the second, the third with the fourth, and so on."""
        ends = np.cumsum(sizes)
        place = np.arange(len(partials[0])) - np.repeat(ends - sizes, sizes)
        older = place & 1 == 0
        has_newer = older.copy()
        has_newer[ends - 1] = False
        pairs = np.flatnonzero(has_newer)
        combined = self.inner.combine_columns(
            tuple(column[pairs] for column in partials), tuple(column[pairs + 1] for column in partials)
        )
        paired = has_newer[older]
        out = []
        for column, both in zip(partials, combined, strict=True):
            halved = column[older]
            halved[paired] = both
            out.append(halved)
        return tuple(out), sizes + 1 >> 1

    def lift_columns(self, values: Values) -> Partials:
        return tuple(values)

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return self.inner.combine_columns(older, newer)

    def fold(self, partials: Partials) -> Partial:
        return self.inner.fold(partials)

    def lower_columns(self, partials: Partials) -> Array:
        return self.inner.lower_columns(partials)

    def encode(self, partial: Partial) -> bytes:
        return self.inner.encode(partial)

    def decode(self, data: bytes) -> Partial:
        return self.inner.decode(data)

    def restore(self, data: bytes) -> Partial:
        return self.inner.restore(data)

    def _vectorised(self) -> bool:
        return self.inner._vectorised()

    def __repr__(self) -> str:
        return f"Pane({self.inner!r})"


# -------------------------------------------------------------------- export and import


def exported(monoid: Monoid, partials: Sequence[Partial]) -> Partials:
    """Return partials in the form they have outside: columns by `dtypes`, or one column of encoded blobs.

    >>> from sash_engine.monoids import Collect, Variance
    >>> exported(Variance(), [(2, 4.0, 2.0)])
    (array([2]), array([4.]), array([2.]))
    >>> exported(Collect(), [(1.0, 2.0)])
    (array([b'[1.0,2.0]'], dtype=object),)
    """
    if monoid.fixed:
        return monoid.pack(partials)
    return (object_array([monoid.encode(partial) for partial in partials]),)


def imported(monoid: Monoid, columns: Sequence[Array], entries: Array, name: str) -> Partials:
    """Check partials from outside, and return them as columns by `dtypes`.

    Args:
        monoid: the aggregate.
        columns: n rows in the form of `exported`. Integers of any size (the parts of sums over int64) may be int64.
        entries: int64 (n,), each >= 1: how many entries each row folds.
        name: the aggregate's name for errors.

    Raises:
        InvalidArgument: the columns are not those of the aggregate, a blob cannot be read, or a partial cannot be one
            of so many entries.
    """
    path = f"partials.{name}"
    for column in columns:
        if column.ndim != 1 or len(column) != len(entries):
            raise InvalidArgument(
                f"partials of {name!r} have {len(column)} rows where time has {len(entries)}",
                field=path,
                limit=str(len(entries)),
            )
    if monoid.fixed or _as_numbers(monoid, columns):
        _check_dtypes(monoid, columns, name, path)
        partials = tuple(column.astype(dtype) for column, dtype in zip(columns, monoid.dtypes, strict=True))
    else:
        partials = monoid.pack(_decoded(monoid, columns, name, path))
    wrong = np.flatnonzero(monoid.implausible(partials, entries))
    if len(wrong):
        row = wrong.item(0)
        raise InvalidArgument(
            f"partials of {name!r}: row {row} cannot be the {monoid.function} of {entries.item(row)} entries",
            field=path,
        )
    return partials


def _as_numbers(monoid: Monoid, columns: Sequence[Array]) -> bool:
    """Return whether integers of any size came as int64 columns instead of blobs."""
    return monoid.integers and not any(column.dtype.hasobject for column in columns)


def _check_dtypes(monoid: Monoid, columns: Sequence[Array], name: str, path: str) -> None:
    wanted = [np.dtype(np.int64) if dtype.hasobject else dtype for dtype in monoid.dtypes]
    if [column.dtype for column in columns] != wanted:
        parts = ", ".join(f"{part} {dtype}" for part, dtype in zip(part_names(monoid), wanted, strict=True))
        found = ", ".join(str(column.dtype) for column in columns)
        raise InvalidArgument(f"partials of {name!r} must be columns {parts}, not {found or 'nothing'}", field=path)


def _decoded(monoid: Monoid, columns: Sequence[Array], name: str, path: str) -> list[Partial]:
    if len(columns) != 1 or not columns[0].dtype.hasobject:
        raise InvalidArgument(f"partials of {name!r} must be one column of bytes: {monoid.blob}", field=path)
    partials = []
    for row, data in enumerate(columns[0].tolist()):
        if not isinstance(data, bytes):
            raise InvalidArgument(f"partials of {name!r}: row {row} must be bytes: {monoid.blob}", field=path)
        try:
            partials.append(monoid.decode(data))
        except InvalidArgument as error:
            raise InvalidArgument(f"partials of {name!r}: row {row} is {error.message}", field=path) from None
    return partials


def partials_table(monoids: Iterable[type[Monoid]]) -> list[tuple[str, str, str]]:
    """List the forms of partials outside: for each aggregate its function, its columns, and the blob it may be instead.

    >>> from sash_engine.monoids import Collect, Max, StdDev
    >>> for row in partials_table([StdDev, Max, Collect]):
    ...     print(row)
    ('stddev', 'entries int64, mean float64, m2 float64', '')
    ('max', 'max as its field', 'string: JSON: the part, or a list of the parts')
    ('collect', '', 'JSON: a list of the values')
    """
    return [(cls.function, *_forms(_instances(cls))) for cls in monoids]


def _instances(cls: type[Monoid]) -> list[Monoid]:
    """Make an instance for each combination of types that it can read."""
    every = product(*(read.accepts for read in cls.reads))
    return [cls(*types, **cls.example) for types in every]


def _forms(monoids: Sequence[Monoid]) -> tuple[str, str]:
    fixed = [monoid for monoid in monoids if monoid.fixed]
    others = [monoid for monoid in monoids if not monoid.fixed]
    columns = []
    for i, part in enumerate(part_names(monoids[0]) if fixed else ()):
        kinds = {str(monoid.dtypes[i]) for monoid in fixed}
        columns.append(f"{part} {kinds.pop()}" if len(kinds) == 1 else f"{part} as its field")
    if not others:
        return ", ".join(columns), ""
    culprit = "string" if "string" in others[0].types else others[0].types[0]
    return ", ".join(columns), f"{culprit}: {others[0].blob}" if fixed else others[0].blob


def part_names(monoid: Monoid) -> Sequence[str]:
    """Return the name of each part: `parts`, or ``part0``, ``part1``, … if the aggregate does not name them."""
    n = len(monoid.dtypes)
    return monoid.parts if len(monoid.parts) == n else [f"part{i}" for i in range(n)]
