"""AMTA: constant time, bulk evictions that cost next to nothing, and little memory beside a key-value store.

    throughput   evict one, insert one, query, at window size n
    latency      the same, slide by slide
    bulk-evict   latency and combines of evicting m entries at once, and the query after it
    policies     six aggregates under two slide policies, over an entry per second
    memory       partials and bytes in memory against window size, wholly in memory and with a key-value store
    dimensions   1 to 50 aggregates at once: tuple by tuple, and in the columnar engine

The store is a tier in a directory, so that what is in it is not in memory.

Source: Villalba, Berral, Carrera, "Constant-time sliding window framework with reduced memory footprint and efficient
bulk evictions", TPDS 2019.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.common import Study, of_size, powers, processor_seconds, quiet, quietly, values
from bench.papers.sliding import PERIODIC, Kept, fill, latency_experiment, slide, throughput
from sash.durability.images.chunk_store import ChunkStore
from sash.tiers.lmdb import LmdbTier
from sash_engine.aggregators import ALGORITHMS, AMTA, Capability, LogMTA, Timed, create
from sash_engine.aggregators.counting import Counting
from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Count, Max, Mean, MinCount, Monoid, Partial, StdDev, Sum

SUM = Sum("int64")


class Product(Monoid):
    """Several aggregates of an entry at once.

    Args:
        monoids: what to keep; the i-th one reads item i of the value, a tuple.
    """

    function = "product"
    answer = tuple

    def __init__(self, monoids: Sequence[Monoid]) -> None:
        self.monoids = tuple(monoids)
        self.identity = tuple(monoid.identity for monoid in self.monoids)
        self.exact = all(monoid.exact for monoid in self.monoids)
        self._lifts = tuple(monoid.lift for monoid in self.monoids)
        self._combines = tuple(monoid.combine for monoid in self.monoids)

    def lift(self, value: Any) -> Partial:
        return tuple([lift(item) for lift, item in zip(self._lifts, value, strict=True)])

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return tuple([combine(a, b) for combine, a, b in zip(self._combines, older, newer, strict=True)])

    def lower(self, partial: Partial) -> Any:
        return tuple([monoid.lower(part) for monoid, part in zip(self.monoids, partial, strict=True)])


# -------------------------------------------------------------------- constant size


CONSTANT = ("two_stacks_lite", "daba_lite", "reactive", "log_mta", "amta", "kvs_amta")


def constant_size(study: Study) -> None:
    """Throughput against window size."""
    most = of_size(study.size, smoke=16, laptop=2**15, full=2**22)
    slides = of_size(study.size, smoke=32, laptop=2**12, full=2**15)
    experiment = study.experiment("throughput", "window size n [entries]")
    for name in experiment.each(CONSTANT):
        for n in powers(4, 4, most):
            count = slides if name in ("reactive", "log_mta") else max(slides, n)
            rate, answers = throughput(name, SUM, n, count)
            experiment.add(name, n, {"slides per second": rate}, answers)


def latency(study: Study) -> None:
    """Latency slide by slide at one window size."""
    latency_experiment(study, CONSTANT, SUM, "AMTA, TPDS 2019", smoke=32, laptop=2**12, full=2**20)


# -------------------------------------------------------------------- bulk evictions


def bulk_evict(study: Study) -> None:
    """Latency and combines of evicting m of n entries at once, with the query after it."""
    n = of_size(study.size, smoke=64, laptop=2**14, full=2**22)
    target = of_size(study.size, smoke=64, laptop=2**13, full=2**17)
    least = of_size(study.size, smoke=4, laptop=4, full=2)
    experiment = study.experiment("bulk-evict", f"entries evicted m, n = {n:,}")
    plan = {m: max(least, min(32, target // m)) for m in powers(4, 1, n // 2)}
    stream = values(n + sum(m * rounds for m, rounds in plan.items()))
    names = ("two_stacks_lite", "daba_lite", "reactive", "bulk_fiba", "log_mta", "amta", "kvs_amta")
    for name in experiment.each(names):
        counting = Counting(SUM)
        kept = Kept(partial(create, name, counting), n, stream, anew=name in PERIODIC)
        start = 0
        for m, rounds in plan.items():
            window = kept.at(start)
            assert isinstance(window, Timed)
            with quiet():
                seconds, combines, answers = _evictions(window, counting, kept, m, rounds)
            start += m * rounds
            figures = {
                "evict m, query [µs], median": 1e6 * statistics.median_low(seconds),
                "combines to evict m, query; worst": float(max(combines)),
            }
            experiment.add(name, m, figures, answers)


def _evictions(
    window: Timed, counting: Counting, kept: Kept, m: int, rounds: int
) -> tuple[list[float], list[int], list[Any]]:
    """Evict m and query, refill; return the seconds and combines of each eviction, and the answers."""
    seconds, combines, answers = [], [], []
    in_bulk = Capability.BULK_EVICT in window.capabilities
    for _ in range(rounds):
        oldest, youngest = kept.start, window.youngest
        assert youngest is not None
        counting.reset()
        began = time.perf_counter()
        if in_bulk:
            window.bulk_evict(oldest + m - 1)
        else:
            for _ in range(m):
                window.evict()
        answers.append(window.query())
        seconds.append(time.perf_counter() - began)
        combines.append(counting.reset())
        fill(window, kept.newcomers(m), youngest + 1)
    return seconds, combines, answers


# -------------------------------------------------------------------- slide policies

MONOIDS: dict[str, Monoid] = {
    "count": Count("int64"),
    "sum": SUM,
    "mean": Mean("int64"),
    "max": Max("int64"),
    "min count": MinCount("int64"),
    "stddev": StdDev("int64"),
}


def policies(study: Study) -> None:
    """Six aggregates over an entry per second: of the last hour, and of the newest entries with a given total."""
    seconds = of_size(study.size, smoke=600, laptop=8_000, full=2**17)
    hour = of_size(study.size, smoke=60, laptop=3600, full=3600)
    load = _load(seconds)
    budget = int(np.median(load)) * hour
    experiment = study.experiment("policies", "aggregate", ticks=list(MONOIDS))
    limits = {"last hour": hour, "enough load": budget}
    for label, policy in experiment.each(itertools.product(MONOIDS, limits)):
        for name in ("log_mta", "amta", "forest"):
            replay = _in_forest if name == "forest" else _in_tree
            rate, answers = quietly(partial(replay, name, MONOIDS[label], load, policy, limits[policy]))
            figures = {f"entries per second, {policy}": rate}
            experiment.add(name, list(MONOIDS).index(label), figures, answers, case=(label, policy))


def _load(seconds: int) -> list[int]:
    """A load per second that goes up and down over an hour, with a burst every thousand seconds or so."""
    rng = np.random.default_rng(3)
    base = 200 + 150 * np.sin(np.arange(seconds) * (2 * np.pi / 3600)) + rng.normal(0, 20, seconds)
    bursts = np.where(rng.random(seconds) < 0.001, rng.integers(50_000, 400_000, seconds), 0)
    return np.maximum(1, base.astype(np.int64) + bursts).tolist()  # type: ignore[no-any-return]


def _in_tree(name: str, monoid: Monoid, load: list[int], policy: str, limit: int) -> tuple[float, list[Any]]:
    """Replay the stream in a tree; the policy's total is a second aggregate of it."""
    window = create(name, Product((monoid, SUM)))
    assert isinstance(window, LogMTA)
    answers = []
    began = processor_seconds()
    for second, value in enumerate(load):
        window.insert(second, (value, value))
        if policy == "last hour":
            window.bulk_evict(second - limit)
        else:
            window.evict_while(lambda total, old: total[1] - old[1] >= limit)
        answers.append(window.query()[0])
    return len(load) / (processor_seconds() - began), answers


