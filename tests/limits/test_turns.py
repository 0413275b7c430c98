"""Turns: nobody waits while the loop is free; where it is busy, the caller who used least goes first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sash.limits.turns import BURST_S, CALL_S, CALLERS_MAX, Turns
from sash.runtime import clock as system
from tests.support.clocks import Clock
from tests.support.virtual_time import virtual
from tests.support.waiting import turns as steps


@pytest.fixture
def clock():
    clock = Clock()
    clock.now_s = 100.0
    return clock


@pytest.fixture
def turns(clock):
    return Turns(clock_s=clock)


@pytest.fixture
def order():
    return []


def called(turns, clock, order, name, cost_s=0.0005, size=0):
    """A call that holds the loop for so long."""

    async def work():
        order.append(name)
        clock.now_s += cost_s

    async def run():
        if turns.pays(name, size, reads=not size):
            await turns.turn(name, size, reads=not size)
        if size:
            await work()
            wrote(turns, name, cost_s)
        else:
            await turns.metered(name, work())

    return asyncio.create_task(run())


def wrote(turns, name, cost_s):
    """Charge for a write that has held the loop for so long, as what applies it does."""
    turns.spend(name, cost_s)
    turns.wrote(name, cost_s)


@virtual
async def test_nobody_waits_while_the_loop_is_free(turns, clock, order):
    for _ in range(100):
        clock.now_s += 0.01
        assert not turns.pays("a")
    assert turns.waiting == 0


@virtual
async def test_calls_that_fit_into_a_burst_do_not_wait(turns, clock):
    for _ in range(16):
        clock.now_s += CALL_S
        assert not turns.pays("a")


@virtual
async def test_calls_wait_for_no_turn_where_each_iteration_of_the_loop_has_few(turns, clock, order):
    """Ten callers with calls of 0.1 ms, one after the other: the loop is busy, and has read all that there is."""

    async def press(name):
        for _ in range(100):
            clock.now_s += CALL_S
            assert not turns.pays(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(press(name) for name in "abcdefghij"))


@virtual
async def test_who_used_least_goes_first(turns, clock, order):
    """A hundred calls of 5 ms are there at once, and a small one of somebody else behind them."""
    tasks = [called(turns, clock, order, "heavy", 0.005) for _ in range(100)]
    tasks.append(called(turns, clock, order, "light"))
    await asyncio.gather(*tasks)
    assert len(order) == 101
    # Those that came before anybody knew that the loop was busy run first, and what one iteration lets go.
    assert order.index("light") < 30


@virtual
async def test_each_gets_the_same_of_a_busy_loop(turns, clock, order):
    """Three callers with calls of 1, 2 and 4 ms, all of which always have calls waiting."""
    costs = {"a": 0.001, "b": 0.002, "c": 0.004}

    async def press(name):
        while len(order) < 3000:
            await called(turns, clock, order, name, costs[name])

    await asyncio.gather(*(press(name) for name in costs for _ in range(20)))
    used = {name: order[500:3000].count(name) * cost_s for name, cost_s in costs.items()}
    assert max(used.values()) < 1.5 * min(used.values()), used


@virtual
async def test_one_who_was_away_has_saved_nothing_up(turns, clock, order):
    await called(turns, clock, order, "sleeper")
    for _ in range(50):
        await asyncio.gather(*(called(turns, clock, order, "busy", 0.001) for _ in range(20)))
    order.clear()

    async def press(name):
        while len(order) < 100:
            await called(turns, clock, order, name, 0.001)

    await asyncio.gather(*(press(name) for name in ("busy", "sleeper") for _ in range(4)))
    assert 30 <= order.count("busy") <= 70


@virtual
async def test_a_call_that_is_called_off_holds_no_turn(turns, clock, order):
    tasks = [called(turns, clock, order, "a", 0.005) for _ in range(50)]
    await steps(1)
    assert turns.waiting
    for task in tasks[10:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await steps()
    assert turns.waiting == 0
    assert not turns.pays("b")


@virtual
async def test_a_large_request_is_charged_more(turns, clock, order):
    tasks = [called(turns, clock, order, "bulks", 0.001, size=1_000_000) for _ in range(50)]
    tasks += [called(turns, clock, order, "inserts", 0.001) for _ in range(50)]
    await asyncio.gather(*tasks)
    waited = order[10:]
    assert waited[:40].count("inserts") > 35


@virtual
async def test_a_long_question_is_paid_for_when_it_has_run(turns, clock, order):
    """Its caller's writes wait behind those of somebody who asked nothing."""
    await called(turns, clock, order, "asker", 0.1)
    order.clear()
    names = ["filler"] * 20 + ["asker"] * 40 + ["other"] * 40
    await asyncio.gather(*(called(turns, clock, order, name, 0.001, size=1) for name in names))
    assert order[-30:] == ["asker"] * 30


