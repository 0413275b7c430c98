"""Histograms of OTLP as partials, for windows with a granularity.

    histogram     bounds    0    5   10         exponential     base^offset  base^(offset+1)  …      base = 2^(2^-scale)
                       ┌────┼────┼────┐                            ┌────────┬────────┐
                  least│ c0 │ c1 │ c2 │greatest       negative … 0 │   c0   │   c1   │ …

    count, sum, min, max    of the point            count, sum, mean, min, max
    buckets                 lows, highs, counts     quantile (a sketch), histogram (where its bounds are theirs)

An end that a point does not tell is what Prometheus takes for it: 0, or the bucket's other end.

Source: opentelemetry.io/docs/specs/otel/metrics/data-model, "Histogram" and "ExponentialHistogram".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Histogram, Monoid, Quantile
from sash_engine.monoids.base import Array, Partials, object_array
from sash_engine.windows.batches.batch import MAX_PANE_ENTRIES
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, WindowSpec

KINDS = ("histogram", "exponential_histogram")

_BUCKETS_MAX = 2_000
"""Of one point. SDKs make 160 at most, unless they are told otherwise."""


class _Buckets(NamedTuple):
    """The buckets with values, in rising order; the outer ends may be infinite."""

    lows: Array
    highs: Array
    counts: Array

    @property
    def finite(self) -> _Buckets:
        """With ends for those that are not told; raises InvalidArgument where none is."""
        if np.isinf(self.lows[-1]) and np.isinf(self.highs[0]):  # of the only bucket
            raise InvalidArgument("a point tells no bounds, and no min and max")
        lows = np.where(np.isinf(self.lows), np.minimum(self.highs, 0.0), self.lows)
        return _Buckets(lows, np.where(np.isinf(self.highs), lows, self.highs), self.counts)


Maker = Callable[[Any, Callable[[], _Buckets]], Partials]


def makers_of(spec: WindowSpec) -> Mapping[str, Maker]:
    """Return what makes the partials of a window from a point, by aggregate, without counts.

    Raises:
        InvalidArgument: points of histograms are no partials of this window.
    """
    name = spec.name
    if spec.granularity is None:
        raise InvalidArgument(f"window {name!r} keeps entries, and a histogram has none: give it a granularity")
    if list(spec.fields.values()) != ["float64"] or spec.nullable:
        raise InvalidArgument(f"window {name!r} has other fields than one of float64 that is never null")
    if spec.time_unit not in NANOSECONDS_PER_TICK:
        raise InvalidArgument(f"window {name!r} counts in {spec.time_unit!r}, and points in nanoseconds")
    made = {}
    for aggregate, (monoid, _) in spec.monoids().items():
        if monoid.counts_entries:
            continue
        if (maker := _maker_of(monoid)) is None:
            raise InvalidArgument(
                f"window {name!r} has an aggregate {monoid.function}, which a histogram does not tell; it tells count, "
                "sum, mean, min, max, quantile and histogram"
            )
        made[aggregate] = maker
    return made


def partials_of(makers: Mapping[str, Maker], kind: str, point: Any) -> dict[str, Partials]:
    """Return the partials of one point, a row of each.

    Raises:
        InvalidArgument: it is damaged, or does not tell what an aggregate needs.
    """
    if point.count > MAX_PANE_ENTRIES:
        raise InvalidArgument(f"a point has {point.count} values; {MAX_PANE_ENTRIES} are taken")
    buckets = cache(partial(_buckets_of, kind, point))
    return {name: maker(point, buckets) for name, maker in makers.items()}


def _maker_of(monoid: Monoid) -> Maker | None:
    def sketched(point: Any, buckets: Callable[[], _Buckets]) -> Partials:
        assert isinstance(monoid, Quantile)
        return (object_array([monoid.of_buckets(*buckets().finite)]),)

    def binned(point: Any, buckets: Callable[[], _Buckets]) -> Partials:
        assert isinstance(monoid, Histogram)
        return (object_array([monoid.encode(monoid.of_buckets(*buckets()))]),)

    if isinstance(monoid, Quantile):
        return sketched
    if isinstance(monoid, Histogram):
        return binned
    return {
        "sum": lambda point, _: (_told(point, "sum"),),
        "mean": lambda point, _: (np.array([point.count], np.int64), _told(point, "sum")),
        "min": lambda point, _: (_told(point, "min"),),
        "max": lambda point, _: (_told(point, "max"),),
    }.get(monoid.function)


def _told(point: Any, name: str) -> Array:
    if not point.HasField(name):
        raise InvalidArgument(f"a point has no {name}, which the window needs")
    return np.array([getattr(point, name)])


def _buckets_of(kind: str, point: Any) -> _Buckets:
    made = _explicit(point) if kind == "histogram" else _exponential(point)
    if int(made.counts.sum()) != point.count:
        raise InvalidArgument(f"a point has {point.count} values, and {made.counts.sum()} in its buckets")
    least = point.min if point.HasField("min") else -np.inf
    greatest = point.max if point.HasField("max") else np.inf
    if not least <= greatest:
        raise InvalidArgument(f"the min of a point is {least}, and its max {greatest}")
    full = made.counts > 0
    return _Buckets(
        np.clip(made.lows[full], least, greatest), np.clip(made.highs[full], least, greatest), made.counts[full]
    )


def _explicit(point: Any) -> _Buckets:
    counts, bounds = _counts(point.bucket_counts), point.explicit_bounds
    if len(bounds) != max(len(counts) - 1, 0):
        raise InvalidArgument(f"a point has {len(counts)} buckets and {len(bounds)} bounds")
    edges = np.array([-np.inf, *bounds, np.inf])
    if not (edges[1:] > edges[:-1]).all():
        raise InvalidArgument("bounds of a point do not rise, or are not finite")
    return _Buckets(edges[:-1][: len(counts)], edges[1:][: len(counts)], counts)


def _exponential(point: Any) -> _Buckets:
    positive, negative = (_counts(each.bucket_counts) for each in (point.positive, point.negative))
    if not point.zero_threshold >= 0:
        raise InvalidArgument("the zero_threshold of a point is below 0")
    above = _powers(point.scale, point.positive.offset, len(positive))
    below = -_powers(point.scale, point.negative.offset, len(negative))[::-1]
    zero = point.zero_threshold
    return _Buckets(
        np.concatenate((below[:-1], [-zero], above[:-1])),
        np.concatenate((below[1:], [zero], above[1:])),
        np.concatenate((negative[::-1], _counts([point.zero_count]), positive)),
    )


def _powers(scale: int, offset: int, buckets: int) -> Array:
    """The ends of buckets, one more than there are of them; of none, any."""
    if not buckets:
        return np.zeros(1)
    with np.errstate(all="ignore"):
        found = np.exp2(np.ldexp(np.arange(offset, offset + buckets + 1, dtype=np.float64), np.int64(-scale)))
    if not np.isfinite(found).all():
        raise InvalidArgument("buckets of a point are out of range of float64")
    return found


def _counts(counts: Any) -> Array:
    if len(counts) > _BUCKETS_MAX:
        raise InvalidArgument(f"a point has {len(counts)} buckets; {_BUCKETS_MAX} are taken")
    if max(counts, default=0) > MAX_PANE_ENTRIES:
        raise InvalidArgument(f"a bucket of a point has {max(counts)} values; {MAX_PANE_ENTRIES} are taken")
    return np.array(counts, np.int64)
