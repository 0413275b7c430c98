"""How long operations hold the event loop at a time: each stretch between two awaits is one slice.

    await write   [ checks, applies ]......waits for the tier......[ answers ]
                    a slice: 0.2 ms                                  a slice: 0.01 ms

A slice that is longer than `LONG_S` is logged, with the operation and the window. Of several within a second the log
has one line, which says how many there were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sash.context import payer
from sash.limits.metered import metered
from sash.limits.turns import Turns
from sash_engine.clock import Clock

_log = logging.getLogger(__name__)

R = TypeVar("R")

LONG_S = 0.05
_LOG_EVERY_S = 1.0


class LoopTime:
    """Measures slices.

    Args:
        clock: measures them.
        observe: is told the operation and the seconds of each.
        turns: charge the callers of writes. Edges charge questions themselves; a write may go on without its edge.
    """

    def __init__(self, clock: Clock, observe: Callable[[str, float], None], turns: Turns) -> None:
        self._clock = clock
        self._observe = observe
        self.turns = turns
        self._logged_s: float | None = None
        self._unlogged = 0

    def timed(
        self,
        operation: str,
        window: str,
        work: Coroutine[Any, Any, R],
        then: Callable[[], None] = lambda: None,
        writes: bool = False,
    ) -> Coroutine[Any, Any, R]:
        """Await `work`, and note each of its slices; `then` is called when it has ended, however that was."""
        spent_s, caller = 0.0, payer()

        def spend(seconds: float) -> None:
            nonlocal spent_s
            spent_s += seconds
            if writes:
                self.turns.spend(caller, seconds)
            self.note(operation, window, seconds)

        def ended() -> None:
            then()
            if writes:
                self.turns.wrote(caller, spent_s)

        return metered(work, spend, self._clock.monotonic_s, ended)

    def note(self, operation: str, window: str, seconds: float) -> None:
        """Note one slice."""
        self._observe(operation, seconds)
        if seconds <= LONG_S:
            return
        now_s = self._clock.monotonic_s()
        if self._logged_s is not None and now_s < self._logged_s + _LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more since the last such line" if self._unlogged else ""
        _log.warning("%s of window %r held the event loop for %.0f ms%s", operation, window[:140], seconds * 1e3, more)
        self._logged_s, self._unlogged = now_s, 0
