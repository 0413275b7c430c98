"""Functions of the samples in a range, for one series and all times at once.

    samples      ·  ·   · ·    ·  ·  ·   ·      values, by time
    ranges     (lo────────hi]                   sample i of range j: lo[j] <= i < hi[j]
                     (lo────────hi]

Most are vectorised over all ranges. The rest take a few calls for each range. Nothing is a difference of sums over more
than the range: what lies outside of it does not matter, however large it is.

Source: Prometheus' documentation of its functions, and its promql/functions.go for how rates are extrapolated, and for
the order in which it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, isinf, nan, sqrt

import numpy as np

from sash.promql.errors import Refused
from sash.promql.values import Array
from sash_engine.steps import Steps, spans_of

_EACH = 100
"""Ranges of a step, where each takes some calls: 1 ms."""

_READ_MAX = 20_000_000
"""Samples that the ranges of one series may have together: overlapping ranges read the same sample again."""

_RESETS_MAX = 200_000_000
"""Resets of a counter that the ranges of one series may have together: 0.2 s."""

_STEP_SAMPLES, _STEP_EXACT, _STEP_SMOOTHED = 100_000, 20_000, 5_000
"""Samples that one step folds: by NumPy, 10 ns each; to an exact sum, 50 ns; one by one, 200 ns."""

_RANGE_SAMPLES = 50
"""An exact sum takes as long as so many samples more."""

_STEP_RESETS, _RANGE_RESETS = 1_000_000, 3_000
"""Resets that one step adds, 1 ns each; a range takes as long as so many more."""

_CLOSE = 1.1
"""A sample is close to the range's end, if it is not much further than samples are apart."""

_EPSILON, _SURE = 2.0**-53, 1e-12


@dataclass(frozen=True)
class Samples:
    """The samples of one series, and the ranges to look at.

    Args:
        times: int64 (m,), when samples were taken, ascending.
        values: float64 (m,).
        low, high: int64 (n,), the first sample of a range, and the first one behind it; low < high.
        ends: int64 (n,), where the ranges end.
        width: how long they are.
        asked: int64 (n,), the times that the expression is evaluated at.
        second: so many units of all these times; only what lies between two of them becomes a float.
        parameters: of the function, each float64 (n,).
    """

    times: Array
    values: Array
    low: Array
    high: Array
    ends: Array
    width: int
    asked: Array
    second: int
    parameters: Sequence[Array] = ()

    @property
    def counts(self) -> Array:
        """How many samples each range has."""
        return self.high - self.low


Found = Steps[tuple[Array, Array]]
Range = Callable[[Samples], Found]
"""Returns a value for each range, and whether it has one."""


def _all(samples: Samples, values: Array) -> tuple[Array, Array]:
    return values.astype(np.float64), np.ones(len(samples.low), np.bool_)


def _spans(samples: Samples, ranges_max: int, samples_max: int) -> Iterator[tuple[int, int]]:
    """The ranges of each step: so many at most, with so many samples together, unless a single one has more.

    Raises:
        Refused: all ranges have too many samples.
    """
    behind = np.cumsum(samples.counts)
    total = int(behind[-1])
    if total > _READ_MAX:
        raise Refused(
            f"the ranges have more than {_READ_MAX:,} samples together; give the window an aggregate for it, or make "
            "the range shorter or the step longer",
            field="query",
            limit=f"{_READ_MAX} samples",
        )
    cuts = np.unique(np.searchsorted(behind, np.arange(0, total + samples_max, samples_max), "left"))
    bounds = [0, *(cut for cut in cuts.tolist() if 0 < cut < len(behind)), len(behind)]
    for a, b in pairwise(bounds):
        for start, stop in spans_of(b - a, ranges_max):
            yield a + start, a + stop


def _reduced(ufunc: np.ufunc, values: Array, samples: Samples) -> Steps[Array]:
    """Fold the values in each range."""
    result = np.empty(len(samples.low))
    padded = np.append(values, 0.0)  # a range may end behind the last sample
    for a, b in _spans(samples, len(samples.low), _STEP_SAMPLES):
        bounds = np.stack((samples.low[a:b], samples.high[a:b]), 1).ravel()
        result[a:b] = ufunc.reduceat(padded, bounds)[::2]
        yield
    return result


