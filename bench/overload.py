"""What a small question waits while others press, and what a service does at twice its capacity.

    one client, 127.0.0.2    GET …/query of a key of a small window, again and again          p50, p99
    another, 127.0.0.1       presses, in a process of its own, with large calls at their limits, again and again

A line for an idle service stands beside the others of the same run. Each line has two times: of the wall, and the
processor time that the service's event loop took between a question and its answer. The second one leaves out waits for
a core; the kernel counts it in steps of up to 4 ms. Then the line has how the other's calls ended. What is refused,
slow or wrong presses in ``python -m tests.security.hostile --each``, which has the time of the loop, too.

At the end clients insert bulks of 10,000 entries at twice the service's capacity: what they are told, and the service's
memory after a sixth of the time, when all that is under way has its memory, and at the end. The capacity is what half
as many clients as places get done in a second of the loop's processor time. Goodput has the same unit: it does not
depend on what else the machine does.

Pinning: the service has the last core, where there are several, and all clients have the others.

Does not show: clients on another machine; here they share what the service leaves of two cores.

Run ``python -m bench.overload`` (three minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from bench.harness import CORES, MIB, Http, arguments, loop_s, memory_of, pid_of, service
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc

PROBE, PRESS = "127.0.0.2", "127.0.0.1"
PLACES = 32
BULK = json.dumps({"time": [1] * 10_000, "value": [1.5] * 10_000}).encode()
NUMBERS = ("count", "sum", "mean", "min", "max", "stddev")
QUANTILES = {f"p{i}": {"function": "quantile", "q": i / 10} for i in range(1, 9)}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    seconds: float
    streams: int
    watchers: int
    keys: int
    watched: int
    buckets: int
    clients: int
    many: int
    wide: int
    overload_s: float


SMOKE = Size(
    0.3, streams=10, watchers=4, keys=200, watched=50, buckets=100, clients=40, many=500, wide=100, overload_s=0.5
)
REAL = Size(
    6, 500, 40, keys=100_000, watched=2000, buckets=10_000, clients=400, many=1_000_000, wide=100_000, overload_s=60
)


def fill(target: str, size: Size) -> None:
    """Make the windows: some of many keys, one with eight quantiles of a value a tick, and two of few entries."""
    with Client(target, timeout_s=600) as client:
        times = np.arange(20 * size.buckets)
        client.create_window({"name": "quantiles", "aggregates": QUANTILES}).bulk_insert(times, times.astype(float))
        client.create_window({"name": "sliding", "slide": {"max_count": 10_000}, "aggregates": QUANTILES})
        for name, keys, aggregates in (
            ("small", 10, 6),
            ("keys", size.keys, 6),
            ("many", size.many, 1),
            ("wide", size.wide, 64),
        ):
            window = client.create_window(keyed(name, aggregates))
            for at in range(0, keys, 10_000):
                names = [f"key-{i}" for i in range(at, min(at + 10_000, keys))]
                window.bulk_insert(np.ones(len(names), int), np.ones(len(names)), keys=names)


def keyed(name: str, aggregates: int) -> dict[str, Any]:
    """A window of keys with so many aggregates."""
    named = {f"a{i}": {"function": NUMBERS[i % len(NUMBERS)]} for i in range(aggregates)}
    return {"name": name, "keyed": True, "fields": {"value": "float64"}, "aggregates": named}


# ---------------------------------------------------------------- pressing

Press = Callable[[str, int, Size], Coroutine[Any, Any, None]]


def asking(times: int, path: Callable[[Size], str]) -> Press:
    """A question over REST, so many times at once, again and again."""

    async def press(target: str, port: int, size: Size) -> None:
        async def ask() -> None:
            connection = await Http.connected(port, PRESS)
            while True:
                print((await connection.ask(path(size)))[0], flush=True)

        began()
        await asyncio.gather(*(ask() for _ in range(times)))

    return press


async def insert_streams(target: str, port: int, size: Size) -> None:
    """Streams of inserts, each of which sends a bulk of ten when the last one is answered."""
    async with grpc.aio.insecure_channel(target) as channel:
        message = pb.BulkInsertRequest(window="quantiles", time=bytes(80))
        message.fields["value"].float64 = bytes(80)

        async def stream() -> None:
            call = pb_grpc.WindowsStub(channel).InsertStream()
            while True:
                await call.write(message)
                await call.read()

        began()
        await asyncio.gather(*(stream() for _ in range(size.streams)))


async def watchers(target: str, port: int, size: Size) -> None:
    """Watchers of many keys each, every 50 ms, no two of which ask the same."""
    async with grpc.aio.insecure_channel(target) as channel:

        async def watch(at: int) -> None:
            query = pb.QueryRequest(window="keys", keys=[f"key-{(at + i) % size.keys}" for i in range(size.watched)])
            async for _ in pb_grpc.WindowsStub(channel).Watch(pb.WatchRequest(query=query, interval_ms=50)):
                pass

        began()
        await asyncio.gather(*(watch(at) for at in range(size.watchers)))


def bulks(of: str, is_new: bool) -> Press:
    """Bulks of one entry of each of many keys: of keys that are there, or into a window that is deleted each time."""

    async def press(target: str, port: int, size: Size) -> None:
        count = size.many if is_new else size.keys
        with Client(target, timeout_s=600) as client:
            names, times, values = [f"key-{i}" for i in range(count)], np.ones(count, int), np.ones(count)
            began()
            while True:
                times = times + 1
                window = client.create_window(keyed(of, 1)) if is_new else client.window(of)
                window.bulk_insert(times, values, keys=names)
                print("inserted", flush=True)
                if is_new:
                    client.delete_window(of)

    return press


PRESSURES: dict[str, Press] = {
    "insert streams": insert_streams,
    "heavy watchers": watchers,
    "long series": asking(4, lambda size: f"/v1/windows/quantiles/series?start=0&end={20 * size.buckets}&step=20"),
    "all keys": asking(4, lambda size: "/v1/windows/keys/query?all_keys=true"),
    "64 aggregates": asking(4, lambda size: "/v1/windows/wide/query?all_keys=true"),
    "a million keys": asking(4, lambda size: "/v1/windows/many/query?all_keys=true"),
    "large bulks": bulks("keys", is_new=False),
    "new keys": bulks("new", is_new=True),
}


def began() -> None:
    """Say that the calls begin now."""
    print("pressing", flush=True)


@contextlib.contextmanager
def pressing(name: str, target: str, port: int, smoke: bool, ends: Counter[str]) -> Iterator[None]:
    """Press from a process of its own; count how its calls end."""
    command = [sys.executable, "-m", "bench.overload", "--press", name, target, str(port), *["--smoke"] * smoke]
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


# ---------------------------------------------------------------- measuring


async def waits_ms(pid: int, port: int, seconds: float) -> np.ndarray[Any, Any]:
    """How long a small question took each time, and how much processor time the service's loop took meanwhile."""
    taken, connection = [], await Http.connected(port, PROBE)
    until = time.perf_counter() + seconds
    while (asked := time.perf_counter()) < until or not taken:
        used, _ = loop_s(pid)
        await connection.asked("/v1/windows/small/query?key=key-7")
        taken.append((time.perf_counter() - asked, loop_s(pid)[0] - used))
        await asyncio.sleep(0.002)
    return 1e3 * np.array(taken)


