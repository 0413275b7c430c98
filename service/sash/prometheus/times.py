"""Times and durations as Prometheus writes them, and their ticks in a window's unit.

Prometheus counts in milliseconds. A range is left-open, as in Prometheus 3: t - L < time <= t.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from sash.prometheus.errors import BadData
from sash_engine.monoids.base import Array
from sash_engine.windows.spec import NANOSECONDS_PER_TICK, TICK_MAX, TimeUnit

__all__ = [
    "POINTS_MAX",
    "TIME_MAX_MS",
    "Times",
    "duration_ms",
    "floor_ticks",
    "ms_of",
    "range_steps_of",
    "ticks_of",
    "time_ms",
]

POINTS_MAX = 11_000
"""Points of a series in one answer, as in Prometheus."""

TIME_MAX_MS = 9_007_199_254_740_991
"""Times are from minus to plus so many milliseconds: 285,000 years, exact in a float."""

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
_DURATION = re.compile(
    r"(?:([0-9]{1,12})y)?(?:([0-9]{1,12})w)?(?:([0-9]{1,12})d)?(?:([0-9]{1,12})h)?(?:([0-9]{1,12})m)?"
    r"(?:([0-9]{1,12})s)?(?:([0-9]{1,12})ms)?"
)
_ORDER = ("y", "w", "d", "h", "m", "s", "ms")
_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Times:
    """The times that an expression is evaluated at: start, start + step, …; one time for an instant query.

    Args:
        start_ms: the first time.
        step_ms: from one to the next; any number for a single one.
        count: how many there are, >= 1.
        until_ms: the end that was asked for, which `@ end()` means; None: the last time.
    """

    start_ms: int
    step_ms: int
    count: int
    until_ms: int | None = None

    @cached_property
    def ms(self) -> Array:
        """int64 (n,), all times."""
        return self.start_ms + self.step_ms * np.arange(self.count, dtype=np.int64)

    @property
    def end_ms(self) -> int:
        """The last time."""
        return self.start_ms + self.step_ms * (self.count - 1)


def time_ms(text: str, name: str) -> int:
    """Parse a time: seconds since 1970, or RFC 3339.

    Raises:
        BadData: it is neither, or too far away.
    """
    try:
        return _checked(float(text) * 1000, name, text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise BadData(
            f"invalid parameter {name!r}: {text[:80]!r} is no time; give Unix seconds or RFC 3339", field=name
        )
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def duration_ms(text: str, name: str) -> int:
    """Parse a duration: seconds, or numbers with units such as 1h30m.

    Raises:
        BadData: it is neither, not positive, or too long.
    """
    try:
        found: float = _checked(float(text) * 1000, name, text)
    except ValueError:
        match = _DURATION.fullmatch(text)
        if match is None or not text:
            raise BadData(f"invalid parameter {name!r}: {text[:80]!r} is no duration", field=name) from None
        parts = zip(_ORDER, match.groups(), strict=True)
        found = _checked(sum(int(number) * _UNITS_MS[unit] for unit, number in parts if number), name, text)
    if found <= 0:
        raise BadData(f"invalid parameter {name!r}: a duration must be positive", field=name)
    return int(found)


def ms_of(seconds: float) -> int:
    """Round seconds to milliseconds, halves away from zero."""
    return math.floor(abs(seconds) * 1000 + 0.5) * (1 if seconds >= 0 else -1)


def range_steps_of(start_ms: int, end_ms: int, step_ms: int) -> Times:
    """Return the times of a range query.

    Raises:
        BadData: it ends before it starts, or has too many points.
    """
    if end_ms < start_ms:
        raise BadData("invalid parameter 'end': end timestamp must not be before start time", field="end")
    count = (end_ms - start_ms) // step_ms + 1
    if count > POINTS_MAX:
        raise BadData(
            f"exceeded maximum resolution of {POINTS_MAX:,} points per timeseries. Try increasing the query "
            "resolution (?step=XX)",
            field="step",
            limit=f"{POINTS_MAX} points",
        )
    return Times(start_ms, step_ms, count, end_ms)


def floor_ticks(ms: int, unit: TimeUnit) -> int:
    """Return the last tick that is not behind a time in milliseconds.

    >>> floor_ticks(1999, "s"), floor_ticks(-1, "s"), floor_ticks(5, "us")
    (1, -1, 5000)
    """
    return ms * _NS_PER_MS // NANOSECONDS_PER_TICK[unit]


def ticks_of(ms: Array, unit: TimeUnit) -> Array:
    """As `floor_ticks`, of int64 (n,); times beyond int64 become its ends."""
    tick_ns = NANOSECONDS_PER_TICK[unit]
    if tick_ns >= _NS_PER_MS:
        return ms // (tick_ns // _NS_PER_MS)
    factor = _NS_PER_MS // tick_ns
    most = TICK_MAX // factor
    return np.clip(ms, -most, most) * factor


def _checked(ms: float, name: str, text: str) -> int:
    if not -TIME_MAX_MS <= ms <= TIME_MAX_MS:  # NaN, too
        raise BadData(f"invalid parameter {name!r}: {text[:80]!r} is out of range", field=name)
    return round(ms)
