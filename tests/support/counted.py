"""Work in steps, counted."""

from __future__ import annotations

from typing import TypeVar

from sash_engine.steps import Steps

R = TypeVar("R")


def counted(steps: Steps[R]) -> tuple[int, R]:
    """Take all steps, and return how many there were beside the last one, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1
