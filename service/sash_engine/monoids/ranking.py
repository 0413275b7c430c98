"""The n largest or smallest values with what another field has in their entries, and strings joined in order.

largest, n = 3     (9 c) (7 a) (7 f)  ∘  (8 x) (7 y)  =  (9 c) (8 x) (7 a)      merged, equal ones in order of time
join, limit 9      ab, cd             ∘  ef, gh       =  ab, cd …               whole values only
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import (
    ANY,
    ORDERED,
    Array,
    FieldType,
    Monoid,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    typed,
    typed_parts,
    whole,
)

MORE = "…"


class _Ranking(Monoid):
    """Partial: a tuple of (value, returned), the best first; of equal values the first in time first."""

    reads = (Read("field", ORDERED), Read("returns", ANY, default="time"))
    answer = list
    values_per_entry = 2
    identity = ()
    parts = ("entries",)
    blob = "JSON: a list of pairs [value, returned], the best first"
    falling: ClassVar[bool]

    def __init__(self, *types: FieldType, n: int = 10) -> None:
        super().__init__(*types)
        self.n = whole("n", n, 1, 1000)
        self.large = n > 20

    @property
    def schema(self) -> Schema:
        return [{"value": self.types[0], "returned": self.types[1]}]

    def lift(self, value: Any) -> Partial:
        return (value,)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if not older or not newer:
            return older or newer
        return self._merged(older, newer)

    def _merged(self, *partials: Partial) -> Partial:
        key = _rank if self.falling else _rank_with_nan_first
        return tuple(islice(heapq.merge(*partials, key=key, reverse=self.falling), self.n))

    def lower(self, partial: Partial) -> list[dict[str, Any]]:
        return [{"value": value, "returned": returned} for value, returned in partial]

    def reduce(self, values: Values) -> Partial:
        column, returned = values
        n = len(column)
        if not n:
            return ()
        if column.dtype == object:
            items = column.tolist()
            rows = sorted(range(n), key=items.__getitem__, reverse=self.falling)[: self.n]
        elif self.falling:
            # Reversed twice, so that of equal values the first comes first. NumPy sorts NaN behind all numbers.
            rows = (n - 1 - column[::-1].argsort(kind="stable")[::-1][: self.n]).tolist()
        else:
            key = column if column.dtype != np.float64 else np.where(column != column, -np.inf, column)
            order = key.argsort(kind="stable")
            if column.dtype == np.float64:  # NaN before -inf
                nan = np.flatnonzero(column != column)
                order = np.concatenate((nan, order[column[order] == column[order]]))
            rows = order[: self.n].tolist()
        return tuple([(column.item(row), returned.item(row)) for row in rows])

    def fold(self, partials: Partials) -> Partial:
        items = partials[0].tolist()
        return items[0] if len(items) == 1 else self._merged(*items)

    def _typed(self, partial: Any) -> Partial:
        if type(partial) is not tuple or not 1 <= len(partial) <= self.n:
            raise ValueError(f"it must be a list of 1 to {self.n} pairs")
        pairs = tuple(typed_parts(pair, self.types) for pair in partial)
        ranks = [_rank(pair) if self.falling else _rank_with_nan_first(pair) for pair in pairs]
        if ranks != sorted(ranks, reverse=self.falling):
            raise ValueError("it is not sorted")
        return pairs

    def implausible(self, partials: Partials, entries: Array) -> Array:
        sizes = np.fromiter(map(len, partials[0]), np.int64, len(entries))
        return sizes != np.minimum(entries, self.n)  # type: ignore[no-any-return]


def _rank(pair: tuple[Any, Any]) -> tuple[bool, Any]:
    value = pair[0]
    return (True, 0) if value != value else (False, value)


def _rank_with_nan_first(pair: tuple[Any, Any]) -> tuple[bool, Any]:
    value = pair[0]
    return (False, 0) if value != value else (True, value)


class Largest(_Ranking):
    """The largest values of a field, each with another field or the time of its entry; [] over no entries.

    The answer is a list of `{"value": …, "returned": …}`, the largest first; of equal values, the first in time first.
    NaN is larger than any number.

    Args:
        n: how many, 1 to 1,000.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Largest
    >>> largest = Largest("float64", n=2)
    >>> largest.lower(largest.reduce([np.array([5.0, 9.0, 7.0]), np.array([10, 20, 30])]))
    [{'value': 9.0, 'returned': 20}, {'value': 7.0, 'returned': 30}]
    """

    function = "largest"
    falling = True


class Smallest(_Ranking):
    """The smallest values of a field, each with another field or the time of its entry; [] over no entries.

    The answer is a list of `{"value": …, "returned": …}`, the smallest first; of equal values, the first in time first.
    NaN is smaller than any number.

    Args:
        n: how many, 1 to 1,000.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Smallest
    >>> smallest = Smallest("float64", n=1)
    >>> smallest.lower(smallest.reduce([np.array([5.0, 9.0, 7.0]), np.array([10, 20, 30])]))
    [{'value': 5.0, 'returned': 10}]
    """

    function = "smallest"
    falling = False


class Join(Monoid):
    """The strings of a field in order of time, joined with a separator; None over no entries.

    If they have more than `limit` characters together, the answer has the oldest values that fit, and ends with the
    separator and "…".

    Args:
        separator: up to 100 characters.
        limit: the greatest number of characters before the "…", 1 to 1,000,000.

    Flags: exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Join
    >>> join = Join(separator=" > ")
    >>> join.lower(join.reduce([np.array(["JFK", "BOS", "ORD"], object)]))
    'JFK > BOS > ORD'
    """

    function = "join"
    parts = ("values",)
    blob = "JSON: a list of the values, and whether there are more"
    reads = (Read("field", ("string",)),)
    large = True
    answer = str
    identity = ((), False)

    def __init__(self, *types: FieldType, separator: str = ", ", limit: int = 10_000) -> None:
        super().__init__(*types)
        if not isinstance(separator, str) or len(separator) > 100:
            raise InvalidArgument("separator must be a string", field="separator", limit="100 characters")
        self.limit = whole("limit", limit, 1, 1_000_000)
        separator.encode()  # raises for half a surrogate pair
        self.separator = separator

    def lift(self, value: Any) -> Partial:
        return self._bounded((value,), False)

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older[1]:
            return older
        return self._bounded(older[0] + newer[0], newer[1])

    def _bounded(self, values: tuple[str, ...], more: bool) -> Partial:
        """Keep the oldest values that fit."""
        between = len(self.separator)
        if sum(map(len, values)) + between * (len(values) - 1) <= self.limit:
            return values, more
        room = self.limit + between
        for i, value in enumerate(values):
            room -= len(value) + between
            if room < 0:
                return values[:i], True
        raise AssertionError("the values do not fit")

    def lower(self, partial: Partial) -> str | None:
        values, more = partial
        return self.separator.join((*values, MORE) if more else values) if values or more else None

    def reduce(self, values: Values) -> Partial:
        return self._bounded(tuple(values[0].tolist()), False)

    def fold(self, partials: Partials) -> Partial:
        values: list[str] = []
        for mine, more in partials[0].tolist():
            values += mine
            if more:
                return self._bounded(tuple(values), True)
        return self._bounded(tuple(values), False)

    def _typed(self, partial: Any) -> Partial:
        if type(partial) is not tuple or len(partial) != 2 or type(partial[0]) is not tuple:
            raise ValueError("it must be a list of values, and true or false")
        values, more = tuple(typed(value, "string") for value in partial[0]), typed(partial[1], "bool")
        if self._bounded(values, more) != (values, more):
            raise ValueError(f"it has more than {self.limit} characters")
        return values, more

    def implausible(self, partials: Partials, entries: Array) -> Array:
        pairs = zip(partials[0].tolist(), entries.tolist(), strict=True)
        return np.array([len(values) >= n if more else len(values) != n for (values, more), n in pairs], np.bool_)