def _extreme(ufunc: np.ufunc) -> Range:
    def found(samples: Samples) -> Found:
        return _all(samples, (yield from _reduced(ufunc, samples.values, samples)))

    return found


def _each(function: Callable[..., Steps[float]]) -> Range:
    """A function of the values of each range, and of the parameters."""

    def found(samples: Samples) -> Found:
        result = np.empty(len(samples.low))
        low, high = samples.low.tolist(), samples.high.tolist()
        given = [each.tolist() for each in samples.parameters]
        for a, b in _spans(samples, _EACH, _STEP_EXACT):
            for i in range(a, b):
                result[i] = yield from function(samples.values[low[i] : high[i]], *(each[i] for each in given))
            yield
        return _all(samples, result)

    return found


def _count(samples: Samples) -> Found:
    yield
    return _all(samples, samples.counts)


# ---------------------------------------------------------------- sums


def exact_sum(values: Array) -> Steps[float]:
    """The sum of some values, rounded once; where it overflows on the way, as if they were added one by one.

    >>> from sash_engine.steps import finished
    >>> finished(exact_sum(np.array([1e16, 1.0, -1e16, 1.0])))
    2.0
    """
    try:
        if len(values) <= _STEP_EXACT:
            return fsum(values.tolist())
        sums = list[float]()
        for a, b in spans_of(len(values), _STEP_EXACT):
            some = values[a:b].tolist()
            sums.append(fsum(some))
            some.append(-sums[-1])
            sums.append(fsum(some))  # what rounding has left
            yield
        return fsum(sums)
    except ValueError:  # +Inf and -Inf
        return nan
    except OverflowError:
        with np.errstate(all="ignore"):
            return float(np.add.accumulate(values)[-1])


def exact_mean(values: Array) -> Steps[float]:
    """The mean of some values, which does not overflow."""
    total = yield from exact_sum(values)
    if isinf(total) and np.isfinite(values).all():
        return (yield from exact_sum(values / len(values)))
    return total / len(values)


def is_sure(sums: Array, sizes: Array, counts: Array) -> Array:
    """Whether sums, rounded at each value, have twelve digits: where large values do not cancel each other.

    Args:
        sizes: the sums of the absolute values.
        counts: how many values each has.
    """
    return np.asarray(np.isfinite(sizes) & (counts * sizes * _EPSILON <= np.abs(sums) * _SURE))


def _summed(exact: Callable[[Array], Steps[float]], mean: bool) -> Range:
    """Sums, or means: by NumPy, and again one by one where that is not sure."""

    def found(samples: Samples) -> Found:
        sums = yield from _reduced(np.add, samples.values, samples)
        sizes = yield from _reduced(np.add, np.abs(samples.values), samples)
        result, read = sums / samples.counts if mean else sums, 0
        for i in np.flatnonzero(~is_sure(sums, sizes, samples.counts)).tolist():
            some = samples.values[samples.low[i] : samples.high[i]]
            result[i] = yield from exact(some)
            read += _RANGE_SAMPLES + len(some)
            if read > _STEP_EXACT:
                yield
                read = 0
        return _all(samples, result)

    return found


def _variance(values: Array) -> Steps[float]:
    away = values - (yield from exact_mean(values))
    off = float(np.add.reduce(away))  # what rounding the mean has left
    return max((float(np.add.reduce(away * away)) - off * off / len(values)) / len(values), 0.0)


def _deviation(values: Array) -> Steps[float]:
    return sqrt((yield from _variance(values)))


def _quantile(values: Array, q: float) -> Steps[float]:
    yield from ()
    return quantile_of(values, q)


def _median_away(values: Array) -> Steps[float]:
    """The median of how far the values are from their median."""
    yield from ()
    return quantile_of(np.abs(values - quantile_of(values, 0.5)), 0.5)


# ---------------------------------------------------------------- neighbours


def _first(samples: Samples) -> Found:
    yield
    return _all(samples, samples.values[samples.low])


def _last(samples: Samples) -> Found:
    yield
    return _all(samples, samples.values[samples.high - 1])


def _present(samples: Samples) -> Found:
    yield
    return _all(samples, np.ones(len(samples.low)))


