"""Aggregates that leave out rows with a null, as Spark's own do.

    rows       v      7    null   5    null          in a binary value or a chunk: 7 0 5 0, and whether each is there
    partials   nothing, or the partial of the aggregate over the rows that have a value

Over no values the answer is null. Aggregates that count or list have their answer over no rows, such as 0 or [].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.monoids.base import Array, FieldType, Schema, Values, object_array

__all__ = ["IgnoresNulls"]


class IgnoresNulls(Monoid):
    """An aggregate over the rows that have all of its values; None is the partial of no rows.

    Args:
        inner: the aggregate.
        marks: how many of its columns may have nulls. The values have so many more columns: whether each is there.
    """

    def __init__(self, inner: Monoid, marks: int) -> None:
        kinds: list[FieldType] = ["bool"] * marks
        self.types = (*inner.types, *kinds)
        self.dtypes = (np.dtype(np.bool_), *inner.dtypes)
        self.commutative, self.exact, self.answer = inner.commutative, inner.exact, inner.answer
        self._inner, self._own = inner, len(inner.types)
        self._parameters = repr((type(inner), sorted(vars(inner).items(), key=lambda item: item[0])))
        nothing = None if inner.function == "sum" else inner.lower(inner.identity)
        self._nothing = nothing

    @property
    def schema(self) -> Schema | None:
        return self._inner.schema

    def lift(self, value: Any) -> Partial:
        own = value[: self._own]
        return self._inner.lift(own if self._own > 1 else own[0]) if all(value[self._own :]) else None

    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older is None or newer is None:
            return newer if older is None else older
        return self._inner.combine(older, newer)

    def lower(self, partial: Partial) -> Any:
        return self._nothing if partial is None else self._inner.lower(partial)

    # ---------------------------------------------------------------- columns

    def reduce(self, values: Values) -> Partial:
        rows = self._rows(values)
        return self._inner.reduce([column[rows] for column in values[: self._own]]) if len(rows) else None

    def reduce_segments(self, values: Values, starts: Array) -> Partials:
        rows = self._rows(values)
        owners = starts.searchsorted(rows, "right") - 1
        filled, first = np.unique(owners, return_index=True)
        out = self._empty(len(starts))
        if len(rows):
            self._put(out, filled, self._inner.reduce_segments([c[rows] for c in values[: self._own]], first))
        return out

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        out = tuple([np.where(older[0], a, b) for a, b in zip(older, newer, strict=True)])
        both = np.flatnonzero(older[0] & newer[0])
        if len(both):
            parts = [tuple([part[both] for part in side[1:]]) for side in (older, newer)]
            self._put(out, both, self._inner.combine_columns(*parts))
        return out

    def lower_columns(self, partials: Partials) -> Array:
        filled = np.flatnonzero(partials[0])
        own = self._inner.lower_columns(tuple([part[filled] for part in partials[1:]]))
        if len(filled) == len(partials[0]):
            return own
        out = object_array([self._nothing] * len(partials[0]))
        out[filled] = object_array(own.tolist())
        return out

    def pack(self, partials: Sequence[Partial]) -> Partials:
        out = self._empty(len(partials))
        filled = [i for i, partial in enumerate(partials) if partial is not None]
        self._put(out, np.array(filled, np.int64), self._inner.pack([partials[i] for i in filled]))
        return out

    def unpack(self, partials: Partials) -> list[Partial]:
        filled = np.flatnonzero(partials[0])
        out: list[Partial] = [None] * len(partials[0])
        inner = self._inner.unpack(tuple([part[filled] for part in partials[1:]]))
        for i, partial in zip(filled.tolist(), inner, strict=True):
            out[i] = partial
        return out

    def encode(self, partial: Partial) -> bytes:
        return b"" if partial is None else b"\1" + self._inner.encode(partial)

    def decode(self, data: bytes) -> Partial:
        return self._inner.decode(data[1:]) if data else None

    def _rows(self, values: Values) -> Array:
        there = values[self._own]
        for mark in values[self._own + 1 :]:
            there = there & mark
        return np.flatnonzero(there)

    def _empty(self, n: int) -> Partials:
        return tuple([np.zeros(n, dtype) for dtype in self.dtypes])

    @staticmethod
    def _put(out: Partials, rows: Array, partials: Partials) -> None:
        out[0][rows] = True
        for column, part in zip(out[1:], partials, strict=True):
            column[rows] = part
