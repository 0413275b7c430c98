"""Turns at one window: long questions that are answered in slices, and writes, first come, first served.

    asked    Q1  Q2  W1  W2  Q3            Q: a long question    W: a write, which is applied at once
    run      Q1──────▶│W1 W2│Q3──▶         neighbouring questions overlap; a write waits for those before it,
             Q2────▶  │     │              and a question for the writes before it

So a question sees no write that came after it, a stream of questions does not keep writes waiting, and writes do not
keep a question waiting. Short questions need no turn, unless a long write runs.

A long write is applied in slices, too, and has the window alone: short questions wait for it as well. So a bulk of any
size is seen whole or not at all.

While questions run, the window's wall time stands still, as it does while a checkpoint is taken: on wall time, a
question evicts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator

from sash_engine.clock import Clock

__all__ = ["RestingClock", "Turns"]


class RestingClock:
    """Wall time that stands still while it is told to.

    Args:
        clock: the real one.

    Attributes:
        stopped: the time at which it stands; None while it runs. A write that is applied sets it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests = 0
        self.stopped: int | None = None

    def now_ns(self) -> int:
        return self._clock.now_ns() if self.stopped is None else self.stopped

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def rest(self) -> None:
        """Stand still until `go_on` was called as often as this."""
        self._rests += 1
        if self._rests == 1:
            self.stopped = self.now_ns()

    def go_on(self) -> None:
        """Take one `rest` back."""
        self._rests -= 1
        if not self._rests:
            self.stopped = None


class Turns:
    """Who may use one window.

    Args:
        clock: the window's.
    """

    def __init__(self, clock: RestingClock) -> None:
        self._clock = clock
        self._questions = 0  # that run
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()  # and whether it is a question
        self._closed = False
        self._alone = False

    @property
    def asked(self) -> bool:
        """Whether a long question or a long write runs: nothing else may be written, and nothing may leave."""
        return self._questions > 0 or self._alone

    @property
    def taken(self) -> bool:
        """Whether a write has to wait, for questions or for others that wait."""
        return bool(self._questions or self._waiting or self._alone)

    def let_end(self) -> None:
        """Begin no further question while one runs, so that time goes on."""
        self._closed = self._questions > 0

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the window alone, for a long write; right after the turn of a write, when no question runs."""
        assert not self.asked, "it is the turn of somebody else"
        self._alone = True
        try:
            yield
        finally:
            self._alone = False
            self._wake()

    async def short(self) -> None:
        """Wait until no long write runs."""
        if self._alone:
            await self._wait(False)

    async def write(self) -> None:
        """Wait for the turn of a write; it is over with the caller's next `await`."""
        if self.taken:
            await self._wait(False)

    @contextlib.asynccontextmanager
    async def question(self) -> AsyncIterator[None]:
        """Hold the window as it is, once all are done who came before."""
        if self._waiting or self._closed or self._alone:
            await self._wait(True)
        self._questions += 1
        self._clock.rest()
        self._wake()  # the next one may be a question, too
        try:
            yield
        finally:
            self._clock.go_on()
            self._questions -= 1
            self._closed = self._closed and self._questions > 0
            self._wake()

    async def _wait(self, asks: bool) -> None:
        place = (asyncio.get_running_loop().create_future(), asks)
        self._waiting.append(place)
        try:
            await place[0]
        except BaseException:
            self._waiting.remove(place)
            self._wake()
            raise
        self._waiting.remove(place)
        if not asks:  # a question wakes the next one when it is counted
            self._wake()

    def _wake(self) -> None:
        """Wake the first one who waits, if it is its turn. It leaves the line when it runs, and wakes the next."""
        if self._waiting:
            place, asks = self._waiting[0]
            if not place.done() and not self._alone and (not self._questions or (asks and not self._closed)):
                place.set_result(None)
