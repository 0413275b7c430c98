"""The trend and the distribution of a field: the slope of its regression line, and its histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Any, ClassVar

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import (
    NUMERIC,
    TIME,
    Array,
    FieldType,
    Joined,
    Monoid,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    object_array,
    typed_parts,
)
from sash_engine.monoids.numerics import difference, in_chunks, lengths, quiet, total

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)

BOUNDS_MAX = 1000
"""The greatest number of bounds of a histogram: every node of a forest holds that many counts."""


class LinearSlope(Joined):
    """The slope of the least-squares line of a field against time, in units of the field per tick.

    None over no entries, and if all entries have the same time. A NaN or an infinity makes it NaN.

    Partial: (n, origin, mean time, mean value, s_tt, s_tv). `origin` is the int64 time of one of the entries, and the
    mean time is relative to it: a float64 cannot tell nanoseconds since 1970 apart. The parts s_tt and s_tv are sums of
    products of deviations from the means, joined as in `moments.py`.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import LinearSlope
    >>> slope = LinearSlope()
    >>> slope.lower(slope.reduce([np.array([1.0, 2.0, 3.0]), 2**60 + np.array([0, 2, 4])]))
    0.5
    """

    function = "linear_slope"
    parts = ("entries", "origin", "mean_time", "mean_value", "s_tt", "s_tv")
    reads = (Read("field", NUMERIC), TIME)
    commutative = True
    exact = False
    dtypes = (_INT64, _INT64, _FLOAT64, _FLOAT64, _FLOAT64, _FLOAT64)

    def lift(self, value: Any) -> Partial:
        number, time = float(value[0]), value[1]
        return 1, time, 0.0, number, 0.0, number - number

    def join(self, older: Any, newer: Any) -> Any:
        return self._join(older, newer, float(newer[1] - older[1]))

    def _join(self, older: Partial, newer: Partial, shift: Any) -> Any:
        """Join scalars, or arrays row by row; `shift` is the newer origin minus the older one."""
        n1, origin, time1, value1, tt1, tv1 = older
        n2, _, time2, value2, tt2, tv2 = newer
        n = n1 + n2
        share = n2 / n
        between = n1 * share
        time_apart = shift + time2 - time1
        value_apart = value2 - value1
        return (
            n,
            origin,
            time1 + time_apart * share,
            value1 + value_apart * share,
            tt1 + tt2 + time_apart * time_apart * between,
            tv1 + tv2 + time_apart * value_apart * between,
        )

    def lower(self, partial: Partial) -> float | None:
        if partial is None or partial[4] == 0:
            return None
        return partial[5] / partial[4]  # type: ignore[no-any-return]

    @quiet
    def reduce(self, values: Values) -> Partial:
        numbers, times = values[0].astype(np.float64, copy=False), values[1]
        n = len(times)
        if not n:
            return None
        origin = times.item(0)
        apart = difference(times, origin)
        time, value = total(apart) / n, total(numbers) / n
        apart -= time
        s_tv = total(apart * (numbers - value))
        return n, origin, time, value, total(apart * apart), s_tv

    @in_chunks(32_768)
    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        numbers, times = values[0].astype(np.float64, copy=False), values[1]
        sizes = lengths(starts, len(times))
        origins = times[starts]
        apart = difference(times, np.repeat(origins, sizes))
        time = np.add.reduceat(apart, starts) / sizes
        value = np.add.reduceat(numbers, starts) / sizes
        apart -= np.repeat(time, sizes)
        products = apart * (numbers - np.repeat(value, sizes))
        return (
            sizes,
            origins,
            time,
            value,
            np.add.reduceat(apart * apart, starts),
            np.add.reduceat(products, starts),
        )

    @quiet
    def lift_columns(self, values: Values) -> Partials:
        numbers, times = values[0].astype(np.float64), values[1]
        zeros = np.zeros(len(times))
        return np.ones(len(times), np.int64), times, zeros, numbers, zeros, numbers - numbers

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return self._join(older, newer, difference(newer[1], older[1]))  # type: ignore[no-any-return]

    @quiet
    def lower_columns(self, partials: Partials) -> Array:
        if (partials[4] == 0).any():
            return super().lower_columns(partials)
        return partials[5] / partials[4]

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return (partials[0] != entries) | (partials[4] < 0)  # type: ignore[no-any-return]


class Histogram(Monoid):
    """How many values of a field lie between given bounds.

    The answer is `{"bounds": [b1, …, bm], "counts": [c0, …, cm], "nan": n}`: c0 values are below b1, c_i values are
    b_i or more and below b_(i+1), and c_m values are b_m or more. Over no entries all counts are 0.

    Args:
        bounds: strictly increasing finite numbers, 1 to 1,000 of them.

    Partial: a tuple of all counts; the count of NaN is the last.

    Flags: commutative, invertible, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Histogram
    >>> histogram = Histogram(bounds=[0, 10])
    >>> histogram.lower(histogram.reduce([np.array([-1.0, 0.0, 5.0, 10.0])]))
    {'bounds': [0.0, 10.0], 'counts': [1, 2, 1], 'nan': 0}
    """

    function = "histogram"
    parts = ("counts",)
    blob = "JSON: a list of all counts, the count of NaN last"
    reads = (Read("field", NUMERIC),)
    commutative = True
    invertible = True
    large = True
    answer = dict
    example: ClassVar[Mapping[str, Any]] = {"bounds": (0,)}

    def __init__(self, *types: FieldType, bounds: Sequence[float]) -> None:
        super().__init__(*types)
        self.bounds = _checked(bounds)
        self.identity = (0,) * (len(self.bounds) + 2)

    @property
    def schema(self) -> Schema:
        return {"bounds": ["float64"], "counts": ["int64"], "nan": "int64"}

    def lift(self, value: Any) -> Partial:
        return self.reduce([np.array([value])])

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return tuple(map(add, older, newer))

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        return tuple(a - b for a, b in zip(total, older, strict=True))

    def lower(self, partial: Partial) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "counts": list(partial[:-1]), "nan": partial[-1]}

    def of_buckets(self, lows: Array, highs: Array, counts: Array) -> Partial:
        """Return the partial of values in buckets, whose ends are among the bounds wherever a bound is near.

        A value that equals a bound is where its bucket is.

        Args:
            lows, highs: float64 (n,): where each bucket begins and ends.
            counts: int64 (n,): how many values are in each.

        Raises:
            InvalidArgument: a bucket has values on both sides of a bound, perhaps.
        """
        bounds = np.array(self.bounds)
        bins = np.searchsorted(bounds, lows, "right")
        crossed = np.flatnonzero(np.searchsorted(bounds, highs, "left") > bins)
        if len(crossed):
            low, high, bound = lows.item(crossed[0]), highs.item(crossed[0]), self.bounds[bins.item(crossed[0])]
            raise InvalidArgument(f"bound {bound:g} is inside the bucket from {low:g} to {high:g}", field="bounds")
        return tuple(np.bincount(bins, counts, len(self.identity)).astype(np.int64).tolist())

    def reduce(self, values: Values) -> Partial:
        return tuple(np.bincount(self._bins(values[0]), minlength=len(self.identity)).tolist())

    @in_chunks(32_768)
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        k, n, width = len(starts), len(values[0]), len(self.identity)
        segment = np.repeat(np.arange(k), lengths(starts, n))
        counts = np.bincount(segment * width + self._bins(values[0]), minlength=k * width)
        return self.pack([tuple(row) for row in counts.reshape(k, width).tolist()])

    def lift_columns(self, values: Values) -> Partials:
        one_each = [tuple(row) for row in np.eye(len(self.identity), dtype=np.int64).tolist()]
        return (object_array([one_each[i] for i in self._bins(values[0]).tolist()]),)

    def _typed(self, partial: Any) -> Partial:
        kinds: list[FieldType] = ["int64"] * len(self.identity)
        counts = typed_parts(partial, kinds)
        if min(counts) < 0:
            raise ValueError("a count is negative")
        return counts

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return np.fromiter(map(sum, partials[0]), np.float64, len(entries)) != entries  # type: ignore[no-any-return]

    def _bins(self, column: Array) -> Array:
        bins = np.searchsorted(np.array(self.bounds), column, "right")
        bins[column != column] = len(self.bounds) + 1
        return bins


def _checked(bounds: Sequence[float]) -> tuple[float, ...]:
    limit = f"1 to {BOUNDS_MAX} strictly increasing finite numbers"
    numbers = isinstance(bounds, (list, tuple)) and all(
        isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in bounds
    )
    if not numbers or not 1 <= len(bounds) <= BOUNDS_MAX:
        raise InvalidArgument("histogram bounds must be a list of numbers", field="bounds", limit=limit)
    try:
        floats = tuple(float(bound) for bound in bounds)
    except OverflowError:
        raise InvalidArgument("a bound is too large for a float64", field="bounds", limit=limit) from None
    if not np.isfinite(floats).all() or any(a >= b for a, b in pairwise(floats)):
        raise InvalidArgument("histogram bounds must be finite and increase", field="bounds", limit=limit)
    return floats
