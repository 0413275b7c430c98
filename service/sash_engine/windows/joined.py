"""Joins the parts of a write as they come: one part at a time is in memory beside the whole.

    part 1, part 2, …  ──▶  times   [ 1 1 1 2 2 … ]      columns of their final length
                            values  [ 1 1 1 2 2 … ]
                            codes   [ 1 1 1 2 2 … ]      into one dictionary

Memory: the rows once, and a part. Reading all parts first takes the rows twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from sash_engine.errors import FailedPrecondition
from sash_engine.monoids.base import Array
from sash_engine.windows.batch import AnyBatch, Batch, Coded, PartialBatch

__all__ = ["joined"]


def joined(parts: Iterable[AnyBatch], rows: int) -> AnyBatch | None:
    """Join bulks of one window, in order; None if there are none.

    Args:
        parts: the bulks; each is let go before the next one is taken.
        rows: at least as many as they have together.

    Raises:
        FailedPrecondition: some carry values and some partials.
    """
    empty, whole = None, None
    for part in parts:
        if not len(part.times):
            empty = part
        elif len(part.times) == rows:
            return part
        else:
            whole = whole or _Whole(part, rows)
            whole.append(part)
    return empty if whole is None else whole.batch()


class _Whole:
    """The columns of all parts.

    Args:
        first: the first part, which has the columns that all have.
        rows: at least as many as all parts have.
    """

    def __init__(self, first: AnyBatch, rows: int) -> None:
        self._of_partials, self._keyed, self._rows = first.of_partials, first.keys is not None, 0
        self._names = tuple(first.columns if isinstance(first, Batch) else first.partials)
        self._columns: list[_Texts | Array] = [
            _Texts(rows) if isinstance(column, Coded) else np.empty(rows, column.dtype)
            for column in self._columns_of(first)
        ]

    def append(self, part: AnyBatch) -> None:
        """Copy the rows of a part.

        Raises:
            FailedPrecondition: it carries partials, and the first one values, or the other way round.
        """
        if part.of_partials != self._of_partials:
            raise FailedPrecondition("some parts carry values, some partials: one batch carries either", field="stages")
        start, self._rows = self._rows, self._rows + len(part.times)
        for whole, column in zip(self._columns, self._columns_of(part), strict=True):
            if isinstance(whole, _Texts):
                whole.append(column, start)
            else:
                np.copyto(whole[start : self._rows], column, casting="equiv")

    def batch(self) -> AnyBatch:
        """Return all rows."""
        found: list[Any] = [
            whole.column(self._rows) if isinstance(whole, _Texts) else whole[: self._rows] for whole in self._columns
        ]
        times, keys = found.pop(0), found.pop(0) if self._keyed else None
        if not self._of_partials:
            return Batch(times, dict(zip(self._names, found, strict=True)), keys)
        entries, columns = found.pop(0), iter(found)
        partials = {name: tuple(islice(columns, width)) for name, width in zip(self._names, self._widths, strict=True)}
        return PartialBatch(times, partials, entries, keys)

    def _columns_of(self, part: AnyBatch) -> Sequence[Any]:
        """The columns of a part, in the same order for all."""
        keys = [part.keys] if self._keyed else []
        if isinstance(part, Batch):
            return [part.times, *keys, *(part.columns[name] for name in self._names)]
        partials = [part.partials[name] for name in self._names]
        self._widths = [len(each) for each in partials]
        return [part.times, *keys, part.entries, *(column for each in partials for column in each)]


class _Texts:
    """A column of strings: codes into one dictionary."""

    def __init__(self, rows: int) -> None:
        self._index: dict[str, int] = {}
        self._codes = np.empty(rows, np.uint32)

    def append(self, column: Coded, start: int) -> None:
        """Copy the strings of a part to the rows from `start` on."""
        index = self._index
        new = np.array([index.setdefault(text, len(index)) for text in column.dictionary] or [0], np.uint32)
        part = self._codes[start : start + len(column.codes)]
        same = bool((new == np.arange(len(new))).all())
        part[:] = column.codes if same else new[column.codes]

    def column(self, rows: int) -> Coded:
        """Return all strings."""
        return Coded(list(self._index), self._codes[:rows])
