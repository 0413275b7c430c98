"""Counting: a monoid that counts how often it is combined.

    aggregator -> Counting(Sum) -> Sum         combines += 1 at every combine (and uncombine)
                      ^ read and reset by tests and benchmarks

The cost of an aggregator is stated in combines, and a count of them is the same on every machine and in every
run, so the papers' bounds can be asserted without noise. Combines with the identity count as well: a
structure that makes needless ones shows them.

>>> from sash_engine.aggregators.two_stacks_lite import TwoStacksLite
>>> from sash_engine.monoids import Sum
>>> counting = Counting(Sum("int64"))
>>> window = TwoStacksLite(counting)
>>> for value in range(4):
...     window.insert(value)  # the first needs no combine
>>> counting.reset(), counting.combines
(3, 0)
>>> window.evict()  # turns four entries around, which takes three combines
>>> counting.combines
3

Source: the cost model of Tangwongsan, Hirzel, Schneider, VLDB Journal 2021. Differs: lift and lower are not
counted, because every algorithm here does the same number of them.
"""

from __future__ import annotations

from typing import Any

from sash_engine.monoids.base import Monoid, Partial

__all__ = ["Counting"]


class Counting(Monoid):
    """A monoid that acts as another one does, and counts.

    Args:
        monoid: the one to act as.
    """

    function = "counting"

    def __init__(self, monoid: Monoid) -> None:
        self.monoid = monoid
        self.combines = 0
        self.types = monoid.types
        self.identity = monoid.identity
        self.dtypes = monoid.dtypes
        self.commutative = monoid.commutative
        self.invertible = monoid.invertible
        self.exact = monoid.exact

    def reset(self) -> int:
        """Set the count to nought; return what it was."""
        before, self.combines = self.combines, 0
        return before

    def lift(self, value: Any) -> Partial:
        return self.monoid.lift(value)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        self.combines += 1
        return self.monoid.combine(older, newer)

    def lower(self, partial: Partial) -> Any:
        return self.monoid.lower(partial)

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        self.combines += 1
        return self.monoid.uncombine(total, older)

    def __repr__(self) -> str:
        return f"Counting({self.monoid!r})"
