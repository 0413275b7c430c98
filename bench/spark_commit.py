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

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.spark import family, processor_s
from sash_client import ALL_KEYS, Client
from sash_client.local import local_service
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
    with tempfile.TemporaryDirectory() as directory, local_service(data=directory) as service:
        (pid,) = (child for child, stat in family(os.getpid()).items() if int(stat[1]) == os.getpid())
        with Client(service.target, timeout_s=300) as client:
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
                report(name, pid, phase)
            (answer,) = window.query(**({"keys": ALL_KEYS, "combine": True} if keys else {}))
            return float(answer.aggregates["sum"])


def report(name: str, pid: int, phase: Callable[[], None]) -> None:
    """Run a phase, and print what it took of the service."""
    began, used = time.perf_counter(), processor_s(pid)
    phase()
    seconds, used = time.perf_counter() - began, processor_s(pid) - used
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, peak = (int(status[each].split()[0]) / 1024 for each in ("VmRSS", "VmHWM"))
    print(f"  {name:8} {seconds:9.2f} {used:12.2f} {now:12.0f} {peak:10.0f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes; figures meaningless")
    parser.add_argument("--rows", type=int, default=10_000_000, help="how many rows")
    arguments = parser.parse_args(argv)
    rows = 200_000 if arguments.smoke else arguments.rows
    print(f"{rows:,} rows\n  {'phase':8} {'seconds':>9} {'processor s':>12} {'memory, MiB':>12} {'peak, MiB':>10}")
    sums = []
    for name, keys in KEYS.items():
        print(name)
        sums.append(measure(keys, rows, 0.1 if arguments.smoke else 3.0))
    print("digest", hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
