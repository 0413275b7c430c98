"""The smallest and the largest value: how often each occurs, in which entry, and the difference of the two.

NaN is more extreme than any number, on both sides: an extreme over entries with a NaN is NaN, and its entry is the
first with a NaN. -0.0 and 0.0 are equal. Of entries with equal extremes, the first in time counts. Strings compare by
code point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from sash_engine.kernels import largest, smallest
from sash_engine.monoids.base import (
    ANY,
    NUMERIC,
    NUMPY_TYPES,
    ORDERED,
    PYTHON_TYPES,
    Array,
    FieldType,
    Joined,
    Monoid,
    OneValue,
    Partial,
    Partials,
    Read,
    Values,
    typed_parts,
)
from sash_engine.monoids.numerics import first_of_best, lengths, quiet


class _Extreme(OneValue):
    """Partial: the extreme, of the field's type."""

    reads = (Read("field", ORDERED),)
    commutative = True
    ufunc: ClassVar[np.ufunc]

    def reduce(self, values: Values) -> Partial:
        return self.reducer()(values[0], 0, len(values[0]))

    def reducer(self) -> Callable[[Array, int, int], Partial]:
        return smallest if self.ufunc is np.minimum else largest

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        return (self.ufunc.reduceat(values[0], starts),)

    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        return self.ufunc.accumulate(values[0][::-1])[::-1].tolist()  # type: ignore[no-any-return]

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (self.ufunc(older[0], newer[0]),)


class Min(_Extreme):
    """The smallest value of a field, exact for int64. None over no entries.

    Flags: commutative, exact.

    >>> from sash_engine.monoids import Min
    >>> least = Min("string")
    >>> least.lower(least.combine(least.lift("lime"), least.lift("fig")))
    'fig'
    """

    function = "min"
    parts = ("min",)
    ufunc = np.minimum
    joins = (np.minimum,)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        return older if older <= newer or older != older else newer


class Max(_Extreme):
    """The largest value of a field, exact for int64. None over no entries.

    Flags: commutative, exact.

    >>> from sash_engine.monoids import Max
    >>> largest = Max()
    >>> largest.lower(largest.combine(largest.lift(1.5), largest.lift(-2.0)))
    1.5
    """

    function = "max"
    parts = ("max",)
    ufunc = np.maximum
    joins = (np.maximum,)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        return older if older >= newer or older != older else newer


