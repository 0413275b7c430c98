"""Hostile callers of every kind beside one honest caller, all at random from a seed.

    process   service ◀── callers of KINDS, 40 threads a process, each from an address of its own
                 ▲  ◀──── the honest caller: small inserts and questions, one after the other
                 └─ read meanwhile: memory, and the processor time of the main thread, which is the event loop

    python -m tests.security.hostile --minutes 10 --callers 200          all kinds at once
    python -m tests.security.hostile --minutes 0.2 --callers 40 --each    one kind after the other

What a call waits for is the processor time that the event loop takes from when it is sent until it is answered. That
does not depend on what else the machine does, but for what the loop does before the honest caller gets a processor.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import http.client
import itertools
import json
import multiprocessing
import os
import random
import re
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cramjam
import grpc
import jwt
import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from jwt.algorithms import ECAlgorithm

from sash_proto.envoy import ratelimit_pb2
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support import http2
from tests.support.certificates import Authority
from tests.support.servers import Running, service_process
from tests.support.tokens import bearer, write_tokens

MIB = 2**20
LIMIT_MIB = 512
BESIDE_MIB = 150
"""Beyond `SASH_MEMORY_BYTES`: what the allocator keeps and estimates miss, and what connections have."""

BIG_KEYS = 50_000
PATIENCE_S = 4.0
"""For so long a hostile caller waits for anything."""

CALLERS_A_PROCESS = 50
TOKENS = {
    "root": {"role": "admin"},
    "honest": {"role": "write", "windows": ["calm"]},
    "blind": {"windows": ["none"]},
    "asker": {"windows": ["big"]},
    "writer": {"role": "write", "windows": ["evil"]},
    "owner": {"role": "admin", "windows": ["evil*"]},
}
_AGGREGATES = {name: {"function": name} for name in ("count", "sum", "mean", "max")}
_LIMITS = """
domain: evil
window: evil-limited
descriptors:
  - key: user
    rate_limits: [{unit: second, requests_per_unit: 5}, {unit: day, requests_per_unit: 5000}]
