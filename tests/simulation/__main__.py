"""python -m tests.simulation --seed N: run one seed and tell its story. Without it: run seeds until stopped."""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.simulation.planted import plant


def main() -> int:
    """Run what the command line says; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and make it small if it fails")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, help="how many; until stopped without it")
    parser.add_argument("--lines", type=int, default=60, help="most lines of a story")
    parser.add_argument(
        "--met",
        action="store_true",
        help="say which faults met which states; after 10,000 runs, fail where some never did",
    )
    parser.add_argument("--planted", help="run the code with this fault")
    parser.add_argument("--cluster", action="store_true", help="a cluster on Redis")
    parser.add_argument("--single", action="store_true", help="one service on a disk; both kinds without either")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="how many seeds run side by side")
    given = parser.parse_args()
    if given.planted is not None:
        plant(given.planted)
    from tests.simulation.met import RUNS, expected, never
    from tests.simulation.run import run, shrunk, story
    from tests.simulation.scenario import cluster_of_seed, of_seed

    if given.seed is not None:
        scenario = cluster_of_seed(given.seed) if given.cluster else of_seed(given.seed)
        outcome = run(scenario)
        if outcome.failure is not None:
            outcome = shrunk(scenario)
        print(story(outcome, given.lines))
        return int(outcome.failure is not None)
    importlib.import_module("tests.simulation.cluster")  # before the forks; it brings gRPC, redis-py and Lua
    kinds = [kind for kind in (False, True) if given.cluster == given.single or given.cluster is kind]
    seeds: Iterable[int] = itertools.count(given.first)
    if given.seeds is not None:
        seeds = range(given.first, given.first + given.seeds)
    met, began_s, virtual_s = Counter[str](), time.perf_counter(), 0.0
    done = unchecked = restarts = 0
    wrong: list[str] = []
    stopped: list[int] = []

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
        stopped.append(number)

    gc.freeze()  # what was imported stays, and need not be looked at again and again
    for each in (signal.SIGINT, signal.SIGTERM):  # a shell that starts this with & has it ignore SIGINT
        signal.signal(each, stop)
    for outcome, smaller in _outcomes(((kind, seed) for seed in seeds for kind in kinds), given.workers):
        done += 1
        met += outcome.met
        virtual_s += outcome.virtual_s
        unchecked += outcome.unchecked
        restarts += outcome.restarts
        if smaller is not None:
            wrong.append(
                f"{'--single' if outcome.scenario.cluster is None else '--cluster'} --seed {outcome.scenario.seed}"
            )
            print(story(smaller, given.lines), flush=True)
        if stopped:
            break
    if given.met:
        for what, count in sorted(met.items()):
            print(f"{count:8}  {what}")
    unmet = never(met, expected(False in kinds, True in kinds)) if given.met and done >= RUNS else []
    for pair in unmet:
        print(f"in {done} runs never met: {pair}")
    took_s = max(time.perf_counter() - began_s, 1e-9)
    kinds_met = Counter[str]()
    for what, count in met.items():
        kinds_met[what.partition(" | ")[0]] += count
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in kinds_met.most_common()))
    print(*(f"wrong: {each}" for each in wrong), sep="\n", end="\n" * bool(wrong))
    print(
        f"{done} runs in {took_s:.0f} s ({3600 * done / took_s:,.0f} in an hour), {virtual_s / took_s:,.0f} virtual "
        f"seconds in a second; {restarts} restarts; {unchecked} with too many cases; {len(wrong)} wrong"
    )
    return int(bool(wrong or unmet))


def _outcomes(runs: Iterable[tuple[bool, int]], workers: int) -> Iterable[Any]:
    """The outcomes of runs side by side, and of those that fail made small; each in a fork of this process.

    It has imported everything, and runs nothing itself: a fork that begins in the middle of Lua waits for it for ever.
    A run looks for no garbage. A fork ends before it would: to begin another one takes a tenth of that time.
    """
    from tests.simulation.run import COLLECTED

    with multiprocessing.get_context("fork").Pool(workers, _deaf, maxtasksperchild=COLLECTED - 1) as pool:
        waiting: deque[Any] = deque()
        for each in runs:
            waiting.append(pool.apply_async(_run, (each,)))
            if len(waiting) >= 4 * workers:
                yield waiting.popleft().get()
        for result in waiting:
            yield result.get()


def _deaf() -> None:
    """Who stops this says so to all its processes at once, and only the first one answers; it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(what: tuple[bool, int]) -> Any:
    from tests.simulation.run import run, shrunk
    from tests.simulation.scenario import cluster_of_seed, of_seed

    is_cluster, seed = what
    outcome = run(cluster_of_seed(seed) if is_cluster else of_seed(seed))
    return replace(outcome, events=[]), None if outcome.failure is None else shrunk(outcome.scenario)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        # What is in a set has an order of its own in each process, unless this is said before it starts.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    raise SystemExit(main())