@virtual
async def test_a_write_is_charged_what_it_took_and_not_only_its_length(turns, clock, order):
    """Two callers send writes of the same length; those of one take twenty times as long."""
    costs = {"dear": 0.002, "cheap": 0.0001}

    async def write(name):
        if turns.pays(name, 100):
            await turns.turn(name, 100)
        order.append(name)
        clock.now_s += costs[name]
        wrote(turns, name, costs[name])

    async def press(name):
        while len(order) < 3000:
            await write(name)

    await asyncio.gather(*(press(name) for name in costs for _ in range(20)))
    assert order[500:3000].count("cheap") > 8 * order[500:3000].count("dear")


@virtual
async def test_no_more_writes_go_at_a_time_than_fit_into_a_burst(turns, clock, order):
    """So a question of somebody else waits for a burst, however many short messages are there."""

    async def write():
        if turns.pays("stream", 100):
            await turns.turn("stream", 100)
        clock.now_s += 0.001
        wrote(turns, "stream", 0.001)

    async def stream():
        while not order:
            await write()

    streams = [asyncio.create_task(stream()) for _ in range(200)]
    await steps(2000)
    asked_s = clock.now_s
    await called(turns, clock, order, "other")
    assert clock.now_s - asked_s < 3 * BURST_S + 0.0005
    await asyncio.gather(*streams)


async def test_callers_are_forgotten_when_there_are_very_many(turns, clock):
    for i in range(3 * CALLERS_MAX):
        clock.now_s += 0.01
        turns.pays(f"caller {i}")
        wrote(turns, f"caller {i}", 0.01)
        assert len(turns._finish_s) <= CALLERS_MAX
    assert len(turns._writing_s) <= CALLERS_MAX


async def test_callers_who_used_much_are_remembered_longer(turns, clock):
    turns.pays("heavy")
    wrote(turns, "heavy", 1000.0)
    for i in range(2 * CALLERS_MAX):
        clock.now_s += 0.01
        turns.pays(f"caller {i}")
    assert "heavy" in turns._finish_s


def long_call(turns, clock, order, name, steps_s, reads=True):
    """A call that holds the loop again and again; it could go on at once each time."""

    async def work():
        for cost_s in steps_s:
            order.append(name)
            clock.now_s += cost_s
            await asyncio.sleep(0)

    async def run():
        if turns.pays(name, 0, reads):
            await turns.turn(name, 0, reads)
        await turns.metered(name, work(), reads)

    return asyncio.create_task(run())


@pytest.mark.parametrize("reads", [True, False], ids=["questions", "writes"])
@virtual
async def test_a_small_call_does_not_wait_for_a_step_of_each_long_one(turns, clock, order, reads):
    """Fifty calls go on with 3 ms each in every iteration of the loop."""
    tasks = [long_call(turns, clock, order, "heavy", [0.003] * 40, reads) for _ in range(50)]
    await steps(400)
    behind = len(order)
    await called(turns, clock, order, "light")
    assert order.index("light") - behind <= 2
    await asyncio.gather(*tasks)
    assert order.count("heavy") == 50 * 40


@virtual
async def test_a_long_call_goes_on_at_once_where_it_is_alone(turns, clock, order):
    task = long_call(turns, clock, order, "a", [0.001] * 100)
    await steps(110)
    assert task.done()


@virtual
async def test_calls_that_have_held_the_loop_for_less_than_a_burst_go_on_without_a_turn(turns, clock, order):
    """Those that wait for a commit, for example: all may be answered in one iteration."""
    heavy = [long_call(turns, clock, order, "heavy", [0.003] * 40) for _ in range(3)]
    committed, order_of = asyncio.Event(), []

    async def small():
        await committed.wait()
        order_of.append(len(order))

    smalls = [asyncio.create_task(turns.metered("small", small(), reads=False)) for _ in range(30)]
    await steps(20)
    committed.set()
    await asyncio.gather(*smalls)
    assert len(set(order_of)) == 1
    await asyncio.gather(*heavy)