def _in_forest(name: str, monoid: Monoid, load: list[int], policy: str, limit: int) -> tuple[float, list[Any]]:
    """Replay the stream in the columnar engine, entry by entry."""
    layout = Layout({"load": "int64"}, {"answer": (monoid, ["load"]), "total": (SUM, ["load"])})
    slot = layout.answers[1]
    window, answers = Forest(layout), []
    began = processor_seconds()
    for second, value in enumerate(load):
        window.insert(second, (value,))
        if policy == "last hour":
            window.bulk_evict(second - limit)
        else:
            spare = window.totals()[slot] - limit
            window.evict_while(lambda entries, old: old[slot] <= spare)  # noqa: B023 (called at once)
        answers.append(window.query()[0])
    return len(load) / (processor_seconds() - began), answers


# -------------------------------------------------------------------- memory


def memory(study: Study) -> None:
    """What is in memory after a window of n entries has slid by n / 2."""
    most = of_size(study.size, smoke=64, laptop=2**14, full=2**20)
    experiment = study.experiment("memory", "window size n [entries]")
    sizes = of_size(study.size, smoke=powers(4, 16, most), laptop=powers(4, 16, most), full=powers(16, 16, most))
    names = ("two_stacks_lite", "daba_lite", "reactive", "bulk_fiba", "amta", "kvs_amta")
    for name in experiment.each(names):
        for n in sizes:
            if name != "kvs_amta":
                experiment.add(name, n, *_footprint(name, n, {}))
                continue
            with tempfile.TemporaryDirectory() as folder:
                tier = LmdbTier(Path(folder))
                tier.acquire()
                store = ChunkStore(tier, SUM, "memory")
                figures, answers = _footprint(name, n, {"store": store})
                tier.close()
                experiment.add(name, n, figures | {"chunks in the store": float(len(store))}, answers)


