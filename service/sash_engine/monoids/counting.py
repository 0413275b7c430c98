"""Count and sum: the aggregates that add."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine import kernels
from sash_engine.monoids.base import ANY, NUMERIC, Array, FieldType, Monoid, Partial, Partials, Read, Values
from sash_engine.monoids.numerics import beyond, integer_total, integer_totals, lengths, quiet, total, totals


class Count(Monoid):
    """The number of entries; of a field that may be null, the number of its values.

    Flags: commutative, invertible, exact.

    >>> from sash_engine.monoids import Count
    >>> count = Count()
    >>> count.lower(count.combine(count.lift(17), count.lift(18)))
    2
    """

    function = "count"
    reads = (Read("field", ANY, default="time"),)
    commutative = True
    invertible = True
    counts_entries = True
    answer = int
    identity = 0
    parts = ("entries",)
    dtypes = (np.dtype(np.int64),)
    joins = (np.add,)

    def lift(self, value: Any) -> Partial:
        return 1

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return older + newer

    def lower(self, partial: Partial) -> int:
        return int(partial)

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        return total - older

    def reduce(self, values: Values) -> Partial:
        return len(values[0])

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        return (lengths(starts, len(values[0])),)

    def lift_columns(self, values: Values) -> Partials:
        return (np.ones(len(values[0]), np.int64),)

    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        return list(range(len(values[0]), 0, -1))

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (older[0] + newer[0],)

    def fold(self, partials: Partials) -> Partial:
        return int(np.add.reduce(partials[0]))

    def lower_columns(self, partials: Partials) -> Array:
        return partials[0]


class Sum(Monoid):
    """The sum of a field.

    Over a float64 field the partial is a float64. Over an int64 field it is a Python integer, so the answer is exact
    and cannot overflow. A block is summed in two halves of 32 bits.

    Flags: commutative; over int64 also invertible and exact.

    >>> from sash_engine.monoids import Sum
    >>> total = Sum("int64")
    >>> total.lower(total.combine(total.lift(2**63 - 1), total.lift(2**63 - 1))) == 2**64 - 2
    True
    """

    function = "sum"
    reads = (Read("field", NUMERIC),)
    commutative = True
    identity = 0
    combine = staticmethod(operator.add)  # type: ignore[assignment]  # half the time of a method
    parts = ("sum",)
    joins = (np.add,)
    blob = "the integer in two's complement, little-endian"

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.integers = self.types[0] == "int64"
        self.exact = self.integers
        self.invertible = self.integers
        self.answer = int if self.integers else float
        self.dtypes = (np.dtype(object if self.integers else np.float64),)

    def lift(self, value: Any) -> Partial:
        return value

    def lower(self, partial: Partial) -> float | int:
        return int(partial) if self.integers else float(partial)

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        return total - older if self.integers else super().uncombine(total, older)

    def reduce(self, values: Values) -> Partial:
        return integer_total(values[0]) if self.integers else total(values[0])

    def reducer(self) -> Callable[[Array, int, int], Partial] | None:
        return None if self.integers else kernels.total

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        return (integer_totals(values[0], starts) if self.integers else totals(values[0], starts),)

    def lift_columns(self, values: Values) -> Partials:
        return (values[0].astype(self.dtypes[0]),)

    @quiet
    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        column = values[0].astype(self.dtypes[0])
        return np.add.accumulate(column[::-1])[::-1].tolist()  # type: ignore[no-any-return]

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (older[0] + newer[0],)

    def fold(self, partials: Partials) -> Partial:
        return sum(partials[0].tolist()) if self.integers else total(partials[0])

    def lower_columns(self, partials: Partials) -> Array:
        return partials[0]

    def encode(self, partial: Partial) -> bytes:
        """Write an integer in two's complement, little-endian, with as few bytes as it needs; or a float64."""
        if not self.integers:
            return super().encode(partial)
        number = int(partial)
        return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)

    def decode(self, data: bytes) -> Partial:
        return int.from_bytes(data, "little", signed=True) if self.integers else super().decode(data)

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return beyond(partials[0], entries) if self.integers else super().implausible(partials, entries)