def under_pressure(size: Size, names: list[str], smoke: bool) -> None:
    """Ask a small question again and again, under each of these pressures."""
    with service(cores=CORES[-1:]) as running:
        fill(running.grpc_target, size)
        for name in names:
            ends: Counter[str] = Counter()
            with contextlib.ExitStack() as stack:
                if name != "idle":
                    stack.enter_context(pressing(name, running.grpc_target, running.rest_port, smoke, ends))
                    time.sleep(size.seconds / 2)
                taken = asyncio.run(waits_ms(pid_of(running), running.rest_port, size.seconds))
            wall, loop = (f"p50 {a:7.1f} ms   p99 {b:7.1f} ms" for a, b in np.quantile(taken, (0.5, 0.99), axis=0).T)
            print(f"{name:<16} {wall}   loop {loop}   {len(taken)} questions; {listed(ends)}", flush=True)


async def insert_all(port: int, clients: int, seconds: float, rate: float | None) -> Counter[str]:
    """So many clients insert, one bulk after the other, at this rate together; the statuses they get."""
    statuses: Counter[str] = Counter()
    first = time.perf_counter()

    async def client(number: int) -> None:
        connection, next_s = await Http.connected(port, PRESS), first + (number / rate if rate else 0)
        while (now_s := time.perf_counter()) < first + seconds:
            if now_s < next_s:
                await asyncio.sleep(next_s - now_s)
            next_s += clients / rate if rate else 0
            statuses[str((await connection.ask("/v1/windows/sliding/bulk-insert", BULK))[0])] += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    return statuses


def overload(size: Size) -> None:
    """Insert at the capacity, and at twice the capacity."""
    with service(cores=CORES[-1:], SASH_MAX_CONCURRENT_CALLS=str(PLACES)) as running:
        fill(running.grpc_target, SMOKE)
        pid, warm = pid_of(running), 0.0

        async def pressed(clients: int, seconds: float, rate: float | None) -> Counter[str]:
            nonlocal warm
            inserting = asyncio.create_task(insert_all(running.rest_port, clients, seconds, rate))
            await asyncio.sleep(seconds / 6)
            warm = memory_of(pid)[0] / MIB
            return await inserting

        def measure(clients: int, seconds: float, rate: float | None) -> tuple[float, Any, Counter[str]]:
            before = np.array(loop_s(pid))
            ends = asyncio.run(pressed(clients, seconds, rate))
            used = np.array(loop_s(pid)) - before
            return ends["200"] / used[0], used / seconds, ends

        alone, _, _ = measure(PLACES // 2, size.seconds, None)
        goodput, (ran, waited), ends = measure(size.clients, size.overload_s, 2 * alone)
        print(
            f"overload         {goodput:,.0f} of {alone:,.0f} alone for each second of the loop, which ran {ran:.0%} "
            f"and waited for a core {waited:.0%} of {size.overload_s:g} s; {listed(ends)}; "
            f"memory {warm:.0f} to {memory_of(pid)[0] / MIB:.0f} MiB"
        )


def listed(ends: Counter[str]) -> str:
    """How calls ended, as text."""
    return ", ".join(f"{count} x {end}" for end, count in sorted(ends.items()))


def main() -> None:
    """Run all cases."""
    given = arguments(
        __doc__,
        {
            "--only": {"choices": ["idle", *PRESSURES, "overload"], "help": "one of the cases"},
            "--press": {"nargs": 3, "help": argparse.SUPPRESS},
        },
    )
    size = SMOKE if given.smoke else REAL
    if given.press:
        name, target, port = given.press
        asyncio.run(PRESSURES[name](target, int(port), size))
        return
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[:-1])  # processes that are started from now on inherit it; a service is moved
    if names := [name for name in ("idle", *PRESSURES) if given.only in (None, name)]:
        under_pressure(size, names, given.smoke)
    if given.only in (None, "overload"):
        overload(size)


if __name__ == "__main__":
    main()
