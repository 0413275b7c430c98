"""Turns at a window: who comes first is first, also between the moment that somebody is woken and the one it runs."""

import asyncio

import pytest

from sash.durability.turns import RestingClock, Turns
from sash_engine.clock import ManualClock
from tests.support.waiting import turns as pass_by


@pytest.fixture
def turns():
    return Turns(RestingClock(ManualClock()))


async def takes(turns, order, name):
    if name.startswith("question"):
        async with turns.question():
            order.append(name)
    else:
        await turns.write()
        order.append(name)


@pytest.mark.parametrize("later", ["write", "question"])
@pytest.mark.parametrize("first", ["write 1", "question 1"])
async def test_nobody_overtakes_one_who_was_woken_and_has_not_run(turns, first, later):
    order = []
    with turns.alone():
        waits = asyncio.create_task(takes(turns, order, first))
        await pass_by(1)
    await takes(turns, order, later)
    await waits
    assert order == [first, later]


async def test_one_who_was_woken_for_nothing_keeps_its_place(turns):
    order = []
    with turns.alone():
        waits = asyncio.create_task(takes(turns, order, "question"))
        await pass_by(1)
        behind = asyncio.create_task(takes(turns, order, "write"))
        await pass_by(1)
    with turns.alone():  # a write that had its turn, and waited for something else
        await pass_by(3)
        assert order == []
    await asyncio.gather(waits, behind)
    assert order == ["question", "write"]


async def test_a_short_question_waits_as_long_as_long_writes_follow_each_other(turns):
    seen = asyncio.Event()

    async def looks():
        await turns.short()
        seen.set()

    with turns.alone():
        task = asyncio.create_task(looks())
        await pass_by(1)
    with turns.alone():
        await pass_by(3)
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
