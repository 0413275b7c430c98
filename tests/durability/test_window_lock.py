"""Turns at a window: who comes first is first, also between the moment that somebody is woken and the one it runs."""

import asyncio

import pytest

from sash.durability.window_lock import RestingClock, WindowLock
from sash_engine.clock import ManualClock
from tests.support.waiting import turns


@pytest.fixture
def lock():
    return WindowLock(RestingClock(ManualClock()))


async def takes(lock, order, name):
    if name.startswith("question"):
        async with lock.shared():
            order.append(name)
    else:
        await lock.wait_to_write()
        order.append(name)


@pytest.mark.parametrize("later", ["write", "question"])
@pytest.mark.parametrize("first", ["write 1", "question 1"])
async def test_nobody_overtakes_one_who_was_woken_and_has_not_run(lock, first, later):
    order = []
    with lock.exclusive():
        waits = asyncio.create_task(takes(lock, order, first))
        await turns(1)
    await takes(lock, order, later)
    await waits
    assert order == [first, later]


async def test_one_who_was_woken_for_nothing_keeps_its_place(lock):
    order = []
    with lock.exclusive():
        waits = asyncio.create_task(takes(lock, order, "question"))
        await turns(1)
        behind = asyncio.create_task(takes(lock, order, "write"))
        await turns(1)
    with lock.exclusive():  # a write that had its turn, and waited for something else
        await turns(3)
        assert order == []
    await asyncio.gather(waits, behind)
    assert order == ["question", "write"]


async def test_a_short_question_waits_as_long_as_long_writes_follow_each_other(lock):
    seen = asyncio.Event()

    async def looks():
        await lock.wait_for_long_write()
        seen.set()

    with lock.exclusive():
        task = asyncio.create_task(looks())
        await turns(1)
    with lock.exclusive():
        await turns(3)
        assert not seen.is_set()
    await task


async def test_the_time_of_a_write_is_inside_the_time_that_stands_still():
    real = ManualClock()
    clock = RestingClock(real)
    real.advance(10)
    clock.rest()
    with clock.stopped(7):
        assert clock.now_ns() == 7
    real.advance(10)
    assert clock.now_ns() == 10
    clock.go_on()
    assert clock.now_ns() == 20
