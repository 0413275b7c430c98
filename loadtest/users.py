"""Locust's users: sensors that insert values and query them, one class for each edge of the scenario.

Each user has keys or windows of its own, whose clocks go on by a second for each entry. So it knows what the service
must answer: every answer is compared with `model.Key`. A wrong answer is a failure like any other.

Run by ``python -m loadtest``, or by locust itself, with its page:
``LOADTEST='{"scenario": "keys", "target": "127.0.0.1:7070"}' locust -f loadtest/users.py --users 20``
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import ClassVar

import gevent  # type: ignore[import-untyped]
import grpc.experimental.gevent
from locust import User, between, task
from locust.exception import StopUser

from loadtest import conductor
from loadtest.edges import TROUBLE, Busy, Found, connect_to
from loadtest.model import Key, Wrong, check_answer, check_equal
from loadtest.options import Options

# Locust runs users as greenlets: gRPC has to wait in gevent's loop, or one call would block all users.
grpc.experimental.gevent.init_gevent()

OPTIONS = Options.from_environment()
BULK = 1000
LOOKBACKS_S = {"5m": 300, "1h": 3600}
WATCH_MS = 50
BUSY_TRIES = 8

_numbers = itertools.count()


class Sensor(User):
    """What users of all scenarios do. Their tasks are measured as operations."""

    abstract = True
    edge: str
    operations: ClassVar[tuple[str, ...]]

    def on_start(self) -> None:
        self.connection = connect_to(OPTIONS, self.edge)
        self.tasks_done = 0
        self.begin()
        for operation in self.tasks_of_a_run():
            operation()  # each of them once, however short the run is

    def on_stop(self) -> None:
        self.connection.close()

    def begin(self) -> None:
        """Start with new names and an empty model."""
        self.name = f"{self.edge}-{os.getpid()}-{next(_numbers)}"
        self.random = random.Random(self.name)

    def tasks_of_a_run(self) -> list[Callable[[], None]]:
        """The tasks, bound to this user, without those that appear in the list for their weight."""
        return [each.__get__(self) for each in dict.fromkeys(self.tasks)]

    def new_key(self) -> Key:
        """A key whose entries count in the run's totals."""
        key = Key()
        conductor.KEYS.append(key)
        return key

    def values(self, count: int) -> list[float]:
        """Some values."""
        return [self.random.gauss(20, 5) for _ in range(count)]

    def measure(self, operation: str, call: Callable[[], None], writes: bool = False) -> bool:
        """Make a call, report how long it took, and return whether it went well.

        A call is made again while the service is busy. After a write without an answer the user begins anew, because
        it does not know what the service has.
        """
        for attempt in range(BUSY_TRIES):
            started_s = time.perf_counter()
            failure: Exception | None = None
            try:
                call()
            except Busy as busy:
                if attempt + 1 < BUSY_TRIES:
                    self._report("refused, tried again", started_s, None)
                    gevent.sleep(0.05 * 2**attempt)
                    continue
                failure = busy
            except (*TROUBLE, Wrong) as error:
                failure = error
            self._report(operation, started_s, failure)
            break
        if failure is not None and writes:
            conductor.LOST.append(operation)
            self.begin()
        return failure is None

    def _report(self, operation: str, started_s: float, failure: Exception | None) -> None:
        conductor.CALLED.add((self.edge, operation))
        self.environment.events.request.fire(
            request_type=self.edge,
            name=operation,
            response_time=(time.perf_counter() - started_s) * 1000,
            response_length=0,
            exception=failure,
            context={},
        )

    def count_task(self) -> None:
        """Stop after so many tasks as a run may have."""
        self.tasks_done += 1
        if OPTIONS.tasks and self.tasks_done > OPTIONS.tasks:
            self.environment.runner.send_message("finished", 1)
            raise StopUser


