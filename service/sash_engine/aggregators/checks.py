"""Helpers for `check_invariants`: raise with the invariant's name, and compare partials."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np


def require(holds: bool, invariant: str, found: str) -> None:
    """Raise unless an invariant holds.

    Raises:
        AssertionError: it does not hold; the message names it and says what was found.
    """
    if not holds:
        raise AssertionError(f"{invariant}: {found}")


def require_same(found: Any, expected: Any, invariant: str, where: str) -> None:
    """Raise unless a stored partial equals one that was recomputed, as `same` compares them.

    Raises:
        AssertionError: they differ; the message names the invariant and the place, and shows both.
    """
    if not same(found, expected):
        raise AssertionError(f"{invariant}: {where} has {_show(found)}, not {_show(expected)}")


def same(one: Any, other: Any) -> bool:
    """Return whether two partials that were computed in the same way are equal; NaN equals NaN.

    Objects without an equality of their own, such as sketches, are compared by type only.

    >>> same((1, float("nan")), (1, float("nan"))), same([1], [2])
    (True, False)
    """
    if isinstance(one, tuple | list):
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    kind: Any = type(one)
    if kind.__eq__ is object.__eq__:
        return kind is type(other)
    return bool(one == other or (one != one and other != other))


def _show(partial: Any) -> str:
    try:
        return reprlib.repr(partial)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"some {type(partial).__name__}"
