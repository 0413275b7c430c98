"""The stages of a batch put together: as one bulk, or as slices of time.

    stage 1, stage 2, …  ──▶  times   [ 1 1 1 2 2 … ]      columns of their final length
                              values  [ 1 1 1 2 2 … ]
                              codes   [ 1 1 1 2 2 … ]      into one dictionary

    stage 1    [ 1 1 2 | 5 6 | 9 ]               slices    [ 1 1 2 1 3 ]   [ 5 6 5 ]   [ 9 8 9 ]
    stage 2    [ 1 3   | 5   | 8 9 ]

All rows of one time are in one slice, in the order of the stages. A stage is let go with the slice that has its last
rows. So stages that follow each other in time are in memory once, and a slice besides.

Memory of one bulk: the rows once, and a stage. Reading all stages first takes the rows twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np

from sash_engine.errors import FailedPrecondition
from sash_engine.monoids.base import Array
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch

_STRIDE = 1_024
"""One time of so many tells where to cut."""


def joined(stages: Iterable[AnyBatch], rows: int) -> AnyBatch | None:
    """Join bulks of one window, in order; None if there are none.

    Args:
        stages: the bulks; each is let go before the next one is taken.
        rows: at least as many as they have together.

    Raises:
        FailedPrecondition: some carry values and some partials.
    """
    empty, whole = None, None
    for stage in stages:
        if not len(stage.times):
            empty = stage
        elif len(stage.times) == rows:
            return stage
        else:
            whole = whole or _Whole(stage, rows)
            whole.append(stage)
    return empty if whole is None else whole.batch()


class _Whole:
    """The columns of all stages.

    Args:
        first: the first stage, which has the columns that all have.
        rows: at least as many as all stages have.
    """

    def __init__(self, first: AnyBatch, rows: int) -> None:
        self._of_partials, self._keyed, self._rows = first.of_partials, first.keys is not None, 0
        self._names = tuple(first.columns if isinstance(first, Batch) else first.partials)
        self._columns: list[_Texts | Array] = [
            _Texts(rows) if isinstance(column, Coded) else np.empty(rows, column.dtype)
            for column in self._columns_of(first)
        ]

    def append(self, stage: AnyBatch) -> None:
        """Copy the rows of a stage.

        Raises:
            FailedPrecondition: it carries partials, and the first one values, or the other way round.
        """
        if stage.of_partials != self._of_partials:
            raise FailedPrecondition("some parts carry values, some partials: one batch carries either", field="stages")
        start, self._rows = self._rows, self._rows + len(stage.times)
        for whole, column in zip(self._columns, self._columns_of(stage), strict=True):
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

    def _columns_of(self, stage: AnyBatch) -> Sequence[Any]:
        """The columns of a stage, in the same order for all."""
        keys = [stage.keys] if self._keyed else []
        if isinstance(stage, Batch):
            return [stage.times, *keys, *(stage.columns[name] for name in self._names)]
        partials = [stage.partials[name] for name in self._names]
        self._widths = [len(each) for each in partials]
        return [stage.times, *keys, stage.entries, *(column for each in partials for column in each)]


class _Texts:
    """A column of strings: codes into one dictionary."""

    def __init__(self, rows: int) -> None:
        self._index: dict[str, int] = {}
        self._codes = np.empty(rows, np.uint32)

    def append(self, column: Coded, start: int) -> None:
        """Copy the strings of a stage to the rows from `start` on."""
        index = self._index
        new = np.array([index.setdefault(text, len(index)) for text in column.dictionary] or [0], np.uint32)
        stage = self._codes[start : start + len(column.codes)]
        same = bool((new == np.arange(len(new))).all())
        stage[:] = column.codes if same else new[column.codes]

    def column(self, rows: int) -> Coded:
        """Return all strings."""
        return Coded(list(self._index), self._codes[:rows])


def time_slices(stages: list[list[Array]], rows: int, copied: bool = True) -> Iterator[list[Array]]:
    """Yield the columns of each slice; a slice is sorted where one stage has it.

    Args:
        stages: the columns of each stage, its times first, which are sorted; emptied.
        rows: about so many rows a slice has; more where one time has more.
        copied: make one slice of several stages that follow each other; else each of them is a slice, without a copy.
    """
    marks = np.sort(np.concatenate([stage[0][::_STRIDE] for stage in stages]))
    every = max(rows // _STRIDE, 1)
    cuts = np.unique(marks[every::every])
    bounds = [[0, *stage[0].searchsorted(cuts).tolist(), len(stage[0])] for stage in stages]
    for i in range(len(cuts) + 1):
        found = []
        for at, bound in enumerate(bounds):
            if bound[i] < bound[i + 1]:
                found.append([column[bound[i] : bound[i + 1]] for column in stages[at]])
                if bound[i + 1] == bound[-1]:
                    stages[at] = []
        if not copied and all(before[0][-1] <= after[0][0] for before, after in pairwise(found)):
            while found:
                yield found.pop(0)
        if found:
            columns = found[0] if len(found) == 1 else [np.concatenate(each) for each in zip(*found, strict=True)]
            del found
            yield columns
            del columns
    stages.clear()
