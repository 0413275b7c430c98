"""Measure one system; print a JSON document. It runs in the system's own environment."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.job import Job
from bench.peers.system import Cannot, NotInstalled, System
from bench.peers.work import KEYS, REAL, SMOKE, Data, Size

PRESSURE_PER_S = 20  # bulks of a thousand entries
PRESSURE_BULK = 1_000
RANK_ERROR = 0.03
COUNT_ERROR = 0.08


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--start-ms", type=int, required=True)
    parser.add_argument(
        "--reopen", metavar="DIRECTORY", help="start on this data, and say how long the first answer took"
    )
    given = parser.parse_args()
    size = SMOKE if given.smoke else REAL
    data = Data(size, given.start_ms)
    try:
        module = importlib.import_module(f"bench.peers.systems.{given.system}")
        if given.reopen:
            print(json.dumps(reopened(module.System(Path(given.reopen)), data)))
        else:
            with tempfile.TemporaryDirectory() as where:
                print(json.dumps(measured(module, Path(where), data, size)))
    except (NotInstalled, ImportError) as error:
        print(json.dumps({"not installed": str(error)}))


def measured(module: Any, where: Path, data: Data, size: Size) -> dict[str, Any]:
    """All figures of a system, by name; a text where it cannot do something."""
    figures: dict[str, Any] = {}

    def attempt(name: str, work: Callable[[], Any]) -> None:
        try:
            figures[name] = work()
        except Cannot as error:
            figures[name] = f"no: {error}"

    with running(module.System(where / "shuffled")) as system:
        figures |= {"name": system.name, "version": system.version(), "kept": system.kept}
        attempt("shuffled", lambda: ingested(system, data, size, data.shuffled))
        attempt("single", lambda: singles(system, data, size))
    shutil.rmtree(where / "shuffled", ignore_errors=True)
    with running(module.System(where / "ordered")) as system:
        empty = system.resident()
        attempt("ordered", lambda: ingested(system, data, size, np.arange(size.entries)))
        if not isinstance(figures["ordered"], str):
            attempt("memory", lambda: (system.resident() - empty) / size.entries)
        attempt("trailing", lambda: trailing(system, data, size))
        attempt("sketches", lambda: sketches(system, data, size))
        if isinstance(system, Job):
            system.lay_down(0, *data.of(0))
        attempt("series", lambda: series(system, data, size))
        attempt("restart", lambda: restarted(system, module, data, size))
        attempt("pressure", lambda: under_pressure(system, data, size))
    return figures


@contextlib.contextmanager
def running(system: System) -> Iterator[System]:
    """Start a system, and stop it whatever happens."""
    system.start()
    try:
        yield system
    finally:
        system.stop()


def ingested(system: System, data: Data, size: Size, order: Any) -> float:
    """Entries a second, in bulks."""
    spent = 0.0
    for low in range(0, size.entries, size.bulk):
        rows = order[low : low + size.bulk]
        bulk = system.prepared(data.times[rows], data.codes[rows], data.values[rows])
        start = time.perf_counter()
        system.bulk(bulk)
        spent += time.perf_counter() - start
    start = time.perf_counter()
    system.settle()
    check_trailing(system, data)
    return size.entries / (spent + time.perf_counter() - start)


def singles(system: System, data: Data, size: Size) -> float:
    """Entries a second of one caller that inserts one after the other, behind those that are there."""
    start = time.perf_counter()
    for i in range(size.singles):
        system.single(int(data.times[-1]) + 10 * (i + 1), i % KEYS, 1.0)
    return size.singles / (time.perf_counter() - start)


def trailing(system: System, data: Data, size: Size) -> dict[str, float]:
    """Microseconds of a question: one key, count, mean and maximum over three lookbacks."""
    return spread([clocked(lambda i=i: system.trailing(i % KEYS, data.now_ms)) for i in range(size.questions)])


def check_trailing(system: System, data: Data) -> None:
    for code in range(KEYS):
        for (count, mean, top), found in zip(data.trailing(code), system.trailing(code, data.now_ms), strict=True):
            assert (found[0], found[2]) == (count, top), (code, found, count, top)
            assert np.isclose(found[1], mean, rtol=1e-9), (code, found, mean)


def sketches(system: System, data: Data, size: Size) -> dict[str, Any]:
    """Microseconds of a question: one key, median, 99th percentile and distinct values over an hour."""
    values, exact = data.sketches(1)
    found = system.sketches(1, data.now_ms)
    missing = [name for name in ("median", "p99", "distinct") if getattr(found, name) is None]
    for name, q in (("median", 0.5), ("p99", 0.99)):
        value = getattr(found, name)
        assert value is None or abs(np.searchsorted(values, value) / len(values) - q) < RANK_ERROR, (name, value)
    assert found.distinct is None or abs(found.distinct / (exact.distinct or 1) - 1) < COUNT_ERROR, found
    took = spread([clocked(lambda i=i: system.sketches(i % KEYS, data.now_ms)) for i in range(size.questions // 10)])
    return {**took, "missing": missing, "exact": found == exact}


def series(system: System, data: Data, size: Size) -> float:
    """Milliseconds of a series: the median of three, after one to get warm; a job is run once, and starts cold."""
    ends = data.ends(size.points)
    right_means, right_tops = data.series(0, size.points)
    took = []
    for _ in range(1 if isinstance(system, Job) else 4):
        start = time.perf_counter()
        means, tops = system.series(0, ends)
        took.append(1e3 * (time.perf_counter() - start))
        assert np.allclose(means, right_means, rtol=1e-9), "means"
        assert np.array_equal(tops, right_tops), "maxima"
    return statistics.median(took[1:] or took)


def restarted(system: System, module: Any, data: Data, size: Size) -> float:
    """Seconds from the start after a kill to the first right answer; started by a process that never saw the data."""
    system.persist()
    system.kill()
    name = module.__name__.rpartition(".")[2]
    command = [sys.executable, "-m", "bench.peers.worker", name, "--start-ms", str(data.start_ms)]
    command += ["--reopen", str(system.directory), *(["--smoke"] if size is SMOKE else [])]
    seconds = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])["seconds"]
    system.start()
    return float(seconds)


def reopened(system: System, data: Data) -> dict[str, float]:
    start = time.perf_counter()
    system.start()
    check_trailing(system, data)
    seconds = time.perf_counter() - start
    system.kill()
    return {"seconds": seconds}


def under_pressure(system: System, data: Data, size: Size) -> dict[str, float]:
    """Microseconds of a question while bulks come in at a fixed rate: `behind` says which part of them came late."""
    stop, bulks = threading.Event(), round(size.pressure_s * PRESSURE_PER_S)
    after = int(data.times[-1]) + 10

    def feed() -> list[float]:
        """How late each bulk was answered."""
        sent, begin = [], time.perf_counter()
        for i in range(bulks):
            times = after + 10 * (i * PRESSURE_BULK + np.arange(PRESSURE_BULK, dtype=np.int64))
            bulk = system.prepared(times, np.arange(PRESSURE_BULK, dtype=np.int64) % KEYS, np.ones(PRESSURE_BULK))
            if stop.wait(max(begin + i / PRESSURE_PER_S - time.perf_counter(), 0)):
                break
            system.bulk(bulk)
            sent.append(time.perf_counter() - begin - i / PRESSURE_PER_S)
        return sent

    took: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        feeding = thread.submit(feed)
        try:
            while not feeding.done():
                took.append(clocked(partial(system.trailing, len(took) % KEYS, data.now_ms)))
        finally:
            stop.set()
    return {**spread(took), "behind": sum(late > 1 for late in feeding.result()) / bulks}


def clocked(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - start)


def spread(microseconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(microseconds), "p99": float(np.quantile(microseconds, 0.99))}


if __name__ == "__main__":
    main()