def _precedes(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    """Return whether `a` is strictly more extreme than `b`: scalars, or arrays row by row."""
    beats = a < b if ufunc is np.minimum else a > b
    return beats | ((a != a) & (b == b))


class _ExtremeCount(Joined):
    """Partial: (extreme, number of values that equal it)."""

    reads = (Read("field", ORDERED),)
    commutative = True
    answer = int
    ufunc: ClassVar[np.ufunc]

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.dtypes = (NUMPY_TYPES[self.types[0]], np.dtype(np.int64))

    def lift(self, value: Any) -> Partial:
        return value, 1

    def join(self, older: Any, newer: Any) -> Any:
        if _precedes(self.ufunc, older[0], newer[0]):
            return older
        if _precedes(self.ufunc, newer[0], older[0]):
            return newer
        return older[0], older[1] + newer[1]

    def lower(self, partial: Partial) -> int | None:
        return None if partial is None else partial[1]

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        if not len(column):
            return None
        best = column.item(column.argmin() if self.ufunc is np.minimum else column.argmax())
        # As an array: NumPy takes a text alone without the NULs at its end.
        same = column == np.asarray(best, column.dtype) if best == best else column != column
        return best, int(np.count_nonzero(same))

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        (column,) = values
        best = self.ufunc.reduceat(column, starts)
        same = (column == np.repeat(best, lengths(starts, len(column)))) | (column != column)
        return best, np.add.reduceat(same.astype(np.int64), starts)

    def lift_columns(self, values: Values) -> Partials:
        return values[0], np.ones(len(values[0]), np.int64)

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        old_wins = _precedes(self.ufunc, older[0], newer[0]).astype(np.bool_)
        new_wins = _precedes(self.ufunc, newer[0], older[0]).astype(np.bool_)
        # In a tie the counts add up, and either side's extreme will do.
        counts = np.where(new_wins, 0, older[1]) + np.where(old_wins, 0, newer[1])
        return np.where(new_wins, newer[0], older[0]), counts

    def lower_columns(self, partials: Partials) -> Array:
        return partials[1]

    def _typed(self, partial: Any) -> Partial:
        return typed_parts(partial, (self.types[0], "int64"))

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return (partials[1] < 1) | (partials[1] > entries)


class MinCount(_ExtremeCount):
    """The number of entries with the smallest value of a field, or with NaN if there is one. None over no entries.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import MinCount
    >>> count = MinCount()
    >>> count.lower(count.reduce([np.array([3.0, 1.0, 2.0, 1.0])]))
    2
    """

    function = "min_count"
    parts = ("min", "count")
    ufunc = np.minimum


class MaxCount(_ExtremeCount):
    """The number of entries with the largest value of a field, or with NaN if there is one. None over no entries.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import MaxCount
    >>> count = MaxCount("int64")
    >>> count.lower(count.reduce([np.array([3, 1, 3])]))
    2
    """

    function = "max_count"
    parts = ("max", "count")
    ufunc = np.maximum


class _Arg(Monoid):
    """Partial: (extreme, the returned value of its entry)."""

    reads = (Read("field", ORDERED), Read("returns", ANY, default="time"))
    ufunc: ClassVar[np.ufunc]

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.answer = PYTHON_TYPES[self.types[1]]
        self.dtypes = (NUMPY_TYPES[self.types[0]], NUMPY_TYPES[self.types[1]])

    def lift(self, value: Any) -> Partial:
        return value

    def lower(self, partial: Partial) -> float | int | str | bool | None:
        return None if partial is None else partial[1]

    def reduce(self, values: Values) -> Partial:
        column, returned = values
        if not len(column):
            return None
        row = column.argmin() if self.ufunc is np.minimum else column.argmax()
        return column.item(row), returned.item(row)

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        found = first_of_best(values[0], starts, self.ufunc)
        return values[0][found], values[1][found]

    def lift_columns(self, values: Values) -> Partials:
        return values[0], values[1]

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        new_wins = _precedes(self.ufunc, newer[0], older[0]).astype(np.bool_)
        return np.where(new_wins, newer[0], older[0]), np.where(new_wins, newer[1], older[1])

    def fold(self, partials: Partials) -> Partial:
        return self.reduce(partials)

    def lower_columns(self, partials: Partials) -> Array:
        return partials[1]

    def _typed(self, partial: Any) -> Partial:
        return typed_parts(partial, self.types)


class ArgMin(_Arg):
    """The field `returns` of the entry with the smallest value of `field`; by default, the time of that entry.

    Of several such entries, the first in time. None over no entries.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import ArgMin
    >>> where = ArgMin("float64", "int64")
    >>> where.lower(where.reduce([np.array([4.0, 2.0, 2.0]), np.array([10, 20, 30])]))
    20
    """

    function = "arg_min"
    parts = ("min", "returned")
    ufunc = np.minimum

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        a, b = older[0], newer[0]
        return newer if b < a or (b != b and a == a) else older


class ArgMax(_Arg):
    """The field `returns` of the entry with the largest value of `field`; by default, the time of that entry.

    Of several such entries, the first in time. None over no entries.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import ArgMax
    >>> who = ArgMax("float64", "string")
    >>> who.lower(who.reduce([np.array([4.0, 9.0, 9.0]), np.array(["AA", "UA", "DL"], object)]))
    'UA'
    """

    function = "arg_max"
    parts = ("max", "returned")
    ufunc = np.maximum

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        a, b = older[0], newer[0]
        return newer if b > a or (b != b and a == a) else older


class Range(Monoid):
    """The largest value of a field minus the smallest, exact over an int64 field. None over no entries.

    Partial: (smallest, largest).

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Range
    >>> spread = Range("int64")
    >>> spread.lower(spread.reduce([np.array([-(2**63), 2**63 - 1])])) == 2**64 - 1
    True
    """

    function = "range"
    parts = ("min", "max")
    reads = (Read("field", NUMERIC),)
    commutative = True

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.answer = PYTHON_TYPES[self.types[0]]
        self.dtypes = (NUMPY_TYPES[self.types[0]],) * 2

    def lift(self, value: Any) -> Partial:
        return value, value

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        low, high = older
        if newer[0] < low or newer[0] != newer[0]:
            low = newer[0]
        if newer[1] > high or newer[1] != newer[1]:
            high = newer[1]
        return low, high

    def lower(self, partial: Partial) -> float | int | None:
        return None if partial is None else partial[1] - partial[0]

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        return (smallest(column, 0, len(column)), largest(column, 0, len(column))) if len(column) else None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        return np.minimum.reduceat(values[0], starts), np.maximum.reduceat(values[0], starts)

    def lift_columns(self, values: Values) -> Partials:
        return values[0], values[0]

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return np.minimum(older[0], newer[0]), np.maximum(older[1], newer[1])

    @quiet
    def lower_columns(self, partials: Partials) -> Array:
        apart = partials[1] - partials[0]
        # An int64 difference may wrap around; read as unsigned it is right.
        return apart.view(np.uint64) if self.types[0] == "int64" else apart

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return partials[0] > partials[1]
