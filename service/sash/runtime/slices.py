"""Long questions in slices, between which the event loop does all else.

    loop   [ slice 5 ms ] [ others ] [ others ] … [ slice 5 ms ] [ others ] …
             a question's steps       several turns of the loop     the same question's, or another one's

Only one slice runs before others have their turns, however many questions are long: they take slices in rotation. So a
call that is not long waits for one slice, and not for one of each question.

A question that ends within its first slice is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sash.runtime.memory import give_back, grow_old
from sash_engine.clock import Clock
from sash_engine.steps import Steps

__all__ = ["Slices"]

R = TypeVar("R")

_SLICE_S = 0.005
"""So long steps are taken in one go. A step takes 1 to 2 ms, so a slice ends before 10 ms."""

_SLICES_PER_TRIM = 32
"""After so many slices of one work, what it has freed goes back to the system. A commit frees the staged parts, which a
thread has read, and the allocator keeps free memory for the thread that asked for it."""

_TURNS = 4
"""Turns of the loop between two slices. A small call takes several: one each to be read, run and answered."""


class Slices:
    """Runs the long questions of one service.

    Args:
        clock: measures slices.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()  # first come, first served

    async def take(self, steps: Steps[R]) -> R:
        """As `run`, of work that no slice can end early; work of one step waits for no other."""
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        return await self.run(steps, lambda: None)

    async def run(self, steps: Steps[R], before_each: Callable[[], None]) -> R:
        """Take all steps, and return the result; whatever ends it early closes the steps.

        Args:
            before_each: called at the beginning of each slice; what it raises ends the question.
        """
        slices = 0
        try:
            while True:
                async with self._turn:
                    before_each()
                    until_s = self._clock.monotonic_s() + _SLICE_S
                    try:
                        while True:
                            next(steps)
                            if self._clock.monotonic_s() >= until_s:
                                break
                    except StopIteration as end:
                        return end.value  # type: ignore[no-any-return]
                    grow_old()
                    slices += 1
                    if not slices % _SLICES_PER_TRIM:
                        give_back()
                    for _ in range(_TURNS):
                        await asyncio.sleep(0)
        finally:
            steps.close()
