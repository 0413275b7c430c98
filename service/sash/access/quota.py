"""Quotas: a token bucket that may go into debt.

A call is admitted while the bucket holds at least one unit, and then takes all that it costs. So one bulk may cost more
than the bucket holds, and the calls after it wait until the debt is paid. The mean rate is the quota.
"""

from __future__ import annotations


class Bucket:
    """Units that come back at a rate; it holds what comes back in one second, and at least one unit.

    Args:
        rate: units a second.
        now_s: the time, in seconds of a clock that never goes back.
    """

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._held = self._held_max = max(rate, 1.0)
        self._at_s = now_s

    def take(self, units: float, now_s: float) -> float:
        """Take `units`; return 0, or the seconds to wait where the bucket is empty and nothing was taken."""
        self._held = min(self._held_max, self._held + (now_s - self._at_s) * self.rate)
        self._at_s = now_s
        if self._held < 1:
            return (1 - self._held) / self.rate
        self._held -= units
        return 0.0
