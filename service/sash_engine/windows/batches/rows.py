"""The rows of a write, sorted by key, then time, then arrival."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.monoids.base import Array
from sash_engine.steps import ROWS, Steps, spans_of
from sash_engine.windows.batches.batch import Coded

_NAMES = 16_384
"""Names of a step: 2 ms."""

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    """The entries of a write: by key, then time, then arrival.

    Args:
        names: k keys; none where all of them are there.
        numbers: int64 (k,), their numbers; -1 for a key that is not there yet.
        lengths: int64 (k,), how many entries each is sent.
        columns: times, then one array per field.
        replaced: for keys that are there, entries that take the place of one of the same time: number, rows.
    """

    names: list[str]
    numbers: Numbers
    lengths: Numbers
    columns: list[Array]
    entries: Numbers | None = None
    """int64 (n,), how many entries each row stands for; None: one each."""
    late: int = 0
    duplicates: int = 0
    replaced: list[tuple[int, list[Array]]] = field(default_factory=list)

    def spans(self) -> list[tuple[int, int, int]]:
        """For each key its number and its rows: the first, and the one behind the last."""
        ends = np.cumsum(self.lengths)
        return list(zip(self.numbers.tolist(), (ends - self.lengths).tolist(), ends.tolist(), strict=True))

    def count(self, some: npt.NDArray[np.bool_]) -> int:
        """How many entries the rows stand for where `some` is true."""
        return int(np.count_nonzero(some) if self.entries is None else self.entries[some].sum())

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Drop the rows where `kept` is false, and keys that have none left."""
        left = np.add.reduceat(kept, np.cumsum(self.lengths) - self.lengths, dtype=np.int64)
        some = left > 0
        self.names = list(compress(self.names, some.tolist()))
        self.numbers, self.lengths = self.numbers[some], left[some]
        self.columns = [column[kept] for column in self.columns]
        self.entries = None if self.entries is None else self.entries[kept]


def grouped(coded: Coded, times: Array) -> Steps[tuple[list[str], Numbers, npt.NDArray[np.intp]]]:
    """Sort rows by key, then time, then arrival, in steps.

    Returns:
        the keys, how many rows each has, and the order of the rows.

    Raises:
        InvalidArgument: two codes stand for one key.
    """
    present, lengths, order = yield from ordered(coded.codes, len(coded.dictionary), times)
    names, seen = list[str](), set[str]()
    for a, b in spans_of(len(present), _NAMES):
        some = [coded.dictionary[code] for code in present[a:b].tolist()]
        names += some
        seen.update(some)
        if len(times) > ROWS:
            yield
    if len(seen) != len(names):
        raise InvalidArgument("the dictionary of column 'key' repeats a key", field="key")
    return names, lengths, order


def ordered(codes: Array, size: int, times: Array) -> Steps[tuple[Array, Numbers, npt.NDArray[np.intp]]]:
    """Sort rows by code, then time, then arrival, in steps; codes are below `size`.

    Returns:
        the codes that there are, how many rows each has, and the order of the rows.
    """
    many = len(times) > ROWS
    disordered = np.count_nonzero(times[1:] < times[:-1])
    order = np.argsort(times, kind="stable") if disordered else None
    if many:
        yield
    # One byte or two are sorted by counting, seven times faster than eight are compared. So are four, in two passes.
    codes = codes.astype(np.min_scalar_type(max(size - 1, 0)))
    wide = codes.itemsize > 2
    for digits in (codes.astype(np.uint16), (codes >> 16).astype(np.uint16)) if wide else (codes,):
        by_digit = np.argsort(digits if order is None else digits[order], kind="stable")
        order = by_digit if order is None else order[by_digit]
        if many:
            yield
    assert order is not None
    of = codes[order]
    starts = starts_of_runs(of)
    return of[starts], lengths_of_segments(starts, len(order)), order
