"""Long work in steps: a generator that yields after each bounded piece of work, and returns the result.

    work   [ piece | piece | piece | … ]──▶ result
                   ^yield  ^yield               whoever drives it may do something else here, or close it

The engine decides how much work a step is, by counting what it is about to do. It reads no clock. A step takes at most
about 2 ms. Whoever drives the steps decides when to pause. Nothing may be written to a window from the first step of a
question to the last.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

R = TypeVar("R")

Steps = Generator[None, None, R]
"""Work in steps that returns an R."""


def finished(steps: Steps[R]) -> R:
    """Take all steps at once, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


ROWS = 16_384
"""Rows of a write that are one step. Fewer are written without any: each step costs as much as a few rows."""


def spans_of(n: int, size: int) -> Iterator[tuple[int, int]]:
    """The numbers 0..n in spans start..stop of at most `size` >= 1.

    >>> list(spans_of(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, n, size):
        yield start, min(start + size, n)