"""


# ---------------------------------------------------------------- a hostile caller


@dataclass
class Caller:
    """One hostile caller: an address, and what it draws at random."""

    rest_port: int
    grpc_port: int
    authority: str
    address: str
    draw: random.Random
    folder: Path
    outcomes: Counter[str]

    def body(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def connect(self, port: int, h2: bool = False, plain: bool = False) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (self.address, 0))
        if plain or not self.authority:
            return made
        try:
            return _context(self.authority, h2).wrap_socket(made, server_hostname="127.0.0.1")
        except BaseException:
            made.close()
            raise

    @contextlib.contextmanager
    def rest(self, plain: bool = False) -> Iterator[socket.socket]:
        with contextlib.closing(self.connect(self.rest_port, plain=plain)) as connection:
            yield connection

    def head(
        self, method: str, path: str, token: str | None = None, version: str = "HTTP/1.1", **headers: Any
    ) -> bytes:
        lines = [f"{method} {path} {version}", "host: localhost"]
        if token:
            lines.append(f"authorization: Bearer {token}-token")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, "", "")).encode()

    def ask(self, method: str, path: str, token: str | None = None, body: bytes = b"", **headers: Any) -> None:
        """Send a request, and note its status."""
        with self.rest() as connection:
            if body:
                headers["content_length"] = len(body)
            connection.sendall(self.head(method, path, token, **headers))
            with contextlib.suppress(OSError):
                connection.sendall(body)
            self.note(connection)

    def note(self, connection: socket.socket, whole: bool = True) -> None:
        """Read an answer, and note its status."""
        data = connection.recv(65_536)
        self.outcomes[data[9:12].decode("latin-1") if data.startswith(b"HTTP/1") else "cut" if not data else "?"] += 1
        until = time.monotonic() + PATIENCE_S
        while whole and data and time.monotonic() < until and not data.endswith((b"}", b"\r\n\r\n")):
            data = connection.recv(65_536)

    def call(self, method: Callable[..., object], *given: Any, token: str) -> None:
        """Make a call of gRPC, and note its code."""
        try:
            method(*given, metadata=_token(token), timeout=PATIENCE_S)
            self.outcomes["OK"] += 1
        except grpc.RpcError as error:
            self.outcomes[error.code().name] += 1

    def wait(self, longest_s: float = PATIENCE_S) -> None:
        time.sleep(self.draw.random() * longest_s)

    def token(self) -> str | None:
        return self.draw.choice((None, "wrong", *TOKENS.keys() - {"root", "honest"}))


@cache
def _context(authority: str, h2: bool) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority)
    if h2:
        made.set_alpn_protocols(["h2"])
    return made


KINDS: dict[str, Callable[[Caller], None]] = {}
UNBOUNDED = {"packed_headers"}
"""Kinds that use up the memory: docs/operations/overload.md says what helps. They run only where they are named;
`test_floods.py` has what is done against them."""


def kind(attack: Callable[[Caller], None]) -> Callable[[Caller], None]:
    KINDS[attack.__name__] = attack
    return attack


# ---------------------------------------------------------------- HTTP: connections, heads, framing


@kind
def half_handshakes(caller: Caller) -> None:
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(caller.draw.randrange(40))
    with contextlib.ExitStack() as opened:
        for _ in range(30):
            port = caller.draw.choice((caller.rest_port, caller.grpc_port))
            opened.enter_context(caller.connect(port, plain=True)).sendall(hello)
        caller.wait()


@kind
def idle_connections(caller: Caller) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(caller.rest())
        caller.wait()


@kind
def pipelined(caller: Caller) -> None:
    version = caller.draw.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/3.0"))
    one = caller.head("GET", caller.draw.choice(("/healthz", "/v1/windows", "/metrics")), "asker", version)
    with caller.rest() as connection:
        connection.sendall(one * (260_000 // len(one)))
        caller.note(connection)


@kind
def slow_heads_and_bodies(caller: Caller) -> None:
    head = caller.head(
        "POST", "/v1/windows/evil/bulk-insert", "writer", content_type="application/json", content_length=10**7
    )
    with caller.rest() as connection:
        for at in range(0, len(head), 8):
            connection.sendall(head[at : at + 8])
            time.sleep(0.02)
        for _ in range(20):
            connection.sendall(b"[")
            time.sleep(0.1)


@kind
def half_closed(caller: Caller) -> None:
    with caller.rest() as connection:
        connection.sendall(caller.head("GET", "/v1/windows/big/query?all_keys=true", "asker"))
        if isinstance(connection, ssl.SSLSocket):
            connection = connection.unwrap()
        connection.shutdown(socket.SHUT_WR)
        caller.note(connection)


@kind
def hung_up(caller: Caller) -> None:
    with caller.rest() as connection:
        connection.sendall(caller.head("GET", "/v1/windows/big/query?all_keys=true&partials=true", "asker"))


@kind
def trailers_and_chunks(caller: Caller) -> None:
    head = caller.head(
        "POST", "/v1/windows/evil/insert", "writer", content_type="application/json", transfer_encoding="chunked"
    )
    rest = caller.draw.choice(
        (b"1;x=" + b"y" * 60_000 + b"\r\na\r\n", b"0\r\n" + b"a: b\r\n" * 20_000, b"1\r\na\r\n" * 20_000)
    )
    with caller.rest() as connection:
        connection.sendall(head + rest)
        caller.note(connection)


@kind
def long_heads(caller: Caller) -> None:
    many = caller.draw.choice(("x" * 60_000, "x" * 200_000))
    caller.ask("GET", "/v1/windows", caller.token(), cookie=many)


@kind
def wrong_tokens(caller: Caller) -> None:
    for _ in range(20):
        caller.ask(
            "POST", "/v1/windows/calm/insert", f"no{caller.draw.random()}", b"{}" * 500, content_type="application/json"
        )


@kind
def noise(caller: Caller) -> None:
    port = caller.draw.choice((caller.rest_port, caller.grpc_port))
    with contextlib.closing(caller.connect(port, plain=caller.draw.random() < 0.5)) as connection:
        connection.sendall(caller.draw.randbytes(caller.draw.randrange(1, 100_000)))
        caller.note(connection)


# ---------------------------------------------------------------- HTTP: questions


@kind
def large_answers(caller: Caller) -> None:
    path = caller.draw.choice(
        (
            "/v1/windows/big/query?all_keys=true",
            "/v1/windows/big/query?all_keys=true&partials=true",
            "/v1/windows/big/series?start=0&end=1000000&step=1&all_keys=true",
            "/v1/windows/big/keys?limit=10000000",
            "/v1/windows/big/entries?all_keys=true",
        )
    )
    caller.ask("GET", path, "asker")


@kind
def slow_readers(caller: Caller) -> None:
    path = caller.draw.choice(
        ("query?all_keys=true", "entries?all_keys=true", "series?start=0&end=900000&step=1&all_keys=true")
    )
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            connection = opened.enter_context(caller.rest())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(caller.head("GET", f"/v1/windows/big/{path}", "asker"))
        caller.wait()
        caller.note(connection, whole=False)


@kind
def watchers(caller: Caller) -> None:
    with caller.rest() as connection:
        path = f"/v1/windows/big/watch?all_keys=true&interval=50&as_of={caller.draw.randrange(10**6)}"
        connection.sendall(caller.head("GET", path, "asker"))
        caller.wait()
        caller.note(connection, whole=False)


@kind
def listings_by_pattern(caller: Caller) -> None:
    pattern = caller.draw.choice(("k.*", "(k|ke|key)*-?[0-9]*", "(.*)*x", "[a-z]{1,30}-.*9$", "(((a*)*)*)*b"))
    prefix = caller.draw.choice(("", "&prefix=zzz"))
    caller.ask("GET", f"/v1/windows/big/keys?limit=100000&where={quote('key=~' + pattern)}{prefix}", "asker")


@kind
def label_bombs(caller: Caller) -> None:
    expression = caller.draw.choice(("vector(1)", "big:sum"))
    times, many = caller.draw.randrange(2, 12), "$1" * caller.draw.randrange(2, 9)
    for _ in range(times):
        expression = f'label_replace({expression}, "b", "{many}", "b", "(.*)")'
    if caller.draw.random() < 0.3:
        expression = f'label_join({expression}, "c", "{"x" * 1000}", "b", "b", "b", "b")'
    seeded = expression.replace("vector(1)", 'label_replace(vector(1), "b", "12345678", "", "")')
    caller.ask("GET", f"/prometheus/api/v1/query?query={quote(seeded)}", "asker")


@kind
def expressions(caller: Caller) -> None:
    expression = caller.draw.choice(
        (
            "big:sum * on(key) group_left big:count",
            "count_values('v', big:sum)",
            "sum_over_time(big:value[1d])",
            "quantile_over_time(0.5, big:value[1d])",
            "max_over_time((big:sum)[1d:1s])",
            "sort_desc(big:sum + big:sum + big:sum)",
            "topk(50000, big:sum)",
            "(" * 500 + "1" + ")" * 500,
            "-" * 5000 + "1",
        )
    )
    ranged = f"query_range?query={quote(expression)}&start=0&end=11000&step=1"
    path = caller.draw.choice((f"query?query={quote(expression)}", ranged))
    caller.ask("GET", f"/prometheus/api/v1/{path}", "asker")


# ---------------------------------------------------------------- HTTP: bodies


def _empties() -> bytes:
    return b"\x0a\x00" * 2_000_000


def _written(series: bytes) -> bytes:
    """One series of a remote write."""
    return bytes(cramjam.snappy.compress_raw(_within(series, 10)))


def _within(data: bytes, *tags: int) -> bytes:
    """A message of protobuf in messages, the outermost first."""
    for tag in reversed(tags):
        length = bytes((n & 127 | 128) for n in (len(data), len(data) >> 7, len(data) >> 14))
        data = bytes((tag,)) + length + bytes((len(data) >> 21,)) + data
    return data


def _zeros(count: int) -> dict[str, Any]:
    return {"time": np.zeros(count, np.int64), "key": pa.repeat("", count), "value": np.zeros(count)}


def _run(length: int) -> Any:
    """A column of one value, which is there once."""
    return pa.RunEndEncodedArray.from_arrays(pa.array([length], pa.int64()), pa.array([1]))


def _nulls(length: int) -> Any:
    """A column that has no bytes at all."""
    return pa.Array.from_buffers(pa.null(), length, [None])


def _deep(depth: int) -> Any:
    return pa.list_(_deep(depth - 1)) if depth else pa.int64()


def _arrow(columns: dict[str, Any], options: Any = None, count: int = 4) -> bytes:
    """A stream of Arrow: the same batch several times."""
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, batch.schema, options=options) as writer:
        for _ in range(count):
            writer.write_batch(batch)
    return bytes(written.getvalue().to_pybytes())


BODIES: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(bytes(60 * MIB), 6),
    "gzip of JSON": lambda: gzip.compress(b'{"window":"none","keys":[' + b'"",' * 20_000_000 + b'""]}', 6),
    "gzip of brackets": lambda: gzip.compress(b'{"window":"none","keys":' + b"[" * 60_000_000, 6),
    "labels": lambda: _written(_empties()),
    "samples": lambda: _written(b"\x12\x00" * 2_000_000),
    "series": lambda: bytes(cramjam.snappy.compress_raw(_empties())),
    "metadata": lambda: bytes(cramjam.snappy.compress_raw(b"\x18\x00" * 2_000_000)),
    "resources": lambda: b"\x0a\x00" * 2_000_000,
    "points": lambda: _within(b"\x0a\x00" * 1_900_000, 10, 18, 18, 0x52),
    "attributes": lambda: _within(b"\x3a\x00" * 1_900_000, 10, 18, 18, 42, 10),
    "gzip of points": lambda: gzip.compress(_within(b"\x0a\x00" * 1_900_000, 10, 18, 18, 0x52), 6),
    "spaces": lambda: b'{"time":[1],"value":[1]' + b" " * 30_000_000 + b"}",
    "text": lambda: b'{"time":[1],"value":["' + b"x" * 30_000_000 + b'"]}',
    "number": lambda: b'{"time":[1],"value":[' + b"1" * 30_000_000 + b"]}",
    "brackets": lambda: b'{"time":' + b"[" * 10_000_000,
    "names": lambda: b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}",
    "numbers": lambda: b'{"time":[' + b"1," * 3_000_000 + b'1],"value":[' + b"1," * 3_000_000 + b"1]}",
    "line": lambda: b"1" * 5_000_000,
    "lines": lambda: b'{"time":1,"key":"k","value":1}\n' * 100_000,
    "sets": lambda: b"!!set {" + b"a," * 30_000 + b"a}",
    "sixties": lambda: b"name: 1" + b":1" * 30_000,
    "items": lambda: b"[" + b"1," * 32_000 + b"1]",
    "merges": lambda: b"{" + b"<<: {a: 1}," * 5000 + b"}",
    "members": lambda: json.dumps({"name": "evil1", "aggregates": {str(i): {} for i in range(6000)}}).encode(),
    "texts": lambda: http2.message(pb.QueryRequest(window="none", keys=["", "a"] * 500_000)),
    "arrow, lz4": lambda: _arrow(_zeros(1 << 20), pa.ipc.IpcWriteOptions(compression="lz4")),
    "arrow, zstd": lambda: _arrow(_zeros(1 << 20), pa.ipc.IpcWriteOptions(compression="zstd")),
    "arrow, nulls": lambda: _arrow({name: _nulls(1 << 30) for name in ("time", "key", "value")}),
    "arrow, runs": lambda: _arrow({name: _run(1 << 30) for name in ("time", "key", "value")}),
    "arrow, words": lambda: _arrow({"time": np.arange(4), "key": ["k" * 500_000] * 4, "value": np.zeros(4)}),
    "arrow, columns": lambda: _arrow({f"c{i}": [1] for i in range(30_000)}),
    "arrow, batches": lambda: _arrow(_zeros(0), count=30_000),
    "arrow, deep": lambda: _arrow({"time": pa.nulls(1, _deep(60))}),
}
"""Bodies that are large, or become large."""


@kind
def packed_messages(caller: Caller) -> None:
    name = caller.draw.choice(("gzip", "gzip of JSON", "gzip of brackets"))
    codec = "proto" if name == "gzip" else "json"
    method = caller.draw.choice(("Query", "ListWindows", "BulkInsert", "GetWindow"))
    token = caller.draw.choice(("blind", "asker", None))
    headers = {"content_type": f"application/{codec}", "content_encoding": "gzip"}
    caller.ask("POST", f"/sash.v1.Windows/{method}", token, caller.body(name), **headers)


@kind
def remote_writes(caller: Caller) -> None:
    body = caller.body(caller.draw.choice(("labels", "samples", "series", "metadata")))
    headers = {"content_type": "application/x-protobuf", "content_encoding": "snappy"}
    caller.ask("POST", "/prometheus/api/v1/write?window=evil", caller.draw.choice(("writer", "blind")), body, **headers)


@kind
def metrics(caller: Caller) -> None:
    name = caller.draw.choice(("resources", "points", "attributes", "gzip of points"))
    headers = {"content_type": "application/x-protobuf"} | ({"content_encoding": "gzip"} if "gzip" in name else {})
    caller.ask("POST", "/v1/metrics", caller.draw.choice(("writer", "blind")), caller.body(name), **headers)


@kind
def long_bodies(caller: Caller) -> None:
    body = caller.body(caller.draw.choice(("spaces", "text", "number", "brackets", "names", "numbers")))
    caller.ask("POST", "/v1/windows/evil/bulk-insert", "writer", body, content_type="application/json")


@kind
def lines(caller: Caller) -> None:
    body, kinds = caller.body(caller.draw.choice(("line", "lines"))), ("application/x-ndjson", "text/csv")
    caller.ask("POST", "/v1/windows/evil/bulk-insert", "writer", body, content_type=caller.draw.choice(kinds))


@kind
def arrow_noise(caller: Caller) -> None:
    body = b"\xff\xff\xff\xff\x10\x00\x00\x00" + caller.draw.randbytes(100_000)
    caller.ask(
        "POST", "/v1/windows/evil/bulk-insert", "writer", body, content_type="application/vnd.apache.arrow.stream"
    )


@kind
def arrow_bombs(caller: Caller) -> None:
    """Streams that are small, and would become large; and large ones."""
    body = caller.body(caller.draw.choice([name for name in BODIES if name.startswith("arrow")]))
    kind, window = "application/vnd.apache.arrow.stream", caller.draw.choice(("evil", "evil", "none"))
    caller.ask("POST", f"/v1/windows/{window}/bulk-insert", "writer", body, content_type=kind)


@kind
def json_web_tokens(caller: Caller) -> None:
    """Tokens that are not valid, and many that are."""
    draw, many = caller.draw, 60_000
    claims: dict[str, Any] = {"iss": "id", "aud": "sash", "sub": f"s{draw.random()}", "exp": time.time() + 600}
    claims |= {"role": "read", "windows": ["none"]}
    head: dict[str, Any] = {"alg": "ES256", "typ": "JWT", "kid": "mine"}
    key = caller.body("jwt.pem")
    match draw.choice(("valid", "none", "kid", "head", "claims", "deep", "number", "shared", "cut", "dots")):
        case "none":
            token = _jwt({"alg": "none", "kid": "mine"}, claims)
        case "kid":
            token = _jwt(
                head | {"kid": draw.choice(("x" * many, f"{draw.random()}", ["a"], {"a": 1}, 7, None))}, claims
            )
        case "head":
            token = _jwt(head | {f"n{i}": i for i in range(4000)}, claims)
        case "claims":
            token = jwt.encode(claims | {"windows": [f"w{i}*" for i in range(4000)]}, key, "ES256", {"kid": "mine"})
        case "deep":
            token = _part(b'{"alg":' + b"[" * 40_000) + "." + _part(b"[" * 3000) + "."
        case "number":
            token = _part(b'{"alg":"ES256","kid":' + b"1" * 40_000 + b"}") + ".e30."
        case "shared":
            token = jwt.encode(claims, "k" * 64, "HS256", {"kid": "mine"})
        case "cut":
            token = jwt.encode(claims, key, "ES256", {"kid": "mine"})[: -draw.randrange(1, 80)]
        case "dots":
            token = draw.choice((".." * many, "." * 2, "a.b.c", "e30.e30." + "A" * many))
        case _:
            token = jwt.encode(claims, key, "ES256", {"kid": "mine"})
    for _ in range(5):
        with caller.rest() as connection:
            connection.sendall(caller.head("GET", "/v1/windows", authorization=f"Bearer {token}"))
            caller.note(connection)


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _jwt(head: dict[str, Any], claims: dict[str, Any], signature: bytes = b"x" * 64) -> str:
    return ".".join(_part(part) for part in (json.dumps(head).encode(), json.dumps(claims).encode(), signature))


@kind
def specs(caller: Caller) -> None:
    name = caller.draw.choice(("sets", "sixties", "items", "merges", "members"))
    form = "application/json" if name == "members" else "application/yaml"
    caller.ask("POST", "/v1/windows", caller.draw.choice(("owner", "blind")), caller.body(name), content_type=form)


# ---------------------------------------------------------------- gRPC, as frames of HTTP/2


def _headers(method: str, token: str | None, service: str = "sash.v1.Windows") -> bytes:
    return http2.headers(f"/{service}/{method}", **({} if token is None else bearer(token)))


@contextlib.contextmanager
def _http2(caller: Caller, initial_window: int | None = None) -> Iterator[socket.socket]:
    with contextlib.closing(caller.connect(caller.grpc_port, h2=True)) as connection:
        connection.sendall(http2.PREFACE + http2.settings(initial_window))
        yield connection


@kind
def rapid_resets(caller: Caller) -> None:
    head = _headers("Query", caller.token())
    with _http2(caller) as connection:
        for first in range(1, 20_000, 400):
            frames = [http2.call(n, head) + http2.reset(n) for n in range(first, first + 400, 2)]
            connection.sendall(b"".join(frames))
        caller.note(connection, whole=False)


@kind
def open_streams(caller: Caller) -> None:
    head = _headers(caller.draw.choice(("Query", "InsertStream", "Nothing")), caller.token())
    with _http2(caller) as connection:
        connection.sendall(b"".join(http2.call(n, head) for n in range(1, 4000, 2)))
        caller.wait()


@kind
def control_floods(caller: Caller) -> None:
    one = caller.draw.choice(
        (http2.frame(http2.PING, 0, 0, bytes(8)), http2.settings(), http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))
    )
    with _http2(caller) as connection:
        for _ in range(20):
            connection.sendall(one * 1000)


@kind
def endless_headers(caller: Caller) -> None:
    with _http2(caller) as connection:
        connection.sendall(http2.call(1, _headers("Query", "asker"), whole=False))
        for _ in range(200):
            connection.sendall(http2.more(1, b"\x00\x01a\x7e" + b"x" * 126) * 20)


@kind
def packed_headers(caller: Caller) -> None:
    """Headers of two bytes, each of them sent as the number of the one before: a byte, of which gRPC makes 250."""
    with _http2(caller) as connection:
        for n in range(1, caller.draw.randrange(3, 9), 2):
            head = _headers("Query", caller.token()) + b"\x40\x01b\x01y"
            connection.sendall(http2.call(n, head, whole=False))
            for _ in range(caller.draw.randrange(1, 20)):
                connection.sendall(http2.more(n, b"\xbe" * 16_000))
            connection.sendall(http2.more(n, b"\xbe", whole=True))
        caller.note(connection, whole=False)


@kind
def half_messages(caller: Caller) -> None:
    head = _headers("BulkInsert", "writer")
    with _http2(caller) as connection:
        for n in range(1, 40, 2):
            data = b"\x00" + (8_000_000).to_bytes(4, "big") + b"x" * 3000
            connection.sendall(http2.call(n, head) + http2.data(n, data, ends=False))
        caller.wait()


@kind
def unread_answers(caller: Caller) -> None:
    """Of gRPC: questions with large answers, and no room for any of them."""
    data = http2.message(pb.QueryRequest(window="big", all_keys=True))
    with _http2(caller, initial_window=0) as connection:
        for n in range(1, 20, 2):
            connection.sendall(http2.call(n, _headers("Query", "asker")) + http2.data(n, data))
        caller.wait()


@kind
def many_texts(caller: Caller) -> None:
    data = caller.body("texts")
    with _http2(caller) as connection:
        connection.sendall(http2.call(1, _headers("Query", "blind")))
        connection.recv(4096)
        for at in range(0, 65_535, 16_384):
            connection.sendall(http2.data(1, data[at : min(at + 16_384, 65_535)], ends=False))
        caller.note(connection, whole=False)


@kind
def monitor_floods(caller: Caller) -> None:
    """Health without a token, and reflection with one, on many streams at a time."""
    if caller.draw.random() < 0.5:
        head = _headers(caller.draw.choice(("Check", "Watch")), None, "grpc.health.v1.Health")
        data = http2.message(health_pb2.HealthCheckRequest(service=caller.draw.choice(("", "x" * 8000))))
    else:
        head = _headers(
            "ServerReflectionInfo",
            caller.draw.choice(("asker", "asker", None)),
            "grpc.reflection.v1alpha.ServerReflection",
        )
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="sash.v1.Windows")
        data = http2.message(asked) * caller.draw.choice((1, 1, 200))
    with _http2(caller) as connection:
        connection.sendall(http2.ACKNOWLEDGED)
        for first in range(1, 4000, 200):
            one = [http2.call(n, head) + http2.data(n, data) for n in range(first, first + 200, 2)]
            connection.sendall(b"".join(one))
        caller.wait(1.0)


# ---------------------------------------------------------------- gRPC, by a real client


def _channel(caller: Caller) -> grpc.Channel:
    """A connection of its own. All of them come from one address: a client of gRPC cannot choose it."""
    credentials = grpc.ssl_channel_credentials(Path(caller.authority).read_bytes())
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.secure_channel(f"localhost:{caller.grpc_port}", credentials, options)


def _token(name: str) -> tuple[tuple[str, str], ...]:
    return tuple(bearer(name).items())


@kind
def real_slow_readers(caller: Caller) -> None:
    with _channel(caller) as channel:
        stub = pb_grpc.WindowsStub(channel)
        asked = pb.EntriesRequest(window="big", all_keys=True)
        answers = [stub.Entries(asked, metadata=_token("asker"), timeout=PATIENCE_S) for _ in range(10)]
        caller.wait()
        for each in answers:
            try:
                next(each)
                caller.outcomes["OK"] += 1
            except grpc.RpcError as error:
                caller.outcomes[error.code().name] += 1


@kind
def real_cancelled(caller: Caller) -> None:
    keys = pb.Strings(dictionary=["k"], codes=bytes(400_000))
    values = {"value": pb.Column(float64=bytes(800_000))}
    data = pb.BulkInsertRequest(window="evil", time=bytes(800_000), key=keys, fields=values)
    with _channel(caller) as channel:
        stub = pb_grpc.WindowsStub(channel)
        calls = [stub.BulkInsert.future(data, metadata=_token("writer"), timeout=PATIENCE_S) for _ in range(8)]
        calls += [
            stub.Query.future(
                pb.QueryRequest(window="big", all_keys=True), metadata=_token("asker"), timeout=PATIENCE_S
            )
            for _ in range(8)
        ]
        caller.wait(0.5)
        for call in calls:
            call.cancel()


@kind
def real_metadata(caller: Caller) -> None:
    one = caller.draw.choice((("a", "x" * 6000), ("a", "x" * 60_000), ("a-bin", b"x" * 400_000)))
    with _channel(caller) as channel:
        stub = pb_grpc.WindowsStub(channel)
        for _ in range(5):
            try:
                given = (*_token(caller.draw.choice(("asker", "wrong"))), one, one)
                stub.ListWindows(pb.ListWindowsRequest(), metadata=given, timeout=PATIENCE_S)
                caller.outcomes["OK"] += 1
            except grpc.RpcError as error:
                caller.outcomes[error.code().name] += 1


@kind
def real_limits(caller: Caller) -> None:
    """Writes that decide: rows that are older than many, sixteen limits, groups of all keys that no rollup has."""
    draw, rows = caller.draw, caller.draw.choice((1, 40, 4_000, 70_000))
    times = np.random.default_rng(draw.randrange(1000)).integers(0, 10**6, rows)
    keys = pb.Strings(dictionary=[f"{i}" for i in range(min(rows, 3000))])
    keys.codes = (np.arange(rows) % len(keys.dictionary)).astype("<i4").tobytes()
    entries = pb.BulkInsertRequest(time=times.astype("<i8").tobytes(), key=keys)
    entries.fields["value"].float64 = times.astype("<f8").tobytes()
    some = [("10", False), ("1h", False), ("1h", True), (f"{draw.randrange(1, 10**7)}", draw.random() < 0.5)] * 4
    names = ("entries", "sum", "mean", "max")
    limits = [pb.Limit(aggregate=draw.choice(names), lookback=at, value=1e9, all_keys=whole) for at, whole in some]
    with _channel(caller) as channel:
        stub = pb_grpc.WindowsStub(channel)
        for _ in range(3):
            asked = pb.AdmitRequest(window="evil-limited", entries=entries, limits=limits[: draw.choice((1, 16))])
            caller.call(stub.Admit, asked, token="owner")


@kind
def real_descriptors(caller: Caller) -> None:
    """What Envoy asks: many descriptors, long ones, ones of no rule, and limits of their own."""
    draw = caller.draw
    request = ratelimit_pb2.RateLimitRequest(
        domain=draw.choice(("evil", "evil", "none")), hits_addend=draw.choice((1, 1, 2**31))
    )
    for _ in range(draw.choice((1, 90, 90, 200))):
        entry = {
            "key": draw.choice(("user", "user", "x" * 1000)),
            "value": f"{draw.random()}" * draw.choice((1, 1, 200)),
        }
        request.descriptors.add(entries=[entry] * draw.choice((1, 1, 30)))
    with _channel(caller) as channel:
        ask = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        for _ in range(5):
            caller.call(ask, request.SerializeToString(), token=draw.choice(("owner", "owner", "blind")))


BOUNDED = [name for name in KINDS if name not in UNBOUNDED]

# ---------------------------------------------------------------- a process of them


def _attack(
    seed: int,
    first: int,
    count: int,
    seconds: float,
    ports: tuple[int, int],
    authority: str,
    kinds: Sequence[str],
    told: Any,
    begun: Any,
) -> None:
    """Run so many callers until some time, and tell what they did: tries, and outcomes, by kind."""
    os.nice(5)
    found: dict[str, Counter[str]] = {name: Counter() for name in kinds}

    begun.wait()
    until = time.time() + seconds

    def live(number: int) -> None:
        draw = random.Random(f"{seed}/{number}")
        address = f"127.0.{1 + number // 200}.{1 + number % 200}"
        while time.time() < until:
            name = draw.choice(kinds)
            caller = Caller(*ports, authority, address, draw, Path(authority).parent, found[name])
            found[name]["tries"] += 1
            try:
                KINDS[name](caller)
            except (OSError, ValueError) as error:
                found[name][type(error).__name__] += 1
                time.sleep(0.05)

    threads = [threading.Thread(target=live, args=(first + i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(until - time.time(), 0) + 30)
    told.put(found)


# ---------------------------------------------------------------- the honest caller, and what is seen


@dataclass
class Found:
    """What the honest caller saw, and what was seen of the service."""

    statuses: Counter[str] = field(default_factory=Counter)
    waited_s: list[float] = field(default_factory=list)
    """Of each answered call: the processor time of the event loop from when it was sent until it was answered."""
    applied: int = 0
    unknown: int = 0
    """Inserts whose answer never came."""
    peak_mib: float = 0.0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)

    def quantile_ms(self, q: float) -> float:
        return float(np.quantile(self.waited_s, q) * 1e3) if self.waited_s else float("nan")

    def line(self) -> str:
        tail = ", ".join(f"{name} {count}" for name, count in sorted(self.statuses.items()))
        return (
            f"peak {self.peak_mib:.0f} MiB; honest: {len(self.waited_s)} answers ({tail}), loop CPU p50 "
            f"{self.quantile_ms(0.5):.1f}, p99 {self.quantile_ms(0.99):.1f}, most {self.quantile_ms(1.0):.1f} ms"
        )


class Service:
    """A service that is attacked, and how it is read."""

    def __init__(self, running: Running, authority: str) -> None:
        assert running.process is not None
        self.process, self.pid, self.authority = running.process, running.process.pid, authority
        self.folder = Path(authority).parent
        self.ports = running.rest_port, running.grpc_port
        self._context = ssl.create_default_context(cafile=authority)

    def loop_s(self) -> float:
        """The processor time of the main thread."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def mib(self) -> float:
        """Its memory, without pages of files."""
        _, resident, shared, *_ = map(int, Path(f"/proc/{self.pid}/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE") / MIB

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.ports[0], timeout=60, context=self._context)

    def call(self, token: str, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        connection = self.connection()
        try:
            return _called(connection, token, method, path, document)
        finally:
            connection.close()


def _called(
    connection: http.client.HTTPConnection, token: str, method: str, path: str, document: Any
) -> tuple[int, Any]:
    body = None if document is None else json.dumps(document)
    connection.request(method, path, body, {**bearer(token), "content-type": "application/json"})
    answer = connection.getresponse()
    data = answer.read()
    return answer.status, json.loads(data) if data.startswith(b"{") else data


def _be_honest(service: Service, found: Found, until: float) -> None:
    """Make small calls, one after the other, each on a connection that was used before where there is one."""
    connection = service.connection()
    with contextlib.suppress(PermissionError):  # else it waits for a processor while the loop works for others
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)
    for number in itertools.count():
        if time.time() >= until:
            connection.close()
            return
        insert = number % 2 == 0
        began_s = service.loop_s()
        try:
            if insert:
                entry = {"time": number, "key": f"k{number % 50}", "value": 1.0}
                status, _ = _called(connection, "honest", "POST", "/v1/windows/calm/insert", entry)
            else:
                path = f"/v1/windows/calm/query?key=k{number % 50}"
                status, _ = _called(connection, "honest", "GET", path, None)
        except (OSError, http.client.HTTPException) as error:
            found.statuses[type(error).__name__] += 1
            found.unknown += insert
            connection.close()
            connection = service.connection()
            time.sleep(0.05)
            continue
        found.waited_s.append(service.loop_s() - began_s)
        found.statuses[str(status)] += 1
        found.applied += insert and status == 200
        time.sleep(0.01)


