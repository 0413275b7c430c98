"""Durable inserts of one caller over one connection: one after the other, and without waiting; and of 64 who wait.

    waits      request ──▶ applied ──▶ sync ──▶ answer ──▶ request …                   a sync each
    does not   request, request, request …  ──▶ sync ──▶ answer, answer, answer …      many share a sync

What a sync costs is measured beside: pages of 4 KiB that are written to a file of the same directory. How many inserts
a commit has hardly depends on what else the machine does. The printed digest is of the window's last answer.

Run ``python -m bench.one_caller`` (a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import httptools
import numpy as np
import orjson
import uvloop

from bench.load import cpu_s
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.servers import Running, service_process

WINDOW = "caller"
HEAD = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"

Run = Callable[[Running, int, int], Awaitable[None]]


def rest(i: int) -> bytes:
    body = orjson.dumps({"time": i, "value": 1.5})
    return HEAD % (b"/v1/windows/caller/insert", b"application/json", len(body), body)


def connect(i: int) -> bytes:
    body = insert(i).SerializeToString()
    return HEAD % (b"/sash.v1.Windows/Insert", b"application/proto", len(body), body)


def insert(i: int) -> pb.InsertRequest:
    return pb.InsertRequest(window=WINDOW, time=i, value=1.5)


class _Answers(asyncio.Protocol):
    """Counts the answers that arrive."""

    def __init__(self) -> None:
        self.count, self.news = 0, asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self._parser.get_status_code() == 200
        self.count += 1
        self.news.set()


def over_http(request: Callable[[int], bytes]) -> Run:
    async def run(service: Running, calls: int, in_flight: int) -> None:
        loop = asyncio.get_running_loop()
        transport, answers = await loop.create_connection(_Answers, "127.0.0.1", service.rest_port)
        sent = 0
        while answers.count < calls:
            more = min(in_flight - (sent - answers.count), calls - sent)
            if more > 0:
                transport.write(b"".join(map(request, range(sent, sent + more))))
                sent += more
            answers.news.clear()
            await answers.news.wait()
        transport.close()

    return run


def callers(count: int, one: Run) -> Run:
    """Callers with a connection each, who wait, in place of one that does not."""

    async def run(service: Running, calls: int, in_flight: int) -> None:
        await asyncio.gather(*(one(service, calls // count, 1) for _ in range(count)))

    return run


async def over_grpc(service: Running, calls: int, in_flight: int) -> None:
    async with grpc.aio.insecure_channel(service.grpc_target) as channel:
        stub, room = pb_grpc.WindowsStub(channel), asyncio.Semaphore(in_flight)

        async def call(i: int) -> None:
            await stub.Insert(insert(i))
            room.release()

        tasks = []
        for i in range(calls):
            await room.acquire()
            tasks.append(asyncio.create_task(call(i)))
        await asyncio.gather(*tasks)


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
    "REST, keep-alive": over_http(rest),
    "Connect, keep-alive": over_http(connect),
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
    took = []
    with (where / "synced").open("wb", buffering=0) as file:
        for _ in range(count):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few calls; figures mean nothing")
    smoke = parser.parse_args().smoke
    base = Path("build") if Path("build").exists() else None  # a disk, which /tmp may not be
    with (
        tempfile.TemporaryDirectory(dir=base) as name,
        service_process("--data", f"{name}/data") as service,
        Client(service.grpc_target) as client,
    ):
        window = client.create_window({"name": WINDOW, "aggregates": {"n": {"function": "count"}}})
        print(f"a page written and synced: {sync_ms(Path(name), 10 if smoke else 200):.1f} ms (median)")
        assert service.process is not None
        pid = service.process.pid
        print(f"load {os.getloadavg()[0]:.1f}\n")
        print(
            "| edge | callers | inserts a second | processor time of one, µs | inserts a commit |\n"
            + "| --- " * 5
            + "|"
        )
        for edge, run in EDGES.items():
            waits, many = (20, 192) if smoke else (200, 6_400)
            for what, ran, calls in (
                ("one, waits", partial(run, in_flight=1), waits),
                ("one, 64 in flight", partial(run, in_flight=CALLERS), many),
                ("64, each waits", partial(callers(CALLERS, run), in_flight=1), many),
            ):
                before, cpu, start = commits(service), cpu_s(pid), time.perf_counter()
                uvloop.run(ran(service, calls))
                took, cpu = time.perf_counter() - start, cpu_s(pid) - cpu
                each = calls / (commits(service) - before)
                print(f"| {edge} | {what} | {calls / took:,.0f} | {cpu / calls * 1e6:,.0f} | {each:.1f} |", flush=True)
        [answer] = window.query()
        print(f"\ndigest {hashlib.sha256(str(answer.entries).encode()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
