"""Refusals that cost their callers nothing, spaced out.

    a call without a token ──▶ a burst of 100: at once
                          └──▶ then 500 a second; those that wait keep the places of their connection

A refusal of gRPC takes a quarter of a millisecond of the event loop, and a client without a token can ask for as many
as it likes. A connection may have so many calls only. So one whose refusals wait asks for no more, and others are
served.
"""

from __future__ import annotations

import asyncio

_BURST = 100
_AT_A_TIME = 5
_EVERY_S = 0.01
"""Together 500 a second: an eighth of the loop."""

WAITING_MAX = 2000
"""A call that waits takes up to 30 KB. Further ones are refused at once."""


class Refusals:
    """Gives refusals their turns.

    Args:
        waiting_max: how many may wait.
    """

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._at_once = _BURST
        self._waiting: dict[asyncio.Future[None], None] = {}
        """The one that has waited longest comes first."""
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until it may be refused."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(_EVERY_S, self._give, loop)
        if self._at_once:
            self._at_once -= 1
            return
        if len(self._waiting) >= self._waiting_max:
            return
        turn = loop.create_future()
        self._waiting[turn] = None
        try:
            await turn
        finally:
            self._waiting.pop(turn, None)  # its client has gone

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(_AT_A_TIME):
            if self._waiting:
                turn = next(iter(self._waiting))
                del self._waiting[turn]
                if not turn.done():  # its client may have gone in this iteration of the loop
                    turn.set_result(None)
            elif self._at_once < _BURST:
                self._at_once += 1
        idle = not self._waiting and self._at_once == _BURST
        self._timer = None if idle else loop.call_later(_EVERY_S, self._give, loop)
