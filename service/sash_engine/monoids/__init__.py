"""The aggregates, their catalogue by name, and their laws."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from sash_engine.monoids.base import FieldType, Monoid, Partial, Partials, Read, Schema, Values
from sash_engine.monoids.bloom import Bloom, BloomFilter
from sash_engine.monoids.classifier import NaiveBayes
from sash_engine.monoids.comoments import Correlation, Covariance, CovariancePopulation
from sash_engine.monoids.consecutive import Increase, Rate, TimeWeightedMean
from sash_engine.monoids.count_min import CountMin
from sash_engine.monoids.counting import Count, Sum
from sash_engine.monoids.decayed import DecayedSum
from sash_engine.monoids.extremes import ArgMax, ArgMin, Max, MaxCount, Min, MinCount, Range
from sash_engine.monoids.ignores_nulls import IgnoresNulls
from sash_engine.monoids.means import GeometricMean, Mean
from sash_engine.monoids.moments import (
    Kurtosis,
    RelativeVariation,
    Skewness,
    StdDev,
    StdDevPopulation,
    Variance,
    VariancePopulation,
)
from sash_engine.monoids.order import Collect, CollectDistinct, First, Last
from sash_engine.monoids.ranking import Join, Largest, Smallest
from sash_engine.monoids.regression import LinearRegression
from sash_engine.monoids.shapes import M4, LongestIncreasingRun
from sash_engine.monoids.sketches import DistinctCount, FrequentItems, Quantile
from sash_engine.monoids.tallies import Median, Mode
from sash_engine.monoids.theta import ThetaSketch
from sash_engine.monoids.trends import Histogram, LinearSlope

__all__ = [
    "ArgMax",
    "ArgMin",
    "Bloom",
    "BloomFilter",
    "Collect",
    "CollectDistinct",
    "Correlation",
    "Count",
    "CountMin",
    "Covariance",
    "CovariancePopulation",
    "DecayedSum",
    "DistinctCount",
    "FieldType",
    "First",
    "FrequentItems",
    "GeometricMean",
    "Histogram",
    "IgnoresNulls",
    "Increase",
    "Join",
    "Kurtosis",
    "Largest",
    "Last",
    "LinearRegression",
    "LinearSlope",
    "LongestIncreasingRun",
    "M4",
    "Max",
    "MaxCount",
    "Mean",
    "Median",
    "Min",
    "MinCount",
    "Mode",
    "Monoid",
    "NaiveBayes",
    "Partial",
    "Partials",
    "Quantile",
    "Range",
    "Rate",
    "Read",
    "RelativeVariation",
    "Schema",
    "Skewness",
    "Smallest",
    "StdDev",
    "StdDevPopulation",
    "Sum",
    "ThetaSketch",
    "TimeWeightedMean",
    "Values",
    "Variance",
    "VariancePopulation",
    "catalogue",
]

ENTRY_POINT = "sash.aggregates"
"""The entry point group in which packages add aggregates: name -> a `Monoid` class."""

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
    M4,
    LongestIncreasingRun,
    LinearSlope,
    Histogram,
    Bloom,
    DistinctCount,
    Quantile,
    FrequentItems,
    Covariance,
    CovariancePopulation,
    Correlation,
    LinearRegression,
    NaiveBayes,
    TimeWeightedMean,
    Increase,
    Rate,
    DecayedSum,
    Median,
    Mode,
    Largest,
    Smallest,
    Join,
    CountMin,
    ThetaSketch,
)


@cache
def catalogue() -> dict[str, type[Monoid]]:
    """Return all aggregates by function name: the built-in ones, and those of installed packages.

    A package adds an aggregate with an entry point in its pyproject.toml. The entry point's name is the `function` of
    the class::

        [project.entry-points."sash.aggregates"]
        product = "sash_product:Product"

    It tests the class with `sash_engine.monoids.laws`. Installed packages are looked up once in a process's life.

    Raises:
        ValueError: an entry point of an installed package has a name that is taken, cannot be loaded, is not a `Monoid`
            class, or has another name than the class's `function`.
    """
    found = {monoid.function: monoid for monoid in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT):
        monoid = _load(entry)
        if entry.name in found:
            raise ValueError(f"entry point {entry.value!r}: an aggregate {entry.name!r} already exists")
        found[entry.name] = monoid
    return found


def _load(entry: EntryPoint) -> type[Monoid]:
    try:
        monoid = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"entry point {entry.value!r} of {ENTRY_POINT} cannot be loaded: {error}") from error
    if not (isinstance(monoid, type) and issubclass(monoid, Monoid)):
        raise ValueError(f"entry point {entry.value!r} of {ENTRY_POINT} is not a Monoid")
    if monoid.function != entry.name:
        raise ValueError(f"entry point {entry.value!r} is named {entry.name!r}, not {monoid.function!r}")
    return monoid
