"""Long questions in slices, between which the event loop does all else.

    loop   [ slice 2 ms ] [ others ] [ others ] … [ slice 2 ms ] [ others ] …
             a question's steps       several turns of the loop     the same question's, or another one's

Slices have their turns among the calls of all callers (`sash.limits.turns`): only one slice runs before others have
theirs, however many questions are long. So a call that is not long waits for one slice, and not for one of each
question.

A question that ends within its first slice is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sash.context import payer
from sash.limits.turns import BURST_S, Turns
from sash.runtime.memory import give_back, grow_old
from sash_engine.clock import Clock
from sash_engine.steps import Steps

R = TypeVar("R")

_SLICE_S = BURST_S
"""So long steps are taken in one go. A step takes 1 to 2 ms, so a slice ends before 5 ms."""

_SLICES_PER_TRIM = 80
"""After so many slices of one work, what it has freed goes back to the system. A commit frees the staged parts, which a
thread has read, and the allocator keeps free memory for the thread that asked for it."""


class Slices:
    """Runs the long questions of one service.

    Args:
        clock: measures slices.

    Attributes:
        turns: of all that the process does. Several storages of one process share them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turns = Turns(clock_s=clock.processor_s)

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
        slices, caller = 0, payer()
        try:
            turn = self.turns.goes_on(caller, BURST_S)
            while True:
                if turn is not None:
                    await turn
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
                turn = self.turns.next_turn(caller, BURST_S)
                self.turns.ran(caller, BURST_S)
        finally:
            self.turns.ran(caller, BURST_S)
            steps.close()
