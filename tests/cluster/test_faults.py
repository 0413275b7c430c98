"""Faults, one after the other, while producers write: what was acknowledged is there once, and every answer is right.

`SASH_PROFILE=soak` has 300 at random, or as many as `SASH_FAULTS` says. Otherwise two kinds come once, drawn each
time: `tests/simulation` has them in any order, and this shows that it is honest. A failure prints the seed, which
`SASH_FAULTS_SEED` takes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.deployments import Batches, Process, Producer, made, written_and_compared
from tests.support.jumps import WallClock
from tests.support.links import links
from tests.support.ports import free_port
from tests.support.profile import THOROUGH
from tests.support.redis_servers import BINARIES, RedisServer, redis_server, wait_until
from tests.support.servers import WAIT_S

SOAK = int(os.environ.get("SASH_FAULTS") or 300) if THOROUGH else 0
PROCESSES = 3
SOME = 2


class Deployment:
    """Three places for processes on ports that stay, and a Redis with a replica.

    Each process has a link of its own to Redis, and others reach it by links: so a network can fail between any two.
    Processes and the first Redis have wall clocks that can jump.
    """

    def __init__(self, stack: contextlib.ExitStack, seed: int) -> None:
        self._stack = stack
        self.random = random.Random(seed)
        self.clocks = [WallClock() for _ in range(PROCESSES + 1)]
        for clock in self.clocks:
            stack.callback(clock.close)
        self.primary = self._redis(environment=self.clocks[PROCESSES].program())
        self.replica = self._redis(f"replicaof 127.0.0.1 {self.primary.port}")
        self.in_step()
        network = stack.enter_context(links())
        self.ports, self.peer_ports = ([free_port(_host(place)) for place in range(PROCESSES)] for _ in range(2))
        self.to_redis = [network.made(self.primary.port) for _ in range(PROCESSES)]
        self.to_peer = [network.made(port, _host(place), port) for place, port in enumerate(self.peer_ports)]
        for place, port in enumerate(self.ports):
            network.made(port, _host(place), port)
        with ThreadPoolExecutor(PROCESSES) as threads:
            self.places: list[Process | None] = list(threads.map(self.start, range(PROCESSES)))

    def _redis(self, *options: str, environment: Mapping[str, str] | None = None) -> RedisServer:
        options = ("repl-diskless-sync-delay 0", *options)
        return self._stack.enter_context(redis_server(BINARIES["valkey"], *options, environment=environment))

    def in_step(self) -> None:
        """Wait until the replica has what the primary has."""
        wait_until(lambda: b"master_link_status:up" in self.replica.ask("INFO", "replication"))

    def start(self, place: int) -> Process:
        process = Process(
            f"redis://127.0.0.1:{self.to_redis[place].port}",
            *("--grpc-port", str(self.ports[place])),
            SASH_ADDRESS=_host(place),
            SASH_PEER_PORT=str(self.peer_ports[place]),
            SASH_REDIS_WAIT_REPLICAS="1",
            SASH_LOG_LEVEL="info",
            **self.clocks[place].python,
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
        process.send_signal(signal.SIGSTOP)
        try:
            self._others_serve(place)
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
        assert self.places[place].process.wait(3 * WAIT_S) == 0, self.places[place].said()
        self.places[place] = None

    def slow_redis(self) -> None:
        """Redis stands still for longer than a lease."""
        with self.primary.frozen():
            time.sleep(self.random.uniform(0.2, 2.0))

    def pause_redis(self) -> None:
        """Redis answers nobody for a while, or only those who read."""
        pause_ms = self.random.randrange(200, 2500)
        self.primary.ask("CLIENT", "PAUSE", pause_ms, self.random.choice(["ALL", "WRITE"]))
        time.sleep(pause_ms / 1000)

    def slow_network(self) -> None:
        """Whatever some processes ask of Redis, and others of them, is long on its way."""
        slow = [link for link in (*self.to_redis, *self.to_peer) if self.random.random() < 0.5]
        for link in slow:
            link.delay_s = self.random.uniform(0.01, 0.4)
        time.sleep(self.random.uniform(0.5, 3.0))
        for link in slow:
            link.delay_s = 0.0

    def cut(self) -> None:
        """All connections to Redis break, some in the middle of a command or an answer."""
        for link in self.to_redis:
            link.cut_within(self.random.randrange(1, 4000))

    def away_from_redis(self) -> None:
        """A process and Redis do not hear each other until others have its shards; then all comes that was sent."""
        place = self.random.choice(self.running)
        link = self.to_redis[place]
        link.silence()
        try:
            self._others_serve(place)
        finally:
            if self.random.random() < 0.5:
                link.cut()
            link.speak()

    def all_away_from_redis(self) -> None:
        """Nobody hears Redis for a while."""
        for link in self.to_redis:
            link.silence()
        time.sleep(self.random.uniform(0.2, 4.0))
        for link in self.to_redis:
            link.speak()

    def away_from_others(self) -> None:
        """Others cannot call a process, which has its shards all the time. Some find out, and some do not."""
        link = self.to_peer[self.random.choice(self.running)]
        link.silence()
        time.sleep(self.random.choice([0.5, 2.0, 17.0]))
        if self.random.random() < 0.5:
            link.cut()
        link.speak()

    def jump(self) -> None:
        """The wall clock of a process or of Redis jumps."""
        off_s = self.random.choice([1, 30, 3600, 400 * 86_400])
        self.random.choice(self.clocks).jump(self.random.choice([-off_s, 0, off_s]))

    def fail_over(self) -> None:
        """The primary is lost, and its replica takes its place; a new replica comes."""
        self.primary.stop()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.primary = self.replica
        for link in self.to_redis:
            link.lead_to(self.primary.port)
        clock = self.clocks[PROCESSES] = WallClock()
        self._stack.callback(clock.close)
        self.replica = self._redis(f"replicaof 127.0.0.1 {self.primary.port}", environment=clock.program())
        self.in_step()

    def faults(self) -> Iterator[str]:
        """Do one after the other, and say which."""
        kinds = [
            *(self.kill, self.stop, self.come_and_go, self.come_and_go, self.slow_redis, self.pause_redis),
            *(self.slow_network, self.cut, self.away_from_redis, self.all_away_from_redis, self.away_from_others),
            *(self.jump, self.fail_over),
        ]
        chosen = self.random.choices(kinds, k=SOAK) if SOAK else self.random.sample(kinds, SOME)
        for kind in chosen:
            kind()
            yield kind.__name__

    def _others_serve(self, place: int) -> None:
        """Wait until the processes that run have all shards of one of them, and serve them."""
        others = [self.places[other] for other in self.running if other != place]
        if others:
            address = f"{_host(place)}:{self.ports[place]}"
            wait_until(lambda: others[0].serves() and others[0].shards_at(address) == [], look_s=0.05)


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    seed = int(os.environ.get("SASH_FAULTS_SEED") or random.SystemRandom().randrange(10**9))
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
        Batches("query", deployment.target, timeout_s=3),
    ]
    for producer in producers:
        producer.rounds(1)
    done: Counter[str] = Counter()
    began_s = time.monotonic()
    for kind in deployment.faults():
        done[kind] += 1
        running = [deployment.places[place] for place in deployment.running]
        entries = written_and_compared(producers, running, (kind, done), rounds=1)
        print(f"{done.total()} {kind}: {entries} entries, {time.monotonic() - began_s:.0f} s", flush=True)
    for producer in producers:
        producer.end()
    assert done.total() == (SOAK or SOME)


def _host(place: int) -> str:
    """By which address of this machine others reach a place."""
    return f"127.0.0.{11 + place}"
