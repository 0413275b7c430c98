"""FiBA: windows whose entries come out of order, by a distance d.

    times     0 1 2 … | h h h … h |       the newest d entries stay; each newcomer goes right before them
                      ^ newcomers

    throughput   against d, beside the classic B-tree, which does not know where an entry is likely to go
    latency      slide by slide, at three distances
    in-order     d = 0, against window size, beside the algorithms that can only do that
    sharing      one tree that answers for the whole window and for its newest part, beside a window for each

Source: Tangwongsan, Hirzel, Schneider, "Optimal and general out-of-order sliding-window aggregation", VLDB 2019.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from bench.papers.common import (
    RARITY,
    Study,
    least_of,
    of_size,
    powers,
    processor_seconds,
    quantiles,
    quiet,
    values,
)
from bench.papers.sliding import counting, fill, throughput
from sash_engine.aggregators import FlatFIT, Range, Timed, create
from sash_engine.monoids import Sum

SUM = Sum("int64")
FAR = 2**40
"""Time of the first of the entries that stay newest."""
TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "btree (arity 4)": ("btree", {"min_arity": 4}),
    "fiba (arity 2)": ("fiba", {"min_arity": 2}),
    "fiba (arity 4)": ("fiba", {"min_arity": 4}),
    "fiba (arity 8)": ("fiba", {"min_arity": 8}),
}


# -------------------------------------------------------------------- out of order


def distance(study: Study) -> None:
    """Throughput and combines against the out-of-order distance."""
    n = of_size(study.size, smoke=64, laptop=2**15, full=2**22)
    slides = of_size(study.size, smoke=16, laptop=2**11, full=2**14)
    counted = of_size(study.size, smoke=16, laptop=2**11, full=2**12)
    experiment = study.experiment("throughput", f"out-of-order distance d [entries], n = {n:,}")
    entries = values(slides + counted)
    for series in experiment.each(TREES):
        name, parameters = TREES[series]
        late = Late(create(name, SUM, **parameters), n)
        for d in sorted({*powers(4, 1, n // 2), n // 2}):
            late.set_distance(d)
            with quiet():
                began = processor_seconds()
                answers = late.slide(entries[:slides])
                rate = slides / (processor_seconds() - began)
            with counting(late.window) as counter:
                answers += late.slide(entries[slides:])
            figures = {"slides per second": rate, "combines per slide": counter.combines / counted}
            experiment.add(series, d, figures, answers)


def latency(study: Study) -> None:
    """Latency of slides at three distances."""
    n = of_size(study.size, smoke=64, laptop=2**12, full=2**20)
    repeats = of_size(study.size, smoke=1, laptop=2, full=2)
    slides = of_size(study.size, smoke=2 * n, laptop=2 * n, full=2**17)
    distances = (0, 64 if n > 64 else 16, n // 2)
    experiment = study.experiment("latency", RARITY)
    for name in experiment.each(("btree", "fiba")):
        all_steps, all_answers = least_of(repeats, partial(_steps, name, n, distances, slides, min_arity=4))
        for i, d in enumerate(distances):
            steps, answers = (found[i * slides : (i + 1) * slides] for found in (all_steps, all_answers))
            for x, value in enumerate(quantiles(steps, scale=1e-3).values(), 1):
                experiment.add(f"{name} d = {d:,}", x, {"latency of a slide [µs]": value}, answers, case=d)


class Late:
    """A window of n entries, the newest d of which are far ahead of the others; newcomers go right before them.

    Args:
        window: an empty window, which is filled with n entries.
        n: how many entries the window keeps.
    """

    def __init__(self, window: Timed, n: int) -> None:
        self.window = window
        self._d = 0
        self._now = n
        fill(window, values(n, seed=1))

    def set_distance(self, d: int) -> None:
        """Let entries come far ahead until there are d of them. d never falls."""
        for moment, value in enumerate(values(d - self._d, seed=2), FAR + self._d):
            self.window.evict()
            self.window.insert(moment, value)
        self._d = d

    def slide(self, entries: list[int]) -> list[Any]:
        """Per entry: evict the oldest, insert it at distance d, query; return the answers."""
        window, answers = self.window, []
        for moment, value in enumerate(entries, self._now):
            window.evict()
            window.insert(moment, value)
            answers.append(window.query())
        self._now += len(entries)
        return answers


def _steps(name: str, n: int, distances: Sequence[int], slides: int, **parameters: Any) -> tuple[list[int], list[Any]]:
    """Slide a window at one distance after the other; return the nanoseconds of each slide, and the answers."""
    late, entries = Late(create(name, SUM, **parameters), n), values(slides)
    steps, answers, clock = [], [], time.perf_counter_ns
    for d in distances:
        late.set_distance(d)
        for i in range(slides):
            piece = entries[i : i + 1]
            began = clock()
            answer = late.slide(piece)
            steps.append(clock() - began)
            answers += answer
    return steps, answers


# -------------------------------------------------------------------- in order


def in_order(study: Study) -> None:
    """Throughput of slides in order, as the algorithms for that case do them."""
    most = of_size(study.size, smoke=16, laptop=2**14, full=2**22)
    slides = of_size(study.size, smoke=32, laptop=2**11, full=2**15)
    experiment = study.experiment("in-order", "window size n [entries]")
    contenders: dict[str, tuple[str, dict[str, Any]]] = {
        name: (name, {}) for name in ("two_stacks_lite", "daba_lite", "reactive", "amta")
    } | TREES
    for series in experiment.each(contenders):
        name, parameters = contenders[series]
        for n in powers(4, 4, most):
            count = max(slides, n) if name in ("two_stacks_lite", "daba_lite", "amta") else slides
            rate, answers = throughput(name, SUM, n, count, **parameters)
            experiment.add(series, n, {"slides per second": rate}, answers)


# -------------------------------------------------------------------- sharing


def sharing(study: Study) -> None:
    """Two windows, the newest n entries and the newest `small` of them: one structure, or two."""
    n = of_size(study.size, smoke=64, laptop=2**13, full=2**22)
    slides = of_size(study.size, smoke=16, laptop=2**12, full=2**14)
    experiment = study.experiment("sharing", f"size of the small window [entries]; the large one has {n:,}")
    sizes = powers(4, 1, n)
    runs: dict[str, Callable[[int, list[int], int], Iterator[tuple[float, list[Any]]]]] = {
        "fiba shared": partial(_shared, "fiba"),
        "amta shared": partial(_shared, "amta"),
        "flatfit shared": _flatfit,
        "fiba twice": partial(_twice, "fiba"),
        "daba_lite twice": partial(_twice, "daba_lite"),
    }
    for series in experiment.each(runs):
        for small, (rate, answers) in zip(sizes, runs[series](n, sizes, slides), strict=True):
            experiment.add(series, small, {"slides per second, both answers": rate}, answers)


def _shared(name: str, n: int, sizes: list[int], slides: int) -> Iterator[tuple[float, list[Any]]]:
    """One window of n entries; the small one's answer is that of a range of it. A measurement for each small size."""
    window = create(name, SUM)
    assert isinstance(window, Range)
    entries = values(n + slides * len(sizes))
    fill(window, entries[:n])
    for start, small in zip(range(n, len(entries), slides), sizes, strict=True):
        answers = []
        with quiet():
            began = processor_seconds()
            for now in range(start, start + slides):
                window.evict()
                window.insert(now, entries[now])
                answers.append((window.query(), window.range_query(now - small + 1, now)))
            rate = slides / (processor_seconds() - began)
        yield rate, answers


