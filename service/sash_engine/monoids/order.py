"""Aggregates that depend on the order of entries: the first value, the last one, all values, all distinct values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sash_engine.monoids.base import (
    ANY,
    Array,
    FieldType,
    Monoid,
    OneValue,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    object_array,
    typed,
)


class First(OneValue):
    """The first value of a field in time; of equal times, the first that arrived. None over no entries.

    Flags: exact.

    >>> from sash_engine.monoids import First
    >>> first = First("string")
    >>> first.lower(first.combine(first.lift("open"), first.lift("shut")))
    'open'
    """

    function = "first"
    parts = ("first",)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return newer if older is None else older

    def reduce(self, values: Values) -> Partial:
        return values[0].item(0) if len(values[0]) else None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        return (values[0][starts],)

    def reduce_ranges(self, values: Values, starts: Array, stops: Array) -> Partials:
        return (values[0][starts],)

    def scan_suffix(self, values: Values) -> list[Partial]:
        return values[0].tolist()  # type: ignore[no-any-return]

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (older[0].copy(),)


class Last(OneValue):
    """The last value of a field in time; of equal times, the last that arrived. None over no entries.

    Flags: exact.

    >>> from sash_engine.monoids import Last
    >>> last = Last("int64")
    >>> last.lower(last.combine(last.lift(1), last.lift(2)))
    2
    """

    function = "last"
    parts = ("last",)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return older if newer is None else newer

    def reduce(self, values: Values) -> Partial:
        return values[0].item(-1) if len(values[0]) else None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        (column,) = values
        return (column[np.append(starts[1:], len(column)) - 1],)

    def reduce_ranges(self, values: Values, starts: Array, stops: Array) -> Partials:
        return (values[0][stops - 1],)

    def scan_suffix(self, values: Values) -> list[Partial]:
        return [values[0].item(-1)] * len(values[0])

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (newer[0].copy(),)


class Collect(Monoid):
    """All values of a field in order of time, as a list; [] over no entries.

    Partial: a tuple of the values. Combining takes time and space in proportion to their number.

    Flags: exact. It is the free monoid: any error in the order of combines shows in its answer.

    >>> from sash_engine.monoids import Collect
    >>> collect = Collect("string")
    >>> collect.lower(collect.combine(collect.lift("b"), collect.lift("a")))
    ['b', 'a']
    """

    function = "collect"
    parts = ("values",)
    blob = "JSON: a list of the values"
    reads = (Read("field", ANY),)
    large = True
    answer = list
    values_per_entry = 1
    identity = ()

    @property
    def schema(self) -> Schema:
        return [self.types[0]]

    def lift(self, value: Any) -> Partial:
        return (value,)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return older + newer

    def lower(self, partial: Partial) -> list[Any]:
        return list(partial)

    def reduce(self, values: Values) -> Partial:
        return tuple(values[0].tolist())

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (older[0] + newer[0],)

    def fold(self, partials: Partials) -> Partial:
        return tuple(value for partial in partials[0].tolist() for value in partial)

    def _typed(self, partial: Any) -> Partial:
        return _typed_values(partial, self.types[0])

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return _sizes(partials) != entries  # type: ignore[no-any-return]


class CollectDistinct(Collect):
    """The distinct values of a field in order of first appearance, as a list; [] over no entries.

    All NaN count as one value, and so do -0.0 and 0.0. Partial: a tuple of the values.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import CollectDistinct
    >>> distinct = CollectDistinct("int64")
    >>> distinct.lower(distinct.reduce([np.array([3, 1, 3, 2, 1])]))
    [3, 1, 2]
    """

    function = "collect_distinct"
    combine_columns = Monoid.combine_columns

    def lift(self, value: Any) -> Partial:
        return (_one_nan(value),)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return tuple(dict.fromkeys(older + newer))

    def reduce(self, values: Values) -> Partial:
        items = values[0].tolist()
        has_nan = self.types[0] == "float64" and np.isnan(values[0]).any()
        return tuple(dict.fromkeys(map(_one_nan, items) if has_nan else items))

    def lift_columns(self, values: Values) -> Partials:
        return (object_array([(_one_nan(value),) for value in values[0].tolist()]),)

    def fold(self, partials: Partials) -> Partial:
        return tuple(dict.fromkeys(value for partial in partials[0].tolist() for value in partial))

    def _typed(self, partial: Any) -> Partial:
        return tuple(dict.fromkeys(map(_one_nan, _typed_values(partial, self.types[0]))))

    def implausible(self, partials: Partials, entries: Array) -> Array:
        sizes = _sizes(partials)
        return (sizes < 1) | (sizes > entries)


def _one_nan(value: Any) -> Any:
    """Return `math.nan` for any NaN: NaN equals nothing, but a dictionary finds the same object again."""
    return math.nan if value != value else value


def _typed_values(partial: Any, kind: FieldType) -> tuple[Any, ...]:
    if type(partial) is not tuple:
        raise ValueError("it is not a list")
    return tuple(typed(value, kind) for value in partial)


def _sizes(partials: Partials) -> Array:
    return np.fromiter(map(len, partials[0]), np.int64, len(partials[0]))
