"""Single values of JSON, checked for their type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sash.calls import refusing
from sash.rest.large_json import LongList
from sash_engine.errors import InvalidArgument
from sash_wire.times import forms_of, parse_time

K = TypeVar("K")

NowNs = Callable[[], int]
"""Tells wall time, in nanoseconds since the Unix epoch."""

TICK_MIN, TICK_MAX = -(2**63), 2**63 - 1
INT64_RANGE = "-2^63 to 2^63 - 1"
# As proto3's JSON mapping writes them.
SPECIALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NAMES = {
    LongList: "a list",
    bool: "a bool",
    int: "an integer",
    float: "a float",
    str: "a string",
    dict: "an object",
    list: "a list",
}


def integer(value: Any, path: str) -> int:
    """Return a value that is an int64.

    Raises:
        InvalidArgument: it is not: a float (1.0 too), a bool, a string, null, or out of range.
    """
    if type(value) is not int:
        # The parser makes a float of an integer of more than 64 bits.
        if isinstance(value, float) and abs(value) >= 2.0**63:
            raise InvalidArgument(f"{path} is out of range", field=path, limit=INT64_RANGE)
        raise InvalidArgument(f"{path} must be an integer, not {kind_of(value)}", field=path)
    if not TICK_MIN <= value <= TICK_MAX:
        raise InvalidArgument(f"{path} {value} is out of range", field=path, limit=INT64_RANGE)
    return value


_parse_time = refusing(parse_time)


def tick(value: Any, path: str, unit: str, now_ns: NowNs) -> int:
    """Return a value that is a time: ticks, or a text that `parse_time` reads.

    Raises:
        InvalidArgument: it is not.
    """
    if type(value) is str:
        return _parse_time(value, unit, path, now_ns)
    if type(value) is int or (isinstance(value, float) and abs(value) >= 2.0**63):
        return integer(value, path)
    raise InvalidArgument(f"{path} must be a time, not {kind_of(value)}: {forms_of(unit)}", field=path)


def text(value: Any, path: str) -> str:
    """Return a value that is a string.

    Raises:
        InvalidArgument: it is not.
    """
    return of_kind(value, path, str, "a string")


def number(value: Any, path: str) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is str and value in SPECIALS:
        return SPECIALS[value]
    what = f'the string "{value[:40]}"' if type(value) is str else kind_of(value)
    raise InvalidArgument(
        f'{path} must be a number, "NaN", "Infinity" or "-Infinity", not {what}',
        field=path,
    )


def flag(value: Any, path: str) -> bool:
    return of_kind(value, path, bool, "true or false")


def of_kind(value: Any, path: str, kind: type[K], wanted: str) -> K:
    """Return a value that is of a kind; raises InvalidArgument with what is wanted."""
    if type(value) is not kind:
        raise InvalidArgument(f"{path} must be {wanted}, not {kind_of(value)}", field=path)
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else _NAMES[type(value)]