class Steady(Sensor):
    """A key in the one window. Of 24 tasks 10 insert one entry, 3 insert 1,000, 8 query lookbacks, 3 query a range."""

    abstract = True
    operations = ("insert", "bulk-insert", "query", "range")

    def begin(self) -> None:
        super().begin()
        self.key = self.new_key()

    @task(10)
    def insert(self) -> None:
        self.count_task()

        def call() -> None:
            (value,) = self.values(1)
            inserted = self.connection.insert(conductor.WINDOW, self.name, self.key.now + 1, value)
            self.key.push([value])
            check_equal("inserted", inserted, 1)

        self.measure("insert", call, writes=True)

    @task(3)
    def bulk_insert(self) -> None:
        self.count_task()
        values = self.values(BULK)
        rows = list(zip(range(self.key.now + 1, self.key.now + 1 + BULK), values, strict=True))
        # Some disorder: a tenth of the rows change places with a neighbour.
        for i in self.random.sample(range(BULK - 1), BULK // 10):
            rows[i], rows[i + 1] = rows[i + 1], rows[i]

        def call() -> None:
            times, shuffled = map(list, zip(*rows, strict=True))
            inserted = self.connection.bulk_insert(conductor.WINDOW, self.name, times, shuffled)
            self.key.push(values)
            check_equal("inserted", inserted, BULK)

        self.measure("bulk-insert", call, writes=True)

    @task(8)
    def query(self) -> None:
        self.count_task()

        def call() -> None:
            answers = self.connection.query(conductor.WINDOW, [self.name], list(LOOKBACKS_S))
            check_equal("answers", len(answers), len(LOOKBACKS_S))
            for answer, (lookback, seconds) in zip(answers, LOOKBACKS_S.items(), strict=True):
                check_answer(lookback, answer, self.key.latest(seconds))

        if self.key.now:
            self.measure("query", call)

    @task(3)
    def range_query(self) -> None:
        self.count_task()
        end = self.random.randint(1, self.key.now or 1)
        start = max(1, end - self.random.randint(0, 10_000))

        def call() -> None:
            answer = self.connection.range_query(conductor.WINDOW, self.name, start, end)
            check_answer(f"{start} to {end}", answer, self.key.between(start, end))

        if self.key.now:
            self.measure("range", call)


class Soak(Steady):
    """As steady, with pauses."""

    abstract = True
    wait_time = between(0.5, 1)


class Windows(Sensor):
    """Windows without keys. Of 18 tasks 10 insert an entry into one of them, 8 query one."""

    abstract = True
    operations = ("create", "insert", "query")

    def begin(self) -> None:
        super().begin()
        self.windows: list[tuple[str, Key]] = []
        for i in range(OPTIONS.share):
            name = f"{conductor.WINDOW}-{self.name}-{i}"
            spec = {**conductor.SPEC, "name": name, "keyed": False}
            if self.measure("create", lambda spec=spec: self.connection.create(spec)):  # type: ignore[misc]
                self.windows.append((name, self.new_key()))

    @task(10)
    def insert(self) -> None:
        self.count_task()
        window, key = self.random.choice(self.windows)

        def call() -> None:
            (value,) = self.values(1)
            inserted = self.connection.insert(window, None, key.now + 1, value)
            key.push([value])
            check_equal("inserted", inserted, 1)

        self.measure("insert", call, writes=True)

    @task(8)
    def query(self) -> None:
        self.count_task()
        window, key = self.random.choice(self.windows)

        def call() -> None:
            (answer,) = self.connection.query(window, None)
            check_answer(window, answer, key.all())

        self.measure("query", call)


class Keys(Sensor):
    """Many keys in one window. Of 8 tasks 3 insert 1,000 entries of as many of them, 5 query twenty."""

    abstract = True
    operations = ("bulk-insert", "query")

    def begin(self) -> None:
        super().begin()
        self.keys: dict[str, Key] = {}

    @task(3)
    def bulk_insert(self) -> None:
        self.count_task()
        names = [f"{self.name}-{self.random.randrange(OPTIONS.share)}" for _ in range(BULK)]
        values = self.values(BULK)

        def call() -> None:
            nows = {name: self.keys[name].now if name in self.keys else 0 for name in names}
            times = []
            for name in names:
                nows[name] += 1
                times.append(nows[name])
            inserted = self.connection.bulk_insert(conductor.WINDOW, names, times, values)
            for name, value in zip(names, values, strict=True):
                if name not in self.keys:
                    self.keys[name] = self.new_key()
                self.keys[name].push([value])
            check_equal("inserted", inserted, BULK)

        self.measure("bulk-insert", call, writes=True)

    @task(5)
    def query(self) -> None:
        self.count_task()
        names = self.random.sample(list(self.keys), min(20, len(self.keys)))

        def call() -> None:
            answers = self.connection.query(conductor.WINDOW, names)
            check_equal("answers", len(answers), len(names))
            for name, answer in zip(names, answers, strict=True):
                check_answer(name, answer, self.keys[name].all())

        if names:
            self.measure("query", call)


class Watchers(Sensor):
    """A key that is watched: each task opens a watch, inserts ten entries, and waits for the answers that show them."""

    abstract = True
    operations = ("insert", "watch", "change")

    def begin(self) -> None:
        super().begin()
        self.key = self.new_key()

    @task
    def follow(self) -> None:
        self.count_task()
        answers: Iterator[Found] = iter(())
        with ExitStack() as closing:

            def watch() -> None:
                nonlocal answers
                answers = closing.enter_context(self.connection.watch(conductor.WINDOW, self.name, WATCH_MS))
                check_answer("at first", next(answers), self.key.all())

            def insert() -> None:
                (value,) = self.values(1)
                inserted = self.connection.insert(conductor.WINDOW, self.name, self.key.now + 1, value)
                self.key.push([value])
                check_equal("inserted", inserted, 1)

            def change() -> None:
                check_answer("after an insert", next(answers), self.key.all())

            going = (self.key.now or self.measure("insert", insert, writes=True)) and self.measure("watch", watch)
            for _ in range(10):
                going = going and self.measure("insert", insert, writes=True) and self.measure("change", change)


_SCENARIOS: dict[str, type[Sensor]] = {
    "steady": Steady,
    "spike": Steady,
    "windows": Windows,
    "keys": Keys,
    "watchers": Watchers,
    "soak": Soak,
}

_kind = _SCENARIOS[OPTIONS.scenario]
for _edge in OPTIONS.edges:
    # Locust finds the classes that the file has.
    _name = f"{_kind.__name__}Over{_edge.title()}"
    globals()[_name] = type(_name, (_kind,), {"edge": _edge, "abstract": False, "__module__": __name__})

conductor.listen(OPTIONS, [(edge, operation) for edge in OPTIONS.edges for operation in _kind.operations])
del _kind
