"""The Reactive Aggregator: windows that slide by one and by many, against recalculation; and the monoids' properties.

    throughput   slides of one entry at window size n: recalculation falls with n, the Reactive Aggregator with log2 n
    break-even   the smallest n from which it wins, in time and in combines
    coarse       slides of m entries at a fixed n: all changes of a slide in one pass over the tree
    laws         the properties of each aggregate, not claimed but checked

Source: Tangwongsan, Hirzel, Schneider and Wu, "General incremental sliding-window aggregation", VLDB 2015.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from bench.papers.common import Experiment, Panel, Study, of_size, powers, processor_seconds, quietly, values
from bench.papers.sliding import PERIODIC, Kept, combines_per_slide, counting, throughput
from sash_engine.aggregators import ALGORITHMS, Reactive
from sash_engine.aggregators.base import Aggregator, InOrder
from sash_engine.monoids import BUILT_IN, Monoid, StdDev, Sum
from sash_engine.monoids.base import ANY, NUMPY_TYPES
from sash_engine.monoids.laws import LAWS, TOLERANCE, check, close

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
    experiment.plot(
        Panel("slides per second, sum", "sum"),
        Panel("slides per second, stddev", "standard deviation"),
        Panel("combines per slide, sum", "combines (any aggregate)", y="symlog"),
        title="RA, VLDB 2015: evict one, insert one, query, at window size n",
    )


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
    experiment.plot(
        Panel("entries per second", "throughput"),
        Panel("combines per entry", "combines"),
        title=f"RA, VLDB 2015: coarse-grained sliding, n = {n:,}: evict m, insert m, query (sum)",
    )


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


# -------------------------------------------------------------------- properties


def properties(study: Study) -> None:
    """Check every aggregate's laws on samples with ties, and look for pairs that show that order matters."""
    experiment = study.experiment("laws", "laws checked")
    samples = of_size(study.size, smoke=1, laptop=4, full=20)
    for cls in BUILT_IN:
        parameters = {"histogram": {"bounds": [10, 100]}, "bloom": {"capacity": 50}}.get(cls.function, cls.example)
        types = ["int64" if "int64" in read.accepts else read.accepts[0] for read in cls.reads]
        monoid = cls(*types, **parameters)  # type: ignore[arg-type]
        order_matters = False
        for seed in range(samples):
            columns = _sample(monoid, seed)
            check(monoid, columns)
            order_matters = order_matters or _order_matters(monoid, columns)
        figures = {
            "associative": 1.0,  # `check` raises if it is not
            "commutative": float(monoid.commutative),  # `check` raises if the flag is wrong
            "order was seen to matter": float(order_matters),
            "invertible": float(monoid.invertible),
            "exact": float(monoid.exact),
        }
        experiment.add(cls.function, len(LAWS), figures, [cls.function], case=cls.function)


def _sample(monoid: Monoid, seed: int) -> list[Any]:
    """Eight rows: values from 1 to 5, so that ties happen, and times in order."""
    rng = np.random.default_rng(seed)
    columns = []
    for read, kind in zip(monoid.reads, monoid.types, strict=True):
        drawn: list[Any] = rng.integers(1, 6, 8).tolist()
        if read.option == "time":
            drawn = list(itertools.accumulate(drawn))
        if kind == "string":
            drawn = [str(item) for item in drawn]
        assert kind in ANY
        columns.append(np.fromiter(drawn, NUMPY_TYPES[kind], len(drawn)))
    return columns


def _order_matters(monoid: Monoid, columns: list[Any]) -> bool:
    """Whether some two partials of the sample combine to different answers in the two orders, rounding apart."""
    partials = [monoid.reduce([column[i : i + 2] for column in columns]) for i in range(7)]
    lower, combine = monoid.lower, monoid.combine
    return any(
        not close(lower(combine(p, q)), lower(combine(q, p)), TOLERANCE) for p, q in itertools.combinations(partials, 2)
    )


EXPERIMENTS = (window_size, coarse, properties)
"""All experiments of the paper."""
