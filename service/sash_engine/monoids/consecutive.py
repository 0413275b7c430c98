"""Aggregates over pairs of consecutive entries: the time-weighted mean, and the increase and rate of a counter.

    entries      t0 v0      t1 v1   t2 v2 | t3 v3       t4 v4
    pairs           \\--p01--/ \\-p12-/ \\--|-/ p23 \\-p34-/
    older        first (t0 v0)  last (t2 v2)  sum p01 + p12
    newer        first (t3 v3)  last (t4 v4)  sum p34
    both         first (t0 v0)  last (t4 v4)  sum p01 + p12 + p23 + p34: combining adds the pair across the seam

A partial has its first and last entry, and a sum over the pairs between them. A time that goes back, as it may within
the panes of a window with a granularity, counts as no time.

Source: Prometheus, `promql/functions.go`, `extrapolatedRate`, for `rate` and `increase`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import NUMERIC, TIME, Array, FieldType, Joined, Partial, Partials, Read, Values
from sash_engine.monoids.forms import ticks
from sash_engine.monoids.numerics import difference, in_chunks, lengths, quiet, total

_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


class _Pairs(Joined):
    """Partial: (n, first time, first value, last time, last value, sums over pairs …); None over no entries."""

    reads = (Read("field", NUMERIC), TIME)
    exact = False
    sums: ClassVar[int] = 1

    def pair(self, time: Any, value: Any, next_time: Any, next_value: Any, apart: Any) -> tuple[Any, ...]:
        """Return what a pair adds to each sum: of scalars, or row by row of arrays.

        Args:
            apart: next_time - time >= 0, as a float.
        """
        raise NotImplementedError

    def lift(self, value: Any) -> Partial:
        number, time = float(value[0]), value[1]
        return (1, time, number, time, number, *(0.0,) * self.sums)

    @quiet
    def join(self, older: Any, newer: Any) -> Any:
        apart = float(max(newer[1] - older[3], 0))
        across = self.pair(older[3], older[4], newer[1], newer[2], apart)
        sums = [a + b + c for a, b, c in zip(older[5:], across, newer[5:], strict=True)]
        return (older[0] + newer[0], *older[1:3], *newer[3:5], *sums)

    @quiet
    def reduce(self, values: Values) -> Partial:
        numbers, times = values
        n = len(times)
        if not n:
            return None
        numbers = numbers.astype(np.float64, copy=False)
        sums = [total(part) for part in self._pairs(numbers, times)]
        return (n, times.item(0), numbers.item(0), times.item(-1), numbers.item(-1), *sums)

    @in_chunks(32_768)
    @quiet
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        numbers, times = values[0].astype(np.float64, copy=False), values[1]
        sizes = lengths(starts, len(times))
        ends = starts + sizes - 1
        sums = []
        for part in self._pairs(numbers, times):
            padded = np.concatenate((np.zeros(1), part))
            padded[starts] = 0.0
            sums.append(np.add.reduceat(padded, starts))
        return (sizes, times[starts], numbers[starts], times[ends], numbers[ends], *sums)

    def _pairs(self, numbers: Array, times: Array) -> tuple[Array, ...]:
        apart = np.maximum(difference(times[1:], times[:-1]), 0.0)
        return self.pair(times[:-1], numbers[:-1], times[1:], numbers[1:], apart)

    def lift_columns(self, values: Values) -> Partials:
        numbers, times = values[0].astype(np.float64), values[1]
        zeros = np.zeros(len(times))
        return (np.ones(len(times), np.int64), times, numbers, times, numbers, *(zeros,) * self.sums)

    @quiet
    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        apart = np.maximum(difference(newer[1], older[3]), 0.0)
        across = self.pair(older[3], older[4], newer[1], newer[2], apart)
        sums = [a + b + c for a, b, c in zip(older[5:], across, newer[5:], strict=True)]
        return (older[0] + newer[0], *(c.copy() for c in older[1:3]), *(c.copy() for c in newer[3:5]), *sums)


class TimeWeightedMean(_Pairs):
    """The mean of a field, each value weighted with the time that it holds; None over no entries.

    With `method: last`, a value holds until the next entry. The last one has no weight, because no time follows it.
    With `method: linear`, the field goes from entry to entry in a straight line. If no time passes between the first
    and the last entry, the answer is the last value. A NaN makes the answer NaN while it holds for some time.

    Args:
        method: "last" or "linear".

    Partial: also the integral of the field over time, in ticks, and that time.

    Flags: none.

    >>> import numpy as np
    >>> from sash_engine.monoids import TimeWeightedMean
    >>> mean = TimeWeightedMean()
    >>> mean.lower(mean.reduce([np.array([10.0, 20.0, 0.0]), np.array([0, 30, 40])]))
    12.5
    """

    function = "time_weighted_mean"
    parts = ("entries", "first_time", "first_value", "last_time", "last_value", "integral", "elapsed")
    dtypes = (_INT64, _INT64, _FLOAT64, _INT64, _FLOAT64, _FLOAT64, _FLOAT64)
    sums = 2

    def __init__(self, *types: FieldType, method: str = "last") -> None:
        super().__init__(*types)
        if method not in ("last", "linear"):
            raise InvalidArgument("method must be last or linear", field="method", limit="last, linear")
        self.linear = method == "linear"

    def pair(self, time: Any, value: Any, next_time: Any, next_value: Any, apart: Any) -> tuple[Any, ...]:
        held = value / 2 + next_value / 2 if self.linear else value
        if isinstance(apart, float):
            return (held * apart if apart else 0.0), apart
        return np.where(apart == 0, 0.0, held * apart), apart

    def lower(self, partial: Partial) -> float | None:
        if partial is None:
            return None
        integral, elapsed = partial[5:]
        return integral / elapsed if elapsed else float(partial[4])

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return (partials[0] != entries) | ~(partials[6] >= 0)  # type: ignore[no-any-return]


class Increase(_Pairs):
    """How much a counter has increased, with resets: where a value is less than the one before, it began again at 0.

    Without `range`, it is the sum of the increases from entry to entry, and 0 over one entry. With `range`, it is what
    `increase(counter[range])` of Prometheus answers at the time of the newest entry: the increase is extrapolated
    to the whole range, as `extrapolated_increase` says. Ask for the same lookback then, as Prometheus reads the entries
    of the range only. None over no entries, and with `range` over fewer than two.

    Args:
        range: a duration; see above.

    Partial: (entries, first time, first value, last time, last value, increase).

    Flags: none.

    >>> import numpy as np
    >>> from sash_engine.monoids import Increase
    >>> increase = Increase()
    >>> increase.lower(increase.reduce([np.array([5.0, 9.0, 2.0, 3.0]), np.array([0, 10, 20, 30])]))
    7.0
    """

    function = "increase"
    parts = ("entries", "first_time", "first_value", "last_time", "last_value", "increase")
    dtypes = (_INT64, _INT64, _FLOAT64, _INT64, _FLOAT64, _FLOAT64)
    durations: ClassVar[Mapping[str, str | None]] = {"range": None}

    def __init__(self, *types: FieldType, range: int | None = None) -> None:
        super().__init__(*types)
        self.range = None if range is None else ticks("range", range)

    def pair(self, time: Any, value: Any, next_time: Any, next_value: Any, apart: Any) -> tuple[Any, ...]:
        if isinstance(apart, float):
            return (next_value if next_value < value else next_value - value,)
        return (np.where(next_value < value, next_value, next_value - value),)

    def lower(self, partial: Partial) -> float | None:
        if partial is None:
            return None
        if self.range is None:
            return float(partial[5])
        return extrapolated_increase(partial, partial[3] - self.range, partial[3])


class Rate(Increase):
    """The increase of a counter per second, or per another duration.

    Without `range`, it is the increase divided by the time between the first and the last entry. With `range`, it is
    what `rate(counter[range])` of Prometheus answers at the time of the newest entry: the extrapolated increase
    divided by the range. None over fewer than two entries, and without `range` if no time passes between them. See
    `increase`.

    Args:
        range: a duration; the time that the increase is extrapolated to.
        per: a duration, 1s by default. In windows of logical time 1 tick.

    Flags: none.

    >>> import numpy as np
    >>> from sash_engine.monoids import Rate
    >>> rate = Rate(per=1)
    >>> rate.lower(rate.reduce([np.array([5.0, 9.0, 2.0, 3.0]), np.array([0, 10, 20, 35])]))
    0.2
    """

    function = "rate"
    durations: ClassVar[Mapping[str, str | None]] = {"range": None, "per": "1s"}

    def __init__(self, *types: FieldType, range: int | None = None, per: int = 1) -> None:
        super().__init__(*types, range=range)
        self.per = ticks("per", per)

    @quiet
    def lower(self, partial: Partial) -> float | None:
        if partial is None or partial[0] < 2:
            return None
        increase = super().lower(partial)
        over = partial[3] - partial[1] if self.range is None else self.range
        return None if increase is None or over <= 0 else increase / over * self.per


def extrapolated_increase(partial: Partial, start: int, end: int) -> float | None:
    """Extrapolate the increase of a counter to a range of time, as Prometheus does for `increase` and `rate`.

    The increase between the first and the last entry is taken to go on at the same pace, up to an end of the range if
    the entry is less than 1.1 average intervals away from it, and for half an average interval otherwise. At the start
    it goes back no further than to where the counter would have been 0.

    Args:
        partial: of `increase` or `rate`.
        start, end: the range, in ticks; all entries lie in it.

    Returns:
        the increase; None over fewer than two entries, and if no time passes between them.
    """
    if partial is None or partial[0] < 2:
        return None
    n, first_time, first_value, last_time, _, increase = partial
    sampled = float(last_time - first_time)
    if sampled <= 0:
        return None
    to_start, to_end = float(first_time - start), float(end - last_time)
    interval = sampled / (n - 1)
    if to_start >= interval * 1.1:
        to_start = interval / 2
    if increase > 0 and first_value >= 0:
        to_start = min(to_start, sampled * (first_value / increase))
    if to_end >= interval * 1.1:
        to_end = interval / 2
    return increase * ((sampled + to_start + to_end) / sampled)  # type: ignore[no-any-return]
