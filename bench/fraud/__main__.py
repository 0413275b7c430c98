"""Measure all systems, one after the other, and print a table; see `bench/fraud/__init__.py`.

Run ``python -m bench.fraud --setup`` once, then ``python -m bench.fraud`` (half an hour; Linux), or with ``--smoke`` (a
minute, figures meaningless).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.fraud.calls import at_rate, flat_out
from bench.fraud.systems import EXTRA, SYSTEMS, NotHere, System
from bench.fraud.work import Data, Right, Size

SMOKE = Size(cards=50, history=1_000, transactions=60, callers=4)
REAL = Size(cards=1_000_000, history=3_000_000, transactions=20_000)
PACKAGES = ("asyncpg==0.32.0", "duckdb==2.0.1", "chdb==4.4.0", "chdb-core==26.9.0")
SLOW_S = 12.0
"""So long one of the two rates is measured, of a system that cannot make all transactions in it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="little data; figures mean nothing")
    parser.add_argument("--setup", action="store_true", help="install clients and systems of PyPI, and end")
    parser.add_argument("--cards", type=int, help="how many cards")
    parser.add_argument("--history", type=int, help="entries of 30 days")
    parser.add_argument("--transactions", type=int, help="for each of the two rates")
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)}; all if none is named")
    given = parser.parse_args()
    if given.setup:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(EXTRA)]
        subprocess.run([*pip, *PACKAGES], check=True)
        return
    base = SMOKE if given.smoke else REAL
    size = Size(
        given.cards or base.cards,
        given.history or base.history,
        given.transactions or base.transactions,
        base.callers,
    )
    data = Data(size, 2 * size.transactions)
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)  # and so all that it starts
    print(
        f"{size.cards:,} cards, {size.history:,} entries of 30 days, {size.transactions:,} transactions for each rate, "
        f"Zipf {size.zipf}, {size.callers} callers; {len(cores)} cores for server and callers, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    print(HEAD)
    for name in given.systems or SYSTEMS:
        try:
            print(uvloop.run(measured(SYSTEMS[name], data)), flush=True)
        except NotHere as error:
            print(f"| {SYSTEMS[name].name} | not run: {error} |", flush=True)


HEAD = (
    "| system | an answered transaction is | a second, both cores | processor time, µs | a second of one core "
    "| at half the rate: p50, p99, p99.9 ms | bytes a card: memory, disk | answers | a kill loses | digest |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


async def measured(kind: type[System], data: Data) -> str:
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


async def _measured(system: System, data: Data) -> str:
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
    rate, answers = await flat_out(callers, work[:some])
    check(0, answers)
    digest = right.digest.hexdigest()[:8]
    count = min(size.transactions, max(some, int(rate * SLOW_S)))
    cpu = system.cpu_s()
    rate, answers = await flat_out(callers, work[some : some + count])
    cpu_us = (system.cpu_s() - cpu) / count * 1e6
    check(some, answers)
    done = some + count
    count = min(len(work) - done, max(some, int(rate / 2 * SLOW_S)))
    late_s, answers = await at_rate(callers, work[done : done + count], rate / 2)
    check(done, answers)
    p50, p99, p999 = np.percentile(np.array(late_s) * 1e3, [50, 99, 99.9])
    memory, disk = max(system.memory() - empty, 0), system.disk()
    cells = [
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
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
