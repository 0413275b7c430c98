"""The loops over the rows of a column that every write and every question runs, as plain functions.

    append_row, copy_rows       write rows into columns that have room
    is_sorted                   whether times never go back
    first_from, first_after     find a time among sorted times
    find_named                  find rows by time and name, in many blocks at once
    total, powers               fold rows of float64
    join_powers                 combines two results of `powers`
    largest, smallest           find the extreme of some rows

A NumPy call costs half a microsecond and more before it touches a row, and these are called for a few rows at a time.
A compiled engine therefore has them in C as well: `kernels.c`, built as `sash_engine._kernels`. The functions in C take
one-dimensional arrays of float64 and int64 and hand everything else to the functions here. Both give the same answers,
bit by bit: C calls the same dot product of the same BLAS.

Measured on one core, 64 rows, here and in C: `is_sorted` 0.94 and 0.04 us, `total` 0.63 and 0.04, `powers` 2.1 and
0.10, `first_from` 0.61 and 0.04, `largest` 0.43 and 0.04; `join_powers` 0.19 and 0.05.

Overflow gives inf and inf - inf gives NaN, as in IEEE 754, without a warning. Turning off NumPy's warnings (`quiet`)
costs 0.7 us, half the time of summing a block, so the hot functions use `np.vdot`, which never warns. A sum by dot
product with ones is as accurate as NumPy's pairwise sum up to some thousand rows. 1,024 float64: `np.add.reduce` 1.6 us
(2.3 us quietly), `np.vdot` with ones 1.0 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ABSENT",
    "UNCLEAR",
    "append_row",
    "copy_rows",
    "find_named",
    "first_after",
    "first_from",
    "is_sorted",
    "join_powers",
    "largest",
    "powers",
    "quiet",
    "smallest",
    "total",
]

Array: TypeAlias = npt.NDArray[Any]
ABSENT, UNCLEAR = -1, -2
"""In the place of a row: see `find_named`."""
Powers: TypeAlias = tuple[Any, Any, Any]
"""Rows, mean, and the sum of the squares of the deviations from the mean."""

quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Decorates functions that may return inf and NaN: NumPy does not warn in them."""

_SHORT = 4096
"""The BLAS may split longer dot products over threads (OpenBLAS does from 10,000 rows on)."""
_ONES = np.ones(_SHORT)
_vdot = getattr(np.vdot, "_implementation", np.vdot)
"""Without the look for arrays of other libraries, which is a third of the time of a short sum."""
_CLOSE = 1e-7
"""If the spread is a smaller share of the mean, the rounding of the mean shows in it, and a third pass removes it."""
_HUGE = 1e290
"""Values below this cannot overflow when a mean is subtracted."""


def append_row(columns: list[Array], row: int, time: int, values: Sequence[Any]) -> None:
    """Write one row: the time into the first column, each value into one of the others."""
    columns[0][row] = time
    for i, value in enumerate(values, 1):
        columns[i][row] = value


def copy_rows(into: list[Array], at: int, columns: Sequence[Array], start: int, stop: int) -> None:
    """Copy rows start..stop of `columns` into the rows from `at` on, which there are."""
    behind = at + stop - start
    for i, column in enumerate(columns):
        into[i][at:behind] = column[start:stop]


def is_sorted(times: Array) -> bool:
    """Return whether no time of int64 (n,) is smaller than the one before it."""
    return not np.count_nonzero(times[1:] < times[:-1])


def first_from(times: Array, start: int, stop: int, time: int) -> int:
    """Return the first of the sorted rows start..stop of int64 (n,) with a time >= `time`; `stop` if there is none."""
    return start + int(times[start:stop].searchsorted(time, "left"))


def first_after(times: Array, start: int, stop: int, time: int) -> int:
    """Return the first of the sorted rows start..stop of int64 (n,) with a time > `time`; `stop` if there is none."""
    return start + int(times[start:stop].searchsorted(time, "right"))


