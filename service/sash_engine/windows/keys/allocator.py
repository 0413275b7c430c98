"""Rows in pages of power-of-two sizes, which lie at multiples of their size.

    rows   0     4     8           16                      32
          | 4   | 4   | 8         | 16                    | …

Free pages are listed by size. A page is cut in two where a smaller one is wanted. Free buddies unite before the rows
grow, so that room left by keys that grew serves other sizes.

Source: the buddy system (Knowlton, CACM 8(10), 1965).  Differs: buddies unite when rows must grow, not when freed, so
that the lists are sorted once for many pages.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from sash_engine.monoids.base import Array

Numbers = npt.NDArray[np.int64]
"""int64 (k,): numbers of keys or rows, or counts."""


class PageAllocator:
    """Which rows are part of which page, and which pages are free.

    Args:
        smallest: rows of the smallest page, a power of two.
        largest: rows of the largest page, a power of two.
        lengthen: a method, called with how many rows there will be, and how many were part of a page so far. It is not
            kept alive: it is of the pages, which keep this.

    Attributes:
        sizes: int64, rows of a page by *class*; class 0 is no page.
        rows: how many rows there are.
        end: how many rows were ever part of a page.
    """

    def __init__(self, smallest: int, largest: int, lengthen: Callable[[int, int], None]) -> None:
        assert 0 < smallest <= largest, "the smallest page has a row, and is not larger than the largest"
        assert smallest & (smallest - 1) == largest & (largest - 1) == 0, "pages are powers of two"
        self._largest, self._lengthen = largest, WeakMethod(lengthen)
        steps = (largest // smallest).bit_length()
        self.sizes = np.array([0, *(smallest << step for step in range(steps))])
        self.rows = self.end = 0
        self._free = [_Stack() for _ in self.sizes]

    def release(self, rows: Numbers, classes: Array) -> None:
        """Free the pages of some classes that have these rows; of class 0 there is none."""
        for size_class in np.unique(classes).tolist():
            if size_class:
                self._free[size_class].push(rows[classes == size_class] & -self.sizes.item(size_class))

    def allocate(self, classes: Array) -> Numbers:
        """A page of each of the classes: their first rows, int64 (k,)."""
        pages = np.empty(len(classes), np.int64)
        for size_class in np.unique(classes).tolist():
            wanted = classes == size_class
            pages[wanted] = self._take(size_class, int(np.count_nonzero(wanted)))
        return pages

    def _take(self, size_class: int, k: int) -> Numbers:
        free = self._free[size_class]
        pages = free.take(min(k, len(free)))  # at once: what is listed may be united below
        missing = k - len(pages)
        if not missing:
            return pages
        if size_class == len(self.sizes) - 1:
            self._extend(missing)
            more = free.take(missing)
        else:
            whole = self._take(size_class + 1, (missing + 1) // 2)
            halves = np.concatenate((whole, whole + self.sizes[size_class]))
            more = halves[:missing]
            free.push(halves[missing:])
        return np.concatenate((pages, more))

    def _extend(self, k: int) -> None:
        """Make k of the largest pages free, where fewer are."""
        free, rows = self._free[-1], self.rows
        end = self.end + (k - len(free)) * self._largest
        if end > rows:
            self._unite()
            # Little room would be used up at once, and looking for more costs a sort: grow as well.
            if len(free) < max(k, rows // self._largest // 8):
                rows = max(end, rows + rows // 8, 4 * self._largest)
                rows += -rows % self._largest
                lengthen = self._lengthen()
                assert lengthen is not None, "the pages outlive their allocator"
                lengthen(rows, self.end)
                self.rows = rows
        missing = max(k - len(free), 0)
        free.push(self.end + self._largest * np.arange(missing))
        self.end += missing * self._largest

    def _unite(self) -> None:
        """Join free pages that make a larger one."""
        for size_class in range(1, len(self.sizes) - 1):
            size = self.sizes.item(size_class)
            pages = np.sort(self._free[size_class].take(len(self._free[size_class])))
            first = np.flatnonzero((pages[1:] == pages[:-1] + size) & (pages[:-1] % (2 * size) == 0))
            self._free[size_class + 1].push(pages[first])
            self._free[size_class].push(np.delete(pages, np.concatenate((first, first + 1))))

    def free_pages(self) -> list[tuple[int, int]]:
        """The free pages: first row and size, in any order."""
        return [
            (page, size)
            for stack, size in zip(self._free, self.sizes.tolist(), strict=True)
            for page in stack.items().tolist()
        ]


class _Stack:
    """Row numbers, the last in first out."""

    __slots__ = ("_array", "_n")

    def __init__(self) -> None:
        self._array, self._n = np.empty(0, np.int64), 0

    def __len__(self) -> int:
        return self._n

    def push(self, items: Numbers) -> None:
        n = self._n + len(items)
        if n > len(self._array):
            self._array = copied(self._array, max(n, self._n + self._n // 2), self._n)
        self._array[self._n : n] = items
        self._n = n

    def take(self, k: int) -> Numbers:
        """Remove the last k."""
        self._n -= k
        return self._array[self._n : self._n + k].copy()

    def items(self) -> Numbers:
        return self._array[: self._n]


def copied(array: Array, n: int, used: int) -> Array:
    """A copy of length n of an array whose first `used` places are in use."""
    longer = np.empty(n, array.dtype)
    longer[:used] = array[:used]
    return longer
