"""MurmurHash3 x64 128, as Apache DataSketches hashes values: of one value, or of a column at once.

    int64, bool    8 bytes, little-endian        float64    its 8 bytes; all NaN are one value, -0.0 is 0.0
    string         UTF-8                         ""         the int64 -1, because DataSketches leaves it out

Source: Appleby, MurmurHash3, public domain; the form of values after DataSketches' C++ and Java libraries.
"""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SEED = 9001
"""The default seed of DataSketches."""

_ALL = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_EMPTY_STRING = struct.pack("<q", -1)


def hash_of(value: Any, seed: int = SEED) -> int:
    """Return the first 64 bits of the hash of one value.

    >>> hex(hash_of(7)), hex(hash_of("UA"))
    ('0xf9870733d517e9c1', '0xb1c7ac9ba958e585')
    """
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass") or _EMPTY_STRING
    elif isinstance(value, float):
        data = struct.pack("<d", math.nan if value != value else value + 0.0)
    else:
        data = struct.pack("<q", value)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return int(_hash(words, len(data), seed))


def hashes_of(column: _Array, seed: int | _Array = SEED) -> _Array:
    """Return the first 64 bits of the hashes of n values, uint64 (n,); with seeds uint64 (s, 1), of (s, n).

    Args:
        column: (n,) of a field's type; strings as objects.
    """
    if column.dtype != object:
        if column.dtype == np.float64:
            column = np.where(column == column, column + 0.0, math.nan)
            column = column.astype("<f8")
        else:
            column = column.astype("<i8")
        return _hash([column.view(np.uint64)], 8, _seeds(seed, len(column)))  # type: ignore[no-any-return]
    data = [value.encode("utf-8", "surrogatepass") or _EMPTY_STRING for value in column.tolist()]
    rows_of: dict[int, list[int]] = {}
    for row, text in enumerate(data):
        rows_of.setdefault(len(text), []).append(row)
    shape = (*np.shape(seed)[:-1], len(data))
    out = np.empty(shape, np.uint64)
    for length, rows in rows_of.items():
        padded = b"".join(data[row].ljust(-(-length // 8) * 8, b"\0") for row in rows)
        grid = np.frombuffer(padded, "<u8").reshape(len(rows), -1)
        words = [np.ascontiguousarray(grid[:, i]) for i in range(grid.shape[1])]
        out[..., rows] = _hash(words, length, _seeds(seed, len(rows)))
    return out


@cache
def row_seeds(rows: int) -> tuple[int, ...]:
    """Return the seed of each row's hash in a CountMin sketch.

    DataSketches draws them with `std::uniform_int_distribution` of libstdc++. This makes the same draws.
    """
    state = SEED

    def draw() -> int:
        nonlocal state
        state = state * 16807 % (2**31 - 1)  # std::minstd_rand0
        return state - 1

    def up_to(most: int) -> int:
        range_of_draw = 2**31 - 2
        if most < range_of_draw - 1:
            scale = range_of_draw // (most + 1)
            while (drawn := draw()) >= scale * (most + 1):
                pass
            return drawn // scale
        while True:
            high = range_of_draw * up_to(most // range_of_draw) & (2**64 - 1)
            drawn = high + draw() & (2**64 - 1)
            if high <= drawn <= most:
                return drawn

    return tuple(up_to(2**64 - 1) + SEED & (2**64 - 1) for _ in range(rows))


def _seeds(seed: int | _Array, n: int) -> _Array:
    return np.zeros(n, np.uint64) + seed  # (n,), or (s, n)


def _hash(words: list[Any], length: int, seed: Any) -> Any:
    """Hash values of `length` bytes: words of 8 bytes, the last filled up with zeros; integers, or uint64 arrays."""
    h1 = h2 = seed
    full = length // 16 * 2
    for at in range(0, full, 2):
        h1 = h1 ^ _mixed(words[at], _C1, 31, _C2)
        h1 = ((_turned(h1, 27) + h2 & _ALL) * 5 + 0x52DCE729) & _ALL
        h2 = h2 ^ _mixed(words[at + 1], _C2, 33, _C1)
        h2 = ((_turned(h2, 31) + h1 & _ALL) * 5 + 0x38495AB5) & _ALL
    if len(words) > full + 1:
        h2 = h2 ^ _mixed(words[full + 1], _C2, 33, _C1)
    if len(words) > full:
        h1 = h1 ^ _mixed(words[full], _C1, 31, _C2)
    h1, h2 = h1 ^ length, h2 ^ length
    h1 = h1 + h2 & _ALL
    h2 = h2 + h1 & _ALL
    return _finished(h1) + _finished(h2) & _ALL


def _mixed(word: Any, first: int, by: int, second: int) -> Any:
    return _turned(word * first & _ALL, by) * second & _ALL


def _turned(word: Any, by: int) -> Any:
    return (word << by | word >> 64 - by) & _ALL


def _finished(word: Any) -> Any:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _ALL
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return word ^ word >> 33