def find_named(
    times: Sequence[Array],
    names: Sequence[Array],
    stops: Sequence[int],
    gone: Sequence[Sequence[int] | None],
    skip: int,
    blocks: Array,
    wanted: Array,
    values: Sequence[Any],
) -> Array:
    """Find rows of blocks by their time and another value.

    Args:
        times: of each block, the times of its rows, int64, sorted.
        names: of each block, the column with the other value: int64, or objects.
        stops: of each block, how many rows it has.
        gone: of each block the rows that are not there any more; None: there are none.
        skip: so many rows of the first block are not looked at.
        blocks: int64 (m,), the number of the block in which to look.
        wanted: int64 (m,), the times to look for, sorted.
        values: the m values to look for.

    Returns:
        int64 (m,): the row, `ABSENT` where there is none, and `UNCLEAR` where the time is wanted more than once, or the
        row is not the only one of its time in its block, or is the last, so that the next block may have that time.
    """
    asked, found = wanted.tolist(), list[int]()
    neighbours = zip([None, *asked[:-1]], [*asked[1:], None], strict=True)
    for time, beside, block, value in zip(asked, neighbours, blocks.tolist(), values, strict=True):
        if time in beside:
            found.append(UNCLEAR)
            continue
        held, stop = times[block], stops[block]
        row = bisect_left(held.data, time, 0 if block else skip, stop)
        if row == stop or held.item(row) != time:
            found.append(ABSENT)
        elif row + 1 == stop or held.item(row + 1) == time:
            found.append(UNCLEAR)
        else:
            lost = gone[block]
            there = names[block].item(row) == value and (lost is None or row not in lost)
            found.append(row if there else ABSENT)
    return np.array(found, np.int64)


def total(column: Array, start: int, stop: int) -> float:
    """Return the sum of rows start..stop of float64 (n,)."""
    rows = column[start:stop]
    return float(_vdot(rows, _ONES[: len(rows)])) if len(rows) <= _SHORT else _long_total(rows)


@quiet
def _long_total(column: Array) -> float:
    return float(np.add.reduce(column))


def largest(column: Array, start: int, stop: int) -> Any:
    """Return the largest of rows start..stop as a Python scalar: the first NaN, else the first of equal ones."""
    rows = column[start:stop]
    return rows.item(rows.argmax()) if len(rows) else None


def smallest(column: Array, start: int, stop: int) -> Any:
    """Return the smallest of rows start..stop as a Python scalar: the first NaN, else the first of equal ones."""
    rows = column[start:stop]
    return rows.item(rows.argmin()) if len(rows) else None


def powers(column: Array, start: int, stop: int, order: int) -> tuple[int | float, ...] | None:
    """Return n, the mean, and the sums of the 2nd to `order`-th powers of the deviations, of rows of float64.

    The mean is found first, and the deviations from it then. None for no rows.
    """
    rows = column[start:stop]
    n = len(rows)
    if not n:
        return None
    mean = total(rows, 0, n) / n
    # NumPy can only warn about products of columns, and about subtracting from nearly the largest float.
    if order == 2 and -_HUGE < mean < _HUGE:
        return _powers(rows, n, mean, order)
    return _quiet_powers(rows, n, mean, order)


def join_powers(older: Powers | None, newer: Powers | None) -> Powers | None:
    """Return the `powers` of order 2 of two runs of rows together; None stands for no rows."""
    if older is None:
        return newer
    if newer is None:
        return older
    n1, mean1, m2_1 = older
    n2, mean2, m2_2 = newer
    n = n1 + n2
    share = n2 / n
    apart = mean2 - mean1
    return n, mean1 + apart * share, m2_1 + m2_2 + apart * apart * (n1 * share)


def _powers(column: Array, n: int, mean: float, order: int) -> tuple[int | float, ...]:
    deviations = column - mean
    m2 = _dot(deviations, deviations)
    close = mean * _CLOSE
    if m2 <= n * close * close:
        rest = total(deviations, 0, n) / n
        mean += rest
        deviations -= rest  # not those from the new mean, which is rounded to a float64 again
        m2 = _dot(deviations, deviations)
    if order == 2:
        return n, mean, m2
    squares = deviations * deviations
    if order == 3:
        return n, mean, m2, _dot(squares, deviations)
    return n, mean, m2, _dot(squares, deviations), _dot(squares, squares)


_quiet_powers = quiet(_powers)


def _dot(a: Array, b: Array) -> float:
    return float(_vdot(a, b)) if len(a) <= _SHORT else _long_total(_product(a, b))


@quiet
def _product(a: Array, b: Array) -> Array:
    return a * b


with suppress(ImportError):  # there only in a compiled engine; it takes the functions above for what it does not do
    from sash_engine._kernels import (  # type: ignore[import-not-found,no-redef,unused-ignore]
        append_row,
        copy_rows,
        find_named,
        first_after,
        first_from,
        is_sorted,
        join_powers,
        largest,
        powers,
        smallest,
        total,
    )