@virtual
async def test_two_callers_with_long_calls_have_the_same_of_the_loop(turns, clock, order):
    """One of them has ten times as many calls."""
    tasks = [long_call(turns, clock, order, "many", [0.003] * 100) for _ in range(20)]
    tasks += [long_call(turns, clock, order, "few", [0.003] * 100) for _ in range(2)]
    while len(order) < 300:
        await asyncio.sleep(0)
    assert 100 <= order[100:300].count("few") * 2 <= 300, order[100:300].count("few")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_a_long_call_that_is_called_off_while_it_waits_ends_there(turns, clock, order):
    ended = []

    async def work():
        try:
            for _ in range(100):
                clock.now_s += 0.003
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    tasks = [asyncio.create_task(turns.metered("a", work())) for _ in range(5)]
    await steps(30)
    assert turns.waiting
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    assert ended == [True] * 5
    await steps(20)
    assert turns.waiting == 0


@virtual
async def test_what_is_within_a_metered_call_is_charged_once(turns, clock, order):
    """A write that is applied within a call, and one that is applied without it: both cost their callers the same."""

    def applied(name):
        clock.now_s += 0.01
        wrote(turns, name, 0.01)

    async def work():
        applied("within")

    for name in ("within", "without"):
        assert not turns.pays(name, 1)
        await (turns.metered(name, work(), reads=False) if name == "within" else _done(applied, name))
        clock.now_s += 1
    assert turns._finish_s["within"] == pytest.approx(turns._finish_s["without"], abs=0.001)


async def _done(call, name):
    call(name)


@virtual
async def test_what_waits_in_turns_is_charged_what_it_took_and_nothing_for_waiting(turns, clock):
    for _ in range(50):
        await turns.next_turn("a", 0.002)
        turns.ran("a", 0.002)
    assert turns._finish_s["a"] < 0.01


@virtual
async def test_long_calls_are_charged_what_they_took_and_no_more(turns, clock, order):
    """Two calls of 0.12 s each that wait for each other all the time; before each step, nobody knows what it takes."""
    await asyncio.gather(*(long_call(turns, clock, order, "a", [0.003] * 20 + [0.006] * 10) for _ in range(2)))
    assert turns._finish_s["a"] == pytest.approx(0.24, abs=0.02)


@virtual
async def test_a_short_question_behind_long_ones_is_charged_what_it_took(turns, clock, order):
    for _ in range(20):
        await called(turns, clock, order, "a", 0.1)
        clock.now_s += 1
    before_s = turns._finish_s["a"]
    await called(turns, clock, order, "a", 0.001)
    assert turns._finish_s["a"] - before_s == pytest.approx(0.001, abs=0.0005)


@virtual
async def test_a_write_is_given_back_what_it_was_charged_in_advance(turns, clock, order):
    for _ in range(40):
        await called(turns, clock, order, "a", 0.01, size=1)
        clock.now_s += 1
    before_s = turns._finish_s["a"]
    await called(turns, clock, order, "a", 0.01, size=1)
    assert turns._finish_s["a"] - before_s == pytest.approx(0.01, abs=0.001)


def test_processor_time_is_asked_for_now_and_then_and_never_goes_back(monkeypatch):
    """In milliseconds: wall time, what the system says if it is asked, and what the clock says."""
    now = SimpleNamespace(perf_counter=lambda: given[0] / 1e3, thread_time=lambda: given[1] / 1e3)
    monkeypatch.setattr(system, "time", now)
    told = system.SystemClock()
    for *given, expected in (
        (1.0, 0.5, 0.5),  # asked
        (1.2, 9.9, 0.7),  # not asked: as if it had run all the time
        (1.3, 0.55, 0.7),  # asked: it had not, so the clock waits
        (1.4, 9.9, 0.7),
        (1.5, 9.9, 0.75),
        (1.6, 0.8, 0.8),  # asked
        (9.0, 0.9, 0.9),  # asked: it slept
    ):
        assert told.processor_s() == pytest.approx(expected / 1e3), given
