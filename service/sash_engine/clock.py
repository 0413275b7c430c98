"""Clocks: sources of wall time, which callers pass in. The engine itself never reads a clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells wall time and measures intervals."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never going back."""

    def processor_s(self) -> float:
        """Seconds for which this thread has had a processor."""


class ForwardClock:
    """A clock whose wall time never goes back.

    If the clock behind it is set back, this one stands still until the other has caught up.

    Args:
        clock: the clock behind it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ns = clock.now_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, never less than before."""
        now_ns = self._clock.now_ns()
        if now_ns > self._last_ns:
            self._last_ns = now_ns
        return self._last_ns

    def monotonic_s(self) -> float:
        """Seconds of the clock behind it, from an arbitrary point."""
        return self._clock.monotonic_s()

    def processor_s(self) -> float:
        """Seconds for which this thread has had a processor, by the clock behind it."""
        return self._clock.processor_s()


class ManualClock:
    """A clock for tests: it stands still until `advance` moves it.

    Args:
        now_ns: the first wall time, in nanoseconds since the Unix epoch.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch, as set."""
        return self._now_ns

    def monotonic_s(self) -> float:
        """The same time in seconds."""
        return self._now_ns / 1e9

    def processor_s(self) -> float:
        """The same time in seconds."""
        return self._now_ns / 1e9

    def advance(self, nanoseconds: int) -> None:
        """Move wall time and the monotonic time forward."""
        self._now_ns += nanoseconds
