"""What keys cost: bytes per key, and entries a second in bulks over random keys.

    a million keys of 10 entries (time and one float64, one sum), in bulks of 16,384 entries to random keys
    └ filling: keys begin, and move through pages of 4, 8 and 16 rows
    └ filled:  more of the same into 20,000 keys, under each slide policy, in order of time and not

Each case runs in a fresh process. Bytes are resident memory, before and after, garbage collected, so they include
names, dictionary and whatever the allocator keeps; `peak` is the most there ever was. A rate is entries over the
processor time of `Window.bulk_insert`, which waits for nothing; making the batches is the producer's and the edge's
work, and is not in it. For comparison, the same keys with a forest each, fewer of them.

The digest is of answers of keys picked at random: it depends on size and case only, and must be the same for pages and
for forests.

The second table is of questions about keys with parts: a million keys of 10 entries and four aggregates, where the
first part has 100 values and the second 10,000. Times are of the processor, the best of five; `first` has the labels to
make, and the totals of keys. A step is what the service does between two looks at other calls. Memory that is free is
kept, and the garbage collector leaves out what is old, as in a service. The window of the last question keeps the
groups by region (`rollups`).

Does not show: the edge, strings as fields, or more than one aggregate (small keys keep no partials, so more of them
change queries only).

Run ``python -m bench.keys`` (about two minutes), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.harness import arguments, head, in_fresh_process, memory_of, row, timed
from sash.runtime.memory import give_back, grow_old, keep_free, settle
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.keys.pages import PAGES
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query, Top, Where
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

ENTRIES = 10  # per key, while filling


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    keys: int
    fewer_keys: int
    bulk: int
    rounds: int
    singles: int


SMOKE = Size(keys=2_000, fewer_keys=200, bulk=512, rounds=3, singles=50)
REAL = Size(keys=1_000_000, fewer_keys=20_000, bulk=16_384, rounds=30, singles=5_000)


@dataclass(frozen=True)
class Case:
    """One window and how it is written to."""

    name: str
    keys: int
    pages: tuple[int, int] | None = PAGES
    slide: dict[str, int] = field(default_factory=dict)
    disorder: int = 0  # times are up to so many bulks behind


def cases(size: Size) -> list[Case]:
    """The cases of a run."""
    fewer = size.fewer_keys
    return [
        Case("pages", size.keys),
        Case("pages", fewer),
        Case("forests", fewer, None),
        Case("pages, max_count 10", fewer, slide={"max_count": 10}),
        Case("forests, max_count 10", fewer, None, {"max_count": 10}),
        Case("pages, max_age of 10 entries", fewer, slide={"max_age": 10 * fewer}),
        Case("forests, max_age of 10 entries", fewer, None, {"max_age": 10 * fewer}),
        Case("pages, out of order", fewer, disorder=10),
        Case("forests, out of order", fewer, None, disorder=10),
    ]


def batches(rng: np.random.Generator, numbers: np.ndarray, first: int, bulk: int, disorder: int) -> Iterator[Batch]:
    """Cut entries for the keys `numbers` into batches, with names of their own as an edge would decode them."""
    for start in range(0, len(numbers), bulk):
        some, codes = np.unique(numbers[start : start + bulk], return_inverse=True)
        times = np.arange(first + start, first + start + len(codes))
        if disorder:
            times -= rng.integers(0, disorder * bulk, len(times))
        names = [f"sensor-{number:08d}" for number in some.tolist()]
        yield Batch(times, {"value": rng.normal(size=len(codes))}, Coded(names, codes))


def insert_all(window: Window, some: Iterator[Batch]) -> list[float]:
    """Seconds of each batch."""
    return [timed(lambda batch=batch: window.bulk_insert(batch)) for batch in some]


def resident() -> int:
    """Memory of this process in bytes."""
    gc.collect()
    return memory_of("self", "VmRSS")[0]


def run(case: Case, size: Size) -> list[str]:
    """Measure one case; meant for a process of its own."""
    rng = np.random.default_rng(1)
    spec = {
        "name": "keys",
        "keyed": True,
        "time_unit": "none",
        "aggregates": {"sum": {"function": "sum"}},
        "slide": case.slide,
    }
    window = Window(WindowSpec.parse(spec), pages=case.pages)
    numbers = rng.permutation(np.repeat(np.arange(case.keys, dtype=np.int32), ENTRIES))
    before, (before_peak,) = resident(), memory_of("self", "VmHWM")
    filling = insert_all(window, batches(rng, numbers, 0, size.bulk, case.disorder))
    held = resident() - before
    peak = memory_of("self", "VmHWM")[0] - before_peak
    now = len(numbers)
    more = rng.integers(0, case.keys, size.rounds * size.bulk)
    filled = insert_all(window, batches(rng, more, now, size.bulk, case.disorder))
    now += len(more)
    window_digest = digest(window, rng, case.keys)
    picked = [f"sensor-{number:08d}" for number in rng.integers(0, case.keys, size.singles).tolist()]
    fields = {"value": 1.0}
    queries = [timed(lambda key=key: window.query(key, [], None)) for key in picked]
    inserts = [timed(lambda i=i, key=key: window.insert(now + i, fields, key)) for i, key in enumerate(picked)]
    return [
        f"{held / case.keys:,.0f}",
        f"{peak / case.keys:,.0f}",
        f"{len(numbers) / sum(filling):,.0f}/s",
        f"{max(filling) * 1e3:.0f} ms",
        f"{size.bulk / statistics.median(filled):,.0f}/s",
        f"{statistics.median(inserts) * 1e6:.1f} µs",
        f"{statistics.median(queries) * 1e6:.1f} µs",
        window_digest,
    ]


def questions(keys: int) -> dict[str, Query]:
    """The questions of the second table."""
    some = [f"region-{i:02d}" for i in range(100)]
    thousand = [f"host-{i:04d}" for i in range(0, 10_000, max(10_000 * 100 // keys, 10))]
    return {
        "by region": Query(selection=Grouped(by=["region"])),
        "by region, a lookback": Query(lookbacks=[10 * keys], selection=Grouped(by=["region"])),
        "where 1,000 keys": Query(combine=True, selection=Grouped(where=[Where("host", "in", thousand[:10])])),
        "where a regular expression": Query(
            combine=True, selection=Grouped(where=[Where("host", "=~", ["host-00.0"])])
        ),
        "by host of 10 regions": Query(selection=Grouped(where=[Where("region", "in", some[:10])], by=["host"])),
        "top 10 keys": Query(keys=ALL_KEYS, selection=Grouped(top=Top("mean", 10))),
        "top 10 hosts": Query(selection=Grouped(by=["host"], top=Top("mean", 10))),
    }


def ask(size: Size, rollups: bool = False, gives_back: bool = False) -> tuple[float, dict[str, list[str]]]:
    """Bytes of labels and totals a key and part, and what each question costs; meant for a process of its own.

    Args:
        gives_back: free memory is given back to the system, so that bytes are of labels and totals alone. A service
            keeps it for what comes next.
    """
    aggregates = {name: {"function": name} for name in ("count", "sum", "mean", "max")}
    document = {"name": "keys", "keys": ["region", "host"], "time_unit": "none", "aggregates": aggregates}
    spec = WindowSpec.parse(document | ({"rollups": [["region"]]} if rollups else {}))
    settle()
    keep_free()
    window, rng, now = Window(spec), np.random.default_rng(1), 0
    names = [f"region-{i % 100:02d}|host-{i // 100:04d}" for i in range(size.keys)]
    for _ in range(ENTRIES):
        for start in range(0, size.keys, size.bulk):
            some = names[start : start + size.bulk]
            times = np.arange(now, now + len(some))
            window.bulk_insert(Batch(times, {"value": rng.normal(size=len(some))}, Coded(some, np.arange(len(some)))))
            now += len(some)
    del names, some
    if gives_back:
        give_back()
    before, found = resident(), {}
    asked = questions(size.keys)
    for name, question in {"by region, a rollup": asked["by region"]}.items() if rollups else asked.items():
        costs = [cost_of(window, question) for _ in range(6)]
        (first, first_step, answers), again = costs[0], np.min(costs[1:], axis=0)
        found[name] = [f"{answers:,}", f"{first:.0f} ms", f"{first_step:.1f} ms"] + [f"{ms:.1f} ms" for ms in again[:2]]
        if len(found) == 1:
            if gives_back:
                give_back()
            held = resident() - before
    return held / size.keys / 2, found


def cost_of(window: Window, question: Query) -> tuple[float, float, int]:
    """Processor milliseconds of a question and of its longest step, and how many answers it has."""
    steps, total, longest = window.reader.query_steps(question), 0.0, 0.0
    while True:
        started = time.process_time()
        try:
            next(steps)
        except StopIteration as end:
            return (total + time.process_time() - started) * 1e3, longest * 1e3, len(end.value)
        grow_old()  # as the service does after each slice
        took = time.process_time() - started
        total, longest = total + took, max(longest, took)


def digest(window: Window, rng: np.random.Generator, keys: int) -> str:
    """A hash of the answers of a thousand keys, floats to nine digits."""
    state = hashlib.sha256()
    for number in rng.integers(0, keys, 1000).tolist():
        (answer,) = window.query(f"sensor-{number:08d}", [], None)
        state.update(f"{answer.entries} {answer.start} {answer.end} ".encode())
        state.update(f"{answer.aggregates['sum']:.9f}".encode())
    return state.hexdigest()[:12]


def main() -> None:
    """Run all cases and print two tables."""
    size = SMOKE if arguments(__doc__).smoke else REAL
    figures = ("bytes per key", "peak", "filling", "slowest bulk", "filled", "insert", "query", "digest")
    head("case", "keys", *figures)
    for case in cases(size):
        row(case.name, f"{case.keys:,}", *in_fresh_process(run, case, size))
    held, _ = in_fresh_process(ask, size, False, True)
    print(f"\nlabels and totals: {held:.0f} bytes for each key and part\n")
    head("question", "answers", "first", "its longest step", "again", "longest step")
    for rollups in (False, True):
        for name, cells in in_fresh_process(ask, size, rollups)[1].items():
            row(name, *cells)


if __name__ == "__main__":
    main()
