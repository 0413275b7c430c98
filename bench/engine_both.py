"""The engine as Python interprets it beside the engine that mypyc compiled: every line of `bench.engine`, in one run.

    case 1   pure  compiled  pure  compiled  …      in processes of their own, in turns, so that what else the machine
    case 2   pure  compiled  pure  compiled  …      does falls on both
    line     the lowest median of each, and the ratio of the two

Both must answer the same digest. Does not show: other compilers, other versions of Python.

Run ``python -m bench.engine_both`` (ten minutes and more), or with ``--smoke``; ``--only SUBSTRING`` runs some cases,
and ``--runs N`` says how often each is run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from bench.engine import CASES
from bench.engine_report import CPP
from deploy import compile_engine

ROOT = Path(__file__).parents[1]


def lines_of(case: str, place: Path | None, smoke: bool) -> tuple[dict[str, list[str]], str]:
    """Run one case: the cells of each line by its name, and the digest."""
    path = [*([] if place is None else [str(place)]), str(ROOT / "service"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "bench.engine", "--only", case, *(["--smoke"] if smoke else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    *table, digest = ran.stdout.strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[2:]}, digest


def compare(case: str, compiled: Path, runs: int, smoke: bool) -> list[tuple[str, ...]]:
    """The rows of one case: what, pure, compiled, their ratio, ns per entry, the best C++, and compiled by that."""
    best: dict[str, tuple[float, float]] = {}
    cells: dict[str, list[str]] = {}
    for _ in range(runs):
        (pure, expected), (fast, digest) = lines_of(case, None, smoke), lines_of(case, compiled, smoke)
        if digest != expected:
            raise SystemExit(f"{case}: the compiled engine answers {digest}, the other {expected}")
        for what in pure:
            before = best.get(what, (float("inf"), float("inf")))
            now = float(pure[what][0].split()[0]), float(fast[what][0].split()[0])
            best[what] = min(before[0], now[0]), min(before[1], now[1])
            cells[what] = fast[what]
    rows = []
    for what, (slow, quick) in best.items():
        unit = cells[what][0].split()[1]
        found = re.match(r"round, m = ([0-9,]+), ", what)
        per = int(found[1].replace(",", "")) if found else 0
        cpp = min(CPP[per]) if per in CPP else 0.0
        each = f"{quick * 1e3 / per:.2f}" if per else ""
        of = (f"{cpp:g}", f"{quick * 1e3 / per / cpp:.2f}") if cpp else ("", "")
        rows.append((what, f"{slow:.2f} {unit}", f"{quick:.2f} {unit}", f"{quick / slow:.2f}", each, *of))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run and answer right?")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--runs", type=int, default=5, help="how often each case is run")
    arguments = parser.parse_args()
    place = compile_engine.compiled()
    head = ("what", "pure", "compiled", "ratio", "ns per entry", "best C++", "of that")
    rows = [head, tuple("---" for _ in head)]
    for case in (each.__name__ for each in CASES if arguments.only in each.__name__):
        rows += compare(case, place, arguments.runs, arguments.smoke)
        print(case, file=sys.stderr)
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


if __name__ == "__main__":
    main()
