"""Linear regression of one field on several others.

    partial   n | means of x1 … xp, y | sums of products of deviations, for each pair: x1 x1, x1 x2, …, xp y, y y
    answer    solve S_xx b = S_xy;  intercept = mean_y - b · mean_x

Two sets are joined as in `comoments.py`, for all pairs. The normal equations are solved with each field scaled to
deviation 1, so the units of the fields do not matter.

Combine: O(p^2).  Answer: O(p^3).  Space of a partial: (p + 1) (p + 4) / 2 + 1 numbers.
Source: as `comoments.py`, for more than two fields.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from sash_engine.monoids.base import NUMERIC, Array, FieldType, JoinedNumbers, Partial, Partials, Read, Schema, Values
from sash_engine.monoids.comoments import centred, centred_segments
from sash_engine.monoids.numerics import in_chunks, lengths, quiet, total

FIELDS_MAX = 16
_SINGULAR = 1e-12
"""If the smallest eigenvalue of the correlation matrix is a smaller share of the largest, the fields are collinear."""


class LinearRegression(JoinedNumbers):
    """The least-squares fit of a field on 1 to 16 others, with an intercept.

    The answer is `{"intercept": a, "coefficients": [b1, …, bp], "r_squared": r}`: the fit is
    `field = a + b1 x1 + … + bp xp`, in the order of `features`. `r_squared` is the share of the variance that the fit
    explains; 1 if all values of `field` are equal. None over p or fewer entries, and if the features are
    collinear or one of them is constant. A NaN or an infinity makes all numbers NaN.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import LinearRegression
    >>> regression = LinearRegression()
    >>> fit = regression.lower(regression.reduce([np.array([1.0, 3.0, 5.0]), np.array([0.0, 1.0, 2.0])]))
    >>> fit == {"intercept": 1.0, "coefficients": [2.0], "r_squared": 1.0}
    True
    """

    function = "linear_regression"
    reads = (Read("field", NUMERIC), Read("features", NUMERIC, many=FIELDS_MAX))
    commutative = True
    exact = False
    answer = dict

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.fields = len(self.types)  # y is number 0
        self.pairs = tuple(combinations_with_replacement(range(self.fields), 2))
        names = ["y", *(f"x{i}" for i in range(1, self.fields))]
        self.parts = (
            "entries",
            *(f"mean_{name}" for name in names),
            *(f"s_{names[i]}_{names[j]}" for i, j in self.pairs),
        )
        self.dtypes = (np.dtype(np.int64),) + (np.dtype(np.float64),) * (len(self.parts) - 1)

    @property
    def schema(self) -> Schema:
        return {"intercept": "float64", "coefficients": ["float64"], "r_squared": "float64"}

    def lift(self, value: Any) -> Partial:
        means = [float(number) for number in value]
        zeros = [mean - mean for mean in means]
        return (1, *means, *(zeros[i] * zeros[j] for i, j in self.pairs))

    def join(self, older: Any, newer: Any) -> Any:
        n1, n2, after = older[0], newer[0], 1 + self.fields
        n = n1 + n2
        share = n2 / n
        between = n1 * share
        apart = [b - a for a, b in zip(older[1:after], newer[1:after], strict=True)]
        means = [a + d * share for a, d in zip(older[1:after], apart, strict=True)]
        sums = [
            a + b + apart[i] * apart[j] * between
            for a, b, (i, j) in zip(older[after:], newer[after:], self.pairs, strict=True)
        ]
        return (n, *means, *sums)

    @quiet
    def reduce(self, values: Values) -> Partial:
        n = len(values[0])
        if not n:
            return None
        found = [centred(column.astype(np.float64, copy=False)) for column in values]
        sums = (total(found[i][1] * found[j][1]) for i, j in self.pairs)
        return (n, *(mean for mean, _ in found), *sums)

    @in_chunks(32_768)
    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        sizes = lengths(starts, len(values[0]))
        found = [centred_segments(column, starts, sizes) for column in values]
        sums = [np.add.reduceat(found[i][1] * found[j][1], starts) for i, j in self.pairs]
        return (sizes, *(means for means, _ in found), *sums)

    @quiet
    def lift_columns(self, values: Values) -> Partials:
        means = [column.astype(np.float64) for column in values]
        zeros = [mean - mean for mean in means]
        return (np.ones(len(means[0]), np.int64), *means, *(zeros[i] * zeros[j] for i, j in self.pairs))

    @quiet
    def lower(self, partial: Partial) -> dict[str, Any] | None:
        p = self.fields - 1
        if partial is None or partial[0] <= p:
            return None
        means, products = partial[1 : 1 + self.fields], np.empty((self.fields, self.fields))
        for (i, j), part in zip(self.pairs, partial[1 + self.fields :], strict=True):
            products[i, j] = products[j, i] = part
        if not np.isfinite(products).all():
            return {"intercept": math.nan, "coefficients": [math.nan] * p, "r_squared": math.nan}
        scales = np.sqrt(products.diagonal())
        if (scales[1:] == 0).any():
            return None
        scaled = products[1:, 1:] / scales[1:] / scales[1:, None]
        eigenvalues = np.linalg.eigvalsh(scaled)
        if eigenvalues[0] <= eigenvalues[-1] * _SINGULAR:
            return None
        slopes = np.linalg.solve(scaled, products[1:, 0] / scales[1:]) / scales[1:]
        explained = float(slopes @ products[1:, 0])
        y_scale = float(products[0, 0])
        return {
            "intercept": float(means[0] - slopes @ np.array(means[1:])),
            "coefficients": slopes.tolist(),
            "r_squared": min(1.0, max(0.0, explained / y_scale)) if y_scale else 1.0,
        }

    def implausible(self, partials: Partials, entries: Array) -> Array:
        wrong = partials[0] != entries
        for (i, j), part in zip(self.pairs, partials[1 + self.fields :], strict=True):
            if i == j:
                wrong |= part < 0
        return wrong  # type: ignore[no-any-return]
