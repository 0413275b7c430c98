"""How right a variance is of values far from zero that are close to each other: what the page of aggregates says."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def variance_and_error(values: Sequence[float], joined: int) -> tuple[float, float]:
    """The exact sample variance of some values, and how far one may be off that is the variance of sets of them.

    Args:
        joined: so many sets are joined one after the other, at most.
    """
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = float(sum((value - mean) ** 2 for value in exact) / (len(exact) - 1))
    off = joined * 2.0**-53 * abs(float(mean)) / variance**0.5
    return variance, variance * (3 * off + off * off + 1e-12)
