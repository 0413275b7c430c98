"""A log of what was admitted, and what it says about a limit."""

from __future__ import annotations

from collections.abc import Iterable


def most_in_lookback(log: Iterable[tuple[int, int]], lookback: int) -> int:
    """The most hits in any trailing lookback (t - L, t] over a log of (time, hits); as plain as it can be.

    >>> most_in_lookback([(0, 1), (5, 2), (10, 4)], 10)
    6
    """
    entries = list(log)
    return max((sum(hits for t, hits in entries if end - lookback < t <= end) for end, _ in entries), default=0)
