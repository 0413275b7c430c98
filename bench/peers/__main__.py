"""Measure all systems, one after the other, and print a page; see `bench/peers/__init__.py`.

Run ``python -m bench.peers --setup`` once (about 1.5 GB), then ``python -m bench.peers --write`` (half an
hour), or with ``--smoke`` (a minute or two; figures mean nothing).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import arguments
from bench.peers.report import page
from bench.peers.setup import PYTHON, SYSTEMS, set_up
from deploy.compile_engine import compiled

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "background" / "peers.md"
IN_OURS = ("sash", "sash_sketches", "prometheus", "victoria_metrics", "polars", "pandas", "spark")
"""Systems that are in the environment of Sash."""

PATIENCE_S = 1_800
STEP_MS = 600_000


def main() -> None:
    given = arguments(
        __doc__,
        {
            "--setup": {"action": "store_true", "help": "install the systems from PyPI, and end"},
            "--write": {"action": "store_true", "help": f"write the page {PAGE.relative_to(ROOT)}"},
            "--runs": {"type": int, "default": 3},
            "systems": {"nargs": "*", "metavar": "SYSTEM", "help": f"of {', '.join(SYSTEMS)}; all if none is named"},
        },
    )
    if given.setup:
        set_up()
        return
    runs = 1 if given.smoke else given.runs
    found: dict[str, list[dict[str, Any]]] = {}  # Sash is the first
    absent: dict[str, str] = {}
    for _ in range(runs):
        for system in [system for system in SYSTEMS if system in (given.systems or SYSTEMS)]:
            if system in absent:
                continue
            print(f"{system} …", file=sys.stderr, flush=True)
            figures = measured(system, given.smoke)
            if isinstance(figures, str):
                absent[system] = figures
            else:
                found.setdefault(figures["name"], []).append(figures)
    text = page({name: together(figures) for name, figures in found.items()}, absent, machine())
    print(text)
    if given.write:
        PAGE.write_text(text)


def measured(system: str, smoke: bool) -> dict[str, Any] | str:
    """The figures of a system; why there are none."""
    python = sys.executable if system in IN_OURS else str(PYTHON)
    if not Path(python).exists():
        return "its environment is not there; run `python -m bench.peers --setup`"
    # Not long ago: monitoring systems refuse entries from last year. Not now: some want them to be an hour old.
    start_ms = (int(time.time()) - 6 * 3600) * 1000 // STEP_MS * STEP_MS
    command = [python, "-m", "bench.peers.worker", system, "--start-ms", str(start_ms), *(["--smoke"] if smoke else [])]
    # The compiled engine, which is what users have.
    paths = [ROOT, compiled(), ROOT / "service", ROOT / "clients", ROOT / "proto"] if system in IN_OURS else [ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "SPARK_LOCAL_IP": "127.0.0.1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {PATIENCE_S // 60} minutes"
    if done.returncode:
        print(done.stderr[-2_000:], file=sys.stderr)
        return f"it ended with an error, or an answer was not NumPy's ({done.stderr.strip().splitlines()[-1]})"
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].rpartition("\r")[2])
    return figures.get("not installed") or figures


def together(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians of several runs."""
    out: dict[str, Any] = {"runs": len(runs)}
    for name, value in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(value, float | int) and not isinstance(value, bool):
            out[name] = statistics.median(values)
        elif isinstance(value, dict):
            out[name] = together(values)
        else:
            out[name] = value
    return out


def machine() -> str:
    """What this runs on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, {platform.system()}"


if __name__ == "__main__":
    main()
