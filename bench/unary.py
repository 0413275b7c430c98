"""What one core answers: small calls over gRPC, Connect and REST, asked by C clients, beside servers that do nothing.

    wrk, h2load ──▶ server process:  { no-op: parse the message, answer an empty one } | { sash serve }
    --access                         { plain } | { token } | { TLS } | { TLS and token }

All are asked in turns within one run, so that what else the machine does falls on all of them. On a machine that others
use, a rate says more about them than about the server. So goals are compared with the processor time of the server for
each call: so many calls fit into one second of one core. Others make it longer and never shorter, so the least of the
rounds counts.

Does not show: handshakes (connections are kept), JSON Web Tokens, other machines.

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

from bench.harness import CORES, arguments, head, pid_of, pin, processor_s, row, service
from sash_client import TLS, Client
from sash_proto.v1 import windows_pb2 as pb
from tests.support.certificates import Authority
from tests.support.servers import Running
from tests.support.tokens import bearer, write_tokens

WINDOW = "unary"
KEEP = 1_000_000
BULK = 16_384
PROTO = {"content-type": "application/proto"}
JSON = {"content-type": "application/json"}
GRPC = {"content-type": "application/grpc", "te": "trailers"}
SPEC = {
    "name": WINDOW,
    "time_unit": "s",
    "aggregates": {"n": {"function": "count"}, "total": {"function": "sum"}},
    "slide": {"max_count": KEEP},
}
SETUPS = ("plain", "token", "TLS", "TLS and token")


@dataclass
class Case:
    """One kind of call.

    Attributes:
        goal: calls a second of one core; 0: none.
        kind: which service answers, beside the one that does nothing.
    """

    edge: str
    name: str
    path: str
    body: bytes
    headers: dict[str, str]
    callers: int = 16
    goal: int = 0
    kind: str = "sash"
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
    connect = "/sash.v1.Windows/"
    window = f"/v1/windows/{WINDOW}"
    one = orjson.dumps({"time": 5, "value": 1.5})
    return [
        Case("Connect", "insert", connect + "Insert", insert, PROTO, goal=15_000),
        Case("Connect", "query, one lookback", connect + "Query", query, PROTO, goal=12_000),
        Case("REST", "insert", window + "/insert", one, JSON, goal=15_000),
        Case("REST", "query, one lookback", window + "/query?lookback=5s", b"", {}, goal=12_000),
        Case("gRPC", "insert", connect + "Insert", framed(insert), GRPC),
        Case("gRPC", "query, one lookback", connect + "Query", framed(query), GRPC),
        Case("Connect", "bulk of 16,384", connect + "BulkInsert", bulk, PROTO, 4, goal=2_500),
        Case("Connect", "durable insert, 64 callers", connect + "Insert", insert, PROTO, 64, 8_000, "durable"),
        Case("gRPC", "insert, one at a time", connect + "Insert", framed(insert), GRPC, 1),
        Case("gRPC", "bulk of 16,384", connect + "BulkInsert", framed(bulk), GRPC, 4),
        Case("gRPC", "bulk of 16,384, one at a time", connect + "BulkInsert", framed(bulk), GRPC, 1),
    ]


SMALL = 6
"""The first of the cases are small calls, one of each kind on each edge."""


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it."""
    return b"\0" + len(message).to_bytes(4) + message


