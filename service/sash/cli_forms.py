"""Short forms of structured answers, for the tables of the command line.

histogram       <0: 1, 0 to 10: 2, ≥10: 1
m4              first 5 at 2023-11-14T22:13:20Z, last 4 at …, min 2 at …, max 9 at …
items           UA: 12, AA: 7
list            1, 2, 3, 4, 5, 6, … (40)
another map     intercept 1.5, coefficients [2, 3], r_squared 0.9
bytes           1,144 bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sash.cli_output import cell, instant

__all__ = ["short_form"]

_ITEMS = 6
"""So many items of an answer are shown."""

_PAIRS = (("item", "count"), ("label", "entries"), ("returned", "value"))
"""Of lists of maps: the two names whose values are shown."""

_M4 = ("first", "last", "min", "max")


def short_form(value: Any, unit: str) -> str:
    """Return an answer as a short text; `unit` is that of the times in it."""
    if isinstance(value, Mapping):
        return _of_map(value, unit)
    if isinstance(value, (list, tuple)):
        return _of_list(value, unit)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return cell(value)


def _of_map(value: Mapping[str, Any], unit: str) -> str:
    if not value:
        return "{}"
    names = set(value)
    if names == {"bounds", "counts", "nan"}:
        return _of_histogram(value["bounds"], value["counts"], value["nan"])
    if names == set(_M4) and all(isinstance(point, Mapping) and "time" in point for point in value.values()):
        return ", ".join(f"{name} {cell(value[name]['value'])} at {instant(value[name]['time'], unit)}" for name in _M4)
    if names == {"length", "start", "end"}:
        return f"{cell(value['length'])} from {instant(value['start'], unit)} to {instant(value['end'], unit)}"
    return _joined(list(value.items()), lambda item: f"{cell(item[0])} {_inner(item[1], unit)}")


def _of_list(value: Sequence[Any], unit: str) -> str:
    if not value:
        return "[]"
    for name, number in _PAIRS:
        if all(isinstance(item, Mapping) and name in item and number in item for item in value):
            return _joined([(item[name], item[number]) for item in value], lambda pair: ": ".join(map(cell, pair)))
    return f"[{_joined(value, lambda item: _inner(item, unit))}]"


def _of_histogram(bounds: Sequence[float], counts: Sequence[int], nan: int) -> str:
    ends = [cell(bound) for bound in bounds]
    ranges = [f"<{ends[0]}", *(f"{low} to {high}" for low, high in pairwise(ends)), f"≥{ends[-1]}"]
    filled = [f"{name}: {count}" for name, count in zip([*ranges, "NaN"], [*counts, nan], strict=True) if count]
    return _joined(filled, str) if filled else "-"


def _inner(value: Any, unit: str) -> str:
    text = short_form(value, unit)
    return f"{{{text}}}" if isinstance(value, Mapping) and value else text


def _joined(items: Sequence[Any], form: Callable[[Any], str]) -> str:
    shown = [form(item) for item in items[:_ITEMS]]
    return ", ".join([*shown, *([f"… ({len(items)})"] if len(items) > _ITEMS else [])])
