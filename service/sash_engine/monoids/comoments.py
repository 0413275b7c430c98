"""Covariance and correlation of two fields: sums of products of deviations from the means, joined pairwise.

    partial   (n, mean_x, mean_y, s_xx, s_yy, s_xy)      s_xy: the sum of (x - mean_x) (y - mean_y)
    two sets  dx = mean_x_b - mean_x_a, dy alike
              s_xy = s_xy_a + s_xy_b + dx dy n_a n_b / n

As in `moments.py`, a column takes two passes, and nothing is ever subtracted. So the covariance of fields with a large
mean is right. int64 fields are read as float64. A NaN or an infinity makes the answer NaN until it leaves the window.

Source: Bennett et al., "Numerically stable, single-pass, parallel statistics algorithms", IEEE Cluster 2009.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sash_engine.monoids.base import NUMERIC, Array, JoinedNumbers, Partial, Partials, Read, Values
from sash_engine.monoids.numerics import in_chunks, lengths, quiet, total

_FLOAT64 = np.dtype(np.float64)


class _Comoments(JoinedNumbers):
    """Partial: (n, mean_x, mean_y, s_xx, s_yy, s_xy); None over no entries."""

    reads = (Read("field", NUMERIC), Read("with", NUMERIC))
    commutative = True
    exact = False
    parts = ("entries", "mean_x", "mean_y", "s_xx", "s_yy", "s_xy")
    dtypes = (np.dtype(np.int64),) + (_FLOAT64,) * 5

    def lift(self, value: Any) -> Partial:
        x, y = float(value[0]), float(value[1])
        zero_x, zero_y = x - x, y - y  # NaN if the value is NaN or infinite
        return 1, x, y, zero_x, zero_y, zero_x * zero_y

    @quiet
    def reduce(self, values: Values) -> Partial:
        x, y = (column.astype(np.float64, copy=False) for column in values)
        n = len(x)
        if not n:
            return None
        (mean_x, x), (mean_y, y) = centred(x), centred(y)
        return n, mean_x, mean_y, total(x * x), total(y * y), total(x * y)

    @in_chunks(32_768)
    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        sizes = lengths(starts, len(values[0]))
        (mean_x, x), (mean_y, y) = (centred_segments(column, starts, sizes) for column in values)
        return (
            sizes,
            mean_x,
            mean_y,
            np.add.reduceat(x * x, starts),
            np.add.reduceat(y * y, starts),
            np.add.reduceat(x * y, starts),
        )

    @quiet
    def lift_columns(self, values: Values) -> Partials:
        x, y = (column.astype(np.float64) for column in values)
        zero_x, zero_y = x - x, y - y
        return np.ones(len(x), np.int64), x, y, zero_x, zero_y, zero_x * zero_y

    def join(self, older: Any, newer: Any) -> Any:
        n1, x1, y1, xx1, yy1, xy1 = older
        n2, x2, y2, xx2, yy2, xy2 = newer
        n = n1 + n2
        share = n2 / n
        between = n1 * share
        dx, dy = x2 - x1, y2 - y1
        return (
            n,
            x1 + dx * share,
            y1 + dy * share,
            xx1 + xx2 + dx * dx * between,
            yy1 + yy2 + dy * dy * between,
            xy1 + xy2 + dx * dy * between,
        )

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return (partials[0] != entries) | (partials[3] < 0) | (partials[4] < 0)  # type: ignore[no-any-return]


def centred(column: Array) -> tuple[float, Array]:
    """Return the mean of n >= 1 floats, and their deviations from it as it is before it is rounded to a float64."""
    mean = total(column) / len(column)
    deviations = column - mean
    rest = total(deviations) / len(column)
    if math.isfinite(rest):
        mean += rest
        deviations -= rest
    return mean, deviations


def centred_segments(column: Array, starts: Array, sizes: Array) -> tuple[Array, Array]:
    """As `centred`, of each segment: the means, and the deviation of each row."""
    column = column.astype(np.float64, copy=False)
    means = np.add.reduceat(column, starts) / sizes
    deviations = column - np.repeat(means, sizes)
    rest = np.add.reduceat(deviations, starts) / sizes
    rest[~np.isfinite(rest)] = 0.0
    deviations -= np.repeat(rest, sizes)
    return means + rest, deviations


class Covariance(_Comoments):
    """The sample covariance of two fields (divided by n - 1); None over fewer than two entries.

    `field` and `with` name the fields.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import Covariance
    >>> covariance = Covariance()
    >>> covariance.lower(covariance.reduce([np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])]))
    2.0
    """

    function = "covariance"

    def lower(self, partial: Partial) -> float | None:
        return None if partial is None or partial[0] < 2 else partial[5] / (partial[0] - 1)


class CovariancePopulation(_Comoments):
    """The population covariance of two fields (divided by n); None over no entries.

    `field` and `with` name the fields.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import CovariancePopulation
    >>> covariance = CovariancePopulation()
    >>> covariance.lower(covariance.reduce([np.array([1.0, 3.0]), np.array([10.0, 14.0])]))
    2.0
    """

    function = "covariance_population"

    def lower(self, partial: Partial) -> float | None:
        return None if partial is None else partial[5] / partial[0]


class Correlation(_Comoments):
    """Pearson's correlation coefficient of two fields, from -1 to 1.

    `field` and `with` name the fields. None over fewer than two entries, and if all values of a field are equal.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import Correlation
    >>> correlation = Correlation()
    >>> round(correlation.lower(correlation.reduce([np.array([1.0, 2.0, 3.0]), np.array([6.0, 4.0, 2.0])])), 12)
    -1.0
    """

    function = "correlation"

    def lower(self, partial: Partial) -> float | None:
        if partial is None or partial[0] < 2 or partial[3] == 0 or partial[4] == 0:
            return None
        found = partial[5] / math.sqrt(partial[3]) / math.sqrt(partial[4])
        return max(-1.0, min(1.0, found)) if found == found else math.nan