def _footprint(name: str, n: int, parameters: dict[str, Any]) -> tuple[dict[str, float], list[Any]]:
    """Return the bytes allocated for a window (its values are there before), its local partials, and its answers."""
    entries = values(n + n // 2)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    window = create(name, SUM, **parameters)
    fill(window, entries[:n])
    answers = slide(window, entries[n:], n)[-8:]
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    figures = {"Python objects [bytes]": float(after - before)}
    if isinstance(window, AMTA):
        figures["partials in memory"] = float(window.local)
    return figures, answers


# -------------------------------------------------------------------- many aggregates at once


def dimensions(study: Study) -> None:
    """Throughput of 1 to 50 aggregates of as many fields, answered after every 1,024 entries."""
    n = of_size(study.size, smoke=1024, laptop=2**13, full=2**17)
    count = of_size(study.size, smoke=1024, laptop=2**13, full=2**15)
    experiment = study.experiment("dimensions", "aggregates at once, each of its own field")
    dimensions = of_size(study.size, smoke=(1, 5), laptop=(1, 2, 5, 10, 20, 50), full=(1, 2, 5, 10, 20, 30, 40, 50))
    for k in experiment.each(dimensions):
        table = np.random.default_rng(5).integers(1, 1001, (n + count, k))
        monoids = [(Sum, Max, Mean)[i % 3]("int64") for i in range(k)]
        runs: dict[str, Callable[..., tuple[float, list[Any]]]] = {
            "amta": _tuples,
            "forest (one by one)": _columns_singly,
            "forest (batches of 1,024)": _columns_in_batches,
        }
        for series, once in runs.items():
            rate, answers = quietly(partial(once, table, monoids, n))
            figures = {"entries per second": rate, "aggregated values per second": rate * k}
            experiment.add(series, k, figures, answers)


BATCH = 1024


def _tuples(table: Any, monoids: list[Monoid], n: int) -> tuple[float, list[Any]]:
    """AMTA over the product of all aggregates, entry by entry."""
    rows = [tuple(row) for row in table.tolist()]
    window, answers = ALGORITHMS["amta"](Product(monoids)), []
    assert isinstance(window, AMTA)
    fill(window, rows[:n])
    began = processor_seconds()
    for now in range(n, len(rows)):
        window.evict()
        window.insert(now, rows[now])
        if (now + 1) % BATCH == 0:
            answers.append(list(window.query()))
    return (len(rows) - n) / (processor_seconds() - began), answers


def _forest(table: Any, monoids: list[Monoid], n: int) -> Forest:
    names = [f"f{i}" for i in range(len(monoids))]
    aggregates = {name: (monoid, [name]) for name, monoid in zip(names, monoids, strict=True)}
    forest = Forest(Layout(dict.fromkeys(names, "int64"), aggregates))
    forest.bulk_insert(np.arange(n), list(table[:n].T.copy()))
    return forest


def _columns_singly(table: Any, monoids: list[Monoid], n: int) -> tuple[float, list[Any]]:
    """The columnar engine, entry by entry."""
    window, answers = _forest(table, monoids, n), []
    rows = [tuple(row) for row in table.tolist()]
    began = processor_seconds()
    for now in range(n, len(rows)):
        window.evict()
        window.insert(now, rows[now])
        if (now + 1) % BATCH == 0:
            answers.append(window.query())
    return (len(rows) - n) / (processor_seconds() - began), answers


def _columns_in_batches(table: Any, monoids: list[Monoid], n: int) -> tuple[float, list[Any]]:
    """The columnar engine, batch by batch."""
    window, answers = _forest(table, monoids, n), []
    batches = [(np.arange(at, at + BATCH), list(table[at : at + BATCH].T.copy())) for at in range(n, len(table), BATCH)]
    began = processor_seconds()
    for moments, columns in batches:
        window.evict(BATCH)
        window.bulk_insert(moments, columns)
        answers.append(window.query())
    return (len(table) - n) / (processor_seconds() - began), answers


EXPERIMENTS = (constant_size, latency, bulk_evict, policies, memory, dimensions)
"""All experiments of the paper."""
