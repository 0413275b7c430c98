"""The loops over the rows of a column that every write and every question runs, as plain functions.

    append_row, copy_rows       write rows into columns that have room
    merge                       sorts rows into columns that are sorted
    is_sorted                   whether times never go back
    first_from, first_after     find a time among sorted times
    find_named                  find rows by time and name, in many blocks at once
    find_each                   looks up many names in a dictionary
    total, powers               fold rows of float64
    join_powers                 combines two results of `powers`
    largest, smallest           find the extreme of some rows
    totals, largests, smallests the same of many ranges of rows
    rows_at                     finds times in many ranges of rows, of many columns
    known_rows                  finds the rows of ranges that are there at a number
    gather                      puts ranges of rows of many columns behind one another
    coupons                     what a sketch of distinct values notes of each
    last_before, count_new      count distinct values of many ranges of rows
    slide_registers             what sketches of them have, of ranges that mostly overlap

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
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ABSENT",
    "UNCLEAR",
    "RANGED",
    "append_row",
    "copy_rows",
    "count_new",
    "coupons",
    "find_each",
    "find_named",
    "first_after",
    "first_from",
    "gather",
    "is_sorted",
    "join_powers",
    "known_rows",
    "largest",
    "largests",
    "last_before",
    "merge",
    "powers",
    "quiet",
    "rows_at",
    "slide_registers",
    "smallest",
    "smallests",
    "total",
    "totals",
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


def merge(columns: Sequence[Array], skip: int, rows: int, newcomers: Sequence[Array], spare: int = 0) -> list[Array]:
    """Merge sorted newcomers into rows skip..rows of sorted columns; rows before `skip` stay in front.

    Returns:
        new arrays of `rows + k + spare` rows, the last `spare` of them unused.
    """
    k = len(newcomers[0])
    at = columns[0][skip:rows].searchsorted(newcomers[0], "right")
    at += np.arange(skip, skip + k)
    others = np.ones(rows + k, np.bool_)
    others[at] = False
    out = []
    for column, newcomer in zip(columns, newcomers, strict=True):
        merged = np.empty(rows + k + spare, column.dtype)
        merged[at] = newcomer
        merged[: rows + k][others] = column[:rows]
        out.append(merged)
    return out


def is_sorted(times: Array) -> bool:
    """Return whether no time of int64 (n,) is smaller than the one before it."""
    return not np.count_nonzero(times[1:] < times[:-1])


def first_from(times: Array, start: int, stop: int, time: int) -> int:
    """Return the first of the sorted rows start..stop of int64 (n,) with a time >= `time`; `stop` if there is none."""
    return start + int(times[start:stop].searchsorted(time, "left"))


def first_after(times: Array, start: int, stop: int, time: int) -> int:
    """Return the first of the sorted rows start..stop of int64 (n,) with a time > `time`; `stop` if there is none."""
    return start + int(times[start:stop].searchsorted(time, "right"))


def find_each(numbers: dict[str, int], names: Sequence[str]) -> Array:
    """Return the number of each of k names, int64 (k,); `ABSENT` for a name that has none."""
    return np.fromiter(map(numbers.get, names, repeat(ABSENT)), np.int64, len(names))


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


def rows_at(columns: Sequence[Array], of: Array, first: Array, stop: Array, wanted: Array) -> Array:
    """Find times in k ranges of rows.

    Args:
        columns: times, int64, sorted within each range.
        of: int64 (k,), which of the columns each range is in.
        first, stop: int64 (k,), its rows: first <= row < stop.
        wanted: int64 (k,), the time to look for.

    Returns:
        int64 (k,): the first row of the range whose time is >= the wanted one; else `stop`.
    """
    before = np.cumsum([0, *map(len, columns)])[of]
    times = columns[0] if len(columns) == 1 else np.concatenate(columns) if columns else wanted
    low, high = first + before, stop + before
    for _ in range(int((stop - first).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        older = (low < high) & (times[np.minimum(middle, len(times) - 1)] < wanted)
        low = np.where(older, middle + 1, low)
        high = np.where(older, high, middle)
    found: Array = low - before
    return found


def gather(columns: Sequence[Array], of: Array, starts: Array, stops: Array) -> Array:
    """Copies of ranges of rows, one behind the other.

    Args:
        columns: one at least, all of one dtype.
        of: int64 (k,), which of the columns each range is in.
        starts, stops: int64 (k,), its rows.
    """
    each = zip(of.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return np.concatenate([columns[0][:0], *[columns[i][start:stop] for i, start, stop in each]])


def known_rows(since: Array, until: Array, starts: Array, stops: Array, known: Array) -> tuple[Array, Array]:
    """The rows of k ranges that are there at a number: since <= number < until.

    Args:
        since, until: int64 (n,).
        starts, stops: int64 (k,): start <= row < stop.
        known: int64 (k,).

    Returns:
        the rows, int64, one range's behind the other's, and how many each range has, int64 (k,).
    """
    lengths = stops - starts
    ends = np.cumsum(lengths)
    of = np.repeat(np.arange(len(starts)), lengths)
    rows = np.arange(len(of)) + (starts - ends + lengths)[of]
    there = (since[rows] <= known[of]) & (until[rows] > known[of])
    return rows[there], np.bincount(of[there], minlength=len(starts))


def totals(column: Array, starts: Array, stops: Array) -> Array:
    """The `total` of each of k ranges of rows of float64 (n,): float64 (k,). Starts and stops are int64 (k,)."""
    return np.array([total(column, a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], np.float64)


def largests(column: Array, starts: Array, stops: Array) -> Array:
    """The `largest` of each of k ranges of rows of float64 or int64, none of which is empty: an array (k,)."""
    return np.array([largest(column, a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], column.dtype)


def smallests(column: Array, starts: Array, stops: Array) -> Array:
    """The `smallest` of each of k ranges of rows of float64 or int64, none of which is empty: an array (k,)."""
    bounds = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([smallest(column, a, b) for a, b in bounds], column.dtype)


def coupons(bits: Array) -> Array:
    """What an HLL sketch of DataSketches notes of values of eight bytes, uint64 (n,): int64 (n,).

    They are 26 bits of a hash, and above these one more than the zeros at the top of another. Source:
    `HllUtil::coupon` and `MurmurHash3_x64_128` of Apache DataSketches.
    """
    seed = np.uint64(9001)
    h1 = bits * np.uint64(0x87C37B91114253D5)
    h1 = ((h1 << np.uint64(31)) | (h1 >> np.uint64(33))) * np.uint64(0x4CF5AD432745937F)
    h1 = (h1 ^ seed) ^ np.uint64(8)
    h2 = h1 + (seed ^ np.uint64(8))  # and the same is added to the first half
    h1, h2 = _mixed(h2), _mixed(h2 + (seed ^ np.uint64(8)))
    h1 = h1 + h2
    h2 = h2 + h1
    high = np.frexp((h2 >> np.uint64(11)).astype(np.float64))[1] + 11
    low = np.frexp((h2 & np.uint64(0x7FF)).astype(np.float64))[1]
    zeros = np.minimum(64 - np.where(high > 11, high, low), 62)
    found: Array = (h1 & np.uint64(0x3FFFFFF)).astype(np.int64) | (zeros.astype(np.int64) + 1) << 26
    return found


def _mixed(bits: Array) -> Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
    mixed: Array = bits ^ (bits >> np.uint64(33))
    return mixed


def last_before(codes: Array) -> Array:
    """For each row of int64 (n,) the last row before it with the same code, -1 where there is none: int64 (n,)."""
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
    before = np.full(len(codes), -1)
    before[order[again + 1]] = order[again]
    return before


def count_new(before: Array, starts: Array, stops: Array) -> Array:
    """How many rows of each range have no row of their code before them in it: int64 (k,).

    Args:
        before: what `last_before` answers.
        starts, stops: int64 (k,), k ranges of rows, none of which is empty.
    """
    lengths = stops - starts
    ends = np.cumsum(lengths)
    first = np.repeat(starts, lengths)
    rows = first + np.arange(len(first)) - np.repeat(ends - lengths, lengths)
    new: Array = np.add.reduceat((before[rows] < first).view(np.int8), ends - lengths, dtype=np.int64)
    return new


def slide_registers(
    coupons: Array, starts: Array, stops: Array, lg_k: int, held: Any, most: int
) -> tuple[Array, Array, Array, Array, Any]:
    """What an HLL sketch has of each of k ranges of rows, from what `coupons` answers of these; of the first j of them.

    From one range to the next it takes in and out the rows by which they differ.

    Args:
        starts, stops: int64 (k,), k ranges of rows, none of which is empty.
        lg_k: the logarithm of how many registers the sketch has.
        held: None; or the last value of the answer about the ranges before these, of the same rows, which is used up.
        most: how many rows, >= 1, may come or leave, so that j < k; an answer counts as 32 of them.

    Returns:
        how many distinct coupons there are, int64 (j,); how many registers are 0, int64 (j,); the sums of 2^-r over
        the registers r < 32, and over the others, float64 (j,); and what to go on from.
    """
    if held is None:
        having = np.zeros(64, np.int64)
        having[0] = 1 << lg_k
        held = 0, 0, Counter[int](), defaultdict[int, Counter[int]](Counter), having
    a, b, rows, registers, having = held
    inverse = 0.5 ** np.arange(64)
    found: tuple[list[Any], ...] = [], [], [], []

    def change(row: int, by: int) -> None:
        coupon = coupons.item(row)
        rows[coupon] += by
        if rows[coupon] == (by > 0):
            values, value = registers[coupon & (1 << lg_k) - 1], coupon >> 26
            having[max(+values, default=0)] -= 1
            values[value] += by
            having[max(+values, default=0)] += 1

    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        while most > 0 and (a, b) != (start, stop):
            if a == b:
                a = b = start
            if a < start:
                change(a, -1)
                a += 1
            elif b > stop:
                b -= 1
                change(b, -1)
            elif a > start:
                a -= 1
                change(a, 1)
            else:
                change(b, 1)
                b += 1
            most -= 1
        if most <= 0 and (a, b) != (start, stop):
            break
        sums = (having * inverse)[:32].sum(), (having * inverse)[32:].sum()
        for of_kind, value in zip(found, (len(+rows), having.item(0), *sums), strict=True):
            of_kind.append(value)
        most -= 32
        if most <= 0:
            break
    counts, zeros, low, high = map(np.array, found)
    held = a, b, rows, registers, having
    return counts.astype(np.int64), zeros.astype(np.int64), low.astype(np.float64), high.astype(np.float64), held


with suppress(ImportError):  # there only in a compiled engine; it takes the functions above for what it does not do
    from sash_engine._kernels import (  # type: ignore[import-not-found,no-redef,unused-ignore]
        append_row,
        copy_rows,
        count_new,
        coupons,
        find_each,
        find_named,
        first_after,
        first_from,
        gather,
        is_sorted,
        join_powers,
        known_rows,
        largest,
        largests,
        last_before,
        merge,
        powers,
        rows_at,
        slide_registers,
        smallest,
        smallests,
        total,
        totals,
    )

RANGED: dict[Any, Callable[[Array, Array, Array], Array]] = {total: totals, largest: largests, smallest: smallests}
"""By what folds rows of float64 or int64, what does so for many ranges of them."""
