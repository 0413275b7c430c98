"""What a small question waits while others press, and what a service does at twice its capacity.

    one client, 127.0.0.2    GET …/query of a key of a small window, again and again          p50, p99
    another, 127.0.0.1       presses, in a process of its own: see `bench.pressures`

A line for an idle service stands beside the others of the same run. Each line has two times: of the wall, and the
processor time that the service's event loop took between a question and its answer. The second one leaves out waits for
a core; the kernel counts it in steps of up to 4 ms. Then the line has how the other's calls ended.

At the end clients insert bulks of 10,000 entries at twice the service's capacity: what they are told, and the service's
memory after a sixth of the time, when all that is under way has its memory, and at the end. The capacity is what half
as many clients as places get done in a second of the loop's processor time. Goodput has the same unit: it does not
depend on what else the machine does.

Pinning: the service has the last core, where there are several, and all clients have the others.

Does not show: clients on another machine; here they share what the service leaves of two cores.

Run ``python -m bench.overload`` (five minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.pressures import PRESS, PRESSURES, PROBE, REAL, SMOKE, Size, connection, fill

PLACES = 32
BULK = json.dumps({"time": [1] * 10_000, "value": [1.5] * 10_000}).encode()
CORES = sorted(os.sched_getaffinity(0))


# ---------------------------------------------------------------- the service


@contextlib.contextmanager
def service(**settings: str) -> Iterator[tuple[int, int, int]]:
    """Run a service in memory: its process and its ports."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sash.main", "serve", "--grpc-port", "0", "--rest-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SASH_DATA": "memory", **settings},
    )
    if len(CORES) > 1:
        os.sched_setaffinity(process.pid, CORES[-1:])
        os.sched_setaffinity(0, CORES[:-1])  # processes that are started from now on inherit it
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+), REST and page on http://.*:(\d+)/", process.stdout.readline())
        assert found is not None, "the service did not start"
        yield process.pid, int(found[1]), int(found[2])
    finally:
        process.terminate()
        process.wait()


def resident_mib(pid: int) -> float:
    """Memory of a process, without pages of files."""
    with open(f"/proc/{pid}/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20


# ---------------------------------------------------------------- measuring


def loop_ms(pid: int) -> float:
    """Processor time of a process's first thread, which runs the event loop."""
    return loop_and_core_ms(pid)[0]


def loop_and_core_ms(pid: int) -> tuple[float, float]:
    """The same, and for how long that thread has waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e6, int(waited) / 1e6


async def waits_ms(pid: int, port: int, seconds: float) -> list[tuple[float, float]]:
    """How long a small question took each time, and how much processor time the service's loop took meanwhile."""
    taken = []
    async with connection(PROBE, port) as request:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until or not taken:
            used = loop_ms(pid)
            assert await request("/v1/windows/small/query?key=key-7") == 200
            taken.append(((time.perf_counter() - began) * 1000, loop_ms(pid) - used))
            await asyncio.sleep(0.002)
    return taken


@contextlib.contextmanager
def pressing(name: str, ports: tuple[int, int], smoke: bool, ends: Counter[str]) -> Iterator[None]:
    """Press from a process of its own; count how its calls end."""
    command = [sys.executable, "-m", "bench.overload", "--press", name, *map(str, ports), *["--smoke"] * smoke]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, text=True)
        try:
            while not os.fstat(said.fileno()).st_size:  # it says when it begins
                time.sleep(0.01)
            yield
            assert process.poll() is None, "it stopped pressing"
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        ends.update(line.strip() for line in said.readlines()[1:])


async def insert_all(port: int, clients: int, seconds: float, rate: float | None = None) -> Counter[str]:
    """So many clients insert, one bulk after the other, at this rate together; the statuses they get."""
    statuses: Counter[str] = Counter()
    began = time.perf_counter()

    async def client(number: int) -> None:
        next_s = began + (number / rate if rate else 0)
        async with connection(PRESS, port) as request:
            while (now_s := time.perf_counter()) < began + seconds:
                if now_s < next_s:
                    await asyncio.sleep(next_s - now_s)
                next_s += clients / rate if rate else 0
                statuses[str(await request("/v1/windows/sliding/bulk-insert", BULK))] += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    return statuses


def listed(ends: Counter[str]) -> str:
    """How calls ended, as text."""
    return ", ".join(f"{count} x {end}" for end, count in sorted(ends.items()))


def percentiles(taken: list[float]) -> str:
    """The median and the 99th percentile, as text."""
    ordered = sorted(taken)
    return f"p50 {ordered[len(ordered) // 2]:7.1f} ms   p99 {ordered[int(len(ordered) * 0.99)]:7.1f} ms"


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description="What others wait under pressure.")
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes; figures mean nothing")
    parser.add_argument("--only", choices=["idle", *PRESSURES, "overload"], help="one of the cases")
    parser.add_argument("--press", nargs=3, metavar=("NAME", "GRPC", "REST"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = SMOKE if given.smoke else REAL
    if given.press:
        asyncio.run(PRESSURES[given.press[0]](int(given.press[1]), int(given.press[2]), size))
        return
    under_pressure(size, [name for name in ("idle", *PRESSURES) if given.only in (None, name)], given.smoke)
    if given.only in (None, "overload"):
        overload(size)


def under_pressure(size: Size, names: Sequence[str], smoke: bool) -> None:
    """Ask a small question again and again, under each of these pressures."""
    if not names:
        return
    with service() as (pid, grpc_port, rest_port):
        fill(grpc_port, size)
        for name in names:
            ends: Counter[str] = Counter()
            press = contextlib.nullcontext()
            with press if name == "idle" else pressing(name, (grpc_port, rest_port), smoke, ends):
                time.sleep(0 if name == "idle" else size.seconds / 2)
                taken = asyncio.run(waits_ms(pid, rest_port, size.seconds))
            wall, loop = zip(*taken, strict=True)
            print(f"{name:<16} {percentiles(list(wall))}   loop {percentiles(list(loop))}   {len(taken)} questions; "
                  f"{listed(ends)}", flush=True)  # fmt: skip


def overload(size: Size) -> None:
    """Insert at the capacity, and at twice the capacity."""
    with service(SASH_MAX_CONCURRENT_CALLS=str(PLACES)) as (pid, grpc_port, rest_port):
        fill(grpc_port, SMOKE)

        warm = 0.0

        async def pressed(clients: int, seconds: float, rate: float | None) -> Counter[str]:
            nonlocal warm
            inserting = asyncio.create_task(insert_all(rest_port, clients, seconds, rate))
            await asyncio.sleep(seconds / 6)
            warm = resident_mib(pid)
            return await inserting

        def measure(clients: int, seconds: float, rate: float | None) -> tuple[float, float, float, Counter[str]]:
            ran_ms, waited_ms = loop_and_core_ms(pid)
            ends = asyncio.run(pressed(clients, seconds, rate))
            ran, waited = (now - before for now, before in zip(loop_and_core_ms(pid), (ran_ms, waited_ms), strict=True))
            return ends["200"] / ran * 1000, ran / seconds / 1000, waited / seconds / 1000, ends

        alone, _, _, _ = measure(PLACES // 2, size.seconds, None)
        goodput, ran, waited, ends = measure(size.clients, size.overload_s, 2 * alone)
        print(f"overload         {goodput:,.0f} of {alone:,.0f} alone for each second of the loop, which ran {ran:.0%} "
              f"and waited for a core {waited:.0%} of {size.overload_s:g} s; {listed(ends)}; "
              f"memory {warm:.0f} to {resident_mib(pid):.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
