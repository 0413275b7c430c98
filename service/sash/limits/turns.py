"""Who goes first when the loop is busy: the caller who used least of it.

    new calls ─────────────┬──▶ those of this iteration of the loop have taken less than 2 ms ──▶ run
    slices of long work ───┤                                                                       │
    calls that have taken  │                                                                       │
    2 ms, and go on ───────┴──▶ busy: wait ──▶ by virtual time, least first ──▶ run                │
        ▲                                                                                          │
        └──────────────────────────────────────────────────────────────────────────────────────────┘

    virtual time        0        5        10       15
    caller A (heavy)    [a1 ────────────][a2 ───────────── …
    caller B (light)       [b1][b2]                          b1 and b2 go before a2

So an iteration has 2 ms of calls, or one step of a long one, and a short call waits for no more than that, however many
long ones there are: parsing, applying, asking and answering, on whatever edge.

Each call gets a start tag: the later of now in virtual time and its caller's last finish. Its finish is that and its
cost. Now is the start tag of the call that was let go last. So a caller who was away gains nothing from it, and one who
uses much waits for those who use little, for as long as those take.

Source: Goyal, Vin, Cheng, "Start-time fair queuing", SIGCOMM 1996. Differs: nobody knows in advance what a call costs.
A question is charged the average of its caller's questions. A write is charged the average of its caller's writes, and
its length, for what it takes to receive and parse it. What goes on is charged what one of its steps took on average.
All are corrected by what they took, when they have run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush, nlargest
from time import thread_time
from types import coroutine
from typing import Any, TypeVar

from sash.limits.metered import metered

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
        clock_s: measures that: processor time, so that nobody is charged for what the machine does beside.
    """

    def __init__(self, burst_s: float = BURST_S, clock_s: Callable[[], float] = thread_time) -> None:
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
        self._waiting: list[tuple[float, int, float, _Turn]] = []
        self._number = 0
        self._is_metering = False
        """Whether a call runs that is charged for all that it does."""

    @property
    def waiting(self) -> int:
        """How many calls wait for their turns."""
        return len(self._waiting)

    def pays(self, name: str, size: int = 0, reads: bool = False) -> bool:
        """Charge a caller for a call with so many bytes, or a question; return whether it must wait for its `turn`.

        It costs a microsecond where the service is not busy.
        """
        if self._is_busy():
            return True
        self._goes(name, self._cost(name, size, reads))
        return False

    async def turn(self, name: str, size: int = 0, reads: bool = False) -> None:
        """Wait until it is the turn of the caller's call, and charge for it."""
        await self.next_turn(name, self._cost(name, size, reads))

    def goes_on(self, name: str, cost_s: float) -> asyncio.Future[None] | None:
        """As `next_turn`; None where nobody waits for the loop."""
        if self._is_busy():
            return self.next_turn(name, cost_s)
        self._goes(name, cost_s)
        return None

    def next_turn(self, name: str, cost_s: float) -> asyncio.Future[None]:
        """Charge a caller for what takes the loop for so long; return what it waits for: others have turns first."""
        loop = asyncio.get_running_loop()
        turn = _Turn(loop=loop)
        start_s = self._charged(name, cost_s)
        self._number += 1
        heappush(self._waiting, (start_s, self._number, cost_s, turn))
        if not self._ticking:
            self._ticking = True
            loop.call_soon(self._tick, TICKS)
        return turn

    def ran(self, name: str, cost_s: float) -> None:
        """Give a caller back what it was charged for a turn: what has run is charged by who measures it."""
        if name in self._finish_s:
            self._finish_s[name] -= cost_s

    @coroutine
    def metered(self, name: str, work: Coroutine[Any, Any, R], reads: bool = True) -> Generator[Any, Any, R]:
        """Await a call, and charge its caller for what it holds the loop.

        Once it has held the loop for as long as a burst, it waits for its turn each time it goes on.

        Args:
            reads: it is a question. What a write was charged in advance, `wrote` gives back.
        """
        clock_s = self._clock_s
        expected_s = self._reading_s.get(name, CALL_S) if reads else 0.0
        paid_s, spent_s, steps = expected_s, 0.0, 0
        step: Callable[[Any], Any] = work.send
        given: Any = None
        try:
            while True:
                began_s, is_within, self._is_metering = clock_s(), self._is_metering, True
                try:
                    waits_for = step(given)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                finally:
                    given = None  # an error knows the frames that it came through, and would be known here
                    self._is_metering, self._worked_s = is_within, clock_s()
                    spent_s += self._worked_s - began_s
                    steps += 1
                    if spent_s > paid_s:
                        self.spend(name, spent_s - paid_s)
                        paid_s = spent_s
                try:
                    given = yield waits_for
                    step = work.send
                    if spent_s > self._burst_s and not isinstance(waits_for, _Turn):
                        turn = self.goes_on(name, spent_s / steps)
                        paid_s += spent_s / steps
                        if turn is not None:
                            yield from turn
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step, given = work.throw, error
        finally:
            work.close()
            if spent_s != paid_s:
                self.spend(name, spent_s - paid_s)
            if reads and name in self._finish_s:
                self._reading_s[name] = expected_s + (spent_s - expected_s) / 8

    async def parsing(self, name: str, work: Coroutine[Any, Any, R]) -> R:
        """Await what makes sense of a caller's bytes, and charge the caller for what it held the loop."""

        def spend(seconds: float) -> None:
            self._worked_s = self._clock_s()
            self.spend(name, seconds)

        return await metered(work, spend, self._clock_s)

    def spend(self, name: str, seconds: float) -> None:
        """Charge a caller for what has held the loop, unless it is a step of a call that is metered."""
        if not self._is_metering and name in self._finish_s:
            self._finish_s[name] += seconds

    def wrote(self, name: str, spent_s: float) -> None:
        """Give a caller back what it was charged in advance for applying a write, and note what that took in all."""
        if not self._is_metering:  # else `metered` notes it in a moment, and the clock costs
            self._worked_s = self._clock_s()
        if name in self._finish_s:
            expected_s = self._writing_s.get(name, _APPLIED_S)
            self._finish_s[name] -= expected_s
            self._writing_s[name] = expected_s + (spent_s - expected_s) / 8

    def _is_busy(self) -> bool:
        """Whether who comes now must wait; else the burst goes on, or a new one begins."""
        if self._waiting:
            return True
        clock_s = self._clock_s()
        if clock_s > self._worked_s + IDLE_S:
            self._began_s, self._let_go_s = clock_s, 0.0
        elif clock_s - self._began_s > self._burst_s or self._let_go_s > self._burst_s:
            return True
        if clock_s > self._worked_s:
            self._worked_s = clock_s
        return False

    def _goes(self, name: str, cost_s: float) -> None:
        """Charge a caller for what takes the loop for so long, and runs now, without a turn."""
        self._now_s = self._charged(name, cost_s)
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._iterated)
        self._let_go_s += cost_s
        self._worked_s += cost_s

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
        start_s = self._now_s if finish_s is None or finish_s < self._now_s else finish_s
        self._finish_s[name] = start_s + cost_s
        return start_s

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
            start_s, _, cost_s, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                self._let_go_s += cost_s
                self._now_s = max(self._now_s, start_s)
        self._worked_s = max(self._worked_s, self._began_s + self._let_go_s)
        if self._waiting:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick, TICKS)


class _Turn(asyncio.Future[None]):
    """Done when it is the turn of what waits for it."""
