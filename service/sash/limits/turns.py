"""Who goes first when the loop is busy: the caller who used least of it.

    calls   ──▶ those of this iteration of the loop have taken less than 2 ms ──▶ run
        │
        └─▶ busy: wait ──▶ by virtual time, least first ──▶ run

    virtual time        0        5        10       15
    caller A (heavy)    [a1 ────────────][a2 ───────────── …
    caller B (light)       [b1][b2]                          b1 and b2 go before a2

Each call gets a start tag: the later of now in virtual time and its caller's last finish. Its finish is that and its
cost. Now is the start tag of the call that was let go last. So a caller who was away gains nothing from it, and one who
uses much waits for those who use little, for as long as those take.

Source: Goyal, Vin, Cheng, "Start-time fair queuing", SIGCOMM 1996. Differs: nobody knows in advance what a call costs.
A question is charged the average of its caller's questions. A write is charged the average of its caller's writes, and
its length, for what it takes to receive and parse it. Both are corrected by what the call took, when it has run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush, nlargest
from time import perf_counter
from typing import Any, TypeVar

from sash.limits.metered import metered

__all__ = ["BURST_S", "Turns"]

R = TypeVar("R")

BURST_S = 0.002
"""For so long calls may hold the loop, one after the other, before the next ones wait for their turns. Sixteen inserts
that arrive at once take 1 ms."""

CALL_S = 0.00006
"""What a call takes until its caller's calls have been measured. An insert of one entry does."""

RECEIVED_S = 0.00002
BYTE_S = 5e-9
"""What a write takes before it is applied, which is not measured: a third of an insert; 5 ms for a megabyte."""
_APPLIED_S = CALL_S - RECEIVED_S

IDLE_S = 0.0005
"""So long after a call the loop is taken to have had nothing to do."""

TICKS = 3
"""So many iterations of the loop pass before the next ones go. What arrived while a call held the loop is read in the
first one, and waits with the others in the second one."""

CALLERS_MAX = 10_000
"""So many callers are remembered. Of those who are not, nobody knows what they used."""


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
        self._began_s = self._worked_s = 0.0  # when calls began to follow each other, and when the last one ends
        self._let_go_s = 0.0
        """What those were charged that were let go since then. They may not have begun yet."""
        self._ticking = self._watching = False
        self._finish_s: dict[str, float] = {}
        """In virtual time, when the last call of a caller is over."""
        self._reading_s: dict[str, float] = {}
        self._writing_s: dict[str, float] = {}
        """What a question, and a write, of a caller takes, on average."""
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
            self._began_s, self._let_go_s = clock_s, 0.0
        elif clock_s - self._began_s > self._burst_s or self._let_go_s > self._burst_s:
            return True
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._iterated)
        cost_s = self._cost(name, size, reads)
        self._let_go_s += cost_s
        self._worked_s = (clock_s if clock_s > self._worked_s else self._worked_s) + cost_s
        self._now_s = self._charged(name, cost_s)
        return False

    async def turn(self, name: str, size: int = 0, reads: bool = False) -> None:
        """Wait until it is the turn of the caller's call, and charge for it."""
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        cost_s = self._cost(name, size, reads)
        start_s = self._charged(name, cost_s)
        self._number += 1
        heappush(self._waiting, (start_s, self._number, cost_s, waits))
        if not self._ticking:
            self._ticking = True
            loop.call_soon(self._tick, TICKS)
        await waits

    async def metered(self, name: str, work: Coroutine[Any, Any, R], spent_s: float = 0.0) -> R:
        """Await a question, and correct what its caller was charged by what it held the loop.

        Args:
            spent_s: what it has held the loop already.
        """

        def spend(seconds: float) -> None:
            nonlocal spent_s
            spent_s += seconds
            self._worked_s = self._clock_s()

        try:
            return await metered(work, spend, self._clock_s)
        finally:
            self._correct(self._reading_s, name, spent_s, CALL_S)

    async def parsing(self, name: str, work: Coroutine[Any, Any, R]) -> R:
        """Await what makes sense of a caller's bytes, and charge the caller for what it held the loop."""

        def spend(seconds: float) -> None:
            self._worked_s = self._clock_s()
            if name in self._finish_s:
                self._finish_s[name] += seconds

        return await metered(work, spend, self._clock_s)

    def asked(self, name: str, spent_s: float) -> None:
        """Correct what a caller was charged for a question by what it held the loop."""
        self._worked_s = self._clock_s()
        self._correct(self._reading_s, name, spent_s, CALL_S)

    def wrote(self, name: str, spent_s: float) -> None:
        """Correct what a caller was charged for a write by what it held the loop."""
        self._worked_s = self._clock_s()
        self._correct(self._writing_s, name, spent_s, _APPLIED_S)

    def _cost(self, name: str, size: int, reads: bool) -> float:
        """What a call is charged in advance."""
        if reads:
            return self._reading_s.get(name, CALL_S)
        return RECEIVED_S + BYTE_S * size + self._writing_s.get(name, _APPLIED_S)

    def _charged(self, name: str, cost_s: float) -> float:
        """Charge a caller; return when its call begins, in virtual time."""
        finish_s = self._finish_s.get(name)
        if finish_s is None and len(self._finish_s) >= CALLERS_MAX:
            self._forget()
        start_s = self._now_s if finish_s is None else max(self._now_s, finish_s)
        self._finish_s[name] = start_s + cost_s
        return start_s

    def _correct(self, average_s: dict[str, float], name: str, spent_s: float, unknown_s: float) -> None:
        if name in self._finish_s:
            expected_s = average_s.get(name, unknown_s)
            self._finish_s[name] += spent_s - expected_s
            average_s[name] = expected_s + (spent_s - expected_s) / 8

    def _forget(self) -> None:
        """Forget the callers who used least: those whose last calls are over, and more if these are too few."""
        kept = nlargest(CALLERS_MAX // 2, self._finish_s, key=self._finish_s.__getitem__)
        self._finish_s = {name: self._finish_s[name] for name in kept if self._finish_s[name] > self._now_s}
        for average_s in (self._reading_s, self._writing_s):
            for name in average_s.keys() - self._finish_s.keys():
                del average_s[name]

    def _iterated(self) -> None:
        """Begin a new burst if nobody waits: what the loop had read fitted into one, and it reads more meanwhile."""
        self._watching = False
        if not self._waiting:
            self._began_s, self._let_go_s = self._clock_s(), 0.0

    def _tick(self, ticks: int) -> None:
        """After some iterations of the loop, let go those who are next, as many as are expected to fit into a burst."""
        if ticks > 1:
            asyncio.get_running_loop().call_soon(self._tick, ticks - 1)
            return
        self._ticking = False
        self._began_s, self._let_go_s = self._clock_s(), 0.0
        while self._waiting and self._let_go_s < self._burst_s:
            start_s, _, cost_s, waits = heappop(self._waiting)
            if not waits.done():
                waits.set_result(None)
                self._let_go_s += cost_s
                self._now_s = max(self._now_s, start_s)
        self._worked_s = max(self._worked_s, self._began_s + self._let_go_s)
        if self._waiting:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick, TICKS)
