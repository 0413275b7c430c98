"""What the gRPC edge costs, beside a server of the same stack that does nothing.

    client process ──▶ server process:  { asyncio, asyncio on uvloop, threads } × { no-op, sash }

The no-op server parses the same requests and answers with an empty response; the other one is the whole way
through the plane into a window with count and sum. Both are asked in turns within one run, so that what else
the machine does falls on both. Two figures per case: calls a second, and the CPU time the server spent per call
(the client is Python too and needs a core of its own, so the rate says as much about it).

Then the Python client's ways to send bulk after bulk, on uvloop: calls one by one, one stream, a producer; bulks a
second, and CPU time of client and server per bulk.

The printed digest is of the windows' final answers: it depends on the calls made and on nothing else.

Does not show: TLS, other machines, other languages' clients (which cost less and press harder).

Run ``python bench/edges.py`` (about two minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import inspect
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import grpc
import numpy as np
import uvloop
from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rpc.methods import SERVICE, methods
from sash.rpc.operations import Operations
from sash.rpc.server import RpcServer
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_client import Bulk, Client, Window
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc

STACKS = ("asyncio", "uvloop", "threads")
WINDOW = "edges"
KEEP = 1_000_000  # the window slides, so that memory does not depend on how long this runs


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    unary_calls: int
    bulk_calls: int
    entries: int


SMOKE = Size(rounds=1, unary_calls=50, bulk_calls=5, entries=1024)
REAL = Size(rounds=5, unary_calls=1500, bulk_calls=150, entries=16_384)


@dataclass(frozen=True)
class Case:
    """One kind of call: its method, how many are made at once, and the requests of round `r`."""

    name: str
    method: str
    in_flight: int
    requests: Callable[[Size, int], list[Any]]


def unary_requests(size: Size, round_: int) -> list[Any]:
    """Inserts of one entry, one tick apart."""
    first = round_ * size.unary_calls
    return [
        pb.InsertRequest(window=WINDOW, time=t, value=float(t % 97)) for t in range(first, first + size.unary_calls)
    ]


def bulk_requests(size: Size, round_: int) -> list[Any]:
    """Inserts of `size.entries` entries each, one tick apart."""
    requests = []
    values = pb.Column(float64=(np.arange(size.entries) % 97).astype("<f8").tobytes())
    for i in range(size.bulk_calls):
        first = (round_ * size.bulk_calls + i) * size.entries
        times = np.arange(first, first + size.entries, dtype="<i8").tobytes()
        requests.append(pb.BulkInsertRequest(window=WINDOW, time=times, fields={"value": values}))
    return requests


CASES = (
    Case("Insert, one at a time", "Insert", 1, unary_requests),
    Case("Insert, 16 in flight", "Insert", 16, unary_requests),
    Case("BulkInsert, one at a time", "BulkInsert", 1, bulk_requests),
    Case("BulkInsert, 4 in flight", "BulkInsert", 4, bulk_requests),
)


# ---------------------------------------------------------------- the servers


def new_plane() -> tuple[Plane, Metrics]:
    """A plane with no windows."""
    metrics = Metrics(CollectorRegistry())
    return Plane.of(Storage(Catalogue(max_windows=10), SystemClock()), metrics, SystemClock()), metrics


def noop_methods() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """The two methods that are measured, doing nothing."""
    response = pb.InsertResponse()
    return {
        "Insert": (lambda request: response, pb.InsertRequest),
        "BulkInsert": (lambda request: response, pb.BulkInsertRequest),
    }


async def serve_asyncio(kind: str) -> None:
    """Serve on grpc.aio until standard input closes."""
    if kind == "sash":
        plane, metrics = new_plane()
        server = RpcServer(plane, Settings(grpc_port=0), metrics)
        await server.start()
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop(0)
        return

    def asynchronous(method: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        async def handler(request: Any, context: Any) -> Any:
            return method(request)

        return handler

    noop = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    noop.add_generic_rpc_handlers([generic(noop_methods(), asynchronous)])
    port = noop.add_insecure_port("127.0.0.1:0")
    await noop.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await noop.stop(0)


def serve_threads(kind: str) -> None:
    """Serve on the threaded server until standard input closes; a lock keeps the plane to one call at a time."""
    lock = threading.Lock()

    def locked(method: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def handler(request: Any, context: Any) -> Any:
            with lock:
                response = method(request)
                return finished(response) if inspect.iscoroutine(response) else response

        return handler

    def free(method: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda request, context: method(request)

    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    if kind == "sash":
        operations = methods(Operations(new_plane()[0], Settings().max_entries_per_write, asyncio.Event())).values()
        unary = [method for method in operations if not method.streams_requests and not method.streams_responses]
        found = {method.name: (method.call, method.request) for method in unary}
        server.add_generic_rpc_handlers((generic(found, locked),))
    else:
        server.add_generic_rpc_handlers((generic(noop_methods(), free),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


def finished(write: Coroutine[Any, Any, Any]) -> Any:
    """The result of a write that waits for nothing, as there is no tier."""
    try:
        write.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a write in memory waits")


def generic(found: Any, wrap: Callable[[Any], Any]) -> grpc.GenericRpcHandler[Any, Any]:
    """The methods as a service of gRPC."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                wrap(method),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (method, request) in found.items()
        },
    )


