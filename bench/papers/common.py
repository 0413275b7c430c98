"""What the experiments share: sizes, timing, answers that have to agree, a CSV and plots per paper.

    Study("daba", LAPTOP, folder)                  one paper
    └ Experiment "throughput"                      one question: x is what varies
      └ add(series, x, figures, answers)           one measurement; the answers are compared at once
    -> folder/daba.csv, folder/daba-throughput.png

Rates are over processor time, which leaves out the turns of other programs; latencies are of the wall clock. If the
experiments of a paper run several times, the best of each figure is kept: the same history costs the same each time,
so only the machine makes a difference, and it can only slow a run down. For the same reason a latency distribution is
of the least time of each step. The garbage collector is off. Combines are counted by a monoid and do not depend on the
machine.

Every measurement brings the answers that it got. Within an experiment all series with the same `case` (by
default the same x) must give the same ones, as far as the shorter of them goes; else `AnswersDiffer` is raised.

Does not show: anything but shapes and ratios. Python's cost per operation is ten to a hundred times that of C++, and
much of it is not the algorithm's.
"""

from __future__ import annotations

import csv
import gc
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from bench.papers.plots import draw
from sash_engine.monoids.laws import close

Size = Literal["smoke", "laptop", "full"]
TOLERANCE = 1e-9
"""Floats of two algorithms may differ by the grouping of their sums."""
SHOWN = 1000
"""The digest in the CSV is over this many answers, which every series has or is short of for a stated reason."""

T = TypeVar("T")


def of_size(size: Size, *, smoke: T, laptop: T, full: T) -> T:
    """Pick a parameter."""
    return {"smoke": smoke, "laptop": laptop, "full": full}[size]


def powers(base: int, first: int, last: int) -> list[int]:
    """base^i for first <= base^i <= last."""
    return [base**i for i in range(64) if first <= base**i <= last]


def values(count: int, *, seed: int = 7) -> list[int]:
    """Make values from 1 to 1000, the same in every run."""
    return np.random.default_rng(seed).integers(1, 1001, count).tolist()  # type: ignore[no-any-return]


# -------------------------------------------------------------------- figures


class AnswersDiffer(AssertionError):
    """Two algorithms answered the same question differently: one of them is wrong."""


@dataclass(frozen=True)
class Row:
    """A line of the CSV."""

    experiment: str
    series: str
    parameter: str
    x: float
    measure: str
    value: float
    answers: int
    digest: str


class Study:
    """One paper's experiments.

    Args:
        paper: names the files.
        size: how much is measured.
        folder: where CSV and plots go.
        passes: how many times all its experiments are to be run; 1 or 2 by the size where None.
    """

    def __init__(self, paper: str, size: Size, folder: Path, passes: int | None = None) -> None:
        self.paper = paper
        self.size = size
        self.folder = folder
        self._rows: dict[tuple[str, str, float, str], Row] = {}
        self.passes = passes or of_size(size, smoke=1, laptop=2, full=1)
        self.experiments: dict[str, Experiment] = {}
        self._began = time.perf_counter()

    @property
    def rows(self) -> list[Row]:
        """All figures, in the order in which they were first taken."""
        return list(self._rows.values())

    def keep(self, row: Row) -> None:
        """Take down a figure; of rates the highest is kept, of latencies the least, of others the last."""
        key = (row.experiment, row.series, row.x, row.measure)
        known = self._rows.get(key)
        if known is not None and "per second" in row.measure:
            row = max(row, known, key=attrgetter("value"))
        elif known is not None and "µs" in row.measure:
            row = min(row, known, key=attrgetter("value"))
        self._rows[key] = row

    def experiment(self, name: str, parameter: str, ticks: Sequence[str] = ()) -> Experiment:
        """Begin an experiment.

        Args:
            parameter: what x is, with its unit.
            ticks: names of x = 0, 1, …, where it is no number.
        """
        self.experiments[name] = Experiment(self, name, parameter, ticks)
        return self.experiments[name]

    def log(self, text: str) -> None:
        """Say how far it has come."""
        print(f"{time.perf_counter() - self._began:7.1f} s  {self.paper:10} {text}", flush=True)

    def write(self) -> Path:
        """Write all figures, and draw each experiment; return the file of the figures."""
        path = self.folder / f"{self.paper}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row.__dataclass_fields__)
            for row in self.rows:
                cells = vars(row) | {"x": f"{row.x:.10g}", "value": f"{row.value:.5g}"}
                writer.writerow(cells.values())
        for each in self.experiments.values():
            mine = [row for row in self.rows if row.experiment == each.name]
            if any(row.x for row in mine):  # what has no x has no plot
                measures = {row.measure: each.lines(row.measure) for row in mine}
                title = f"{self.paper}: {each.name} ({self.size})"
                draw(self.folder / f"{self.paper}-{each.name}.png", measures, each.parameter, title, each.ticks)
        return path


