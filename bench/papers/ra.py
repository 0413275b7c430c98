"""The Reactive Aggregator: windows that slide by one and by many, against recalculation.

    throughput   slides of one entry at window size n: recalculation falls with n, the Reactive Aggregator with log2 n
    break-even   the smallest n from which it wins, in time and in combines
    coarse       slides of m entries at a fixed n: all changes of a slide in one pass over the tree

Source: Tangwongsan, Hirzel, Schneider and Wu, "General incremental sliding-window aggregation", VLDB 2015.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from bench.papers.common import Experiment, Study, of_size, powers, processor_seconds, quietly, values
from bench.papers.sliding import PERIODIC, Kept, combines_per_slide, counting, throughput
from sash_engine.aggregators import ALGORITHMS, Reactive
from sash_engine.aggregators.base import Aggregator, InOrder
from sash_engine.monoids import Monoid, StdDev, Sum

MONOIDS: dict[str, Monoid] = {"sum": Sum("int64"), "stddev": StdDev("int64")}


# -------------------------------------------------------------------- slides by one


def window_size(study: Study) -> None:
    """Throughput against window size, and where recalculation loses."""
    most = of_size(study.size, smoke=16, laptop=2**15, full=2**20)
    slides = of_size(study.size, smoke=32, laptop=2048, full=2**15)
    sizes = sorted({*powers(2, 1, min(most, 128)), *powers(4, 1, most)})
    experiment = study.experiment("throughput", "window size n [entries]")
    names = ("recalc_in_order", "reactive", "subtract_on_evict", "two_stacks_lite")
    for function, name in experiment.each(itertools.product(MONOIDS, names)):
        monoid = MONOIDS[function]
        if name == "subtract_on_evict" and not monoid.invertible:
            continue
        for n in sizes:
            few = max(20, min(slides, 2_000_000 // n // 8)) if name == "recalc_in_order" else max(slides, n)
            if name == "reactive":
                few = slides  # it has no long period that must be seen as a whole
            rate, answers = throughput(name, monoid, n, few)
            counted = min(few, 4) if name == "recalc_in_order" and n > 2**16 else min(few, 2 * n + 16)
            counts = combines_per_slide(ALGORITHMS[name], monoid, n, counted)
            figures = {
                f"slides per second, {function}": rate,
                f"combines per slide, {function}": sum(counts) / len(counts),
            }
            experiment.add(name, n, figures, answers, case=(function, n))
    for measure, function in itertools.product(("slides per second", "combines per slide"), MONOIDS):
        break_even(study, experiment, f"{measure}, {function}", more_is_better=measure == "slides per second")


def break_even(study: Study, experiment: Experiment, measure: str, *, more_is_better: bool) -> None:
    """Take down the least n from which on the Reactive Aggregator beats recalculation at every size measured."""
    lines = experiment.lines(measure)
    (sizes, recalc), (_, reactive) = lines["recalc_in_order"], lines["reactive"]
    wins = [(b > a) == more_is_better and a != b for a, b in zip(recalc, reactive, strict=True)]
    since = len(wins) - wins[::-1].index(False) if False in wins else 0
    if since == len(wins):
        study.log(f"{measure}: recalculation wins up to {sizes[-1]:g} entries")
        return
    least = sizes[since]
    study.experiment("break-even", "none").add(measure, 0, {"least n where it wins [entries]": least}, [least])


# -------------------------------------------------------------------- slides by m


def coarse(study: Study) -> None:
    """Slides of m entries: cost per entry."""
    n = of_size(study.size, smoke=64, laptop=2**13, full=2**20)
    least = of_size(study.size, smoke=3, laptop=3, full=2)
    moved = of_size(study.size, smoke=n, laptop=n, full=2**17)
    experiment = study.experiment("coarse", f"slide m [entries], n = {n:,}")
    stream = values(n + 2 * least * n + sum(2 * max(least * m, moved) for m in powers(4, 1, n)))
    for series in experiment.each(
        ("reactive (one pass)", "reactive (one by one)", "two_stacks_lite", "recalc_in_order")
    ):
        name = series.split(" ")[0]
        kept = Kept(partial(ALGORITHMS[name], MONOIDS["sum"]), n, stream, anew=name in PERIODIC)
        start = 0
        for m in powers(4, 1, n):
            rounds = usual = max(least, moved // m)
            if name in PERIODIC:
                rounds = max(least, n // m)
            elif name == "recalc_in_order":
                rounds = max(least, min(rounds, 1_000_000 // n))
            window = kept.at(start)
            rate, answers = quietly(partial(_slide_by, series, window, kept, m, rounds))
            counted = rounds if name in PERIODIC else max(1, rounds // 4)
            with counting(window) as counter:
                answers += _slide_by(series, window, kept, m, counted)[1]
            figures = {"entries per second": rate, "combines per entry": counter.combines / (m * counted)}
            experiment.add(series, m, figures, answers)
            start += m * (usual + max(1, usual // 4))


def _slide_by(series: str, window: Aggregator, kept: Kept, m: int, rounds: int) -> tuple[float, list[Any]]:
    """Return entries per second and the answers."""
    oldest, entries, answers = kept.start, kept.newcomers(m * rounds), []
    began = processor_seconds()
    for i in range(0, m * rounds, m):
        newcomers = entries[i : i + m]
        if series == "reactive (one pass)":
            assert isinstance(window, Reactive)
            window.change(evict=range(oldest + i, oldest + i + m), insert=newcomers)
        else:
            assert isinstance(window, InOrder)
            for value in newcomers:
                window.evict()
                window.insert(value)
        answers.append(window.query())
    return m * rounds / (processor_seconds() - began), answers


EXPERIMENTS = (window_size, coarse)
"""All experiments of the paper."""
