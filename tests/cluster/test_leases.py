"""Processes that share a prefix of Redis: shards move between them, and what was acknowledged is there once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from sash_client import Client, InvalidArgument
from tests.support.redis_servers import BINARIES, RedisServer, redis_server
from tests.support.servers import WAIT_S, serve_command
from tests.support.waiting import wait_until

SHARDS = 8
KEYS = [f"key-{i}" for i in range(40)]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}


class Process:
    """`sash serve` on the prefix, as if it were alone on a machine."""

    def __init__(self, url: str, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            serve_command("--data", url, "--shards", str(SHARDS), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SASH_LEASE_S": "1", **environment},
        )
        line = self.process.stdout.readline()
        found = re.search(r"gRPC on (\S+), REST and page on (http://\S+)/", line)
        assert found, f"it does not serve: {line!r}"
        self.target, self.url = found[1], found[2]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def shards(self) -> dict[int, list[int]]:
        """By process, what it has, as far as this one knows."""
        found = httpx.get(f"{self.url}/v1/topology", timeout=WAIT_S, trust_env=False).json()
        return {each["number"]: each["shards"] for each in found["processes"] if each["up"]}

    def serves(self) -> bool:
        """Whether it answers for every shard."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/v1/windows", timeout=WAIT_S, trust_env=False).status_code == 200
        return False

    def sums(self) -> dict[str, tuple[int, int]]:
        with Client(self.target, timeout_s=WAIT_S) as client:
            answers = client.window("w").query(keys=KEYS)
            (together,) = client.window("w").query(keys=KEYS, combine=True)
        assert together.entries == sum(answer.entries for answer in answers)
        return {answer.key: (answer.entries, answer.aggregates["sum"]) for answer in answers if answer.entries}


class Deployment:
    """Some processes, and a Redis."""

    def __init__(self, redis: RedisServer, stack: contextlib.ExitStack) -> None:
        self.redis, self._stack = redis, stack
        self.processes: list[Process] = []

    def add(self, *arguments: str, **environment: str) -> Process:
        process = Process(self.redis.url, *arguments, **environment)
        self._stack.callback(process.end)
        self.processes.append(process)
        return process

    def settle(self, *counts: int) -> None:
        """Wait until the processes have so many shards, and every one answers for all."""
        alive = [process for process in self.processes if process.process.poll() is None]

        def settled() -> bool:
            return all(
                process.serves() and sorted(map(len, process.shards().values())) == sorted(counts) for process in alive
            )

        wait_until(settled, 40)


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with redis_server(BINARIES["valkey"], "appendfsync no") as redis, contextlib.ExitStack() as stack:
        yield Deployment(redis, stack)


def made(process: Process) -> None:
    httpx.post(f"{process.url}/v1/windows", json=SPEC, timeout=WAIT_S, trust_env=False).raise_for_status()


class Producer:
    """Writes rounds of entries to all keys, with numbers, until it is told to end; what is acknowledged is counted."""

    def __init__(self, name: str, target: str) -> None:
        self.wrote: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._rounds = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(name, target), daemon=True)
        self._thread.start()

    def rounds(self, n: int) -> None:
        """Wait until so many more are acknowledged."""
        for _ in range(n):
            assert self._rounds.acquire(timeout=60), self.error

    def end(self) -> Counter[str]:
        self._end.set()
        self._thread.join(90)
        assert self.error is None, self.error
        return self.wrote

    def _run(self, name: str, target: str) -> None:
        try:
            with Client(target, timeout_s=60) as client, client.window("w").producer(name, linger_s=0.001) as producer:
                time = 0
                while not self._end.is_set():
                    for key in KEYS:
                        producer.insert(time, fields={"value": 1}, key=key)
                        time += 1
                    producer.flush()
                    self.wrote.update(KEYS)
                    self._rounds.release()
        except BaseException as error:
            self.error = error


def check(process: Process, *wrote: Counter[str]) -> None:
    """Check that everything acknowledged is there once."""
    total = sum(wrote, Counter())
    assert process.sums() == {key: (n, n) for key, n in total.items()}


def test_a_shard_moves_where_it_is_told_to(deployment: Deployment) -> None:
    first, second = deployment.add(), deployment.add()
    deployment.settle(4, 4)
    made(first)
    producer = Producer("p", second.target)
    producer.rounds(1)
    with Client(first.target, timeout_s=WAIT_S) as client:
        before = client.topology()
        assert [process.up for process in before.processes] == [True, True]
        assert {process.address for process in before.processes} == {first.target, second.target}
        shard = before.processes[0].shards[0]
        after = client.move_shard(shard, 1)
        assert shard in after.processes[1].shards
        deployment.settle(4, 4)
        wrote = producer.end()
        found = client.topology()
        assert shard in found.processes[1].shards
        sizes = [size for process in found.processes for size in process.sizes]
        assert {size.shard for size in sizes} == set(range(SHARDS))
        assert sum(size.entries for size in sizes) == sum(wrote.values())
        for wrong in ((8, 1), (-1, 1), (0, 2)):
            with pytest.raises(InvalidArgument, match="there is no"):
                client.move_shard(*wrong)
    check(second, wrote)


def test_shards_move_when_processes_come_and_go_while_producers_write(deployment: Deployment) -> None:
    first = deployment.add()
    made(first)
    deployment.settle(8)
    producer = Producer("p", first.target)
    producer.rounds(2)
    second = deployment.add()
    deployment.settle(4, 4)
    producer.rounds(2)
    third = deployment.add()
    deployment.settle(2, 3, 3)
    producer.rounds(2)
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(WAIT_S) == 0
    deployment.settle(4, 4)
    producer.rounds(2)
    third.kill()
    deployment.settle(8)
    producer.rounds(2)
    wrote = producer.end()
    check(first, wrote)
