"""The values of an expression at all of its times at once.

    scalar    float64 (n,)
    vector    s series: labels of each, values float64 (s, n), there bool (s, n)

Where `there` is False, the series has no sample at that time. What an expression makes is bounded as it grows: a vector
by `check_cells`, what waits and what is in progress by `Room`.

    a + (b + (c + d))      a and b wait: they are held
              └── in progress: promised, because what it makes is not there yet
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from sash.limits.memory import MemoryBudget
from sash.promql.errors import Refused
from sash_engine.steps import Steps

NAME = "__name__"
LOOKBACK = "__lookback__"
"""Not a label: `window:aggregate{__lookback__="5m"}` is the aggregate over the last five minutes."""

SERIES_MAX = 10_000
CELLS_MAX = 2_000_000
"""Values of one vector, of all series and times: 18 MB, and a pass over them takes 2 ms."""

CHARACTERS_OF_SERIES_MAX = 16_384
"""Characters of the names and values of a series' labels, where an expression sets one: as many as it may have."""

LABELS_BYTES_MAX = 64 * 2**20
"""Bytes of the labels of a vector, where an expression sets some: 6,700 for each of `SERIES_MAX` series."""

LABELS_LISTED_MAX = 100
"""Labels that one list of an expression may name: `by (…)`, `on (…)`, `group_left (…)`, those that are joined."""

HELD_BYTES_MAX = 128 * 2**20
"""Bytes of the parts of an expression that wait for others: seven vectors of `CELLS_MAX` values."""

_SMALL_BYTES = 2**20
"""Less is not counted: it would cost as much as to make it."""

_LABELS_PER_STEP = 3_000
"""Labels that one step looks at: 1 ms; a series takes as long as two of them."""

Array = npt.NDArray[Any]
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


class LabelsMade:
    """The labels of the series of a vector, as an expression sets some of them. How long they get is checked before.

    Args:
        where: what sets them, as an error says it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._bytes = 0
        self.labels = list[Labels]()

    def check(self, labels: Labels, name: str, characters: int) -> None:
        """Check that a label of a series can be set to a value of so many characters.

        Raises:
            Refused: the labels of the series would get too long.
        """
        total = len(name) + characters
        for each, value in labels.items():
            if each != name:
                total += len(each) + len(value)
        if total > CHARACTERS_OF_SERIES_MAX:
            raise Refused(
                f"{self._where}: with label {name[:80]!r}, the labels of a series would have {total:,} characters; "
                f"{CHARACTERS_OF_SERIES_MAX:,} are allowed",
                field="query",
                limit=f"{CHARACTERS_OF_SERIES_MAX} characters",
            )

    def append(self, labels: Labels) -> None:
        """Append the labels of the next series.

        Raises:
            Refused: those of all series take too much memory.
        """
        self._bytes += _bytes_of_labels(labels)
        if self._bytes > LABELS_BYTES_MAX:
            raise Refused(
                f"{self._where}: the labels of all series would take more than {LABELS_BYTES_MAX >> 20} MiB; narrow "
                "the selectors",
                field="query",
                limit=f"{LABELS_BYTES_MAX} bytes",
            )
        self.labels.append(labels)


def bytes_of(value: Value) -> int:
    """How much memory a value takes, from above: labels may be shared with another one."""
    if isinstance(value, Scalar):
        return int(value.values.nbytes)
    if isinstance(value, Text):
        return getsizeof(value.text)
    times = 0 if value.times_ms is None else value.times_ms.nbytes
    return int(value.values.nbytes + value.there.nbytes + times + sum(map(_bytes_of_labels, value.labels)))


def _bytes_of_labels(labels: Labels) -> int:
    return getsizeof(labels) + sum(map(getsizeof, labels.values()))


def listed(where: str, names: Collection[str]) -> tuple[str, ...]:
    """The labels that an expression lists.

    Raises:
        Refused: they are too many.
    """
    if len(names) > LABELS_LISTED_MAX:
        raise Refused(
            f"{where}: {len(names)} labels are listed; {LABELS_LISTED_MAX} are allowed",
            field="query",
            limit=f"{LABELS_LISTED_MAX} labels",
        )
    return tuple(names)


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


def per_step(labels: Sequence[Labels]) -> int:
    """How many series are one step, where all of their labels are looked at."""
    return max(1, _LABELS_PER_STEP // (2 + max(map(len, labels), default=0)))


def unnamed(labels: Sequence[Labels]) -> Steps[list[Labels]]:
    """Return labels without the metric's name."""
    found, at_once = list[Labels](), per_step(labels)
    for each in labels:
        found.append({name: value for name, value in each.items() if name != NAME})
        if not len(found) % at_once:
            yield
    return found


def merged(vector: Vector, problem: str = "vector cannot contain metrics with the same labelset") -> Steps[Vector]:
    """Make one series of those with equal labels.

    Raises:
        Refused: with `problem`, where two of them have a sample at the same time.
    """
    rows: dict[frozenset[tuple[str, str]], int] = {}
    first, of, at_once = list[int](), np.empty(len(vector.labels), np.int64), per_step(vector.labels)
    for i, labels in enumerate(vector.labels):
        row = of[i] = rows.setdefault(frozenset(labels.items()), len(first))
        if row == len(first):
            first.append(i)
        if not i % at_once:
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


def without_name(vector: Vector) -> Steps[Vector]:
    """The series without the metric's name; raises as `merged`."""
    labels = yield from unnamed(vector.labels)
    return (yield from merged(Vector(labels, vector.values, vector.there)))


def stacked(vectors: Iterable[Vector], count: int) -> Vector:
    """All series of several vectors."""
    found = [vector for vector in vectors if vector.labels]
    if not found:
        return Vector.empty(count)
    labels = [labels for vector in found for labels in vector.labels]
    check_cells(len(labels), count)
    times = None
    if all(vector.times_ms is not None for vector in found):
        times = np.concatenate([vector.times_ms for vector in found if vector.times_ms is not None])
    return Vector(
        labels,
        np.concatenate([vector.values for vector in found]),
        np.concatenate([vector.there for vector in found]),
        times_ms=times,
    )


def spread(vector: Vector, count: int) -> Vector:
    """A vector of one time at `count` times, where `@` fixes it."""
    if vector.there.shape[1] == count:
        return vector
    check_cells(len(vector.labels), count)
    return Vector(
        vector.labels,
        np.repeat(vector.values, count, 1),
        np.repeat(vector.there, count, 1),
        times_ms=None if vector.times_ms is None else np.repeat(vector.times_ms, count, 1),
    )


class Room:
    """The memory that one expression takes.

    Args:
        memory: of the service.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._held_bytes = 0

    @contextmanager
    def held(self, value: Value) -> Iterator[None]:
        """Count a value that waits inside the `with` block.

        Raises:
            Refused: too much waits.
        """
        size = bytes_of(value)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise Refused(
                f"the parts of the expression that wait for others take more than {HELD_BYTES_MAX >> 20} MiB; narrow "
                "the selectors, make the step longer, or ask for the parts one by one",
                field="query",
                limit=f"{HELD_BYTES_MAX} bytes",
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    @contextmanager
    def promised(self, needed: int) -> Iterator[None]:
        """Promise so many bytes inside the `with` block, in which they are made.

        Raises:
            ResourceExhausted: the service has no room for them now.
            TooLarge: it never has.
        """
        if needed < _SMALL_BYTES:
            yield
            return
        self._memory.check(needed, transient=True)
        with self._memory.promised(needed):
            yield
