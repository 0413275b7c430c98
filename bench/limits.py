"""Decisions about requests: 100 a minute for each user, exact against a log of what was admitted.

    request of a user ──▶ Admit over Connect                       count of a minute <= 100
                      ──▶ ShouldRateLimit over gRPC                as Envoy asks
                      ──▶ Valkey: a sorted set in Lua              the sliding log that people write by hand
                      ──▶ Valkey: a token bucket in Lua            100 tokens, refilled over a minute

All but Envoy are told the time of a request, which goes by faster than the clock, so that a run has many minutes. Where
Envoy asks, the clock of the service counts. Whatever was admitted is in a log, and the log says how many requests of a
user any minute had. The rate of one core is by the processor time of the server. The latency is at half of the rate of
callers on the same two cores. Windows are in memory, and so is Valkey.

Run ``python -m bench.limits`` (two minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop

from bench.fraud import systems
from sash_client import Client
from sash_proto.envoy import ratelimit_pb2 as envoy
from sash_proto.envoy.ratelimit_pb2_grpc import RateLimitServiceStub
from sash_proto.v1 import windows_pb2 as pb

BOUND, MINUTE_MS = 100, 60_000
USERS, ZIPF = 10_000, 1.1
START_MS = 1_760_000_000_000
STEP_MS = 10
"""Between two requests, on the clock of the requests: the busiest user is refused most of its requests."""

Decide = Callable[[int, int], Awaitable[bool]]

_LOG = """
local now, since = tonumber(ARGV[1]), tonumber(ARGV[1]) - 60000
redis.call('zremrangebyscore', KEYS[1], '-inf', since)
if redis.call('zcard', KEYS[1]) >= 100 then return 0 end
redis.call('zadd', KEYS[1], now, ARGV[2])
redis.call('pexpire', KEYS[1], 60000)
return 1
"""

_BUCKET = """
local now = tonumber(ARGV[1])
local had = redis.call('hmget', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(had[1] or 100), tonumber(had[2] or now)
tokens = math.min(100, tokens + (now - at) * 100 / 60000)
local admitted = tokens >= 1
if admitted then tokens = tokens - 1 end
redis.call('hset', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('pexpire', KEYS[1], 60000)
return admitted and 1 or 0
"""


class _Sash(systems._Connect):
    """A service in memory, on one process, with a window for limits."""

    processes = 1

    async def start(self, data: Any) -> None:
        limits = self.where / "limits.yaml"
        rule = f"{{key: user, rate_limit: {{unit: minute, requests_per_unit: {BOUND}}}}}"
        limits.write_text(f"{{domain: d, window: w, descriptors: [{rule}]}}")
        os.environ["SASH_RATE_LIMITS"] = str(limits)
        await super().start(data)
        with Client(f"127.0.0.1:{self.grpc_port}") as client:
            spec = {"name": "w", "time_unit": "ms", "keyed": True, "aggregates": {"hits": {"function": "sum"}}}
            client.create_window({**spec, "slide": {"max_age": "2m"}, "durability": "memory"})


class Admitting(_Sash):
    name = "Sash, Admit over Connect"
    head = systems._Connect.head.replace(b"/Insert", b"/Admit")

    async def deciders(self, count: int) -> list[Decide]:
        limits = [pb.Limit(aggregate="hits", lookback="1m", value=BOUND)]

        def decider(connection: Any) -> Decide:
            async def decide(user: int, now: int) -> bool:
                message = pb.AdmitRequest(window="w", key=f"user-{user}", time=now, value=1, limits=limits)
                body = await connection.ask(self.head + b"content-length: %d\r\n\r\n", message.SerializeToString())
                return bool(pb.AdmitResponse.FromString(body).admitted[0])

            return decide

        return [decider(connection) for connection in await self._connections(count)]


class Asking(_Sash):
    name = "Sash, ShouldRateLimit over gRPC"

    async def deciders(self, count: int) -> list[Decide]:
        stub = RateLimitServiceStub(grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}"))

        async def decide(user: int, now: int) -> bool:
            entries = [envoy.RateLimitDescriptor.Entry(key="user", value=f"user-{user}")]
            descriptors = [envoy.RateLimitDescriptor(entries=entries)]
            response = await stub.ShouldRateLimit(envoy.RateLimitRequest(domain="d", descriptors=descriptors))
            return bool(response.overall_code == envoy.RateLimitResponse.OK)

        return [decide] * count


class _Lua(systems._Valkey):
    script = ""

    async def deciders(self, count: int) -> list[Decide]:
        sha = await self._redis.script_load(self.script)
        number = iter(range(10**9))

        def decider(client: Any) -> Decide:
            async def decide(user: int, now: int) -> bool:
                return bool(await client.evalsha(sha, 1, f"user-{user}", now, next(number)))

            return decide

        return [decider(client) for client in self._clients(count)]


class SortedSet(_Lua):
    name, script = "Valkey, sorted set in Lua", _LOG


class TokenBucket(_Lua):
    name, script = "Valkey, token bucket in Lua", _BUCKET


KINDS: Sequence[Any] = (Admitting, Asking, SortedSet, TokenBucket)


async def measured(kind: Any, requests: int, callers: int, draw: np.random.Generator) -> str:
    """The row of a system."""
    weights = np.arange(1, USERS + 1) ** -ZIPF
    users = draw.choice(USERS, 3 * requests, p=weights / weights.sum())
    times = START_MS + STEP_MS * np.arange(3 * requests)
    admitted = np.zeros(3 * requests, bool)
    when = np.zeros(3 * requests)
    with tempfile.TemporaryDirectory() as where:
        system = kind(Path(where))
        await system.start(None)
        try:
            deciders = await system.deciders(callers)

            async def run(decide: Decide, mine: Sequence[int], rate: float, late: list[float]) -> None:
                nonlocal longest
                for i in mine:
                    due = start + (i - first) / rate if rate else 0.0
                    if rate and (wait := due - time.perf_counter()) > 0:
                        await asyncio.sleep(wait)
                    asked = time.perf_counter()
                    admitted[i] = await decide(int(users[i]), int(times[i]))
                    when[i] = time.perf_counter()
                    late.append(when[i] - due)
                    longest = max(longest, when[i] - asked)

            rate, found, longest = 0.0, list[float](), 0.0
            for turn in range(3):  # to warm up, as fast as it goes, at half of that
                first, late = turn * requests, list[float]()
                shares = [
                    [i for i in range(first, first + requests) if users[i] % callers == k] for k in range(callers)
                ]
                cpu, start = system.cpu_s(), time.perf_counter()
                await asyncio.gather(
                    *(
                        run(decide, mine, rate if turn == 2 else 0, late)
                        for decide, mine in zip(deciders, shares, strict=True)
                    )
                )
                took, cpu = time.perf_counter() - start, system.cpu_s() - cpu
                if turn == 1:
                    rate, found = requests / took / 2, [requests / took, cpu / requests * 1e6]
            p50, p99, p999 = np.percentile(np.array(late) * 1e3, [50, 99, 99.9])
        finally:
            await system.stop()
    # Nobody tells which time the service took for Envoy's; it is between the question and the answer.
    clock, lookback = (when * 1e3, MINUTE_MS - longest * 1e3) if kind is Asking else (times, MINUTE_MS)
    most, refused = judged(users, clock, admitted, lookback)
    digest = hashlib.sha256(admitted.tobytes()).hexdigest()[:8]
    cells = [f"{found[0]:,.0f}", f"{found[1]:,.0f}", f"{1e6 / found[1]:,.0f}", f"{p50:.1f}, {p99:.1f}, {p999:.1f}"]
    told = "-" if kind is Asking else f"{refused:,}"
    return f"| {system.name} | {' | '.join(cells)} | {most} | {told} | {admitted.sum():,} | {digest} |"


def judged(users: Any, times: Any, admitted: Any, lookback: float) -> tuple[int, int]:
    """By the log: the most that any trailing lookback of a user has, and how many were refused that had room."""
    most = wrong = 0
    for user in np.unique(users):
        rows = np.flatnonzero(users == user)
        log = times[rows[admitted[rows]]]
        if len(log):
            before = np.searchsorted(log, log - lookback, "right")
            most = max(most, int((np.arange(1, len(log) + 1) - before).max()))
        refused = times[rows[~admitted[rows]]]
        inside = np.searchsorted(log, refused, "right") - np.searchsorted(log, refused - lookback, "right")
        wrong += int((inside < BOUND).sum())
    return most, wrong


HEAD = (
    "| | a second, both cores | processor time, µs | a second of one core | at half the rate: p50, p99, p99.9 ms "
    "| most in a minute | refused with room | admitted | digest |\n" + "| --- " * 9 + "|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few requests; figures mean nothing")
    parser.add_argument("--requests", type=int, help="for each of three passes: to warm up, flat out, at half the rate")
    given = parser.parse_args()
    requests, callers = (400, 4) if given.smoke else (given.requests or 20_000, 32)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"{3 * requests:,} requests, {USERS:,} users, {callers} callers, load {os.getloadavg()[0]:.1f}\n\n{HEAD}")
    for kind in KINDS:
        try:
            print(uvloop.run(measured(kind, requests, callers, np.random.default_rng(5))), flush=True)
        except systems.NotHere as error:
            print(f"| {kind.name} | not run: {error} |")


if __name__ == "__main__":
    main()
