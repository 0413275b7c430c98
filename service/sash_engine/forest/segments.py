"""Runs of equal values in a sorted array: the segments that `Monoid.reduce_segments` folds."""

from __future__ import annotations

import numpy as np

from sash_engine.monoids.base import Array

_FIRST = np.zeros(1, np.int64)
_FIRST.flags.writeable = False


def starts_of_runs(ordered: Array) -> Array:
    """Where each run of equal values starts: int64 (k,), the first 0; `ordered` has n >= 1 values. Read only."""
    if len(ordered) == 1:
        return _FIRST
    starts = np.flatnonzero(ordered[1:] != ordered[:-1])
    out = np.empty(len(starts) + 1, np.int64)
    out[0] = 0
    np.add(starts, 1, out=out[1:])
    return out


def lengths_of_segments(starts: Array, n: int) -> Array:
    """How long each segment is: int64 (k,); the last one runs to n."""
    lengths = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = n - starts[-1]
    return lengths


def runs_of_numbers(numbers: Array) -> list[tuple[int, int]]:
    """Strictly increasing numbers, one at least, as runs start..stop of neighbours.

    >>> runs_of_numbers(np.array([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    firsts = starts_of_runs(numbers - np.arange(len(numbers)))
    lasts = np.append(firsts[1:], len(numbers)) - 1
    return list(zip(numbers[firsts].tolist(), (numbers[lasts] + 1).tolist(), strict=True))
