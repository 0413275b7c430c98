"""Pins: a reader of a window as it was keeps the blocks that it still has to read.

    reader    pin ── part ── part ──────────────────────── end
    deletes          wait ──────────────────────────────── run

An idle reader does not block deletes forever. Its pin ends after five minutes, and its next read fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from sash.durability.journal.group_commit import BackgroundWrite
from sash_engine.clock import Clock
from sash_engine.errors import Unavailable

_IDLE_S = 300.0
"""After so long without a read, a pin ends if deletes wait for it."""


class Pin:
    """One reader of a window as it was.

    Attributes:
        window: number of the window.
        at_s: time of the last read.
        expired: the reader was idle for too long, so what it still has to read may be deleted.
    """

    __slots__ = ("at_s", "expired", "window")

    def __init__(self, window: int, at_s: float) -> None:
        self.window, self.at_s, self.expired = window, at_s, False


class Pins:
    """The pins of all windows, and the deletes that wait for them.

    Args:
        clock: measures how long readers are idle.
        run: runs a delete.
    """

    def __init__(self, clock: Clock, run: Callable[[BackgroundWrite], None]) -> None:
        self._clock, self._run = clock, run
        self._pins: set[Pin] = set()
        self._waiting: dict[int, list[BackgroundWrite]] = {}  # by window

    def run_unpinned(self, window: int, delete: BackgroundWrite) -> None:
        """Run a delete as soon as nobody has pinned its window."""
        if self._is_pinned(window):
            self._waiting.setdefault(window, []).append(delete)
        else:
            self._run(delete)

    @contextlib.contextmanager
    def pin(self, window: int) -> Iterator[Pin]:
        """Delete nothing of a window inside the `with` block, unless the reader is idle for too long."""
        pin = Pin(window, self._clock.monotonic_s())
        self._pins.add(pin)
        try:
            yield pin
        finally:
            self._end(pin)

    def renew(self, pin: Pin) -> None:
        """Note that the reader read something; raises Unavailable if its pin has ended."""
        if pin.expired:
            raise Unavailable(
                f"nothing was read for more than {_IDLE_S:.0f} s, and the rest may have been deleted: begin again",
                retry_after_s=1.0,
            )
        pin.at_s = self._clock.monotonic_s()

    def end_idle(self) -> None:
        """End the pins of readers that are idle for too long, if deletes wait for them."""
        before_s = self._clock.monotonic_s() - _IDLE_S
        for pin in [pin for pin in self._pins if pin.at_s < before_s and pin.window in self._waiting]:
            pin.expired = True
            self._end(pin)

    def _end(self, pin: Pin) -> None:
        self._pins.discard(pin)
        if not self._is_pinned(pin.window):
            for delete in self._waiting.pop(pin.window, ()):
                self._run(delete)

    def _is_pinned(self, window: int) -> bool:
        return any(pin.window == window for pin in self._pins)
