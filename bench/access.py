"""What TLS and tokens cost a single insert and a single query, on each edge.

    client ──▶ service      plain | token | TLS | TLS and token         gRPC, Connect, REST

Four services run as processes of their own and are asked in turns within one run, over connections that are kept, so
that what else the machine does falls on all. Two figures per case: calls a second, and the processor time of the
service's event loop per call; medians of 150 rounds of 20 calls. The last two columns divide by the plain service's
figure of the same round; the goal with TLS and a token is 0.85 of the rate. The time of the processor leaves out what
other programs take.

The printed digest is of the windows' final answers; it depends on the calls made and on nothing else.

Does not show: handshakes (connections are kept), JSON Web Tokens (checked once and remembered), other machines.

Run ``python -m bench.access`` (about a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from sash.access.tokens import TokenEntry, digest_of, new_token, yaml_line
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.certificates import Authority

SETUPS = ("plain", "token", "TLS", "TLS and token")
CASES = [(edge, what) for edge in ("gRPC", "Connect", "REST") for what in ("insert", "query")]
SPEC = {"name": "w", "slide": {"max_count": 1000}, "aggregates": {"n": {"function": "count"}, "s": {"function": "sum"}}}


@dataclass
class Service:
    """A service process, and how it is called."""

    process: subprocess.Popen[str]
    stub: Any
    connection: http.client.HTTPConnection
    headers: dict[str, str]
    times: Iterator[int] = field(default_factory=count)
    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cpu_us: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def cpu_s(self) -> float:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def http(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document)
        headers = self.headers if body is None else {**self.headers, "content-type": "application/json"}
        try:
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        except (
            ConnectionError,
            ssl.SSLEOFError,
        ):  # it was idle for longer than the server keeps it, while others had their turns
            self.connection.close()
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        text = response.read()
        assert response.status < 300, text
        return json.loads(text)

    def call(self, edge: str, what: str) -> Callable[[], Any]:
        """Makes one call."""
        if edge == "gRPC":
            metadata = list(self.headers.items())
            if what == "query":
                return lambda: self.stub.Query(pb.QueryRequest(window="w"), metadata=metadata)
            return lambda: self.stub.Insert(
                pb.InsertRequest(window="w", time=next(self.times), value=1.0), metadata=metadata
            )
        if what == "query":
            connect = ("POST", "/sash.v1.Windows/Query", {"window": "w"})
            return lambda: self.http(*connect if edge == "Connect" else ("GET", "/v1/windows/w/query"))
        if edge == "Connect":
            path = "/sash.v1.Windows/Insert"
            return lambda: self.http("POST", path, {"window": "w", "time": next(self.times), "value": 1.0})
        return lambda: self.http("POST", "/v1/windows/w/insert", {"time": next(self.times), "value": 1.0})


@contextmanager
def service(setup: str, scratch: Path) -> Iterator[Service]:
    """Run a service in one of the ways."""
    environment, headers, context = {"SASH_DATA": "memory"}, {}, None
    credentials = None
    if "token" in setup:
        token = new_token()
        tokens = scratch / f"{setup}.yaml"
        entry = TokenEntry(name="bench", sha256=digest_of(token), role="admin", windows=["*"])
        tokens.write_text(f"tokens:\n{yaml_line(entry)}\n")
        environment["SASH_TOKENS"] = str(tokens)
        headers["authorization"] = f"Bearer {token}"
    if "TLS" in setup:
        authority = Authority("bench")
        cert, key = authority.give(scratch, setup.replace(" ", "-"))
        environment |= {"SASH_TLS_CERT": str(cert), "SASH_TLS_KEY": str(key)}
        context = ssl.create_default_context(cadata=authority.pem.decode())
        credentials = grpc.ssl_channel_credentials(authority.pem)
    command = [sys.executable, "-m", "sash.main", "serve", "--grpc-port", "0", "--rest-port", "0"]
    with ExitStack() as closing:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        closing.callback(process.wait)
        closing.callback(process.terminate)
        assert process.stdout is not None
        line = process.stdout.readline()
        target, _, url = line.removeprefix("sash: gRPC on ").partition(", REST and page on ")
        port = int(url.rstrip("/\n").rpartition(":")[2])
        channel = grpc.insecure_channel(target) if credentials is None else grpc.secure_channel(target, credentials)
        closing.callback(channel.close)
        connection = (
            http.client.HTTPConnection("127.0.0.1", port)
            if context is None
            else http.client.HTTPSConnection("127.0.0.1", port, context=context)
        )
        closing.callback(connection.close)
        found = Service(process, pb_grpc.WindowsStub(channel), connection, headers)  # type: ignore[no-untyped-call]
        found.http("POST", "/v1/windows", SPEC)
        yield found


def measure(calls: int, rounds: int) -> None:
    """Ask all services in turns, and print the figures."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        services = {setup: stack.enter_context(service(setup, Path(scratch))) for setup in SETUPS}
        for case in CASES:
            made = {setup: found.call(*case) for setup, found in services.items()}
            for call in made.values():
                for _ in range(10):
                    call()
            for round_ in range(rounds):
                # Each in each place: what comes first in a round has another neighbour.
                order = [SETUPS[(i + round_) % len(SETUPS)] for i in range(len(SETUPS))]
                for setup in order:
                    found, call = services[setup], made[setup]
                    cpu, start = found.cpu_s(), time.perf_counter()
                    for _ in range(calls):
                        call()
                    took, cpu = time.perf_counter() - start, found.cpu_s() - cpu
                    found.rates.setdefault(case, []).append(calls / took)
                    found.cpu_us.setdefault(case, []).append(cpu / calls * 1e6)
        print("| edge | call | setup | calls/s | service's CPU per call | rate, of plain | CPU, plain's of its |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for case in CASES:
            plain = services["plain"]
            for setup, found in services.items():
                rate = statistics.median(found.rates[case])
                cpu = statistics.median(found.cpu_us[case])
                # Of the same round: neighbours press in phases.
                ratios = [a / b for a, b in zip(found.rates[case], plain.rates[case], strict=True)]
                by_cpu = statistics.median(a / b for a, b in zip(plain.cpu_us[case], found.cpu_us[case], strict=True))
                row = (
                    *case,
                    setup,
                    f"{rate:,.0f}",
                    f"{cpu:.0f} µs",
                    f"{statistics.median(ratios):.2f}",
                    f"{by_cpu:.2f}",
                )
                print("| " + " | ".join(row) + " |")
        answers = [found.http("GET", "/v1/windows/w/query")["answers"] for found in services.values()]
        assert all(answer == answers[0] for answer in answers)
        print("digest", hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:12])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes, figures meaningless")
    if parser.parse_args().smoke:
        measure(calls=5, rounds=1)
    else:
        measure(calls=20, rounds=150)


if __name__ == "__main__":
    main()
