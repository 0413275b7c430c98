"""Suffix folds of rows whose partials are too large to keep all of them.

    rows      0  1  …  31 | 32  33  …  63 | 64  65
    kept      S0            S32             S64          S64 = fold of rows 64, 65;  S32 = fold of rows 32 … 65
    asked     row 40: the fold of rows 40 … 63, then ∘ S64

A block has 1,024 rows, and a sketch takes some KiB. Few of the suffix folds are ever asked for.

To build: one pass over the rows.  To ask for one: a fold of up to 32 rows and one combine.  Space: every 32nd fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from sash_engine.monoids.columns import Partial, Values

STRIDE = 32
"""Combining two sketches costs as much as updating one with 30 to 100 values."""


class Folds(Protocol):
    """The part of a `Monoid` that suffix folds use."""

    def reduce(self, values: Values) -> Partial:
        """Fold rows."""

    def combine(self, older: Partial, newer: Partial) -> Partial:
        """Fold two partials."""


class Suffixes(Sequence[Partial]):
    """The folds of rows i, i + 1, …, n - 1 for each i. Every 32nd is kept; the others are made when they are asked for.

    Args:
        monoid: folds rows and partials.
        values: n >= 1 rows; they are copied.
    """

    def __init__(self, monoid: Folds, values: Values) -> None:
        self._monoid = monoid
        self._values = [column.copy() for column in values]
        self._kept: list[Partial] = []  # the newest first
        for row in reversed(range(0, len(self), STRIDE)):
            self._kept.append(self._from(row))
        self._kept.reverse()

    def __len__(self) -> int:
        return len(self._values[0])

    @overload
    def __getitem__(self, row: int) -> Partial: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Partial]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        return self._from(row) if row % STRIDE else self._kept[row // STRIDE]

    def _from(self, row: int) -> Partial:
        """Fold the rows up to the next kept suffix, and combine the result with that suffix."""
        stop = row - row % STRIDE + STRIDE
        own = self._monoid.reduce([column[row:stop] for column in self._values])
        if stop >= len(self):
            return own
        # While the suffixes are being built, the next kept one is the one that was appended last.
        newer = self._kept[stop // STRIDE] if self._complete() else self._kept[-1]
        return self._monoid.combine(own, newer)

    def _complete(self) -> bool:
        return len(self._kept) * STRIDE >= len(self)