@contextlib.contextmanager
def under_attack(folder: Path) -> Iterator[Service]:
    """A service with tokens, TLS on all ports, little memory, and windows to ask."""
    authority = Authority("hostile")
    certificate, key = authority.give(folder)
    trusted = folder / "authority.pem"
    trusted.write_bytes(authority.pem)
    identity = ec.generate_private_key(ec.SECP256R1())
    (folder / "jwt.pem").write_bytes(identity.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = {**ECAlgorithm.to_jwk(identity.public_key(), as_dict=True), "kid": "mine"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    (folder / "limits.yaml").write_text(_LIMITS)
    environment = {
        "SASH_RATE_LIMITS": str(folder / "limits.yaml"),
        "SASH_JWT_JWKS": str(folder / "jwks.json"),
        "SASH_JWT_ISSUER": "id",
        "SASH_JWT_AUDIENCE": "sash",
        "SASH_TOKENS": str(write_tokens(folder / "tokens.yaml", TOKENS)),
        "SASH_MEMORY_BYTES": f"{LIMIT_MIB}MiB",
        "SASH_TLS_CERT": str(certificate),
        "SASH_TLS_KEY": str(key),
        "SASH_LOG_LEVEL": "error",
    }
    with service_process(**environment) as running:
        service = Service(running, str(trusted))
        spec = {"keyed": True, "time_unit": "ms", "durability": "memory", "aggregates": _AGGREGATES}
        for name, more in (
            ("calm", {}),
            ("big", {}),
            ("evil", {"slide": {"max_count": 100}, "order": {"equal_times": "last"}}),
            ("evil-limited", {"slide": {"max_age": "2d"}}),
        ):
            status, answer = service.call("root", "POST", "/v1/windows", {"name": name, **spec, **more})
            assert status == 201, answer
        names = [f"key-{i}" for i in range(BIG_KEYS)]
        columns = {"time": list(range(BIG_KEYS)), "key": names, "value": [1.0] * BIG_KEYS}
        status, answer = service.call("root", "POST", "/v1/windows/big/bulk-insert", columns)
        assert status == 200, answer
        yield service


def attacked(service: Service, seed: int, callers: int, seconds: float, kinds: Sequence[str] = ()) -> Found:
    """Attack a service beside an honest caller; return what was found."""
    found = Found()
    for name, made in BODIES.items():
        if not (path := service.folder / name).exists():
            path.write_bytes(made())
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    begun = spawn.Barrier(-(-callers // CALLERS_A_PROCESS) + 1)
    processes = []
    for first in range(0, callers, CALLERS_A_PROCESS):
        count = min(CALLERS_A_PROCESS, callers - first)
        arguments = (seed, first, count, seconds, service.ports, service.authority, list(kinds or BOUNDED), told, begun)
        processes.append(spawn.Process(target=_attack, args=arguments, daemon=True))
        processes[-1].start()
    begun.wait(120)
    honest = threading.Thread(target=_be_honest, args=(service, found, time.time() + seconds))
    honest.start()
    while honest.is_alive() and service.process.poll() is None:
        found.peak_mib = max(found.peak_mib, service.mib())
        honest.join(0.05)
    honest.join()
    for _ in processes:
        for name, outcomes in told.get(timeout=120).items():
            found.kinds.setdefault(name, Counter()).update(outcomes)
    for process in processes:
        process.join(60)
    return found


def is_alive(service: Service) -> bool:
    """Whether the service still does what it is there for."""
    if service.process.poll() is not None:
        return False
    last = {"time": 10**9, "key": "end", "value": 1.0}
    try:
        status, _ = service.call("honest", "POST", "/v1/windows/calm/insert", last)
    except OSError:
        return False
    return status == 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Attack a service beside an honest caller.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(BOUNDED), help="only these")
    parser.add_argument("--each", action="store_true", help="one kind after the other")
    given = parser.parse_args(arguments)
    kinds = re.split(",", given.kinds)
    wrong = 0
    for some in [[name] for name in kinds] if given.each else [kinds]:
        with tempfile.TemporaryDirectory() as folder, under_attack(Path(folder)) as service:
            before = service.mib()
            found = attacked(service, given.seed, given.callers, given.minutes * 60, some)
            alive = is_alive(service)
            refused = {name for name in found.statuses if name != "200"}
            bad = not alive or found.peak_mib > LIMIT_MIB + BESIDE_MIB or found.quantile_ms(0.99) > 25 or refused
            wrong += bool(bad)
            print(
                f"{'WRONG' if bad else 'fine '} {some[0] if given.each else 'all'}: from {before:.0f}, {found.line()}"
                f"{'' if alive else '; DEAD'}",
                flush=True,
            )
            for name, outcomes in sorted(found.kinds.items()):
                print(f"      {name}: {dict(outcomes)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
