"""Users who write and ask over REST and over gRPC.

Each user is a sensor: a key of its own, whose clock goes on by a second per entry. Of 24 tasks, 10 insert one
entry, 3 insert 1,000, 8 query two lookbacks, 3 query a range. Every reply is checked against what the user sent so
far: a wrong one is a failure like any other.

Run by ``python -m loadtest``, or by locust itself, with its page:
``LOADTEST_GRPC=127.0.0.1:7070 locust -f loadtest/users.py --host http://127.0.0.1:7071``.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent  # type: ignore[import-untyped]
import grpc.experimental.gevent
from locust import FastHttpUser, User, events, task
from locust.env import Environment
from locust.exception import StopUser

from sash_client import Client, SashClientError

# Locust runs users as greenlets: gRPC has to wait in gevent's loop, or one call would block all users.
grpc.experimental.gevent.init_gevent()

GRPC_TARGET = os.environ.get("LOADTEST_GRPC", "127.0.0.1:7070")
TASKS_MAX = int(os.environ.get("LOADTEST_TASKS_MAX", "0"))
"""Tasks after which each user stops; 0 for no bound."""

BULK = 1000
KEPT = 100_000
WINDOW = "loadtest"
SPEC: Mapping[str, Any] = {
    "name": WINDOW,
    "time_unit": "s",
    "keyed": True,
    "aggregates": {
        "n": {"function": "count"},
        "mean": {"function": "mean"},
        "deviation": {"function": "stddev"},
        "max": {"function": "max"},
    },
    "slide": {"max_count": KEPT},
}
LOOKBACKS_S = {"5m": 300, "1h": 3600}
OPERATIONS = ("insert", "bulk-insert", "query", "range")

_numbers = itertools.count()
_finished: set[str] = set()


class Sensor(User):
    """What users of both edges do; they differ in how a call is made.

    The entries of a user have the times 1, 2, … `now`, without gaps: every count is known in advance.
    """

    abstract = True
    edge: str

    def on_start(self) -> None:
        self.key = f"{self.edge}-{os.getpid()}-{next(_numbers)}"
        self.random = random.Random(self.key)
        self.now = self.tasks_done = 0

    def send(self, times: list[int], values: list[float], bulk: bool) -> None:
        """Insert entries, one or in bulk, and check the reply with `check_write`."""
        raise NotImplementedError

    def ask(self) -> None:
        """Query all lookbacks, and check the reply with `check_answers`."""
        raise NotImplementedError

    def ask_range(self, start: int, end: int) -> None:
        """Query a range, and check the reply with `check_range`."""
        raise NotImplementedError

    @task(10)
    def insert(self) -> None:
        self._count_task()
        self.now += 1
        self.send([self.now], [self.random.gauss(20, 5)], bulk=False)

    @task(3)
    def bulk_insert(self) -> None:
        self._count_task()
        times = list(range(self.now + 1, self.now + 1 + BULK))
        # Some disorder: a tenth changes places with a neighbour.
        for i in self.random.sample(range(BULK - 1), BULK // 10):
            times[i], times[i + 1] = times[i + 1], times[i]
        self.now += BULK
        self.send(times, [self.random.gauss(20, 5) for _ in times], bulk=True)

    @task(8)
    def query(self) -> None:
        self._count_task()
        if self.now:
            self.ask()

    @task(3)
    def range_query(self) -> None:
        self._count_task()
        if self.now:
            end = self.random.randint(1, self.now)
            self.ask_range(max(1, end - self.random.randint(0, 10_000)), end)

    def check_write(self, sent: int, inserted: int, late: int) -> None:
        """Raise `Wrong` if not all that was sent was inserted."""
        _expect(f"of {sent} sent: inserted, late", (inserted, late), (sent, 0))

    def check_answers(self, counts: list[int]) -> None:
        """Raise `Wrong` if the lookbacks do not count what they must."""
        _expect("entries in lookbacks", counts, [min(self.now, seconds) for seconds in LOOKBACKS_S.values()])

    def check_range(self, start: int, end: int, count: int) -> None:
        """Raise `Wrong` if the range does not count what it must."""
        oldest = max(1, self.now - KEPT + 1)
        _expect("entries in range", count, max(0, end - max(start, oldest) + 1))

    def _count_task(self) -> None:
        self.tasks_done += 1
        if TASKS_MAX and self.tasks_done > TASKS_MAX:
            _finished.add(self.key)
            if len(_finished) == self.environment.runner.target_user_count:
                gevent.spawn(self.environment.runner.quit)  # not from here: it ends this greenlet, too
            raise StopUser


class RestUser(FastHttpUser, Sensor):
    """A sensor that speaks JSON over HTTP."""

    edge = "REST"

    def send(self, times: list[int], values: list[float], bulk: bool) -> None:
        if bulk:
            body: dict[str, Any] = {"key": [self.key] * len(times), "time": times, "value": values}
        else:
            body = {"key": self.key, "time": times[0], "value": values[0]}
        self._call(
            "bulk-insert" if bulk else "insert",
            lambda reply: self.check_write(len(times), reply["inserted"], reply["late"]),
            json=body,
        )

    def ask(self) -> None:
        parameters = "&".join(f"lookback={lookback}" for lookback in LOOKBACKS_S)
        self._call(
            "query",
            lambda reply: self.check_answers([answer["aggregates"]["n"] for answer in reply["answers"]]),
            parameters=parameters,
        )

    def ask_range(self, start: int, end: int) -> None:
        self._call(
            "range",
            lambda reply: self.check_range(start, end, reply["aggregates"]["n"]),
            parameters=f"start={start}&end={end}",
        )

    def _call(self, operation: str, check: Callable[[Any], None], *, parameters: str = "", json: Any = None) -> None:
        url = f"/v1/windows/{WINDOW}/{operation}"
        if json is None:
            url += f"?key={self.key}&{parameters}"
        method = "GET" if json is None else "POST"
        with self.client.request(method, url, name=f"{self.edge} {operation}", json=json, catch_response=True) as reply:
            if not reply.ok:
                return  # counted as a failure, with its status
            try:
                check(reply.json())
            except Wrong as wrong:
                reply.failure(str(wrong))


class GrpcUser(Sensor):
    """A sensor that uses the Python client."""

    edge = "gRPC"

    def on_start(self) -> None:
        super().on_start()
        self.client = Client(GRPC_TARGET)
        self.window = self.client.window(WINDOW)

    def on_stop(self) -> None:
        self.client.close()

    def send(self, times: list[int], values: list[float], bulk: bool) -> None:
        def call() -> None:
            if bulk:
                result = self.window.bulk_insert(times, values, keys=self.key)
            else:
                result = self.window.insert(times[0], values[0], key=self.key)
            self.check_write(len(times), result.inserted, result.late)

        self._measure("bulk-insert" if bulk else "insert", call)

    def ask(self) -> None:
        def call() -> None:
            answers = self.window.query(key=self.key, lookbacks=list(LOOKBACKS_S))
            self.check_answers([answer.aggregates["n"] for answer in answers])

        self._measure("query", call)

    def ask_range(self, start: int, end: int) -> None:
        def call() -> None:
            answer = self.window.range_query(start, end, key=self.key)
            self.check_range(start, end, answer.aggregates["n"])

        self._measure("range", call)

    def _measure(self, operation: str, call: Callable[[], None]) -> None:
        started_s, failure = time.perf_counter(), None
        try:
            call()
        except (SashClientError, Wrong) as error:
            failure = error
        self.environment.events.request.fire(
            request_type="CALL",
            name=f"{self.edge} {operation}",
            response_time=(time.perf_counter() - started_s) * 1000,
            response_length=0,
            exception=failure,
            context={},
        )


class Wrong(Exception):
    """A reply that is not what it must be."""


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise Wrong(f"{what}: {found}, not {expected}")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def create_window(environment: Environment, **_: Any) -> None:
    """Start from an empty window."""
    with Client(GRPC_TARGET) as client:
        if WINDOW in [window.name for window in client.list_windows()]:
            client.delete_window(WINDOW)
        client.create_window(SPEC)


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def judge(environment: Environment, **_: Any) -> None:
    """Fail the run for any failed call, and if an operation was never called on one of the edges."""
    names = {name for name, _ in environment.stats.entries}
    silent = [f"{edge} {operation}" for edge in ("REST", "gRPC") for operation in OPERATIONS]
    silent = [name for name in silent if name not in names]
    if silent:
        print(f"never called: {', '.join(silent)}")
    if silent or environment.stats.total.num_failures:
        environment.process_exit_code = 1
