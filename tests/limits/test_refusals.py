"""When calls without a token are refused."""

import asyncio
from functools import partial

import pytest

from sash.limits import refusals
from sash.limits.refusals import Refusals
from tests.support.waiting import turns, until


@pytest.fixture
def given(monkeypatch):
    """What gives the next turns: the timers of the loop are called by hand."""
    timers = []

    class Timed:
        def __init__(self, loop):
            self.loop = loop

        def __getattr__(self, name):
            return getattr(self.loop, name)

        def call_later(self, after_s, call, *args):
            timers.append(partial(call, *args))
            return timers[-1]

    running = asyncio.get_running_loop
    monkeypatch.setattr(refusals.asyncio, "get_running_loop", lambda: Timed(running()))
    monkeypatch.setattr(refusals, "_BURST", 7)

    def give():
        (timer,) = timers
        timers.clear()
        timer()
        return bool(timers)

    return give


async def asked(limit, count):
    """So many refusals, as tasks."""
    tasks = [asyncio.create_task(limit.turn()) for _ in range(count)]
    await turns()
    return tasks


def done(tasks):
    return [task.done() for task in tasks]


async def test_a_burst_is_refused_at_once_and_others_in_their_order(given):
    limit = Refusals(12)
    tasks = await asked(limit, 7 + 12)
    assert done(tasks) == [True] * 7 + [False] * 12
    assert given()
    await turns()
    assert done(tasks) == [True] * 12 + [False] * 7
    (late,) = await asked(limit, 1)
    assert given()
    await turns()
    assert done([*tasks, late]) == [True] * 17 + [False] * 3
    assert given()
    await turns()
    assert done([*tasks, late]) == [True] * 20


async def test_too_many_are_refused_at_once(given):
    limit = Refusals(12)
    tasks = await asked(limit, 7 + 12)
    (one_more,) = await asked(limit, 1)
    assert one_more.done()
    for task in tasks:
        task.cancel()
    await turns()


async def test_one_whose_client_has_gone_takes_no_turn(given):
    limit = Refusals(12)
    tasks = await asked(limit, 7 + 12)
    for task in tasks[7:14]:
        task.cancel()
    await turns()
    assert given()
    await turns()
    assert done(tasks[14:]) == [True] * 5
    # Their places are free again.
    assert done(await asked(limit, 3)) == [False] * 3
    given()
    await turns()


async def test_one_whose_client_goes_at_this_moment_keeps_nobody_waiting(given):
    limit = Refusals(12)
    tasks = await asked(limit, 7 + 12)
    tasks[8].cancel()  # it has not heard of it yet
    assert given()
    await turns()
    assert done(tasks[7:12]) == [True] * 5
    assert given()
    await turns()
    assert done(tasks[12:17]) == [True] * 5
    given()
    await turns()


async def test_the_burst_comes_back_and_then_nothing_is_left_to_do(given):
    limit = Refusals(12)
    await asked(limit, 7 + 1)
    assert given()  # one that waits, and four of the burst
    assert not given()
    tasks = await asked(limit, 7 + 1)
    assert done(tasks) == [True] * 7 + [False]
    given()


async def test_with_the_timers_of_a_loop():
    limit = Refusals(12)
    tasks = await asked(limit, refusals._BURST + 20)
    await until(lambda: all(done(tasks)))
