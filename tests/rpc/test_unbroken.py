"""Writes that outlive their caller: they begin at once, and get a task of their own when they wait."""

import asyncio
import contextlib
import gc
import inspect
import weakref

import pytest

from sash.access.access import Access
from sash.admission import Admission, Lease
from sash.calls import resumed, shielded, unbroken
from sash.context import serving
from sash.limits.memory import MemoryBudget, unlimited
from sash.limits.places import Places
from sash.limits.turns import Turns
from sash_engine.clock import ManualClock
from sash_engine.errors import Unavailable
from tests.support.waiting import turns, until


async def test_a_write_that_never_waits_has_no_task_of_its_own():
    seen = []

    async def write():
        seen.append(asyncio.current_task())
        return 7

    assert await unbroken(write()) == 7
    assert seen == [asyncio.current_task()]


async def test_a_task_takes_what_goes_on_in_every_python():
    """From Python 3.12 on, tasks refuse coroutines that `types.coroutine` made of generators."""

    async def write():
        return await asyncio.sleep(0, 7)

    work = write()
    rest = resumed(work, work.send(None))
    assert inspect.iscoroutine(rest)
    assert await asyncio.create_task(rest) == 7


class Gone(OSError):
    """An error that can be looked for."""


@pytest.mark.parametrize("is_caught", [False, True], ids=["fails", "goes on and fails"])
async def test_what_goes_on_and_fails_leaves_nothing_for_the_collector(is_caught):
    """Each TLS handshake that was broken off stayed, with its connection: 1,366 after half a minute of attacks."""

    async def work(waits_for):
        with contextlib.suppress(Gone if is_caught else ()):
            await waits_for.pop()
        raise Gone

    async def failed():
        waits_for = asyncio.get_running_loop().create_future()
        begun = work([waits_for])
        task = asyncio.create_task(resumed(begun, begun.send(None)))
        await turns(1)
        waits_for.set_exception(Gone())
        await asyncio.wait((task,))
        return [weakref.ref(each.exception()) for each in (task, waits_for)]

    gc.collect()
    gc.disable()
    try:
        assert [each() for each in await failed()] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("waits", [1, 2, 3])
async def test_a_write_that_waits_goes_on_when_its_caller_is_cancelled(waits):
    go, done = asyncio.Event(), asyncio.Event()

    async def write():
        for _ in range(waits):
            await go.wait()
            await turns(1)
        done.set()

    caller = asyncio.create_task(unbroken(write()))
    await turns(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not done.is_set()
    go.set()
    await asyncio.wait_for(done.wait(), 60)


async def test_answers_and_errors_of_what_it_waits_for_arrive():
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    async def write():
        found = [await first]
        try:
            await second
        except ValueError as error:
            found.append(str(error))
        raise KeyError(*found)

    caller = asyncio.create_task(unbroken(write()))
    await turns(1)
    first.set_result("one")
    second.set_exception(ValueError("two"))
    with pytest.raises(KeyError) as caught:
        await caller
    assert caught.value.args == ("one", "two")


async def test_an_error_before_it_waits_is_the_caller_s():
    async def write():
        raise KeyError("at once")

    with pytest.raises(KeyError, match="at once"):
        await unbroken(write())


@pytest.mark.parametrize("wait_for", [unbroken, shielded], ids=["unbroken", "shielded"])
async def test_what_a_write_takes_is_given_back_when_it_is_over(wait_for):
    """Its place and its memory were given back with its caller: who sent and called off had as many as it liked."""
    go, left = asyncio.Event(), []
    memory = MemoryBudget(10**9, {"bodies": (10**9, "")}, used=lambda: 0)
    admission = Admission(Access(ManualClock()), memory, Turns(), Places(2, 1))
    leases = []

    async def call():
        leases.append(Lease(admission, "a"))
        leases[0].memory.take(10**6)
        try:
            with leases[0]:
                await wait_for(go.wait())
        finally:
            leases[0].close()
            left.append(serving().is_going_on)

    task = asyncio.create_task(call())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left == [True]
    assert leases[0].memory.held == 10**6
    with pytest.raises(Unavailable):
        admission.places.check("a")
    go.set()
    await until(lambda: not leases[0].memory.held)
    admission.places.check("a")


async def test_a_call_whose_write_is_over_gives_back_at_once():
    admission = Admission(Access(ManualClock()), unlimited(), Turns(), Places(2, 1))

    async def call():
        with Lease(admission, "a"):
            await unbroken(asyncio.sleep(0))
        admission.places.check("a")
        assert not serving().is_going_on

    await asyncio.create_task(call())


async def test_a_write_that_went_on_is_over_some_time():
    go = asyncio.Event()

    async def call():
        try:
            await unbroken(go.wait())
        except asyncio.CancelledError:
            found = [serving().is_going_on]
            go.set()
            await turns()
            return [*found, serving().is_going_on]

    task = asyncio.create_task(call())
    await turns()
    task.cancel()
    assert await task == [True, False]
