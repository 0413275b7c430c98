"""The calls that press a service in `bench.overload`: each at its limit, again and again.

Each pressure is a coroutine that never ends by itself. It prints a line when it begins, and one for each call that
ends: a status of HTTP, or a code of gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc

PROBE, PRESS = "127.0.0.2", "127.0.0.1"
JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


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
    many: int
    names: int
    fields: int
    strings: int
    wide: int
    values: int
    overload_s: float


SMOKE = Size(
    seconds=0.3, streams=10, watchers=4, bodies=50, keys=200, watched=50, buckets=100, clients=40,
    many=500, names=1000, fields=1000, strings=1000, wide=100, values=2000, overload_s=0.5,
)  # fmt: skip
REAL = Size(
    seconds=6, streams=500, watchers=40, bodies=1000, keys=100_000, watched=2000, buckets=10_000, clients=400,
    many=1_000_000, names=3_000_000, fields=300_000, strings=10_000_000, wide=100_000, values=2_000_000, overload_s=60,
)  # fmt: skip


_NUMBERS = ("count", "sum", "mean", "min", "max", "stddev")


def fill(grpc_port: int, size: Size) -> None:
    """Make the windows: three of many keys, one with eight quantiles of a value a tick, and two of few entries."""
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)
        several = {f"p{i}": _quantile(i / 10) for i in range(1, 9)}
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="quantiles", aggregates=several)))
        stub.BulkInsert(bulk("quantiles", np.arange(20 * size.buckets)))
        stub.CreateWindow(pb.CreateWindowRequest(spec=keyed_spec("small", 6)))
        stub.BulkInsert(keyed_bulk("small", range(10), 1))
        sliding = pb.WindowSpec(name="sliding", slide=pb.SlidePolicy(max_count=10_000), aggregates=several)
        stub.CreateWindow(pb.CreateWindowRequest(spec=sliding))
        for window, keys, aggregates in (("keys", size.keys, 6), ("many", size.many, 1), ("wide", size.wide, 64)):
            stub.CreateWindow(pb.CreateWindowRequest(spec=keyed_spec(window, aggregates)))
            for at in range(0, keys, 10_000):
                stub.BulkInsert(keyed_bulk(window, range(at, min(at + 10_000, keys)), 1))


def _quantile(q: float) -> pb.AggregateSpec:
    return pb.AggregateSpec(function="quantile", parameters={"q": pb.Value(float64=q)})


def keyed_spec(window: str, aggregates: int) -> pb.WindowSpec:
    """A window of keys with so many aggregates."""
    named = {f"a{i}": pb.AggregateSpec(function=_NUMBERS[i % len(_NUMBERS)]) for i in range(aggregates)}
    return pb.WindowSpec(name=window, keyed=True, fields={"value": "float64"}, aggregates=named)


def bulk(window: str, times: Any) -> pb.BulkInsertRequest:
    """Entries of one value at these times."""
    made = pb.BulkInsertRequest(window=window, time=np.asarray(times, "<i8").tobytes())
    made.fields["value"].float64 = np.asarray(times, "<f8").tobytes()
    return made


def keyed_bulk(window: str, numbers: range, time_: int) -> pb.BulkInsertRequest:
    """An entry for each of these keys."""
    made = bulk(window, np.full(len(numbers), time_))
    made.key.dictionary.extend(f"key-{i}" for i in numbers)
    made.key.codes = np.arange(len(numbers), dtype="<u4").tobytes()
    return made


def texts(message: Any, field: str, count: int) -> bytes:
    """A message's repeated field with so many names, as protobuf encodes it."""
    tag = bytes([message.DESCRIPTOR.fields_by_name[field].number << 3 | 2, 9])
    return b"".join(tag + b"n%08d" % i if count <= 3_000_000 else tag[:1] + b"\x01n" for i in range(count))


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

        began()
        await asyncio.gather(*(stream() for _ in range(size.streams)))


async def watchers(grpc_port: int, rest_port: int, size: Size) -> None:
    """Watchers of many keys each, every 50 ms, no two of which ask the same."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)

        async def watch(at: int) -> None:
            keys = [f"key-{(at + i) % size.keys}" for i in range(size.watched)]
            async for _ in stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="keys", keys=keys), interval_ms=50)):
                pass

        began()
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
    began()
    await asyncio.sleep(3600)


async def long_series(grpc_port: int, rest_port: int, size: Size) -> None:
    """Series of as many buckets as may be, with eight quantiles each."""
    await repeat(rest_port, f"/v1/windows/quantiles/series?start=0&end={20 * size.buckets}&step=20")


async def all_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Questions about all keys."""
    await repeat(rest_port, "/v1/windows/keys/query?all_keys=true")


