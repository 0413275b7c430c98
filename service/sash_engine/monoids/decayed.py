"""The exponentially decayed sum: an entry's weight halves with each half-life that it is older than the newest.

partial   (newest time, sum)     two sets: the older sum is first multiplied with 2^-(newest - its time) / half-life
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sash_engine.monoids.base import NUMERIC, TIME, Array, FieldType, Joined, Partial, Partials, Read, Values
from sash_engine.monoids.forms import ticks
from sash_engine.monoids.numerics import difference, in_chunks, lengths, quiet, total


class DecayedSum(Joined):
    """The sum of a field in which the weight of an entry halves with each half-life; 0 over no entries.

    The weight is 1 for the newest entry that the answer covers, and 2^(-age / half_life) for others. Entries count when
    they are late, too. An infinity does not decay.

    Args:
        half_life: a duration.

    Flags: commutative.

    Source: Cohen, Strauss, "Maintaining time-decaying stream aggregates", PODS 2003.

    >>> import numpy as np
    >>> from sash_engine.monoids import DecayedSum
    >>> decayed = DecayedSum(half_life=10)
    >>> decayed.lower(decayed.reduce([np.array([8.0, 4.0, 1.0]), np.array([0, 10, 20])]))
    5.0
    """

    function = "decayed_sum"
    reads = (Read("field", NUMERIC), TIME)
    commutative = True
    exact = False
    parts = ("newest_time", "sum")
    dtypes = (np.dtype(np.int64), np.dtype(np.float64))
    durations: ClassVar[Mapping[str, str | None]] = {"half_life": None}
    example: ClassVar[Mapping[str, Any]] = {"half_life": 60}

    def __init__(self, *types: FieldType, half_life: int) -> None:
        super().__init__(*types)
        self.half_life = ticks("half_life", half_life)

    def lift(self, value: Any) -> Partial:
        return value[1], float(value[0])

    def join(self, older: Any, newer: Any) -> Any:
        (time1, sum1), (time2, sum2) = older, newer
        if time1 <= time2:
            return time2, self._decayed(sum1, time2 - time1) + sum2
        return time1, sum1 + self._decayed(sum2, time1 - time2)

    def _decayed(self, value: float, age: int) -> float:
        weight = math.pow(2.0, -(age / self.half_life)) if age < 1100 * self.half_life else 0.0
        return value if math.isinf(value) else value * weight

    def lower(self, partial: Partial) -> float:
        return 0.0 if partial is None else float(partial[1])

    @quiet
    def reduce(self, values: Values) -> Partial:
        numbers, times = values
        if not len(times):
            return None
        newest = int(times.max())
        return newest, total(self._weighted(numbers, difference(np.asarray(newest), times)))

    @in_chunks(32_768)
    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        numbers, times = values
        newest = np.maximum.reduceat(times, starts)
        ages = difference(np.repeat(newest, lengths(starts, len(times))), times)
        return newest, np.add.reduceat(self._weighted(numbers, ages), starts)

    def _weighted(self, numbers: Array, ages: Array) -> Array:
        numbers = numbers.astype(np.float64, copy=False)
        weighted = numbers * np.exp2(-ages / self.half_life)
        infinite = np.isinf(numbers)
        return np.where(infinite, numbers, weighted) if infinite.any() else weighted

    def lift_columns(self, values: Values) -> Partials:
        return values[1], values[0].astype(np.float64)

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        (time1, sum1), (time2, sum2) = older, newer
        newest = np.maximum(time1, time2)
        return newest, self._weighted(sum1, difference(newest, time1)) + self._weighted(sum2, difference(newest, time2))

    def lower_columns(self, partials: Partials) -> Array:
        return partials[1]