def _pairs(samples: Samples, which: Array) -> Array:
    """How many pairs of neighbours, of those that are meant, lie in each range."""
    before = np.concatenate(([0, 0], np.cumsum(which)))  # [i]: of the pairs before sample i
    return np.asarray(before[samples.high] - before[samples.low + 1])


def _changes(samples: Samples) -> Found:
    yield
    older, newer = samples.values[:-1], samples.values[1:]
    return _all(samples, _pairs(samples, (older != newer) & ~(np.isnan(older) & np.isnan(newer))))


def _resets(samples: Samples) -> Found:
    yield
    return _all(samples, _pairs(samples, samples.values[1:] < samples.values[:-1]))


def _neighbours(counter: bool, rate: bool) -> Range:
    """The change between a range's last two samples."""

    def found(samples: Samples) -> Found:
        yield
        last, before = samples.high - 1, np.maximum(samples.high - 2, 0)
        change = samples.values[last] - samples.values[before]
        if counter:
            change = np.where(samples.values[last] < samples.values[before], samples.values[last], change)
        apart = (samples.times[last] - samples.times[before]) / samples.second
        there = (samples.counts >= 2) & (apart > 0)
        return np.where(there, change / np.where(there & rate, apart, 1.0), 0.0), there

    return found


def _extrapolated(counter: bool, rate: bool) -> Range:
    """The change over a range, extrapolated to its ends."""

    def found(samples: Samples) -> Found:
        yield
        values, times, last = samples.values, samples.times, samples.high - 1
        first_value, first, newest = values[samples.low], times[samples.low], times[last]
        change = values[last] - first_value
        if counter:
            yield from _add_resets(samples, change)
        sampled = (newest - first) / samples.second
        there = (samples.counts >= 2) & (sampled > 0)
        sampled = np.where(there, sampled, 1.0)
        apart = sampled / np.maximum(samples.counts - 1, 1)
        to_start = (samples.width - (samples.ends - first)) / samples.second
        to_end = (samples.ends - newest) / samples.second
        to_start = np.where(to_start >= apart * _CLOSE, apart / 2, to_start)
        to_end = np.where(to_end >= apart * _CLOSE, apart / 2, to_end)
        if counter:  # it did not begin below zero
            with np.errstate(all="ignore"):
                to_zero = np.where((change > 0) & (first_value >= 0), sampled * (first_value / change), np.inf)
            to_start = np.minimum(to_start, to_zero)
        factor = (sampled + to_start + to_end) / sampled
        if rate:
            factor = factor / (samples.width / samples.second)
        return np.where(there, change * factor, 0.0), there

    return found


def _add_resets(samples: Samples, change: Array) -> Steps[None]:
    """Add to the change over each range what its counter had before each reset, one after the other."""
    older, newer = samples.values[:-1], samples.values[1:]
    at = np.flatnonzero(newer < older)  # the last sample before each reset
    had = older[at]
    low, high = at.searchsorted(samples.low), at.searchsorted(samples.high - 1)
    if int((high - low).sum()) > _RESETS_MAX:
        raise Refused(
            f"the ranges have more than {_RESETS_MAX:,} resets of a counter together; make the range shorter or the "
            "step longer",
            field="query",
            limit=f"{_RESETS_MAX} resets",
        )
    some, read = np.flatnonzero(high > low), 0
    for i, a, b in zip(some.tolist(), low[some].tolist(), high[some].tolist(), strict=True):
        change[i] = np.add.accumulate(np.concatenate((change[i : i + 1], had[a:b])))[-1]
        read += _RANGE_RESETS + b - a
        if read > _STEP_RESETS:
            yield
            read = 0


# ---------------------------------------------------------------- trends


