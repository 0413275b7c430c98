"""The aggregates, found by name, and their laws."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from sash.monoids.base import FieldType, Monoid, Partial, Partials, Read, Values
from sash.monoids.counting import Count, Sum
from sash.monoids.extremes import ArgMax, ArgMin, Max, MaxCount, Min, MinCount, Range
from sash.monoids.means import GeometricMean, Mean
from sash.monoids.moments import (
    Kurtosis,
    RelativeVariation,
    Skewness,
    StdDev,
    StdDevPopulation,
    Variance,
    VariancePopulation,
)
from sash.monoids.order import Collect, CollectDistinct, First, Last

ENTRY_POINT = "sash.aggregates"
"""The entry point group under which packages add aggregates of their own: name -> a `Monoid` class."""

BUILT_IN: tuple[type[Monoid], ...] = (
    Count,
    Sum,
    Mean,
    GeometricMean,
    Min,
    Max,
    MinCount,
    MaxCount,
    ArgMin,
    ArgMax,
    Range,
    Variance,
    VariancePopulation,
    StdDev,
    StdDevPopulation,
    RelativeVariation,
    Skewness,
    Kurtosis,
    First,
    Last,
    Collect,
    CollectDistinct,
)

__all__ = [
    "FieldType",
    "Monoid",
    "Partial",
    "Partials",
    "Read",
    "Values",
    "catalogue",
    *(monoid.__name__ for monoid in BUILT_IN),
]


@cache
def catalogue() -> dict[str, type[Monoid]]:
    """All aggregates by function name: the built-in ones, and those of installed packages.

    Raises:
        ValueError: an installed package claims a name that is taken, or gives something else than a `Monoid`.
    """
    found = {monoid.function: monoid for monoid in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT):
        monoid = entry.load()
        if not (isinstance(monoid, type) and issubclass(monoid, Monoid)) or entry.name in found:
            raise ValueError(f"entry point {entry.name!r} of {ENTRY_POINT} is no new Monoid: {entry.value}")
        found[entry.name] = monoid
    return found
