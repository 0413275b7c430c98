"""Bulk FiBA: whole batches that leave and come, in order and out of order, and on real flights.

    arrivals     the entry of time i arrives at i + U(0, d): every batch of m arrivals is spread over the newest d
                 times, and the m oldest that leave for it have all arrived

    bulk-evict    latency of evicting m at once, in order, against m
    bulk-insert   throughput of rounds (evict m, insert m, query) in order, against m
    distance      the same out of order, against d
    flights       departures of a year, reported when they landed, in batches of ten minutes to a week

`forest` is the columnar engine: its entries come and go as arrays, which the others take as pairs of Python numbers.

Source: Tangwongsan, Hirzel, Schneider, "Out-of-order sliding-window aggregation with efficient bulk evictions and
insertions", VLDB 2023.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.papers.common import Study, of_size, powers, processor_seconds, quiet, quietly
from bench.papers.sliding import PERIODIC
from sash_engine.aggregators import Bulk, Capability, create
from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Sum
from sash_spark.flights import load_flights

Longs = npt.NDArray[np.int64]
Batch = tuple[Longs, Longs]
"""Times and values of entries, in the order of their arrival."""


class Contender(ABC):
    """A window that takes batches, one way or another."""

    @abstractmethod
    def insert(self, batch: Any) -> None:
        """Insert what `prepare` made."""

    @abstractmethod
    def evict(self, time: int) -> None:
        """Evict everything up to a time."""

    @abstractmethod
    def query(self) -> int:
        """Return the sum."""

    @staticmethod
    def prepare(batch: Batch) -> Any:
        """Bring a batch into the form that the window takes; not timed."""
        return list(zip(batch[0].tolist(), batch[1].tolist(), strict=True))


class Tuples(Contender):
    """One of the field's algorithms; in bulk as far as it can and `bulk` says, else one by one."""

    def __init__(self, name: str, *, bulk: bool = True, **parameters: Any) -> None:
        self._window = create(name, Sum("int64"), **parameters)
        self._bulk_evict = bulk and Capability.BULK_EVICT in self._window.capabilities
        self._bulk_insert = bulk and isinstance(self._window, Bulk)

    def insert(self, batch: list[tuple[int, int]]) -> None:
        if self._bulk_insert:
            self._window.bulk_insert(batch)
            return
        insert = self._window.insert
        for moment, value in batch:
            insert(moment, value)

    def evict(self, time: int) -> None:
        window = self._window
        if self._bulk_evict:
            window.bulk_evict(time)
            return
        while (oldest := window.oldest) is not None and oldest <= time:
            window.evict()

    def query(self) -> int:
        return int(self._window.query())


class Columns(Contender):
    """The columnar engine."""

    def __init__(self) -> None:
        self._forest = Forest(Layout({"value": "int64"}, {"sum": (Sum("int64"), ["value"])}))

    @staticmethod
    def prepare(batch: Batch) -> Any:
        if len(batch[0]) == 1:
            return batch[0].item(), (batch[1].item(),)
        return batch[0].copy(), (batch[1].copy(),)  # the forest keeps what it is given

    def insert(self, batch: Any) -> None:
        moments, columns = batch
        if isinstance(moments, int):
            self._forest.insert(moments, columns)
        else:
            self._forest.bulk_insert(moments, columns)

    def evict(self, time: int) -> None:
        self._forest.bulk_evict(time)
        while self._forest.sweep():
            pass  # memory is given back within the measurement, as the others do

    def query(self) -> int:
        (answer,) = self._forest.query()
        return int(answer)


IN_ORDER: dict[str, Callable[[], Contender]] = {
    "two_stacks_lite": lambda: Tuples("two_stacks_lite"),
    "daba_lite": lambda: Tuples("daba_lite"),
    "amta": lambda: Tuples("amta"),
}
ANY_ORDER: dict[str, Callable[[], Contender]] = {
    "fiba (one by one)": lambda: Tuples("fiba"),
    "bulk_fiba (arity 2)": lambda: Tuples("bulk_fiba", min_arity=2),
    "bulk_fiba (arity 4)": lambda: Tuples("bulk_fiba", min_arity=4),
    "bulk_fiba (arity 8)": lambda: Tuples("bulk_fiba", min_arity=8),
    "forest": Columns,
}


