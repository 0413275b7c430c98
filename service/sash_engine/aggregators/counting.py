"""Counting: a monoid that counts its combines.

    aggregator -> Counting(Sum) -> Sum         combines += 1 at every combine (and uncombine)
                      ^ read and reset by tests and benchmarks

The papers state the cost of an aggregator in combines. Their number is the same on every machine and in every run, so
tests can assert the papers' bounds exactly. Combines with the identity count as well: they show a structure that makes
needless ones.

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

Source: the cost model of Tangwongsan, Hirzel, Schneider, VLDB Journal 2021.  Differs: lift and lower are not counted,
because every algorithm here calls them equally often.
"""

from __future__ import annotations

from typing import Any

from sash_engine.monoids.base import Monoid, Partial


class Counting(Monoid):
    """A monoid that behaves like another one and counts its combines.

    Args:
        monoid: the other one.
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
        """Set the count to 0; return the count before."""
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
