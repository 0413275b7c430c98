"""Runs of different lengths, one after the other in one array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sash_engine.monoids.base import Array
from sash_engine.windows.keys.allocator import Numbers


def ragged(starts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers starts[i], starts[i] + 1, … (lengths[i] >= 0 of them) for each i, one after the other.

    >>> ragged(np.array([10, 20]), np.array([2, 3])).tolist()
    [10, 11, 20, 21, 22]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def spans_of_lengths(lengths: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """The places of lengths in spans start..stop of at most so much together, or of one.

    >>> list(spans_of_lengths(np.array([2, 2, 9, 1]), 4))
    [(0, 2), (2, 3), (3, 4)]
    """
    behind, start, before = np.cumsum(lengths), 0, 0
    while start < len(behind):
        stop = max(int(behind.searchsorted(before + most, "right")), start + 1)
        yield start, stop
        start, before = stop, int(behind[stop - 1])


def grown(array: Array, n: int, fill: Any) -> Array:
    """A copy with room for at least `n` and half as many again as there were; new places hold `fill`."""
    longer = np.full(max(n, len(array) + len(array) // 2), fill, array.dtype)
    longer[: len(array)] = array
    return longer


def sums(flags: Array, lengths: Numbers) -> Numbers:
    """How many flags are set in each segment, or the sums of numbers; lengths[i] >= 0 is how long it is."""
    running = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=running[1:])
    ends = np.cumsum(lengths)
    sums: Numbers = running[ends] - running[ends - lengths]
    return sums
