"""Times and durations as Prometheus writes them.

Prometheus counts in milliseconds. A range is left-open, as in Prometheus 3: t - L < time <= t.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import promql_parser

from sash.promql.errors import BadData
from sash.promql.values import Array

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


def _checked(ms: float, name: str, text: str) -> int:
    if not -TIME_MAX_MS <= ms <= TIME_MAX_MS:  # NaN, too
        raise BadData(f"invalid parameter {name!r}: {text[:80]!r} is out of range", field=name)
    return round(ms)


def shifted(selector: promql_parser.VectorSelector, times: Times) -> Times:
    """The times at which a selector looks, by its `offset` and `@`; one time, where `@` fixes it.

    Raises:
        BadData: one of them is out of range.
    """
    try:
        at, offset_ms = selector.at, 0 if selector.offset is None else milliseconds(selector.offset)
        if at is not None:
            kind = str(at.type)
            if kind.endswith("Start"):
                at_ms = times.start_ms
            elif kind.endswith("End"):
                at_ms = times.end_ms if times.until_ms is None else times.until_ms
            else:
                at_ms = ms_of(at.at.timestamp()) if at.at is not None else 0
            times = Times(at_ms, 1, 1)
    except (OverflowError, ValueError) as error:
        raise BadData("@ or offset is out of range", field="query") from error
    start_ms = times.start_ms - offset_ms
    if not -TIME_MAX_MS <= start_ms <= TIME_MAX_MS:
        raise BadData("offset is out of range", field="query")
    return Times(start_ms, times.step_ms, times.count)


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds."""
    return (duration.days * 86_400 + duration.seconds) * 1000 + duration.microseconds // 1000
