"""What one core answers: small calls over gRPC, Connect and REST, asked by C clients, beside servers that do nothing.

    wrk, h2load ──▶ server process:  { no-op: parse the message, answer an empty one } | { sash serve }

All are asked in turns within one run, so that what else the machine does falls on all of them. On a machine that others
use, a rate says more about them than about the server. So goals are compared with the processor time of the server for
each call: so many calls fit into one second of one core. Others make it longer and never shorter, so the least of the
rounds counts.

Does not show: TLS, tokens, other machines.

Run ``python -m bench.unary`` (about three minutes; Linux, wrk and h2load from Debian's wrk and nghttp2-client), or with
``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson
import uvicorn
import uvloop

from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb

WINDOW = "unary"
KEEP = 1_000_000
BULK = 16_384
PROTO = {"content-type": "application/proto"}
JSON = {"content-type": "application/json"}
CORES = sorted(os.sched_getaffinity(0))
"""Clients are on the first one, and servers on the last one."""
GRPC = {"content-type": "application/grpc", "te": "trailers"}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    seconds: int


SMOKE = Size(1, 1)
REAL = Size(5, 2)


@dataclass
class Case:
    """One kind of call.

    Attributes:
        goal: calls a second of one core; 0: none.
    """

    edge: str
    name: str
    path: str
    body: bytes
    headers: dict[str, str]
    callers: int = 16
    goal: int = 0
    is_durable: bool = False
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)


def cases() -> list[Case]:
    """All cases; times do not move, so that each call does the same."""
    insert = pb.InsertRequest(window=WINDOW, time=5, value=1.5).SerializeToString()
    query = pb.QueryRequest(window=WINDOW, lookbacks=["5s"]).SerializeToString()
    bulk = pb.BulkInsertRequest(
        window=WINDOW,
        time=np.full(BULK, 5, "<i8").tobytes(),
        fields={"value": pb.Column(float64=(np.arange(BULK) % 97).astype("<f8").tobytes())},
    ).SerializeToString()
    service = "/sash.v1.Windows/"
    window = f"/v1/windows/{WINDOW}"
    one = orjson.dumps({"time": 5, "value": 1.5})
    return [
        Case("Connect", "insert", service + "Insert", insert, PROTO, goal=15_000),
        Case("Connect", "query, one lookback", service + "Query", query, PROTO, goal=12_000),
        Case("Connect", "bulk of 16,384", service + "BulkInsert", bulk, PROTO, 4, goal=2_500),
        Case("Connect", "durable insert, 64 callers", service + "Insert", insert, PROTO, 64, 8_000, True),
        Case("REST", "insert", window + "/insert", one, JSON, goal=15_000),
        Case("REST", "query, one lookback", window + "/query?lookback=5s", b"", {}, goal=12_000),
        Case("gRPC", "insert", service + "Insert", framed(insert), GRPC),
        Case("gRPC", "query, one lookback", service + "Query", framed(query), GRPC),
        Case("gRPC", "bulk of 16,384", service + "BulkInsert", framed(bulk), GRPC, 4),
    ]


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it."""
    return b"\0" + len(message).to_bytes(4) + message


# ---------------------------------------------------------------- servers that do nothing


async def noop(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that parses what it is sent."""
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    method = scope["path"].rpartition("/")[2]
    kind, answer = b"application/json", b'{"inserted":1}'
    if scope["path"].startswith("/sash"):
        getattr(pb, method + "Request").FromString(body)
        kind, answer = b"application/proto", b""
    elif body:
        orjson.loads(body)
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def nothing(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of gRPC that parses what it is sent."""

    async def answer(request: Any, context: Any) -> bytes:
        return b""

    return grpc.unary_unary_rpc_method_handler(answer, getattr(pb, method + "Request").FromString, bytes)


async def serve_noop() -> None:
    """Serve both no-ops until standard input closes."""
    grpc_server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {method: nothing(method) for method in ("Insert", "Query", "BulkInsert")}
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("sash.v1.Windows", handlers),))
    grpc_port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    config = uvicorn.Config(noop, port=0, lifespan="off", access_log=False, log_config=None, http="httptools")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(f"gRPC on 127.0.0.1:{grpc_port}, REST and page on http://127.0.0.1:{port}/", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = True
    await serving
    await grpc_server.stop(0)


class Server:
    """A server process, on the last core that there is."""

    def __init__(self, kind: str, data: str) -> None:
        self.kind = kind
        serve = ["-m", "sash.main", "serve", "--grpc-port", "0", "--rest-port", "0", "--data", data]
        command = [sys.executable, *(serve if kind != "no-op" else ["-m", "bench.unary", "--serve"])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"gRPC on .*:(\d+), REST and page on http://.*:(\d+)/", self.process.stdout.readline())
        assert found is not None
        self.grpc_port, self.http_port = int(found[1]), int(found[2])
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(task), {CORES[-1]})
        if kind != "no-op":
            with Client(f"http://127.0.0.1:{self.http_port}") as client:
                aggregates = {"n": {"function": "count"}, "total": {"function": "sum"}}
                spec = {"name": WINDOW, "time_unit": "s", "aggregates": aggregates, "slide": {"max_count": KEEP}}
                client.create_window(spec).bulk_insert(np.zeros(BULK, int), np.arange(BULK) % 97.0)

    def cpu_s(self) -> float:
        """Processor time that it has used so far, in seconds, all threads."""
        total_ns = 0
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            # The first number is nanoseconds on a CPU; /proc/PID/stat counts in ticks of 10 ms.
            total_ns += int(Path(f"/proc/{self.process.pid}/task/{task}/schedstat").read_text().split()[0])
        return total_ns / 1e9

    def close(self) -> None:
        """Have it end."""
        if self.kind != "no-op":
            self.process.terminate()
        self.process.communicate(timeout=60)


