"""Times as people write them: ticks, ISO 8601, or a distance from now; exactly, or not at all.

    1357018200000000             ticks of the window
    2013-01-01T05:30:00Z         an instant; one without a zone is in UTC
    now, now-1h30m, now+5s, -1h  from the clock of whoever reads it

In the address of a request, a ``+`` that nobody escaped arrives as a space, so ``T05:30 02:00`` is ``T05:30+02:00``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sash_wire.durations import NANOSECONDS, parse_duration
from sash_wire.errors import WireError

_TICK_MAX = 2**63 - 1
_LENGTH_MAX = 80
_TICKS = re.compile(r"[+-]?[0-9]{1,30}")
_FROM_NOW = re.compile(r"(?:now\s*([+ -])|(-))\s*(\S+)")
_FRACTION = re.compile(r"(.*\d\d:?\d\d:?\d\d)[.,](\d{1,9})(.*)")
_ESCAPED = re.compile(r" (?=\d\d(:?\d\d)?$)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLES = {unit: 1357018200 * 10**9 // size for unit, size in NANOSECONDS.items()}


def forms_of(unit: str) -> str:
    """Return how a time is written in a window of a unit: the end of an error.

    >>> forms_of("s")
    'write ticks (s), such as 1357018200, ISO 8601 (2013-01-01T05:30Z), now or -1h'
    """
    if unit == "none":
        return "write ticks, such as 17: the window counts logical ticks"
    return f"write ticks ({unit}), such as {_EXAMPLES[unit]}, ISO 8601 (2013-01-01T05:30Z), now or -1h"


def parse_time(text: str, unit: str, field: str, now_ns: Callable[[], int] = time.time_ns) -> int:
    """Return a time in ticks of `unit`.

    Args:
        text: as above.
        unit: the window's time unit: "ns", "us", "ms", "s", or "none", which takes ticks only.
        field: what to call it in an error.
        now_ns: tells wall time, in nanoseconds since the Unix epoch. What is counted from it is rounded down.

    Raises:
        WireError: no time, not a whole number of ticks, or no int64.

    >>> parse_time("2013-01-01T05:30", "s", "start"), parse_time("-1h", "s", "start", lambda: 7200 * 10**9)
    (1357018200, 3600)
    """
    plain = text.strip()
    if _TICKS.fullmatch(plain):
        ticks = int(plain)
    else:
        nanoseconds = _from_now(plain, unit, field, now_ns)
        exact = nanoseconds is None
        if nanoseconds is None:
            nanoseconds = _instant(plain)
        if nanoseconds is None:
            raise WireError(f"{field}: {text[:_LENGTH_MAX]!r} is not a time: {forms_of(unit)}", field=field)
        if unit == "none":
            raise WireError(f"{field} {plain!r} is an instant, but {forms_of(unit).partition(': ')[2]}", field=field)
        ticks, rest = divmod(nanoseconds, NANOSECONDS[unit])
        if exact and rest:
            raise WireError(f"{field} {plain!r} is not a whole number of ticks ({unit})", field=field)
    if not -_TICK_MAX - 1 <= ticks <= _TICK_MAX:
        raise WireError(f"{field} {plain!r} is out of range", field=field, limit="-2^63 to 2^63 - 1")
    return ticks


def _from_now(plain: str, unit: str, field: str, now_ns: Callable[[], int]) -> int | None:
    if plain == "now":
        return now_ns()
    found = _FROM_NOW.fullmatch(plain)
    if found is None:
        return None
    sign, minus, distance = found.groups()
    try:
        length = parse_duration(distance, "ns", field)
    except WireError:
        return None
    if distance.isdecimal():  # ticks, as in durations
        length *= NANOSECONDS.get(unit, 1)
    return now_ns() + (-length if minus or sign == "-" else length)


def _instant(plain: str) -> int | None:
    """Return nanoseconds since the Unix epoch of a text in ISO 8601; None if it is none."""
    if len(plain) > _LENGTH_MAX or plain.isdecimal():
        return None
    plain, digits = _ESCAPED.sub("+", plain) if plain.count(":") > 1 else plain, "0"
    if (found := _FRACTION.fullmatch(plain)) is not None:  # datetime would cut it off behind microseconds
        plain, digits = found[1] + found[3], found[2]
    try:
        at = datetime.fromisoformat(plain)
    except ValueError:
        return None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return since // timedelta(microseconds=1) * 1000 + int(digits.ljust(9, "0"))