# ---------------------------------------------------------------- servers


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
    print(grpc_port, server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = True
    await serving
    await grpc_server.stop(0)


@contextlib.contextmanager
def noop_process() -> Iterator[Running]:
    """Run both no-ops in a process."""
    command = [sys.executable, "-m", "bench.unary", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Running(*map(int, process.stdout.readline().split()), process=process)


@dataclass
class Server:
    """A server, and how it is called."""

    running: Running
    scheme: str = "http"
    headers: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def secured(setup: str, folder: Path) -> Iterator[Server]:
    """Run a service that asks for a token, or speaks TLS, or both."""
    environment, server, options = {}, Server(Running(0, 0)), {}
    if "token" in setup:
        tokens = write_tokens(folder / f"{setup}.yaml", {"bench": {"role": "admin"}})
        environment["SASH_TOKENS"] = str(tokens)
        server.headers, options["token"] = bearer("bench"), "bench-token"
    if "TLS" in setup:
        authority = Authority("bench")
        cert, key = authority.give(folder, setup.replace(" ", "-"))
        (folder / "ca.pem").write_bytes(authority.pem)
        environment |= {"SASH_TLS_CERT": str(cert), "SASH_TLS_KEY": str(key)}
        server.scheme, options["tls"] = "https", TLS(ca=str(folder / "ca.pem"))
    with service(cores=CORES[-1:], **environment) as server.running:
        filled(server.running, **options)
        yield server


def filled(running: Running, **options: Any) -> None:
    """Make the window, with a bulk in it."""
    with Client(running.grpc_target, **options) as client:
        client.create_window(SPEC).bulk_insert(np.zeros(BULK, int), np.arange(BULK) % 97.0)


# ---------------------------------------------------------------- measuring


def ask(server: Server, kind: str, case: Case, seconds: int, folder: Path) -> None:
    """Have the client of a case make calls for some seconds; note rate and processor time."""
    is_grpc = case.edge == "gRPC"
    running, headers = server.running, case.headers | server.headers
    url = f"{server.scheme}://127.0.0.1:{running.grpc_port if is_grpc else running.rest_port}{case.path}"
    body = folder / "body"
    body.write_bytes(case.body)
    if is_grpc:
        flags = [flag for name, value in headers.items() for flag in ("-H", f"{name}: {value}")]
        command = ["h2load", "-c1", f"-m{case.callers}", f"-D{seconds}", "-t1", *flags, "-d", str(body), url]
        counted = r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded"
    else:
        script = folder / "calls.lua"
        lines = [f'wrk.method = "{"POST" if case.body else "GET"}"']
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
        if case.body:
            lines.append(f'local f = io.open("{body}", "rb"); wrk.body = f:read("*a"); f:close()')
        script.write_text("\n".join(lines))
        command = ["wrk", "-t1", f"-c{case.callers}", f"-d{seconds}", "-s", str(script), url]
        counted = r"(\d+) requests in"
    cpu, start = processor_s(pid_of(running)), time.perf_counter()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    took, cpu = time.perf_counter() - start, processor_s(pid_of(running)) - cpu
    found = re.search(counted, said)
    if found is None or "Non-2xx" in said or (is_grpc and found[1] != found[2]):
        raise RuntimeError(f"{kind}, {case.edge} {case.name}: {said}")
    calls = int(found[1])
    case.rates.setdefault(kind, []).append(calls / took)
    case.cpu_us.setdefault(kind, []).append(cpu / calls * 1e6)


@contextlib.contextmanager
def servers(access: bool, folder: Path) -> Iterator[dict[str, Server]]:
    """All servers, by kind; the first one is what the others are compared with."""
    with contextlib.ExitStack() as stack:
        if access:
            yield {setup: stack.enter_context(secured(setup, folder)) for setup in SETUPS}
            return
        running = {"no-op": stack.enter_context(noop_process())}
        pin(pid_of(running["no-op"]), CORES[-1:])
        for kind, data in (("sash", "memory"), ("durable", str(folder / "data"))):
            running[kind] = stack.enter_context(service("--data", data, cores=CORES[-1:]))
            filled(running[kind])
        yield {kind: Server(each) for kind, each in running.items()}


def measure(chosen: list[Case], rounds: int, seconds: int, access: bool) -> None:
    """Run cases on all servers and print the table."""
    asked = [case for case in chosen if shutil.which("h2load" if case.edge == "gRPC" else "wrk")]
    if len(asked) < len(chosen):
        print("left out where there is no client: wrk for HTTP, h2load (nghttp2-client) for gRPC")
    os.sched_setaffinity(0, CORES[:1])
    with tempfile.TemporaryDirectory() as name, servers(access, Path(name)) as running:
        base = next(iter(running))
        for _ in range(rounds):
            for case in asked:
                for kind, server in running.items():
                    if access or kind in (base, case.kind):
                        ask(server, kind, case, seconds, Path(name))
    titles = ("edge", "call", "server", f"rate, of {base}'s", f"{base} CPU", "CPU, least", "median")
    head(*titles, "calls a second of one core", "goal")
    for case in asked:
        for kind in [each for each in case.rates if each != base]:
            ratio = statistics.median(a / b for a, b in zip(case.rates[kind], case.rates[base], strict=True))
            least_us, median_us = min(case.cpu_us[kind]), statistics.median(case.cpu_us[kind])
            cells = (f"{ratio:.2f}", *(f"{us:.0f} µs" for us in (min(case.cpu_us[base]), least_us, median_us)))
            goal = f"{case.goal:,}" if case.goal and not access else ""
            row(case.edge, case.name, kind, *cells, f"{1e6 / least_us:,.0f}", goal)
    print(f"{rounds} rounds of {seconds} s each; load {os.getloadavg()[0]:.0f}")


def main() -> None:
    """Parse the command line."""
    given = arguments(
        __doc__,
        {
            "--access": {"action": "store_true", "help": "what tokens and TLS cost"},
            "--serve": {"action": "store_true", "help": argparse.SUPPRESS},
        },
    )
    if given.serve:
        uvloop.run(serve_noop())
        return
    chosen = cases()[:SMALL] if given.access else cases()
    measure(chosen[::4] if given.smoke else chosen, *((1, 1) if given.smoke else (5, 2)), given.access)


if __name__ == "__main__":
    main()
