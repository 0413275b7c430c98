"""DABA and DABA Lite: latency and throughput of in-order windows that keep their size, and of ones that fill and drain.

    throughput   evict one, insert one, query, at window size n
    latency      the same, slide by slide: from the median to the worst
    dynamic      fill from empty to n, drain to empty, query after each operation

Source: Tangwongsan, Hirzel, Schneider, "Low-latency sliding-window aggregation in worst-case constant time", DEBS
2017, and "In-order sliding-window aggregation in worst-case constant time", VLDB Journal 2021.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from bench.papers.common import Study, of_size, powers, processor_seconds, quietly, values
from bench.papers.sliding import latency_experiment, throughput
from sash_engine.aggregators import ALGORITHMS
from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Monoid, StdDev, Sum

SUM = Sum("int64")
ALL = (
    "recalc_in_order",
    "subtract_on_evict",
    "two_stacks",
    "two_stacks_lite",
    "daba",
    "daba_lite",
    "reactive",
    "flatfit",
)
CONSTANT = ("two_stacks", "two_stacks_lite", "daba", "daba_lite", "reactive", "flatfit")


def static(study: Study) -> None:
    """Throughput against window size."""
    most = of_size(study.size, smoke=16, laptop=2**16, full=2**22)
    slides = of_size(study.size, smoke=32, laptop=2**13, full=2**15)
    experiment = study.experiment("throughput", "window size n [entries]")
    monoids: dict[str, Monoid] = {"sum": SUM, "stddev": StdDev("int64")}
    for function, name in experiment.each(itertools.product(monoids, ALL)):
        monoid = monoids[function]
        if name == "subtract_on_evict" and not monoid.invertible:
            continue
        for n in powers(4, 1, most):
            if name == "recalc_in_order" and n > 1024:
                continue  # a slide costs n combines; the line is straight from here
            count = {"recalc_in_order": max(50, slides // n), "reactive": slides}.get(name, max(slides, n))
            rate, answers = throughput(name, monoid, n, count)
            experiment.add(name, n, {f"slides per second, {function}": rate}, answers, case=(function, n))


def latency(study: Study) -> None:
    """Latency slide by slide at one window size."""
    latency_experiment(study, CONSTANT, SUM, "DABA, DEBS 2017 and VLDBJ 2021", smoke=32, laptop=2**13, full=2**20)


def dynamic(study: Study) -> None:
    """Throughput of windows that fill and drain, and the worst operation."""
    most = of_size(study.size, smoke=16, laptop=2**14, full=2**20)
    total = of_size(study.size, smoke=64, laptop=2**15, full=2**18)
    experiment = study.experiment("dynamic", "largest window n [entries]")
    for name in experiment.each(CONSTANT):
        for n in powers(4, 16, most):
            waves = max(1, total // (2 * n))
            rate, answers = quietly(partial(_waves, name, n, waves))
            worst = _worst_combines(name, n)
            figures = {"operations per second": rate, "worst combines of an operation": float(worst)}
            experiment.add(name, n, figures, answers)


def _waves(name: str, n: int, waves: int) -> tuple[float, list[Any]]:
    """Fill and drain, `waves` times; an operation is an insert or evict with the query after it."""
    window = ALGORITHMS[name](SUM)
    assert isinstance(window, InOrder)
    entries, answers = values(n), list[Any]()
    insert, evict, query, answer = window.insert, window.evict, window.query, answers.append
    began = processor_seconds()
    for _ in range(waves):
        for value in entries:
            insert(value)
            answer(query())
        for _ in entries:
            evict()
            answer(query())
    return 2 * n * waves / (processor_seconds() - began), answers


def _worst_combines(name: str, n: int) -> int:
    """The most combines of one operation and the query after it, over a wave."""
    counting = Counting(SUM)
    window = ALGORITHMS[name](counting)
    assert isinstance(window, InOrder)
    worst = 0
    for value in values(n):
        window.insert(value)
        window.query()
        worst = max(worst, counting.reset())
    while len(window):
        window.evict()
        window.query()
        worst = max(worst, counting.reset())
    return worst


EXPERIMENTS = (static, latency, dynamic)
"""All experiments of the paper."""
