"""What the aggregators' `check_invariants` share: raising with a name, and comparing partials."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

__all__ = ["require", "require_same", "same"]


def require(holds: bool, invariant: str, found: str) -> None:
    """Raise unless an invariant holds.

    Raises:
        AssertionError: it does not; the message says which one and what was found.
    """
    if not holds:
        raise AssertionError(f"{invariant}: {found}")


def require_same(found: Any, expected: Any, invariant: str, where: str) -> None:
    """Raise unless a stored partial is what its parts make anew, as `same` compares them.

    Raises:
        AssertionError: it is not; the message says which invariant is broken, where, and shows both.
    """
    if not same(found, expected):
        raise AssertionError(f"{invariant}: {where} has {_show(found)}, not {_show(expected)}")


def same(one: Any, other: Any) -> bool:
    """Whether two partials that were computed in the same way are equal; NaN equals NaN.

    Objects that define no equality, as sketches, are only compared by type.

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
    except ValueError:  # Python does not write out integers of thousands of digits
        return f"some {type(partial).__name__}"
