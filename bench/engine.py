"""What the engine costs: every line of its speed table, through the Python methods of `Forest`, on one core.

    round      evict m oldest, insert m newest, query: the window keeps its n entries
    timed      ------------------------------------- the three calls, together

The arrays of a round are made just before it, outside the clock: they stand for what a request's decoder has just
written. Values are a function of time, so that the expected answer can be folded with plain NumPy over the times
that must be left, without asking the forest; a wrong answer ends the run. The printed digest is of all final
answers and depends on the sizes only: two versions that agree on it computed the same.

Figures are medians, of wall time below a millisecond, of processor time above
(rounds of one entry are timed 1,024 at a time). Does not show: other machines, more
than one key, tiers, the wire. A busy neighbour moves all figures, by half and more: the last column is one NumPy
call right after each line, by which it can be read.

Run ``python -m bench.engine`` (about four minutes, 1.5 GB), or with ``--smoke`` (seconds, figures meaningless);
``--only SUBSTRING`` runs some of it.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.engine_report import REAL, SMOKE, Array, Report, Size, clock
from bench.harness import arguments, head, pinned
from sash_engine.forest import Forest, Layout
from sash_engine.monoids import (
    ArgMax,
    First,
    Last,
    Max,
    Mean,
    Min,
    Monoid,
    Range,
    StdDev,
    StdDevPopulation,
    Sum,
    Variance,
)

processor = time.thread_time  # 0.7 µs a call: for what takes a millisecond, while others wait for the core

ONE: dict[str, Callable[[], Monoid]] = {"sum": Sum, "max": Max, "stddev": StdDev}
TEN: list[Callable[[], Monoid]] = [
    *(Sum, Max, Min, Mean, StdDev, Variance, StdDevPopulation, Range, First, Last),
]


def value_of(times: Array) -> Array:
    """The value of the entry at each time: as good as random, and the same in every run."""
    return ((times * 2_654_435_761) % 1_000_003).astype(np.float64) / 1e4 - 50.0


def forest_of(*names: str) -> Forest:
    return Forest(Layout({"value": "float64"}, {name: (ONE[name](), ["value"]) for name in names}))


def filled(forest: Forest, times: Array) -> Forest:
    """Insert one bulk and read once, as a window that has been running for a while."""
    forest.bulk_insert(times, [value_of(times)])
    forest.query()
    return forest


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    start = clock()
    call(*arguments)
    return clock() - start


def repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


# -------------------------------------------------------------------- the lines of the table


def rounds(report: Report, size: Size) -> None:
    goals = {
        (1, "sum"): 3.0,
        (1024, "sum"): 6 * 1.024,
        (1024, "max"): 10 * 1.024,
        (1024, "stddev"): 10 * 1.024,
        (65536, "sum"): 2 * 65.536,
        (65536, "max"): 5 * 65.536,
        (65536, "stddev"): 5 * 65.536,
    }
    for name in ONE:
        for m, count in size.rounds_of.items():
            n = max(size.entries, 2 * m)
            forest = filled(forest_of(name), np.arange(n))
            seconds, newest = _single_rounds(forest, n, count) if m == 1 else _bulk_rounds(forest, n, m, count)
            report.expect(name, forest.query()[0], value_of(np.arange(newest - n, newest)))
            report.add(f"round, m = {m:,}, {name}", seconds, goals.get((m, name)), m)


def ten_rounds(report: Report, size: Size) -> None:
    """Rounds with ten aggregates of one field."""
    n, m = size.entries, 1024
    forest = filled(_ten(), np.arange(n))
    seconds, newest = _bulk_rounds(forest, n, m, size.rounds_of[m])
    report.expect("sum", forest.query()[0], value_of(np.arange(newest - n, newest)))
    report.add("round of 1,024 with 10 aggregates", seconds, 40.0)


def _ten() -> Forest:
    return Forest(Layout({"value": "float64"}, {f"a{i}": (monoid(), ["value"]) for i, monoid in enumerate(TEN)}))


def _single_rounds(forest: Forest, newest: int, count: int) -> tuple[float, int]:
    """The median over stretches of a block: single rounds are too short for the clock."""
    found, stretch = [], 1024
    evict, insert, query = forest.evict, forest.insert, forest.query
    for _ in range(max(count // stretch, 1)):
        values = value_of(np.arange(newest, newest + stretch)).tolist()
        start = processor()
        for value in values:
            evict()
            insert(newest, (value,))
            query()
            newest += 1
        found.append((processor() - start) / stretch)
    return statistics.median(found), newest


def _bulk_rounds(forest: Forest, newest: int, m: int, count: int) -> tuple[float, int]:
    found = []
    for _ in range(count):
        times = np.arange(newest, newest + m)
        columns = [value_of(times)]
        newest += m
        start = clock()
        forest.evict(m)
        forest.bulk_insert(times, columns)
        forest.query()
        found.append(clock() - start)
    return statistics.median(found), newest


def cached(report: Report, size: Size) -> None:
    one = filled(forest_of("sum"), np.arange(size.entries))
    ten = filled(_ten(), np.arange(size.entries))
    for what, forest, goal in (("1 aggregate", one, 1.0), ("10 aggregates", ten, 5.0)):
        runs = [timed(repeat, forest.query, 1000) for _ in range(size.repeats)]
        report.add(f"cached query, {what}", statistics.median(runs) / 1000, goal)
    report.expect("sum", ten.query()[0], value_of(np.arange(size.entries)))
    after = []
    for i in range(size.repeats * 10):
        ten.insert(size.entries + i, (0.5,))
        after.append(timed(ten.query))
    report.add("query after an insert, 10 aggregates", statistics.median(after), None)


def evictions(report: Report, size: Size) -> None:
    """All but one entry at once, after some smaller evictions of the same kind: a window that has been running."""
    n, small = size.entries, 5000
    ways: list[tuple[str, Callable[[Forest, int], int], float | None]] = [
        ("by count", lambda forest, through: forest.evict(through - forest.oldest), 50.0),  # type: ignore[operator]
        ("by time", lambda forest, through: forest.bulk_evict(through - 1), 50.0),
        ("by predicate", _evict_by_predicate, None),
    ]
    for what, evict, goal in ways:
        found = []
        for _ in range(max(size.repeats // 20, 3)):
            forest = filled(forest_of("sum"), np.arange(n + 10 * small))
            for i in range(1, 11):
                evict(forest, i * small)
                forest.query()
            found.append(timed(evict, forest, n + 10 * small - 1))
            report.expect("sum", forest.query()[0], value_of(np.array([n + 10 * small - 1])))
        report.add(f"bulk evict of {n - 1:,} entries, {what}", statistics.median(found), goal)


def _evict_by_predicate(forest: Forest, through: int) -> int:
    surplus = through - forest.oldest  # type: ignore[operator]
    evicted, _ = forest.evict_while(lambda entries, _: entries <= surplus)
    return evicted


def ranges(report: Report, size: Size) -> None:
    random, n = np.random.default_rng(7), size.entries
    for name in ONE:
        forest, found = filled(forest_of(name), np.arange(n)), []
        for _ in range(size.repeats * 10):
            a, b = sorted(random.integers(0, n, 2).tolist())
            found.append(timed(forest.range_query, a, b))
        a, b = n // 3, n // 2
        report.expect(name, forest.range_query(a, b)[1][0], value_of(np.arange(a, b + 1)))
        report.add(f"range query, random, n = {n:,}, {name}", statistics.median(found), 25.0)


def contiguous(report: Report, size: Size) -> None:
    """old entries … | newcomers, bulk by bulk → | the newest `far` entries, from before the first round on"""
    m, count = 1024, size.repeats
    for name in ONE:
        n, far = size.entries, size.far
        first = np.arange(n - far)
        last = np.arange(n - far + count * m, n + count * m)
        forest = filled(forest_of(name), np.concatenate((first, last)))
        inserts, whole = [], []
        for i in range(count):
            times = np.arange(n - far + i * m, n - far + (i + 1) * m)
            columns = [value_of(times)]
            start = clock()
            forest.evict(m)
            before = clock()
            forest.bulk_insert(times, columns)
            after = clock()
            forest.query()
            inserts.append(after - before)
            whole.append(clock() - start)
        report.expect(name, forest.query()[0], value_of(np.arange(count * m, n + count * m)))
        report.add(f"out-of-order bulk, m = 1,024 contiguous at d = {far:,}, {name}", statistics.median(inserts), 60.0)
        report.add(f"… mean, with evict and query, {name}", statistics.fmean(whole), None)


def scattered(report: Report, size: Size) -> None:
    """Newcomers between the newest `spread` entries; every third round also reads inside, which settles blocks."""
    random, m, n = np.random.default_rng(11), 1024, size.entries
    for name in ONE:
        forest, found = filled(forest_of(name), np.arange(n) * 1000), []
        everything = [np.arange(n) * 1000]
        for _ in range(size.repeats):
            times = np.sort(random.integers((n - size.spread) * 1000, n * 1000, m))
            columns = [value_of(times)]
            everything.append(times)
            start = processor()
            forest.bulk_insert(times, columns)
            forest.query()
            found.append(processor() - start)
        report.expect(name, forest.query()[0], value_of(np.concatenate(everything)))
        what = f"out-of-order bulk, m = 1,024 over the newest {size.spread:,}, then a query, {name}"
        report.add(what, statistics.median(found), 1000.0)
    forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"]), "who": (ArgMax(), ["value", "time"])}))
    filled(forest, np.arange(n) * 1000)
    found = []
    for _ in range(max(size.repeats // 10, 3)):
        times = np.sort(random.integers((n - size.spread) * 1000, n * 1000, m))
        columns = [value_of(times)]
        start = processor()
        forest.bulk_insert(times, columns)
        forest.query()
        found.append(processor() - start)
    report.add("… spliced: with an aggregate that does not commute", statistics.median(found), None)


def series(report: Report, size: Size) -> None:
    random, n, second = np.random.default_rng(13), size.series_entries, 1_000_000
    span = (size.series_steps + 600) * second
    times = np.sort(random.integers(0, span, n))
    starts = np.arange(size.series_steps) * second
    stops = starts + 600 * second
    for name in ONE:
        forest = filled(forest_of(name), times)
        found = []
        for _ in range(max(size.repeats // 4, 3)):
            start = processor()
            forest.series(starts, stops)
            found.append(processor() - start)
        _, (answers,) = forest.series(starts, stops)
        for i in range(0, len(starts), 97):
            a, b = np.searchsorted(times, [starts[i], stops[i]])
            report.expect(name, float(answers[i]), value_of(times[a:b]))
        what = f"series, {n:,} entries, {size.series_steps:,} steps of 1 s, width 10 min, {name}"
        report.add(what, statistics.median(found), 4000.0)


def memory(report: Report, size: Size) -> None:
    n = size.entries
    for what, m in (("bulks of 1,024", 1024), ("bulks of 100", 100)):
        gc.collect()
        tracemalloc.start()
        forest = forest_of("sum")
        for start in range(0, n, m):
            times = np.arange(start, min(start + m, n))
            forest.bulk_insert(times, [value_of(times)])
        forest.query()
        forest.range_query(5, n - 5)
        times = None  # type: ignore[assignment]
        each = tracemalloc.get_traced_memory()[0] / n
        tracemalloc.stop()
        report.expect("sum", forest.query()[0], value_of(np.arange(n)))
        reached = "yes" if each <= 18 else f"{each / 18:.2f} x"
        report.row(f"memory per entry, n = {n:,}, {what}", f"{each:.2f} B", "", "18 B", reached, "80/40/17.5 B")


def flat(report: Report, size: Size) -> None:
    """Stretches over the window sizes in turns, so that what else the machine does falls on all."""
    for m in (1, 256):
        forests = {e: filled(forest_of("sum"), np.arange(2**e)) for e in size.flat_exponents}
        newest = {e: 2**e for e in forests}
        found: dict[int, list[float]] = {e: [] for e in forests}
        for _ in range(max(size.flat_rounds // (2048 if m == 1 else 512), 1)):
            for e, forest in forests.items():
                run = _single_rounds(forest, newest[e], 2048) if m == 1 else _bulk_rounds(forest, newest[e], m, 32)
                found[e].append(run[0])
                newest[e] = run[1]
        for e, forest in forests.items():
            report.expect("sum", forest.query()[0], value_of(np.arange(newest[e] - 2**e, newest[e])))
        medians = {e: statistics.median(times) for e, times in found.items()}
        figures = ", ".join(f"2^{e}: {seconds * 1e6:.2f}" for e, seconds in medians.items())
        ratio = max(medians.values()) / min(medians.values())
        reached = "yes" if ratio <= 1.3 else "no"
        report.row(f"rounds against n, m = {m}, sum: µs at {figures}", f"{ratio:.2f} x", "", "1.3 x", reached, "")


CASES = (rounds, ten_rounds, cached, evictions, ranges, contiguous, scattered, series, memory, flat)


def main() -> None:
    given = arguments(__doc__, {"--only": {"default": "", "help": "cases whose name contains this"}})
    report = Report()
    cpp = "C++ AMTA/FiBA/DABA Lite, ns per entry"
    head("what", "median", "ns per entry", "goal", "reached", cpp, "one call, µs")
    with pinned():
        for case in CASES:
            if given.only in case.__name__:
                print(case.__name__, file=sys.stderr)
                case(report, SMOKE if given.smoke else REAL)
    print(f"\ndigest {report.digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
