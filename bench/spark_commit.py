"""The commit of one large batch, as Spark's driver asks for it: many parts that tasks have staged, in one write.

    stage     rows go to the service in parts of 131,072, as Arrow columns; each is a value in the tier (LMDB)
    commit    one call: the journal gets the names of the parts, and the window their rows
    behind    blocks and images that the service writes in the background, for three seconds

Processor time is the service's. Memory is its resident set at the end of each phase, and its peak. The digest is of
the sums over all rows.

Does not show: Spark, and the work of the client.

Run ``python -m bench.spark_commit`` (a minute; Linux), or ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.harness import MIB, arguments, digest, memory_of, pid_of, processor_s, service
from sash_client import ALL_KEYS, Client
from sash_wire.coded import Coded

ROWS_PER_PART = 131_072
KEYS = {"no keys": 0, "10 keys": 10, "100,000 keys": 100_000}
SPEC = {
    "name": "rows",
    "fields": {"value": "float64"},
    "aggregates": {"sum": {"function": "sum", "field": "value"}, "count": {"function": "count"}},
}


def measure(keys: int, rows: int, behind_s: float) -> float:
    """Stage and commit one batch, print what that took, and return the sum of its values, as the window has it."""
    rng = np.random.default_rng(7)
    times, values = np.sort(rng.integers(0, 3_600_000_000, rows)), rng.integers(-4_000, 4_000, rows) / 4
    codes, names = rng.integers(0, max(keys, 1), rows).astype("<u4"), [f"key-{i}" for i in range(keys)]
    with (
        tempfile.TemporaryDirectory() as directory,
        service("--data", directory) as running,
        Client(running.grpc_target, timeout_s=300) as client,
    ):
        window = client.create_window(SPEC | {"keyed": keys > 0})
        stages: list[Any] = []

        def stage() -> None:
            for start in range(0, rows, ROWS_PER_PART):
                some = slice(start, start + ROWS_PER_PART)
                of = Coded(names, codes[some]) if keys else None
                stages.extend(window.stage(times[some], values[some], keys=of, query="bench", batch=0))

        def commit() -> None:
            assert window.commit("bench", 0, stages).inserted == rows

        for name, phase in (("stage", stage), ("commit", commit), ("behind", lambda: time.sleep(behind_s))):
            report(name, pid_of(running), phase)
        (answer,) = window.query(**({"keys": ALL_KEYS, "combine": True} if keys else {}))
        return float(answer.aggregates["sum"])


def report(name: str, pid: int, phase: Callable[[], None]) -> None:
    """Run a phase, and print what it took of the service."""
    began, used = time.perf_counter(), processor_s(pid)
    phase()
    seconds, used = time.perf_counter() - began, processor_s(pid) - used
    now, peak = (each / MIB for each in memory_of(pid, "VmRSS", "VmHWM"))
    print(f"  {name:8} {seconds:9.2f} {used:12.2f} {now:12.0f} {peak:10.0f}", flush=True)


def main() -> None:
    given = arguments(__doc__, {"--rows": {"type": int, "default": 10_000_000, "help": "how many rows"}})
    rows = 200_000 if given.smoke else given.rows
    print(f"{rows:,} rows\n  {'phase':8} {'seconds':>9} {'processor s':>12} {'memory, MiB':>12} {'peak, MiB':>10}")
    sums = []
    for name, keys in KEYS.items():
        print(name)
        sums.append(measure(keys, rows, 0.1 if given.smoke else 3.0))
    print("digest", digest(sums))


if __name__ == "__main__":
    main()