async def large_bulks(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of keys that are there, one after the other."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)
        time_ = 2
        began()
        while True:
            await ended(stub.BulkInsert(keyed_bulk("keys", range(size.keys), time_)))
            time_ += 1


async def new_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of a million new keys, into a window that is deleted each time."""
    message = keyed_bulk("new", range(size.many), 1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = pb_grpc.WindowsStub(channel)
        began()
        while True:
            await stub.CreateWindow(pb.CreateWindowRequest(spec=keyed_spec("new", 1)))
            await ended(stub.BulkInsert(message))
            await stub.DeleteWindow(pb.DeleteWindowRequest(name="new"))


async def refused_names(grpc_port: int, rest_port: int, size: Size) -> None:
    """Questions that name millions of keys of a window without keys."""
    asked = pb.QueryRequest(window="quantiles").SerializeToString() + texts(pb.QueryRequest, "keys", size.names)
    await send(grpc_port, "Query", asked)


async def refused_fields(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks with many fields that the window does not have."""
    made = bulk("quantiles", [1])
    for i in range(size.fields):
        made.fields[f"field-{i}"].float64 = bytes(8)
    await send(grpc_port, "BulkInsert", made.SerializeToString())


async def refused_strings(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks with a dictionary of millions of strings, and a code beyond them."""
    made = bulk("keys", [1])
    made.key.codes = np.array([2**32 - 1], "<u4").tobytes()
    strings = pb.Strings.FromString(texts(pb.Strings, "dictionary", size.strings))
    made.key.MergeFrom(strings)
    await send(grpc_port, "BulkInsert", made.SerializeToString())


async def wide_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Questions about all keys of a window with 64 aggregates."""
    await repeat(rest_port, "/v1/windows/wide/query?all_keys=true")


async def million_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Questions about all of a million keys."""
    await repeat(rest_port, "/v1/windows/many/query?all_keys=true")


async def json_lists(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of JSON whose times are empty lists."""
    await post(rest_port, "/v1/windows/quantiles/bulk-insert", JSON, b'{"time":[' + b"[]," * size.values + b"[]]}")


async def json_brackets(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of JSON that are nothing but brackets."""
    await post(rest_port, "/v1/windows/quantiles/bulk-insert", JSON, b"[" * (10 * size.values))


async def json_texts(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of JSON with numbers as texts, the last one wrong."""
    values = b'"NaN",' * size.values
    body = b'{"time":[' + b"1," * size.values + b'1],"value":[' + values + b"null]}"
    await post(rest_port, "/v1/windows/quantiles/bulk-insert", JSON, body)


async def connect_fields(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of Connect, in JSON, with many fields."""
    fields = b",".join(b'"f%d":{"float64":"AAAAAAAAAAA="}' % i for i in range(size.fields))
    body = b'{"window":"quantiles","fields":{' + fields + b"}}"
    await post(rest_port, "/sash.v1.Windows/BulkInsert", JSON, body)


async def arrow_keys(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of Arrow with many keys, for a window without keys."""
    n = size.values // 2
    columns = {"time": np.arange(n), "key": [f"key {i}" for i in range(n)], "value": np.ones(n)}
    await post(rest_port, "/v1/windows/quantiles/bulk-insert", ARROW, arrow(pa.table(columns), n))


async def arrow_batches(grpc_port: int, rest_port: int, size: Size) -> None:
    """Bulks of Arrow in record batches of one row, without a time."""
    table = pa.table({"value": np.ones(size.values // 40)})
    await post(rest_port, "/v1/windows/quantiles/bulk-insert", ARROW, arrow(table, 1))


def arrow(table: Any, rows: int) -> bytes:
    """A table as a stream of batches of so many rows."""
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


PRESSURES: dict[str, Press] = {
    "insert streams": insert_streams,
    "heavy watchers": watchers,
    "slow bodies": slow_bodies,
    "long series": long_series,
    "all keys": all_keys,
    "64 aggregates": wide_keys,
    "a million keys": million_keys,
    "large bulks": large_bulks,
    "new keys": new_keys,
    "refused names": refused_names,
    "refused fields": refused_fields,
    "refused strings": refused_strings,
    "JSON of lists": json_lists,
    "JSON of brackets": json_brackets,
    "JSON of texts": json_texts,
    "Connect fields": connect_fields,
    "Arrow keys": arrow_keys,
    "Arrow batches": arrow_batches,
}


async def post(port: int, path: str, kind: str, body: bytes) -> None:
    """Send a body, again and again."""
    began()
    while True:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            async with connection(PRESS, port) as request:
                while True:
                    print(await request(path, body, kind), flush=True)


async def send(grpc_port: int, method: str, message: bytes) -> None:
    """Send a message that is serialized already, again and again."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        call = channel.unary_unary(f"/sash.v1.Windows/{method}")
        began()
        while True:
            await ended(call(message))


async def ended(call: Any) -> None:
    """Print how a call of gRPC ends."""
    print((await call.code()).name, flush=True)


def began() -> None:
    """Say that the calls begin now."""
    print("pressing", flush=True)


async def repeat(port: int, path: str) -> None:
    """Ask four times at once, again and again."""

    async def ask() -> None:
        async with connection(PRESS, port) as request:
            while True:
                print(await request(path), flush=True)

    began()
    await asyncio.gather(*(ask() for _ in range(4)))


@contextlib.asynccontextmanager
async def connection(address: str, port: int) -> AsyncIterator[Callable[..., Coroutine[Any, Any, int]]]:
    """A connection of HTTP: a function that sends a request on it, reads the answer and returns the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=2**20)

    async def request(path: str, body: bytes = b"", kind: str = JSON) -> int:
        method, typed = ("POST", f"content-type: {kind}\r\n") if body else ("GET", "")
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{typed}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        if length is not None:
            await reader.readexactly(int(length[1]))
        else:  # chunks
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        return int(answer.split(b" ", 2)[1])

    try:
        yield request
    finally:
        writer.close()
