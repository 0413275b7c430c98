"""Who goes first when the loop is busy: the caller who used least of it.

    calls   ──▶ calls have followed each other for less than 2 ms ──▶ run
        │
        └─▶ busy: wait ──▶ by virtual time, least first ──▶ run

    virtual time        0        5        10       15
    caller A (heavy)    [a1 ────────────][a2 ───────────── …
    caller B (light)       [b1][b2]                          b1 and b2 go before a2

Each call gets a start tag: the later of now in virtual time and its caller's last finish. Its finish is that and its
cost. Now is the start tag of the call that was let go last. So a caller who was away gains nothing from it, and one who
uses much waits for those who use little, for as long as those take.

Source: Goyal, Vin, Cheng, "Start-time fair queuing", SIGCOMM 1996. Differs: a write is charged by the length of its
request. A question is charged the average of its caller's questions, which is corrected when it has run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, TypeVar

from sash.limits.metered import metered

__all__ = ["BURST_S", "Turns"]

R = TypeVar("R")

BURST_S = 0.002
"""For so long calls may hold the loop, one after the other, before the next ones wait for their turns. Sixteen inserts
that arrive at once take 1.6 ms."""

CALL_S = 0.0001
BYTE_S = 10e-9
"""What a write is charged: an insert takes 100 µs, and a bulk of a megabyte 10 ms with its parsing."""

IDLE_S = 0.0005
"""So long after a call the loop is taken to have had nothing to do."""

TICKS = 3
"""So many iterations of the loop pass before the next ones go. What arrived while a call held the loop is read in the
first one, and waits with the others in the second one."""

_CALLERS_MAX = 10_000


class Turns:
    """The turns of all calls of one service on its event loop.

    Args:
        burst_s: how long calls may hold the loop before others wait.
        clock_s: measures that.
    """

    def __init__(self, burst_s: float = BURST_S, clock_s: Callable[[], float] = perf_counter) -> None:
        self._burst_s = burst_s
        self._clock_s = clock_s
        self._now_s = 0.0  # in virtual time
        self._began_s = self._worked_s = 0.0  # when calls began to follow each other, and when the last one ended
        self._ticking = False
        self._finish_s: dict[str, float] = {}
        """In virtual time, when the last call of a caller is over."""
        self._reading_s: dict[str, float] = {}
        """What a question of a caller takes, on average."""
        self._waiting: list[tuple[float, int, float, asyncio.Future[None]]] = []
        self._number = 0

    @property
    def waiting(self) -> int:
        """How many calls wait for their turns."""
        return len(self._waiting)

    def pays(self, name: str, size: int = 0, reads: bool = False) -> bool:
        """Charge a caller for a call with so many bytes, or a question; return whether it must wait for its `turn`.

        It costs a microsecond where the service is not busy.
        """
        if self._waiting:
            return True
        clock_s = self._clock_s()
        if clock_s > self._worked_s + IDLE_S:
            self._began_s = clock_s
        elif clock_s - self._began_s > self._burst_s:
            return True
        cost_s = self._cost(name, size, reads)
        self._worked_s = clock_s + cost_s
        start_s = self._now_s = max(self._now_s, self._finish_s.get(name, 0.0))
        self._finish_s[name] = start_s + cost_s
        return False

    async def turn(self, name: str, size: int = 0, reads: bool = False) -> None:
        """Wait until it is the turn of the caller's call, and charge for it."""
        if len(self._finish_s) > _CALLERS_MAX:
            self._finish_s = {each: finish_s for each, finish_s in self._finish_s.items() if finish_s > self._now_s}
            self._reading_s = {each: cost_s for each, cost_s in self._reading_s.items() if each in self._finish_s}
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        cost_s = self._cost(name, size, reads)
        start_s = max(self._now_s, self._finish_s.get(name, 0.0))
        self._finish_s[name] = start_s + cost_s
        self._number += 1
        heappush(self._waiting, (start_s, self._number, cost_s, waits))
        if not self._ticking:
            self._ticking = True
            loop.call_soon(self._tick, TICKS)
        await waits

    async def metered(self, name: str, work: Coroutine[Any, Any, R]) -> R:
        """Await a question, and correct what its caller was charged by what it held the loop."""
        spent_s = 0.0

        def spend(seconds: float) -> None:
            nonlocal spent_s
            spent_s += seconds
            self._worked_s = self._clock_s()

        try:
            return await metered(work, spend, self._clock_s)
        finally:
            charged_s = self._cost(name, 0, True)
            if name in self._finish_s:
                self._finish_s[name] += spent_s - charged_s
                self._reading_s[name] = charged_s + (spent_s - charged_s) / 8

    def _cost(self, name: str, size: int, reads: bool) -> float:
        """What a call is charged in advance."""
        return self._reading_s.get(name, CALL_S) if reads else CALL_S + BYTE_S * size

    def _tick(self, ticks: int) -> None:
        """After some iterations of the loop, let go those who are next, as many as are expected to fit into a burst."""
        if ticks > 1:
            asyncio.get_running_loop().call_soon(self._tick, ticks - 1)
            return
        self._ticking = False
        self._began_s = self._clock_s()
        left_s = self._burst_s
        while self._waiting and left_s > 0:
            start_s, _, cost_s, waits = heappop(self._waiting)
            if not waits.done():
                waits.set_result(None)
                left_s -= cost_s
                self._now_s = max(self._now_s, start_s)
        if self._waiting:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick, TICKS)