def _trend(ahead: bool) -> Range:
    """The slope of the line through the samples of each range, or its value some seconds ahead of the evaluation."""

    def found(samples: Samples) -> Found:
        result, there = np.zeros(len(samples.low)), samples.counts >= 2
        low, high, asked = samples.low.tolist(), samples.high.tolist(), samples.asked.tolist()
        for a, b in _spans(samples, _EACH, _STEP_EXACT // 4):
            for i in range(a, b):
                if there[i]:
                    times = samples.times[low[i] : high[i]]
                    since_s = (times - (asked[i] if ahead else times.item(0))) / samples.second
                    slope, value = yield from _line(since_s, samples.values[low[i] : high[i]])
                    result[i] = slope * samples.parameters[0].item(i) + value if ahead else slope
            yield
        return result, there

    return found


def _line(times_s: Array, values: Array) -> Steps[tuple[float, float]]:
    """The slope and the value at time 0 of the line of least squares."""
    first = values.item(0)
    if (values == first).all():
        return (nan, nan) if isinf(first) else (0.0, first)
    n = len(values)
    x, y = (yield from exact_sum(times_s)), (yield from exact_sum(values))
    xy, xx = (yield from exact_sum(times_s * values)), (yield from exact_sum(times_s * times_s))
    slope = float(np.float64(xy - x * y / n) / (xx - x * x / n))  # NaN where all samples have one time
    return slope, y / n - slope * x / n


def _smoothed(samples: Samples) -> Found:
    """Double exponential smoothing, as Holt's: of the values, and of their trend."""
    result, there = np.zeros(len(samples.low)), samples.counts >= 2
    low, high = samples.low.tolist(), samples.high.tolist()
    factors, trends = (each.tolist() for each in samples.parameters)
    for a, b in _spans(samples, _EACH, _STEP_SMOOTHED):
        for i in range(a, b):
            _check_factor("smoothing", "sf", factors[i])
            _check_factor("trend", "tf", trends[i])
            if there[i]:
                result[i] = yield from _smooth(samples.values[low[i] : high[i]], factors[i], trends[i])
        yield
    return result, there


def _smooth(values: Array, factor: float, trend_factor: float) -> Steps[float]:
    found = values.item(0)
    trend = values.item(1) - found
    for a, b in spans_of(len(values) - 1, _STEP_SMOOTHED):
        if a:
            yield
        for value in values[1 + a : 1 + b].tolist():
            before, found = found, factor * value + (1 - factor) * (found + trend)
            trend = trend_factor * (found - before) + (1 - trend_factor) * trend
    return float(found)


def _check_factor(kind: str, name: str, value: float) -> None:
    if value <= 0 or value >= 1:
        raise Refused(f"invalid {kind} factor. Expected: 0 < {name} < 1, got: {value:f}", field="query")


def quantile_of(values: Array, q: float) -> float:
    """Return a quantile as Prometheus does: interpolated between neighbours, NaN least.

    >>> quantile_of(np.array([4.0, 1.0, 3.0]), 0.75)
    3.5
    """
    if not len(values) or q != q:
        return float("nan")
    if not 0 <= q <= 1:
        return float("-inf") if q < 0 else float("inf")
    ordered = np.sort(values)
    nan = int(np.isnan(ordered).sum())
    ordered = np.concatenate((ordered[len(ordered) - nan :], ordered[: len(ordered) - nan]))
    rank = q * (len(ordered) - 1)
    below = int(rank)
    above, weight = min(below + 1, len(ordered) - 1), rank - below
    return float(ordered[below] * (1 - weight) + ordered[above] * weight)


RANGES: Mapping[str, Range] = {
    "avg_over_time": _summed(exact_mean, mean=True),
    "sum_over_time": _summed(exact_sum, mean=False),
    "min_over_time": _extreme(np.fmin),
    "max_over_time": _extreme(np.fmax),
    "count_over_time": _count,
    "stddev_over_time": _each(_deviation),
    "stdvar_over_time": _each(_variance),
    "mad_over_time": _each(_median_away),
    "quantile_over_time": _each(_quantile),
    "first_over_time": _first,
    "last_over_time": _last,
    "present_over_time": _present,
    "changes": _changes,
    "resets": _resets,
    "rate": _extrapolated(counter=True, rate=True),
    "increase": _extrapolated(counter=True, rate=False),
    "delta": _extrapolated(counter=False, rate=False),
    "irate": _neighbours(counter=True, rate=True),
    "idelta": _neighbours(counter=False, rate=False),
    "deriv": _trend(ahead=False),
    "predict_linear": _trend(ahead=True),
    "double_exponential_smoothing": _smoothed,
}
"""By PromQL's names."""