class Experiment:
    """One question, put to several series."""

    def __init__(self, study: Study, name: str, parameter: str, ticks: Sequence[str] = ()) -> None:
        self.study, self.name, self.parameter, self.ticks = study, name, parameter, ticks
        self.answers: dict[Any, tuple[str, Sequence[Any]]] = {}
        """Case -> the longest answers so far, and the series that gave them."""

    def each(self, series: Iterable[T]) -> Iterator[T]:
        """Yield each series, once the windows of the one before are gone."""
        for name in series:
            gc.collect()
            yield name

    def add(
        self, series: str, x: float, figures: Mapping[str, float], answers: Sequence[Any], *, case: Any = None
    ) -> None:
        """Take down a measurement.

        Args:
            series: whose it is.
            x: where.
            figures: measure, with its unit -> value.
            answers: what was answered on the way, at least one.
            case: what the answers depend on; x where None.

        Raises:
            AnswersDiffer: another series of the same case answered differently.
        """
        self._compare(series, x if case is None else case, answers)
        digest = hashlib.sha256(repr([_rounded(answer) for answer in answers[:SHOWN]]).encode()).hexdigest()[:8]
        for measure, value in figures.items():
            self.study.keep(Row(self.name, series, self.parameter, x, measure, value, len(answers), digest))
        shown = ", ".join(f"{value:.4g} {measure}" for measure, value in list(figures.items())[:2])
        self.study.log(f"{self.name:24} {series:28} {x:<10g} {shown}")

    def _compare(self, series: str, case: Any, answers: Sequence[Any]) -> None:
        if not answers:
            raise AnswersDiffer(f"{self.name}, {series}: no answers")
        other, known = self.answers.setdefault(case, (series, answers))
        for i, (expected, found) in enumerate(zip(known, answers, strict=False)):
            if expected != found and not close(expected, found, TOLERANCE):
                raise AnswersDiffer(
                    f"{self.study.paper}, {self.name} at {case}: answer {i} is {found!r} by {series}, "
                    f"but {expected!r} by {other}"
                )
        if len(answers) > len(known):
            self.answers[case] = series, answers

    def lines(self, measure: str) -> dict[str, tuple[list[float], list[float]]]:
        """Series -> xs and values of one measure."""
        found: dict[str, tuple[list[float], list[float]]] = {}
        for row in self.study.rows:
            if (row.experiment, row.measure) == (self.name, measure):
                xs, ys = found.setdefault(row.series, ([], []))
                xs.append(row.x)
                ys.append(row.value)
        return found


def _rounded(answer: Any) -> Any:
    """An answer as the digest sees it: floats to seven digits, so that the grouping of sums does not show."""
    if isinstance(answer, float):
        return f"{answer:.7g}"
    return [_rounded(part) for part in answer] if isinstance(answer, (list, tuple)) else answer


# -------------------------------------------------------------------- timing

processor_seconds = time.process_time
"""The clock of all rates."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the garbage collector out: it clears up before, and does nothing inside.

    Within another `quiet`, as in a whole run, it does not clear up either: with millions of entries that takes seconds.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def quietly(run: Callable[[], T]) -> T:
    """Run in quiet."""
    with quiet():
        return run()


def least_of(repeats: int, run: Callable[[], tuple[list[int], T]]) -> tuple[list[int], T]:
    """Run the same history several times; return the least time of each step, and what the last run returned."""
    least: list[int] = []
    for _ in range(repeats):
        with quiet():
            steps, result = run()
        least = [min(pair) for pair in zip(least, steps, strict=True)] if least else steps
    return least, result


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}


RARITY = "share of slides as slow or slower: 1 half, 2 one in 10, 3 in 100, 4 in 1,000, 5 in 10,000, 6 the worst"
"""What x is, where it numbers the quantiles."""


def quantiles(steps: Sequence[float], *, scale: float = 1.0) -> dict[str, float]:
    """p50 to max of some steps, each one that occurred (no interpolation), times `scale`."""
    ordered = sorted(steps)
    last = len(ordered) - 1
    return {name: scale * ordered[min(last, math.ceil(q * len(ordered)) - 1)] for name, q in QUANTILES.items()}
