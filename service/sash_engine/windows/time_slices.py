"""The rows of several parts as slices of time: all rows of one time are in one slice, in the order of the parts.

    part 1    [ 1 1 2 | 5 6 | 9 ]                slices    [ 1 1 2 1 3 ]   [ 5 6 5 ]   [ 9 8 9 ]
    part 2    [ 1 3   | 5   | 8 9 ]

A part is let go with the slice that has its last rows. So parts that follow each other in time are in memory once, and
a slice besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sash_engine.monoids.base import Array

__all__ = ["time_slices"]

_STRIDE = 1_024
"""One time of so many tells where to cut."""


def time_slices(parts: list[list[Array]], rows: int, copied: bool = True) -> Iterator[list[Array]]:
    """Yield the columns of each slice; a slice is sorted where one part has it.

    Args:
        parts: the columns of each part, its times first, which are sorted; emptied.
        rows: about so many rows a slice has; more where one time has more.
        copied: make one slice of several parts that follow each other; else each of them is a slice, without a copy.
    """
    marks = np.sort(np.concatenate([part[0][::_STRIDE] for part in parts]))
    every = max(rows // _STRIDE, 1)
    cuts = np.unique(marks[every::every])
    bounds = [[0, *part[0].searchsorted(cuts).tolist(), len(part[0])] for part in parts]
    for i in range(len(cuts) + 1):
        found = []
        for at, bound in enumerate(bounds):
            if bound[i] < bound[i + 1]:
                found.append([column[bound[i] : bound[i + 1]] for column in parts[at]])
                if bound[i + 1] == bound[-1]:
                    parts[at] = []
        if not copied and all(before[0][-1] <= after[0][0] for before, after in pairwise(found)):
            while found:
                yield found.pop(0)
        if found:
            columns = found[0] if len(found) == 1 else [np.concatenate(each) for each in zip(*found, strict=True)]
            del found
            yield columns
            del columns
    parts.clear()
