"""The shape of a series: its M4 points, and its longest increasing run. Both read the time and return times."""

from __future__ import annotations

from typing import Any

import numpy as np

from sash_engine.monoids.base import (
    NUMERIC,
    NUMPY_TYPES,
    TIME,
    Array,
    FieldType,
    Joined,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    object_array,
)
from sash_engine.monoids.numerics import first_of_best, in_chunks, lengths

_INT64 = np.dtype(np.int64)


class M4(Joined):
    """First, last, smallest and largest value of a field with their times: enough for a pixel column of a line chart.

    The answer is `{"first": {"time": …, "value": …}, "last": …, "min": …, "max": …}`; None over no entries. NaN is
    more extreme than any number. Of equal extremes, the first in time counts.

    Partial: (first time, first value, then the same of last, min and max).

    Flags: exact.

    Source: Jugel, Jerzak, Hackenbroich, Markl, "M4: a visualization-oriented time series data aggregation",
    VLDB 2014.

    >>> import numpy as np
    >>> from sash_engine.monoids import M4
    >>> m4 = M4()
    >>> answer = m4.lower(m4.reduce([np.array([5.0, 9.0, 2.0, 4.0]), np.array([10, 20, 30, 40])]))
    >>> answer["max"], answer["last"]
    ({'time': 20, 'value': 9.0}, {'time': 40, 'value': 4.0})
    """

    function = "m4"
    parts = tuple(f"{which}_{what}" for which in ("first", "last", "min", "max") for what in ("time", "value"))
    reads = (Read("field", NUMERIC), TIME)
    answer = dict

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        self.dtypes = (_INT64, NUMPY_TYPES[self.types[0]]) * 4

    @property
    def schema(self) -> Schema:
        return {name: {"time": "int64", "value": self.types[0]} for name in ("first", "last", "min", "max")}

    def lift(self, value: Any) -> Partial:
        number, time = value
        return (time, number) * 4

    def join(self, older: Any, newer: Any) -> Any:
        low, new_low, high, new_high = older[5], newer[5], older[7], newer[7]
        takes_low = new_low < low or (new_low != new_low and low == low)
        takes_high = new_high > high or (new_high != new_high and high == high)
        least, largest = newer if takes_low else older, newer if takes_high else older
        return older[:2] + newer[2:4] + least[4:6] + largest[6:]

    def lower(self, partial: Partial) -> dict[str, Any] | None:
        if partial is None:
            return None
        names = ("first", "last", "min", "max")
        return {name: {"time": partial[2 * i], "value": partial[2 * i + 1]} for i, name in enumerate(names)}

    def reduce(self, values: Values) -> Partial:
        numbers, times = values
        if not len(numbers):
            return None
        rows = (0, len(numbers) - 1, numbers.argmin(), numbers.argmax())
        return tuple(column.item(row) for row in rows for column in (times, numbers))

    @in_chunks(32_768)
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        numbers, times = values
        rows = (
            starts,
            starts + lengths(starts, len(times)) - 1,
            first_of_best(numbers, starts, np.minimum),
            first_of_best(numbers, starts, np.maximum),
        )
        return tuple(column[row] for row in rows for column in (times, numbers))

    def lift_columns(self, values: Values) -> Partials:
        return (values[1], values[0]) * 4

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        low, new_low, high, new_high = older[5], newer[5], older[7], newer[7]
        takes_low = (new_low < low) | ((new_low != new_low) & (low == low))
        takes_high = (new_high > high) | ((new_high != new_high) & (high == high))
        return (
            *(column.copy() for column in older[:2]),
            *(column.copy() for column in newer[2:4]),
            *(np.where(takes_low, newer[i], older[i]) for i in (4, 5)),
            *(np.where(takes_high, newer[i], older[i]) for i in (6, 7)),
        )

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return partials[5] > partials[7]


