"""The values of an expression at all of its times at once.

    scalar    float64 (n,)
    vector    s series: labels of each, values float64 (s, n), there bool (s, n)

Where `there` is False, the series has no sample at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sash.prometheus.errors import Refused
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps

__all__ = [
    "CELLS_MAX",
    "LOOKBACK",
    "NAME",
    "SERIES_MAX",
    "Labels",
    "Scalar",
    "Text",
    "Value",
    "Vector",
    "check_cells",
    "merged",
    "unnamed",
]

NAME = "__name__"
LOOKBACK = "__lookback__"
"""Not a label: `window:aggregate{__lookback__="5m"}` is the aggregate over the last five minutes."""

SERIES_MAX = 10_000
CELLS_MAX = 2_000_000
"""Values of one vector, of all series and times: 18 MB, and a pass over them takes 2 ms."""

PER_STEP = 500
"""Series whose labels one step changes: 1 ms."""

Labels = Mapping[str, str]


@dataclass
class Scalar:
    """A number at each time."""

    values: Array


@dataclass
class Text:
    """A string."""

    text: str


@dataclass
class Vector:
    """Some series. `ordered`: their order is part of the answer, as of `sort`."""

    labels: Sequence[Labels]
    values: Array
    there: Array
    ordered: bool = False
    times_ms: Array | None = field(default=None, repr=False)
    """int64 (s, n): when the samples were taken; None where all have the time of the evaluation."""

    @classmethod
    def empty(cls, count: int) -> Vector:
        """No series."""
        return cls([], np.empty((0, count)), np.empty((0, count), np.bool_))

    def with_values(self, values: Array, there: Array | None = None) -> Vector:
        """The same series with other values."""
        return Vector(self.labels, values, self.there if there is None else there)

    def picked(self, rows: Array | Sequence[int]) -> Vector:
        """Some of the series."""
        at = np.asarray(rows, np.int64)
        return Vector([self.labels[i] for i in at.tolist()], self.values[at], self.there[at])


Value = Scalar | Text | Vector


def check_cells(series: int, count: int) -> None:
    """Refuse vectors that are too large.

    Raises:
        Refused: there are too many series, or values.
    """
    if series > SERIES_MAX:
        raise Refused(
            f"more than {SERIES_MAX:,} series; narrow the selectors", field="query", limit=f"{SERIES_MAX} series"
        )
    if series * count > CELLS_MAX:
        raise Refused(
            f"{series} series of {count} points are more than {CELLS_MAX:,} values; narrow the selectors or make the "
            "step longer",
            field="query",
            limit=f"{CELLS_MAX} values",
        )


def unnamed(labels: Iterable[Labels]) -> Steps[list[Labels]]:
    """Return labels without the metric's name."""
    found = list[Labels]()
    for each in labels:
        found.append({name: value for name, value in each.items() if name != NAME})
        if not len(found) % PER_STEP:
            yield
    return found


def merged(vector: Vector, problem: str) -> Steps[Vector]:
    """Make one series of those with equal labels.

    Raises:
        Refused: with `problem`, where two of them have a sample at the same time.
    """
    rows: dict[frozenset[tuple[str, str]], int] = {}
    first, of = list[int](), np.empty(len(vector.labels), np.int64)
    for i, labels in enumerate(vector.labels):
        row = of[i] = rows.setdefault(frozenset(labels.items()), len(first))
        if row == len(first):
            first.append(i)
        if not i % PER_STEP:
            yield
    if len(first) == len(of):
        return vector
    counts = np.zeros((len(first), vector.there.shape[1]), np.int32)
    np.add.at(counts, of, vector.there)
    yield
    if (counts > 1).any():
        raise Refused(problem, field="query")
    values = np.zeros(counts.shape)
    np.add.at(values, of, np.where(vector.there, vector.values, 0.0))
    return Vector([vector.labels[i] for i in first], values, counts > 0)
