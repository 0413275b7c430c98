"""How many combines each algorithm takes per operation, beside the bounds that the papers state.

    python -m bench.combine_counts [--entries N] [--rounds K]

Every algorithm goes through the same history: N inserts, K·N slides (evict, insert, query), two waves in which the
window shrinks to a quarter and grows to twice N, and evictions down to empty. *Average* is over the slides,
*worst* over everything. Combines are counted by a monoid, so the figures are the same on every machine. A figure
above its bound makes the command fail. The answers along the way are hashed, and all algorithms must agree.

Does not show: what else an operation costs, which in Python is more than the combine of a sum.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2

from sash_engine.aggregators import ALGORITHMS, Aggregator, InOrder, Reactive, Timed
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Sum


@dataclass(frozen=True)
class Bound:
    """What an operation may cost: a formula to show, and what it comes to for at most n entries."""

    formula: str
    at: Callable[[int], float]


def constant(limit: float) -> Bound:
    """A bound that does not depend on n."""
    return Bound(f"{limit:g}", lambda n: limit)


NONE, ONE, TWO = constant(0), constant(1), constant(2)
LINEAR = Bound("n", lambda n: n)
LOG = Bound("log2 n", log2)
TWICE_LOG = Bound("2 log2 n", lambda n: 2 * log2(n))
LAY_OUT = Bound("2n", lambda n: 2 * n)
"""The Reactive Aggregator lays its tree out anew when it is resized."""


@dataclass(frozen=True)
class Bounds:
    """(average, worst) per operation; None where the literature states only an order of growth."""

    insert: tuple[Bound | None, Bound | None]
    evict: tuple[Bound | None, Bound | None]
    query: tuple[Bound | None, Bound | None]


BOUNDS = {
    "recalc_in_order": Bounds((NONE, NONE), (NONE, NONE), (LINEAR, LINEAR)),
    "subtract_on_evict": Bounds((ONE, ONE), (ONE, ONE), (NONE, NONE)),
    "two_stacks": Bounds((ONE, ONE), (ONE, LINEAR), (ONE, ONE)),
    "two_stacks_lite": Bounds((ONE, ONE), (ONE, LINEAR), (ONE, ONE)),
    "daba": Bounds((constant(2.5), constant(4)), (constant(1.5), constant(3)), (ONE, ONE)),
    "daba_lite": Bounds((TWO, constant(3)), (ONE, TWO), (ONE, ONE)),
    "reactive": Bounds((LOG, LAY_OUT), (LOG, LAY_OUT), (TWICE_LOG, TWICE_LOG)),
    "flatfit": Bounds((NONE, NONE), (NONE, NONE), (constant(3), LINEAR)),
    "log_mta": Bounds((ONE, LOG), (NONE, NONE), (TWICE_LOG, TWICE_LOG)),
    "amta": Bounds((TWO, None), (ONE, None), (TWO, TWO)),
    "kvs_log_mta": Bounds((ONE, LOG), (NONE, NONE), (TWICE_LOG, TWICE_LOG)),
    "kvs_amta": Bounds((TWO, None), (ONE, None), (TWO, TWO)),
    "btree": Bounds((None, None), (None, None), (NONE, NONE)),
    "fiba": Bounds((None, None), (None, None), (TWO, TWO)),
    "bulk_fiba": Bounds((None, None), (None, None), (TWO, TWO)),
}


@dataclass(frozen=True)
class Costs:
    """Combines per operation of one algorithm.

    Args:
        average: over the slides.
        worst: over the whole history.
        answers: a hash of all answers.
        entries: the window's size during the slides.
        largest: the most entries it ever had.
        slides: their number.
    """

    average: dict[str, float]
    worst: dict[str, int]
    answers: str
    entries: int
    largest: int
    slides: int

    def above(self, bounds: Bounds) -> list[str]:
        """Say which figures are above their bounds.

        An amortised bound of c is one of c·k + n for k operations: the slides may begin in the middle of the work that
        is spread over n of them, so an average may be above c by n / k.
        """
        found = []
        for operation, (average, worst) in vars(bounds).items():
            slack = 0 if worst == average else self.entries / self.slides
            if average is not None and self.average[operation] > average.at(self.entries) + slack:
                found.append(f"{operation}: {self.average[operation]:.3f} on average, more than {average.formula}")
            if worst is not None and self.worst[operation] > worst.at(self.largest):
                found.append(f"{operation}: {self.worst[operation]} at worst, more than {worst.formula}")
        return found


class Meter:
    """A window, and the combines that its operations have taken so far."""

    def __init__(self, algorithm: type[Aggregator]) -> None:
        self._monoid = Counting(Sum("int64"))
        self._window = algorithm(self._monoid)
        self._inserted = 0
        self._answers = hashlib.sha256()
        self.worst: dict[str, int] = defaultdict(int)
        self.total: dict[str, int] = defaultdict(int)
        self.largest = 0

    @property
    def answers(self) -> str:
        return self._answers.hexdigest()[:12]

    def insert(self, count: int = 1) -> None:
        for _ in range(count):
            self._inserted += 1
            value = self._inserted * 2654435761 % 1000  # scattered, the same in every run
            if isinstance(self._window, Timed):
                self._window.insert(self._inserted, value)
            else:
                assert isinstance(self._window, InOrder)
                self._window.insert(value)
            self._count("insert")
        self.largest = max(self.largest, len(self._window))

    def evict(self, count: int = 1) -> None:
        for _ in range(count):
            assert isinstance(self._window, Timed | InOrder)
            self._window.evict()
            self._count("evict")

    def query(self) -> None:
        answer = self._window.query()
        self._count("query")
        self._answers.update(f"{answer},".encode())

    def _count(self, operation: str) -> None:
        combines = self._monoid.reset()
        self.total[operation] += combines
        self.worst[operation] = max(self.worst[operation], combines)

    def __len__(self) -> int:
        return len(self._window)


def measure(algorithm: type[Aggregator], *, entries: int, rounds: int) -> Costs:
    """Take an algorithm through the history that the module describes."""
    meter = Meter(algorithm)
    meter.insert(entries)
    meter.total.clear()
    slides = rounds * entries
    for _ in range(slides):
        meter.evict()
        meter.insert()
        meter.query()
    average = {operation: meter.total[operation] / slides for operation in ("insert", "evict", "query")}
    for _ in range(2):
        for step in range(3 * len(meter) // 4):
            meter.evict()
            if step % 7 == 0:
                meter.query()
        while len(meter) < 2 * entries:
            meter.insert(3)
            meter.query()
            meter.evict()
    while len(meter):
        meter.evict()
        meter.query()
    return Costs(average, dict(meter.worst), meter.answers, entries, meter.largest, slides)


def batch_costs(*, entries: int, batches: int = 8) -> Iterator[tuple[int, float, float]]:
    """Slide a Reactive Aggregator by m entries at a time.

    Yields:
        m, the combines per slide on average, and the bound for its 2m changes: 2m (2 + log2(capacity / 2m)).
    """
    m = 1
    while 2 * m <= entries:
        monoid = Counting(Sum("int64"))
        window = Reactive(monoid)
        window.change(insert=range(entries))
        monoid.reset()
        for batch in range(batches):
            window.change(evict=range(batch * m, (batch + 1) * m), insert=range(m))
        changes = 2 * m
        bound = changes * (2 + log2(max(1.0, window.capacity / changes)))
        yield m, monoid.reset() / batches, bound
        m *= 4


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return 1 if a figure is above its bound or the answers differ, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench.combine_counts", description="Combines per operation.")
    parser.add_argument("--entries", type=int, default=1000, help="window size during the slides")
    parser.add_argument("--rounds", type=int, default=10, help="slides, as a multiple of the window size")
    options = parser.parse_args(arguments)
    if options.entries < 2 or options.rounds < 1:
        parser.error("--entries is at least 2, and --rounds at least 1")
    entries, failed = options.entries, False
    print(f"combines per operation, n = {entries}, {options.rounds * entries} slides\n")
    print(f"{'':30}{'average':>10}{'bound':>12}{'worst':>10}{'bound':>12}")
    hashes = set()
    for name, bounds in BOUNDS.items():
        costs = measure(ALGORITHMS[name], entries=entries, rounds=options.rounds)
        show(name, costs, bounds)
        for line in costs.above(bounds):
            failed = True
            print(f"    ABOVE ITS BOUND: {line}")
        hashes.add(costs.answers)
    print(f"\nhash of the answers: {', '.join(sorted(hashes))}")
    if len(hashes) > 1:
        failed = True
        print("THE ANSWERS DIFFER")
    print(f"\nreactive, slides by m of {entries}\n{'m':>8}{'combines':>12}{'bound':>12}{'per entry':>12}")
    for m, combines, bound in batch_costs(entries=entries):
        failed |= combines > bound
        print(f"{m:8}{combines:12.1f}{bound:12.1f}{combines / m:12.2f}")
    return int(failed)


def show(name: str, costs: Costs, bounds: Bounds) -> None:
    """Print one algorithm's figures, a line per operation."""
    for operation, both in vars(bounds).items():
        average, worst = (bound.formula if bound is not None else "-" for bound in both)
        figures = f"{costs.average[operation]:10.2f}{average:>12}{costs.worst[operation]:10}{worst:>12}"
        print(f"{name if operation == 'insert' else '':18}{operation:12}{figures}")


if __name__ == "__main__":
    sys.exit(main())
