"""Processes that share a prefix of Redis, as if each were alone on a machine, and producers that write to them."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import httpx

from sash_client import Client, FailedPrecondition, SashClientError, Staged, Unavailable, Window
from sash_client.direct import DirectClient
from tests.support.redis_servers import RedisServer
from tests.support.servers import PLAIN, WAIT_S, serve
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
    """`sash serve` on the prefix, as if it were alone on a machine.

    Args:
        url: of Redis.
        under: a command that runs the command behind it.
    """

    def __init__(self, url: str, *arguments: str, under: Sequence[str] = (), **environment: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `end`
        options = ("--data", url, "--shards", SHARDS, *arguments)
        given = {"SASH_LEASE_S": "1", **environment}
        self.process = serve(*options, under=under, env=given, stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline()
        found = re.search(r"gRPC on (\S+), REST and page on (http://\S+)/", line)
        if found is None:
            self.process.wait(WAIT_S)
            told = self.said()
            self.end()
            raise AssertionError(f"it does not serve: {line!r}, {told}")
        self.target, self.url = found[1], found[2]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)
        self.log.close()

    def said(self) -> str:
        """The end of its log."""
        self.log.seek(0)
        return self.log.read()[-3000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def shards(self) -> dict[int, list[int]]:
        """By process, what it has, as far as this one knows."""
        return {each["number"]: each["shards"] for each in self._processes() or [] if each["up"]}

    def shards_at(self, address: str) -> list[int] | None:
        """What the processes at an address have; None if this one does not know it now."""
        found = self._processes()
        return found and [shard for each in found if each["address"] == address for shard in each["shards"]]

    def _processes(self) -> list[dict[str, Any]] | None:
        found = httpx.get(f"{self.url}/v1/topology", **PLAIN)
        return found.json()["processes"] if found.is_success else None

    def serves(self) -> bool:
        """Whether it answers for every shard."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/v1/windows", **PLAIN).status_code == 200
        return False

    def answers(self) -> dict[str, tuple[int, int]]:
        """`sums`, as soon as all shards answer."""
        found: list[dict[str, tuple[int, int]]] = []

        def answered() -> bool:
            with contextlib.suppress(SashClientError):
                found.append(self.sums())
            return bool(found)

        wait_until(answered)
        return found[0]

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

        wait_until(settled)


def made(process: Process) -> None:
    """Create the window, as soon as every shard is there."""

    def created() -> bool:
        return httpx.post(f"{process.url}/v1/windows", json=SPEC, **PLAIN).is_success

    wait_until(created)


class Writer:
    """Writes rounds of entries to all keys until it is told to end; what is acknowledged is counted.

    Args:
        client: it is closed at the end.
    """

    def __init__(self, name: str, client: Client) -> None:
        self._client = client
        self.resting = threading.Lock()
        """Held by the test: the writer has no round under way."""
        self.wrote: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._rounds = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True)
        self._thread.start()

    def rounds(self, n: int) -> None:
        """Wait until so many more are acknowledged."""
        while self._rounds.acquire(blocking=False):
            pass
        for _ in range(n):
            wait_until(lambda: self._rounds.acquire(timeout=0.1) or self.error is not None)
            if self.error is not None:
                raise self.error

    def end(self) -> Counter[str]:
        self._end.set()
        self._thread.join(WAIT_S)
        assert self.error is None, self.error
        assert not self._thread.is_alive(), "it waits for an answer"
        return self.wrote

    def _run(self, name: str) -> None:
        try:
            with self._client as client, self._writing(client.window("w"), name) as write:
                number = 0
                while not self._end.is_set():
                    with self.resting:
                        write(number)
                        self.wrote.update(KEYS)
                    number += 1
                    self._rounds.release()
                    self._end.wait(0.01)
        except BaseException as error:
            self.error = error

    def _writing(self, window: Window, name: str) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """What writes the round of a number, and returns when all of it is acknowledged."""
        raise NotImplementedError