class LongestIncreasingRun(Joined):
    """The longest run of consecutive entries whose values strictly increase; of equally long ones, the first in time.

    The answer is `{"length": entries, "start": time of the first, "end": time of the last}`; None over no entries.
    NaN ends a run and is a run of its own.

        values    4   1   2   5 | 7   3   6         prefix: the run that the first entry begins
                      [ prefix ...                  suffix: the run that the last entry ends
        older     prefix 1, suffix 3 (1 2 5), best 3
        newer     prefix 1 (7), suffix 2, best 2    5 < 7, so 1 2 5 7 runs across the seam: best 4

    Partial: (n, first value, last value, prefix length and end, suffix length and start, best length, start
    and end).

    Flags: exact.

    Source: Villalba, Berral, Carrera, TPDS 2019, use it as a slide policy; the partial is ours.

    >>> import numpy as np
    >>> from sash_engine.monoids import LongestIncreasingRun
    >>> run = LongestIncreasingRun()
    >>> older = run.reduce([np.array([4.0, 1.0, 2.0, 5.0]), np.array([1, 2, 3, 4])])
    >>> newer = run.reduce([np.array([7.0, 3.0, 6.0]), np.array([5, 6, 7])])
    >>> run.lower(run.combine(older, newer))
    {'length': 4, 'start': 2, 'end': 5}
    """

    function = "longest_increasing_run"
    parts = (
        "entries",
        "first_value",
        "last_value",
        "prefix_length",
        "prefix_end",
        "suffix_length",
        "suffix_start",
        "best_length",
        "best_start",
        "best_end",
    )
    reads = (Read("field", NUMERIC), TIME)
    answer = dict

    def __init__(self, *types: FieldType) -> None:
        super().__init__(*types)
        value = NUMPY_TYPES[self.types[0]]
        self.dtypes = (_INT64, value, value, *(_INT64,) * 7)

    @property
    def schema(self) -> Schema:
        return {"length": "int64", "start": "int64", "end": "int64"}

    def lift(self, value: Any) -> Partial:
        number, time = value
        return 1, number, number, 1, time, 1, time, 1, time, time

    def join(self, older: Any, newer: Any) -> Any:
        n1, first, seam1, prefix, prefix_end, suffix1, suffix1_start, best, best_start, best_end = older
        n2, seam2, last, prefix2, prefix2_end, suffix, suffix_start, best2, best2_start, best2_end = newer
        if seam1 < seam2:
            across = suffix1 + prefix2
            if across > best:
                best, best_start, best_end = across, suffix1_start, prefix2_end
            if prefix == n1:
                prefix, prefix_end = across, prefix2_end
            if suffix == n2:
                suffix, suffix_start = across, suffix1_start
        if best2 > best:
            best, best_start, best_end = best2, best2_start, best2_end
        return n1 + n2, first, last, prefix, prefix_end, suffix, suffix_start, best, best_start, best_end

    def lower(self, partial: Partial) -> dict[str, int] | None:
        if partial is None:
            return None
        return dict(zip(("length", "start", "end"), partial[7:], strict=True))

    def reduce(self, values: Values) -> Partial:
        if not len(values[0]):
            return None
        return self.take(self.reduce_segments(values, np.zeros(1, np.int64)), 0)

    @in_chunks(32_768)
    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        numbers, times = values
        n = len(numbers)
        breaks = np.ones(n, np.bool_)
        np.less_equal(numbers[1:], numbers[:-1], out=breaks[1:])
        breaks[1:] |= (numbers[1:] != numbers[1:]) | (numbers[:-1] != numbers[:-1])
        breaks[starts] = True
        runs = np.flatnonzero(breaks)  # the row on which each run starts
        sizes = lengths(runs, n)
        firsts = runs.searchsorted(starts)  # the number of each segment's first run
        lasts = np.append(firsts[1:], len(runs)) - 1
        best = first_of_best(sizes, firsts, np.maximum)
        ends = starts + lengths(starts, n) - 1
        return (
            ends - starts + 1,
            numbers[starts],
            numbers[ends],
            sizes[firsts],
            times[starts + sizes[firsts] - 1],
            sizes[lasts],
            times[runs[lasts]],
            sizes[best],
            times[runs[best]],
            times[runs[best] + sizes[best] - 1],
        )

    def lift_columns(self, values: Values) -> Partials:
        numbers, times = values
        ones = np.ones(len(times), np.int64)
        return ones, numbers, numbers, ones, times, ones, times, ones, times, times

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        n1, first, seam1, prefix1, prefix1_end, suffix1, suffix1_start, best1, best1_start, best1_end = older
        n2, seam2, last, prefix2, prefix2_end, suffix2, suffix2_start, best2, best2_start, best2_end = newer
        joined = seam1 < seam2
        across = np.where(joined, suffix1 + prefix2, 0)
        longer = joined & (prefix1 == n1)
        earlier = joined & (suffix2 == n2)
        over = across > best1
        best = np.where(over, across, best1)
        later = best2 > best
        return (
            n1 + n2,
            first.copy(),
            last.copy(),
            np.where(longer, across, prefix1),
            np.where(longer, prefix2_end, prefix1_end),
            np.where(earlier, across, suffix2),
            np.where(earlier, suffix1_start, suffix2_start),
            np.where(later, best2, best),
            np.where(later, best2_start, np.where(over, suffix1_start, best1_start)),
            np.where(later, best2_end, np.where(over, prefix2_end, best1_end)),
        )

    def lower_columns(self, partials: Partials) -> Array:
        return object_array([self.lower((0,) * 7 + best) for best in self.unpack(partials[7:])])

    def implausible(self, partials: Partials, entries: Array) -> Array:
        wrong = partials[0] != entries
        for run in (3, 5, 7):
            wrong |= (partials[run] < 1) | (partials[run] > entries)
        return wrong  # type: ignore[no-any-return]
