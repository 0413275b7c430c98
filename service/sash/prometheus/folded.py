"""The answers of a window for many series at many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sash_engine.monoids.base import Array, object_array
from sash_engine.windows.answers import Answer, Series

__all__ = ["Folded", "no_series", "nothing"]


@dataclass(frozen=True)
class Folded:
    """Answers of a window for s series at n times: the numbers of entries, int64 (s, n), and the aggregates."""

    entries: Array
    aggregates: dict[str, list[Any]]

    @classmethod
    def of_answers(cls, names: Sequence[str], answers: Sequence[Answer]) -> Folded:
        """Answers at one time, of some aggregates."""
        entries = np.array([[answer.entries] for answer in answers], np.int64).reshape(-1, 1)
        return cls(entries, {name: [[answer.aggregates[name]] for answer in answers] for name in names})

    @classmethod
    def of_series(cls, names: Sequence[str], rows: Sequence[Series]) -> Folded:
        """Series of some aggregates, all of the same times."""
        entries = np.stack([row.entries for row in rows])
        return cls(entries, {name: [row.aggregates[name] for row in rows] for name in names})

    @property
    def cells(self) -> int:
        """How many numbers there are."""
        return int(self.entries.size) * (1 + len(self.aggregates))

    def column(self, name: str, member: int | None = None) -> tuple[Array, Array]:
        """An aggregate as numbers, and where it has one.

        Args:
            member: of an answer that is a list.
        """
        values = np.zeros(self.entries.shape)
        there = self.entries > 0
        for row, answers in enumerate(self.aggregates[name]):
            column = np.asarray(answers) if member is None else object_array(list(answers))
            if column.dtype.hasobject:
                missing = np.fromiter((each is None for each in answers), np.bool_, len(answers))
                there[row] &= ~missing
                column = np.array(
                    [0.0 if each is None else float(each if member is None else each[member]) for each in answers]
                )
            values[row] = column
        return values, there


def no_series(names: Sequence[str], count: int) -> Series:
    """The series of a key without entries, at `count` times."""
    none = np.full(count, None)
    zeros = np.zeros(count, np.int64)
    return Series(None, zeros, 0, zeros, dict.fromkeys(names, none))


def nothing(names: Sequence[str], series: int, count: int) -> Folded:
    """The answers where there is no entry, for so many series at `count` times."""
    return Folded(
        np.zeros((series, count), np.int64), {name: [[None] * count for _ in range(series)] for name in names}
    )