# ---------------------------------------------------------------- the client


class Server:
    """A server in a process of its own, and a channel to it."""

    def __init__(self, stack: str, kind: str) -> None:
        self.stack, self.kind = stack, kind
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", stack, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.rates: dict[str, list[float]] = {}
        self.cpu_us: dict[str, list[float]] = {}

    def cpu_s(self) -> float:
        """CPU time it has used so far, in seconds, all threads."""
        total_ns = 0
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            # The first number is nanoseconds on a CPU; /proc/PID/stat counts in ticks of 10 ms.
            with open(f"/proc/{self.process.pid}/task/{task}/schedstat") as schedstat:
                total_ns += int(schedstat.read().split()[0])
        return total_ns / 1e9

    def close(self) -> None:
        """Have it end."""
        self.process.communicate(timeout=20)


async def ask(server: Server, case: Case, size: Size, round_: int) -> None:
    """Make one round of calls and note rate and CPU time."""
    requests = case.requests(size, round_)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = pb_grpc.WindowsStub(channel)  # type: ignore[no-untyped-call]
        if server.kind == "sash":
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.DeleteWindow(pb.DeleteWindowRequest(name=WINDOW))
            await stub.CreateWindow(pb.CreateWindowRequest(spec=spec()))
        call = getattr(stub, case.method)
        await call(requests[0])
        pending = iter(requests[1:])

        async def worker() -> None:
            for request in pending:
                await call(request)

        cpu, start = server.cpu_s(), time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(case.in_flight)))
        elapsed, cpu = time.perf_counter() - start, server.cpu_s() - cpu
    server.rates.setdefault(case.name, []).append((len(requests) - 1) / elapsed)
    server.cpu_us.setdefault(case.name, []).append(cpu / (len(requests) - 1) * 1e6)


def spec() -> pb.WindowSpec:
    """A window of one float64 with count and sum."""
    return pb.WindowSpec(
        name=WINDOW,
        time_unit="none",
        aggregates={"n": pb.AggregateSpec(function="count"), "total": pb.AggregateSpec(function="sum")},
        slide=pb.SlidePolicy(max_count=KEEP),
    )


