"""Sizes of `bench.engine`, and the table that it prints."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.harness import row, timed

Array = npt.NDArray[Any]
clock = time.perf_counter

CPP = {  # DESIGN §3, ns per entry: AMTA, bulk FiBA of arity 8, DABA Lite (IBM/sliding-window-aggregators, -O3)
    1: (26.0, 38.0, 8.6),
    64: (25.0, 30.0, 10.0),
    1024: (8.1, 18.0, 12.0),
    65536: (5.2, 16.0, 12.0),
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    entries: int
    rounds_of: dict[int, int]
    flat_exponents: tuple[int, ...]
    flat_rounds: int
    repeats: int
    series_entries: int
    series_steps: int
    far: int
    spread: int


REAL = Size(
    entries=2**22,
    rounds_of={1: 60_000, 64: 20_000, 1000: 4_000, 1024: 4_000, 65536: 200},
    flat_exponents=(10, 12, 14, 16, 18, 20, 22, 24),
    flat_rounds=20_000,
    repeats=200,
    series_entries=100_000,
    series_steps=3601,
    far=65_536,
    spread=2**20,
)
SMOKE = Size(
    entries=2**15,
    rounds_of={1: 2048, 64: 100, 1000: 20, 1024: 20, 65536: 2},
    flat_exponents=(10, 12, 14),
    flat_rounds=2048,
    repeats=5,
    series_entries=5_000,
    series_steps=301,
    far=4_096,
    spread=2**14,
)
FOLDS: dict[str, Callable[[Array], float]] = {
    "sum": lambda values: float(np.sum(values)),
    "max": lambda values: float(np.max(values)),
    "stddev": lambda values: float(np.std(values, ddof=1)),
}


def one_call() -> float:
    """What one NumPy reduction of 1,024 values takes just now: 1.35 µs where nobody else uses the machine."""
    values, add = np.ones(1024), np.add.reduce
    return statistics.median(timed(lambda: add(values), clock) for _ in range(500))


@dataclass
class Report:
    """The table, which is printed row by row, and the digest of what was answered."""

    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, what: str, seconds: float, goal_us: float | None, per: int = 0) -> None:
        """Add one duration; `per` entries, where the goal was set per entry."""
        us = seconds * 1e6
        each = f"{us * 1e3 / per:.2f}" if per else ""
        cpp = "/".join(f"{figure:g}" for figure in CPP.get(per, ())) if what.startswith("round") else ""
        goal = "" if goal_us is None else f"{goal_us:g}"
        met = "" if goal_us is None else "yes" if us <= goal_us else f"{us / goal_us:.2f} x"
        self.row(what, f"{us:.2f} µs", each, goal and f"{goal} µs", met, cpp)

    def row(self, *cells: str) -> None:
        row(*cells, f"{one_call() * 1e6:.2f}")

    def expect(self, name: str, found: float, values: Array) -> None:
        """Compare an answer with the plain fold, and put it into the digest."""
        expected = FOLDS[name](values)
        if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-6):
            raise SystemExit(f"{name} is {found}, the plain fold says {expected}")
        self.digest.update(f"{name} {expected:.9e}\n".encode())
