"""What a small question waits while others press, and what a service does at twice its capacity.

    one client, 127.0.0.2    GET …/query of one key, again and again          p50, p99
    another, 127.0.0.1       presses, in a process of its own: see `PRESSURES`

A line for an idle service stands beside the others of the same run. Then so many clients insert at once that there are
places for a fraction of them only: how much is done beside what is done with as many clients as places, what the others
are told, and what memory the service has before and after.

Does not show: a client on another machine; here all share two cores, so a wait is also one for a core.

Run ``python -m bench.overload`` (three minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc

PROBE, PRESS = "127.0.0.2", "127.0.0.1"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    seconds: float
    streams: int
    watchers: int
    bodies: int
    keys: int
    watched: int
    buckets: int
    clients: int


SMOKE = Size(seconds=0.3, streams=10, watchers=4, bodies=50, keys=200, watched=50, buckets=100, clients=40)
REAL = Size(seconds=10, streams=500, watchers=40, bodies=1000, keys=100_000, watched=2000, buckets=10_000, clients=400)
PLACES = 32

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


def fill(grpc_port: int, size: Size) -> None:
    """Two windows: `keys`, of many keys, and `quantiles`, of a value a tick and eight quantiles."""
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)
        numbers = {name: pb.AggregateSpec(function=name) for name in ("count", "sum", "mean", "min", "max", "stddev")}
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="keys", keyed=True, aggregates=numbers)))
        several = {f"p{i}": _quantile(i / 10) for i in range(1, 9)}
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="quantiles", aggregates=several)))
        for at in range(0, size.keys, 10_000):
            stub.BulkInsert(keyed_bulk(range(at, min(at + 10_000, size.keys)), 1))
        stub.BulkInsert(bulk("quantiles", np.arange(20 * size.buckets)))


def _quantile(q: float) -> pb.AggregateSpec:
    return pb.AggregateSpec(function="quantile", parameters={"q": pb.Value(float64=q)})


def bulk(window: str, times: Any) -> pb.BulkInsertRequest:
    """Entries of one value at these times."""
    made = pb.BulkInsertRequest(window=window, time=np.asarray(times, "<i8").tobytes())
    made.fields["value"].float64 = np.asarray(times, "<f8").tobytes()
    return made


def keyed_bulk(numbers: range, time_: int) -> pb.BulkInsertRequest:
    """An entry for each of these keys."""
    made = bulk("keys", np.full(len(numbers), time_))
    made.key.dictionary.extend(f"key-{i}" for i in numbers)
    made.key.codes = np.arange(len(numbers), dtype="<u4").tobytes()
    return made


# ---------------------------------------------------------------- pressing

Press = Callable[[int, int, Size], Coroutine[Any, Any, None]]


async def insert_streams(grpc_port: int, rest_port: int, size: Size) -> None:
    """Streams of inserts, each of which sends a bulk of ten when the last one is answered."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)

        async def stream() -> None:
            call = stub.InsertStream()
            while True:
                await call.write(bulk("quantiles", np.zeros(10)))
                await call.read()

        await asyncio.gather(*(stream() for _ in range(size.streams)))


async def watchers(grpc_port: int, rest_port: int, size: Size) -> None:
    """Watchers of many keys each, every 50 ms, no two of which ask the same."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)

        async def watch(at: int) -> None:
            keys = [f"key-{(at + i) % size.keys}" for i in range(size.watched)]
            async for _ in stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="keys", keys=keys), interval_ms=50)):
                pass

        await asyncio.gather(*(watch(at) for at in range(size.watchers)))


async def slow_bodies(grpc_port: int, rest_port: int, size: Size) -> None:
    """Requests of which one byte of the body arrives, and no more."""
    made = []
    for _ in range(size.bodies):
        _, writer = await asyncio.open_connection(PRESS, rest_port)
        writer.write(
            b"POST /v1/windows/quantiles/bulk-insert HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        )
        made.append(writer)
    await asyncio.sleep(3600)


async def long_series(grpc_port: int, rest_port: int, size: Size) -> None:
    """Series of as many buckets as may be, with eight quantiles each."""
    await repeat(rest_port, f"/v1/windows/quantiles/series?start=0&end={20 * size.buckets}&step=20")


async def all_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Questions about all keys."""
    await repeat(rest_port, "/v1/windows/keys/query?all_keys=true")