async def answer(server: Server) -> bytes:
    """What the window answers now."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = pb_grpc.WindowsStub(channel)  # type: ignore[no-untyped-call]
        response = await stub.Query(pb.QueryRequest(window=WINDOW))
    found = response.answers[0]
    return f"{found.entries} {found.aggregates['n'].int64} {found.aggregates['total'].float64}".encode()


@contextlib.contextmanager
def servers() -> Iterator[list[Server]]:
    """All servers, no-op before sash of each stack."""
    running: list[Server] = []
    try:
        running.extend(Server(stack, kind) for stack in STACKS for kind in ("no-op", "sash"))
        yield running
    finally:
        for server in running:
            server.close()


def measure(size: Size) -> None:
    """Run all cases on all servers and print the table."""
    digest = hashlib.sha256()
    with servers() as running:
        for case in CASES:
            for round_ in range(size.rounds):
                # Every other round backwards, so that nobody always comes first.
                for server in running if round_ % 2 == 0 else reversed(running):
                    asyncio.run(ask(server, case, size, round_))
            for server in running:
                if server.kind == "sash":
                    digest.update(asyncio.run(answer(server)))
        ways = measure_ways(running[1 + 2 * STACKS.index("uvloop")], size)
        digest.update(asyncio.run(answer(running[1 + 2 * STACKS.index("uvloop")])))
        titles = ("no-op/s", "sash/s", "ratio", "no-op µs", "sash µs", "times")
        print(f"{'call':28}{'stack':10}" + "".join(f"{title:>10}" for title in titles))
        for case in CASES:
            for noop, sash in zip(running[::2], running[1::2], strict=True):
                cells = [
                    *figures(noop.rates[case.name], sash.rates[case.name]),
                    *figures(noop.cpu_us[case.name], sash.cpu_us[case.name]),
                ]
                print(f"{case.name:28}{noop.stack:10}" + "".join(f"{cell:>10}" for cell in cells))
        print(f"\n{'sash_client':28}{'entries':10}{'bulks/s':>10}{'client µs':>10}{'server µs':>10}")
        for (way, entries), rounds in ways.items():
            rate, client_us, server_us = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{way:28}{entries:<10}{rate:>10.0f}{client_us:>10.0f}{server_us:>10.0f}")
    print(f"medians of {size.rounds} rounds; BulkInsert carries {size.entries} entries; µs: CPU time of the server")
    print(f"digest {digest.hexdigest()[:16]}")


def one_by_one(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """A call for each bulk."""
    for bulk in bulks:
        window.bulk_insert(bulk.times, bulk.columns)


def in_one_stream(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """One call for all of them."""
    for _ in window.insert_stream(bulks):
        pass


def by_producer(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """Numbered, each sent until it is answered."""
    with window.producer(name) as producer:
        for bulk in bulks:
            producer.bulk_insert(bulk.times, bulk.columns)


WAYS = {"bulk_insert": one_by_one, "insert_stream": in_one_stream, "Producer.bulk_insert": by_producer}


def measure_ways(server: Server, size: Size) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
    """For each way and bulk size: bulks a second, and CPU µs per bulk of client and server, round by round."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with Client(f"127.0.0.1:{server.port}") as client:
        window = client.window(WINDOW)
        window.bulk_evict(2**62)
        firsts = count(2**40, size.entries)
        for entries in (size.entries // 16, size.entries):
            values = np.arange(entries) % 97.0
            for round_ in range(size.rounds):
                for way, send in WAYS.items():
                    starts = list(islice(firsts, size.bulk_calls))
                    bulks = (Bulk(np.arange(first, first + entries), values) for first in starts)
                    cpu, own, start = server.cpu_s(), time.process_time(), time.perf_counter()
                    send(window, bulks, f"{entries}/{round_}")
                    took, own, cpu = time.perf_counter() - start, time.process_time() - own, server.cpu_s() - cpu
                    n = size.bulk_calls
                    found.setdefault((way, entries), []).append((n / took, own / n * 1e6, cpu / n * 1e6))
    return found


def figures(noop: list[float], sash: list[float]) -> list[str]:
    """Both medians, and the median of the rounds' ratios: what disturbs a round disturbs both of its turns."""
    ratio = statistics.median(ours / theirs for theirs, ours in zip(noop, sash, strict=True))
    return [f"{statistics.median(noop):.0f}", f"{statistics.median(sash):.0f}", f"{ratio:.2f}"]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--serve", nargs=2, metavar=("STACK", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is None:
        measure(SMOKE if arguments.smoke else REAL)
        return
    stack, kind = arguments.serve
    if stack == "threads":
        serve_threads(kind)
    elif stack == "uvloop":
        uvloop.run(serve_asyncio(kind))
    else:
        asyncio.run(serve_asyncio(kind))


if __name__ == "__main__":
    main()
