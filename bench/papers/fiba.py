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
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from bench.papers.common import (
    RARITY,
    Panel,
    Study,
    fill,
    least_of,
    of_size,
    powers,
    processor_seconds,
    quantiles,
    quiet,
    quietly,
    throughput,
    values,
)
from sash_engine.aggregators import FlatFIT, Range, Timed, create
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Monoid, Sum

__all__ = ["EXPERIMENTS"]

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
    slides = of_size(study.size, smoke=16, laptop=2**11, full=2**17)
    experiment = study.experiment("throughput", f"out-of-order distance d [entries], n = {n:,}")
    for series, (name, parameters) in TREES.items():
        for d in sorted({*powers(4, 1, n // 2), n // 2}):
            rate, answers = _rate(name, n, d, slides, **parameters)
            combines = _combines(name, n, d, slides, **parameters)
            figures = {"slides per second": rate, "combines per slide": combines / slides}
            experiment.add(series, d, figures, answers)
    experiment.plot(
        Panel("slides per second", "throughput", y="log10"),
        Panel("combines per slide", "combines", y="linear"),
        title=f"FiBA, VLDB 2019: evict the oldest, insert at distance d, query (sum, n = {n:,})",
    )


def latency(study: Study) -> None:
    """Latency of slides at three distances."""
    n = of_size(study.size, smoke=64, laptop=2**12, full=2**20)
    repeats = of_size(study.size, smoke=1, laptop=2, full=3)
    slides = 2 * n
    experiment = study.experiment("latency", "share of slides that are as slow, or slower")
    for name in ("btree", "fiba"):
        for d in (0, 64 if n > 64 else 16, n // 2):
            steps, answers = least_of(repeats, partial(_steps, name, n, d, slides, min_arity=4))
            label = f"{name} d = {d:,}"
            for x, value in zip(RARITY, quantiles(steps, scale=1e-3).values(), strict=True):
                experiment.add(label, x, {"latency of a slide [µs]": value}, answers, case=d)
    experiment.plot(
        Panel("latency of a slide [µs]", "time", ticks=RARITY),
        title=f"FiBA, VLDB 2019: latency (sum, n = {n:,}, arity 4)",
        note=f"Per slide the least of {repeats} runs of the same history; the best of {study.passes} such.",
    )


def _window(name: str, monoid: Monoid, n: int, d: int, **parameters: Any) -> Timed:
    """A window of n entries, the newest d of which are far ahead of the others."""
    window = create(name, monoid, **parameters)
    entries = values(n, seed=1)
    fill(window, entries[: n - d])
    fill(window, entries[n - d :], FAR)
    return window


def _slide(window: Timed, entries: list[int], start: int) -> list[Any]:
    answers = []
    for moment, value in enumerate(entries, start):
        window.evict()
        window.insert(moment, value)
        answers.append(window.query())
    return answers


def _rate(name: str, n: int, d: int, slides: int, **parameters: Any) -> tuple[float, list[Any]]:
    window, entries = _window(name, SUM, n, d, **parameters), values(slides)
    with quiet():
        began = processor_seconds()
        answers = _slide(window, entries, n - d)
        return slides / (processor_seconds() - began), answers


@cache  # a second pass counts the same
def _combines(name: str, n: int, d: int, slides: int, **parameters: Any) -> int:
    counting = Counting(SUM)
    window = _window(name, counting, n, d, **parameters)
    counting.reset()
    _slide(window, values(slides), n - d)
    return counting.combines


def _steps(name: str, n: int, d: int, slides: int, **parameters: Any) -> tuple[list[int], list[Any]]:
    window, entries = _window(name, SUM, n, d, **parameters), values(slides)
    steps, answers, clock = [], [], time.perf_counter_ns
    for i in range(slides):
        piece = entries[i : i + 1]
        began = clock()
        answer = _slide(window, piece, n - d + i)
        steps.append(clock() - began)
        answers += answer
    return steps, answers


# -------------------------------------------------------------------- in order


def in_order(study: Study) -> None:
    """Throughput of slides in order, as the algorithms for that case do them."""
    most = of_size(study.size, smoke=16, laptop=2**14, full=2**22)
    slides = of_size(study.size, smoke=32, laptop=2**11, full=2**17)
    experiment = study.experiment("in-order", "window size n [entries]")
    contenders: dict[str, tuple[str, dict[str, Any]]] = {
        name: (name, {}) for name in ("two_stacks_lite", "daba_lite", "reactive", "amta")
    } | TREES
    for series, (name, parameters) in contenders.items():
        for n in powers(4, 4, most):
            count = max(slides, n) if name in ("two_stacks_lite", "daba_lite", "amta") else slides
            rate, answers = throughput(name, SUM, n, count, **parameters)
            experiment.add(series, n, {"slides per second": rate}, answers)
    experiment.plot(
        Panel("slides per second", "in order, d = 0"),
        title="FiBA, VLDB 2019: evict one, insert one, query (sum)",
    )


# -------------------------------------------------------------------- sharing


def sharing(study: Study) -> None:
    """Two windows, the newest n entries and the newest `small` of them: one structure, or two."""
    n = of_size(study.size, smoke=64, laptop=2**13, full=2**22)
    slides = of_size(study.size, smoke=16, laptop=2**12, full=2**17)
    experiment = study.experiment("sharing", f"size of the small window [entries]; the large one has {n:,}")
    for small in powers(4, 1, n):
        runs: dict[str, Callable[[int, int, int], tuple[float, list[Any]]]] = {
            "fiba shared": partial(_shared, "fiba"),
            "amta shared": partial(_shared, "amta"),
            "flatfit shared": _flatfit,
            "fiba twice": partial(_twice, "fiba"),
            "daba_lite twice": partial(_twice, "daba_lite"),
        }
        for series, once in runs.items():
            rate, answers = quietly(partial(once, n, small, slides))
            experiment.add(series, small, {"slides per second, both answers": rate}, answers)
    experiment.plot(
        Panel("slides per second, both answers", f"large window {n:,}"),
        title="FiBA, VLDB 2019: window sharing: insert one, answer for both windows (sum)",
    )


def _shared(name: str, n: int, small: int, slides: int) -> tuple[float, list[Any]]:
    """One window of n entries; the small one's answer is that of a range of it."""
    window = create(name, SUM)
    assert isinstance(window, Range)
    entries, answers = values(n + slides), []
    fill(window, entries[:n])
    began = processor_seconds()
    for now in range(n, n + slides):
        window.evict()
        window.insert(now, entries[now])
        answers.append((window.query(), window.range_query(now - small + 1, now)))
    return slides / (processor_seconds() - began), answers


def _twice(name: str, n: int, small: int, slides: int) -> tuple[float, list[Any]]:
    """A window for each answer."""
    large, little = create(name, SUM), create(name, SUM)
    entries, answers = values(n + slides), []
    fill(large, entries[:n])
    fill(little, entries[n - small : n], n - small)
    began = processor_seconds()
    for now in range(n, n + slides):
        for window in (large, little):
            window.evict()
            window.insert(now, entries[now])
        answers.append((large.query(), little.query()))
    return slides / (processor_seconds() - began), answers


def _flatfit(n: int, small: int, slides: int) -> tuple[float, list[Any]]:
    """FlatFIT, whose pointers are made for queries of several lengths."""
    window = FlatFIT(SUM)
    entries, answers = values(n + slides), []
    fill(window, entries[:n])
    began = processor_seconds()
    for now in range(n, n + slides):
        window.evict()
        window.insert(entries[now])
        answers.append((window.query(), window.query_newest(small)))
    return slides / (processor_seconds() - began), answers


EXPERIMENTS = (distance, latency, in_order, sharing)
"""All experiments of the paper."""
