"""Functions of the samples in a range, for one series and all times at once.

    samples      ·  ·   · ·    ·  ·  ·   ·      values, by time
    ranges     (lo────────hi]                   sample i of range j: lo[j] <= i < hi[j]
                     (lo────────hi]

Most are vectorised over all ranges. The rest take one call of NumPy for each range.

Source: Prometheus' documentation of its functions, and its promql/functions.go for how rates are extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sash.prometheus.errors import Refused
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of

__all__ = ["RANGES", "Samples", "quantile_of"]

_EACH = 100
"""Ranges of a step, where each takes a call: 1 ms."""

_READ_MAX = 20_000_000
"""Samples that the ranges of one series may have together: overlapping ranges read the same sample again."""

_CLOSE = 1.1
"""A sample is close to the range's end, if it is not much further than samples are apart."""


@dataclass(frozen=True)
class Samples:
    """The samples of one series, and the ranges to look at.

    Args:
        seconds: float64 (m,), when samples were taken, ascending.
        values: float64 (m,).
        low, high: int64 (n,), the first sample of a range, and the first one behind it; low < high.
        starts, ends: float64 (n,), the ranges in seconds.
        q: a parameter, float64 (n,).
    """

    seconds: Array
    values: Array
    low: Array
    high: Array
    starts: Array
    ends: Array
    q: Array

    @property
    def counts(self) -> Array:
        """How many samples each range has."""
        return self.high - self.low


Found = Steps[tuple[Array, Array]]
Range = Callable[[Samples], Found]
"""Returns a value for each range, and whether it has one."""


def _all(samples: Samples, values: Array) -> tuple[Array, Array]:
    return values.astype(np.float64), np.ones(len(samples.low), np.bool_)


def _reduced(ufunc: np.ufunc) -> Range:
    def found(samples: Samples) -> Found:
        result = np.empty(len(samples.low))
        padded = np.append(samples.values, 0.0)  # a range may end behind the last sample
        _check_read(samples)
        for a, b in _spans(samples):
            bounds = np.stack((samples.low[a:b], samples.high[a:b]), 1).ravel()
            result[a:b] = ufunc.reduceat(padded, bounds)[::2]
            yield
        return _all(samples, result)

    return found


def _spans(samples: Samples) -> list[tuple[int, int]]:
    """Ranges that have some 100,000 samples together."""
    behind = np.cumsum(samples.counts)
    cuts = np.unique(np.searchsorted(behind, np.arange(0, int(behind[-1]) + 100_000, 100_000), "left"))
    bounds = [0, *(cut for cut in cuts.tolist() if 0 < cut < len(behind)), len(behind)]
    return list(pairwise(bounds))


def _check_read(samples: Samples) -> None:
    if int(samples.counts.sum()) > _READ_MAX:
        raise Refused(
            f"the ranges have more than {_READ_MAX:,} samples together; give the window an aggregate for it, or make "
            "the range shorter or the step longer",
            field="query",
            limit=f"{_READ_MAX} samples",
        )


def _each(function: Callable[[Array, float], float]) -> Range:
    def found(samples: Samples) -> Found:
        result = np.empty(len(samples.low))
        _check_read(samples)
        low, high, q = samples.low.tolist(), samples.high.tolist(), samples.q.tolist()
        for a, b in spans_of(len(low), _EACH):
            for i in range(a, b):
                result[i] = function(samples.values[low[i] : high[i]], q[i])
            yield
        return _all(samples, result)

    return found


def _count(samples: Samples) -> Found:
    yield
    return _all(samples, samples.counts)


def _average(samples: Samples) -> Found:
    sums, there = yield from _reduced(np.add)(samples)
    return sums / samples.counts, there


def _first(samples: Samples) -> Found:
    yield
    return _all(samples, samples.values[samples.low])


def _last(samples: Samples) -> Found:
    yield
    return _all(samples, samples.values[samples.high - 1])


def _present(samples: Samples) -> Found:
    yield
    return _all(samples, np.ones(len(samples.low)))


def _between(samples: Samples, of_pair: Array) -> Array:
    """The sum of something of each pair of neighbours, over the pairs that lie in each range; it is +Inf at most."""
    infinite = np.isinf(of_pair)
    if infinite.any():  # the sum behind an infinite one has no differences
        finite = _between(samples, np.where(infinite, 0.0, of_pair))
        return np.where(_between(samples, infinite.astype(np.float64)) > 0, np.inf, finite)
    sums = np.concatenate(([0.0, 0.0], np.cumsum(of_pair)))  # [i]: of the pairs before sample i
    return np.asarray(sums[samples.high] - sums[samples.low + 1])


def _changes(samples: Samples) -> Found:
    yield
    older, newer = samples.values[:-1], samples.values[1:]
    changed = (older != newer) & ~(np.isnan(older) & np.isnan(newer))
    return _all(samples, _between(samples, changed.astype(np.float64)))


def _resets(samples: Samples) -> Found:
    yield
    return _all(samples, _between(samples, (samples.values[1:] < samples.values[:-1]).astype(np.float64)))


def _neighbours(counter: bool, rate: bool) -> Range:
    """The change between a range's last two samples."""

    def found(samples: Samples) -> Found:
        yield
        last, before = samples.high - 1, np.maximum(samples.high - 2, 0)
        change = samples.values[last] - samples.values[before]
        if counter:
            change = np.where(samples.values[last] < samples.values[before], samples.values[last], change)
        apart = samples.seconds[last] - samples.seconds[before]
        there = (samples.counts >= 2) & (apart > 0)
        return np.where(there, change / np.where(there & rate, apart, 1.0), 0.0), there

    return found


def _extrapolated(counter: bool, rate: bool) -> Range:
    """The change over a range, extrapolated to its ends."""

    def found(samples: Samples) -> Found:
        yield
        values, last = samples.values, samples.high - 1
        first_value, first_s, last_s = values[samples.low], samples.seconds[samples.low], samples.seconds[last]
        change = values[last] - first_value
        if counter:
            change = change + _between(samples, np.where(values[1:] < values[:-1], values[:-1], 0.0))
        sampled = last_s - first_s
        there = (samples.counts >= 2) & (sampled > 0)
        sampled = np.where(there, sampled, 1.0)
        apart = sampled / np.maximum(samples.counts - 1, 1)
        to_start, to_end = first_s - samples.starts, samples.ends - last_s
        to_start = np.where(to_start >= apart * _CLOSE, apart / 2, to_start)
        to_end = np.where(to_end >= apart * _CLOSE, apart / 2, to_end)
        if counter:  # it did not begin below zero
            with np.errstate(all="ignore"):
                to_zero = np.where((change > 0) & (first_value >= 0), sampled * (first_value / change), np.inf)
            to_start = np.minimum(to_start, to_zero)
        factor = (sampled + to_start + to_end) / sampled
        if rate:
            factor = factor / (samples.ends - samples.starts)
        return np.where(there, change * factor, 0.0), there

    return found


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
    "avg_over_time": _average,
    "sum_over_time": _reduced(np.add),
    "min_over_time": _reduced(np.fmin),
    "max_over_time": _reduced(np.fmax),
    "count_over_time": _count,
    "stddev_over_time": _each(lambda values, _: float(np.std(values))),
    "stdvar_over_time": _each(lambda values, _: float(np.var(values))),
    "quantile_over_time": _each(quantile_of),
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
}
"""By PromQL's names."""
