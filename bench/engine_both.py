"""The engine as Python interprets it beside the engine that mypyc compiled: every line of `bench.engine`, in one run.

    case 1   pure  compiled  pure  compiled  …      in processes of their own, in turns, so that what else the machine
    case 2   pure  compiled  pure  compiled  …      does falls on both
    line     the lowest median of each, and the ratio of the two

Both must answer the same digest. Does not show: other compilers, other versions of Python.

Run ``python -m bench.engine_both`` (ten minutes and more), or with ``--smoke``; ``--only SUBSTRING`` runs some cases,
and ``--runs N`` says how often each is run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bench.engine import CASES
from bench.engine_report import CPP
from bench.harness import arguments, head, row
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


def compare(case: str, compiled: Path, runs: int, smoke: bool) -> None:
    """Print the rows of one case."""
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
    for what, (slow, quick) in best.items():
        unit = cells[what][0].split()[1]
        found = re.match(r"round, m = ([0-9,]+), ", what)
        per = int(found[1].replace(",", "")) if found else 0
        cpp = min(CPP[per]) if per in CPP else 0.0
        each = f"{quick * 1e3 / per:.2f}" if per else ""
        of = (f"{cpp:g}", f"{quick * 1e3 / per / cpp:.2f}") if cpp else ("", "")
        row(what, f"{slow:.2f} {unit}", f"{quick:.2f} {unit}", f"{quick / slow:.2f}", each, *of)


def main() -> None:
    given = arguments(
        __doc__,
        {
            "--only": {"default": "", "help": "cases whose name contains this"},
            "--runs": {"type": int, "default": 5, "help": "how often each case is run"},
        },
    )
    place = compile_engine.compiled()
    head("what", "pure", "compiled", "ratio", "ns per entry", "best C++", "of that")
    for case in (each.__name__ for each in CASES if given.only in each.__name__):
        compare(case, place, given.runs, given.smoke)


if __name__ == "__main__":
    main()
