"""What durable windows cost: memory, inserts, cold reads, evictions, commits and recovery, on each tier.

    Storage ─▶ LMDB in a scratch directory, or a Redis of its own on loopback (AOF, a sync every second)

    fill       2^25 entries in order, bulks of 16,384: resident memory afterwards beyond that of the empty service
    in order   bulks of 1,024: processor time of the event loop's thread per entry, beside a window in memory, in turns
    cold       range queries over random ranges of that window, cache emptied before each: round trips and time
    evict      bulk evict of 2^23 of them
    durable    acknowledged bulk inserts of 1,024 a second, beside the tier's bare commits of as many bytes, in turns
    recovery   10 million entries, stopped in the middle of a journal of the size at which windows are checkpointed

Times of the loop's thread leave out what the committer's thread does meanwhile, on the other core: `both` has all.
What a disk does for a sync is the machine's; compare ratios.

Run ``python -m bench.storage`` (some minutes; Linux), or with ``--smoke`` (seconds, figures meaningless).
``--entries 1e9`` runs only `fill`, as long as disk and time allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop

from bench.harness import MIB, arguments, memory_of, timed
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkInsert
from sash.durability.storage import Storage
from sash.durability.tier_storage import TierStorage
from sash.runtime.clock import SystemClock
from sash.runtime.memory import give_back
from sash.tiers import open_tier
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from tests.support.redis_servers import BINARIES, redis_server

CACHE = 16 * MIB
SPEC = {
    "name": "w",
    "time_unit": "none",
    "aggregates": {"sum": {"function": "sum"}, "max": {"function": "max"}},
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    fill: int
    evict: int
    in_order: int
    rounds: int
    cold: int
    durable: int
    recovery: int


SMOKE = Size(fill=2**17, evict=2**15, in_order=20, rounds=2, cold=20, durable=10, recovery=50_000)
REAL = Size(fill=2**25, evict=2**23, in_order=1000, rounds=5, cold=1000, durable=500, recovery=10_000_000)


def batch(start: int, entries: int) -> Batch:
    """Entries in order of time, one a tick."""
    times = np.arange(start, start + entries)
    return Batch(times, {"value": (times % 1000).astype(np.float64)})


def resident() -> tuple[float, float]:
    """Resident memory in MiB: of its own, and pages of files (LMDB's map, which the kernel takes back as it likes)."""
    anon, file = memory_of("self", "RssAnon", "RssFile")
    return anon / MIB, file / MIB


@contextlib.contextmanager
def place(kind: str) -> Iterator[str]:
    """The address of an empty tier."""
    if kind == "lmdb":
        with tempfile.TemporaryDirectory(prefix="sash-bench-") as directory:
            yield directory
    else:
        with redis_server(next(iter(BINARIES.values()))) as server:
            yield server.url


@contextlib.asynccontextmanager
async def opened(address: str | None, **options: Any) -> Any:
    """A storage on a tier, or in memory."""
    clock = SystemClock()
    tier = None if address is None else open_tier(address, "bench")
    storage = Storage(Catalogue(clock=clock), clock, tier, **{"cache_bytes": CACHE, **options})
    await storage.start()
    try:
        yield storage, tier
    finally:
        await storage.stop(600)


async def filled(storage: Storage, entries: int, bulk: int = 16_384) -> None:
    """Fill a window with entries in order."""
    await storage.create(WindowSpec.parse(SPEC | {"durability": "interval"}))
    for start in range(0, entries, bulk):
        await storage.write("w", BulkInsert(batch(start, min(bulk, entries - start))))
        if start // bulk % 64 == 63:
            await asyncio.sleep(0)
    await settled(storage)


async def settled(storage: Storage) -> None:
    """Wait until the tier has everything."""
    if isinstance(storage.store, TierStorage):
        await storage.store.session.journal.drained()
    storage.trim()


def median_us(calls: int, call: Callable[[int], Any]) -> tuple[float, float]:
    """Median and 99th percentile in µs."""
    taken = [1e6 * timed(lambda i=i: call(i), time.perf_counter) for i in range(calls)]
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


async def measure_fill(kind: str, size: Size) -> None:
    """fill, cold, evict."""
    with place(kind) as address:
        async with opened(address) as (storage, tier):
            gc.collect()
            give_back()
            anon, file = resident()
            began = time.perf_counter()
            await filled(storage, size.fill)
            seconds = time.perf_counter() - began
            gc.collect()
            give_back()  # as a service does every few seconds
            more_anon, more_file = (now - before for now, before in zip(resident(), (anon, file), strict=True))
            report(kind, f"fill {size.fill:,}", f"{size.fill / seconds / 1e6:.2f} M entries/s, {seconds:.1f} s")
            report(kind, "resident beyond empty", f"{more_anon:.1f} MiB own, {more_file:.1f} MiB pages of files")
            window = storage.find("w")
            cache, random = storage.store.session.cache, np.random.default_rng(7)
            bounds = np.sort(random.integers(0, size.fill, (size.cold, 2)), axis=1)
            trips = 0
            read = tier.get_many

            def counted(keys: Any) -> Any:
                nonlocal trips
                trips += 1
                return read(keys)

            tier.get_many = counted
            budget, cache.budget_bytes = cache.budget_bytes, 0

            def ask(i: int) -> None:
                cache.trim()
                window.range_query(int(bounds[i, 0]), int(bounds[i, 1]), None)

            p50, p99 = median_us(size.cold, ask)
            report(kind, "cold range query", f"p50 {p50:.0f} µs, p99 {p99:.0f} µs, {trips / size.cold:.2f} round trips")
            cache.budget_bytes = budget
            tier.get_many = read
            took = timed(lambda: window.bulk_evict(size.evict, None), time.perf_counter)
            report(kind, f"bulk evict of {size.evict:,}", f"{1e3 * took:.3f} ms")


async def measure_in_order(kind: str, size: Size) -> None:
    """Insert in order, m = 1,024, in turns with a window in memory."""
    loop_ns: dict[str, list[float]] = {"memory": [], kind: []}
    both_ns: dict[str, list[float]] = {"memory": [], kind: []}
    with place(kind) as address:
        async with opened(None) as (memory, _), opened(address) as (durable, _):
            await memory.create(WindowSpec.parse(SPEC | {"slide": {"max_count": 2**20}}))
            await durable.create(WindowSpec.parse(SPEC | {"durability": "interval", "slide": {"max_count": 2**20}}))
            for turn in range(2 * size.rounds):
                name, storage = (("memory", memory), (kind, durable))[turn % 2]
                batches = [batch((turn // 2 * size.in_order + i) * 1024, 1024) for i in range(size.in_order)]
                loop, both = time.thread_time_ns(), time.process_time_ns()
                for made in batches:
                    await storage.write("w", BulkInsert(made))
                loop_ns[name].append((time.thread_time_ns() - loop) / len(batches) / 1024)
                await settled(storage)
                both_ns[name].append((time.process_time_ns() - both) / len(batches) / 1024)
    for what, found in (("loop", loop_ns), ("both", both_ns)):
        mine, base = statistics.median(found[kind]), statistics.median(found["memory"])
        report(kind, f"in order, {what}", f"{mine:.1f} ns an entry, memory {base:.1f}: {mine / base:.2f} times")


async def measure_durable(kind: str, size: Size) -> None:
    """Acknowledged bulks of 1,024, one writer and sixteen, in turns with bare commits."""
    with place(kind) as address, place(kind) as bare_address:
        bare = open_tier(bare_address, "bare")
        bare.acquire()
        value = bytes(16 * 1024)
        async with opened(address) as (storage, _):
            await storage.create(WindowSpec.parse(SPEC | {"slide": {"max_count": 2**20}}))
            rates: dict[str, list[float]] = {"bare": [], "1 writer": [], "16 writers": []}
            at = 0
            for _ in range(size.rounds):
                start = time.perf_counter()
                for i in range(size.durable):
                    await asyncio.to_thread(bare.commit, {b"journal/%d" % i: value})
                rates["bare"].append(size.durable / (time.perf_counter() - start))
                for writers in (1, 16):

                    async def write(first: int, calls: int) -> None:
                        for i in range(calls):
                            await storage.write("w", BulkInsert(batch(first + 1024 * i, 1024)))

                    calls = max(size.durable // writers, 1)
                    start = time.perf_counter()
                    await asyncio.gather(*(write(at + 1024 * calls * w, calls) for w in range(writers)))
                    name = "1 writer" if writers == 1 else "16 writers"
                    rates[name].append(calls * writers / (time.perf_counter() - start))
                    at += 1024 * calls * writers
        bare.close()
    base = statistics.median(rates["bare"])
    report(kind, "bare commits", f"{base:,.0f} a second")
    for name in ("1 writer", "16 writers"):
        rate = statistics.median(rates[name])
        report(kind, f"durable inserts, {name}", f"{rate:,.0f} a second, {rate / base:.2f} of bare commits")


async def measure_recovery(kind: str, size: Size) -> None:
    """Start again after a stop that checkpointed nothing."""
    with place(kind) as address:
        clock = SystemClock()
        storage = Storage(Catalogue(clock=clock), clock, open_tier(address, "bench"), cache_bytes=CACHE)
        await storage.start()
        await filled(storage, size.recovery)
        assert isinstance(storage.store, TierStorage)
        tier, journal = storage.store.session.tier, storage.store.session.journal
        groups = journal.groups
        await journal.stop(60)  # as if killed: no checkpoint is made
        tier.close()
        start = time.perf_counter()
        async with opened(address) as (again, _):
            seconds = time.perf_counter() - start
            assert again.find("w").info().entries == size.recovery
        report(kind, f"recovery of {size.recovery:,}", f"{seconds:.2f} s, {groups} groups of journal")


def report(kind: str, what: str, found: str) -> None:
    """One line of figures."""
    print(f"{kind:<6} {what:<28} {found}", flush=True)


def main() -> None:
    """Run all cases."""
    options = arguments(
        __doc__,
        {
            "--tier": {"choices": ("lmdb", "redis"), "action": "append", "help": "one tier only"},
            "--entries": {"type": float, "help": "run `fill` only, of so many entries, on LMDB"},
        },
    )
    if options.entries:
        size = Size(int(options.entries), int(options.entries) // 4, 0, 0, 1000, 0, 0)
        uvloop.run(measure_fill("lmdb", size))
        return
    size = SMOKE if options.smoke else REAL
    for kind in options.tier or ("lmdb", "redis"):
        uvloop.run(measure_fill(kind, size))
        uvloop.run(measure_in_order(kind, size))
        uvloop.run(measure_durable(kind, size))
        uvloop.run(measure_recovery(kind, size))


if __name__ == "__main__":
    main()
