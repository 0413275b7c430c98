"""Kills a service, and its tier, again and again, while writers write; after each restart everything must be there.

    kills = 200, tier = lmdb:   serve ─▶ write … SIGKILL ─▶ serve ─▶ retries end ─▶ every answer compared ─▶ write …

The service is run with tiny limits, so that in the fraction of a second before it dies it seals and stores blocks,
takes checkpoints, cuts its journal, evicts, stages, commits, or is still recovering from the kill before.

Run ``python -m tests.crash.driver --tier lmdb --kills 200`` (some minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sash_client import Client
from tests.crash.writers import SPECS, Writer
from tests.support.redis_servers import BINARIES, RedisServer
from tests.support.servers import Running, serve, service_process

TIERS = ("lmdb", "redis")
LIMITS = {
    "SASH_CHECKPOINT_BYTES": "60000",
    "SASH_STORE_ENTRIES": "2000",
    "SASH_CACHE_BYTES": "40000",
    "SASH_LOG_LEVEL": "error",
}


@dataclass(slots=True)
class Report:
    """What a run did."""

    kills: int = 0
    tier_kills: int = 0
    during_recovery: int = 0
    retries: int = 0
    applied_before: int = 0
    refused: int = 0
    seconds: float = 0.0
    restarts_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ordered = sorted(self.restarts_s) or [0.0]
        return (
            f"{self.kills} kills of the service ({self.during_recovery} while it recovered), {self.tier_kills} of the "
            f"tier, {self.retries} retries, {self.applied_before} of them found their write applied, {self.refused} "
            f"entries refused by a limit; restart "
            f"{ordered[len(ordered) // 2]:.2f} s median, {ordered[-1]:.2f} s at most; {self.seconds:.0f} s in all"
        )


class Driver:
    """One service on one tier, its writers, and whoever kills it.

    Args:
        tier: "lmdb" or "redis".
        writers: how many write at a time.
        seed: when it is killed.
    """

    def __init__(self, tier: str, writers: int = 3, seed: int = 0) -> None:
        self._tier = tier
        self._random = random.Random(seed)
        self._writers = writers
        self._service: Running | None = None
        self._target = ""
        self.report = Report()

    def run(self, kills: int) -> Report:
        """Kill the service so many times; raises AssertionError where an answer is wrong."""
        began = time.monotonic()
        with self._place() as address, contextlib.ExitStack() as services:
            self._start(services, address)
            with Client(self._target) as client:
                for spec in SPECS.values():
                    client.create_window(spec)
            writers = [Writer(name, lambda: self._target) for name in "abcdefgh"[: self._writers]]
            for writer in writers:
                writer.start()
            try:
                for _ in range(kills):
                    self._let_pass(0.01, 0.5)
                    self._kill(services, address)
                    for writer in writers:
                        writer.rest()
                    for writer in writers:
                        writer.check()
                    for writer in writers:
                        writer.go_on()
                    print(".", end="", file=sys.stderr, flush=True)
            finally:
                for writer in writers:
                    writer.stop()
            self.report.retries = sum(writer.retries for writer in writers)
            self.report.refused = sum(writer.refused for writer in writers)
            self.report.applied_before = sum(writer.applied_before for writer in writers)
        self.report.seconds = time.monotonic() - began
        return self.report

    @contextlib.contextmanager
    def _place(self) -> Iterator[str]:
        self._redis: RedisServer | None = None
        if self._tier == "lmdb":
            with tempfile.TemporaryDirectory(prefix="sash-crash-") as directory:
                yield str(Path(directory) / "data")
            return
        self._redis = RedisServer(next(iter(BINARIES.values())))
        self._redis.start()
        try:
            yield self._redis.url
        finally:
            self._redis.stop()

    def _start(self, services: contextlib.ExitStack, address: str) -> None:
        began = time.monotonic()
        service = services.enter_context(service_process("--data", address, **LIMITS))
        self._service, self._target = service, service.grpc_target
        self.report.restarts_s.append(time.monotonic() - began)

    def _kill(self, services: contextlib.ExitStack, address: str) -> None:
        assert self._service is not None
        assert self._service.process is not None
        if self._redis is not None and self._random.random() < 0.2:
            self._disturb(self._redis)
        self._service.process.send_signal(signal.SIGKILL)
        self._service.process.wait()
        self.report.kills += 1
        services.close()
        while self._random.random() < 0.15:
            # Once more, before it has recovered.
            with contextlib.suppress(AssertionError), contextlib.ExitStack() as short:
                self._kill_early(short, address)
            self.report.kills += 1
            self.report.during_recovery += 1
        self._start(services, address)

    def _disturb(self, redis: RedisServer) -> None:
        """Take the tier away for a while, from a service that goes on."""
        if self._random.random() < 0.5:
            with redis.frozen():
                self._let_pass(0.05, 1.5)
        else:
            redis.kill()
            self._let_pass(0.0, 0.5)
            redis.start()
        self.report.tier_kills += 1
        self._let_pass(0.0, 1.0)

    def _kill_early(self, services: contextlib.ExitStack, address: str) -> None:
        """Start a service and kill it after a while, whether or not it listens by then."""
        process = serve("--data", address, env=LIMITS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        services.callback(process.wait)
        services.callback(process.kill)
        self._let_pass(0.3, 1.2)

    def _let_pass(self, shortest_s: float, longest_s: float) -> None:
        """Let a random time pass. No condition would do: a kill must come at a moment that nobody chose."""
        time.sleep(self._random.uniform(shortest_s, longest_s))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.driver", description="Kill a service, often.")
    parser.add_argument("--tier", choices=TIERS, action="append", help="one tier only")
    parser.add_argument("--kills", type=int, default=200, help="how often, for each tier (%(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFF, help="when (random)")
    options = parser.parse_args()
    for tier in options.tier or TIERS:
        print(f"{tier}, seed {options.seed}: ", end="", flush=True)
        print(Driver(tier, seed=options.seed).run(options.kills), flush=True)


if __name__ == "__main__":
    main()
