"""What a user has pushed, and what the service must answer about it.

    key       x1  x2  x3  …  xn       one value at each of the times 1, 2, … n
    answer    entries, mean, sample deviation and maximum of a range of them

Summaries of keys, users and processes are added together, so that the totals of a run can be compared as well.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

KEPT = 100_000
"""Entries that a window keeps of each key."""


class Wrong(Exception):
    """An answer differs from the model."""


@dataclass(frozen=True)
class Summary:
    """Entries, mean, sum of squared differences from the mean, and maximum."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    max: float = -math.inf

    @classmethod
    def of(cls, values: Any) -> Summary:
        """Of these values."""
        if not len(values):
            return cls()
        mean = float(np.mean(values))
        return cls(len(values), mean, float(np.sum((np.asarray(values) - mean) ** 2)), float(np.max(values)))

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Summary:
        """Of the entries of an answer."""
        if not answer["n"]:
            return cls()
        return cls(answer["n"], answer["mean"], (answer["deviation"] or 0.0) ** 2 * (answer["n"] - 1), answer["max"])

    def __add__(self, other: Summary) -> Summary:
        n = self.n + other.n
        if not n:
            return self
        apart = other.mean - self.mean
        return Summary(
            n,
            self.mean + apart * other.n / n,
            self.squares + other.squares + apart * apart * self.n * other.n / n,
            max(self.max, other.max),
        )

    def answer(self) -> dict[str, Any]:
        """What the service answers about these entries."""
        return {
            "n": self.n,
            "mean": self.mean if self.n else None,
            "deviation": math.sqrt(self.squares / (self.n - 1)) if self.n > 1 else None,
            "max": self.max if self.n else None,
        }


class Key:
    """The entries of one key; `now` is the time of the newest."""

    def __init__(self) -> None:
        self.now = 0
        self._values = array("d")

    def push(self, values: Iterable[float]) -> None:
        """Add values at the times that follow."""
        before = len(self._values)
        self._values.extend(values)
        self.now += len(self._values) - before
        if len(self._values) > 2 * KEPT:
            del self._values[:-KEPT]

    def between(self, start: int, end: int) -> Summary:
        """The entries with `start <= time <= end` that the window still has."""
        oldest = self.now - len(self._values) + 1
        start = max(start, self.now - KEPT + 1, oldest)
        return Summary.of(np.array(self._values[max(0, start - oldest) : max(0, end - oldest + 1)]))

    def latest(self, ticks: int) -> Summary:
        """The entries of the last ticks."""
        return self.between(self.now - ticks + 1, self.now)

    def all(self) -> Summary:
        """All entries that the window still has."""
        return self.between(1, self.now)


def check_answer(what: str, found: Mapping[str, Any], expected: Summary) -> None:
    """Raise `Wrong` if an answer differs in any aggregate; mean and deviation may differ by rounding."""
    wanted = expected.answer()
    same = all(_same(found[name], wanted[name], name in ("mean", "deviation")) for name in wanted)
    if not same:
        raise Wrong(f"{what}: {dict(found)}, not {wanted}")


def check_equal(what: str, found: Any, expected: Any) -> None:
    """Raise `Wrong` if something differs."""
    if found != expected:
        raise Wrong(f"{what}: {found}, not {expected}")


def _same(found: Any, expected: Any, is_rounded: bool) -> bool:
    if found is None or expected is None or not is_rounded:
        return bool(found == expected)
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
