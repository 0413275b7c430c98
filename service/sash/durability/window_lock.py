"""A readers-writer lock of one window, first come, first served: long questions share it, writes exclude them.

    asked    Q1  Q2  W1  W2  Q3            Q: a long question    W: a write, which is applied at once
    run      Q1──────▶│W1 W2│Q3──▶         neighbouring questions overlap; a write waits for those before it,
             Q2────▶  │     │              and a question for the writes before it

A question sees no write that came after it. Neither questions nor writes can keep the other kind waiting for ever. A
short question runs at once, without the lock, unless a long write runs.

A long write is applied in slices, too, and holds the lock exclusively. Short questions wait for it as well, so a bulk
of any size is seen whole or not at all.

While questions run, the window's wall time stands still, as it does while a checkpoint is taken: on wall time, a
question evicts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sash_engine.clock import Clock


class RestingClock:
    """Wall time that can stand still: while a write is applied, so that recovery can apply it at the same time; and
    while a checkpoint is taken, or a long question is answered.

    Args:
        clock: the real clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests = 0
        self._stopped_ns: int | None = None

    def now_ns(self) -> int:
        return self._clock.now_ns() if self._stopped_ns is None else self._stopped_ns

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def processor_s(self) -> float:
        return self._clock.processor_s()

    def rest(self) -> None:
        """Stand still until `go_on` was called as often as this."""
        self._rests += 1
        if self._rests == 1:
            self._stopped_ns = self.now_ns()

    def go_on(self) -> None:
        """Take one `rest` back."""
        self._rests -= 1
        if not self._rests:
            self._stopped_ns = None

    @contextlib.contextmanager
    def stopped(self, now_ns: int) -> Iterator[None]:
        """Stand still at this time inside the `with` block."""
        before, self._stopped_ns = self._stopped_ns, now_ns
        try:
            yield
        finally:
            self._stopped_ns = before


class WindowLock:
    """The lock of one window.

    Args:
        clock: the window's.
    """

    def __init__(self, clock: RestingClock) -> None:
        self._clock = clock
        self._questions = 0  # that run
        self._waiting: deque[_Place] = deque()
        self._closed = False
        self._exclusive = False  # a long write runs
        self._whole = asyncio.Event()  # cleared while a long write runs
        self._whole.set()

    @property
    def held(self) -> bool:
        """Whether a long question or a long write runs: nothing else may be written, and nothing may leave."""
        return self._questions > 0 or self._exclusive

    @property
    def held_exclusively(self) -> bool:
        """Whether a long write runs."""
        return self._exclusive

    @property
    def contended(self) -> bool:
        """Whether a write has to wait, for questions or for others that wait."""
        return bool(self._waiting) or self._questions > 0 or self._exclusive

    def drain(self) -> None:
        """Admit no further question while one runs, so that the clock of the window can go on."""
        self._closed = self._questions > 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold it for a long write, right after `wait_to_write`, when no question runs."""
        assert not self.held, "it is the turn of somebody else"
        self._exclusive = True
        self._whole.clear()
        self._clock.rest()
        try:
            yield
        finally:
            self._clock.go_on()
            self._exclusive = False
            self._whole.set()
            self._wake()

    async def wait_for_long_write(self) -> None:
        """Wait until no long write runs, for a short question. It goes before all who wait in line."""
        while self.held_exclusively:
            await self._whole.wait()

    async def wait_to_write(self) -> None:
        """Wait for the turn of a write; it is over with the caller's next `await`."""
        if self.contended:
            await self._wait(self._may_write)

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold it for a long question, once all who came before are done. The window does not change meanwhile."""
        if self._waiting or not self._may_ask():
            await self._wait(self._may_ask)
        self._questions += 1
        self._clock.rest()
        try:
            yield
        finally:
            self._clock.go_on()
            self._questions -= 1
            self._closed = self._closed and self._questions > 0
            self._wake()

    def _may_write(self) -> bool:
        return not self.held

    def _may_ask(self) -> bool:
        return not (self.held_exclusively or self._closed)

    async def _wait(self, may: Callable[[], bool]) -> None:
        """Wait in line until `may` holds for the first in it. The turn begins when this returns."""
        place = _Place(may, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            while True:
                await place.woken
                # Since it was woken, a write may have begun that had its turn, and waited for something else.
                if may():
                    return
                place.woken = asyncio.get_running_loop().create_future()
        finally:
            self._waiting.remove(place)
            self._wake()

    def _wake(self) -> None:
        """Wake the first one who waits, if it is its turn. It leaves the line when it runs, and wakes the next."""
        if self._waiting:
            place = self._waiting[0]
            if not place.woken.done() and place.may():
                place.woken.set_result(None)


class Admission(asyncio.Lock):
    """A lock that is passed in order of arrival.

    Attributes:
        users: how many have it, or wait for it. While there are none, it need not be passed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.users = 0

    async def __aenter__(self) -> None:
        self.users += 1
        try:
            await super().__aenter__()
        except BaseException:
            self.users -= 1
            raise

    async def __aexit__(self, *error: Any) -> None:
        self.users -= 1
        await super().__aexit__(*error)


@dataclass(eq=False, slots=True)
class _Place:
    """A place in the line: what has to hold for its turn, and a future that wakes it."""

    may: Callable[[], bool]
    woken: asyncio.Future[None]