class Producer(Writer):
    """A producer numbers its writes.

    Args:
        direct: it goes straight to the owners of keys.
        timeout_s: of each call.
    """

    def __init__(self, name: str, target: str, direct: bool = False, timeout_s: float = 60) -> None:
        super().__init__(name, (DirectClient if direct else Client)(target, timeout_s=timeout_s))

    @contextlib.contextmanager
    def _writing(self, window: Window, name: str) -> Iterator[Callable[[int], None]]:
        with window.producer(name, linger_s=0.001) as producer:

            def write(number: int) -> None:
                for i, key in enumerate(KEYS):
                    producer.insert(number * len(KEYS) + i, fields={"value": 1}, key=key)
                producer.flush()

            yield write


class Batches(Writer):
    """A streaming query: tasks stage parts of a batch, and its driver commits them, as often as it takes."""

    def __init__(self, name: str, target: str, timeout_s: float = 60) -> None:
        super().__init__(name, Client(target, timeout_s=timeout_s))

    @contextlib.contextmanager
    def _writing(self, window: Window, name: str) -> Iterator[Callable[[int], None]]:
        def write(number: int) -> None:
            while not self._end.is_set():
                with contextlib.suppress(SashClientError):
                    try:
                        stages = [stage for part in (KEYS[:25], KEYS[25:]) for stage in _staged(part, number)]
                    except FailedPrecondition as error:
                        if error.field != "batch":
                            raise
                        return  # an earlier attempt has committed it
                    window.commit(name, number, stages)
                    return
            raise AssertionError(f"batch {number} is not committed, nor given up")

        def _staged(part: list[str], number: int) -> list[Staged]:
            return window.stage([number] * len(part), {"value": [1] * len(part)}, keys=part, query=name, batch=number)

        yield write


class Callers:
    """Insert one entry after the other, and ask, as long as they run.

    Attributes:
        applied: by key, inserts that were acknowledged.
        perhaps: by key, inserts that may be applied.
        failed: calls that failed in another way.
    """

    def __init__(self, target: str) -> None:
        self.applied, self.perhaps = Counter[str](), Counter[str]()
        self.failed: list[SashClientError] = []
        self._ended = threading.Event()
        calls = (self._insert, self._query)
        self._threads = [threading.Thread(target=self._run, args=(target, call), daemon=True) for call in calls]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def more(self) -> None:
        """Wait until so many more inserts are acknowledged as there are keys."""
        enough = self.applied.total() + len(KEYS)
        wait_until(lambda: self.failed or self.applied.total() > enough)

    def _run(self, target: str, call: Callable[[Window, int, str], None]) -> None:
        with Client(target, timeout_s=WAIT_S) as client:
            for number in itertools.count():
                if self._ended.wait(0.005):
                    break
                try:
                    call(client.window("w"), number, KEYS[number % len(KEYS)])
                except SashClientError as error:
                    self.failed.append(error)

    def _insert(self, window: Window, number: int, key: str) -> None:
        try:
            window.insert(number, fields={"value": 1}, key=key)
            self.applied[key] += 1
        except Unavailable as error:
            if error.unchanged:
                raise
            self.perhaps[key] += 1

    def _query(self, window: Window, number: int, key: str) -> None:
        window.query(key=key)


def check(process: Process, *wrote: Counter[str], what: object = "") -> None:
    """Check that everything acknowledged is there once; `what` happened before."""
    total = sum(wrote, Counter())
    assert process.answers() == {key: (n, n) for key, n in total.items()}, (what, process.said())


def written_and_compared(writers: Sequence[Writer], processes: Sequence[Process], what: object, rounds: int = 2) -> int:
    """Have all write some rounds, and compare each process' answers with all that was acknowledged; return how much.

    Args:
        what: happened before.
    """
    for writer in writers:
        writer.rounds(rounds)
    with contextlib.ExitStack() as resting:
        for writer in writers:
            resting.enter_context(writer.resting)
        wrote = [writer.wrote for writer in writers]
        for process in processes:
            check(process, *wrote, what=what)
        return sum(each.total() for each in wrote)
