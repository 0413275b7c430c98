"""Runs the phases of a scenario, and judges the run: by locust's master, or by its only process.

    test_start ─▶ empty windows ─▶ phases ─▶ stop users ─▶ totals of all processes ─▶ compare ─▶ quit

At the end the totals of what all users have pushed are compared with what the service answers over all keys, or over
all windows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import gevent  # type: ignore[import-untyped]
from gevent.event import Event  # type: ignore[import-untyped]
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.edges import TROUBLE, client_of
from loadtest.model import KEPT, Key, Summary, Wrong, check_answer
from loadtest.options import Options
from sash_client import ALL_KEYS, Client

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

KEYS: list[Key] = []
"""What the users of this process have pushed."""
CALLED: set[tuple[str, str]] = set()
"""Edges and operations that the users of this process have called."""
LOST: list[str] = []
"""Writes of this process whose outcome is unknown."""

STOPPING_S = 60


def listen(options: Options, expected: Sequence[tuple[str, str]]) -> None:
    """Run the scenario when locust starts.

    Args:
        options: the run's options.
        expected: edges and operations that must have been called at the end.
    """
    finished, tallies, stopped = Event(), [], Event()
    all_finished: list[int] = []

    def on_finished(environment: Environment, msg: Any, **_: Any) -> None:
        all_finished.append(msg.data)
        if len(all_finished) == options.users:
            finished.set()

    def on_tally(environment: Environment, msg: Any, **_: Any) -> None:
        tallies.append(msg.data)
        runner = environment.runner
        if not isinstance(runner, MasterRunner) or len(tallies) == environment.parsed_options.expect_workers:
            stopped.set()

    @events.init.add_listener  # type: ignore[untyped-decorator]
    def register(environment: Environment, **_: Any) -> None:
        environment.stop_timeout = STOPPING_S  # users finish their calls, so that it is known what was pushed
        if not isinstance(environment.runner, WorkerRunner):
            environment.runner.register_message("finished", on_finished)
            environment.runner.register_message("tally", on_tally)

    @events.test_start.add_listener  # type: ignore[untyped-decorator]
    def begin(environment: Environment, **_: Any) -> None:
        if isinstance(environment.runner, WorkerRunner):
            return
        with client_of(options) as client:
            for name in _windows(client):
                client.delete_window(name)
            client.create_window(SPEC)
        gevent.spawn(conduct, environment)

    def conduct(environment: Environment) -> None:
        runner = environment.runner
        for number, (users, seconds) in enumerate(options.phases):
            if number:
                runner.start(users, spawn_rate=users)
            if finished.wait(seconds):
                break
        runner.stop()
        stopped.wait(STOPPING_S)
        _judge(environment, options, tallies, expected)
        runner.quit()

    @events.test_stop.add_listener  # type: ignore[untyped-decorator]
    def tell(environment: Environment, **_: Any) -> None:
        if not isinstance(environment.runner, MasterRunner):
            total = sum((key.all() for key in KEYS), Summary())
            environment.runner.send_message(
                "tally", {"total": astuple(total), "lost": len(LOST), "called": sorted(CALLED)}
            )
            environment.stop_timeout = 0  # a worker waits for that long before it hears its master again


def _judge(
    environment: Environment, options: Options, tallies: list[dict[str, Any]], expected: Sequence[tuple[str, str]]
) -> None:
    """Report the totals as a request of their own, so that they are in the statistics and fail the run."""
    started_s, failure = time.perf_counter(), None
    called = {tuple(each) for tally in tallies for each in tally["called"]}
    silent = [" ".join(each) for each in expected if each not in called]
    lost = sum(tally["lost"] for tally in tallies)
    wanted = sum((Summary(*tally["total"]) for tally in tallies), Summary())
    try:
        if silent:
            raise Wrong(f"never called: {', '.join(silent)}")
        if lost:
            raise Wrong(f"totals are not known: {lost} writes had no answer")
        with client_of(options) as client:
            found = sum((_total(client, name) for name in _windows(client)), Summary())
        check_answer("totals", found.answer(), wanted)
    except (*TROUBLE, Wrong) as error:
        failure = error
    environment.events.request.fire(
        request_type="all",
        name="totals",
        response_time=(time.perf_counter() - started_s) * 1000,
        response_length=0,
        exception=failure,
        context={},
    )
    print(f"totals over {wanted.n:,} entries: {failure or 'as pushed'}", flush=True)


def _windows(client: Client) -> list[str]:
    names = (window.name for window in client.list_windows())
    return [name for name in names if name == WINDOW or name.startswith(f"{WINDOW}-")]


def _total(client: Client, name: str) -> Summary:
    window = client.window(name)
    (answer,) = window.query(keys=ALL_KEYS, combine=True) if name == WINDOW else window.query()
    return Summary.from_answer(answer.aggregates)
