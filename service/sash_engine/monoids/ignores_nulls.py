"""Aggregates that leave out rows with a null, as those of SQL do.

    rows       v      7    null   5    null          two columns: 7 0 5 0, and whether each row has a value: T F T F
    partials   how many rows have a value, and the partial of the aggregate over these

Over no values the answer is null. Aggregates that count or list have their answer over no rows, such as 0 or [].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Array, FieldType, Monoid, Partial, Partials, Schema, Values, object_array
from sash_engine.monoids.pane import part_names
from sash_engine.monoids.suffixes import Suffixes

_OBJECT = (np.dtype(object),)
_COUNT = np.dtype("<i8")
_SUMS = ("sum", "decayed_sum")
"""Aggregates that answer 0 over no rows, and do not count."""


class IgnoresNulls(Monoid):
    """An aggregate over the rows that have all of its values.

    A partial begins with the number of these rows, because 0 is not the partial of any aggregate over some rows. Where
    the partials of the aggregate are objects, such as sketches, a partial is one object: the number and the partial.

    Args:
        inner: the aggregate.
        marks: how many of its columns may have nulls. The values have so many more columns: whether each has a value.

    >>> from sash_engine.monoids import Sum
    >>> total = IgnoresNulls(Sum("float64"), 1)
    >>> total.reduce([np.array([7.0, 0.0, 5.0]), np.array([True, False, True])])
    (2, 12.0)
    >>> print(total.lower(total.reduce([np.array([0.0]), np.array([False])])))
    None
    """

    reads = ()
    joins = ()

    def __init__(self, inner: Monoid, marks: int) -> None:
        kinds: list[FieldType] = ["bool"] * marks
        self.types = (*inner.types, *kinds)
        self.function = inner.function  # type: ignore[misc]
        self.blob = f"8 bytes, how many entries have a value; then, if there are any, {inner.blob}"  # type: ignore[misc]
        self.commutative, self.exact, self.answer = inner.commutative, inner.exact, inner.answer
        self.invertible, self.values_per_entry = inner.invertible, inner.values_per_entry
        self.large, self.sparse_suffixes = inner.large, inner.sparse_suffixes
        self.inner, self._own = inner, len(inner.types)
        self._object = inner.dtypes == _OBJECT
        self._single = len(inner.dtypes) == 1
        if self._object:
            self.dtypes, self.parts, self.identity = _OBJECT, ("partial",), (0, None)
        else:
            self.dtypes = (np.dtype(np.int64), *inner.dtypes)
            self.parts = ("valid", *part_names(inner))
            self.identity = (0, *(np.zeros(1, dtype).item() for dtype in inner.dtypes))
        self._parameters = repr((type(inner), sorted(vars(inner).items(), key=lambda item: item[0])))
        self._nothing = None if inner.function in _SUMS else inner.lower(inner.identity)

    @property
    def schema(self) -> Schema | None:
        return self.inner.schema

    def lift(self, value: Any) -> Partial:
        if not all(value[self._own :]):
            return self.identity
        return self._partial(1, self.inner.lift(value[0] if self._own == 1 else value[: self._own]))

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if not newer[0]:
            return older
        if not older[0]:
            return newer
        return self._partial(older[0] + newer[0], self.inner.combine(self._inner_of(older), self._inner_of(newer)))

    def uncombine(self, total: Partial, older: Partial) -> Partial:
        if not self.invertible:
            return super().uncombine(total, older)
        left = total[0] - older[0]
        if not left or not older[0]:
            return total if left else self.identity
        return self._partial(left, self.inner.uncombine(self._inner_of(total), self._inner_of(older)))

    def lower(self, partial: Partial) -> Any:
        return self.inner.lower(self._inner_of(partial)) if partial[0] else self._nothing

    def _partial(self, rows: int, inner: Partial) -> Partial:
        return (rows, inner) if self._single else (rows, *inner)

    def _inner_of(self, partial: Partial) -> Partial:
        return partial[1] if self._single else partial[1:]

    # ---------------------------------------------------------------- columns of values

    def reduce(self, values: Values) -> Partial:
        rows = self._rows(values)
        return self._partial(len(rows), self.inner.reduce(self._of(values, rows))) if len(rows) else self.identity

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        rows = self._rows(values)
        if not len(rows):
            return self._spread(len(starts), rows, rows, ())
        owners = starts.searchsorted(rows, "right") - 1
        filled, first, counts = np.unique(owners, return_index=True, return_counts=True)
        return self._spread(len(starts), filled, counts, self.inner.reduce_segments(self._of(values, rows), first))

    def lift_columns(self, values: Values) -> Partials:
        rows = self._rows(values)
        lifted = self.inner.lift_columns(self._of(values, rows)) if len(rows) else ()
        return self._spread(len(values[0]), rows, np.ones(len(rows), np.int64), lifted)

    def scan_suffix(self, values: Values) -> Sequence[Partial]:
        if self.sparse_suffixes:
            return Suffixes(self, values)
        rows = self._rows(values)
        scanned = self.inner.scan_suffix(self._of(values, rows)) if len(rows) else ()
        behind = len(rows) - rows.searchsorted(np.arange(len(values[0])))  # rows with values from each row on
        return [self._partial(left, scanned[len(rows) - left]) if left else self.identity for left in behind.tolist()]

    def _rows(self, values: Values) -> Array:
        """Return the numbers of the rows that have all values."""
        there = values[self._own]
        for mark in values[self._own + 1 :]:
            there = there & mark
        return np.flatnonzero(there)

    def _of(self, values: Values, rows: Array) -> list[Array]:
        """Return the columns of the aggregate itself, of some rows."""
        return [column[rows] for column in values[: self._own]]

    # ---------------------------------------------------------------- columns of partials

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        if self._object:
            return super().combine_columns(older, newer)
        out = tuple([np.where(newer[0] > 0, b, a) for a, b in zip(older, newer, strict=True)])
        both = np.flatnonzero((older[0] > 0) & (newer[0] > 0))
        if len(both):
            parts = [tuple([part[both] for part in side[1:]]) for side in (older, newer)]
            out[0][both] = older[0][both] + newer[0][both]
            for column, part in zip(out[1:], self.inner.combine_columns(*parts), strict=True):
                column[both] = part
        return out

    def fold(self, partials: Partials) -> Partial:
        rows, counts, inner = self._filled(partials)
        return self._partial(int(counts.sum()), self.inner.fold(inner)) if len(rows) else self.identity

    def lower_columns(self, partials: Partials) -> Array:
        rows, _, inner = self._filled(partials)
        own = self.inner.lower_columns(inner)
        if len(rows) == len(partials[0]):
            return own
        out = object_array([self._nothing] * len(partials[0]))
        out[rows] = object_array(own.tolist())
        return out

    def _filled(self, partials: Partials) -> tuple[Array, Array, Partials]:
        """Return the numbers of the partials over some rows, how many rows each has, and those of the aggregate."""
        if not self._object:
            rows = np.flatnonzero(partials[0])
            return rows, partials[0][rows], tuple([part[rows] for part in partials[1:]])
        found = [(i, *each) for i, each in enumerate(partials[0].tolist()) if each[0]]
        numbers, counts = (np.array([each[i] for each in found], np.int64) for i in (0, 1))
        return numbers, counts, (object_array([each[2] for each in found]),)

    def _spread(self, n: int, rows: Array, counts: Array, inner: Partials) -> Partials:
        """Return n partials: those of the aggregate in some rows, and elsewhere that of no rows."""
        out = tuple([np.zeros(n, dtype) for dtype in self.dtypes])
        if self._object:
            (column,) = out
            column[:] = object_array([self.identity]) if n else ()
            if len(rows):
                column[rows] = object_array(list(zip(counts.tolist(), inner[0].tolist(), strict=True)))
        elif len(rows):
            out[0][rows] = counts
            for column, part in zip(out[1:], inner, strict=True):
                column[rows] = part
        return out

    # ---------------------------------------------------------------- bytes and checks

    def encode(self, partial: Partial) -> bytes:
        """Write how many rows have a value, 8 bytes, and what the aggregate writes of these."""
        rows: int = partial[0]
        return rows.to_bytes(8, "little") + (self.inner.encode(self._inner_of(partial)) if rows else b"")

    def decode(self, data: bytes) -> Partial:
        return self._decoded(data, self.inner.decode)

    def restore(self, data: bytes) -> Partial:
        return self._decoded(data, self.inner.restore)

    def _decoded(self, data: bytes, read: Any) -> Partial:
        if len(data) < _COUNT.itemsize:
            raise InvalidArgument(f"not a partial of {self.function}: it has no number of values")
        rows = int.from_bytes(data[:8], "little", signed=True)
        if rows < 0 or (rows == 0 and len(data) > _COUNT.itemsize):
            raise InvalidArgument(f"not a partial of {self.function}: {rows} values")
        return self._partial(rows, read(data[8:])) if rows else self.identity

    def implausible(self, partials: Partials, entries: Array) -> Array:
        """Find those of more rows than entries, and those that the aggregate would refuse for so many rows."""
        rows, counts, inner = self._filled(partials)
        wrong = np.zeros(len(entries), np.bool_)
        wrong[rows] = (counts < 1) | (counts > entries[rows])
        if len(rows):
            wrong[rows] |= self.inner.implausible(inner, counts)
        return wrong

    def __repr__(self) -> str:
        return f"IgnoresNulls({self.inner!r})"
