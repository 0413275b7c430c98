"""Windows that slide by one: how they are filled, slid, timed and counted.

A large window is filled once and slides on from one measurement to the next (`Kept`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from bench.papers.common import (
    QUANTILES,
    RARITY,
    Study,
    least_of,
    of_size,
    processor_seconds,
    quantiles,
    quiet,
    values,
)
from sash_engine.aggregators import ALGORITHMS, InOrder, Timed, TimedInOrder
from sash_engine.aggregators.base import Aggregator
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Monoid


def fill(window: Aggregator, entries: Sequence[Any], start: int = 0) -> None:
    """Insert entries at the times start, start + 1, …"""
    if isinstance(window, Timed):
        for moment, value in enumerate(entries, start):
            window.insert(moment, value)
    else:
        assert isinstance(window, InOrder)
        for value in entries:
            window.insert(value)


def slide(window: Aggregator, entries: Sequence[Any], start: int) -> list[Any]:
    """Per entry: evict the oldest, insert it, query; return the answers."""
    query, answers = window.query, list[Any]()
    answer = answers.append
    if isinstance(window, Timed):
        insert_at, evict_at = window.insert, window.evict
        for moment, value in enumerate(entries, start):
            evict_at()
            insert_at(moment, value)
            answer(query())
    else:
        assert isinstance(window, InOrder)
        insert, evict = window.insert, window.evict
        for value in entries:
            evict()
            insert(value)
            answer(query())
    return answers


@contextmanager
def counting(window: Aggregator) -> Iterator[Counting]:
    """Count the combines of a window for a while; before and after, they cost no more than they do without it.

    A window of `TimedInOrder` combines in another window, and cannot be counted like this.
    """
    assert not isinstance(window, TimedInOrder)
    monoid = window.monoid
    window.monoid = counter = Counting(monoid)
    try:
        yield counter
    finally:
        window.monoid = monoid


class Kept:
    """A window of n entries of a stream, which is filled once and slides on from one measurement to the next.

        stream   0 1 2 … | the window's n entries | newcomers …
                         ^ start                  ^ start + n

    All series of an experiment begin the measurement at x with the same start, so their answers compare. A series that
    slides further than the others does not stand there any more at the next x, and gets a new window.

    Args:
        make: makes an empty window.
        n: its entries.
        stream: what comes.
        anew: fill a new window for every measurement. For algorithms that do the work of n slides in one of them:
            each measurement then begins with that slide.
    """

    def __init__(self, make: Callable[[], Aggregator], n: int, stream: Sequence[Any], *, anew: bool = False) -> None:
        self._make = make
        self._n = n
        self._stream = stream
        self._anew = anew
        self._window: Aggregator | None = None
        self.start = 0

    def at(self, start: int) -> Aggregator:
        """Return the window of the n entries from `start` on."""
        if self._window is None or self.start != start or self._anew:
            self._window = None  # one at a time
            gc.collect()
            self._window = self._make()
            self.start = start
            fill(self._window, self._stream[start : start + self._n], start)
        return self._window

    def newcomers(self, count: int) -> Sequence[Any]:
        """Return the next entries; the caller inserts all of them, and evicts as many of the oldest."""
        first = self.start + self._n
        assert first + count <= len(self._stream)
        self.start += count
        return self._stream[first : first + count]


PERIODIC = ("two_stacks", "two_stacks_lite", "flatfit")
"""Algorithms that do the work of n slides in one of them."""


def throughput(name: str, monoid: Monoid, n: int, slides: int, **parameters: Any) -> tuple[float, list[Any]]:
    """Slide a window of n entries one by one; return slides per second, and the answers."""
    window = ALGORITHMS[name](monoid, **parameters)
    entries = values(n + slides)
    fill(window, entries[:n])
    newcomers = entries[n:]
    with quiet():
        began = processor_seconds()
        answers = slide(window, newcomers, n)
        return slides / (processor_seconds() - began), answers


def latencies(make: Callable[[Monoid], Aggregator], monoid: Monoid, n: int, slides: int) -> tuple[list[int], list[Any]]:
    """Slide a new window of n entries; return the nanoseconds of each slide (evict, insert, query), and the answers."""
    window = make(monoid)
    entries = values(n + slides)
    fill(window, entries[:n])
    steps, answers, clock = [], [], time.perf_counter_ns
    for at in range(n, n + slides):
        piece = entries[at : at + 1]
        began = clock()
        answer = slide(window, piece, at)
        steps.append(clock() - began)
        answers += answer
    return steps, answers


@cache  # a second pass counts the same
def combines_per_slide(make: Callable[[Monoid], Aggregator], monoid: Monoid, n: int, slides: int) -> list[int]:
    """Slide a new window of n entries; return the combines of each slide."""
    counting = Counting(monoid)
    window = make(counting)
    entries = values(n + slides)
    fill(window, entries[:n])
    counting.reset()
    steps = []
    for at in range(n, n + slides):
        slide(window, entries[at : at + 1], at)
        steps.append(counting.reset())
    return steps


def latency_experiment(
    study: Study, names: Sequence[str], monoid: Monoid, of: str, *, smoke: int, laptop: int, full: int
) -> None:
    """Latency and combines of the slides of some algorithms at one window size n, as quantiles over `RARITY`.

    There are 4n slides, and n at the full size: all that happens once in n slides happens in them.

    Args:
        of: what the plot's title says before the sizes.
        smoke, laptop, full: the window's size n at each size of the study.
    """
    n = of_size(study.size, smoke=smoke, laptop=laptop, full=full)
    slides = of_size(study.size, smoke=4 * n, laptop=4 * n, full=n)
    repeats = of_size(study.size, smoke=1, laptop=2, full=2)
    experiment = study.experiment("latency", RARITY)
    for name in experiment.each(names):
        make = ALGORITHMS[name]
        steps, answers = least_of(repeats, partial(latencies, make, monoid, n, slides))
        combines = combines_per_slide(make, monoid, n, slides)
        times, counts = quantiles(steps, scale=1e-3), quantiles(combines)
        for x, quantile in enumerate(QUANTILES, 1):
            figures = {"latency of a slide [µs]": times[quantile], "combines of a slide": counts[quantile]}
            experiment.add(name, x, figures, answers, case="slides")
