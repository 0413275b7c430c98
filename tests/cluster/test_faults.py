"""Faults, one after the other, while producers write: what was acknowledged is there once, and every answer is right.

`SASH_PROFILE=soak` has 300 at random. Otherwise each kind comes once, in random order. A failure prints the seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.deployments import Process, Producer, made
from tests.support.ports import free_port
from tests.support.redis_servers import BINARIES, Proxy, RedisServer, proxy, redis_server, wait_until
from tests.support.servers import WAIT_S

SOAK = 300 if os.environ.get("SASH_PROFILE") == "soak" else 0
PROCESSES = 3


class Deployment:
    """Three places for processes on ports that stay, and a Redis with a replica behind an address that stays."""

    def __init__(self, stack: contextlib.ExitStack, seed: int) -> None:
        self._stack = stack
        self.random = random.Random(seed)
        self.primary = self._redis()
        self.replica = self._redis(f"replicaof 127.0.0.1 {self.primary.port}")
        self.proxy: Proxy = stack.enter_context(proxy(self.primary.port))
        self.in_step()
        self.ports = [free_port() for _ in range(PROCESSES)]
        with ThreadPoolExecutor(PROCESSES) as threads:
            self.places: list[Process | None] = list(threads.map(self.start, range(PROCESSES)))

    def _redis(self, *options: str) -> RedisServer:
        return self._stack.enter_context(redis_server(BINARIES["valkey"], "repl-diskless-sync-delay 0", *options))

    def in_step(self) -> None:
        """Wait until the replica has what the primary has."""
        wait_until(lambda: b"master_link_status:up" in self.replica.ask("INFO", "replication"))

    def start(self, place: int) -> Process:
        process = Process(
            self.proxy.url, "--grpc-port", str(self.ports[place]), SASH_REDIS_WAIT_REPLICAS="1", SASH_LOG_LEVEL="info"
        )
        self._stack.callback(process.end)
        return process

    @property
    def target(self) -> str:
        return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def running(self) -> list[int]:
        return [place for place, process in enumerate(self.places) if process is not None]

    # ---------------------------------------------------------------- faults

    def kill(self) -> None:
        """A process ends without a word; another one takes its place."""
        place = self.random.choice(self.running)
        self.places[place].kill()
        self.places[place] = self.start(place)

    def stop(self) -> None:
        """A process stands still until others have its shards, and comes back."""
        place = self.random.choice(self.running)
        process = self.places[place].process
        others = [other for other in self.running if other != place]
        process.send_signal(signal.SIGSTOP)
        try:
            if others:
                asked = self.places[others[0]]
                wait_until(lambda: asked.serves())
        finally:
            process.send_signal(signal.SIGCONT)

    def come_and_go(self) -> None:
        """A process leaves in order, or comes back."""
        gone = [place for place in range(PROCESSES) if self.places[place] is None]
        if gone:
            self.places[gone[0]] = self.start(gone[0])
            return
        place = self.random.choice(self.running)
        self.places[place].process.send_signal(signal.SIGTERM)
        assert self.places[place].process.wait(WAIT_S) == 0, self.places[place].said()
        self.places[place] = None

    def slow_redis(self) -> None:
        """Redis stands still for longer than a lease."""
        with self.primary.frozen():
            time.sleep(self.random.uniform(0.2, 2.0))

    def cut(self) -> None:
        """All connections to Redis break, some in the middle of an answer."""
        self.proxy.cut_after(self.random.choice(["up", "down"]), self.random.randrange(1, 2000), times=3)

    def fail_over(self) -> None:
        """The primary is lost, and its replica takes its place; a new replica comes."""
        self.primary.stop()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.primary = self.replica
        self.proxy._server = self.primary.port
        self.proxy.cut()
        self.replica = self._redis(f"replicaof 127.0.0.1 {self.primary.port}")
        self.in_step()

    def faults(self) -> Iterator[str]:
        """Do one after the other, and say which."""
        kinds = [self.kill, self.stop, self.come_and_go, self.come_and_go, self.slow_redis, self.cut, self.fail_over]
        chosen = self.random.choices(kinds, k=SOAK) if SOAK else self.random.sample(kinds, len(kinds))
        for kind in chosen:
            kind()
            yield kind.__name__


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}")
    with contextlib.ExitStack() as stack:
        yield Deployment(stack, seed)


def test_nothing_acknowledged_is_lost_or_counts_twice(deployment: Deployment) -> None:
    first = deployment.places[0]
    wait_until(first.serves)
    made(first)
    producers = [
        Producer("any", deployment.target, timeout_s=3),
        Producer("direct", deployment.target, direct=True, timeout_s=3),
    ]
    done: Counter[str] = Counter()
    for kind in deployment.faults():
        done[kind] += 1
        for producer in producers:
            producer.rounds(1)
        with contextlib.ExitStack() as resting:
            for producer in producers:
                resting.enter_context(producer.resting)
            total = sum((producer.wrote for producer in producers), Counter())
            expected = {key: (n, n) for key, n in total.items()}
            for place in deployment.running:
                found = deployment.places[place].answers()
                assert found == expected, (kind, done, place, deployment.places[place].said())
    for producer in producers:
        producer.end()
    assert done.total() == (SOAK or 7)
