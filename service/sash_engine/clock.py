"""Wall time as a value that callers pass in. The engine itself never reads a clock."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock", "ForwardClock", "ManualClock"]


class Clock(Protocol):
    """Tells wall time and measures intervals."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary point, never going back."""


class ForwardClock:
    """A clock whose wall time never goes back: it stands still until the other one, which was set back, has caught up.

    Args:
        clock: the other one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ns = clock.now_ns()

    def now_ns(self) -> int:
        self._last_ns = max(self._last_ns, self._clock.now_ns())
        return self._last_ns

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class ManualClock:
    """Stands still until it is told to move."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_s(self) -> float:
        return self._now_ns / 1e9

    def advance(self, nanoseconds: int) -> None:
        """Move both clocks on."""
        self._now_ns += nanoseconds
