"""Median and mode, exact: how often each distinct value occurs, for fields with few of them.

    partial   {3: 2, 7: 1, 9: 5}     distinct values and how often each occurs; two are added value by value
    spent     None                   more than `distinct` values: everything that is combined with it is spent, too

A window recovers by itself: when the entries that were too many have left, the rest is folded anew.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np

from sash_engine.monoids.base import (
    ANY,
    NUMERIC,
    PYTHON_TYPES,
    Array,
    FieldType,
    Monoid,
    Partial,
    Partials,
    Read,
    Values,
    typed,
    whole,
)

DISTINCT_MAX = 100_000
_SPENT = "more"


class _Tally(Monoid):
    """Partial: a dict of counts, which nobody changes; or the text "more" once there are too many values."""

    commutative = True
    large = True
    identity: Partial = {}  # noqa: RUF012
    parts = ("counts",)
    blob = 'JSON: a list of pairs [value, count], sorted; or "more" for more than `distinct` values'

    def __init__(self, *types: FieldType, distinct: int = 1000) -> None:
        super().__init__(*types)
        self.distinct = whole("distinct", distinct, 1, DISTINCT_MAX)

    def lift(self, value: Any) -> Partial:
        return {_canonical(value): 1}

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older == _SPENT or newer == _SPENT:
            return _SPENT
        if len(older) < len(newer):
            older, newer = newer, older
        both = dict(older)
        for value, count in newer.items():
            both[value] = both.get(value, 0) + count
        return both if len(both) <= self.distinct else _SPENT

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        if column.dtype == np.int64 and len(column) > 64:
            found, counts = np.unique(column, return_counts=True)
            return dict(zip(found.tolist(), counts.tolist(), strict=True)) if len(found) <= self.distinct else _SPENT
        items = column.tolist()
        if column.dtype == np.float64:
            items = [_canonical(item) for item in items]
        tally = dict(Counter(items))
        return tally if len(tally) <= self.distinct else _SPENT

    def fold(self, partials: Partials) -> Partial:
        both: dict[Any, int] = {}
        for partial in partials[0].tolist():
            if partial == _SPENT:
                return _SPENT
            for value, count in partial.items():
                both[value] = both.get(value, 0) + count
            if len(both) > self.distinct:
                return _SPENT
        return both

    def encode(self, partial: Partial) -> bytes:
        """Write JSON: sorted pairs, NaN last; or "more"."""
        if partial == _SPENT:
            return json.dumps(_SPENT).encode()
        return json.dumps(_sorted(partial), separators=(",", ":")).encode()

    def _typed(self, partial: Any) -> Partial:
        if partial == _SPENT:
            return _SPENT
        if type(partial) is not tuple or not 1 <= len(partial) <= self.distinct:
            raise ValueError(f"it must be a list of 1 to {self.distinct} pairs")
        tally = {}
        for pair in partial:
            if type(pair) is not tuple or len(pair) != 2:
                raise ValueError("it must be a list of pairs")
            count = typed(pair[1], "int64")
            if count < 1:
                raise ValueError("a count is not positive")
            tally[_canonical(typed(pair[0], self.types[0]))] = count
        if len(tally) < len(partial):
            raise ValueError("a value occurs twice")
        return tally

    def implausible(self, partials: Partials, entries: Array) -> Array:
        tallies = zip(partials[0].tolist(), entries.tolist(), strict=True)
        wrong = [n <= self.distinct if tally == _SPENT else sum(tally.values()) != n for tally, n in tallies]
        return np.array(wrong, np.bool_)


class Median(_Tally):
    """The exact median of a field with few distinct values: of an even number of entries, the mean of the middle two.

    None over no entries, and over more than `distinct` different values; `quantile` estimates the median of those. NaN
    makes it NaN. The answer is a float, rounded once: of integers beyond 2^53, the next one that is a float.

    Args:
        distinct: the greatest number of different values, 1 to 100,000.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Median
    >>> median = Median("int64")
    >>> median.lower(median.reduce([np.array([7, 1, 3, 1])]))
    2.0
    """

    function = "median"
    reads = (Read("field", NUMERIC),)

    def lower(self, partial: Partial) -> float | None:
        if not partial or partial == _SPENT:
            return None
        if self.types[0] == "float64" and math.nan in partial:
            return math.nan
        n = sum(partial.values())
        before, low = 0, None
        for value, count in sorted(partial.items()):
            before += count
            if low is None and before > (n - 1) // 2:
                low = value
            if before > n // 2:
                return _middle(low, value)
        raise AssertionError("the counts add up to n")


def _middle(low: Any, high: Any) -> float:
    if low == high:
        return float(low)
    middle: float = (low + high) / 2
    return middle if math.isfinite(middle) or math.isinf(low) or math.isinf(high) else low / 2 + high / 2


class Mode(_Tally):
    """The most frequent value of a field with few distinct values; of equally frequent ones, the smallest.

    None over no entries, and over more than `distinct` different values; `frequent_items` estimates those. All NaN
    count as one value, which is larger than any number.

    Args:
        distinct: the greatest number of different values, 1 to 100,000.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Mode
    >>> mode = Mode("string")
    >>> mode.lower(mode.reduce([np.array(["UA", "AA", "UA"], object)]))
    'UA'
    """

    function = "mode"
    reads = (Read("field", ANY),)

    def __init__(self, *types: FieldType, distinct: int = 1000) -> None:
        super().__init__(*types, distinct=distinct)
        self.answer = PYTHON_TYPES[self.types[0]]

    def lower(self, partial: Partial) -> float | int | str | bool | None:
        if not partial or partial == _SPENT:
            return None
        most = max(partial.values())
        value, _ = _sorted({value: count for value, count in partial.items() if count == most})[0]
        return value  # type: ignore[no-any-return]


def _canonical(value: Any) -> Any:
    """Return `math.nan` for any NaN, and 0.0 for -0.0: equal keys look the same in every order of combines."""
    if isinstance(value, float):
        return math.nan if value != value else value + 0.0
    return value


def _sorted(tally: dict[Any, int]) -> list[tuple[Any, int]]:
    return sorted(tally.items(), key=lambda pair: (pair[0] != pair[0], pair[0]))
