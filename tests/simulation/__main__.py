"""python -m tests.simulation --seed N: run one seed and tell its story. Without it: run seeds until stopped."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter

from tests.simulation.planted import plant


def main() -> int:
    """Run what the command line says; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and make it small if it fails")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, help="how many; until stopped without it")
    parser.add_argument("--lines", type=int, default=60, help="most lines of a story")
    parser.add_argument("--met", action="store_true", help="say which faults met which states")
    parser.add_argument("--planted", help="run the code with this fault, until it is found")
    parser.add_argument("--cluster", action="store_true", help="a cluster on Redis, and not one service on a disk")
    given = parser.parse_args()
    if given.planted is not None:
        plant(given.planted)
    from tests.simulation.run import run, shrunk, story
    from tests.simulation.scenario import cluster_of_seed, of_seed

    drawn = cluster_of_seed if given.cluster else of_seed

    if given.seed is not None:
        outcome = run(drawn(given.seed))
        if outcome.failure is not None:
            outcome = shrunk(drawn(given.seed))
        print(story(outcome, given.lines))
        return int(outcome.failure is not None)
    met, began_s, virtual_s = Counter[str](), time.perf_counter(), 0.0
    done = wrong = unchecked = restarts = 0
    seeds = itertools.count(given.first) if given.seeds is None else range(given.first, given.first + given.seeds)
    try:
        for seed in seeds:
            outcome = run(drawn(seed))
            done += 1
            met += outcome.met
            virtual_s += outcome.virtual_s
            unchecked += outcome.unchecked
            restarts += outcome.restarts
            if outcome.failure is None:
                continue
            wrong += 1
            if given.planted is not None:
                print(f"{done} | {outcome.failure[:160]}")
                return 1
            print(story(shrunk(drawn(seed)), given.lines), flush=True)
    except KeyboardInterrupt:
        pass
    if given.met:
        for what, count in sorted(met.items()):
            print(f"{count:8}  {what}")
    took_s = max(time.perf_counter() - began_s, 1e-9)
    print(
        f"{done} seeds in {took_s:.0f} s ({3600 * done / took_s:,.0f} in an hour), {virtual_s / took_s:,.0f} virtual "
        f"seconds in a second; {restarts} restarts; {unchecked} with too many cases; {wrong} wrong"
    )
    return int(wrong > 0)


if os.environ.get("PYTHONHASHSEED") is None:
    # What is in a set has an order of its own in each process, unless this is said before it starts.
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
raise SystemExit(main())