async def new_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of keys, one after the other."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)
        time_ = 2
        while True:
            await stub.BulkInsert(keyed_bulk(range(size.keys), time_))
            time_ += 1


PRESSURES: dict[str, Press] = {
    "insert streams": insert_streams,
    "heavy watchers": watchers,
    "slow bodies": slow_bodies,
    "long series": long_series,
    "all keys": all_keys,
    "large bulks": new_keys,
}


async def repeat(port: int, path: str) -> None:
    """Ask four times at once, again and again."""

    async def ask() -> None:
        async with connection(PRESS, port) as request:
            while True:
                await request(path)

    await asyncio.gather(*(ask() for _ in range(4)))


@contextlib.asynccontextmanager
async def connection(address: str, port: int) -> AsyncIterator[Callable[..., Coroutine[Any, Any, int]]]:
    """A connection of HTTP: a function that sends a request on it, reads the answer and returns the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=2**20)

    async def request(path: str, body: bytes = b"") -> int:
        method, kind = ("POST", "content-type: application/json\r\n") if body else ("GET", "")
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        await reader.readexactly(int(length[1]) if length else 0)
        return int(answer.split(b" ", 2)[1])

    try:
        yield request
    finally:
        writer.close()


# ---------------------------------------------------------------- measuring


async def waits_ms(port: int, seconds: float) -> list[float]:
    """How long a small question took, each time."""
    taken = []
    async with connection(PROBE, port) as request:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until or not taken:
            assert await request("/v1/windows/keys/query?key=key-7") == 200
            taken.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.002)
    return taken


@contextlib.contextmanager
def pressing(name: str, ports: tuple[int, int], smoke: bool) -> Iterator[None]:
    """Press from a process of its own, which says when it begins."""
    command = [sys.executable, "-m", "bench.overload", "--press", name, *map(str, ports), *["--smoke"] * smoke]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


async def insert_all(port: int, clients: int, seconds: float) -> Counter[int]:
    """So many clients insert, one entry after the other; the statuses they get."""
    statuses: Counter[int] = Counter()
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        async with connection(PRESS, port) as request:
            while time.perf_counter() < until:
                status = await request("/v1/windows/quantiles/insert", b'{"time":1,"value":1.5}')
                statuses[status] += 1
                if status != 200:
                    await asyncio.sleep(0.05)  # a client that was refused waits, if not for as long as it is told

    await asyncio.gather(*(client(number) for number in range(clients)))
    return statuses


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description="What others wait under pressure.")
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes; figures mean nothing")
    parser.add_argument("--press", nargs=3, metavar=("NAME", "GRPC", "REST"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = SMOKE if given.smoke else REAL
    if given.press:
        print("pressing", flush=True)
        asyncio.run(PRESSURES[given.press[0]](int(given.press[1]), int(given.press[2]), size))
        return
    with service() as (_, grpc_port, rest_port):
        fill(grpc_port, size)
        for name in ("idle", *PRESSURES):
            with contextlib.nullcontext() if name == "idle" else pressing(name, (grpc_port, rest_port), given.smoke):
                time.sleep(0 if name == "idle" else size.seconds / 5)
                taken = sorted(asyncio.run(waits_ms(rest_port, size.seconds)))
                p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
                print(f"{name:<16} p50 {p50:8.1f} ms   p99 {p99:8.1f} ms   {len(taken)} questions", flush=True)
    with service(SASH_MAX_CONCURRENT_CALLS=str(PLACES)) as (pid, grpc_port, rest_port):
        fill(grpc_port, SMOKE)
        alone = asyncio.run(insert_all(rest_port, PLACES // 2, size.seconds))[200] / size.seconds
        before = resident_mib(pid)
        found = asyncio.run(insert_all(rest_port, size.clients, size.seconds))
        goodput = found[200] / size.seconds
        told = ", ".join(f"{count} x {status}" for status, count in sorted(found.items()))
        print(f"overload         {goodput:,.0f}/s of {alone:,.0f}/s alone; {told}; memory {before:.0f} to "
              f"{resident_mib(pid):.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
