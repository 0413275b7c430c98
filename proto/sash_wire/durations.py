"""Durations: "5m", "1h30m", "250ms", or a number of ticks."""

from __future__ import annotations

import re
from functools import lru_cache

from sash_wire.errors import WireError

NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
"""Nanoseconds in each unit."""

_TICK_MAX = 2**63 - 1
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h|d|w)")
_SPELLED = ("d", "h", "m", "s", "ms", "us", "ns")


def parse_duration(text: str | int, unit: str, field: str) -> int:
    """Return a duration in ticks of `unit`.

    Args:
        text: a whole number of ticks (90, "90"), or numbers with units ("5m", "1h30m", "250ms"). A window of logical
            time (`none`) takes ticks only.
        unit: the window's time unit: "ns", "us", "ms", "s" or "none".
        field: what to call it in an error.

    Raises:
        WireError: no duration, not positive, not a whole number of ticks, or 2^63 ticks and more.
    """
    return _parsed(str(text), unit, field)


@lru_cache(4096)  # callers ask with the same few again and again; what is refused is not kept
def _parsed(plain: str, unit: str, field: str) -> int:
    if re.fullmatch("[0-9]{1,30}", plain):
        ticks = int(plain)
    else:
        parts = _PARTS.findall(plain) if len(plain) <= 64 else []
        if not parts or "".join(number + suffix for number, suffix in parts) != plain:
            raise WireError(
                f"{field} {plain[:80]!r} is not a duration; write ticks (90) or units (5m, 1h30m, 250ms)",
                field=field,
            )
        if unit == "none":
            raise WireError(f"{field} {plain!r} has a unit, but the window counts logical ticks", field=field)
        nanoseconds, per_tick = 0, NANOSECONDS[unit]
        for number, suffix in parts:
            whole, _, fraction = number.partition(".")
            scale = NANOSECONDS[suffix]
            scaled = int(fraction or "0") * scale
            if scaled % 10 ** len(fraction):
                raise WireError(f"{field} {plain!r} is not a whole number of nanoseconds", field=field)
            nanoseconds += int(whole) * scale + scaled // 10 ** len(fraction)
        if nanoseconds % per_tick:
            raise WireError(f"{field} {plain!r} is not a whole number of ticks ({unit})", field=field)
        ticks = nanoseconds // per_tick
    if not 1 <= ticks <= _TICK_MAX:
        raise WireError(f"{field} {plain!r} is out of range", field=field, limit="1 to 2^63 - 1 ticks")
    return ticks


def spell_duration(nanoseconds: int) -> str:
    """Return a duration as people write it: 1h, 1h30m, 250ms. Nothing is "0s", which the service refuses."""
    left, text = abs(nanoseconds), ""
    for unit in _SPELLED:
        size = NANOSECONDS[unit]
        text += f"{left // size}{unit}" if left >= size else ""
        left %= size
    return f"{'-' if nanoseconds < 0 else ''}{text or '0s'}"
