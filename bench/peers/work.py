"""The data, the questions, and what the right answers are. It needs NumPy only: each system has its own environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEYS = 10
LOOKBACKS_MS = (60_000, 600_000, 3_600_000)
SERIES_LOOKBACK_MS = 600_000
SERIES_STEP_MS = 2_500

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Trailing = list[tuple[int, float, float]]
"""Count, mean and maximum for each lookback."""


@dataclass(frozen=True)
class Size:
    """How much is done."""

    entries: int
    bulk: int
    singles: int
    questions: int
    points: int
    pressure_s: float
    every_ms: int = 10


REAL = Size(entries=1_000_000, bulk=10_000, singles=2_000, questions=1_000, points=3_601, pressure_s=5.0)
SMOKE = Size(entries=20_000, bulk=1_000, singles=20, questions=20, points=21, pressure_s=0.5, every_ms=500)


@dataclass(frozen=True)
class Sketches:
    """Median, 99th percentile and the number of distinct values; None where a system has no such answer."""

    median: float | None
    p99: float | None
    distinct: float | None


class Data:
    """Entries of ten keys, one after the other. The values have three decimals, so that some come twice.

    Args:
        size: how many.
        start_ms: the time of the first one, a multiple of `SERIES_STEP_MS`.
    """

    def __init__(self, size: Size, start_ms: int) -> None:
        random = np.random.default_rng(1)
        n = size.entries
        self.start_ms = start_ms
        self.times: Ints = start_ms + size.every_ms * np.arange(n, dtype=np.int64)
        self.codes: Ints = np.arange(n, dtype=np.int64) % KEYS
        self.values: Floats = np.round(random.normal(100, 10, n), 3)
        self.shuffled: Ints = random.permutation(n)

    @property
    def now_ms(self) -> int:
        """A moment after the newest entry, and before the next one would come."""
        return int(self.times[-1]) + 5

    def ends(self, points: int) -> Ints:
        """The moments of a series: each 1 ms before a multiple of the step, so that no entry is on a boundary."""
        last = (self.now_ms - SERIES_STEP_MS) // SERIES_STEP_MS * SERIES_STEP_MS
        return last - 1 - SERIES_STEP_MS * np.arange(points - 1, -1, -1, dtype=np.int64)

    def of(self, code: int) -> tuple[Ints, Floats]:
        """Times and values of a key."""
        here = self.codes == code
        return self.times[here], self.values[here]

    def trailing(self, code: int) -> Trailing:
        """The right answers over the lookbacks."""
        times, values = self.of(code)
        found = (values[times > self.now_ms - lookback] for lookback in LOOKBACKS_MS)
        return [(len(part), float(part.mean()), float(part.max())) for part in found]

    def series(self, code: int, points: int) -> tuple[Floats, Floats]:
        """The right means and maxima at `ends`."""
        times, values = self.of(code)
        ends = self.ends(points)
        first = np.searchsorted(times, ends - SERIES_LOOKBACK_MS, side="right")
        after = np.searchsorted(times, ends, side="right")
        parts = [values[low:high] for low, high in zip(first, after, strict=True)]
        return np.array([part.mean() for part in parts]), np.array([part.max() for part in parts])

    def sketches(self, code: int) -> tuple[Floats, Sketches]:
        """The sorted values over the longest lookback, and the exact answers."""
        times, values = self.of(code)
        found = np.sort(values[times > self.now_ms - LOOKBACKS_MS[-1]])
        median, p99 = np.quantile(found, [0.5, 0.99])
        return found, Sketches(float(median), float(p99), float(len(np.unique(found))))


def key_of(code: int) -> str:
    return f"K{code}"
