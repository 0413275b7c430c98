"""A training set: the answers about many (key, time) pairs, beside what a data scientist would use.

Sash is a window in process, asked with `AnswersAt` in bulks of 300,000 answers, sorted by key; `training_peers.py` says
what the others do, each where it is installed.

1 M pairs x 3 lookbacks (1 h, 7 d, 90 d) x (count, sum, max, distinct) over 100,000 keys and 20 M entries of a year,
one after the other; the seconds of the clock and of the processor, with all threads, of the median of three runs, or of
those that begin in the first 20 seconds, without what it takes to load the entries. Sash's distinct count is an HLL
sketch, which is nearly exact up to some hundred values; the others count exactly. Counts and maxima must be equal, sums
up to rounding, distinct counts for 99 of 100.

With ``--served`` it measures a service instead, with the same entries: a pair of a key with a million entries by the
processor time of the service; what one small query after the other waits beside ten times as many pairs, in tables of
500,000; and how much memory service and client take meanwhile, beyond what they had before.

Run ``python -m bench.training``, with ``--share 0.1`` of it, with ``--only polars`` for some of them, or with
``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.harness import MIB, arguments, digest, head, memory_of, pid_of, processor_s, row, service, used_s
from bench.training_peers import PEERS
from sash_client import Client
from sash_engine.steps import finished
from sash_engine.version import compiled
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.coded import Coded

PAIRS, KEYS, ENTRIES = 1_000_000, 100_000, 20_000_000
SMOKE = 0.0005
RUNS, LONG_S = 3, 20.0
"""Runs of which the median counts, and after how many seconds there is no other one."""
YEAR_S, LOOKBACKS_S = 365 * 86_400, (3_600, 7 * 86_400, 90 * 86_400)
BULK = 1 << 20
ANSWERS = 300_000
SPEC = {
    "name": "payments",
    "time_unit": "s",
    "keyed": True,
    "fields": {"amount": "float64", "shop": "int64"},
    "aggregates": {
        "count": {"function": "count"},
        "sum": {"function": "sum", "field": "amount"},
        "max": {"function": "max", "field": "amount"},
        "distinct": {"function": "distinct_count", "field": "shop"},
    },
}

Array = Any
Table = list[dict[str, Array]]
"""For each lookback the columns by name, in the order of the pairs; null is NaN."""


class Data:
    """Entries and pairs, the same in every run.

    Args:
        share: of the real sizes.
    """

    def __init__(self, share: float) -> None:
        random = np.random.default_rng(7)
        n, k = max(int(ENTRIES * share), 1_000), max(int(PAIRS * share), 100)
        self.keys = max(int(KEYS * share), 10)
        self.times = np.sort(random.integers(0, YEAR_S, n))
        self.codes = random.integers(0, self.keys, n)
        self.amounts, self.shops = random.random(n) * 100, random.integers(0, 5_000, n)
        self.asked, self.of = random.integers(0, YEAR_S, k), random.integers(0, self.keys, k)


def sash(data: Data) -> Callable[[], Table]:
    """Load a window; return what answers."""
    window, names = Window(WindowSpec.parse(SPEC)), [f"card {i}" for i in range(data.keys)]
    for a in range(0, len(data.times), BULK):
        some = slice(a, a + BULK)
        columns = {"amount": data.amounts[some], "shop": data.shops[some]}
        window.bulk_insert(Batch(data.times[some], columns, Coded(names, data.codes[some])))

    def answers() -> Table:
        parts, size = [], ANSWERS // len(LOOKBACKS_S)
        order = np.argsort(data.of, kind="stable")  # as the client does: what one bulk reads is near together
        for a in range(0, len(order), size):
            keys = Coded(names, data.of[order[a : a + size]]).rows(slice(None))
            question = AnswersAt(data.asked[order[a : a + size]], keys, LOOKBACKS_S)
            parts.append(finished(window.reader.answers_at_steps(question)))
        found = list[dict[str, Array]]()
        for of_lookback in zip(*parts, strict=True):
            columns = {name: np.empty(len(order)) for name in SPEC["aggregates"]}  # type: ignore[attr-defined]
            for name, column in columns.items():
                column[order] = np.concatenate([np.asarray(each.aggregates[name], np.float64) for each in of_lookback])
            found.append(columns)
        return found

    return answers


def check(ours: Table, theirs: Table, name: str) -> None:
    """Compare answers; raises AssertionError."""
    for a, b in zip(ours, theirs, strict=True):
        for column in ("count", "max"):
            np.testing.assert_array_equal(a[column], b[column], err_msg=f"{name}: {column}")
        np.testing.assert_allclose(a["sum"], b["sum"], rtol=1e-9, atol=1e-9, err_msg=f"{name}: sum")
        assert np.mean(a["distinct"] == b["distinct"]) >= 0.99, f"{name}: distinct"


def run(name: str, answers: Callable[[], Table], ours: tuple[Table, float] | None, pairs: int) -> tuple[Table, float]:
    """Measure one system, print its row, and compare its answers with ours; return them and the seconds."""
    taken = list[tuple[float, float]]()
    while len(taken) < RUNS and sum(seconds for seconds, _ in taken) < LONG_S:
        begun, processor = time.perf_counter(), used_s(os.getpid())
        found = answers()
        taken.append((time.perf_counter() - begun, used_s(os.getpid()) - processor))
    seconds, used = sorted(taken)[len(taken) // 2]
    ratio = seconds / (ours[1] if ours else seconds)
    row(name, f"{seconds:.2f}", f"{used:.2f}", f"{used / pairs * 1e6:.1f}", f"{ratio:.1f}")
    if ours:
        check(ours[0], found, name)
    return found, seconds


def served(data: Data, pairs: int) -> None:
    """Ask a service about pairs in tables, one after the other, beside small queries, and print a line."""
    names = np.array([f"card {i}" for i in range(data.keys)])
    with service(SASH_MEMORY_BYTES="8GiB") as running, Client(running.grpc_target, timeout_s=600) as client:
        pid = pid_of(running)

        def both() -> int:
            return sum(memory_of(pid, "VmRSS") + memory_of("self", "VmRSS"))

        for spec, codes in ((SPEC, data.codes), ({**SPEC, "name": "hot"}, np.zeros_like(data.codes))):
            window = client.create_window(spec)
            for a in range(0, len(codes) if spec is SPEC else min(len(codes), 1_000_000), BULK // 16):
                some = slice(a, a + BULK // 16)
                columns = {"amount": data.amounts[some], "shop": data.shops[some]}
                window.bulk_insert(data.times[some], columns, keys=names[codes[some]].tolist())
        size, lookbacks = min(500_000, pairs), [f"{seconds}s" for seconds in LOOKBACKS_S]
        hot, used = client.window("hot"), processor_s(pid)
        hot.answers_at(np.sort(np.resize(data.asked, size)), keys="card 0", lookbacks=lookbacks)
        hot_us = (processor_s(pid) - used) / size * 1e6
        before, peak, done = both(), 0, 0
        spawn = multiprocessing.get_context("spawn")
        asking, asked = spawn.Event(), spawn.Queue()
        prober = spawn.Process(target=_small_queries, args=(running.grpc_target, asking, asked))
        prober.start()
        while done < pairs:
            some = np.arange(done, done + size) % len(data.asked)
            window = client.window(SPEC["name"])
            window.answers_at(data.asked[some], keys=names[data.of[some]].tolist(), lookbacks=lookbacks)
            peak, done = max(peak, both()), done + size
        asking.set()
        waits = np.array(asked.get()) * 1000
        prober.join()
    p50, p99 = np.percentile(waits, [50, 99])
    print(
        f"a pair of a hot key {hot_us:.1f} µs; {len(waits):,} small queries beside {done:,} pairs: p50 {p50:.1f}, "
        f"p99 {p99:.1f} ms; {(peak - before) / MIB:.0f} MiB more than before\ndigest none"
    )


def _small_queries(target: str, asking: Any, asked: Any) -> None:
    waits = list[float]()
    with Client(target) as client:
        window = client.window(SPEC["name"])
        while not (asking.is_set() and waits):
            begun = time.perf_counter()
            window.query(key=f"card {len(waits) % 10}", lookbacks=["3600s"], as_of=YEAR_S)
            waits.append(time.perf_counter() - begun)
            time.sleep(0.005)
    asked.put(waits)


def main() -> None:
    """Measure and print a table."""
    given = arguments(
        __doc__,
        {
            "--share": {"type": float, "default": 1.0, "help": "of the real sizes"},
            "--only": {"default": "", "help": "those beside Sash whose names contain this"},
            "--served": {"action": "store_true", "help": "a service, beside small queries, and no others"},
        },
    )
    data = Data(SMOKE if given.smoke else given.share)
    print(f"{len(data.asked):,} pairs, {data.keys:,} keys, {len(data.times):,} entries; compiled: {compiled()}\n")
    if given.served:
        served(data, 10 * len(data.asked))
        return
    head("system", "s", "s of the processor", "µs a pair", "times as long as Sash")
    ours = run("Sash", sash(data), None, len(data.asked))
    for name, (package, load) in PEERS.items():
        if given.only.lower() not in name.lower() or (given.smoke and package in ("pyspark", "feast")):
            continue
        if importlib.util.find_spec(package) is None:
            row(name, f"{package} is not installed", "", "", "")
            continue
        run(name, load(data, LOOKBACKS_S), ours, len(data.asked))
    print(f"\ndigest {digest(b''.join(column.tobytes() for table in ours[0] for column in table.values()))}")


if __name__ == "__main__":
    main()
