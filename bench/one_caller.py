"""Durable inserts of one caller over one connection: one after the other, and without waiting; and of 64 who wait.

    waits      request ──▶ applied ──▶ sync ──▶ answer ──▶ request …                   a sync each
    does not   request, request, request …  ──▶ sync ──▶ answer, answer, answer …      many share a sync

What a sync costs is measured beside: pages of 4 KiB that are written to a file of the same directory. How many inserts
a commit has hardly depends on what else the machine does. The printed digest is of the window's last answer.

Run ``python -m bench.one_caller`` (a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import orjson
import uvloop

from bench.harness import Http, all_of, arguments, digest, head, median_us, pid_of, processor_s, row, service
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.servers import Running

WINDOW = "caller"
Run = Callable[[Running, int, int], Awaitable[None]]


def insert(i: int) -> pb.InsertRequest:
    return pb.InsertRequest(window=WINDOW, time=i, value=1.5)


async def over_rest(service: Running, calls: int, in_flight: int) -> None:
    connection = await Http.connected(service.rest_port)
    path = f"/v1/windows/{WINDOW}/insert"
    await all_of(calls, in_flight, lambda i: connection.asked(path, orjson.dumps({"time": i, "value": 1.5})))
    connection.transport.close()


async def over_connect(service: Running, calls: int, in_flight: int) -> None:
    connection = await Http.connected(service.rest_port)
    ask = partial(connection.asked, "/sash.v1.Windows/Insert", kind="application/proto")
    await all_of(calls, in_flight, lambda i: ask(insert(i).SerializeToString()))
    connection.transport.close()


def callers(count: int, one: Run) -> Run:
    """Callers with a connection each, who wait, in place of one that does not."""

    async def run(service: Running, calls: int, in_flight: int) -> None:
        await asyncio.gather(*(one(service, calls // count, 1) for _ in range(count)))

    return run


async def over_grpc(service: Running, calls: int, in_flight: int) -> None:
    async with grpc.aio.insecure_channel(service.grpc_target) as channel:
        stub = pb_grpc.WindowsStub(channel)
        await all_of(calls, in_flight, lambda i: stub.Insert(insert(i)))


async def over_stream(service: Running, calls: int, in_flight: int) -> None:
    async with grpc.aio.insecure_channel(service.grpc_target) as channel:
        room = asyncio.Semaphore(in_flight)

        async def bulks() -> AsyncIterator[pb.BulkInsertRequest]:
            values = pb.Column(float64=np.array([1.5]).tobytes())
            for i in range(calls):
                await room.acquire()
                yield pb.BulkInsertRequest(window=WINDOW, time=np.array([i]).tobytes(), fields={"value": values})

        async for _ in pb_grpc.WindowsStub(channel).InsertStream(bulks()):
            room.release()


EDGES: dict[str, Run] = {
    "REST, keep-alive": over_rest,
    "Connect, keep-alive": over_connect,
    "gRPC, calls": over_grpc,
    "gRPC, InsertStream of one entry each": over_stream,
}
CALLERS = 64


def commits(service: Running) -> int:
    text = urlopen(f"http://127.0.0.1:{service.rest_port}/metrics").read().decode()
    found: Any = re.search(r"^sash_tier_commits_total (\S+)", text, re.MULTILINE)
    return int(float(found[1]))


def sync_ms(where: Path, count: int) -> float:
    """The median of a page that is written and synced."""
    with (where / "synced").open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())

        return median_us(count, sync, time.perf_counter) / 1e3


def main() -> None:
    smoke = arguments(__doc__).smoke
    base = Path("build") if Path("build").exists() else None  # a disk, which /tmp may not be
    with (
        tempfile.TemporaryDirectory(dir=base) as name,
        service("--data", f"{name}/data") as running,
        Client(running.grpc_target) as client,
    ):
        window = client.create_window({"name": WINDOW, "aggregates": {"n": {"function": "count"}}})
        print(f"a page written and synced: {sync_ms(Path(name), 10 if smoke else 200):.1f} ms (median)")
        print(f"load {os.getloadavg()[0]:.1f}\n")
        head("edge", "callers", "inserts a second", "processor time of one, µs", "inserts a commit")
        waits, many = (20, 192) if smoke else (200, 6_400)
        for edge, run in EDGES.items():
            for what, ran, calls in (
                ("one, waits", partial(run, in_flight=1), waits),
                ("one, 64 in flight", partial(run, in_flight=CALLERS), many),
                ("64, each waits", partial(callers(CALLERS, run), in_flight=1), many),
            ):
                before, cpu, start = commits(running), processor_s(pid_of(running)), time.perf_counter()
                uvloop.run(ran(running, calls))
                took, cpu = time.perf_counter() - start, processor_s(pid_of(running)) - cpu
                each = calls / (commits(running) - before)
                row(edge, what, f"{calls / took:,.0f}", f"{cpu / calls * 1e6:,.0f}", f"{each:.1f}")
        (answer,) = window.query()
        print(f"\ndigest {digest(answer.entries)}")


if __name__ == "__main__":
    main()
