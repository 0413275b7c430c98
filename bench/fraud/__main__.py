"""Measure all systems, one after the other, and print a table; see `bench/fraud/__init__.py`.

Run ``python -m bench.fraud --setup`` once, then ``python -m bench.fraud`` (half an hour; Linux), or with ``--smoke`` (a
minute, figures meaningless).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.fraud.calls import make
from bench.fraud.systems import EXTRA, SYSTEMS, NotHere, System
from bench.fraud.work import Data, Right, Size
from bench.harness import CORES, arguments, head, row

SMOKE = Size(cards=50, history=1_000, transactions=60, callers=4)
REAL = Size(cards=1_000_000, history=3_000_000, transactions=20_000)
PACKAGES = ("asyncpg==0.32.0", "duckdb==2.0.1", "chdb==4.4.0", "chdb-core==26.9.0")
SLOW_S = 12.0
"""So long one of the two rates is measured, of a system that cannot make all transactions in it."""


def main() -> None:
    given = arguments(
        __doc__,
        {
            "--setup": {"action": "store_true", "help": "install clients and systems of PyPI, and end"},
            "--cards": {"type": int, "help": "how many cards"},
            "--history": {"type": int, "help": "entries of 30 days"},
            "--transactions": {"type": int, "help": "for each of the two rates"},
            "systems": {"nargs": "*", "metavar": "SYSTEM", "help": f"of {', '.join(SYSTEMS)}; all if none is named"},
        },
    )
    if given.setup:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(EXTRA)]
        subprocess.run([*pip, *PACKAGES], check=True)
        return
    named = {name: found for name in ("cards", "history", "transactions") if (found := getattr(given, name))}
    size = replace(SMOKE if given.smoke else REAL, **named)
    data = Data(size, 2 * size.transactions)
    os.sched_setaffinity(0, CORES[:2])  # and so all that it starts
    print(
        f"{size.cards:,} cards, {size.history:,} entries of 30 days, {size.transactions:,} transactions for each rate, "
        f"Zipf {size.zipf}, {size.callers} callers; {len(CORES[:2])} cores for server and callers, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    rates = ("a second, both cores", "processor time, µs", "a second of one core")
    titles = (*rates, "at half the rate: p50, p99, p99.9 ms", "bytes a card: memory, disk", "answers", "a kill loses")
    head("system", "an answered transaction is", *titles, "digest")
    for name in given.systems or SYSTEMS:
        try:
            row(*uvloop.run(measured(SYSTEMS[name], data)))
        except NotHere as error:
            row(SYSTEMS[name].name, f"not run: {error}")


async def measured(kind: type[System], data: Data) -> list[str]:
    """The row of a system."""
    with tempfile.TemporaryDirectory(dir=EXTRA.parent if EXTRA.parent.exists() else None) as where:
        os.chmod(where, 0o755)
        system = kind(Path(where) / "data")
        system.where.mkdir()
        await system.start(data)
        try:
            return await _measured(system, data)
        finally:
            await system.stop()


async def _measured(system: System, data: Data) -> list[str]:
    size, right = data.size, Right()
    empty = system.memory()
    await system.fill(data)
    callers = await system.callers(min(size.callers, system.callers_max))
    work = data.transactions

    def check(first: int, answers: Sequence[Any]) -> None:
        for number, found in enumerate(answers):
            right.note(data.answers(first + number), found)

    # As many as it makes in the time: a tenth says how many that are.
    some = max(size.callers, size.transactions // 100)
    made = await make(callers, work[:some])
    check(0, made.answers)
    digest = right.digest.hexdigest()[:8]
    count = min(size.transactions, max(some, int(made.per_s * SLOW_S)))
    cpu = system.cpu_s()
    made = await make(callers, work[some : some + count])
    rate = made.per_s
    cpu_us = (system.cpu_s() - cpu) / count * 1e6
    check(some, made.answers)
    done = some + count
    count = min(len(work) - done, max(some, int(rate / 2 * SLOW_S)))
    made = await make(callers, work[done : done + count], rate / 2)
    check(done, made.answers)
    p50, p99, p999 = np.percentile(np.array(made.late_s) * 1e3, [50, 99, 99.9])
    memory, disk = max(system.memory() - empty, 0), system.disk()
    return [
        system.name,
        system.promise,
        f"{rate:,.0f}",
        f"{cpu_us:,.0f}",
        f"{1e6 / max(cpu_us, 1e-9):,.0f}",
        f"{p50:.1f}, {p99:.1f}, {p999:.1f}",
        f"{memory / size.cards:,.0f}, {disk / size.cards:,.0f}",
        right.text,
        system.loses,
        digest,
    ]


if __name__ == "__main__":
    main()
