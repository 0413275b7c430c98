"""The arithmetic and the geometric mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sash_engine.monoids.base import NUMERIC, Array, FieldType, Monoid, Partial, Partials, Read, Values, typed
from sash_engine.monoids.numerics import beyond, integer_total, integer_totals, lengths, quiet, total, totals


class _Counted(Monoid):
    """Partial: (count, sum); None over no entries."""

    reads = (Read("field", NUMERIC),)
    commutative = True

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None:
            return newer
        if newer is None:
            return older
        return older[0] + newer[0], older[1] + newer[1]

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return older[0] + newer[0], older[1] + newer[1]


class Mean(_Counted):
    """The arithmetic mean of a field; None over no entries.

    Partial: (count, sum). Nothing is ever subtracted from the sum, so a NaN or an infinity affects the answer only
    while it is in the window. Over an int64 field the sum is a Python integer, and the mean is rounded once. Over a
    float64 field the mean is inf if the sum exceeds 1.8e308.

    Flags: commutative; exact over int64.

    >>> import numpy as np
    >>> from sash_engine.monoids import Mean
    >>> mean = Mean()
    >>> mean.lower(mean.combine(mean.lift(1.0), mean.reduce([np.array([2.0, 6.0])])))
    3.0
    """

    function = "mean"
    parts = ("entries", "sum")
    joins = (np.add, np.add)

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.integers = self.types[0] == "int64"
        self.exact = self.integers
        self.dtypes = (np.dtype(np.int64), np.dtype(object if self.integers else np.float64))

    def lift(self, value: Any) -> Partial:
        return 1, value

    def lower(self, partial: Partial) -> float | None:
        return None if partial is None else partial[1] / partial[0]

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        n = len(column)
        if not n:
            return None
        return n, integer_total(column) if self.integers else total(column)

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        (column,) = values
        sums = integer_totals(column, starts) if self.integers else totals(column, starts)
        return lengths(starts, len(column)), sums

    def lift_columns(self, values: Values) -> Partials:
        return np.ones(len(values[0]), np.int64), values[0].astype(self.dtypes[1])

    def fold(self, partials: Partials) -> Partial:
        counts, sums = partials
        if not len(counts):
            return None
        return int(np.add.reduce(counts)), sum(sums.tolist()) if self.integers else total(sums)

    def lower_columns(self, partials: Partials) -> Array:
        return (partials[1] / partials[0]).astype(np.float64)

    def _typed(self, partial: Any) -> Partial:
        if type(partial) is not tuple or [type(part) for part in partial] != [int, int]:
            raise ValueError("it must be [entries, sum], two integers")
        typed(partial[0], "int64")
        return partial

    def implausible(self, partials: Partials, entries: Array) -> Array:
        wrong = partials[0] != entries
        return wrong | beyond(partials[1], entries) if self.integers else wrong  # type: ignore[no-any-return]


class GeometricMean(_Counted):
    """The geometric mean of a field: the exponential of the mean logarithm; None over no entries.

    It is 0 if a value is 0, and NaN if a value is negative or NaN. Partial: (count, sum of logarithms).

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import GeometricMean
    >>> mean = GeometricMean()
    >>> round(mean.lower(mean.reduce([np.array([1.0, 10.0, 100.0])])), 12)
    10.0
    """

    function = "geometric_mean"
    exact = False
    parts = ("entries", "log_sum")
    dtypes = (np.dtype(np.int64), np.dtype(np.float64))

    def lift(self, value: Any) -> Partial:
        if value > 0:
            return 1, math.log(value)
        return 1, -math.inf if value == 0 else math.nan

    @quiet
    def lower(self, partial: Partial) -> float | None:
        return None if partial is None else float(np.exp(partial[1] / partial[0]))

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        return (len(column), total(_logarithms(column))) if len(column) else None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        (column,) = values
        return lengths(starts, len(column)), totals(_logarithms(column), starts)

    def lift_columns(self, values: Values) -> Partials:
        return np.ones(len(values[0]), np.int64), _logarithms(values[0])

    def fold(self, partials: Partials) -> Partial:
        return (int(np.add.reduce(partials[0])), total(partials[1])) if len(partials[0]) else None

    @quiet
    def lower_columns(self, partials: Partials) -> Array:
        return np.exp(partials[1] / partials[0])


@quiet
def _logarithms(column: Array) -> Array:
    return np.log(column)