# -------------------------------------------------------------------- made-up streams


def batches_in_order(study: Study) -> None:
    """Bulk evictions and insertions of m entries in order."""
    n = of_size(study.size, smoke=256, laptop=2**14, full=2**22)
    target = of_size(study.size, smoke=256, laptop=2**13, full=2**17)
    least = of_size(study.size, smoke=5, laptop=5, full=2)
    evict = study.experiment("bulk-evict", f"entries evicted m, n = {n:,}")
    insert = study.experiment("bulk-insert", f"batch m [entries], n = {n:,}")
    contenders = {**IN_ORDER, **ANY_ORDER}
    for series in evict.each(contenders):
        window, start = Filled(contenders[series], n), 0
        for m in powers(4, 1, n):
            rounds = usual = max(least, min(2048, target // m))
            if series in PERIODIC and study.size == "full":
                window, rounds = Filled(contenders[series], n, start), max(least, n // m)
            figures, answers = window.rounds(m, 0, rounds)
            evict.add(series, m, {"latency of evicting m [µs]": 1e6 * figures["evict"]}, answers)
            insert.add(series, m, {"entries per second": m / figures["round"]}, answers)
            start += m * usual


def distance(study: Study) -> None:
    """Rounds of m entries that are spread over the newest d."""
    n = of_size(study.size, smoke=256, laptop=2**14, full=2**22)
    target = of_size(study.size, smoke=256, laptop=2**13, full=2**16)
    least, most = of_size(study.size, smoke=(5, 1024), laptop=(5, 1024), full=(2, 4096))
    batches = of_size(study.size, smoke=(1, 64), laptop=(1, 64, 1024), full=(1, 64, 1024, 65536))
    distances = of_size(study.size, smoke=powers(4, 1, n), laptop=powers(4, 1, n), full=powers(16, 1, 2**16))
    experiment = study.experiment("distance", f"out-of-order distance d [entries], n = {n:,}")
    for series in experiment.each(ANY_ORDER):
        window = Filled(ANY_ORDER[series], n)
        for m in reversed(batches):
            if m == 1 and series in ("bulk_fiba (arity 2)", "bulk_fiba (arity 8)"):
                continue
            for d in sorted({*(d for d in distances if d <= n // 2), n // 2}):
                figures, answers = window.rounds(m, d, max(least, min(most, target // m)))
                measure = f"entries per second, m = {m:,}"
                experiment.add(series, d, {measure: m / figures["round"]}, answers, case=(m, d))


def arrivals(count: int, d: int) -> Longs:
    """Return the times 0 to count - 1 in the order of arrival: each is delayed by up to d places."""
    times = np.arange(count, dtype=np.int64)
    if not d:
        return times
    return times[np.argsort(times + np.random.default_rng(11).integers(0, d + 1, count), kind="stable")]


def values_at(times: Longs) -> Longs:
    """Return the values of entries, from 1 to 1,009: a function of their times, whatever the order of arrival."""
    return times * 7919 % 1009 + 1


class Filled:
    """A contender with n entries, which is filled once and slides on from one measurement to the next.

    A measurement at distance d begins with d arrivals that are not measured, so that later ones come late. What has
    not arrived at its end never arrives: the next measurement begins with times above all of them.

    Args:
        make: makes an empty contender.
        n: how many entries it keeps.
        start: the least time.
    """

    def __init__(self, make: Callable[[], Contender], n: int, start: int = 0) -> None:
        self._window = make()
        self.times = np.arange(start, start + n, dtype=np.int64)  # of its entries, in order
        for batch in self._batches(self.times, 1024):
            self._window.insert(batch)

    def _batches(self, times: Longs, m: int) -> list[Any]:
        """Make batches of m entries of entries with these times, in the form that the contender takes."""
        pieces = [times[at : at + m] for at in range(0, len(times), m)]
        return [self._window.prepare((piece, values_at(piece))) for piece in pieces]

    def rounds(self, m: int, d: int, rounds: int) -> tuple[dict[str, float], list[int]]:
        """Evict the m oldest, insert m that come up to d places late, query; so many times.

        Returns:
            the median seconds of an eviction, the mean of processor seconds of a round (what is amortised shows in a
            mean only), and the answers.
        """
        coming = arrivals(2 * d + m * rounds, d) + (self.times[-1] + 1)
        if d:
            self._slide(np.sort(coming[:d]), 1024)
        evictions, seconds, answers = self._slide(coming[d : d + m * rounds], m)
        return {"evict": statistics.median_low(evictions), "round": seconds / rounds}, answers

    def _slide(self, coming: Longs, m: int) -> tuple[list[float], float, list[int]]:
        """Per batch of m: evict as many of the oldest, insert it, query.

        Returns:
            the seconds of each eviction, the processor seconds of all, and the answers.
        """
        window, batches = self._window, self._batches(coming, m)
        times = np.sort(np.concatenate([self.times, coming]), kind="stable")
        leaving = times[[*range(m - 1, len(coming) - 1, m), len(coming) - 1]].tolist()
        self.times = times[len(coming) :]
        evictions, answers, clock = [], [], time.perf_counter
        with quiet():
            before = processor_seconds()
            for batch, oldest in zip(batches, leaving, strict=True):
                began = clock()
                window.evict(oldest)
                evicted = clock()
                window.insert(batch)
                answers.append(window.query())
                evictions.append(evicted - began)
            return evictions, processor_seconds() - before, answers


# -------------------------------------------------------------------- real flights

DAY = 24 * 60


def flights(study: Study) -> None:
    """A year's departures in the order of landing: sums of delays over the last thirty days, batch by batch."""
    departed, landed, delay = feed()
    count = of_size(study.size, smoke=1500, laptop=40_000, full=len(departed))
    departed, landed, delay = departed[:count], landed[:count], delay[:count]
    behind = _distances(departed)
    experiment = study.experiment("flights", "batch [minutes of landings]")
    for series in experiment.each(ANY_ORDER):
        for minutes in (10, 60, 6 * 60, DAY, 7 * DAY):
            rate, answers = quietly(partial(_replay, ANY_ORDER[series], departed, landed, delay, minutes))
            figures = {"flights per second": rate, "mean distance of a flight [entries]": float(behind.mean())}
            experiment.add(series, minutes, figures, answers)


def feed() -> tuple[Longs, Longs, Longs]:
    """Return departure and landing (minutes since 1970) and departure delay (minutes), in order of landing."""
    table = load_flights().dropna(subset=["dep_delay", "air_time"])
    hours = pd.to_datetime(table["time_hour"], utc=True).to_numpy("datetime64[m]").astype(np.int64)
    delay = table["dep_delay"].to_numpy().astype(np.int64)
    departed = hours + table["minute"].to_numpy().astype(np.int64) + delay
    landed = departed + table["air_time"].to_numpy().astype(np.int64)
    order = np.argsort(landed, kind="stable")
    return departed[order], landed[order], delay[order]


def _distances(times: Longs) -> Longs:
    """For each arrival how many before it are newer, of the last 4,096 (more than a day's)."""
    return np.array([np.count_nonzero(times[max(0, i - 4096) : i] > times[i]) for i in range(0, len(times), 37)])


def _replay(
    make: Callable[[], Contender], departed: Longs, landed: Longs, delay: Longs, minutes: int
) -> tuple[float, list[int]]:
    """Feed all flights, a batch per so many minutes of landings; return flights per second and the answers."""
    window = make()
    cuts: Sequence[int] = np.flatnonzero(np.diff(landed // minutes)).tolist()
    bounds = [0, *(cut + 1 for cut in cuts), len(landed)]
    batches = [
        (window.prepare((departed[a:b], delay[a:b])), int(landed[b - 1]) - 30 * DAY) for a, b in pairwise(bounds)
    ]
    answers = []
    began = processor_seconds()
    for batch, expired in batches:
        window.evict(expired)
        window.insert(batch)
        answers.append(window.query())
    return len(departed) / (processor_seconds() - began), answers


EXPERIMENTS = (batches_in_order, distance, flights)
"""All experiments of the paper."""