def ask(server: Server, case: Case, size: Size, folder: Path) -> None:
    """Have the client of a case make calls for some seconds; note rate and processor time."""
    is_grpc = case.edge == "gRPC"
    url = f"http://127.0.0.1:{server.grpc_port if is_grpc else server.http_port}{case.path}"
    body = folder / "body"
    body.write_bytes(case.body)
    if is_grpc:
        flags = [flag for name, value in case.headers.items() for flag in ("-H", f"{name}: {value}")]
        command = ["h2load", "-c1", f"-m{case.callers}", f"-D{size.seconds}", "-t1", *flags, "-d", str(body), url]
        counted = r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded"
    else:
        script = folder / "calls.lua"
        lines = [f'wrk.method = "{"POST" if case.body else "GET"}"']
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in case.headers.items()]
        if case.body:
            lines.append(f'local f = io.open("{body}", "rb"); wrk.body = f:read("*a"); f:close()')
        script.write_text("\n".join(lines))
        command = ["wrk", "-t1", f"-c{case.callers}", f"-d{size.seconds}", "-s", str(script), url]
        counted = r"(\d+) requests in"
    cpu, start = server.cpu_s(), time.perf_counter()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    took, cpu = time.perf_counter() - start, server.cpu_s() - cpu
    found = re.search(counted, said)
    if found is None or "Non-2xx" in said or (is_grpc and found[1] != found[2]):
        raise RuntimeError(f"{server.kind}, {case.edge} {case.name}: {said}")
    calls = int(found[1])
    case.rates.setdefault(server.kind, []).append(calls / took)
    case.cpu_us.setdefault(server.kind, []).append(cpu / calls * 1e6)


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    """All servers, by kind."""
    running: dict[str, Server] = {}
    try:
        for kind, data in (("no-op", ""), ("sash", "memory"), ("durable", str(folder / "data"))):
            running[kind] = Server(kind, data)
        yield running
    finally:
        for server in running.values():
            server.close()


def measure(size: Size) -> None:
    """Run all cases on all servers and print the table."""
    chosen = cases()[:: 1 if size is REAL else 4]
    asked = [case for case in chosen if shutil.which("h2load" if case.edge == "gRPC" else "wrk")]
    if len(asked) < len(chosen):
        print("left out where there is no client: wrk for HTTP, h2load (nghttp2-client) for gRPC")
    os.sched_setaffinity(0, {CORES[0]})
    with tempfile.TemporaryDirectory() as name, servers(Path(name)) as running:
        for _ in range(size.rounds):
            for case in asked:
                for kind in ("no-op", "durable" if case.is_durable else "sash"):
                    ask(running[kind], case, size, Path(name))
    print(
        "| edge | call | rate, of no-op's | no-op CPU | sash CPU, least | median | calls a second of one core | goal |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in asked:
        ours = "durable" if case.is_durable else "sash"
        pairs = zip(case.rates["no-op"], case.rates[ours], strict=True)
        ratio = statistics.median(rate / nothing for nothing, rate in pairs)
        least_us, median_us = min(case.cpu_us[ours]), statistics.median(case.cpu_us[ours])
        cells = [f"{ratio:.2f}", f"{min(case.cpu_us['no-op']):.0f} µs", f"{least_us:.0f} µs", f"{median_us:.0f} µs"]
        cells += [f"{1e6 / least_us:,.0f}", f"{case.goal:,}" if case.goal else ""]
        print(f"| {case.edge} | {case.name} | {' | '.join(cells)} |")
    print(f"{size.rounds} rounds of {size.seconds} s each; load {os.getloadavg()[0]:.0f}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve_noop())
    else:
        measure(SMOKE if arguments.smoke else REAL)


if __name__ == "__main__":
    main()
