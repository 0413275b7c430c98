"""Sparklines: a line of blocks, one for each value or for a few of them together."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[Any], width: int = 60) -> str:
    """Draw values from the lowest to the highest block; return "" if none of them is a finite number.

    A value that is no finite number leaves a space. More values than `width` are drawn by the means of groups of equal
    size. Where all are equal, the blocks are half high.
    """
    size = -(-len(values) // width) or 1
    points = [_mean(values[i : i + size]) for i in range(0, len(values), size)]
    numbers = [point for point in points if point is not None]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return "".join(" " if point is None else _block(point, low, high) for point in points)


def _block(point: float, low: float, high: float) -> str:
    # Halves, because the difference of two finite numbers may be infinite.
    span = high / 2 - low / 2
    return _BLOCKS[round((point / 2 - low / 2) / span * (len(_BLOCKS) - 1))] if span else _BLOCKS[3]


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [n for n in map(_number, values) if n is not None]
    return sum(number / len(numbers) for number in numbers) if numbers else None


def _number(value: Any) -> float | None:
    """Return a value as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of any size
        return None
    return number if isfinite(number) else None
