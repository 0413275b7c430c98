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

import os
import tempfile
from collections.abc import Sequence
from itertools import count as count_up
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop

from bench.fraud import systems
from bench.fraud.calls import make
from bench.harness import CORES, Http, arguments, digest, head, row
from sash_client import Client
from sash_proto.envoy import ratelimit_pb2 as envoy
from sash_proto.envoy.ratelimit_pb2_grpc import RateLimitServiceStub
from sash_proto.v1 import windows_pb2 as pb

BOUND, MINUTE_MS = 100, 60_000
USERS, ZIPF = 10_000, 1.1
START_MS = 1_760_000_000_000
STEP_MS = 10
"""Between two requests, on the clock of the requests: the busiest user is refused most of its requests."""

LIMITS = [pb.Limit(aggregate="hits", lookback="1m", value=BOUND)]

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


class _Sash(systems._Sash):
    """A service in memory, on one process, with a window for limits."""

    processes = 1

    async def start(self, data: Any) -> None:
        limits = self.where / "limits.yaml"
        rule = f"{{key: user, rate_limit: {{unit: minute, requests_per_unit: {BOUND}}}}}"
        limits.write_text(f"{{domain: d, window: w, descriptors: [{rule}]}}")
        os.environ["SASH_RATE_LIMITS"] = str(limits)
        await super().start(data)
        with Client(self.running.grpc_target) as client:
            spec = {"name": "w", "time_unit": "ms", "keyed": True, "aggregates": {"hits": {"function": "sum"}}}
            client.create_window({**spec, "slide": {"max_age": "2m"}, "durability": "memory"})


class Admitting(_Sash):
    name = "Sash, Admit over Connect"

    async def take(self, connection: Http, each: tuple[int, int]) -> bool:
        message = pb.AdmitRequest(window="w", key=f"user-{each[0]}", time=each[1], value=1, limits=LIMITS)
        body = await connection.asked("/sash.v1.Windows/Admit", message.SerializeToString(), "application/proto")
        return bool(pb.AdmitResponse.FromString(body).admitted[0])


class Asking(_Sash):
    name = "Sash, ShouldRateLimit over gRPC"

    async def connections(self, count: int) -> list[Any]:
        return [RateLimitServiceStub(grpc.aio.insecure_channel(self.running.grpc_target))] * count

    async def take(self, connection: Any, each: tuple[int, int]) -> bool:
        entries = [envoy.RateLimitDescriptor.Entry(key="user", value=f"user-{each[0]}")]
        descriptors = [envoy.RateLimitDescriptor(entries=entries)]
        response = await connection.ShouldRateLimit(envoy.RateLimitRequest(domain="d", descriptors=descriptors))
        return bool(response.overall_code == envoy.RateLimitResponse.OK)


class _Lua(systems._Valkey):
    script = ""

    async def connections(self, count: int) -> list[Any]:
        self._sha, self._number = await self._redis.script_load(self.script), count_up()
        return await super().connections(count)

    async def take(self, connection: Any, each: tuple[int, int]) -> bool:
        user, now = each
        return bool(await connection.evalsha(self._sha, 1, f"user-{user}", now, next(self._number)))


class SortedSet(_Lua):
    name, script = "Valkey, sorted set in Lua", _LOG


class TokenBucket(_Lua):
    name, script = "Valkey, token bucket in Lua", _BUCKET


KINDS: Sequence[Any] = (Admitting, Asking, SortedSet, TokenBucket)


async def measured(kind: Any, requests: int, callers: int, draw: np.random.Generator) -> list[str]:
    """The row of a system."""
    weights = np.arange(1, USERS + 1) ** -ZIPF
    users = draw.choice(USERS, 3 * requests, p=weights / weights.sum())
    times = START_MS + STEP_MS * np.arange(3 * requests)
    work, turns, cpu_s = list(zip(users.tolist(), times.tolist(), strict=True)), [], []
    with tempfile.TemporaryDirectory() as where:
        system = kind(Path(where))
        await system.start(None)
        try:
            deciders = await system.callers(callers)
            for turn in range(3):  # to warm up, as fast as it goes, at half of that
                cpu_s.append(system.cpu_s())
                rate = turns[1].per_s / 2 if turn == 2 else 0.0
                turns.append(await make(deciders, work[turn * requests : (turn + 1) * requests], rate))
        finally:
            await system.stop()
    p50, p99, p999 = np.percentile(np.array(turns[2].late_s) * 1e3, [50, 99, 99.9])
    admitted = np.concatenate([turn.answers for turn in turns]).astype(bool)
    clock, lookback, per_us = times, float(MINUTE_MS), (cpu_s[2] - cpu_s[1]) / requests * 1e6
    if kind is Asking:  # Nobody tells which time the service took; it is between the question and the answer.
        clock = 1e3 * np.concatenate([turn.ended_s for turn in turns])
        lookback -= 1e3 * max(turn.longest_s for turn in turns)
    most, refused = judged(users, clock, admitted, lookback)
    return [
        system.name,
        f"{turns[1].per_s:,.0f}",
        f"{per_us:,.0f}",
        f"{1e6 / per_us:,.0f}",
        f"{p50:.1f}, {p99:.1f}, {p999:.1f}",
        f"{most}",
        "-" if kind is Asking else f"{refused:,}",
        f"{admitted.sum():,}",
        digest(admitted.tobytes())[:8],
    ]


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


def main() -> None:
    given = arguments(
        __doc__,
        {"--requests": {"type": int, "help": "for each of three passes: to warm up, flat out, at half the rate"}},
    )
    requests, callers = (400, 4) if given.smoke else (given.requests or 20_000, 32)
    os.sched_setaffinity(0, CORES[:2])
    print(f"{3 * requests:,} requests, {USERS:,} users, {callers} callers, load {os.getloadavg()[0]:.1f}\n")
    rates = ("a second, both cores", "processor time, µs", "a second of one core")
    titles = ("at half the rate: p50, p99, p99.9 ms", "most in a minute", "refused with room", "admitted", "digest")
    head("", *rates, *titles)
    for kind in KINDS:
        try:
            row(*uvloop.run(measured(kind, requests, callers, np.random.default_rng(5))))
        except systems.NotHere as error:
            row(kind.name, f"not run: {error}")


if __name__ == "__main__":
    main()