def _twice(name: str, n: int, sizes: list[int], slides: int) -> Iterator[tuple[float, list[Any]]]:
    """A window for each answer; the small one is new for each size."""
    large = create(name, SUM)
    entries = values(n + slides * len(sizes))
    fill(large, entries[:n])
    for start, small in zip(range(n, len(entries), slides), sizes, strict=True):
        little, answers = create(name, SUM), []
        fill(little, entries[start - small : start], start - small)
        with quiet():
            began = processor_seconds()
            for now in range(start, start + slides):
                for window in (large, little):
                    window.evict()
                    window.insert(now, entries[now])
                answers.append((large.query(), little.query()))
            rate = slides / (processor_seconds() - began)
        yield rate, answers


def _flatfit(n: int, sizes: list[int], slides: int) -> Iterator[tuple[float, list[Any]]]:
    """FlatFIT, whose pointers are made for queries of several lengths. Its walk over the whole window is not timed."""
    window = FlatFIT(SUM)
    entries = values(n + slides * len(sizes))
    fill(window, entries[:n])
    window.query()
    for start, small in zip(range(n, len(entries), slides), sizes, strict=True):
        answers = []
        with quiet():
            began = processor_seconds()
            for now in range(start, start + slides):
                window.evict()
                window.insert(entries[now])
                answers.append((window.query(), window.query_newest(small)))
            rate = slides / (processor_seconds() - began)
        yield rate, answers


EXPERIMENTS = (distance, latency, in_order, sharing)
"""All experiments of the paper."""
